"""The spec of `workers.sft`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from workers.lib.specs.rows import FromRows, RowsConfig
from workers.lib.typed import Count, Form


class SftConfig(RowsConfig, kw_only=True):
    micro_batch: Count = 0  # rows per forward and backward pass; 0: all


class SftRow(Form, kw_only=True):
    """The conversation and tools as an agent sees them, and the answer it should give; or, as
    `turns`, all messages that follow in an episode, of which the agent's answers are learned.
    """

    messages: list[dict]
    completion: str = ""
    tools: list[dict] = []
    turns: list[dict] = []

    def __post_init__(self) -> None:
        if bool(self.completion) == any(turn.get("role") == "assistant" for turn in self.turns):
            raise ValueError("needs either a completion or turns with an answer")


class Sft(FromRows, kw_only=True, tag="sft"):
    rows: Annotated[list[SftRow], Meta(min_length=1)]
    validation_rows: list[SftRow] = []
    config: SftConfig
