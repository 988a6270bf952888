"""What a task made from a run should expect, in the format of `workers.lib.checks`: where it
begins, what is expected there, and why.

`plan_of` decides for one failure. What a person wrote at a step comes first. Where the environment
is known, it is an episode with the changes that should result. An exact call is expected only where
a person or the truth names it for this very step. Otherwise it is a rubric, which the judge drafts
or a person writes. A look-up is never the expected answer by itself, and nothing is expected that
the failed run has done.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from apps.core.timeouts import TooLong, patience
from apps.evals.actions import answer_text
from apps.evals.canonical import digest_of
from apps.evals.effects import Effect, ToolEffects
from apps.evals.episode_warnings import warnings_of
from apps.evals.later_turns import Later, changes_of, later_turns
from apps.evals.models import Continuation, TaskKind
from apps.evals.near_duplicates.calls import leaves_of, words_of
from apps.evals.source_runs import REPLAY, RunStep, SourceRun, default_cut, read_run, step_at
from apps.evals.wrong_step import went_wrong
from apps.failures.actions.diagnose import as_input
from apps.failures.models import Failure
from apps.failures.rules.expected import Correction, ExpectedCall, KnownAnswers
from apps.failures.rules.reading import Call, Run, read
from apps.trajectories.models import Outcome, Trajectory, with_content
from workers.lib.checks import match_calls
from workers.lib.messages import call_key, text_of, to_text
from workers.lib.verifiers.calls import untold_by

SUCCESSES_READ = REPLAYS_READ = 5
SEARCH_MS = 500  # time limit for finding later successes, since a page waits for them
SHORT = 60  # characters of an answer that can be compared word for word
# One word with a digit in it or all in capitals, and not a date.
IDENTIFIER = re.compile(r"(?!\d{4}-\d\d-\d\d)(?=[^a-z]*$|.*\d)(?=.*[A-Za-z])\S{4,80}")
PROSE_WORDS, PROSE = 4, 40  # words or characters from which on a value is prose
PERSON, TRUTH, REPLAYED, SUCCESS, JUDGE = (
    "a person's correction",
    "ground truth in the log",
    "a successful replay from this step",
    "a later successful run",
    "drafted by the judge",
)
BY_HAND, UNWRITTEN = "written by hand", "to be written"
NOT_KNOWN = "Neither a person nor the log says what would have been right."
NO_ENVIRONMENT = (
    "The log says which changes should result, but there is no environment to try them in: no"
    " results of tools were recorded, and no environment of the project has these tools."
)
UNREACHABLE = (
    "The log says which changes should result, but the recorded results do not lead there: “{}” is"
    " in none of them, and no user says it."
)
CONTRADICTED = (
    "The log says which changes should result, but the user chose “{}”, which is none of them."
)
STEP_UNKNOWN = "Nothing shows at which step the agent went wrong, so it begins {}."
SAME_CHANGES = "The changes that should result were made, so they do not show what failed."


@dataclass(frozen=True)
class Suggestion:
    """What is expected and where it comes from; `success` is the run it was taken from."""

    expected: dict
    source: str
    detail: str = ""
    success: Run | None = None
    kind: str = TaskKind.CALL


@dataclass(frozen=True)
class Plan:
    """The task of a failure. Without an `answer` it is a rubric that is still to be written;
    `reason` says why it is of this kind. `unknown` are tools of which nobody knows whether they
    change something: their calls do not count, unless they are expected. `warnings` are what the
    run itself says against what is expected.
    """

    step: RunStep
    answer: Suggestion | None
    reason: str
    unknown: Sequence[str] = ()
    warnings: Sequence[str] = ()

    @property
    def kind(self) -> str:
        return self.answer.kind if self.answer else TaskKind.RUBRIC


def plan_of(source: SourceRun, blamed: int | None) -> Plan | None:
    """What the task of a failed run is. None if the agent took no step."""
    wrong = went_wrong(source.run, source.answers, blamed)
    cut = default_cut(source.steps, wrong)
    if cut is None:
        return None
    for correction in source.answers.corrections:
        at = cut if correction.index is None else correction.index
        if at in source.steps and (found := _corrected(source, correction)):
            return Plan(step_at(source, at), found, "A person wrote what would have been right.")
    reason = NOT_KNOWN
    if episode := _episode(source, wrong):
        if isinstance(episode, Plan):
            return episode
        reason = episode
    for at in dict.fromkeys((cut, *_deviating(source.answers))):
        if at in source.steps and (exact := exact_call(source, at)):
            return Plan(step_at(source, at), exact, "The log names the right call for this step.")
    first = step_at(source, source.steps[0])
    told = next(_texts(source.run, source.answers, first.cut), None)
    if told and len(source.run.users) == 1:
        return Plan(first, told, "The log says what the user should have been told.")
    if wrong is None and len(source.steps) > 1:
        reason += f" {STEP_UNKNOWN.format('with the first')}"
    return Plan(step_at(source, cut), None, reason)


def planned(failure: Failure, chosen: int | None = None) -> Plan | None:
    """The task of a failure, or what can be expected at another step that a person chose. None if
    the agent took no step.
    """
    source = read_run(failure.trajectory)
    if chosen in source.steps:
        return Plan(step_at(source, chosen), None, "")
    return plan_of(source, failure.blamed_message)


def suggestions(step: RunStep) -> Iterator[Suggestion]:
    """Possible expected answers at a step that a person chose, the most reliable first. No value
    twice. Successes are searched only when the caller gets to them.
    """
    seen: set[str] = set()
    source, cut = step.source, step.cut
    for suggestion in chain(
        by_person(source.answers, cut),
        by_truth(source, cut),
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
    return next(same, Suggestion(expected, BY_HAND, kind=kind_of(expected)))


def kind_of(expected: dict) -> str:
    if "lookups" in expected or "state" in expected:
        return TaskKind.EPISODE
    if "calls" in expected or "tool" in expected:
        return TaskKind.CALL
    return TaskKind.RUBRIC if "rubric" in expected else TaskKind.ANSWER


# People


def by_person(answers: KnownAnswers, cut: int) -> Iterator[Suggestion]:
    """The corrections of this step, or of no particular step; the newest first."""
    for correction in answers.corrections:
        if correction.index in (None, cut) and (found := _of_person(correction)):
            yield found


def _of_person(correction: Correction) -> Suggestion | None:
    detail = f"by {correction.by}" if correction.by else ""
    if correction.calls:
        expected = _expected(correction.calls)
        return Suggestion(expected, PERSON, detail) if expected else None
    text = correction.text
    if not text:
        return None
    if len(text) <= SHORT and "\n" not in text:
        return Suggestion({"answer": text}, PERSON, detail, kind=TaskKind.ANSWER)
    point = f"The answer says the same as this one, in whatever words: “{text}”"
    return Suggestion({"rubric": point}, PERSON, detail, kind=TaskKind.RUBRIC)


def _corrected(source: SourceRun, correction: Correction) -> Suggestion | None:
    found = _of_person(correction)
    if found and correction.calls and _only_lookups(source, correction.calls):
        return None
    return found


def _only_lookups(source: SourceRun, calls: Iterable[ExpectedCall]) -> bool:
    """Whether these calls are steps on the way only. Where no tool has answered, as in a test of
    function calling, the calls are all that the agent is asked for.
    """
    has_replies = any(call.reply is not None for call in source.run.calls)
    return has_replies and all(source.effects.is_lookup(call.tool) for call in calls)


# Episodes: the changes that should result


def _episode(source: SourceRun, wrong: int | None) -> Plan | str | None:
    """The episode; or why there is none although the changes that should result are known. `wrong`
    is the step at which the agent went wrong, if that is known.
    """
    why: str | None = None
    for changes, origin, name, success in _known_changes(source):
        if not source.environment:
            return NO_ENVIRONMENT
        runs = [source.run, *([success] if success else [])]
        is_replay = source.environment == REPLAY
        if is_replay and (missing := _unknown_name(changes, _replayable(runs))):
            why = UNREACHABLE.format(missing[:80])
            continue
        if origin == TRUTH and (said := _said_otherwise(source)):
            why = CONTRADICTED.format(said[:80])
            continue
        cut = _start(source, changes, wrong)
        found = _changes_of(source, changes, cut, origin, name, success)
        if found is None:
            why = SAME_CHANGES
            continue
        where = (
            "the recorded results can be replayed"
            if source.environment == REPLAY
            else f"the environment {source.environment} has its tools"
        )
        reason = f"The changes that should result are known from {origin}, and {where}."
        if wrong is None and len(source.steps) > 1:
            reason += f" {STEP_UNKNOWN.format('when the user has said what is needed')}"
        step = step_at(source, cut)
        called = {call.tool for call in source.run.calls} | set(source.run.offer.names)
        left = [ExpectedCall(call["tool"], call["args"]) for call in found.expected["calls"]]
        return Plan(
            step,
            found,
            reason,
            source.effects.unknown(called),
            [
                *warnings_of(source.run, source.effects, left),
                *later_of(step, found.expected).warnings,
            ],
        )
    return why


def _known_changes(
    source: SourceRun,
) -> Iterator[tuple[list[ExpectedCall], str, str, Run | None]]:
    """(changes, where they are known from, its name, the successful run)."""
    if truth := source.answers.truth:
        changes = changes_in(truth.wanted, source.effects)
        if changes is not None:
            yield changes, TRUTH, "", None
        return  # a run that succeeded otherwise does not overrule it
    for origin, name, success in chain(
        ((REPLAYED, name, run) for name, run in _continued(source)),
        ((SUCCESS, later.row.external_id, later.run) for later in later_successes(source)),
    ):
        worked = [
            ExpectedCall(call.tool, call.args)
            for call in success.calls
            if call.worked and call.args is not None
        ]
        changes = changes_in(worked, source.effects)
        if changes:
            yield changes, origin, name, success


def changes_in(wanted: Iterable[ExpectedCall], effects: ToolEffects) -> list[ExpectedCall] | None:
    """The calls that are no look-ups; None if some have any arguments, which a task cannot
    express.
    """
    found = [item for item in wanted if not effects.is_lookup(item.tool)]
    return None if any(item.args is None for item in found) else found


def of_changes(
    run: Run,
    effects: ToolEffects,
    answers: KnownAnswers,
    changes: list[ExpectedCall],
    cut: int,
    origin: str,
    name: str = "",
    success: Run | None = None,
) -> Suggestion | None:
    """The changes that are still to be made at a step, and what the user should be told in the end;
    None if the run did exactly this.
    """
    left = _left(changes, [call for call in run.calls if call.index < cut])
    named = {item.tool for item in left}
    wanted = answers.truth.wanted if answers.truth else []
    offered = run.offer.names | {call.tool for call in (*run.calls, *wanted)}
    texts = answers.texts if origin == TRUTH else []
    free = sorted(tool for tool in offered - named if effects.of(tool)[0] != Effect.CHANGE)
    expected: dict = {"calls": [_change(item, run) for item in left], "lookups": free}
    made = [
        {"tool": call.tool, "args": call.args}
        for call in run.calls
        if call.index >= cut and call.args is not None and not call.error
    ]
    said = [run.messages[at] for at, _ in run.answers if at >= cut]
    untold = untold_by(said, [[text] for text in texts])
    if match_calls(made, expected)["success"] == 1.0 and not untold:
        return None
    if texts:
        expected["tell"] = [[text] for text in texts]
    count = len(left)
    detail = f"{count} change{'' if count == 1 else 's'}" if count else "no change"
    detail += f", as in {name}" if name else ""
    return Suggestion(expected, origin, detail, success, TaskKind.EPISODE)


def _changes_of(
    source: SourceRun,
    changes: list[ExpectedCall],
    cut: int,
    origin: str,
    name: str = "",
    success: Run | None = None,
) -> Suggestion | None:
    run, effects, answers = source.run, source.effects, source.answers
    return of_changes(run, effects, answers, changes, cut, origin, name, success)


def _change(item: ExpectedCall, run: Run) -> dict:
    """An expected change. Prose that is said nowhere in the run can be written in many ways."""
    args = item.args or {}
    free = sorted(name for name, value in args.items() if _is_prose(value, run))
    return {"tool": item.tool, "args": args} | ({"any": free} if free else {})


def _is_prose(value: object, run: Run) -> bool:
    if not isinstance(value, str) or (len(value.split()) < PROSE_WORDS and len(value) < PROSE):
        return False
    said = chain((text for _, text in run.users), (call.reply or "" for call in run.calls))
    return not any(value.casefold() in text.casefold() for text in said)


def _unknown_name(changes: Iterable[ExpectedCall], texts: Iterable[str]) -> str:
    """An identifier in the expected calls that none of these texts has, so that nobody could know
    it. Empty if there is none.
    """
    known = "\n".join(texts).casefold()
    for item in changes:
        for _, leaf in leaves_of(item.args):
            if (
                isinstance(leaf, str)
                and IDENTIFIER.fullmatch(leaf)
                and leaf.casefold() not in known
            ):
                return leaf
    return ""


def _said_otherwise(source: SourceRun) -> str:
    """An identifier that a user chose and the agent used, where according to the log another one,
    which no user says, would have been right. Empty if there is none.
    """
    said = "\n".join(text for _, text in source.run.users)
    for item in source.answers.deviations:
        if item.made is None or item.wanted is None or item.made.tool != item.wanted.tool:
            continue
        made, wanted = (
            {leaf for _, leaf in leaves_of(args) if isinstance(leaf, str)}
            for args in (item.made.args, item.wanted.args)
        )
        names = [leaf for leaf in sorted(made - wanted) if IDENTIFIER.fullmatch(leaf)]
        chosen = next((leaf for leaf in names if leaf in said), "")
        instead = [leaf for leaf in wanted - made if IDENTIFIER.fullmatch(leaf)]
        if chosen and instead and not any(leaf in said for leaf in instead):
            return chosen
    return ""


def _replayable(runs: Iterable[Run]) -> Iterator[str]:
    """What an agent can learn where these runs are replayed."""
    for run in runs:
        yield from (text for _, text in run.users)
        yield from (call.reply or "" for call in run.calls)


def _start(source: SourceRun, changes: Sequence[ExpectedCall], wrong: int | None) -> int:
    """Where the episode begins: at the step at which the agent went wrong, or, if that is unknown,
    as soon as users have said every value of the expected changes that they say at all. But before
    anything was changed, since the environment begins unchanged.
    """
    run, effects = source.run, source.effects
    changed = [call.index for call in run.calls if call.worked and not effects.is_lookup(call.tool)]
    deviating = _deviating(source.answers)
    bounds = [*deviating, *(changed if source.environment != REPLAY or wrong is None else ())]
    if wrong is not None:
        return default_cut(source.steps, min([wrong, *bounds])) or source.steps[0]
    end = min(bounds, default=len(run.messages))
    said = [(at, text.casefold()) for at, text in run.users if at < end]
    if not said:
        return source.steps[0]
    values = {str(leaf).casefold() for item in changes for _, leaf in leaves_of(item.args)}
    first = (next((at for at, text in said if value in text), None) for value in values)
    known = max((at for at in first if at is not None), default=said[0][0])
    return next((step for step in source.steps if step > known), source.steps[0])


def later_of(step: RunStep, expected: dict) -> Later:
    """What the user of an episode says after a step."""
    return later_turns(step.source.run, step.cut, changes_of(expected))


# The truth


def by_truth(source: SourceRun, cut: int) -> Iterator[Suggestion]:
    """The changes still to be made, where they can be tried; the right call of this very step; and
    the texts that the user should have been told.
    """
    truth = source.answers.truth
    if truth and source.environment:
        changes = changes_in(truth.wanted, source.effects)
        if changes is not None and (found := _changes_of(source, changes, cut, TRUTH)):
            yield found
    if exact := exact_call(source, cut):
        yield exact
    yield from _texts(source.run, source.answers, cut)


def exact_call(source: SourceRun, cut: int) -> Suggestion | None:
    """The right calls of a step: those made there that were right, and for each wrong one what it
    should have been. Of a run of one step, all. None if that is not known, or only look-ups.
    """
    truth = source.answers.truth
    if truth is None:
        return None
    right = _of_only_step(source, truth.wanted) if source.steps == [cut] else None
    right = _right_here(source, cut) if right is None else right
    if right is None or (right and _only_lookups(source, right)) or _said_otherwise(source):
        return None
    before = (words_of(message) for message in source.run.messages[:cut])
    if _unknown_name(right, before):
        return None
    expected = _expected(right)
    return Suggestion(expected, TRUTH, "the right call here") if expected else None


def _of_only_step(source: SourceRun, wanted: list[ExpectedCall]) -> list[ExpectedCall] | None:
    """All right calls of a run of one step, unless some of them had to be answered first."""
    calls = source.run.calls
    if any(call.reply is not None for call in calls):
        return None
    has_lookup = any(source.effects.is_lookup(item.tool) for item in wanted)
    return list(wanted) if calls or len(wanted) == 1 or not has_lookup else None


def _right_here(source: SourceRun, cut: int) -> list[ExpectedCall] | None:
    here = [item for item in source.answers.deviations if item.made and item.made.index == cut]
    if not here or any(item.wanted is None for item in here):
        return None
    instead = {id(item.made): item.wanted for item in here}
    return [
        instead.get(id(call)) or ExpectedCall(call.tool, call.args)
        for call in source.run.calls
        if call.index == cut
    ]


def _deviating(answers: KnownAnswers) -> list[int]:
    """The steps that made a wrong call, according to the log."""
    return sorted({item.made.index for item in answers.deviations if item.made})


def _texts(run: Run, answers: KnownAnswers, cut: int) -> Iterator[Suggestion]:
    said = "\n".join(text for at, text in run.answers if at >= cut).casefold()
    if answers.texts and not all(text.casefold() in said for text in answers.texts):
        yield Suggestion(
            {"constraint": {"contains": answers.texts}},
            TRUTH,
            "texts that the user should have been told",
            kind=TaskKind.ANSWER,
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


def _expected(wanted: Sequence[ExpectedCall]) -> dict | None:
    """In the format of tasks; None if any arguments would do, which a task cannot express."""
    if any(item.args is None for item in wanted):
        return None
    calls = [{"tool": item.tool, "args": item.args} for item in wanted]
    return calls[0] if len(calls) == 1 else {"calls": calls}


# Successes: continuations from the step, and later runs


def _by_replay(step: RunStep) -> Iterator[Suggestion]:
    """What continuations of the run did that succeeded, resumed at this step (`replays`)."""
    for name, success in _continued(step.source, step=step.cut):
        yield from _as_in(step, success, REPLAYED, name)


def _continued(source: SourceRun, **where: Any) -> Iterator[tuple[str, Run]]:
    """(whose it is, the whole run) of continuations that succeeded, the newest first."""
    row = source.row
    rows = Continuation.objects.filter(
        search__failure__trajectory=row.pk, success=True, masked=False, **where
    )
    for found in rows.select_related("search__model_version").order_by("-pk")[:REPLAYS_READ]:
        messages = [*row.messages[: found.step], *found.messages]
        success = read(as_input(row) | {"messages": messages})
        yield f"a continuation by {found.search.model_version}", success


def _by_success(step: RunStep) -> Iterator[Suggestion]:
    for later in later_successes(step.source):
        yield from _as_in(step, later.run, SUCCESS, later.row.external_id)


def _as_in(step: RunStep, success: Run, origin: str, name: str) -> Iterator[Suggestion]:
    """What a successful run says about a step: the changes still to be made, its calls, or its
    short answer.
    """
    source, cut = step.source, step.cut
    worked = [
        ExpectedCall(call.tool, call.args)
        for call in success.calls
        if call.args is not None and not call.error
    ]
    changes = changes_in(worked, source.effects) if source.environment else None
    if changes and (found := _changes_of(source, changes, cut, origin, name, success)):
        yield found
    elif worked and source.steps == [cut] and not _only_lookups(source, worked):
        if expected := _expected(worked):
            yield Suggestion(expected, origin, f"as in {name}", success)
    elif not worked:
        text = (text_of(success.messages[-1]) if success.messages else "").strip()
        if text and len(text) <= SHORT:
            yield Suggestion({"answer": text}, origin, name, success, TaskKind.ANSWER)


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
    runs = (read_run(row, ()) for row in candidates)
    return [run for run in runs if run.groups.request_hash == same]


def demonstration_of(expected: dict) -> str:
    """A good answer in the agent's own format, as far as the expected value is one. An episode is
    not shown by one answer.
    """
    if "lookups" in expected:
        return ""
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
