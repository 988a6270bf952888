"""Signatures as Standard Webhooks has them; secrets that are stored nowhere."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from apps.webhooks import sending, signing
from apps.webhooks.models import TRIES, Event


def test_it_signs_as_the_other_libraries_do() -> None:
    """The example that the libraries of Standard Webhooks share."""
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    found = signing.signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_secret_is_made_again_from_what_is_stored_and_the_servers_key(settings: Any) -> None:
    settings.SECRET_KEY = "one"
    made, other = signing.new_secret(), signing.new_secret()
    assert (
        made.secret != other.secret
        and len(base64.b64decode(made.secret.removeprefix("whsec_"))) == 32
    )
    assert signing.secret_of(made.salt, made.fingerprint) == made.secret
    assert made.secret not in made.salt + made.fingerprint
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "two", ["one"]
    assert signing.secret_of(made.salt, made.fingerprint) == made.secret
    settings.SECRET_KEY_FALLBACKS = []
    with pytest.raises(signing.LostSecret, match="Rotate the secret"):
        signing.secret_of(made.salt, made.fingerprint)


def waits(draw: float, asked: float = 0.0) -> list[float]:
    return [
        sending.wait_of(tries, asked, lambda: draw).total_seconds() for tries in range(1, TRIES)
    ]


@pytest.mark.parametrize("draw", [0.0, 0.5, 1.0])
def test_the_waits_grow_to_about_a_day(draw: float) -> None:
    found = waits(draw)
    assert len(found) == 9 and found == sorted(found)
    assert found[0] == pytest.approx(10 * (0.8 + 0.4 * draw)) and found[1] == pytest.approx(
        4 * found[0]
    )
    assert 17 * 3600 < sum(found) < 27 * 3600 and max(found) <= 1.2 * sending.LONGEST_S


def test_a_receiver_may_ask_for_a_longer_wait_within_bounds() -> None:
    assert waits(0.5, 120)[:2] == [120, 120] and waits(0.5, 120)[3] == 640
    assert waits(0.5, 1e9)[0] == sending.LONGEST_S


def test_the_lines_of_the_docs_check_a_signature() -> None:
    text = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text()
    names: dict[str, Any] = {}
    exec(text.split("```python")[1].split("```")[0], names)
    secret, other, body = signing.new_secret().secret, signing.new_secret().secret, b'{"type":"a"}'
    given = " ".join(signing.signature(key, "msg_1", 1000, body) for key in (other, secret))
    headers = {"webhook-id": "msg_1", "webhook-timestamp": "1000", "webhook-signature": given}
    genuine = names["is_genuine"]
    assert genuine(secret, headers, body, now=1100)
    assert not genuine(secret, headers, body + b" ", now=1100)
    assert not genuine(secret, headers, body, now=1400)
    assert not genuine(signing.new_secret().secret, headers, body, now=1100)
    assert all(f"| `{event.value}` | {event.label} |" in text for event in Event)
