"""Stores an answer as a row of the trial that it counts in."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any
from uuid import UUID

from apps.core.models import Project
from apps.failures.classify import classify
from apps.promotion.models import TrialAnswer
from apps.serving.recording import answer_of, problem_of, span_of, usage_of
from apps.serving.routes import SHADOW
from apps.serving.spool import Record
from apps.trajectories.actions.redaction import redactor_of
from apps.trajectories.actions.store import prepare
from apps.trajectories.decoding import Decoded, RowError
from apps.trajectories.otlp import assemble
from apps.trajectories.redaction import Redactor
from apps.trajectories.schema import parse_row
from workers.lib.storable import storable_json

UNSAFE = "unsafe_action"
LONGEST = 20_000  # characters kept of a shadow's message
COUNTS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")


def rows_of(project: Project, records: Iterable[Record]) -> list[TrialAnswer]:
    redactor = redactor_of(project)
    return [row_of(record, redactor) for record in records]


def row_of(record: Record, redactor: Redactor | None = None) -> TrialAnswer:
    answer = answer_of(record)
    problem, used = problem_of(record, answer), usage_of(record, answer)
    counts = [used.get(name) for name in COUNTS]
    row = TrialAnswer(
        trial_id=UUID(record.trial),
        step=record.step,
        lane=record.lane,
        unit=record.unit,
        trace_id=record.trace_id,
        span_id=record.span_id,
        shadow_of=record.shadow_of,
        at=datetime.fromtimestamp(record.started_ns / 1e9, UTC),
        answered=not problem and (record.served or record.lane == SHADOW),
        ms=_ms(record.ended_ns - record.started_ns),
        first_ms=_ms(record.first_ns - record.started_ns) if record.first_ns else None,
        tokens=None if None in counts else sum(counts),
        cost_usd=used.get("gen_ai.usage.cost"),
    )
    if record.lane == SHADOW or record.paired:
        _judge(row, _run_of(record, redactor), problem)
    return row


def _run_of(record: Record, redactor: Redactor | None) -> dict[str, Any]:
    """The answer as a run of its own, parsed and redacted like any other. {} if it is not a run."""
    (run,) = assemble([span_of(record)], [])
    row = redactor.redact(run.row)[0] if redactor else run.row
    try:
        return prepare(0, parse_row(Decoded(row))).content
    except RowError:
        return {}


def _judge(row: TrialAnswer, run: dict[str, Any], problem: str) -> None:
    """Apply the rules for runs to this answer alone, because both lanes have the same history."""
    outcome = {
        "outcome_status": "failure" if problem else "unknown",
        "outcome_reason": problem,
        "outcome_label": "",
    }
    found = classify(run | outcome) if run else None
    modes = sorted({evidence.mode for evidence in found.evidence}) if found else []
    row.failed, row.unsafe = bool(found or problem), UNSAFE in modes
    if row.lane == SHADOW:
        said = list(
            takewhile(
                lambda message: message.get("role") == "assistant",
                reversed(run.get("messages", [])),
            )
        )
        row.said = storable_json(
            {"messages": _short(said[::-1]), "modes": modes, "problem": problem}
        )


def _short(messages: list[dict]) -> list[dict]:
    return [
        message | {"content": content[:LONGEST]}
        if isinstance(content := message.get("content"), str)
        else message
        for message in messages
    ]


def _ms(ns: int) -> float:
    return round(ns / 1e6, 1)
