"""Signals: adding, changing, trying, switching and removing them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple
from uuid import UUID

from django.db import transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone
from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from apps.core import outbox
from apps.core.actions import audit
from apps.core.errors import Rejected
from apps.core.intervals import wilson
from apps.core.models import Project
from apps.core.openapi import LINE, sent
from apps.core.operations import Moment, Page, Rest, choice_of, operation
from apps.core.taken import saved_as
from apps.failures.judge import rubrics
from apps.failures.models import Signal, SignalAnswer
from apps.failures.signals import asking
from apps.trajectories.models import Score

MOST = 50
MOST_TOLD = 10
MOST_NAMED = 3
TASK = "failures.try_signal"
ASKED = ("question", "kind", "choices")
FORM = {"template": "failures/signal_form.html"}


class SignalError(Rejected):
    """The message is a sentence for the page; `field` is the invalid input."""


class NewSignal(Struct, forbid_unknown_fields=True, kw_only=True):
    """A question in plain words that the judge answers about a share of all runs."""

    name: Annotated[
        str,
        Meta(
            title="Name",
            min_length=1,
            max_length=80,
            pattern=LINE,
            description="Of the score: user is frustrated",
        ),
    ]
    question: Annotated[
        str,
        Meta(
            title="Question",
            min_length=1,
            max_length=2_000,
            description="Is the user frustrated with the agent?",
        ),
    ]
    kind: Annotated[
        choice_of(Signal.Kind),  # type: ignore[valid-type]
        Meta(title="Answer"),
    ] = "yes_no"
    choices: Annotated[
        str,
        Meta(
            title="Words",
            max_length=400,
            pattern=LINE,
            description="For one of several words: billing, travel, other",
        ),
    ] = ""
    share: Annotated[
        float,
        Meta(title="Share of runs", gt=0, le=1, description="0.1 is every tenth, at random"),
    ] = 0.1


class SignalOut(NewSignal):
    pk: int = field(name="id")
    version: int
    on_since: Moment | None


@operation("signals_list", rest=Rest("GET", "signals/", "signals"), gives=list[SignalOut])
def listed(*, project: Project) -> QuerySet[Signal]:
    """The signals."""
    return project.signals.all()


@operation("signals_read", rest=Rest("GET", "signals/<int:pk>/", "signal"), gives=SignalOut)
def one(*, signal: Signal) -> Signal:
    """A signal."""
    return signal


@operation(
    "signals_add",
    rest=Rest("POST", "signals/", "signals", 201),
    page=Page("signals/new/", "signal_new", done="Try it before you switch it on.", **FORM),
    gives=SignalOut,
    examples=(
        sent(
            "Is the user frustrated?",
            {"name": "user is frustrated", "question": "Is the user frustrated with the agent?"},
        ),
    ),
    says={"signal.added": "added the signal “{name}”"},
)
@transaction.atomic
def add(*, project: Project, by: Any, given: NewSignal) -> Signal:
    """Adds a signal, which is off.

    Raises SignalError.
    """
    _refuse(given)
    project = Project.objects.select_for_update().get(pk=project.pk)
    if project.signals.count() >= MOST:
        raise SignalError(f"{project} has {MOST} signals, which is the most. Remove one first.")
    signal = _saved(Signal(project=project, created_by=by, **asdict(given)))
    audit("signal.added", project=project, by=by, target=signal, name=signal.name)
    return signal


@operation(
    "signals_edit",
    rest=Rest("PATCH", "signals/<int:pk>/", "signal"),
    page=Page("signals/<int:pk>/edit/", "signal_edit", **FORM),
    gives=SignalOut,
    partial=True,
    says={"signal.edited": "edited the signal “{name}”: version {version}"},
)
@transaction.atomic
def edit(*, signal: Signal, by: Any, given: NewSignal) -> Signal:
    """Changes the fields that are sent. Another question is a new version, which is off until it
    has been tried.

    Raises SignalError.
    """
    _refuse(given)
    row = Signal.objects.select_for_update().get(pk=signal.pk)
    if any(getattr(row, name) != getattr(given, name) for name in ASKED):
        row.version, row.on_since = row.version + 1, None
    for name, value in asdict(given).items():
        setattr(row, name, value)
    _saved(row)
    audit(
        "signal.edited",
        project=row.project,
        by=by,
        target=row,
        name=row.name,
        version=row.version,
    )
    return row


@operation(
    "signals_try",
    rest=Rest("POST", "signals/<int:pk>/try/", "signal_try", 202),
    page=Page("signals/<int:pk>/try/", "signal_try", follows=True),
    gives=SignalOut,
    says={"signal.tried": "tried the signal “{name}”"},
)
def try_out(*, signal: Signal, by: Any) -> None:
    """Asks about up to 20 of the newest runs, drawn at random, within the judge's daily budget.

    Raises SignalError.
    """
    if rubrics.current(signal.project) is None:
        raise SignalError(asking.NO_JUDGE)
    if not asking.to_try(signal):
        raise SignalError("There are no runs to try it on yet.")
    outbox.post(TASK, signal.pk, signal.version, expires_s=600)
    audit("signal.tried", project=signal.project, by=by, target=signal, name=signal.name)


@operation(
    "signals_switch",
    rest=Rest("POST", "signals/<int:pk>/switch/", "signal_switch"),
    page=Page("signals/<int:pk>/switch/", "signal_switch"),
    gives=SignalOut,
    says={"signal.switched": "switched the signal “{name}” [on{?on}][off{?off}]"},
)
@transaction.atomic
def switch(*, signal: Signal, by: Any, on: Annotated[bool, Meta(title="On")] = False) -> None:
    """Switches it on, once it has been tried, or off: from then on a share of the new runs is
    asked about.

    Raises SignalError.
    """
    row = Signal.objects.select_for_update().get(pk=signal.pk)
    if on and (left := left_to_try(row)):
        raise SignalError(_try_first(row, left))
    row.on_since = (row.on_since or timezone.now()) if on else None
    row.save(update_fields=["on_since"])
    audit(
        "signal.switched",
        project=row.project,
        by=by,
        target=row,
        name=row.name,
        on=on,
        off=not on,
    )


@operation(
    "signals_remove",
    rest=Rest("DELETE", "signals/<int:pk>/", "signal"),
    page=Page(
        "signals/<int:pk>/remove/",
        "signal_remove",
        then="failures:signals",
        done="{target} is removed. Its scores stay.",
    ),
    says={"signal.removed": "removed the signal “{name}”"},
)
@transaction.atomic
def remove(*, signal: Signal, by: Any) -> None:
    """Removes a signal and its answers; the scores stay."""
    audit("signal.removed", project=signal.project, by=by, name=signal.name)
    signal.delete()


def left_to_try(signal: Signal) -> int:
    """How many runs still have to be tried before it may be switched on; at least one has to be
    answered. A run that the judge could not answer about in MOST_TRIES tries no longer counts.
    """
    runs = signal.project.trajectories.order_by()[: asking.TRIED].count()
    tried = signal.answers.filter(version=signal.version)
    answered = tried.filter(error="").count()
    given_up = tried.exclude(error__in=["", asking.WAITING]).filter(tries__gte=asking.MOST_TRIES)
    return max(0, (runs or 1) - answered - given_up.count()) or int(not answered)


def blocking(signal: Signal) -> list[SignalAnswer]:
    """The runs that were asked about and got no answer yet, so it cannot be switched on."""
    tried = answers(signal).filter(version=signal.version)
    under_way = Q(error=asking.WAITING, at__gt=timezone.now() - asking.RETRY_AFTER)
    rows = tried.exclude(error="").exclude(under_way)
    if tried.filter(error="").exists():
        rows = rows.filter(tries__lt=asking.MOST_TRIES)
    return list(rows[: asking.TRIED])


def _try_first(signal: Signal, left: int) -> str:
    runs = f"{left} of the runs to try it on {'has' if left == 1 else 'have'} no answer yet"
    named = ", ".join(row.trajectory.external_id for row in blocking(signal)[:MOST_NAMED])
    after = f" (after an error: {named})" if named else ""
    return f"Try it first: {runs}{after}."


@dataclass(frozen=True)
class Agreement:
    """On how many of the runs that people scored, too, they said the same."""

    same: int
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.same, self.n)


def agreement(signal: Signal) -> Agreement | None:
    """Of this version's answers with people's scores of the same name; None if nobody scored. A
    number agrees with the nearest whole one.
    """
    told = signal.answers.filter(version=signal.version, error="").exclude(value="")
    said = dict(told.values_list("trajectory_id", "value"))
    rows = Score.objects.filter(
        project=signal.project,
        name=signal.name,
        kind=signal.kind,
        source=Score.Source.PERSON,
        trajectory_id__in=said,
    )
    pairs = [(said[row.trajectory_id], row.said) for row in rows]
    return Agreement(sum(_alike(*pair) for pair in pairs), len(pairs)) if pairs else None


def said_by_people(signal: Signal, runs: Collection[UUID]) -> dict[UUID, str]:
    """{run: what a person said of it}"""
    rows = Score.objects.filter(
        project=signal.project,
        name=signal.name,
        source=Score.Source.PERSON,
        trajectory_id__in=list(runs),
    )
    return {row.trajectory_id: row.said for row in rows.order_by("created_at")}


class Told(NamedTuple):
    """How many answers of the signal's version say a value, of `n`."""

    value: str
    count: int
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.count, self.n)

    @property
    def share(self) -> float:
        return self.count / self.n


def told(signal: Signal) -> list[Told]:
    """What its version has answered, the most frequent first."""
    answered = signal.answers.filter(version=signal.version, error="").exclude(value="").order_by()
    counts = dict(answered.values_list("value").annotate(n=Count("*")))
    n = sum(counts.values())
    found = [Told(value, count, n) for value, count in counts.items()]
    return sorted(found, key=lambda row: (-row.count, row.value))[:MOST_TOLD]


def _alike(one: str, other: str) -> bool:
    try:
        return abs(float(one) - float(other)) < 0.5
    except ValueError:
        return one.casefold() == other.casefold()


def answers(signal: Signal) -> QuerySet[SignalAnswer]:
    return signal.answers.select_related("trajectory")


def _refuse(given: NewSignal) -> None:
    """Raises SignalError for a question without possible answers."""
    words = Signal(choices=given.choices).words
    if given.kind == Signal.Kind.CATEGORY and len(set(map(str.casefold, words))) < 2:
        raise SignalError("Give at least two words, with commas between them.", "choices")


def _saved(signal: Signal) -> Signal:
    """Raises SignalError if its name is taken."""
    return saved_as(signal, "A signal", SignalError)
