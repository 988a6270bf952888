"""What a step search has found out so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from django.db.models import Count, Q, Sum

from apps.core.operations import Written
from apps.evals.costs import cost
from apps.evals.models import Continuation, StepSearch
from apps.evals.replays.forecast import Forecast
from apps.evals.replays.schema import SearchOut, ValueOut, VerdictOut
from apps.evals.replays.verdict import Value, Verdict, values_of, verdict_of
from workers.lib.prices import price_from_json
from workers.lib.step_search import Tried
from workers.lib.typed import json_schema


def tried_of(searches: Sequence[StepSearch]) -> dict[Any, dict[int, Tried]]:
    """{search: {step: counts}}; steps are indices of the trajectory's messages."""
    scored = Q(masked=False)
    rows = Continuation.objects.filter(search__in=searches).order_by().values("search_id", "step")
    counts = rows.annotate(
        won=Count("pk", filter=scored & Q(success=True)),
        n=Count("pk", filter=scored),
        masked_n=Count("pk", filter=Q(masked=True)),
    )
    found: dict[Any, dict[int, Tried]] = {search.pk: {} for search in searches}
    for row in counts:
        tried = Tried(row["won"], row["n"], row["masked_n"])
        found[row["search_id"]][row["step"]] = tried
    return found


def steps_of(search: StepSearch) -> list[int]:
    """Those that can be tried, as far as it is known."""
    return search.replayed.get("steps", search.spec["steps"])


def differs(search: StepSearch) -> bool:
    """Whether the environment responds otherwise than in the run, from some step on."""
    return search.replayed.get("differs_at") is not None


def found(
    search: StepSearch, tried: Mapping[int, Tried] | None = None
) -> tuple[list[Value], Verdict]:
    """What is known of each step, and the step that decided the run."""
    steps = steps_of(search)
    tried = tried_of([search])[search.pk] if tried is None else tried
    ended = bool(search.result) and not search.result.get("stopped")
    verdict = verdict_of(steps, tried, ended=ended, differs=differs(search))
    return values_of(steps, tried), verdict


class Used(NamedTuple):
    """What continuations used. `usd`: None if no price is known. `uncounted`: how many of them
    reported no tokens.
    """

    input_tokens: int
    output_tokens: int
    usd: float | None
    uncounted: int


def used_of(searches: Sequence[StepSearch]) -> dict[Any, Used]:
    """{search: what its continuations used so far}"""
    rows = Continuation.objects.filter(search__in=searches).order_by().values("search_id")
    sums = rows.annotate(
        given=Sum("input_tokens"),
        made=Sum("output_tokens"),
        uncounted=Count("pk", filter=Q(input_tokens=None)),
    )
    found = {row["search_id"]: row for row in sums}
    return {search.pk: _used(search, found.get(search.pk, {})) for search in searches}


def _used(search: StepSearch, sums: Mapping[str, Any]) -> Used:
    given, made = sums.get("given") or 0, sums.get("made") or 0
    price = price_from_json(search.spec["engine"].get("price"))
    usd = cost(price.base if price else None, given, made)
    return Used(given, made, usd, sums.get("uncounted", 0))


def load(request: Any, searches: Sequence[StepSearch]) -> None:
    tried, used = tried_of(searches), used_of(searches)
    for search in searches:
        search.tried, search.used = tried[search.pk], used[search.pk]


def as_out(search: StepSearch) -> SearchOut:
    values, verdict = found(search, search.tried)
    return SearchOut(
        id=str(search.pk),
        failure=search.failure_id,
        state=search.state,
        error=search.error,
        environment=str(search.environment),
        model_version=str(search.model_version),
        task=search.task_id and str(search.task_id),
        each=search.spec["each"],
        every=search.spec["every"],
        done=search.done,
        total=search.total,
        forecast=msgspec.convert(search.spec["forecast"], Forecast),
        **search.used._asdict(),
        differs_at=search.replayed.get("differs_at"),
        values=msgspec.convert(values, list[ValueOut], from_attributes=True),
        verdict=msgspec.convert(verdict, VerdictOut, from_attributes=True),
    )


SEARCH = Written(
    json_schema(SearchOut), lambda _, search: msgspec.to_builtins(as_out(search)), load
)
