"""What a deletion would delete, counted, and what it would leave."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from uuid import UUID

from django.db.models import QuerySet, Sum
from django.utils import timezone
from msgspec import Struct

from apps.core.models import Project
from apps.trajectories import copies, filters
from apps.trajectories.erasure.wanted import (
    Wanted,
    excerpts,
    in_sessions_of,
    is_short,
    matching,
    of_others,
)
from apps.trajectories.models import (
    Feedback,
    HourlyCount,
    MediumUse,
    Score,
    Step,
    Trajectory,
    with_content,
)

COUNTED = 20_000  # runs of which steps, scores and sessions are counted
READ_S, READ_AT_ONCE = 2.0, 200
SEARCHED = 500  # runs that the search finds by a text
EXAMPLES, AROUND = 20, 60


class Mention(Struct):
    """A run that contains a text, who its user is, and what stands around the text."""

    run: str
    user: str
    excerpt: str


class ByText(Struct):
    """The runs that contain one of the texts and are not of the user ids, with examples. `read`
    says of how many that is; where it is fewer than `total`, the newest and those that the search
    finds were read.
    """

    runs: int
    read: int
    total: int
    examples: list[Mention]


class Preview(Struct):
    """Counts by kind, sentences about what stays, and model versions that learned from it.
    `by_text` are not among `runs`.
    """

    runs: int
    counts: dict[str, int]
    notes: list[str]
    learned: list[str]
    by_text: ByText | None = None


def preview(project: Project, wanted: Wanted) -> Preview:
    """Raises QueryError."""
    now = timezone.now()
    rows = matching(project, wanted, now).order_by()
    runs, notes = rows.count(), []
    counts: Counter[str] = Counter()
    if runs <= COUNTED:
        counts.update(_beside(project, rows))
    else:
        notes.append("Their steps, scores and feedback are too many to count here.")
    if wanted.is_person and runs <= COUNTED:
        found = list(rows)
        others = in_sessions_of(project, found, now).count()
        if others:
            counts["runs without a user in the same sessions"] = others
        sessions = sorted({run.session_id for run in found if run.session_id})
        if sessions and (kept := of_others(project, wanted, sessions)):
            notes.append(f"{kept:,} runs of other users in the same sessions stay.")
    made = copies.count(project, rows)
    if wanted.copies:
        counts.update(made)
        if made["tasks"]:
            notes.append(
                "Of erased tasks the hashes stay: what was held out can never be trained on."
                " Evaluation results, rewards and people’s verdicts stay without the texts."
            )
    elif made:
        kept = ", ".join(f"{n:,} {what}" for what, n in sorted(made.items()))
        notes.append(f"Copies stay: {kept}.")
    notes += _of_person(wanted)
    notes.append(
        "The audit log stays: it is append-only and names runs by their ids. So do totals by hour,"
        " and backups until they are rotated out."
    )
    learned = copies.learners(project, rows)
    if learned:
        notes.append("Model versions keep what they learned; the report names them.")
    by_text = _by_text(project, wanted, now) if wanted.texts else None
    return Preview(runs, dict(sorted(counts.items())), notes, learned, by_text)


def _by_text(project: Project, wanted: Wanted, before: datetime) -> ByText:
    """Of all runs, as far as the time allows."""
    until, words = time.monotonic() + READ_S, wanted.words_of_runs
    read: set[UUID] = set()
    found: list[Mention] = []
    for rows in _likely_first(project, wanted, before):
        new = [row for row in rows if row.pk not in read]
        read.update(row.pk for row in new)
        for run in with_content(new):
            if excerpt := next(excerpts(run, words, AROUND), ""):
                found.append(Mention(run.external_id, run.user_id, excerpt))
        if time.monotonic() > until:
            break
    hours = HourlyCount.objects.filter(project=project)
    total = hours.aggregate(n=Sum("trajectories"))["n"] or 0
    is_all = time.monotonic() <= until
    return ByText(
        len(found), len(read), len(read) if is_all else max(total, len(read)), found[:EXAMPLES]
    )


def _likely_first(project: Project, wanted: Wanted, before: datetime) -> Iterator[list[Trajectory]]:
    """Runs that are not of the user ids: those that the search finds, then the newest."""
    rows = project.trajectories.filter(received_at__lte=before).exclude(user_id__in=wanted.users)
    for text in wanted.texts:
        phrase = filters.SearchQuery(f'"{text}"', config="simple", search_type="websearch")
        texts = filters.texts_with(phrase, {})
        if (few := filters.few_of(texts, SEARCHED)) is not None:
            yield list(rows.filter(pk__among=few))
        else:
            newest = texts.order_by("-trajectory_id").values_list("trajectory_id", flat=True)
            yield list(rows.filter(pk__among=list(newest[:SEARCHED])))
    after: UUID | None = None
    while some := list(
        (rows.filter(pk__lt=after) if after else rows).order_by("-pk")[:READ_AT_ONCE]
    ):
        after = some[-1].pk
        yield some


def _beside(project: Project, rows: QuerySet[Trajectory]) -> Counter[str]:
    runs, names = rows.values("pk"), rows.values("external_id")
    return +Counter(
        {
            "steps": Step.objects.filter(project=project, trajectory_id__in=runs).count(),
            "scores": Score.objects.filter(project=project, external_id__in=names).count(),
            "feedback": Feedback.objects.filter(project=project, external_id__in=names).count(),
            "failures": rows.filter(failure__isnull=False).count(),
            "media of runs": MediumUse.objects.filter(trajectory_id__in=runs).count(),
        }
    )


def _of_person(wanted: Wanted) -> list[str]:
    notes = []
    if wanted.texts:
        notes.append(
            "Runs that contain the texts, whoever’s they are, are found by reading every run: the"
            " job does that, and they are not in the count. Give texts of others that they are"
            " part of."
        )
    if wanted.is_person:
        notes.append(
            "Elsewhere (comments, feedback, saved views, samples, logs …) the ids and texts are"
            " replaced by “[deleted]”; where a text is an address or a key, it is reported."
        )
    if any(map(is_short, wanted.users)):
        notes.append(
            "Ids that are short or only digits are not looked for outside of the user field: they"
            " occur in other texts, too."
        )
    return notes
