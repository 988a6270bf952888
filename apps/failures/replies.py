"""The forms of a project's tool replies: what classification knows of them, and lists of them."""

from __future__ import annotations

from django.db.models import Case, IntegerField, QuerySet, Value, When

from apps.core.models import Project
from apps.failures.models import ReplyForm
from apps.failures.rules.reply_forms import NOTHING, Counted, Form, Forms

State = ReplyForm.State
COUNTS = ("good", "broken", "runs", "final")  # of `Counted`
ORDER = (State.PROPOSED, State.SEEN, State.CONFIRMED, State.DISMISSED)


def listed_forms(project: Project) -> QuerySet[ReplyForm]:
    """First those that need review; then those that answer broken calls, and rare ones."""
    ranks = [When(state=state, then=Value(rank)) for rank, state in enumerate(ORDER)]
    rank = Case(*ranks, output_field=IntegerField())
    rows = project.reply_forms.exclude(kind=NOTHING).select_related("trajectory", "decided_by")
    return rows.order_by(rank, "-broken", "good", "tool", "pk")


def forms_of(project: Project) -> Forms:
    """What people decided, and what recent runs show."""
    rows = list(project.reply_forms.all())
    counted = [
        Counted(row.form, **{name: getattr(row, name) for name in COUNTS}, names=set(row.names))
        for row in rows
        if row.good or row.broken
    ]
    return Forms(counted, _in(rows, State.CONFIRMED), _in(rows, State.DISMISSED))


def undecided(project: Project) -> int:
    """How many forms say that a call failed, according to the judge alone."""
    return project.reply_forms.filter(state=State.PROPOSED).count()


def _in(rows: list[ReplyForm], state: str) -> list[Form]:
    return [row.form for row in rows if row.state == state]
