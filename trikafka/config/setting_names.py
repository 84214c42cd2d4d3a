"""Other names of settings, and errors that show them.

The users of a program may give settings by other names than trikafka's: as properties of Java's
client, or as options of a job or a command. An error should then show the name that was given.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache

from ..errors import TrikafkaError
from ..errors.groups import chain
from .clients import ConsumerConfig, ProducerConfig
from .property_names import rule_of
from .setting import settings_of

#: The properties of Java's clients from which :mod:`.security_properties` makes settings of other
#: names.
_SECURITY_PROPERTIES = {
    "sasl_plain_username": "sasl.jaas.config",
    "sasl_plain_password": "sasl.jaas.config",
    "ssl_cafile": "ssl.truststore.location",
    "ssl_ca_password": "ssl.truststore.password",
    "ssl_certfile": "ssl.keystore.location",
    "ssl_password": "ssl.keystore.password",
    "ssl_check_hostname": "ssl.endpoint.identification.algorithm",
    "ssl_ciphers": "ssl.cipher.suites",
    "ssl_minimum_version": "ssl.enabled.protocols",
}
#: A word that may be a setting. A part of a path, of an address or of a hyphenated name is none.
_WORD = re.compile(r"(?<![\w./-])\w[\w.]*\w(?!\.?\w|[/-])")
#: What others have named or said: a quoted name, and the response of an OAuth server up to
#: trikafka's own words about it.
_FOREIGN = re.compile(
    r"((?<!\w)'[^']*'(?!\w)"
    r'|(?<!\w)"[^"]*"(?!\w)'
    r"|\bHTTP \d{3} \(.*?(?=; the client's id and secret were sent |$))",
    re.DOTALL,
)


@cache
def java_names() -> dict[str, str]:
    """Return a name with dots for each setting of consumers and producers: Java's, if any."""
    return {
        name: setting.java or name.replace("_", ".")
        for client in (ConsumerConfig, ProducerConfig)
        for name, setting in settings_of(client).items()
    }


def properties_by_setting(given: Iterable[str]) -> dict[str, str]:
    """Return the property for each setting: the one that was given, or else Java's.

    The given properties have entries under their own names, too.
    """
    given = tuple(given)
    names = java_names() | _SECURITY_PROPERTIES
    if "ssl.key.password" in given:
        names["ssl_password"] = "ssl.key.password"
    settings = {java: name for name, java in java_names().items()}
    for name in given:
        rule = rule_of(name)
        setting = settings.get(name) if rule is None else rule.setting
        # A setting such as "acks" keeps its name: it is also a word of sentences.
        names[setting if setting and "_" in setting else name.replace(".", "_")] = name
    return names | {name: name for name in given}


def renamed(text: str, names: Mapping[str, str]) -> str:
    """Return the text with other ``names`` for the settings in it."""
    text = text.replace(" (or sasl_credentials)", "")  # a function, which has no other name
    return _WORD.sub(lambda word: names.get(word[0], word[0]), text)


def own_parts(text: str) -> list[str]:
    """Return the parts of an error's text that are trikafka's own words.

    The others are quoted names, and responses of OAuth servers: a word in them is no setting.
    """
    return _FOREIGN.split(text)[::2]


def rename_settings(error: BaseException, names: Mapping[str, str]) -> None:
    """Rename the settings in the texts and notes of an error of trikafka's and of its causes.

    The errors keep their classes and attributes. Quoted names and responses of OAuth servers stay
    as they are, and so do the texts of causes that are not trikafka's, and of groups of errors.
    """
    for each in chain(error):
        if isinstance(each, TrikafkaError):
            each.args = tuple(
                _renamed_own(part, names) if isinstance(part, str) else part for part in each.args
            )
        if notes := getattr(each, "__notes__", None):
            each.__notes__ = [_renamed_own(str(note), names) for note in notes]


def _renamed_own(text: str, names: Mapping[str, str]) -> str:
    parts = _FOREIGN.split(text)
    parts[::2] = [renamed(part, names) for part in parts[::2]]
    return "".join(parts)
