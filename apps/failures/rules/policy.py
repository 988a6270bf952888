"""Rules that people confirmed, and their checks: what calls and values must be like, declared as
data. Pure.

A check says when a call is meant (its tool, its arguments) and what must hold then, in relation to
another call, if any. Conditions on values are JSON Schemas, checked by the library that checks
tools' arguments, with its bounds. Nothing here reads words.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from itertools import chain, islice
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, field

from apps.core.storable import refuse_unstorable
from apps.failures.rules.findings import Finding, cut
from apps.failures.rules.reading import Call, Run
from workers.lib.errors import SpecError
from workers.lib.json_schema import Budget, JsonSchema, TooMuch
from workers.lib.messages import functions_of, same_value
from workers.lib.typed import convert, plain

log = logging.getLogger(__name__)
ANY_TOOL = "*"
LONGEST_SCHEMA, MOST_COMPARED = 2_000, 20_000  # characters; pairs of calls per rule and run
MOST_ALIKE = 200  # tools with which an unknown one is compared: a run may name thousands
ENDLESS = ("$ref", "$dynamicRef", "$recursiveRef", "pattern", "patternProperties")  # may never end
NAMED = ("properties", "$defs", "definitions", "dependentSchemas")  # {a name: a schema}
VALUES = ("const", "enum", "default", "examples", "required", "dependentRequired")  # no schemas
MUST = {
    "never": "must never be called",
    "only_after": "may only be called after",
    "never_after": "must not be called after",
    "be_followed_by": "must be followed by",
    "ask_first": "may only be called once a person has answered a message of the agent",
    "be_alone": "must be the only call of its message, without words",
}
NEEDS_OTHER = frozenset(("only_after", "never_after", "be_followed_by"))
Name = Annotated[str, Meta(min_length=1, max_length=120)]
Must = Literal["never", "only_after", "never_after", "be_followed_by", "ask_first", "be_alone"]
assert set(get_args(Must)) == set(MUST)


class CheckError(ValueError):
    """What is wrong with a check, or why it could not be made; `field` is where."""

    def __init__(self, sentence: str, where: str = "") -> None:
        super().__init__(sentence)
        self.field = where


class Called(Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """A call of one of these tools, “*” for any, whose arguments match a JSON Schema."""

    tools: Annotated[list[Name], Meta(min_length=1, max_length=20)]
    arguments: dict[str, Any] | None = None


class Other(Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """Another call, which worked. `same`: its argument → the argument of the first call with the
    same value. `shows`: arguments of the first call whose values its reply contains. `reply`: a
    JSON Schema that its reply matches; of several such calls, the reply of the last counts.
    """

    tools: Annotated[list[Name], Meta(min_length=1, max_length=20)]
    arguments: dict[str, Any] | None = None
    same: Annotated[dict[Name, Name], Meta(max_length=10)] = field(default_factory=dict)
    shows: Annotated[list[Name], Meta(max_length=10)] = field(default_factory=list)
    reply: dict[str, Any] | None = None


class Check(Struct, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """When a call is made, it must be like this."""

    when: Called
    must: Must
    other: Other | None = None


Tools = Mapping[str, frozenset[str] | None]  # the arguments of each known tool; None: any


@dataclass(frozen=True, slots=True)
class Rule:
    """A confirmed rule that applies to a run. Without a check, the judge is told about it."""

    id: int
    sentence: str
    check: dict[str, Any] | None = None


def check_of(given: Any, tools: Tools | None = None) -> Check:
    """The check that is given as JSON, if it can be made and, where the tools of runs are known,
    names what they have. Raises CheckError.
    """
    try:
        refuse_unstorable({"check": given})
        check = convert(given, Check, "check")
        _ready(_text(check))
    except SpecError as error:
        raise CheckError(str(error), getattr(error, "path", "")) from error
    except RecursionError as error:
        raise CheckError("A check cannot be nested this deeply.", "check") from error
    if (check.other is None) == (check.must in NEEDS_OTHER):
        needs = "another call" if check.other is None else "no other call"
        raise CheckError(f"“{check.must}” needs {needs}.", "check.other")
    if tools:
        _refuse_unknown(check, tools)
    return check


def _refuse_unknown(check: Check, tools: Tools) -> None:
    parts: list[tuple[str, Called | Other]] = [("when", check.when)]
    parts += [("other", check.other)] if check.other else []
    for name, called in parts:
        for tool in called.tools:
            if tool != ANY_TOOL and tool not in tools:
                alike = ", ".join(get_close_matches(tool, [*islice(tools, MOST_ALIKE)], 3, 0.4))
                sentence = f"No recent run has a tool “{tool}”."
                meant = f" Did you mean {alike}?" if alike else ""
                raise CheckError(sentence + meant, f"check.{name}.tools")
        _refuse_arguments(called, _named(called.arguments), tools, f"check.{name}.arguments")
    if check.other:
        _refuse_arguments(check.other, check.other.same, tools, "check.other.same")
        ours = [*check.other.same.values(), *check.other.shows]
        _refuse_arguments(check.when, ours, tools, "check.other.same")


def _named(schema: dict[str, Any] | None) -> list[str]:
    """The arguments that a schema names at its top."""
    given = [(schema or {}).get(keyword) for keyword in ("properties", "required")]
    return [name for part in given if isinstance(part, dict | list) for name in part]


def _refuse_arguments(
    called: Called | Other, names: Collection[str], tools: Tools, where: str
) -> None:
    known = [tools.get(tool) for tool in called.tools]
    arguments = None if None in known else frozenset().union(*filter(None, known))
    for name in names:
        if arguments is not None and name not in arguments:
            raise CheckError(f"{', '.join(called.tools)} has no argument “{name}”.", where)


def tools_of(offered: Iterable[Any], called: Iterable[str]) -> Tools:
    """The tools of runs, from the lists that they were offered and the names that they called."""
    known: dict[str, frozenset[str] | None] = dict.fromkeys(called)
    for name, function in (item for tools in offered for item in functions_of(tools)):
        schema = function.get("parameters")
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if isinstance(properties, dict):
            known[name] = (known.get(name) or frozenset()) | properties.keys()
        else:
            known.setdefault(name, None)
    return known


@dataclass(frozen=True, slots=True)
class _Schemas:
    """The conditions of a check, ready to check values."""

    arguments: JsonSchema | None
    others: JsonSchema | None
    reply: JsonSchema | None


def _text(check: Check) -> str:
    return json.dumps(plain(check), sort_keys=True, ensure_ascii=False)


@lru_cache(maxsize=512)
def _ready(text: str) -> tuple[Check, _Schemas]:
    """Raises CheckError."""
    check = convert(json.loads(text), Check)
    other = check.other
    return check, _Schemas(
        _schema(check.when.arguments, "check.when.arguments"),
        _schema(other.arguments if other else None, "check.other.arguments"),
        _schema(other.reply if other else None, "check.other.reply"),
    )


def _endless(schema: Any) -> str:
    """The keyword of ENDLESS in a schema, if any. An argument may be called like one."""
    if isinstance(schema, list):
        return next(filter(None, map(_endless, schema)), "")
    if not isinstance(schema, dict):
        return ""
    if found := next((keyword for keyword in ENDLESS if keyword in schema), ""):
        return found
    inner = [
        value.values() if keyword in NAMED and isinstance(value, dict) else [value]
        for keyword, value in schema.items()
        if keyword not in VALUES
    ]
    return next(filter(None, map(_endless, chain.from_iterable(inner))), "")


def _schema(given: dict[str, Any] | None, where: str) -> JsonSchema | None:
    if given is None:
        return None
    text = json.dumps(given, ensure_ascii=False)
    if len(text) > LONGEST_SCHEMA:
        raise CheckError(f"“{where}” has more than {LONGEST_SCHEMA:,} characters.", where)
    if found := _endless(given):
        raise CheckError(f"“{where}” has “{found}”, which is not allowed in a check.", where)
    try:
        return JsonSchema(given, where)
    except SpecError as error:
        raise CheckError(str(error), where) from error


@dataclass(frozen=True, slots=True)
class Violation:
    """The call that breaks a rule, and how."""

    call: Call
    text: str


def violations(check: dict[str, Any], run: Run, budget: Budget | None = None) -> list[Violation]:
    """The calls of a run that break a check. Raises CheckError if that cannot be told."""
    checker = _Checker(*_ready(json.dumps(check, sort_keys=True, ensure_ascii=False)), run, budget)
    try:
        return list(checker.violations())
    except TooMuch as error:
        raise CheckError(str(error)) from error


class _Checker:
    def __init__(self, check: Check, schemas: _Schemas, run: Run, budget: Budget | None) -> None:
        self._check, self._schemas, self._run = check, schemas, run
        self._budget, self._compared = budget or Budget(), 0

    def violations(self) -> Iterator[Violation]:
        when = self._check.when
        for call in self._run.calls:
            if call.error or call.args is None or not _is_of(call, when.tools):
                continue
            if self._fits(self._schemas.arguments, call.args):
                text = getattr(self, f"_{self._check.must}")(call)
                if text is not None:
                    yield Violation(call, f"{call.tool} {text}")

    def _never(self, call: Call) -> str:
        return "was called" + (f" with {cut(call.raw)}." if self._schemas.arguments else ".")

    def _be_alone(self, call: Call) -> str | None:
        others = sum(other.index == call.index for other in self._run.calls) - 1
        if others:
            return "was called together with other calls."
        return "was called beside words." if self._run.words(call.index).strip() else None

    def _ask_first(self, call: Call) -> str | None:
        """Only that nobody has answered the agent is certain; whether the answer was a yes is not
        told by structure.
        """
        last = self._run.user_before(call.index)
        if last is None or any(index < last for index, _ in self._run.answers):
            return None
        return "was called before a person had answered a message of the agent."

    def _only_after(self, call: Call) -> str | None:
        before = self._others(call, later=False)
        if before is None:
            return None
        if not before:
            return f"was called without {self._named()} before."
        reply = self._run.record(before[-1])
        if self._schemas.reply is None or reply is None or self._fits(self._schemas.reply, reply):
            return None
        return f"was called although {before[-1].tool} had answered {cut(before[-1].reply or '')}"

    def _never_after(self, call: Call) -> str | None:
        before = self._others(call, later=False)
        if not before:
            return None
        if self._schemas.reply is None:
            return f"was called after {before[-1].tool}."
        reply = self._run.record(before[-1])
        if reply is None or not self._fits(self._schemas.reply, reply):
            return None
        return f"was called after {before[-1].tool} had answered {cut(before[-1].reply or '')}"

    def _be_followed_by(self, call: Call) -> str | None:
        after = self._others(call, later=True)
        return None if after or after is None else f"was not followed by {self._named()}."

    def _named(self) -> str:
        other = self._check.other
        assert other is not None
        about = ", ".join([*other.same.values(), *other.shows])
        return " or ".join(other.tools) + (f" about the same {about}" if about else "")

    def _others(self, call: Call, *, later: bool) -> list[Call] | None:
        """The other calls that worked; None if the first call has no value to compare."""
        other = self._check.other
        assert other is not None
        args = call.args or {}
        ours = [(theirs, args.get(mine)) for theirs, mine in other.same.items()]
        shown = [args.get(name) for name in other.shows]
        if any(value is None for _, value in ours) or None in shown:
            return None
        found = []
        for each in self._run.calls:
            self._compared += 1
            if self._compared > MOST_COMPARED:
                raise CheckError("The run has too many calls to compare.")
            in_time = each.index > call.index if later else _answered_before(each, call)
            worked = each.worked or (later and not each.error)
            if in_time and worked and _is_of(each, other.tools) and self._meant(each, ours, shown):
                found.append(each)
        return found

    def _meant(self, each: Call, ours: list[tuple[str, Any]], shown: list[Any]) -> bool:
        args = each.args or {}
        return (
            all(name in args and same_value(args[name], value) for name, value in ours)
            and all(_as_text(value) in (each.reply or "") for value in shown)
            and self._fits(self._schemas.others, args)
        )

    def _fits(self, schema: JsonSchema | None, value: Any) -> bool:
        return schema is None or not schema.problems(value, 1, self._budget)


def _is_of(call: Call, tools: Sequence[str]) -> bool:
    return call.tool in tools or (ANY_TOOL in tools and bool(call.tool))


def _answered_before(each: Call, call: Call) -> bool:
    return each.reply_index is not None and each.reply_index < call.index


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def confirmed_rule_broken(run: Run) -> Iterator[Finding]:
    """The first call that breaks a rule which a person has confirmed, of each. A check that cannot
    be made finds nothing; the page of the rules says why.
    """
    budget, found = Budget(), []
    for rule in run.rules:
        try:
            broken = violations(rule.check, run, budget) if rule.check else []
        except CheckError as error:
            log.info("Rule %d was not checked: %s", rule.id, error)
            continue
        found += [(item.call, f"{item.text} Rule: “{cut(rule.sentence)}”") for item in broken[:1]]
    for call, text in sorted(found, key=lambda item: item[0].index):
        yield Finding("policy_violation", call.index, call.index, text, cut(call.raw))


# In words


def in_words(check: dict[str, Any]) -> str:
    """A check as a sentence."""
    given = convert(check, Check)
    first = _call_in_words(given.when.tools, given.when.arguments)
    sentence = f"{first} {MUST[given.must]}"
    if other := given.other:
        sentence += f" {_call_in_words(other.tools, other.arguments)}"
        about = [
            f"the same {theirs}" if theirs == mine else f"{theirs} the same as {mine}"
            for theirs, mine in other.same.items()
        ]
        sentence += f" of {' and '.join(about)}" if about else ""
        sentence += f", whose reply contains the {' and '.join(other.shows)}" if other.shows else ""
        if other.reply is not None:
            sentence += f", whose last reply has {_schema_in_words(other.reply)}"
    return f"{sentence}."


def _call_in_words(tools: Sequence[str], arguments: dict[str, Any] | None) -> str:
    named = " or ".join("a call of any tool" if tool == ANY_TOOL else tool for tool in tools)
    return f"{named} with {_schema_in_words(arguments)}" if arguments else named


_BOUNDS = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
    "minItems": "of a length of at least",
    "maxItems": "of a length of at most",
}
_SILENT = frozenset(("type", "required", "description", "title"))


def _schema_in_words(schema: dict[str, Any]) -> str:
    """“status “pending””; what has no words here is shown as JSON."""
    properties = schema.get("properties", {})
    only = set(schema) <= _SILENT | {"properties"} and isinstance(properties, dict)
    parts = [_value_in_words(name, inner) for name, inner in properties.items()] if only else [None]
    required = schema.get("required", ())
    parts += [str(name) for name in required if name not in properties] if only else []
    if None in parts or not parts:
        return json.dumps(schema, ensure_ascii=False)
    return " and ".join(part for part in parts if part)


def _value_in_words(name: str, schema: Any) -> str | None:
    if not isinstance(schema, dict):
        return None
    said = {keyword: value for keyword, value in schema.items() if keyword not in _SILENT}
    if not said:
        return name
    if set(said) == {"const"}:
        return f"{name} {_shown(said['const'])}"
    if set(said) == {"enum"} and isinstance(said["enum"], list):
        return f"{name} {' or '.join(map(_shown, said['enum']))}"
    if set(said) == {"not"} and isinstance(said["not"], dict):
        inner = _value_in_words(name, said["not"])
        return inner and f"{name} not {inner.removeprefix(name).strip()}"
    if set(said) <= _BOUNDS.keys():
        bounds = [f"{_BOUNDS[keyword]} {_shown(value)}" for keyword, value in said.items()]
        return f"{name} {' and '.join(bounds)}"
    if set(said) == {"properties"}:
        return f"{name} with {_schema_in_words(schema)}"
    return None


def _shown(value: Any) -> str:
    return f"“{value}”" if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
