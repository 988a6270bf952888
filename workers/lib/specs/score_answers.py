"""The spec of `workers.score_answers`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from workers.lib.specs.environment import Environment
from workers.lib.specs.job import Job, Tasks
from workers.lib.typed import Count, Form


class SentAnswer(Form, kw_only=True):
    """What an external agent said about `tasks[task]`: its turns, and its error at the end, if any.
    `state` is that of the episode in which it called the environment's tools itself, if it did.
    Usage is as the agent measured it.
    """

    task: Count
    index: Count
    turns: list[dict]
    state: dict | None = None
    error: str = ""
    latency_ms: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class ScoreAnswers(Job, kw_only=True, tag="score_answers"):
    environment: Environment
    tasks: Tasks
    answers: Annotated[list[SentAnswer], Meta(min_length=1)]
