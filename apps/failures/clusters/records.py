"""Creates the light record that clustering reads from a trajectory and its diagnosis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from apps.failures.clusters.cases import REQUEST_CHARS, TROUBLE_CHARS, Case
from apps.failures.rules.reading import Call, Run, read


def case_of(
    trajectory: dict,
    *,
    id: str,
    mode: str,
    blamed_message: int | None,
    evidence: Sequence[Mapping[str, Any]],
    version: str = "",
    started_at: datetime | None = None,
) -> Case:
    """`trajectory` as `classify` takes it; of `evidence`, [{rule, text, …}], what `headline_of`
    picks counts, because it decided.
    """
    run = read(trajectory)
    call = _blamed(run, blamed_message)
    deciding = headline_of(evidence)
    return Case(
        id=id,
        mode=mode,
        request=_request(run, blamed_message),
        tool=call.tool if call else "",
        arguments=(call.args if call else None) or {},
        rule=str(deciding.get("rule", "")),
        evidence=str(deciding.get("text", ""))[:TROUBLE_CHARS],
        error=(call.reply or "")[:TROUBLE_CHARS] if call and call.error else "",
        version=version,
        started_at=started_at,
    )


def headline_of(evidence: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first item; of an estimate, whose first item is only a probability, the strongest reason.
    Empty if there is none.
    """
    if len(evidence) > 1 and evidence[0].get("rule") == "estimate":
        return evidence[1]
    return evidence[0] if evidence else {}


def _blamed(run: Run, blamed_message: int | None) -> Call | None:
    """The last call up to the blamed step that is at fault: one in the step itself, or else one
    that failed, or else any.
    """
    before = [call for call in run.calls if blamed_message is None or call.index <= blamed_message]
    inside = [call for call in before if call.index == blamed_message]
    failed = [call for call in before if call.error]
    return next((calls[-1] for calls in (inside, failed, before) if calls), None)


def _request(run: Run, blamed_message: int | None) -> str:
    """What the user said up to the blamed step, without short answers such as “Yes”."""
    said = [text for index, text in run.users if blamed_message is None or index <= blamed_message]
    return "\n".join(text for text in said if len(text.split()) > 3)[:REQUEST_CHARS]
