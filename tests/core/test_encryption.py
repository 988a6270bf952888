"""What the database holds of secrets is encrypted, and encrypted anew with a new SECRET_KEY."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.mfa.adapter import get_adapter
from allauth.mfa.models import Authenticator
from cryptography.fernet import InvalidToken
from django.apps import apps
from django.core.exceptions import FieldError
from django.core.management import CommandError, call_command
from django.db import connection, models

from apps.core.encryption import LOST, EncryptedText, fernet
from apps.trajectories.held import hold, unsealed
from apps.trajectories.models import HeldBatch
from apps.webhooks.models import Event, Webhook
from tests.factories import make_project, make_user

pytestmark = pytest.mark.django_db
URL = "https://hooks.slack.com/services/T0/B0/very-secret"


@pytest.fixture
def hook() -> Webhook:
    return Webhook.objects.create(
        project=make_project(), url=URL, events=[Event.GATE_REPORT_MADE], salt="s", fingerprint="f"
    )


def stored(table: str, column: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column} FROM {table}")
        [(value,)] = cursor.fetchall()
    return value if isinstance(value, str) else bytes(value).decode()


def test_a_column_holds_what_only_the_key_opens(hook: Webhook, settings: Any) -> None:
    assert "secret" not in stored("webhooks_webhook", "url")
    assert Webhook.objects.get().url == URL
    with pytest.raises(FieldError):
        Webhook.objects.filter(url=URL).exists()
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "another", [settings.SECRET_KEY]
    assert Webhook.objects.get().url == URL


def test_what_no_key_opens_is_said_and_survives_being_saved(hook: Webhook, settings: Any) -> None:
    before, key = stored("webhooks_webhook", "url"), settings.SECRET_KEY
    settings.SECRET_KEY = "another"
    row = Webhook.objects.get()
    assert row.url == LOST
    row.save()
    assert stored("webhooks_webhook", "url") == before
    settings.SECRET_KEY_FALLBACKS = [key]
    assert Webhook.objects.get().url == URL


def test_purposes_do_not_open_each_other_s() -> None:
    with pytest.raises(InvalidToken):
        fernet("one").decrypt(fernet("two").encrypt(b"x"))


def test_everything_is_encrypted_anew(
    hook: Webhook, settings: Any, capsys: pytest.CaptureFixture
) -> None:
    user, adapter = make_user(), get_adapter()
    for kind, name in (("totp", "secret"), ("recovery_codes", "seed")):
        data = {name: adapter.encrypt("ABC"), "used_mask": 0}
        Authenticator.objects.create(user=user, type=kind, data=data)
    Authenticator.objects.create(user=user, type="webauthn", data={"credential": {}})
    hold(hook.project, HeldBatch.Kind.values[0], [b"what somebody said"])

    old, settings.SECRET_KEY = settings.SECRET_KEY, "another"
    with pytest.raises(CommandError, match="4 cannot be read"):
        call_command("reencrypt")
    settings.SECRET_KEY_FALLBACKS = [old]
    capsys.readouterr()
    call_command("reencrypt")
    assert set(capsys.readouterr().out.splitlines()) == {
        "trajectories.DataDeletion.wanted: 0 encrypted",
        "webhooks.Webhook.url: 1 encrypted",
        "second factors: 2 encrypted",
        "batches that wait for Presidio: 1 encrypted",
    }
    settings.SECRET_KEY_FALLBACKS = []
    assert Webhook.objects.get().url == URL
    totp, codes = Authenticator.objects.exclude(type="webauthn").order_by("pk")
    assert adapter.decrypt(totp.data["secret"]) == adapter.decrypt(codes.data["seed"]) == "ABC"
    assert codes.data["used_mask"] == 0
    assert unsealed(HeldBatch.objects.get()) == b"what somebody said"


HASHES = {"digest", "hash", "fingerprint"}  # what a secret's name ends with that is none
HARMLESS = {
    "account.EmailConfirmation.key",
    "auth.User.password",  # PBKDF2
    "sessions.Session.session_key",  # docs/security.md
    "socialaccount.SocialApp.secret",  # apps come from the environment; no row is made
    "socialaccount.SocialApp.key",
    "socialaccount.SocialToken.token",  # SOCIALACCOUNT_STORE_TOKENS is off
    "socialaccount.SocialToken.token_secret",
    "usersessions.UserSession.session_key",
    "registry.UsedLink.nonce",  # of links that open nothing more
}
SECRETS = ("secret", "token", "password", "credential", "nonce", "api_key", "session_key")


def test_no_column_that_is_named_like_a_secret_holds_one_in_the_clear() -> None:
    found = set()
    for model in apps.get_models(include_auto_created=True):
        for field in model._meta.concrete_fields:
            text = isinstance(field, (models.CharField, models.TextField, models.UUIDField))
            words = field.name.rsplit("_", 1)
            if (
                text
                and not isinstance(field, EncryptedText)
                and words[-1] not in HASHES
                and any(secret in field.name for secret in SECRETS)
                and not field.name.endswith("tokens")
            ):
                found.add(f"{model._meta.label}.{field.name}")
    assert found <= HARMLESS, found - HARMLESS
