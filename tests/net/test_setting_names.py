"""Other names of settings in the texts of errors."""

from __future__ import annotations

import pytest

from trikafka.config import ConsumerConfig, ProducerConfig, settings_of
from trikafka.config.security_properties import NAMES
from trikafka.config.setting_names import (
    java_names,
    own_parts,
    properties_by_setting,
    rename_settings,
)
from trikafka.errors import BootstrapError


@pytest.mark.parametrize(
    ("given", "setting", "shown"),
    [
        ((), "ssl_cafile", "ssl.truststore.location"),
        (("ssl.ca.location",), "ssl_cafile", "ssl.ca.location"),
        (("ssl.key.password",), "ssl_password", "ssl.key.password"),
        (("socket.timeout.ms",), "request_timeout_ms", "socket.timeout.ms"),
        (("request.required.acks",), "acks", "acks"),
        (("fetch_min_bytes",), "fetch_min_bytes", "fetch_min_bytes"),
    ],
)
def test_setting_has_the_given_property(given: tuple[str, ...], setting: str, shown: str) -> None:
    assert properties_by_setting(given)[setting] == shown


def test_properties_of_security_are_translated() -> None:
    """A property stands for a setting of another name only if it is translated to that one."""
    known = {*settings_of(ConsumerConfig), *settings_of(ProducerConfig)}
    other = {
        setting: name
        for setting, name in properties_by_setting(()).items()
        if java_names()[setting] != name
    }
    assert other.keys() <= known
    assert {*other.values()} <= {*NAMES}


def test_renamed_error_keeps_foreign_words() -> None:
    error = BootstrapError("ssl_cafile of 'ssl_cafile'; HTTP 401 (ssl_cafile)")
    error.add_note("see ssl_cafile")
    error.__cause__ = ValueError("ssl_cafile")
    rename_settings(error, {"ssl_cafile": "--ca"})
    assert str(error) == "--ca of 'ssl_cafile'; HTTP 401 (ssl_cafile)"
    assert error.__notes__ == ["see --ca"]
    assert str(error.__cause__) == "ssl_cafile"
    assert own_parts(str(error)) == ["--ca of ", "; ", ""]
