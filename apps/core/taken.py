"""Rows whose name is theirs alone in a project."""

from __future__ import annotations

from typing import TypeVar

from django.db import IntegrityError, models, transaction

from apps.core.errors import Rejected

Row = TypeVar("Row", bound=models.Model)


def saved_as(row: Row, words: str, refused: type[Rejected]) -> Row:
    """Saves a row with a unique `name`; `words` are what it is: “An alert”. Raises `refused`, which
    takes a sentence and the field, if the name is taken.
    """
    try:
        with transaction.atomic():
            row.save()
    except IntegrityError as error:
        sentence = f"{words} named “{row.name}” already exists."  # type: ignore[attr-defined]
        raise refused(sentence, "name") from error
    return row
