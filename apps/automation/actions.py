"""Actions on flows, and the periodic tick that starts due flows and advances open runs."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.db import IntegrityError, InterfaceError, OperationalError, models, transaction
from django.db.models import OuterRef, Prefetch, Subquery
from django.urls import reverse
from django.utils import timezone

from apps.automation import engine, specs, starts
from apps.automation.models import Flow, FlowRun, FlowVersion
from apps.automation.specs import FlowError, FlowSpec
from apps.automation.starts import Known
from apps.core.actions import audit
from apps.core.bus import on
from apps.core.models import Project, Stage
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic
from apps.promotion.archiving import ChannelUsers
from workers.lib.storable import storable
from workers.lib.typed import plain

log = logging.getLogger(__name__)
MOST_LOOKED_AT = 1000  # flows per tick


@transaction.atomic
def save_flow(
    *, project: Project, name: str, spec: FlowSpec, by: Any, flow: Flow | None = None
) -> Flow:
    """Create a flow, or add a new version to one; saving an unchanged flow adds none. Raises
    FlowError.
    """
    name = " ".join(storable(name, "").split())
    if not 0 < len(name) <= 80:
        raise FlowError("Flow names can have at most 80 characters.", "name")
    try:
        with transaction.atomic():
            if flow is None:
                flow = Flow.objects.create(
                    project=project, name=name, seen=starts.names_known(project)
                )
            else:
                flow = engine.locked(flow)
                if flow.name != name:
                    audit(
                        "flow.renamed",
                        project=project,
                        by=by,
                        target=flow,
                        name=name,
                        before=flow.name,
                    )
                flow.name = name
                flow.save(update_fields=["name"])
    except IntegrityError as error:
        raise FlowError(
            f"A flow named “{name}” already exists in this project. Choose another name.", "name"
        ) from error
    newest, value = flow.versions.order_by("-number").first(), plain(spec)
    same = newest is not None and newest.spec == value
    _note_known(flow, spec, newest.readable if newest else None)
    if newest is None or not same or newest.created_by_id != by.pk:
        number = newest.number + 1 if newest else 1
        FlowVersion.objects.create(flow=flow, number=number, spec=value, created_by=by)
        what = "flow.taken_over" if same else "flow.saved"
        audit(what, project=project, by=by, target=flow, name=name, version=number)
    _set_clock(flow, spec)
    return flow


def _note_known(flow: Flow, spec: FlowSpec, before: FlowSpec | None) -> None:
    """Remember which versions and models already ran when a trigger for new ones is added: those do
    not count as new.
    """
    asked = {f"{one.of}:" for one in spec.watched if isinstance(one, specs.NewVersion)}
    asked -= (
        {f"{one.of}:" for one in before.watched if isinstance(one, specs.NewVersion)}
        if before
        else set()
    )
    known = (
        [name for name in starts.names_known(flow.project) if name.startswith(tuple(asked))]
        if asked
        else []
    )
    flow.seen = sorted({*flow.seen, *known})
    flow.save(update_fields=["seen"])


def _set_clock(flow: Flow, spec: FlowSpec) -> None:
    now = timezone.now()
    flow.next_run_at = starts.next_time(spec, now) if flow.enabled else None
    flow.looked_at = now
    flow.save(update_fields=["next_run_at", "looked_at"])


@transaction.atomic
def switch(*, flow: Flow, on: bool, by: Any) -> None:
    flow = engine.locked(flow)
    if flow.enabled != on:
        flow.enabled = on
        flow.save(update_fields=["enabled"])
        _set_clock(flow, flow.version.form)
        audit(
            "flow.switched_on" if on else "flow.switched_off",
            project=flow.project,
            by=by,
            target=flow,
            name=flow.name,
        )


@transaction.atomic
def delete(*, flow: Flow, by: Any) -> None:
    """Delete a flow and its runs; the jobs and their results stay. Raises FlowError while a run is
    active.
    """
    flow = engine.locked(flow)
    if FlowRun.objects.open().filter(version__flow=flow).exists():
        raise FlowError(f"“{flow}” is running. Cancel the run first.")
    audit(
        "flow.deleted",
        project=flow.project,
        by=by,
        target=flow,
        name=flow.name,
        runs=FlowRun.objects.filter(version__flow=flow).count(),
    )
    flow.delete()


@transaction.atomic
def make_secret(*, flow: Flow, by: Any) -> str:
    """Create a new secret for the flow's webhook, shown once. The previous one stops working."""
    secret, digest = starts.new_secret()
    Flow.objects.filter(pk=flow.pk).update(secret_digest=digest)
    audit("flow.secret_made", project=flow.project, by=by, target=flow, name=flow.name)
    return secret


def run_now(*, flow: Flow, by: Any) -> FlowRun:
    """Raises FlowError."""
    return engine.begin(
        flow=flow, cause={"by": "person", "sentence": f"Started by {by.get_username()}"}, by=by
    )


def called(*, flow: Flow) -> FlowRun:
    """Start a run by webhook, after its secret was checked. Raises FlowError."""
    if not any(isinstance(start, specs.Call) for start in flow.version.form.starts):
        raise FlowError("This flow has no webhook trigger. Add `by: webhook` to its starts.")
    if not flow.enabled:
        raise FlowError(f"“{flow}” is disabled.")
    return engine.begin(flow=flow, cause={"by": "webhook", "sentence": "Webhook called"})


# The tick


def tick(now: datetime | None = None) -> dict[str, int]:
    """Start the flows that are due. Returns {clock: number started by schedule, seen: number
    started by other triggers}.
    """
    now = now or timezone.now()
    return {"clock": _start_by_clock(now), "seen": _start_by_what_is_seen(now)}


def _start_by_clock(now: datetime) -> int:
    """Start scheduled flows. Times missed while no worker ran are made up for once; each flow is
    claimed by one caller.
    """
    due = with_newest(Flow.objects.watched().filter(next_run_at__lte=now))
    started = 0
    for flow in due.select_related("project").order_by("next_run_at")[:MOST_LOOKED_AT]:
        with _alone(flow):
            started += _start_at_its_time(flow, now)
    return started


@contextmanager
def _alone(flow: Flow) -> Iterator[None]:
    """Log an error in one flow without stopping the others, and notify people once of each version
    that cannot start.
    """
    try:
        yield
    except (OperationalError, InterfaceError):
        raise
    except Exception as error:
        log.exception("Flow %s cannot be started", flow.pk)
        notify(
            topic=Topic.FLOW_FAILED,
            project=flow.project,
            subject=f"{flow} cannot be started",
            excerpt=(
                str(error)
                if isinstance(error, FlowError)
                else "Internal error; see the worker's log."
            ),
            page=reverse("automation:flow", args=[flow.project.slug, flow.pk]),
            key=f"flow_start:{flow.pk}:{flow.version.number}",
        )


@transaction.atomic
def _start_at_its_time(flow: Flow, now: datetime) -> bool:
    at, spec = flow.next_run_at, flow.version.form
    claimed = Flow.objects.filter(pk=flow.pk, next_run_at=at, enabled=True)
    if not claimed.update(next_run_at=starts.next_time(spec, now)):
        return False
    return _begin(flow, starts.Cause("cron", f"Scheduled for {at:%F %H:%M} UTC"))


def _start_by_what_is_seen(now: datetime) -> int:
    with transaction.atomic():  # one caller checks a flow at a time
        due = Flow.objects.watched().filter(looked_at__lte=now - starts.EVERY).order_by("looked_at")
        taken = [
            flow.pk
            for flow in due.select_for_update(of=("self",), skip_locked=True)[:MOST_LOOKED_AT]
        ]
        Flow.objects.filter(pk__in=taken).update(looked_at=now)
    found = with_newest(Flow.objects.filter(pk__in=taken)).select_related("project")
    known: dict[int, Known] = {}
    started = 0
    for flow in found:
        with _alone(flow):
            started += _start_by_cause(
                flow, known.setdefault(flow.project_id, Known(flow.project, now))
            )
    return started


def _start_by_cause(flow: Flow, known: Known) -> bool:
    spec = flow.version.form
    if not spec.watched:
        return False
    cause = starts.cause_of(flow, spec, since_of(flow), known)
    if cause is None:
        return False
    with transaction.atomic():
        begun = _begin(flow, cause)
        if begun and "name" in cause.seen:
            Flow.objects.filter(pk=flow.pk).update(seen=[*flow.seen, cause.seen["name"]])
    return begun


def since_of(flow: Flow) -> datetime:
    """When its newest run began or its newest version was saved, whichever is later."""
    begun: datetime | None = getattr(flow, "last_begun", None)
    saved = flow.version.created_at
    return max(begun, saved) if begun else saved


def with_newest(flows: models.QuerySet[Flow]) -> models.QuerySet[Flow]:
    """Annotate each flow with its newest version and with when its last run began."""
    newest = FlowVersion.objects.filter(flow=OuterRef("flow")).order_by("-number").values("pk")[:1]
    versions = FlowVersion.objects.filter(pk=Subquery(newest)).select_related("created_by")
    begun = (
        FlowRun.objects.filter(version__flow=OuterRef("pk"))
        .order_by("-created_at")
        .values("created_at")[:1]
    )
    return flows.annotate(last_begun=Subquery(begun)).prefetch_related(
        Prefetch("versions", versions, to_attr="newest")
    )


def _begin(flow: Flow, cause: starts.Cause) -> bool:
    try:
        engine.begin(flow=flow, cause=cause.as_json())
    except FlowError as error:  # its last run is still active
        log.info("Flow %s was not started: %s", flow.pk, error)
        return False
    return True


def moving() -> dict[str, list[str]]:
    """The ids of open runs by project, oldest first, for a worker to advance."""
    found: dict[str, list[str]] = defaultdict(list)
    rows = (
        FlowRun.objects.open()
        .filter(project__stage=Stage.ACTIVE)
        .order_by("state", "created_at")
        .values_list("project_id", "pk")
    )
    for project, pk in rows:
        found[str(project)].append(str(pk))
    return found


@on(ChannelUsers)
def flows_with(question: ChannelUsers) -> list[str]:
    """The flows whose newest version names the channel."""
    channel = question.channel
    flows = Flow.objects.filter(project=channel.project_id)
    return [
        f"the flow “{flow}”"
        for flow in flows
        if (spec := flow.version.readable) and channel.name in spec.channels
    ]
