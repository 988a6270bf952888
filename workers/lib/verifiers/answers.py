"""Answers in text: valid JSON, an equal text, an equal number, a pattern. Light.

The right answers are in the spec's `values`, or else in the task's `expected.answer`: a single one
or a list.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal, DecimalException
from typing import Annotated, Any, Literal

from msgspec import Meta

from workers.lib.checks import plain
from workers.lib.json_schema import JsonSchema, TooMuch
from workers.lib.maths.units import ratio, unit_of
from workers.lib.messages import TooDeep, read_json, same_json, unfenced
from workers.lib.patterns import LONGEST, PatternError, as_bytes, pattern_of
from workers.lib.typed import NotNegative, Number, Share
from workers.lib.verifiers.base import (
    Guarded,
    Options,
    SpecError,
    Unavailable,
    Unscorable,
    options,
    right_or_wrong,
)
from workers.lib.verifiers.matching import TEXTS, contradicts
from workers.lib.verifiers.numbers import decimal_of, first_number, last_number
from workers.lib.verifiers.quantities import Amount, amount_of, same_currency, same_quantity
from workers.lib.verifiers.types import Clients, Rollout, Score

_END_MARK = re.compile(
    r"<\|[\w▁|"
    r" -]{1,40}\|?>|</s>|<｜[^｜>]{1,40}｜>|<(?:eos|end_of_turn|eot_id|endoftext)>|\[/?INST\]"
)
_OPEN, _CLOSE = re.compile("<answer>", re.IGNORECASE), re.compile("</answer>", re.IGNORECASE)


class AnswerOptions(Options):
    """Where the answer is in the output, and the right answers if the task does not have them."""

    values: Any = None
    answer_in: Literal["text", "last_line", "boxed", "hashes", "tags", "last_number"] = "text"
    pattern: str | None = None


class ExactOptions(AnswerOptions):
    text: Literal["loose", "spaces", "exact"] = "spaces"
    plain: bool = True
    by_value: bool = False


class NumberOptions(AnswerOptions):
    tolerance: NotNegative = 0
    relative: Share = 0
    units: dict[str, Number] = {}
    unit_required: bool = False


class PatternOptions(Options):
    pattern: str | None = None
    full: bool = False
    absent: bool = False
    case: bool = True


class JsonOptions(Options):
    schema: Any = None
    fenced: bool = True
    partial: Annotated[float, Meta(ge=-1, le=1)] = 0.0


def searched(text: str, pattern: Any) -> bytes:
    """Raises Unscorable if the pattern would take too long with the text."""
    try:
        return as_bytes(text, pattern)
    except PatternError as error:
        raise Unscorable(str(error)) from error


def find_answer(text: str, where: str, pattern: Any = None) -> str:
    """The part of an output that is the answer; "" if there is none. For a pattern, its first
    group, or the whole match.
    """
    text = text[:LONGEST]
    if pattern is not None:
        found = pattern.search(searched(text, pattern))
        return _bytes(found.group(min(1, pattern.groups))) if found else ""
    if where == "boxed":
        return boxed(text)
    if where == "hashes":
        return after_hashes(text)
    if where == "tags":
        return tagged(text)
    if where == "last_number":
        return last_number(text)
    if where == "last_line":
        return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
    return text.strip()


def _bytes(found: bytes | None) -> str:
    return (found or b"").decode("utf-8", "replace").strip()


def after_hashes(text: str) -> str:
    """The rest of the line after the first ####, or the next line if it is empty; "" if there is
    none. A model that runs on writes more: an end mark, a sentence, the next question with its own
    ####.
    """
    lines = text.partition("####")[2].splitlines()
    answer = next((line for line in lines if line.strip()), "")
    return _END_MARK.split(answer, maxsplit=1)[0].strip()


def boxed(text: str) -> str:
    """The content of the last \\boxed{…}, with balanced braces; "" if none is closed."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return ""
    depth = 0
    for at in range(start + 6, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[start + 7 : at].strip()
    return ""


def tagged(text: str) -> str:
    """The content of the last <answer>…</answer>; "" if none is closed. Linear in the text."""
    closes = [match.start() for match in _CLOSE.finditer(text)]
    opens = [match.end() for match in _OPEN.finditer(text, 0, closes[-1])] if closes else []
    if not opens:
        return ""
    return text[opens[-1] : next(at for at in closes if at >= opens[-1])].strip()


class Answer(Guarded):
    """An answer that is extracted from the output and compared with the right ones."""

    def __init__(self, chosen: Any, path: str) -> None:
        self.values = chosen.values
        self.where = chosen.answer_in
        self.pattern = pattern_of(chosen.pattern, f"{path}.pattern")

    def wanted(self, rollout: Rollout) -> list:
        values = self.values if self.values is not None else rollout.expected.get("answer")
        if values is None or values == []:
            raise Unscorable(
                "The task expects no answer: its “expected” needs “answer”, or the verifier"
                " “values”."
            )
        return values if isinstance(values, list) else [values]

    def judge(self, rollout: Rollout) -> Score:
        wanted, found = self.wanted(rollout), find_answer(rollout.answer, self.where, self.pattern)
        if not found:
            return self.judged(False, ["no answer: none was found in the output"], found)
        details = [
            f"wrong answer: {found[:120]!r}, expected {', '.join(map(repr, wanted[:5]))[:200]}"
        ]
        return self.judged(any(self.same(found, value) for value in wanted), details, found)

    def judged(self, right: bool, details: list[str], found: str) -> Score:
        """An answer that is the whole output has no form that it could lack."""
        whole = self.where == "text" and self.pattern is None
        return right_or_wrong(right, details, valid=None if whole else bool(found))

    def same(self, found: str, wanted: Any) -> bool:
        raise NotImplementedError


class Exact(Answer):
    """An equal text (by default ignoring case, spaces, quotes and full stop), or an equal JSON
    value; with `by_value`, also the same amount or day.
    """

    quick = True

    def __init__(self, chosen: Any, path: str) -> None:
        super().__init__(chosen, path)
        self.standard, self.plain, self.by_value = TEXTS[chosen.text], chosen.plain, chosen.by_value

    def same(self, found: str, wanted: Any) -> bool:
        if not isinstance(wanted, str):
            try:
                return same_json(read_json(unfenced(found)), wanted)
            except ValueError:
                return False
        given, right = (plain(found), plain(wanted)) if self.plain else (found, wanted)
        if self.by_value and (same := same_quantity(given, right)) is not None:
            return same
        return self.standard(given) == self.standard(right) and not contradicts(given, right)


# Numbers


@dataclass(frozen=True, slots=True)
class Quantity:
    """A right answer, and factors to its unit."""

    amount: Amount
    units: dict[str, Decimal]


class NumberAnswer(Answer):
    """An equal number within a tolerance. `units`: factors to the unit of the right answer, such as
    {"km": 1, "m": 0.001}; units that measure the same are converted.
    """

    quick = True

    def __init__(self, chosen: Any, path: str) -> None:
        super().__init__(chosen, path)
        self.absolute, self.relative = _decimal(chosen.tolerance), _decimal(chosen.relative)
        self.units = {name: _decimal(factor) for name, factor in chosen.units.items()}
        folded = Counter(
            name.casefold() for name in self.units
        )  # mW and MW are different units: then case matters
        self.folded = {
            key: factor
            for name, factor in self.units.items()
            if folded[key := name.casefold()] == 1
        }
        self.needs_unit = chosen.unit_required

    def wanted(self, rollout: Rollout) -> list[Quantity]:
        found = [self.quantity(plain(str(value))) for value in super().wanted(rollout)]
        if None in found:
            raise Unscorable("The expected answer is not a number.")
        return [value for value in found if value is not None]

    def quantity(self, text: str) -> Quantity | None:
        """An expected answer, and the units of answers to it: without `units` its own."""
        if amount := self.read(text, self.units, needs_unit=False):
            return Quantity(amount, self.units)
        before, number, after = first_number(text) or ("", "", "")
        value, unit = decimal_of(number), f"{before} {after}".strip()
        if value is None or self.units or unit_of(unit) is None:
            return None
        return Quantity(Amount(value), {unit: Decimal(1)})

    def same(self, found: str, wanted: Quantity) -> bool:
        given, right = self.read(plain(found), wanted.units, self.needs_unit), wanted.amount
        if given is None or not same_currency(given, right):
            return False
        try:
            return abs(given.value - right.value) <= max(
                self.absolute, self.relative * abs(right.value)
            )
        except DecimalException:
            return False

    def read(self, text: str, units: dict[str, Decimal], needs_unit: bool) -> Amount | None:
        """The number in the unit of the right answer; None if it is not a number, or if its unit
        measures something else (without `units`: not a currency or percent).
        """
        value = decimal_of(text)
        if value is not None:
            return None if needs_unit else Amount(value)
        if units:
            value = self.in_units(text, units)
            return None if value is None else Amount(value)
        found = amount_of(text)
        return None if found is None or (needs_unit and not found.currency) else found

    def in_units(self, text: str, units: dict[str, Decimal]) -> Decimal | None:
        parts = first_number(text)
        if parts is None:
            return None
        before, number, after = parts
        unit, value = f"{before.strip()} {after.strip()}".strip(), decimal_of(number)
        factor = units.get(unit, self.folded.get(unit.casefold()))
        if value is None or factor is not None:
            return None if value is None else value * factor
        for known, factor in units.items():
            if size := ratio(unit, known):
                return value * size.numerator / size.denominator * factor
        return None


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))


# Patterns and JSON


class Pattern(Guarded):
    """The output matches an RE2 pattern or, with `absent`, does not. The pattern is the task's, or
    else the spec's.
    """

    quick = True

    def __init__(self, chosen: Any, path: str) -> None:
        self.full, self.absent, self.case = chosen.full, chosen.absent, chosen.case
        self.pattern = pattern_of(chosen.pattern, f"{path}.pattern", case=chosen.case)

    def judge(self, rollout: Rollout) -> Score:
        pattern = self.pattern or self.of_task(rollout)
        text = searched(rollout.output, pattern)
        found = (pattern.fullmatch(text) if self.full else pattern.search(text)) is not None
        details = ["the pattern matches" if found else "the pattern does not match"]
        return right_or_wrong(found != self.absent, details)

    def of_task(self, rollout: Rollout) -> Any:
        given = rollout.expected.get("pattern")
        if not isinstance(given, str):
            raise Unscorable(
                "There is no pattern: neither the verifier nor the task's “expected” has “pattern”."
            )
        try:
            return pattern_of(given, "expected.pattern", case=self.case)
        except SpecError as error:
            raise Unscorable(str(error)) from error


class Json(Guarded):
    """JSON that is valid for the schema: 1; another shape: `partial`; not JSON: 0. The schema is
    the spec's, or else the task's.
    """

    def __init__(self, chosen: Any, path: str) -> None:
        self.fenced, self.partial = chosen.fenced, chosen.partial
        self.schema = None if chosen.schema is None else JsonSchema(chosen.schema, f"{path}.schema")

    def judge(self, rollout: Rollout) -> Score:
        text = unfenced(rollout.answer) if self.fenced else rollout.answer
        try:
            value = read_json(text)
        except ValueError as error:
            said = str(error) if isinstance(error, TooDeep) else "broken JSON"
            return Score(
                reward=0.0, components={"valid": 0.0, "schema": 0.0}, valid=False, details=[said]
            )
        schema = self.schema or self.of_task(rollout)
        problems = [] if schema is None else fits(schema, value)
        right = not problems
        return Score(
            reward=1.0 if right else self.partial,
            components={"valid": 1.0, "schema": float(right)},
            success=right,
            valid=True,
            details=problems,
        )

    def of_task(self, rollout: Rollout) -> JsonSchema | None:
        schema = rollout.expected.get("schema")
        try:
            return None if schema is None else JsonSchema(schema, "expected.schema")
        except SpecError as error:
            raise Unscorable(str(error)) from error


def fits(schema: JsonSchema, value: Any) -> list[str]:
    """The first problems, each with its location. Raises Unscorable if the value cannot be checked
    against the schema, and Unavailable if that is the schema's fault, because not even the smallest
    values can be.
    """
    try:
        return [f"{json_path(path)[:100]}: {said[:200]}" for path, said in schema.problems(value)]
    except TooMuch as error:
        if value in (None, {}):
            raise Unavailable(str(error)) from error
        for smallest in (None, {}):
            fits(schema, smallest)
        raise Unscorable(str(error)) from error
    except SpecError as error:
        raise Unavailable(str(error)) from error


def json_path(path: tuple[str | int, ...]) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)


def exact_from_spec(spec: dict, clients: Clients, path: str) -> Exact:
    return Exact(options(spec, path, ExactOptions), path)


def number_from_spec(spec: dict, clients: Clients, path: str) -> NumberAnswer:
    return NumberAnswer(options(spec, path, NumberOptions), path)


def regex_from_spec(spec: dict, clients: Clients, path: str) -> Pattern:
    return Pattern(options(spec, path, PatternOptions), path)


def json_from_spec(spec: dict, clients: Clients, path: str) -> Json:
    return Json(options(spec, path, JsonOptions), path)
