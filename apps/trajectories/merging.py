"""What people say of runs, kept apart from what agents send: merged into a run whenever either of
them comes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from apps.core.locks import ProjectLock, acquire_in
from apps.core.models import Project
from apps.core.pipelined import send
from apps.core.postgres import array
from apps.trajectories import schema
from apps.trajectories.models import Feedback

COLUMNS = {
    "status": "outcome_status",
    "reward": "outcome_reward",
    "label": "outcome_label",
    "reason": "outcome_reason",
}


def ask(project: Project, names: Collection[str]) -> Callable[[], set[str]]:
    """The runs of these names of which something was said before they came, known once the trip to
    the database is over. What is said from now on waits until this transaction ends.

    Without the lock, feedback that looks for its run while the run looks for its feedback would be
    merged by neither.
    """
    hold_back(project)
    rows = send(
        "SELECT DISTINCT external_id FROM trajectories_feedback WHERE project_id = $1 AND"
        " external_id = ANY($2::text[])",
        [str(project.pk), array(names)],
    )
    return lambda: {name for (name,) in rows.rows()}


def hold_back(project: Project) -> None:
    """What is said from now on waits until this transaction ends."""
    send(
        "SELECT pg_advisory_xact_lock_shared($1::int, $2::int)",
        [str(int(ProjectLock.FEEDBACK)), str(project.pk)],
    )


def wait_for_arrivals(project: Project) -> None:
    """Returns when every run that is being stored now can be seen; the next ones wait until this
    transaction ends.
    """
    acquire_in(project.pk, ProjectLock.FEEDBACK)


def merge(columns: Mapping[str, Any], said: Iterable[Feedback]) -> dict[str, Any]:
    """The columns of outcome and tags as people have changed them, in the order they spoke."""
    merged = {name: columns[name] for name in COLUMNS.values()}
    tags = dict.fromkeys(columns["tags"])
    for item in said:
        merged |= {COLUMNS[name]: value for name, value in item.outcome.items()}
        for tag, on in item.tags.items():
            if on:
                tags[tag] = None
            else:
                tags.pop(tag, None)
    return merged | {"tags": list(tags)}


def digest_of(sent: str, said: Iterable[Feedback]) -> str:
    """A digest of all that is known of a run, from that of what was sent."""
    words = [[item.outcome, item.tags, item.interventions] for item in said]
    return schema.content_digest({"sent": sent, "said": words}) if words else sent


def from_schema(news: schema.Feedback) -> Feedback:
    """The row of what the API was told, without project and run. Its key is the client's id, or a
    digest of the content.
    """
    outcome = {}
    if news.outcome is not None:
        outcome = {
            name: value for name in COLUMNS if (value := getattr(news.outcome, name)) is not UNSET
        }
        if news.outcome.success is not UNSET:
            outcome["status"] = schema.status_of(news.outcome.success, news.outcome.status)
    if news.score is not None:
        outcome["reward"] = news.score
    key = (
        f"id:{news.id}"
        if news.id
        else f"content:{schema.content_digest(msgspec.to_builtins(news))}"
    )
    return Feedback(key=key, outcome=outcome, interventions=_interventions(news))


def _interventions(news: schema.Feedback) -> list[dict]:
    """A correction is an intervention of kind edit, a takeover one of its own; a comment alone
    praises or complains.
    """
    base: dict[str, Any] = {"by": news.by, "note": news.comment}
    if news.message_index is not None:
        base["message_index"] = news.message_index
    found = []
    if news.takeover:
        found.append({"kind": "takeover", **base})
    if news.corrected is not None:
        found.append({"kind": "edit", **base, "after": news.corrected})
    if news.comment and not found:
        bad = news.score is not None and news.score <= 0
        found.append({"kind": "reject" if bad else "approve", **base})
    return found
