"""Suggested expected answers at a step of a run, in the format of `workers.lib.checks`, with their
source.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain

from apps.core.timeouts import TooLong, patience
from apps.evals.actions import answer_text
from apps.evals.canonical import digest_of
from apps.evals.models import Continuation
from apps.evals.source_runs import RunStep, SourceRun, read_run
from apps.failures.actions.diagnose import as_input
from apps.failures.rules.expected import (
    Deviation,
    ExpectedCall,
    GroundTruth,
    KnownAnswers,
    deviations,
)
from apps.failures.rules.reading import Call, Run, read
from apps.trajectories.models import Outcome, Trajectory, with_content
from workers.lib.messages import call_key, text_of, to_text

SUCCESSES_READ = REPLAYS_READ = 5
SEARCH_MS = 500  # time limit for finding later successes, since a page waits for them
PERSON, TRUTH, REPLAY, SUCCESS = (
    "a person's correction",
    "ground truth in the log",
    "a successful replay from this step",
    "a later successful run",
)
BY_HAND = "written by hand"


@dataclass(frozen=True)
class Suggestion:
    """An expected answer and where it comes from; `success` is the run it was taken from."""

    expected: dict
    source: str
    detail: str = ""
    success: Run | None = None


def suggestions(step: RunStep) -> Iterator[Suggestion]:
    """Possible expected answers at a step, the most reliable first: a person's correction, the
    log's ground truth, a replay from here that succeeded, a later success. No value twice.
    Successes are searched only when the caller gets to them.
    """
    seen: set[str] = set()
    source, cut = step.source, step.cut
    for suggestion in chain(
        by_person(source.answers, cut),
        by_truth(source.run, source.answers, cut),
        _by_replay(step),
        _by_success(step),
    ):
        digest = digest_of(suggestion.expected)
        if digest not in seen:
            seen.add(digest)
            yield suggestion


def suggestion_of(expected: dict, suggested: Iterable[Suggestion]) -> Suggestion:
    """The suggestion with this expected answer; if none has it, a person wrote it."""
    same = (suggestion for suggestion in suggested if suggestion.expected == expected)
    return next(same, Suggestion(expected, BY_HAND))


def by_person(answers: KnownAnswers, cut: int) -> Iterator[Suggestion]:
    """The corrections of this step, or of no particular step; the newest first."""
    for correction in answers.corrections:
        if correction.index not in (None, cut):
            continue
        detail = f"by {correction.by}" if correction.by else ""
        if correction.calls and (expected := _expected(correction.calls)):
            yield Suggestion(expected, PERSON, detail)
        elif correction.text:
            yield Suggestion({"answer": correction.text}, PERSON, detail)


def by_truth(run: Run, answers: KnownAnswers, cut: int) -> Iterator[Suggestion]:
    """The expected call that the step missed, then all that were still to be made; and the texts
    that the user should have been told.
    """
    if truth := answers.truth:
        yield from _ahead(run, truth.wanted, answers.deviations, cut, TRUTH)
    if answers.texts:
        yield Suggestion(
            {"constraint": {"contains": answers.texts}},
            TRUTH,
            "texts that the user should have been told",
        )


def _ahead(
    run: Run,
    wanted: list[ExpectedCall],
    differences: list[Deviation],
    cut: int,
    source: str,
    success: Run | None = None,
) -> Iterator[Suggestion]:
    """The correct calls that are still to be made at a step: the next one, and all."""
    left = _left(wanted, [call for call in run.calls if call.index < cut])
    missed = next(
        (item.wanted for item in differences if item.made and item.made.index == cut), None
    )
    following = missed if missed in left else left[0] if left else None
    if following and (expected := _expected([following])):
        yield Suggestion(expected, source, "the next call", success)
    if len(left) != 1 and (expected := _expected(left)):
        yield Suggestion(
            expected, source, f"all {len(left)} calls from here" if left else "no call", success
        )


def _left(wanted: Iterable[ExpectedCall], made: Iterable[Call]) -> list[ExpectedCall]:
    """The expected calls without those already made, each once."""
    done = [call_key(call.tool, call.args) for call in made if not call.error]
    left = []
    for item in wanted:
        key = call_key(item.tool, item.args)
        if key in done:
            done.remove(key)
        else:
            left.append(item)
    return left


def _expected(wanted: list[ExpectedCall]) -> dict | None:
    """In the format of tasks; None if any arguments would do, which a task cannot express."""
    if any(item.args is None for item in wanted):
        return None
    calls = [{"tool": item.tool, "args": item.args} for item in wanted]
    return calls[0] if len(calls) == 1 else {"calls": calls}


def _by_replay(step: RunStep) -> Iterator[Suggestion]:
    """What continuations from this step did that succeeded: their calls, as far as the task that
    scored them names its calls only those.
    """
    row, cut = step.source.row, step.cut
    rows = Continuation.objects.filter(
        search__failure__trajectory=row.pk, step=cut, success=True, masked=False
    )
    for continuation in rows.select_related("search__task", "search__model_version").order_by(
        "-pk"
    )[:REPLAYS_READ]:
        messages = [*row.messages[:cut], *continuation.messages]
        run = read(as_input(row) | {"messages": messages})
        made = [call for call in run.calls if call.index >= cut and call.args is not None]
        task = continuation.search.task
        gold = task.expected.get("calls") if task else None
        keys = gold and {call_key(call["tool"], call["args"]) for call in gold}
        wanted = [
            ExpectedCall(call.tool, call.args)
            for call in made
            if not call.error and (not keys or call_key(call.tool, call.args) in keys)
        ]
        text = text_of(messages[-1]).strip()
        if wanted and (expected := _expected(wanted)):
            yield Suggestion(expected, REPLAY, f"by {continuation.search.model_version}", run)
        elif not made and text:
            yield Suggestion(
                {"answer": text}, REPLAY, f"by {continuation.search.model_version}", run
            )


def _by_success(step: RunStep) -> Iterator[Suggestion]:
    run, cut = step.source.run, step.cut
    for later in later_successes(step.source):
        success, name = later.run, later.row.external_id
        worked = [call for call in success.calls if call.args is not None and not call.error]
        if worked:
            wanted = [ExpectedCall(call.tool, call.args) for call in worked]
            differences = deviations(GroundTruth(wanted, run.calls))
            yield from (
                replace(suggestion, detail=f"{suggestion.detail}, as in {name}")
                for suggestion in _ahead(run, wanted, differences, cut, SUCCESS, success)
                if suggestion.expected != {"calls": []}
            )
        elif text := (text_of(success.messages[-1]) if success.messages else "").strip():
            yield Suggestion({"answer": text}, SUCCESS, name, success)


def later_successes(source: SourceRun) -> list[SourceRun]:
    """Later successful runs with the same opening request, oldest first; none if the search takes
    too long.
    """
    rows = Trajectory.objects.filter(
        project=source.row.project_id,
        pk__gt=source.row.pk,
        outcome_status=Outcome.SUCCESS,
        preview=source.row.preview,
    )
    try:
        with patience(SEARCH_MS):
            candidates = with_content(list(rows.order_by("pk")[:SUCCESSES_READ]))
    except TooLong:
        return []
    same = source.groups.request_hash
    return [run for run in map(read_run, candidates) if run.groups.request_hash == same]


def demonstration_of(expected: dict) -> str:
    """A good answer in the agent's own format, as far as the expected value is one."""
    if "calls" in expected:
        return (
            json.dumps([_bare(call) for call in expected["calls"]], ensure_ascii=False)
            if expected["calls"]
            else ""
        )
    if "tool" in expected:
        return to_text(expected["tool"], expected["args"])
    return answer_text(expected)


def _bare(call: dict) -> dict:
    return {"tool": call["tool"], "args": call["args"]}
