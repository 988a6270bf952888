"""Signatures by Standard Webhooks: HMAC-SHA256 over id, timestamp and body, with a secret that is
stored nowhere.

A webhook's secret is made from its random salt and the server's SECRET_KEY, so that a copy of the
database signs nothing. A SECRET_KEY that was changed still signs while it is one of
SECRET_KEY_FALLBACKS; after that a new secret has to be made.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from dataclasses import dataclass

from django.conf import settings

PREFIX = "whsec_"
PURPOSE = b"flywheel webhook secret 1:"


class LostSecret(Exception):
    """The server's key is no longer the one that a webhook's secret was made with."""

    def __init__(self) -> None:
        super().__init__(
            "SECRET_KEY has changed, so the signing secret can no longer be read. Rotate the"
            " secret."
        )


@dataclass(frozen=True)
class Made:
    """A new secret, which is shown once, and what is stored of it."""

    secret: str
    salt: str
    fingerprint: str


def new_secret() -> Made:
    salt = secrets.token_hex(32)
    secret = _secret(settings.SECRET_KEY, salt)
    return Made(secret, salt, _fingerprint(secret))


def secret_of(salt: str, fingerprint: str) -> str:
    """The secret that was shown. Raises LostSecret."""
    for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS):
        secret = _secret(key, salt)
        if hmac.compare_digest(_fingerprint(secret), fingerprint):
            return secret
    raise LostSecret


def _secret(key: str, salt: str) -> str:
    made = hmac.digest(key.encode(), PURPOSE + salt.encode(), "sha256")
    return PREFIX + base64.b64encode(made).decode()


def _fingerprint(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()[:16]


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """“v1,” and the base64 of the signature: one of those that the header `webhook-signature`
    lists.
    """
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = b"%s.%d.%s" % (message_id.encode(), timestamp, body)
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
