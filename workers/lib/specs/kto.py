"""The spec of `workers.kto`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from workers.lib.specs.rows import FromRows, PreferenceConfig
from workers.lib.typed import Form, Positive, Text


class KtoConfig(PreferenceConfig, kw_only=True):
    """Weights of the losses of good and of bad answers; by default, both sides have the same total
    weight.
    """

    batch_size: Annotated[
        int, Meta(ge=2, le=1024)
    ]  # the KL is estimated from mismatched answers of a batch
    desirable_weight: Positive | None = None
    undesirable_weight: Positive | None = None


class Labelled(Form, kw_only=True):
    """An answer to a conversation, and whether it is good."""

    messages: list[dict]
    completion: Text
    good: bool
    tools: list[dict] = []


class Kto(FromRows, kw_only=True, tag="kto"):
    rows: Annotated[list[Labelled], Meta(min_length=2)]
    validation_rows: list[Labelled] = []
    config: KtoConfig
