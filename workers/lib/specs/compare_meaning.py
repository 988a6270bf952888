"""The spec of `workers.compare_meaning`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from workers.lib.specs.engines import Engine, Model
from workers.lib.specs.job import Job
from workers.lib.typed import AtLeastOne, Form, Text


class HeldText(Form, kw_only=True):
    """The request of a held-out task."""

    id: Text
    text: Text


class TrainedTexts(Form, kw_only=True):
    """The texts of a task that could train: its requests, its demonstration."""

    id: Text
    texts: Annotated[list[Text], Meta(min_length=1)]


class CompareMeaning(Job, kw_only=True, tag="compare_meaning"):
    """`known` names pairs [held, other] that are left out because a person has decided on them."""

    model: Model
    engine: Engine
    held: Annotated[list[HeldText], Meta(min_length=1)]
    others: Annotated[list[TrainedTexts], Meta(min_length=1)]
    known: list[tuple[str, str]] = []
    most: AtLeastOne = 50
