"""Which keys may be sent, and to whom."""

from __future__ import annotations

from typing import Any

import pytest

from apps.core.outgoing_keys import key_hosts, key_of
from flywheel.settings import ImproperlyConfigured, env_keys
from workers.lib.keys import RefusedKey

SECRET = "sk-very-secret"


@pytest.fixture(autouse=True)
def _rules(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.FLYWHEEL_OUTGOING_KEYS = ["BOUND@Gym.example.org", "ANYWHERE", "UNSET"]
    for name in ("BOUND", "ANYWHERE", "DATABASE_URL"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.delenv("UNSET", raising=False)


@pytest.mark.parametrize(
    ("variable", "host", "operator", "said"),
    [
        ("", "gym.example.org", False, ""),
        ("BOUND", "gym.example.org", False, SECRET),
        ("BOUND", "GYM.example.org", False, SECRET),
        ("BOUND", "gym.example.org.evil.net", True, "may go to gym.example.org only"),
        ("BOUND", "evil.net", True, "may go to gym.example.org only"),
        ("ANYWHERE", "gym.example.org", True, SECRET),
        ("ANYWHERE", "evil.net", False, "only an operator"),
        ("DATABASE_URL", "gym.example.org", True, "may not be read"),
        ("bound", "gym.example.org", True, "may not be read"),
        ("UNSET", "gym.example.org", True, "is not set"),
    ],
)
def test_a_key_goes_only_where_it_may(variable: str, host: str, operator: bool, said: str) -> None:
    try:
        assert key_of(variable, host, operator=operator) == said
    except RefusedKey as error:
        assert said in str(error) and said != SECRET and SECRET not in str(error)


@pytest.mark.parametrize("value", ["two words", "line\nbreak", "ключ", "tab\tbed"])
def test_what_is_no_key_is_neither_sent_nor_said(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("ANYWHERE", value)
    with pytest.raises(RefusedKey, match="not a key") as error:
        key_of("ANYWHERE", "gym.example.org")
    assert value not in str(error.value)


@pytest.mark.parametrize(
    "value", ["KEY@", "@host", "KEY@a@b", "KEY@https://host", "KEY@host:8443", "A KEY", "9KEY"]
)
def test_a_setting_that_makes_no_sense_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("FLYWHEEL_OUTGOING_KEYS", f"GOOD@host,{value}")
    with pytest.raises(ImproperlyConfigured, match="VARIABLE@host"):
        env_keys("FLYWHEEL_OUTGOING_KEYS", "")


def test_hosts_of_the_setting() -> None:
    assert key_hosts() == {"BOUND": "gym.example.org", "ANYWHERE": "", "UNSET": ""}
