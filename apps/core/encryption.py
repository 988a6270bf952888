"""Secrets that the database holds are encrypted with keys made from SECRET_KEY, so that a copy of
the database alone opens nothing. What SECRET_KEY_FALLBACKS encrypted is still read, and
`manage.py reencrypt` writes it anew with SECRET_KEY.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.apps import apps
from django.conf import settings
from django.db import models, transaction
from django.utils.crypto import salted_hmac

COLUMNS = "encrypted columns"
LOST = "(unreadable: SECRET_KEY has changed)"


def fernet(purpose: str) -> MultiFernet:
    """Each purpose has keys of its own: what is encrypted for one cannot be put in the place of
    another.
    """
    keys = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    digests = (salted_hmac(purpose, "", secret=key, algorithm="sha256").digest() for key in keys)
    return MultiFernet([Fernet(base64.urlsafe_b64encode(digest)) for digest in digests])


class Unreadable(str):
    """Stands for what no key opens; saved again it remains what it was."""

    token: str


class EncryptedText(models.TextField):
    """A text that is encrypted in its column. It cannot be searched or sorted by."""

    def from_db_value(self, value: str | None, *_: Any) -> str | None:
        if not value:
            return value
        try:
            return fernet(COLUMNS).decrypt(value.encode()).decode()
        except InvalidToken:
            lost = Unreadable(LOST)
            lost.token = value
            return lost

    def get_prep_value(self, value: Any) -> Any:
        text = super().get_prep_value(value)
        if isinstance(text, Unreadable):
            return text.token
        return fernet(COLUMNS).encrypt(text.encode()).decode() if text else text

    def get_lookup(self, lookup_name: str) -> Any:
        return super().get_lookup(lookup_name) if lookup_name == "isnull" else None


# {what: encrypts it anew and returns how many, and how many no key opens}
_reencrypts: dict[str, Callable[[], tuple[int, int]]] = {}


def reencrypts(what: str) -> Callable[[Any], Any]:
    """Declares a function of whatever encrypts something that is no EncryptedText."""

    def declare(function: Callable[[], tuple[int, int]]) -> Callable[[], tuple[int, int]]:
        _reencrypts[what] = function
        return function

    return declare


def reencrypt_all() -> dict[str, tuple[int, int]]:
    done = {
        f"{model._meta.label}.{field.name}": _columns(model, field.name)
        for model in apps.get_models()
        for field in model._meta.concrete_fields
        if isinstance(field, EncryptedText)
    }
    return done | {what: function() for what, function in _reencrypts.items()}


def _columns(model: type[models.Model], name: str) -> tuple[int, int]:
    return each_row(
        model._base_manager.all(),
        lambda row: not isinstance(getattr(row, name), Unreadable) and {name: getattr(row, name)},
    )


def each_row(rows: models.QuerySet, renewed: Callable[[Any], Any]) -> tuple[int, int]:
    """Row by row, locked: nothing that is written meanwhile is lost. `renewed`: the fields to
    write; False or an InvalidToken where no key opens it.
    """
    written = lost = 0
    for pk in list(rows.values_list("pk", flat=True)):
        with transaction.atomic():
            row = rows.select_for_update().filter(pk=pk).first()
            if row is None:
                continue
            try:
                fields = renewed(row)
            except InvalidToken:
                fields = False
            if fields is False:
                lost += 1
            else:
                written += 1
                type(row)._base_manager.filter(pk=pk).update(**fields)
    return written, lost
