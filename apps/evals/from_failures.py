"""One task from one failure: the step where it is cut, suggested expected answers with their
source, and recorded tool results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from django.db import transaction

from apps.core.models import Project
from apps.core.timeouts import TooLong, patience
from apps.evals import actions, drafts
from apps.evals.canonical import canonical_hash, digest_of
from apps.evals.formats.rows import has_request
from apps.evals.formats.verifiers_package import RECORDED
from apps.evals.holdout import groups
from apps.evals.models import EvalSet, EvalSetState, Origin, Split, Task
from apps.failures.actions.diagnose import as_input
from apps.failures.models import Failure, FailureCluster
from apps.failures.rules.expected import (
    ExpectedCall,
    GroundTruth,
    deviations,
    ground_truth_of,
    wanted_texts,
)
from apps.failures.rules.reading import Call, Run, read
from apps.trajectories.models import Outcome, Trajectory, with_content
from workers.lib.messages import call_key, is_example, is_prompt, text_of, to_text

PARTS_OF_TURN = ("role", "content", "name", "tool_calls", "tool_call_id")
MAX_RECORDED = 200  # results kept from one run
SUCCESSES_READ = 5
LOOKING_MS = 500  # time limit for finding later successes, since a page waits for them
PERSON, TRUTH, SUCCESS = (
    "a person's correction",
    "ground truth in the log",
    "a later successful run",
)
BY_HAND = "written by hand"


@dataclass(frozen=True)
class Suggestion:
    """A suggested expected answer, in the format of `workers.lib.checks`, and where it comes
    from.
    """

    expected: dict
    source: str
    detail: str = ""
    success: Trajectory | None = None  # the run it was taken from


# Where


def steps_of(messages: list[dict]) -> list[int]:
    """Where a task may be cut: before each turn of the agent that follows a request."""
    asked, steps = False, []
    for index, message in enumerate(messages):
        if is_example(message):
            continue
        if message.get("role") == "assistant" and asked:
            steps.append(index)
        asked = asked or message.get("role") == "user"
    return steps


def default_cut(messages: list[dict], blamed: int | None) -> int | None:
    """The blamed step, or else the agent's last one before it, or else its first. None if the agent
    made no step.
    """
    steps = steps_of(messages)
    before = [step for step in steps if blamed is not None and step <= blamed]
    return before[-1] if before else steps[0] if steps else None


def prompt_at(messages: list[dict], cut: int) -> list[dict]:
    """The messages before a step, without those of the harness: system messages and examples."""
    return [
        {"content": None}
        | {name: message[name] for name in PARTS_OF_TURN if message.get(name) is not None}
        for message in messages[:cut]
        if not is_prompt(message) and not is_example(message)
    ]


# The expected answer


def suggestions(trajectory: Trajectory, cut: int) -> list[Suggestion]:
    """Possible expected answers at a step, the most reliable first: a person's correction, the
    log's ground truth, a later success. No value twice."""
    run = read(as_input(trajectory))
    unique: dict[str, Suggestion] = {}
    for item in (*by_person(run, cut), *by_truth(run, cut), *_by_success(trajectory, run, cut)):
        unique.setdefault(digest_of(item.expected), item)
    return list(unique.values())


def by_person(run: Run, cut: int) -> Iterator[Suggestion]:
    """The corrections of this step, or of no particular step; the newest first."""
    for item in reversed(run.interventions):
        if item.get("kind") != "edit" or item.get("message_index") not in (None, cut):
            continue
        detail = f"by {item['by']}" if item.get("by") else ""
        after = item.get("after")
        truth = ground_truth_of(replace(run, interventions=[item], metadata={}))
        if truth and (expected := _expected(truth.wanted)):
            yield Suggestion(expected, PERSON, detail)
        elif text := _text_of(after):
            yield Suggestion({"answer": text}, PERSON, detail)


def _text_of(after: Any) -> str:
    text = text_of(after) if isinstance(after, dict) else after
    return text.strip() if isinstance(text, str) else ""


def by_truth(run: Run, cut: int) -> Iterator[Suggestion]:
    """The expected call that the step missed, then all that were still to be made; and the texts
    that the user should have been told.
    """
    truth = ground_truth_of(replace(run, interventions=[]))
    if truth is not None:
        yield from _ahead(run, truth, cut, TRUTH)
    if texts := wanted_texts(run):
        yield Suggestion(
            {"constraint": {"contains": texts}}, TRUTH, "texts that the user should have been told"
        )


def _ahead(
    run: Run, truth: GroundTruth, cut: int, source: str, success: Trajectory | None = None
) -> Iterator[Suggestion]:
    """The correct calls that are still to be made at a step: the next one, and all."""
    left = _left(truth.wanted, [call for call in run.calls if call.index < cut])
    missed = next(
        (item.wanted for item in deviations(truth) if item.made and item.made.index == cut), None
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


def _by_success(trajectory: Trajectory, run: Run, cut: int) -> Iterator[Suggestion]:
    for row in later_successes(trajectory):
        other = read(as_input(row))
        worked = [call for call in other.calls if call.args is not None and not call.error]
        detail = row.external_id
        if worked:
            truth = GroundTruth([ExpectedCall(call.tool, call.args) for call in worked], run.calls)
            yield from (
                replace(item, detail=f"{item.detail}, as in {detail}")
                for item in _ahead(run, truth, cut, SUCCESS, row)
                if item.expected != {"calls": []}
            )
        elif text := (text_of(other.messages[-1]) if other.messages else "").strip():
            yield Suggestion({"answer": text}, SUCCESS, detail, row)


def later_successes(trajectory: Trajectory) -> list[Trajectory]:
    """Later successful runs with the same opening request, oldest first; none if the search takes
    too long.
    """
    rows = Trajectory.objects.filter(
        project=trajectory.project_id,
        pk__gt=trajectory.pk,
        outcome_status=Outcome.SUCCESS,
        preview=trajectory.preview,
    )
    try:
        with patience(LOOKING_MS):
            found = with_content(list(rows.order_by("pk")[:SUCCESSES_READ]))
    except TooLong:
        return []
    asked = canonical_hash(groups.prompt_of(trajectory))
    return [row for row in found if canonical_hash(groups.prompt_of(row)) == asked]


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
    return actions.answer_text(expected)


def _bare(call: dict) -> dict:
    return {"tool": call["tool"], "args": call["args"]}


# Recorded tool results


def recorded_results(run: Run) -> list[dict]:
    """[{tool, args, content}] of every answered call: what a mock returns when the task is
    replayed.
    """
    return [
        {"tool": call.tool, "args": call.args, "content": call.reply}
        for call in run.calls
        if call.args is not None and call.reply is not None
    ][:MAX_RECORDED]


def results_for(trajectory: Trajectory, success: Trajectory | None) -> list[dict]:
    """The results of the failed run, then those that only the successful run has."""
    mine = recorded_results(read(as_input(trajectory)))
    theirs = recorded_results(read(as_input(success))) if success else []
    have = {call_key(item["tool"], item["args"]) for item in mine}
    return mine + [item for item in theirs if call_key(item["tool"], item["args"]) not in have]


# The set


DRAFT = "production-failures"
MOST = 200  # failures of a cluster processed at once


@transaction.atomic
def open_draft(*, project: Project, by: Any) -> EvalSet:
    """Where a failure's task goes if no draft is open: the next version of the project's set of
    failures, or its first.

    Raises EvalSetError.
    """
    newest = project.eval_sets.filter(slug=DRAFT).order_by("-version").first()
    if newest is None:
        return actions.create_eval_set(
            project=project, slug=DRAFT, by=by, description="Tasks made in triage"
        )
    return (
        newest if newest.state == EvalSetState.DRAFT else drafts.new_version(eval_set=newest, by=by)
    )


def sets_with(trajectory: Trajectory, cut: int) -> list[Task]:
    """The tasks with the request of this step, the newest set first and one per set name; held-out
    ones are not listed.
    """
    asked = canonical_hash(prompt_at(trajectory.messages, cut))
    rows = Task.objects.filter(project=trajectory.project_id, canonical_hash=asked).exclude(
        split=Split.HOLDOUT
    )
    found: dict[str, Task] = {}
    for task in rows.select_related("eval_set").order_by("-eval_set__created_at")[:50]:
        found.setdefault(task.eval_set.slug, task)
    return list(found.values())


# The task


def make_task(
    *,
    failure: Failure,
    eval_set: EvalSet,
    cut: int,
    expected: dict,
    split: Split,
    group: str,
    by: Any,
    demonstration: str = "",
    replayable: bool = False,
    state: list[dict] | None = None,
    viewer: Any = None,
) -> actions.TasksMade:
    """Stores the task of a failure, confirmed by a person. A task that is close to the other side
    of a hold-out is not stored.

    Raises EvalSetError for a frozen set or a cut that is not a step of the agent.
    """
    task = task_of(failure.trajectory, eval_set, cut, expected)
    task.split, task.group, task.confirmed_by = split, group or task.canonical_hash, by
    task.demonstration = demonstration or demonstration_of(expected)
    known = next(
        (item for item in suggestions(failure.trajectory, cut) if item.expected == expected), None
    )
    task.metadata = {
        "cut": cut,
        "mode": failure.mode.slug,
        "source": known.source if known else BY_HAND,
    }
    if replayable:
        task.metadata[RECORDED] = results_for(failure.trajectory, known.success if known else None)
    if state:
        task.metadata["state"] = state
    what = f"failure {failure.trajectory}"
    return actions.store_tasks(eval_set=eval_set, tasks=[task], by=by, what=what, viewer=viewer)


def tasks_of_cluster(*, cluster: FailureCluster, by: Any) -> tuple[EvalSet, actions.TasksMade]:
    """Training tasks in the open draft, one for each of the cluster's newest `MOST` failures with
    an expected answer from a person or the log. They are not confirmed. Raises EvalSetError, also
    if there is no such failure."""
    with transaction.atomic():
        draft = open_draft(project=cluster.project, by=by)
        rows = (
            Failure.objects.filter(cluster=cluster).standing().select_related("trajectory", "mode")
        )
        tasks, without = [], 0
        for failure in rows.order_by("-trajectory_id")[:MOST]:
            task = _suggested_task(failure, draft)
            tasks, without = (tasks, without + 1) if task is None else ([*tasks, task], without)
        if not tasks:
            raise actions.EvalSetError(
                "No expected answer for any of these failures. Open a failure to create its task by"
                " hand."
            )
        made = actions.store_tasks(
            eval_set=draft, tasks=tasks, by=by, what=f"cluster {cluster.name}"
        )
        return draft, replace(made, without_expected=without)


def _suggested_task(failure: Failure, eval_set: EvalSet) -> Task | None:
    """The task at the blamed step with the most reliable suggestion as expected answer; None
    without a suggestion.
    """
    cut = default_cut(failure.trajectory.messages, failure.blamed_message)
    found = suggestions(failure.trajectory, cut) if cut is not None else []
    if cut is None or not found or not has_request(prompt_at(failure.trajectory.messages, cut)):
        return None
    task = task_of(failure.trajectory, eval_set, cut, found[0].expected)
    task.split, task.group = Split.TRAIN, groups.groups_of(failure.trajectory)[0][1]
    task.demonstration = demonstration_of(found[0].expected)
    task.metadata = {"cut": cut, "mode": failure.mode.slug, "source": found[0].source}
    task.metadata[RECORDED] = results_for(failure.trajectory, found[0].success)
    return task


def task_of(trajectory: Trajectory, eval_set: EvalSet, cut: int, expected: dict) -> Task:
    """Unsaved. Raises EvalSetError."""
    if cut not in steps_of(trajectory.messages):
        raise actions.EvalSetError(
            f"Message {cut} is not an agent step. Choose one of the agent's turns."
        )
    prompt = prompt_at(trajectory.messages, cut)
    return Task(
        project=eval_set.project,
        eval_set=eval_set,
        key=free_key(eval_set, trajectory.external_id),
        groups=groups.names_of(trajectory),
        canonical_hash=canonical_hash(prompt),
        messages=prompt,
        tools=trajectory.tools,
        expected=expected,
        trajectory=trajectory,
        origin=Origin.FAILURE,
    )


def free_key(eval_set: EvalSet, wanted: str, taken: set[str] | None = None) -> str:
    """The given key, or the key with the next free number. `taken` are the keys in use, if already
    known.
    """
    if taken is None:
        taken = set(
            eval_set.tasks.filter(key__startswith=wanted[:110]).values_list("key", flat=True)
        )
    key, number = wanted[:120], 2
    while key in taken:
        key, number = f"{wanted[:110]}-{number}", number + 1
    return key
