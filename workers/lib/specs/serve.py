"""The spec of `workers.serve`."""

from __future__ import annotations

from typing import Any

from workers.lib.specs.job import Job
from workers.lib.typed import AtLeastOne, Count, Form, Positive, Text


class ServedModel(Form, kw_only=True):
    """A model folder and how it is served (`workers.lib.vllm`). `context` 0: the model's own;
    `lora_slots` 0: no adapters.
    """

    base: Text
    name: Text
    dtype: str = "auto"
    context: Count = 0
    lora_slots: Count = 0
    max_lora_rank: AtLeastOne = 16
    options: dict[str, Any] = {}


class Serve(Job, kw_only=True, tag="serve"):
    """`command`: the vllm executable; "" for this installation's own transformers engine. `ports`:
    [first, last], of which the first free one is used; empty: any.
    """

    command: str
    model: ServedModel
    host: Text = "127.0.0.1"
    ports: list[Count] = []
    environment: dict[str, str] = {}
    start_s: Positive = 1800.0  # time limit for the first answer
    silent_s: Positive = (
        180.0  # time without an answer to /models, after which a server that was up counts as hung
    )
