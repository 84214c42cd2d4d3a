"""Errors of the library in the command's words: options in place of Python calls."""

from __future__ import annotations

import re

#: Parts of errors' texts, and what stands for them here. An option cannot give a function.
INSTEAD = {
    ", or admin.create_topics": "",
    ": seek, commit an offset, or set 'earliest' or 'latest'": (
        ": set 'earliest' or 'latest', or commit an offset by trikafka groups reset-offsets"
    ),
    "; seek, or set auto_offset_reset": "; set auto_offset_reset",
    ", add TLSv1.3, or give ssl_context with a maximum_version": ", or add TLSv1.3",
    ", or give ssl_context": "",
    ": give ssl_context": "",
    "sasl_oauth_token_provider, or ": "",
    "; tokens of a cloud's metadata service need sasl_oauth_token_provider": "",
    "; a token from elsewhere comes from a function (sasl_oauth_token_provider)": "",
    " (or sasl_credentials)": "",
}
_CALL = re.compile(r"\bopen_(share_)?(consumer|producer|admin)\(\)")
_SHARED = re.compile(r" \(of a file that several clients share: from_properties\(file, \w+\)\)")
#: A name by itself: not a part of a path or of a topic's name, and not a setting whose value
#: follows.
_NAME = re.compile(r"(?<![\w./-])[a-z]+(?:_[a-z0-9]+)+(?![\w=/-])(?!\.\w)")
#: Settings that take objects or functions, which no option gives.
_NO_OPTIONS = {"dial", "plugins", "sasl_credentials", "ssl_context"}
_FUNCTIONS = ("_deserializer", "_provider")
_OPTIONS = {"bootstrap_servers": "-b", "group_id": "-G"}


def in_options(text: str, *, chosen: bool) -> str:
    """Return an error's text with options in place of calls.

    If the text names a setting, a hint says which option gives it. If it is an error about the
    settings that were ``chosen``, the user knows that.
    """
    for call, instead in INSTEAD.items():
        text = text.replace(call, instead)
    text = _SHARED.sub("; a file that several clients share is given by --config-file", text)
    text = _CALL.sub(_client, text)
    if chosen or "-X" in text:
        return text
    from ..config.setting_names import own_parts

    known = _settings()
    names = (name for part in own_parts(text) for name in _NAME.findall(part))
    name = next((name for name in names if name in known), None)
    if name is None:
        return text
    option = _OPTIONS.get(name, f"-X {name}=VALUE")
    return f"{text} (the option is {option})"


def _client(call: re.Match[str]) -> str:
    if call[2] == "admin":
        return "an admin client"
    return f"a share {call[2]}" if call[1] else f"a {call[2]}"


def _settings() -> frozenset[str]:
    from ..config import AdminConfig, ConsumerConfig, ProducerConfig, settings_of

    clients = (AdminConfig, ConsumerConfig, ProducerConfig)
    return frozenset(
        name
        for client in clients
        for name in settings_of(client)
        if name not in _NO_OPTIONS and not name.endswith(_FUNCTIONS)
    )
