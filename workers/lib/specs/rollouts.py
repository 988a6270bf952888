"""Servers that a run samples on."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from workers.lib.specs.engines import ServerAddress
from workers.lib.typed import AtLeastOne, Count, Form, Positive, Text


class RolloutServer(ServerAddress, kw_only=True):
    """A server that loads adapters at run time. `kind`: whose API it has. `model`: its name for
    the base. `folder`: `Rollouts.folder` as seen from the server, "" if the path is the same;
    `lora_slots`: how many adapters it holds at a time, 0 if unknown.
    """

    kind: Literal["vllm", "sglang"] = "vllm"
    model: Text
    folder: str = ""
    lora_slots: Count = 0
    timeout_s: Positive = 300.0  # per answer
    concurrency: AtLeastOne = 64


class Rollouts(Form, kw_only=True):
    """Servers that GRPO samples on. `folder`: where each step's adapter is written for them.
    `steps_ahead` 1: the next batch is sampled during the update, with the weights from before it.
    """

    servers: Annotated[list[RolloutServer], Meta(min_length=1, max_length=16)]
    folder: Text
    steps_ahead: Annotated[int, Meta(ge=0, le=1)] = 0
