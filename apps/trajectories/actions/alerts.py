"""Alerts: adding, changing, silencing and removing them, and checking them every minute."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any

from django.db import connection, transaction
from django.db.models import OuterRef, QuerySet, Subquery
from django.http import QueryDict
from django.utils import timezone
from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from apps.core.actions import audit
from apps.core.bidi import isolated
from apps.core.errors import Rejected
from apps.core.models import Project, Stage
from apps.core.openapi import LINE, sent
from apps.core.operations import Moment, Page, Rest, choice_of, operation
from apps.core.postgres import update_rows
from apps.core.query import QueryError, from_browser
from apps.core.taken import saved_as
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic
from apps.trajectories import alerts, uncounted, windows
from apps.trajectories.alerts import MEASURES, NOTHING, Measured
from apps.trajectories.models import Alert, AlertChange, AlertPoint
from apps.webhooks.actions import announce
from apps.webhooks.models import Event

log = logging.getLogger(__name__)
MOST = 100
CHECK_MS = 10_000
AT_ONCE = 1_000  # alerts of a transaction
MEASURED = (
    "state",
    "told",
    "crossing_since",
    "unmeasured_since",
    "value",
    "n",
    "low",
    "high",
    "usual_at",
    "checked_at",
)
USUAL_FOR = timedelta(hours=1)
KEPT_CHANGES = 500
TOLD_OF = {
    AlertChange.Kind.FIRED: (Event.ALERT_FIRED, "fired"),
    AlertChange.Kind.RECOVERED: (Event.ALERT_RECOVERED, "recovered"),
    AlertChange.Kind.NO_DATA: (Event.ALERT_NO_DATA, "has no data"),
}
MEASURED_BY = ("measure", "filters", "window_minutes")


class AlertError(Rejected):
    """The message is a sentence for the page; `field` is the invalid input."""


class NewAlert(Struct, forbid_unknown_fields=True, kw_only=True):
    """A rule over what runs, steps or scores of the last while add up to."""

    name: Annotated[str, Meta(title="Name", min_length=1, max_length=80, pattern=LINE)]
    measure: Annotated[
        choice_of(Alert.Measure),  # type: ignore[valid-type]
        Meta(title="Measure"),
    ]
    filters: Annotated[
        str,
        Meta(
            title="Filters",
            max_length=2_000,
            pattern=LINE,
            description=(
                "As in the address of the list of runs, steps or scores, without times:"
                " kind=tool&name=search"
            ),
        ),
    ] = ""
    condition: Annotated[
        choice_of(Alert.Condition),  # type: ignore[valid-type]
        Meta(title="Fires when it is"),
    ] = "above"
    line: (
        Annotated[
            float,
            Meta(
                title="Line",
                ge=-1e12,
                le=1e12,
                description="A share from 0 to 1, $ or milliseconds. None for the usual range",
            ),
        ]
        | None
    ) = None
    window_minutes: Annotated[
        int,
        Meta(
            title="Window in minutes",
            ge=5,
            le=10_080,
            description="What happened in the last so many minutes is added up",
        ),
    ] = 60
    for_minutes: Annotated[
        int,
        Meta(
            title="Fires after minutes",
            ge=0,
            le=1_440,
            description="For which it has to hold; 0: at once",
        ),
    ] = 0
    at_least: Annotated[
        int,
        Meta(
            title="Minimum count",
            ge=1,
            le=1_000_000,
            description="With fewer runs, steps or scores in the window nothing is decided",
        ),
    ] = 20
    enabled: Annotated[bool, Meta(title="Enabled")] = True


class AlertOut(NewAlert):
    pk: int = field(name="id")
    state: choice_of(Alert.State)  # type: ignore[valid-type]
    value: float | None
    n: int
    low: float | None
    high: float | None
    checked_at: Moment | None
    unmeasured_since: Moment | None
    silenced_until: Moment | None


class PointOut(Struct):
    """What was measured then; null: too little. `low` and `high`: what was usual then."""

    at: Moment
    value: float | None
    n: int
    low: float | None
    high: float | None


class ChangeOut(Struct):
    """That an alert fired or recovered, or that there is nothing more to measure while it fires;
    `runs` are some of those behind it.
    """

    kind: choice_of(AlertChange.Kind)  # type: ignore[valid-type]
    at: Moment
    begin: Moment
    value: float | None
    n: int
    said: str
    runs: list[str]


FORM = {"template": "trajectories/alert_form.html"}


@operation("alerts_list", rest=Rest("GET", "alerts/", "alerts"), gives=list[AlertOut])
def listed(*, project: Project) -> QuerySet[Alert]:
    """The alerts, with what was last measured."""
    return project.alerts.all()


@operation("alerts_read", rest=Rest("GET", "alerts/<int:pk>/", "alert"), gives=AlertOut)
def one(*, alert: Alert) -> Alert:
    """An alert, with what was last measured."""
    return alert


@operation(
    "alerts_changes",
    rest=Rest("GET", "alerts/<int:pk>/changes/", "alert_changes"),
    gives=list[ChangeOut],
)
def changes(*, alert: Alert) -> QuerySet[AlertChange]:
    """When it fired, recovered, or had no more data, the newest first."""
    return alert.changes.all()[:KEPT_CHANGES]


@operation(
    "alerts_points",
    rest=Rest("GET", "alerts/<int:pk>/points/", "alert_points"),
    gives=list[PointOut],
)
def points(*, alert: Alert) -> QuerySet[AlertPoint]:
    """What it measured, the oldest first: its chart."""
    return alert.points.all()


@operation(
    "alerts_add",
    rest=Rest("POST", "alerts/", "alerts", 201),
    page=Page("alerts/new/", "alert_new", done="The alert is checked every minute.", **FORM),
    gives=AlertOut,
    examples=(
        sent(
            "A tool's errors",
            {
                "name": "search fails",
                "measure": "step_error_rate",
                "filters": "kind=tool&name=search",
                "line": 0.1,
            },
        ),
    ),
    says={"alert.added": "added the alert “{name}”"},
)
@transaction.atomic
def add(*, project: Project, by: Any, given: NewAlert) -> Alert:
    """Adds an alert. Those who are notified are the members who want to be, and the webhooks.

    Raises AlertError.
    """
    _refuse(given)
    project = Project.objects.select_for_update().get(pk=project.pk)
    if project.alerts.count() >= MOST:
        raise AlertError(f"{project} has {MOST} alerts, which is the most. Remove one first.")
    alert = _saved(Alert(project=project, created_by=by, **asdict(given)))
    audit("alert.added", project=project, by=by, target=alert, name=alert.name)
    return alert


@operation(
    "alerts_edit",
    rest=Rest("PATCH", "alerts/<int:pk>/", "alert"),
    page=Page("alerts/<int:pk>/edit/", "alert_edit", **FORM),
    gives=AlertOut,
    partial=True,
    says={"alert.edited": "edited the alert “{name}”"},
)
@transaction.atomic
def edit(*, alert: Alert, by: Any, given: NewAlert) -> Alert:
    """Changes the fields that are sent; it begins anew.

    Raises AlertError.
    """
    _refuse(given)
    row = Alert.objects.select_for_update().get(pk=alert.pk)
    begun = {"state": Alert.State.OK, "told": False} | dict.fromkeys(
        ("crossing_since", "unmeasured_since", "usual_at", "low", "high")
    )
    if any(getattr(row, name) != getattr(given, name) for name in MEASURED_BY):
        row.points.all().delete()
    for name, value in (asdict(given) | begun).items():
        setattr(row, name, value)
    _saved(row)
    audit("alert.edited", project=row.project, by=by, target=row, name=row.name)
    return row


@operation(
    "alerts_silence",
    rest=Rest("POST", "alerts/<int:pk>/silence/", "alert_silence"),
    page=Page("alerts/<int:pk>/silence/", "alert_silence"),
    gives=AlertOut,
    says={"alert.silenced": "silenced the alert “{name}” for {minutes|minute|minutes}"},
)
@transaction.atomic
def silence(
    *,
    alert: Alert,
    by: Any,
    minutes: Annotated[
        int, Meta(title="Minutes", ge=0, le=43_200, description="0: it speaks again")
    ] = 60,
) -> None:
    """Nobody is notified for a while; what still fires after that is told then."""
    until = timezone.now() + timedelta(minutes=minutes) if minutes else None
    Alert.objects.filter(pk=alert.pk).update(silenced_until=until)
    audit(
        "alert.silenced",
        project=alert.project,
        by=by,
        target=alert,
        name=alert.name,
        minutes=minutes,
    )


@operation(
    "alerts_remove",
    rest=Rest("DELETE", "alerts/<int:pk>/", "alert"),
    page=Page(
        "alerts/<int:pk>/remove/",
        "alert_remove",
        then="trajectories:alerts",
        done="{target} is removed.",
    ),
    says={"alert.removed": "removed the alert “{name}”"},
)
@transaction.atomic
def remove(*, alert: Alert, by: Any) -> None:
    """Removes an alert and its history."""
    audit("alert.removed", project=alert.project, by=by, name=alert.name)
    alert.delete()


def _refuse(given: NewAlert) -> None:
    """Raises AlertError for what cannot be checked."""
    if given.condition != Alert.Condition.UNUSUAL and given.line is None:
        raise AlertError("Give the line that it must not cross.", "line")
    share = MEASURES[given.measure].unit == "share"
    if share and given.line is not None and not 0 <= given.line <= 1:
        raise AlertError("This measure is a share, from 0 to 1: 0.1 is 10%.", "line")
    try:
        known = MEASURES[given.measure].source.known
        chosen = from_browser(QueryDict(given.filters), known)
    except QueryError as error:
        raise AlertError(error.sentence, "filters") from error
    if given.measure == "score" and not chosen.get("name"):
        raise AlertError("Name the score: name=helpful", "filters")


def _saved(alert: Alert) -> Alert:
    """Raises AlertError if its name is taken."""
    return saved_as(alert, "An alert", AlertError)


def check_all(now: datetime | None = None) -> int:
    """Checks the enabled alerts of active projects. Returns how many changed."""
    now = now or timezone.now()
    due = Alert.objects.filter(enabled=True, project__stage=Stage.ACTIVE)
    pks = list(due.order_by("checked_at", "pk").values_list("pk", flat=True))
    return sum(_checked(pks[at : at + AT_ONCE], now) for at in range(0, len(pks), AT_ONCE))


def _checked(pks: Sequence[int], now: datetime) -> int:
    """One that fails keeps no other from being checked, whosever it is: each by itself then."""
    try:
        return check(pks, now)
    except Exception:
        if len(pks) > 1:
            return sum(_checked([pk], now) for pk in pks)
        log.exception("Alert %s was not checked", pks[0])
        Alert.objects.filter(pk=pks[0]).update(checked_at=now, value=None, n=0)
        return 0


@transaction.atomic
def check(pks: Sequence[int], now: datetime) -> int:
    """How many have a new row in their history. An alert that another process checks now is left to
    that.
    """
    last = AlertPoint.objects.filter(alert=OuterRef("pk")).order_by("-at").values("at")[:1]
    rows = Alert.objects.select_for_update(skip_locked=True, of=("self",)).annotate(
        plotted_at=Subquery(last)
    )
    checked = list(rows.select_related("project").filter(pk__among=pks, enabled=True))
    found = _measure(checked, now)
    changes = [_check(alert, one, now) for alert, one in zip(checked, found, strict=True)]
    update_rows(checked, MEASURED)
    _plot(zip(checked, found, changes, strict=True), now)
    return len(list(filter(None, changes)))


def _measure(checked: Sequence[Alert], now: datetime) -> list[Measured]:
    """Of windows that end before what is not counted yet, which would look like silence. Sets what
    is usual, too, where it is time.
    """
    until = uncounted.counted_until({alert.project_id for alert in checked}, now)
    ends = {alert.pk: until[alert.project_id] for alert in checked}
    counted = [
        alert for alert in checked if now - ends[alert.pk] < timedelta(minutes=alert.window_minutes)
    ]
    unusual = [alert for alert in checked if _lacks_usual(alert, now)]
    days = alerts.usual_ends(now)
    asked = [(alert, ends[alert.pk]) for alert in counted]
    asked += [(alert, end) for alert in unusual for end in days]
    measured = iter(alerts.measured(asked, CHECK_MS))
    found = {alert.pk: next(measured) for alert in counted}
    for alert in unusual:
        before = list(islice(measured, len(days)))
        alert.low, alert.high = alerts.usual_range(alert, before) or (None, None)
        alert.usual_at = now
    return [found.get(alert.pk, NOTHING) for alert in checked]


def _lacks_usual(alert: Alert, now: datetime) -> bool:
    is_known = alert.usual_at is not None and now - alert.usual_at < USUAL_FOR
    return alert.condition == Alert.Condition.UNUSUAL and not is_known


def _check(alert: Alert, found: Measured, now: datetime) -> AlertChange | None:
    alert.value, alert.n, alert.checked_at = found.value, found.n, now
    change = _decide(alert, found, now)
    _notify(alert, change)
    return change


def _decide(alert: Alert, found: Measured, now: datetime) -> AlertChange | None:
    """Sets its state. What is crossing again after a time without data fires at once."""
    if not alerts.is_enough(alert, found):
        return _without_data(alert, found, now)
    alert.unmeasured_since = None
    was_firing = alert.state != Alert.State.OK and alert.crossing_since is not None
    if not alerts.crosses(alert, found.value or 0.0):
        alert.state, alert.crossing_since = Alert.State.OK, None
        return _noted(alert, AlertChange.Kind.RECOVERED, found, now) if was_firing else None
    alert.crossing_since = alert.crossing_since or now
    lasted = now - alert.crossing_since >= timedelta(minutes=alert.for_minutes)
    if alert.state == Alert.State.FIRING:
        return None
    alert.state = Alert.State.FIRING if lasted else Alert.State.OK
    return _noted(alert, AlertChange.Kind.FIRED, found, now) if lasted else None


def _without_data(alert: Alert, found: Measured, now: datetime) -> AlertChange | None:
    """The state stays for another window. Then it is none: neither that of before, nor fine."""
    alert.unmeasured_since = alert.unmeasured_since or now
    lasted = now - alert.unmeasured_since >= timedelta(minutes=alert.window_minutes)
    if alert.state == Alert.State.NO_DATA or not lasted:
        return None
    was, alert.state = alert.state, Alert.State.NO_DATA
    if was == Alert.State.FIRING:
        return _noted(alert, AlertChange.Kind.NO_DATA, found, now)
    alert.crossing_since = None
    return None


def _notify(alert: Alert, change: AlertChange | None) -> None:
    """What people know of is also told when it ends; nothing is told in silence."""
    if change and change.kind != AlertChange.Kind.FIRED and alert.told and not alert.is_silenced:
        _tell(alert, change)
    if change and change.kind != AlertChange.Kind.NO_DATA:
        alert.told = False
    if alert.state == Alert.State.FIRING and not alert.told and not alert.is_silenced:
        if fired := alert.changes.first():
            _tell(alert, fired)
        alert.told = True


def _plot(checked: Iterable[tuple[Alert, Measured, AlertChange | None]], now: datetime) -> None:
    """A point for their charts, every while and when something changed."""
    points = [
        AlertPoint(
            alert=alert,
            at=now,
            value=found.value if alerts.is_enough(alert, found) else None,
            n=found.n,
            low=alert.low,
            high=alert.high,
        )
        for alert, found, change in checked
        if change or alert.plotted_at is None or now - alert.plotted_at >= alerts.spacing(alert)
    ]
    if not points:
        return
    AlertPoint.objects.bulk_create(
        points,
        update_conflicts=True,
        unique_fields=["alert", "at"],
        update_fields=["value", "n", "low", "high"],
    )
    old = ((p.alert_id, now - alerts.spacing(p.alert) * alerts.POINTS) for p in points)
    asked, values = windows.rows_of(old, alert="bigint", until="timestamptz")
    with connection.cursor() as cursor:
        cursor.execute(
            f"DELETE FROM {AlertPoint._meta.db_table} AS point USING {asked}"
            " WHERE point.alert_id = asked.alert AND point.at < asked.until",
            values,
        )


def _noted(alert: Alert, kind: AlertChange.Kind, found: Measured, now: datetime) -> AlertChange:
    begin = now - timedelta(minutes=alert.window_minutes)
    runs: list[str] = []
    if kind == AlertChange.Kind.FIRED:
        given = alerts.window_of(alert, now).given
        high = alerts.is_high(alert, found.value or 0.0)
        runs = MEASURES[alert.measure].runs(alert.project, given, high)
    return AlertChange.objects.create(
        alert=alert,
        kind=kind,
        begin=begin,
        at=now,
        value=found.value,
        n=found.n,
        said=(
            alerts.without_data(alert)
            if kind == AlertChange.Kind.NO_DATA
            else alerts.in_words(alert, found.value)
        )[:300],
        runs=runs,
    )


def _tell(alert: Alert, change: AlertChange) -> None:
    """Members and webhooks."""
    event, did = TOLD_OF[AlertChange.Kind(change.kind)]
    subject = f"Alert “{isolated(alert.name)}” {did}: {change.said} (n = {change.n:,})"
    page = alert.get_absolute_url()
    notify(
        topic=Topic(event),
        project=alert.project,
        subject=subject,
        page=page,
        key=f"alert:{alert.pk}:{change.pk}",
    )
    announce(
        project=alert.project,
        event=event,
        subject=subject,
        data={
            "alert": alert.name,
            "measure": alert.measure,
            "filters": alert.filters,
            "value": change.value,
            "n": change.n,
            "from": change.begin,
            "to": change.at,
            "runs": change.runs,
            "page": page,
        },
    )
