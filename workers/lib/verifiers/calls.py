"""Tool calls as checked by the Berkeley Function Calling Leaderboard: one, several, parallel, or
none. Pure.

The right calls are in the task's `expected`: {"tool", "args"}, with "accept" {argument: [right
values]} and "any" [arguments of which any value is right]; {"calls": [such]}, with "ordered";
{"any_call": true}, where any will do; or BFCL's own {"ground_truth": [{tool: {argument: [right
values]}}]}.

With "lookups" (names of tools) the calls are the changes that an episode should make: calls of
those tools are free, and so are calls that failed. "tell" lists what the user has to be told, each
as a list of alternative wordings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from workers.lib.checks import paired
from workers.lib.messages import ToolCall, calls_of, schemas_of, text_of
from workers.lib.typed import Number
from workers.lib.verifiers.base import (
    Guarded,
    Options,
    Unscorable,
    options,
    right_or_wrong,
    weights_of,
)
from workers.lib.verifiers.matching import LONGEST_UNORDERED, OneOf, Rules, fits, one_of, same
from workers.lib.verifiers.types import Clients, Rollout, Score

WEIGHTS = {"invalid": -1.0, "unsafe": -1.0, "tools": 0.4, "arguments": 0.4, "exact": 0.2}
MAX_CALLS = 1000
MOST_PAIRS = 40_000  # made × expected calls that are compared with each other


class CallsOptions(Options):
    weights: dict[str, Number] = {}
    partial: bool = True
    ordered: bool = False
    text: Literal["loose", "spaces", "exact"] = "loose"
    whole_floats: bool = False
    tolerance: Annotated[float, Meta(ge=0, le=0.5)] = 0.0
    dates: bool = False
    unordered: list[str] = []
    dots: bool = False


class NoCallOptions(Options):
    says_something: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """An expected call: its tool, and the accepted values of each argument; `any` are those of
    which any value is right.
    """

    tool: str
    arguments: dict[str, OneOf]
    any: frozenset[str] = frozenset()


@dataclass(slots=True)
class Made:
    """An agent's calls that can be parsed, and what is wrong with the others."""

    calls: list[ToolCall]
    faults: list[str]


def made_by(messages: Iterable[dict]) -> Made:
    """The calls of all assistant messages, in order."""
    turns = (
        message
        for message in messages
        if isinstance(message, dict) and message.get("role") == "assistant"
    )
    found = [call for message in turns for call in calls_of(message)]
    made = Made(
        [call for call in found if not call.problem],
        [call.problem for call in found if call.problem],
    )
    if len(made.calls) > MAX_CALLS:
        made.faults.append(f"too many calls: {len(made.calls)}")
    return made


def untold_by(messages: Iterable[dict], tell: Iterable[list[str]]) -> list[list[str]]:
    """What the agent did not tell; each item lists alternative wordings."""
    said = (text_of(item) for item in messages if item.get("role") == "assistant")
    text = " ".join(said).casefold()
    return [
        words for words in tell if not any(contains_word(text, word.casefold()) for word in words)
    ]


def contains_word(text: str, word: str) -> bool:
    """As a separate word or number: 9.90 does not occur in 59.90."""
    return re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", text) is not None


def wanted_of(expected: dict) -> list[Wanted]:
    """The calls that a task expects. Raises Unscorable if `expected` has none of the forms."""
    if isinstance(expected.get("ground_truth"), list):
        return [_bfcl(item) for item in expected["ground_truth"]]
    if "calls" in expected or "tool" in expected:
        items = expected.get("calls", [expected])
        if isinstance(items, list):
            return [_own(item) for item in items]
    raise Unscorable(
        "The task expects no calls: its “expected” needs “tool”, “calls” or “ground_truth”."
    )


def _own(item: Any) -> Wanted:
    if (
        not isinstance(item, dict)
        or not isinstance(item.get("tool"), str)
        or not isinstance(item.get("args"), dict)
    ):
        raise Unscorable("A call that the task expects is not {“tool”: text, “args”: object}.")
    accept = item.get("accept") if isinstance(item.get("accept"), dict) else {}
    given = item.get("any") if isinstance(item.get("any"), list) else []
    free = frozenset(name for name in given if isinstance(name, str))
    arguments = {name: OneOf((value,)) for name, value in item["args"].items()}
    arguments |= {name: one_of(_listed(values), False) for name, values in accept.items()}
    return Wanted(
        item["tool"],
        {name: values for name, values in arguments.items() if name not in free},
        free,
    )


def _bfcl(item: Any) -> Wanted:
    if (
        not isinstance(item, dict)
        or len(item) != 1
        or not isinstance(next(iter(item.values())), dict)
    ):
        raise Unscorable("A call in “ground_truth” is not {tool: {argument: [right values]}}.")
    [(tool, arguments)] = item.items()
    return Wanted(tool, {name: one_of(_listed(values), True) for name, values in arguments.items()})


def _listed(values: Any) -> list:
    return values if isinstance(values, list) else [values]


class Calls(Guarded):
    """The reward is the sum of its components: 0.4 tools + 0.4 arguments + 0.2 if everything is
    right.
    """

    only_calls = True

    def __init__(self, chosen: CallsOptions, path: str) -> None:
        self.weights = weights_of(chosen.weights, WEIGHTS, f"{path}.weights")
        self.partial, self.ordered, self.dots = chosen.partial, chosen.ordered, chosen.dots
        self.rules = Rules(
            chosen.text,
            chosen.whole_floats,
            chosen.tolerance,
            chosen.dates,
            frozenset(chosen.unordered),
        )

    def judge(self, rollout: Rollout) -> Score:
        if rollout.expected.get("any_call") is True:
            return self.any_call(made_by(rollout.messages))
        wanted, made = wanted_of(rollout.expected), made_by(rollout.messages)
        lookups = rollout.expected.get("lookups")
        if isinstance(lookups, list):
            return self.changes(self.changing(made, wanted, lookups, rollout), wanted, rollout)
        if made.faults:
            return self.invalid(made.faults)
        if not wanted:
            return self.none_wanted(made)
        if not made.calls:
            return self.invalid(["no call: a call was expected, the agent made none"])
        schemas = schemas_of(rollout.tools or rollout.task.get("tools") or [])
        if self.dots:
            wanted, made.calls, schemas = _without_dots(wanted, made.calls, schemas)
        ordered = self.ordered or bool(rollout.expected.get("ordered"))
        return self.compared(made.calls, wanted, schemas, ordered, rollout)

    def changing(
        self, made: Made, wanted: list[Wanted], lookups: list[str], rollout: Rollout
    ) -> list[ToolCall]:
        """The calls that changed something: no look-ups, and none that failed, unless it is an
        expected one that never succeeded (a replay cannot run what was not recorded).
        """
        if not rollout.calls:
            return [call for call in made.calls if call.tool not in lookups]
        schemas = schemas_of(rollout.tools or rollout.task.get("tools") or [])
        run = [call for call in rollout.calls if call.name not in lookups]
        worked = [ToolCall(call.name, call.args) for call in run if call.ok]
        for call in (ToolCall(call.name, call.args) for call in run if not call.ok):
            for item in wanted:
                fits_item = call.tool == item.tool and share(call, item, schemas, self.rules) == 1.0
                if fits_item and not any(
                    done.tool == item.tool and share(done, item, schemas, self.rules) == 1.0
                    for done in worked
                ):
                    worked.append(call)
                    break
        return worked

    def changes(self, calls: list[ToolCall], wanted: list[Wanted], rollout: Rollout) -> Score:
        """As for other calls; what the user was not told takes its share of the reward."""
        schemas = schemas_of(rollout.tools or rollout.task.get("tools") or [])
        ordered = self.ordered or bool(rollout.expected.get("ordered"))
        score = (
            self.compared(calls, wanted, schemas, ordered, rollout)
            if wanted
            else self.none_wanted(Made(calls, []))
        )
        tell = [item for item in rollout.expected.get("tell") or () if isinstance(item, list)]
        untold = untold_by(rollout.messages, tell)
        if untold and score.reward is not None:
            score.components["told"] = 1 - len(untold) / len(tell)
            score.reward = min(score.reward, score.reward * score.components["told"])
            score.success = False
            score.details += [f"the user was not told: {' or '.join(item)}" for item in untold]
        return score

    def any_call(self, made: Made) -> Score:
        """At least one call of any kind, for tasks that only say that the tools can do what is
        asked for.
        """
        if not made.calls:
            return self.invalid(
                made.faults or ["no call: a call was expected, the agent made none"]
            )
        return right_or_wrong(True, tool_ok=True, args_score=1.0)

    def invalid(self, faults: list[str]) -> Score:
        reward = self.weights["invalid"]
        return Score(
            reward=reward,
            components={"invalid": reward},
            valid=False,
            tool_ok=False,
            args_score=0.0,
            details=faults[:20],
        )

    def none_wanted(self, made: Made) -> Score:
        right = not made.calls
        names = ", ".join(call.tool[:80] for call in made.calls[:5])
        score = right_or_wrong(
            right, [f"call not wanted: {names}"], tool_ok=right, args_score=float(right)
        )
        score.components = {"exact": float(right)}
        return score

    def compared(
        self,
        calls: list[ToolCall],
        wanted: list[Wanted],
        schemas: dict[str, dict],
        ordered: bool,
        rollout: Rollout,
    ) -> Score:
        pairs = pair(calls, wanted, schemas, self.rules, ordered)
        slots = max(len(calls), len(wanted))
        tools = sum(calls[i].tool == wanted[j].tool for i, j in pairs.items()) / slots
        arguments = (
            sum(
                share(calls[i], wanted[j], schemas, self.rules)
                for i, j in pairs.items()
                if calls[i].tool == wanted[j].tool
            )
            / slots
        )
        unsafe = any(item.unsafe for item in rollout.calls)
        right = tools == arguments == 1.0 and not unsafe
        details = [] if right else list(faults(calls, wanted, pairs, schemas, self.rules))[:20]
        return self.reward(tools, arguments, right, unsafe, details)

    def reward(
        self, tools: float, arguments: float, right: bool, unsafe: bool, details: list[str]
    ) -> Score:
        w = self.weights
        if unsafe:
            components = {"unsafe": w["unsafe"]}
            details.insert(0, "unsafe: a call did harm")
        elif self.partial:
            components = {
                "tools": w["tools"] * tools,
                "arguments": w["arguments"] * arguments,
                "exact": w["exact"] * right,
            }
        else:
            components = {"exact": float(right)}
        # rounded, because 0.4 + 0.4 + 0.2 is not always exactly 1.0 in floats
        return Score(
            reward=round(sum(components.values()), 9),
            components=components,
            success=right,
            valid=True,
            tool_ok=tools == 1.0,
            args_score=arguments,
            unsafe=unsafe,
            details=details,
        )


def _without_dots(
    wanted: list[Wanted], calls: list[ToolCall], schemas: dict[str, dict]
) -> tuple[list[Wanted], list[ToolCall], dict[str, dict]]:
    """Tool names as OpenAI allows them, with underscores for dots."""
    return (
        [Wanted(item.tool.replace(".", "_"), item.arguments, item.any) for item in wanted],
        [ToolCall(item.tool.replace(".", "_"), item.args) for item in calls],
        {name.replace(".", "_"): schema for name, schema in schemas.items()},
    )


# One call


def _parts(schema: dict) -> tuple[dict, list]:
    properties, required = schema.get("properties"), schema.get("required")
    return (properties if isinstance(properties, dict) else {}), (
        required if isinstance(required, list) else []
    )


def share(call: ToolCall, wanted: Wanted, schemas: dict[str, dict], rules: Rules) -> float:
    """Share of arguments that are right, in [0, 1]; missing and unexpected ones both count as
    wrong.
    """
    properties, required = _parts(schemas.get(call.tool, {}))
    right = total = 0
    for name, value in call.args.items():
        if name in wanted.any:
            continue
        total += 1
        right += _is_right(name, value, wanted, properties, rules)
    for name, accepted in wanted.arguments.items():
        # an argument that the schema requires must not be left out, even if the accepted values
        # allow it
        if name not in call.args and (not accepted.optional or name in required):
            total += 1
    return right / total if total else 1.0


def _is_right(name: str, value: Any, wanted: Wanted, properties: dict, rules: Rules) -> bool:
    accepted = wanted.arguments.get(name)
    return accepted is not None and same(
        value, accepted, properties.get(name), rules, name in rules.unordered
    )


def argument_faults(
    call: ToolCall, wanted: Wanted, schemas: dict[str, dict], rules: Rules
) -> Iterator[str]:
    """What is wrong with the arguments, one sentence each."""
    schema = schemas.get(call.tool)
    properties, required = _parts(schema or {})
    tool = call.tool[:80]
    for name, accepted in wanted.arguments.items():
        if name not in call.args and (not accepted.optional or name in required):
            yield (
                f"{'missing required argument' if name in required else 'missing argument'}:"
                f" {tool}.{name}"
            )
    for name, value in call.args.items():
        where = f"{tool}.{name[:80]}"
        if name not in wanted.arguments:
            known = schema is None or name in properties
            yield f"{'argument not asked for' if known else 'unknown argument'}: {where}"
        elif not _is_right(name, value, wanted, properties, rules):
            kind = (
                "wrong value"
                if _has_a_right_type(value, wanted.arguments[name], properties.get(name))
                else "wrong type"
            )
            long = (
                name in rules.unordered
                and isinstance(value, list)
                and len(value) > LONGEST_UNORDERED
            )
            order = (
                f" (compared in order: it has more than {LONGEST_UNORDERED} items)" if long else ""
            )
            yield (
                f"{kind}: {where} is {short(value)}, accepted"
                f" {short(list(wanted.arguments[name].values))}{order}"
            )


def _has_a_right_type(value: Any, accepted: OneOf, schema: Any) -> bool:
    if isinstance(schema, dict) and isinstance(schema.get("type"), str):
        return fits(value, schema)
    return any(
        type(value) is type(item) or (type(value) is int and type(item) is float)
        for item in accepted.values
    )


def short(value: Any) -> str:
    text = repr(_plain(value))
    return text if len(text) <= 120 else text[:117] + "…"


def _plain(value: Any) -> Any:
    """Accepted values as they were in the file."""
    if isinstance(value, OneOf):
        return [_plain(item) for item in value.values]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


# Several calls


def pair(
    calls: list[ToolCall],
    wanted: list[Wanted],
    schemas: dict[str, dict],
    rules: Rules,
    ordered: bool,
) -> dict[int, int]:
    """{made call: expected call}: as many perfect pairs as possible, the rest by descending
    share.
    """
    if ordered or len(calls) == len(wanted) == 1 or len(calls) * len(wanted) > MOST_PAIRS:
        return {i: i for i in range(min(len(calls), len(wanted)))}
    scores = [
        [
            1 + share(call, item, schemas, rules) if call.tool == item.tool else 0.0
            for item in wanted
        ]
        for call in calls
    ]
    return paired(scores)


def faults(
    calls: list[ToolCall],
    wanted: list[Wanted],
    pairs: dict[int, int],
    schemas: dict[str, dict],
    rules: Rules,
) -> Iterator[str]:
    """Everything that is wrong, in words."""
    for i, call in enumerate(calls):
        unknown = schemas and call.tool not in schemas
        if unknown:
            yield f"hallucinated function: there is no tool {call.tool[:80]}"
        if i not in pairs:
            yield f"extra call: {call.tool[:80]}"
        elif call.tool != wanted[pairs[i]].tool:
            if not unknown:
                yield f"wrong tool: {call.tool[:80]}, expected {wanted[pairs[i]].tool}"
        else:
            yield from argument_faults(call, wanted[pairs[i]], schemas, rules)
    taken = set(pairs.values())
    yield from (f"missing call: {item.tool}" for j, item in enumerate(wanted) if j not in taken)


# No call


class NoCall(Guarded):
    """Right if the agent made no call and, if required, wrote something."""

    only_calls = True

    def __init__(self, chosen: Any) -> None:
        self.says_something = chosen.says_something

    def judge(self, rollout: Rollout) -> Score:
        made = made_by(rollout.messages)
        details = made.faults[:5] + [
            f"call not wanted: {call.tool[:80]}" for call in made.calls[:5]
        ]
        if self.says_something and not rollout.answer:
            details.append("no answer: the agent said nothing")
        return right_or_wrong(
            not details, details, tool_ok=not details, args_score=float(not details)
        )


def from_spec(spec: dict, clients: Clients, path: str) -> Calls:
    return Calls(options(spec, path, CallsOptions), path)


def no_call_from_spec(spec: dict, clients: Clients, path: str) -> NoCall:
    return NoCall(options(spec, path, NoCallOptions))
