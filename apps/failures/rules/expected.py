"""The correct calls, if known, and where the agent deviated from them. Pure.

The order of calls does not matter if each is correct: first, equal calls are removed on both sides,
then the rest is aligned in order (Needleman and Wunsch 1970), which pairs a call with the one it
should have been.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from apps.failures.rules.reading import Call, Run, kind_of
from workers.lib.messages import as_json, call_key, known_call, same_value, text_of, unpacked

MAX_EXPECTED = 500
ALIGNED = (
    200,
    100,
)  # remaining calls, made and expected, that are aligned; the first deviation is among them
MISSING, EXTRA, OTHER_TOOL, UNRELATED, WITHOUT_EFFECT = 1.0, 1.0, 1.5, 2.5, 0.05
SOURCES = ("expected", "expected_calls", "expected_tool_calls", "ground_truth")


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A correct call; `args` is None if any arguments are."""

    tool: str
    args: dict | None


@dataclass(frozen=True, slots=True)
class Deviation:
    """One difference: kind "wrong_tool", "wrong_argument", "missing" or "extra"; the call made and
    the call expected.
    """

    kind: str
    made: Call | None
    wanted: ExpectedCall | None
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """The correct calls, and the calls to compare them with; `whole` is False if a person corrected
    only one step, `step` if it is known which.
    """

    wanted: list[ExpectedCall]
    made: list[Call]
    whole: bool = True
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Correction:
    """What a person wrote instead of a step (of no particular one, if `index` is None): calls, or
    else a text.
    """

    index: int | None
    by: str
    calls: list[ExpectedCall]
    text: str


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """What is known to be correct: people's corrections, the newest first; the log's calls with the
    deviations from them, and texts that the user should have been told.
    """

    corrections: list[Correction]
    truth: GroundTruth | None
    deviations: list[Deviation]
    texts: list[str]


def known_answers(run: Run) -> KnownAnswers:
    edits = [item for item in reversed(run.interventions) if item.get("kind") == "edit"]
    truth = logged_truth(run)
    return KnownAnswers(
        [_correction(item) for item in edits],
        truth,
        deviations(truth) if truth else [],
        wanted_texts(run),
    )


def _correction(edit: dict) -> Correction:
    after = edit.get("after")
    text = text_of(after) if isinstance(after, dict) else after
    return Correction(
        index=edit.get("message_index"),
        by=edit.get("by") or "",
        calls=_calls(after) or [],
        text=text.strip() if isinstance(text, str) else "",
    )


def ground_truth_of(run: Run) -> GroundTruth | None:
    """From a person's last edit, or from the log's metadata; None if the correct calls are
    unknown.
    """
    for item in reversed(run.interventions):
        if item.get("kind") == "edit" and (calls := _calls(item.get("after"))):
            step = item.get("message_index")
            step = step if step in run.assistants else None
            return GroundTruth(calls, _edited(run, item, calls), whole=False, step=step)
    return logged_truth(run)


def logged_truth(run: Run) -> GroundTruth | None:
    """From the log's metadata; None if it does not have the correct calls."""
    for name in SOURCES:
        if name in run.metadata and (calls := _calls(run.metadata[name])) is not None:
            return GroundTruth(calls, run.calls)
    task = _dig(run.metadata, "info", "task")
    calls = _calls(task.get("actions")) if isinstance(task, dict) else None
    return None if calls is None else GroundTruth(calls, run.calls)


def _edited(run: Run, item: dict, wanted: list[ExpectedCall]) -> list[Call]:
    """The calls to which an edit applies: those of its message, or what the person found there if
    the log already contains the edit.
    """
    index = item.get("message_index")
    here = [call for call in run.calls if call.index == index]
    if not here:
        return run.calls
    right = {call_key(call.tool, call.args) for call in wanted}
    if all(call.args is not None and call_key(call.tool, call.args) in right for call in here):
        before = _calls(item.get("before")) or []
        return [
            Call(index, None, call.tool, call.args, as_json(call.args)) for call in before
        ] or here
    return here


def wanted_texts(run: Run) -> list[str]:
    """Texts that the agent should have told the user, from the log's metadata."""
    texts = _dig(run.metadata, "info", "task", "outputs")
    texts = texts if texts is not None else run.metadata.get("expected_outputs")
    return (
        [text for text in texts if isinstance(text, str) and text]
        if isinstance(texts, list)
        else []
    )


def _dig(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _calls(value: Any) -> list[ExpectedCall] | None:
    """One call or a list of them, in any of the usual forms; None if it is none of these."""
    value = unpacked(value)
    if isinstance(value, dict):
        value = next(
            (value[name] for name in ("tool_calls", "calls") if isinstance(value.get(name), list)),
            [value],
        )
    if not isinstance(value, list):
        return None
    calls = [_call(item) for item in value[:MAX_EXPECTED]]
    return None if None in calls else calls


def _call(item: Any) -> ExpectedCall | None:
    """A call that only names its tool is correct with any arguments."""
    call = known_call(item)
    return ExpectedCall(call.tool, None if call.given is None else call.args) if call.tool else None


def deviations(truth: GroundTruth) -> list[Deviation]:
    """Every difference, in the order of the run. A person who corrects one step says nothing about
    the other calls.
    """
    made, wanted = _comparable(truth.made, truth.wanted)
    left, missing, done = _without_equal(made, wanted)
    differences = _aligned(left[: ALIGNED[0]], missing[: ALIGNED[1]], done)
    return [item for item in differences if truth.whole or item.kind != "extra"]


def _comparable(
    calls: list[Call], wanted: list[ExpectedCall]
) -> tuple[list[Call], list[ExpectedCall]]:
    """Calls of tools that nobody expects are compared only if they change something, and look-ups
    before an expected change are not.

    A step whose calls have no replies is the answer itself: then all of it counts.
    """
    if calls and all(call.reply is None and call.index == calls[-1].index for call in calls):
        return calls, wanted
    changes = [item for item in wanted if kind_of(item.tool) != "read"]
    wanted = changes or wanted
    names = {item.tool for item in wanted}
    made = [call for call in calls if call.tool in names or kind_of(call.tool) == "write"]
    return made, wanted


def _without_equal(
    made: list[Call], wanted: list[ExpectedCall]
) -> tuple[list[Call], list[ExpectedCall], set]:
    """The made and expected calls without a match, and the matched keys. Calls that worked are
    matched first.
    """
    tools = {item.tool for item in wanted}
    keys = [
        call_key(call.tool, call.args) if call.tool in tools and call.args is not None else None
        for call in made
    ]
    open_wishes: dict[Hashable, deque[int]] = defaultdict(deque)
    for place, item in enumerate(wanted):
        open_wishes[item.tool if item.args is None else call_key(item.tool, item.args)].append(
            place
        )
    done, matched, met = set(), set(), set()
    for at in sorted(
        (at for at, key in enumerate(keys) if key is not None), key=lambda at: made[at].error
    ):
        wishes = open_wishes.get(keys[at]) or open_wishes.get(made[at].tool)
        if wishes:
            met.add(wishes.popleft())
            matched.add(at)
            done.add(keys[at])
    left = [call for at, call in enumerate(made) if at not in matched]
    return left, [item for place, item in enumerate(wanted) if place not in met], done


def _aligned(made: list[Call], wanted: list[ExpectedCall], done: set) -> Iterator[Deviation]:
    """The cheapest alignment of made with expected calls, as deviations."""
    tried: dict[str, deque[Call]] = defaultdict(deque)
    for kind, call, item in _path(made, wanted):
        if kind == "missing":
            yield Deviation("missing", None, item)
        elif kind == "extra" and call.error:
            tried[call.tool].append(
                call
            )  # without effect: not a fault itself, but maybe the start of one
        elif kind == "extra":
            yield Deviation(
                "extra", call, None, repeated=bool(done) and call_key(call.tool, call.args) in done
            )
        else:
            first = tried[call.tool].popleft() if tried[call.tool] else call
            yield Deviation(
                "wrong_argument" if call.tool == item.tool else "wrong_tool", first, item
            )


def _path(made: list[Call], wanted: list[ExpectedCall]) -> list[tuple[str, Any, Any]]:
    """Steps ("pair", call, wish), ("extra", call, None), ("missing", None, wish) of the cheapest
    alignment.
    """
    table = [[column * MISSING for column in range(len(wanted) + 1)]]
    pairs = [[_distance(call, item) for item in wanted] for call in made]
    for row, call in enumerate(made, 1):
        above, line = table[-1], [table[-1][0] + _extra(call)]
        for column in range(1, len(wanted) + 1):
            pair = above[column - 1] + pairs[row - 1][column - 1]
            line.append(min(pair, above[column] + _extra(call), line[-1] + MISSING))
        table.append(line)
    return _walk(table, pairs, made, wanted)


def _walk(
    table: list, pairs: list, made: list[Call], wanted: list[ExpectedCall]
) -> list[tuple[str, Any, Any]]:
    """Back through the table; among equally cheap paths the one that pairs the earliest calls."""
    steps: list[tuple[str, Any, Any]] = []
    row, column = len(made), len(wanted)
    while row or column:
        here = table[row][column]
        if row and here == table[row - 1][column] + _extra(made[row - 1]):
            row -= 1
            steps.append(("extra", made[row], None))
        elif row and column and here == table[row - 1][column - 1] + pairs[row - 1][column - 1]:
            row, column = row - 1, column - 1
            steps.append(("pair", made[row], wanted[column]))
        else:
            column -= 1
            steps.append(("missing", None, wanted[column]))
    return steps[::-1]


def _extra(call: Call) -> float:
    return WITHOUT_EFFECT if call.error else EXTRA


def _distance(call: Call, item: ExpectedCall) -> float:
    """Below 1 for the same tool: the share of arguments that differ. For another tool more than
    that, but less than two faults. A change that worked on something else is not paired: it is an
    extra call, and the expected one is missing.
    """
    args, right = call.args or {}, item.args or {}
    if call.tool != item.tool:
        return UNRELATED if _is_of_something_else(call, item, args, right) else OTHER_TOOL
    names = args.keys() | right.keys()
    differ = sum(
        name not in args or name not in right or not same_value(args[name], right[name])
        for name in names
    )
    return 0.1 + 0.8 * differ / max(1, len(names))


def _is_of_something_else(call: Call, item: ExpectedCall, args: dict, right: dict) -> bool:
    if not call.worked or kind_of(call.tool) != "write" or kind_of(item.tool) != "write":
        return False
    shared = args.keys() & right.keys()
    return bool(shared) and not any(same_value(args[name], right[name]) for name in shared)


def difference(args: dict | None, right: dict | None) -> str:
    """What is wrong with the arguments, in words."""
    args, right = args or {}, right or {}
    parts = [
        (
            f"{name} is {_short(args[name])}, should be {_short(right[name])}"
            if name in args and name in right
            else f"{name} is missing"
            if name in right
            else f"{name} was not expected"
        )
        for name in sorted(args.keys() | right.keys())
        if name not in args or name not in right or not same_value(args[name], right[name])
    ]
    return "; ".join(parts[:6]) + "."


def _short(value: Any) -> str:
    return as_json(value)[:80]
