"""Creates the light record that clustering reads from a trajectory and its diagnosis."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from apps.failures.clusters.cases import CAUSE_CHARS, Case, text_of_error
from apps.failures.judge.precedence import NO_RULES
from apps.failures.judge.precedence import RULE as JUDGE
from apps.failures.rules.checks import failed_without_a_finish
from apps.failures.rules.expected import ground_truth_of
from apps.failures.rules.reading import Call, Run, read
from workers.lib.messages import schemas_of

NO_FACTS = NO_RULES | {failed_without_a_finish.__name__}
CORRECTED = frozenset(("edit", "takeover"))
NAME = re.compile(r"[^\W\d][\w.-]*\w")


def case_of(
    trajectory: dict,
    *,
    id: str,
    mode: str,
    blamed_message: int | None,
    evidence: Sequence[Mapping[str, Any]],
    started_at: datetime | None = None,
) -> Case:
    """`trajectory` as `classify` takes it; `evidence` is [{rule, text, …}], what decided first."""
    run = read(trajectory)
    cause = _cause(run, evidence)
    fact = _fact(evidence, hints=not cause)
    steps = {blamed_message, fact.get("message_index")} - {None}
    call = _blamed(run, steps)
    text = str(fact.get("text", ""))
    named = tuple(_named(run, trajectory.get("tools"), call, text))
    if call and not (cause or named or call.error or call.tool in text):
        call = None  # the fact is about the run, and its last call is a coincidence
    return Case(
        id=id,
        mode=mode,
        cause=cause,
        fact=str(fact.get("rule", "")),
        named=named,
        tool=call.tool if call else "",
        arguments=(call.args if call else None) or {},
        error=text_of_error(call.reply or "") if call and call.error else "",
        corrected=any(item.get("kind") in CORRECTED for item in run.interventions),
        started_at=started_at,
    )


def headline_of(evidence: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first item; of an estimate, whose first item is only a probability, the strongest reason.
    Empty if there is none.
    """
    if len(evidence) > 1 and evidence[0].get("rule") == "estimate":
        return evidence[1]
    return evidence[0] if evidence else {}


def _cause(run: Run, evidence: Sequence[Mapping[str, Any]]) -> str:
    """Why it failed, in a sentence of the judge, or else of whoever sent the outcome. No rule's:
    those say the same of all that they find.
    """
    said = (str(item.get("text") or "") for item in evidence if item.get("rule") == JUDGE)
    return (next(filter(None, said), "") or run.reason)[:CAUSE_CHARS].strip()


def _fact(evidence: Sequence[Mapping[str, Any]], *, hints: bool) -> Mapping[str, Any]:
    """The first finding of a rule that saw something in the run; of `hints`, only where nothing
    better is known.
    """
    seen = (item for item in evidence if item.get("rule") not in NO_FACTS)
    return next((item for item in seen if hints or item.get("confidence") != "hint"), {})


def _named(run: Run, tools: Any, call: Call | None, text: str) -> Iterator[str]:
    """The tools and arguments that a finding mentions, besides the blamed call's own tool. The rest
    of the sentence is the rule's.
    """
    known = set(run.offer.names) | set(_keys(call.args if call else None))
    known |= set(_properties(schemas_of(tools).get(call.tool) if call else None))
    if truth := ground_truth_of(run):
        known |= {wanted.tool for wanted in truth.wanted}
    known.discard(call.tool if call else "")
    yield from sorted({word for word in NAME.findall(text) if word in known})


def _keys(value: Any) -> Iterator[str]:
    """The names of arguments, at any depth."""
    if isinstance(value, dict):
        yield from map(str, value)
    for inner in _inside(value):
        yield from _keys(inner)


def _properties(schema: Any) -> Iterator[str]:
    """The names of properties in a JSON Schema, at any depth."""
    if isinstance(schema, dict) and isinstance(schema.get("properties"), dict):
        yield from map(str, schema["properties"])
    for inner in _inside(schema):
        yield from _properties(inner)


def _inside(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _blamed(run: Run, steps: Collection[Any]) -> Call | None:
    """The last call that is made or answered in one of these messages."""
    found = (call for call in reversed(run.calls) if {call.index, call.reply_index} & set(steps))
    return next(found, None)
