"""A run's alarms in the database: stored, sent to the person who started the run, and able to pause
or end it.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models.functions import Now

from apps.core import jobs
from apps.core.models import JobState
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic
from apps.training.models import RunAlarm, TrainingRun
from workers.lib.alarms import LEVELS, RULES, AlarmSettings, Limits, alarm_at, merged, metrics_of
from workers.lib.typed import convert

DID = {"warn": "warns", "pause": "paused it", "stop": "stopped it"}
COLOURS = {"warn": "#d9822b", "pause": "#c6423a", "stop": "#c6423a"}


def title_of(name: str) -> str:
    return RULES[name].title if name in RULES else name


def store(run: TrainingRun, events: list[dict[str, Any]]) -> None:
    """Called in the runner's transaction. If a resumed attempt raises an alarm of the same step
    again, it is stored once.
    """
    for event in events:
        if event["type"] != "alarm":
            continue
        name, step = str(event["name"])[:40], int(event["step"])
        if event.get("cleared"):
            run.alarms.filter(name=name, cleared_step=None).update(cleared_step=step)
            continue
        action = (
            event["action"] if event["action"] in RunAlarm.Action.values else RunAlarm.Action.WARN
        )
        fields = {name: event.get(name) for name in ("value", "threshold")}
        fields |= {name: str(event.get(name) or "") for name in ("message", "todo")}
        RunAlarm.objects.update_or_create(
            run=run,
            name=name,
            step=step,
            action=action,
            defaults=fields | {"attempt": run.attempt, "cleared_step": None},
        )
        if action == RunAlarm.Action.PAUSE:
            pause(
                run,
                {"alarm": name, "step": step, "message": fields["message"], "todo": fields["todo"]},
            )
        tell(run, name, action)


def judge_outside(
    run: TrainingRun, name: str, step: int, value: float | None, note: str = "", title: str = ""
) -> RunAlarm | None:
    """Raise or clear an alarm that cannot be evaluated within a step, by the run's own settings;
    return the active one. For a run that has ended it can only warn. `title`: the name of the
    value.
    """
    limits = limits_of(run, name)
    held = (
        run.alarms.filter(name=name, attempt=run.attempt, cleared_step=None).order_by("-pk").first()
    )
    alarm = (
        None
        if value is None or limits.action == "ignore"
        else alarm_at(limits, step, value, title=title)
    )
    if alarm is None:
        if value is not None and held:
            run.alarms.filter(name=name, cleared_step=None).update(cleared_step=step)
        return None
    with transaction.atomic():
        going = (
            TrainingRun.objects.held_by(run)
            .filter(cancel_requested_at=None)
            .select_for_update()
            .exists()
        )
        action = alarm.action if going else "warn"
        if held and LEVELS[action] <= LEVELS[held.action]:
            return held
        said = f"{alarm.message} {note}".strip()
        store(run, [{"type": "alarm"} | alarm.as_event() | {"message": said, "action": action}])
        if action == "stop":
            jobs.end(run, JobState.FAILED, error=f"Stopped at step {step}. {said} {alarm.todo}")
    return run.alarms.filter(name=name, cleared_step=None).order_by("-pk").first()


def limits_of(run: TrainingRun, name: str) -> Limits:
    settings = convert(run.spec["config"].get("alarms") or {}, AlarmSettings)
    return merged(RULES[name], getattr(settings, name))


def pause(run: TrainingRun, why: dict[str, Any]) -> None:
    """End the run like one that was asked to stop: it is neither done nor failed, and can be
    resumed.
    """
    rows = TrainingRun.objects.filter(pk=run.pk, state=JobState.RUNNING, cancel_requested_at=None)
    rows.update(cancel_requested_at=Now(), result={"paused": why})


def tell(run: TrainingRun, name: str, action: str) -> None:
    """Without the alarm's message, which may quote an output."""
    notify(
        topic=Topic.TRAINING_ALARM,
        project=run.project,
        to=[run.created_by],
        page=f"{run.get_absolute_url()}#alarms",
        subject=f"Training run “{run.name}”: the alarm “{title_of(name)}” {DID[action]}",
        key=f"alarm:{run.pk}:{run.attempt}:{name}:{action}",
    )


def listed(run: TrainingRun) -> list[dict[str, Any]]:
    """The alarms for the page and the API, newest first."""
    return [
        {
            "name": row.name,
            "title": title_of(row.name),
            "step": row.step,
            "action": row.action,
            "value": row.value,
            "threshold": row.threshold,
            "message": row.message,
            "todo": row.todo,
            "cleared_step": row.cleared_step,
            "at": row.at,
        }
        for row in run.alarms.all()
    ]


def marks_of(alarms: list[dict[str, Any]], metrics: set[str]) -> list[tuple[int, str, str]]:
    """(step, title, colour) of the alarms about one of these metrics, at most one per step."""
    found: dict[int, tuple[int, str, str]] = {}
    for alarm in alarms:
        if metrics & set(metrics_of(RULES[alarm["name"]]) if alarm["name"] in RULES else ()):
            found.setdefault(
                alarm["step"], (alarm["step"], alarm["title"], COLOURS[alarm["action"]])
            )
    return list(found.values())
