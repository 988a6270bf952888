"""What a step search will use, before it starts."""

from __future__ import annotations

import json
from typing import Any

from django.db.models import Sum
from msgspec import Struct

from apps.core.models import JobState
from apps.environments.models import Environment
from apps.evals.costs import cost
from apps.evals.models import EvalRun
from apps.evals.replays.episode import Replayable
from apps.evals.samples.transcript import tools_in
from apps.registry.models import ModelVersion
from workers.lib.messages import text_of
from workers.lib.prices import price_from_json
from workers.lib.step_search import most_tries
from workers.lib.variants.usage import tokens_of

CONSIDERED = 5  # earlier evaluations


class Forecast(Struct, kw_only=True):
    """`steps` can be tried, with `continuations` in all. `usd` is null where no price is known, and
    `seconds` where the model has not been evaluated yet.
    """

    steps: int
    continuations: int
    input_tokens: int
    output_tokens: int
    usd: float | None
    seconds: float | None


def forecast(
    run: Replayable,
    environment: Environment,
    version: ModelVersion,
    engine: dict[str, Any],
    *,
    each: int,
    every: bool,
) -> Forecast:
    """A continuation is taken to have as many turns as the whole run, whose end may have come too
    early. The first step is tried more often than others; of those, the mean counts.
    """
    steps, continuations = run.steps, most_tries(len(run.steps), each, every=every)
    each_step = _continuations(run, environment)
    first = each if not every and len(steps) > 1 else 0
    usual = [sum(column) / len(steps) for column in zip(*each_step, strict=True)]
    tokens_in, tokens_out = (
        round(first * at_first + (continuations - first) * mean)
        for at_first, mean in zip(each_step[0], usual, strict=True)
    )
    price = price_from_json(engine.get("price"))
    pace = _seconds_per_token(version)
    return Forecast(
        steps=len(steps),
        continuations=continuations,
        input_tokens=tokens_in,
        output_tokens=tokens_out,
        usd=cost(price.base if price else None, tokens_in, tokens_out),
        seconds=None if pace is None else pace * tokens_out,
    )


def _continuations(run: Replayable, environment: Environment) -> list[tuple[float, float]]:
    """(input, output) tokens of a continuation from each step: its prompt, which grows with each
    turn as it did in the run.
    """
    tools = run.task.get("tools") or tools_in(environment)
    opening = tokens_of(_size([*environment.opening, *run.task["messages"]]))
    opening += tokens_of(len(json.dumps(tools)))
    sizes = [tokens_of(_size([message])) for message in run.recorded]
    written = [
        size
        for size, message in zip(sizes, run.recorded, strict=True)
        if message.get("role") == "assistant"
    ]
    turns, grows = len(written), sum(sizes) / len(written)
    before = (
        opening + sum(sizes[:at])
        for at, message in enumerate(run.recorded)
        if message.get("role") == "assistant"
    )
    return [
        (turns * prompt + grows * turns * (turns - 1) / 2, float(sum(written))) for prompt in before
    ]


def _size(messages: list[dict]) -> int:
    """Bytes of their texts and calls."""
    texts = (
        text_of(message) + json.dumps(message.get("tool_calls") or "", ensure_ascii=False)
        for message in messages
    )
    return sum(len(text.encode(errors="replace")) for text in texts)


def _seconds_per_token(version: ModelVersion) -> float | None:
    """Of output, in the newest evaluation of this version that counted them."""
    rows = EvalRun.objects.filter(model_version=version, state=JobState.SUCCEEDED)
    for run in rows.order_by("-created_at")[:CONSIDERED]:
        made = run.samples.aggregate(tokens=Sum("output_tokens"))["tokens"]
        if made and run.seconds and not run.is_answered_elsewhere:
            return run.seconds / made
    return None
