"""A row in every table: what no story of the suite writes gets a row from its fields."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from django.apps import apps
from django.contrib.postgres.fields import ArrayField
from django.db import connection, models, transaction
from django.db.models import Field, Model
from django.db.utils import DataError, IntegrityError
from django.utils import timezone


def empty_models() -> list[type[Model]]:
    return [
        model
        for model in apps.get_models(include_auto_created=True)
        if model._meta.managed and not model._meta.proxy and not model._base_manager.exists()
    ]


def fill(given: dict[str, dict[str, Any]]) -> None:
    """`given`: what a model's checks require, by its label. Raises AssertionError with the reasons
    if tables stay empty.
    """
    left, reasons = empty_models(), {}
    while left:
        before = len(left)
        for model in left:
            try:
                _add_row(model, given.get(model._meta.label, {}))
            except (IntegrityError, DataError, LookupError) as error:
                reasons[model._meta.label] = str(error).splitlines()[0]
        left = empty_models()
        if len(left) == before:
            break
    assert not left, "\n".join(
        f"{model._meta.label}: {reasons[model._meta.label]}" for model in left
    )


def _add_row(model: type[Model], given: dict[str, Any]) -> None:
    """As few values as it takes, then all of them: a check may want what may be null."""
    for all_of_them in (False, True):
        try:
            with transaction.atomic():
                row = model(**_values(model, given, all_of_them=all_of_them))
                models.Model.save_base(row, raw=True, force_insert=True)
                _check_constraints_now()
            return
        except (IntegrityError, DataError):
            if all_of_them:
                raise


def _check_constraints_now() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE; SET CONSTRAINTS ALL DEFERRED")


def _values(model: type[Model], given: dict[str, Any], *, all_of_them: bool) -> dict[str, Any]:
    values = {}
    for field in _fields(model):
        if field.name in given:
            values[field.name] = given[field.name]
        elif field.has_default() or (field.null and not all_of_them):
            continue
        else:
            values[field.name] = _value(field)
    return {name: value() if callable(value) else value for name, value in values.items()}


def _fields(model: type[Model]) -> Iterator[Field]:
    for field in model._meta.local_concrete_fields:
        is_made_by_the_database = isinstance(field, models.AutoField | models.GeneratedField)
        if not is_made_by_the_database and field.db_default is models.NOT_PROVIDED:
            yield field


def _value(field: Field) -> Any:
    """Raises LookupError if the table that it refers to is empty."""
    if isinstance(field, models.ForeignKey):
        row = field.related_model._base_manager.order_by("-pk").first()
        if row is None:
            raise LookupError(f"{field.name}: no {field.related_model._meta.label}")
        return row
    if field.flatchoices:
        return next(value for value, _ in field.flatchoices if value not in ("", None))
    for kind, value in VALUES:
        if isinstance(field, kind):
            return value(field)
    raise LookupError(f"{field.name}: no value for {type(field).__name__}")


VALUES: list[tuple[Any, Any]] = [
    (models.EmailField, lambda field: "someone@example.org"),
    (models.URLField, lambda field: "https://example.org/"),
    (models.SlugField, lambda field: "filled"),
    (models.GenericIPAddressField, lambda field: "127.0.0.1"),
    (models.CharField, lambda field: "filled"[: field.max_length]),
    (models.TextField, lambda field: "filled"),
    (models.BooleanField, lambda field: True),
    (models.DurationField, lambda field: timedelta(minutes=1)),
    (models.DateTimeField, lambda field: timezone.now()),
    (models.DateField, lambda field: timezone.now().date()),
    (models.UUIDField, lambda field: uuid.uuid4()),
    (models.JSONField, lambda field: {}),
    (models.BinaryField, lambda field: b"filled"),
    (ArrayField, lambda field: []),
    (models.FloatField, lambda field: 1.0),
    (models.DecimalField, lambda field: 1),
    (models.IntegerField, lambda field: 1),
]
