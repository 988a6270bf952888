"""What a deletion would delete, counted, and what it would leave."""

from __future__ import annotations

from collections import Counter

from django.db.models import QuerySet
from django.utils import timezone
from msgspec import Struct

from apps.core.models import Project
from apps.trajectories import copies
from apps.trajectories.erasure.wanted import SHORTEST, Wanted, in_sessions_of, matching, of_others
from apps.trajectories.models import Feedback, MediumUse, Score, Step, Trajectory

COUNTED = 20_000  # runs of which steps, scores and sessions are counted


class Preview(Struct):
    """Counts by kind, sentences about what stays, and model versions that learned from it."""

    runs: int
    counts: dict[str, int]
    notes: list[str]
    learned: list[str]


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
    return Preview(runs, dict(sorted(counts.items())), notes, learned)


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
            "Runs that contain the texts are found by reading every run: the job does that, and"
            " they are not in the count."
        )
    if wanted.is_person:
        notes.append(
            "Elsewhere (comments, feedback, saved views, samples, logs …) the ids and texts are"
            " replaced by “[deleted]”; where a text is an address or a key, it is reported."
        )
    if any(len(name) < SHORTEST or name.isdecimal() for name in wanted.users):
        notes.append(
            "Ids that are short or only digits are not looked for outside of the user field: they"
            " occur in other texts, too."
        )
    return notes
