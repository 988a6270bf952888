from __future__ import annotations

from celery import shared_task

from apps.core.models import Project
from apps.failures import classify_job
from apps.failures.actions import signals
from apps.failures.clusters import store
from apps.failures.judge import judging, prompt_reading, reply_reading
from apps.failures.models import Signal
from apps.failures.outcomes import alarms, train_job
from apps.failures.signals import asking


@shared_task(name=store.TASK, expires=3600)
def recluster(project_id: int) -> dict[str, int] | None:
    project = Project.objects.filter(pk=project_id).first()
    return store.recluster(project) if project else None


@shared_task(name="failures.recluster_due", expires=600)
def recluster_due() -> int:
    projects = store.due()
    for pk in projects:
        store.request(pk)
    return len(projects)


CLASSIFY_EXPIRES_S = 60  # longer than a busy queue takes; one that finds nothing to do ends at once


@shared_task(name="failures.classify_new", expires=CLASSIFY_EXPIRES_S)
def classify_new() -> int:
    """Classifies what arrived in the last seconds: a task per project with something new, which
    goes on until about the next tick.
    """
    projects = classify_job.due()
    for project in projects:
        classify_new_of.apply_async(args=[project.pk], expires=CLASSIFY_EXPIRES_S)
    return len(projects)


@shared_task(name="failures.classify_new_of")
def classify_new_of(project_id: int) -> int:
    project = Project.objects.running().filter(pk=project_id).first()
    return classify_job.classify_new(project, for_s=9.0) if project else 0


@shared_task(name="failures.judge_new", expires=150)
def judge_new() -> int:
    """Every few minutes, one small batch for each project whose judge is on."""
    projects = Project.objects.running().filter(rubrics__is_on=True).values_list("pk", flat=True)
    for pk in projects:
        judge_project.apply_async(args=[pk], expires=150)
    return len(projects)


@shared_task(name=judging.TASK)
def judge_project(project_id: int, now: bool = False) -> dict | None:
    project = Project.objects.filter(pk=project_id).first()
    return vars(judging.judge_new(project, now=now)) if project else None


@shared_task(name="failures.ask_signals", expires=150)
def ask_signals() -> int:
    """Every few minutes, some questions for each project that has a signal on."""
    on = Project.objects.running().filter(signals__on_since__isnull=False).distinct()
    projects = on.filter(rubrics__is_on=True).values_list("pk", flat=True)
    for pk in projects:
        ask_signals_of.apply_async(args=[pk], expires=150)
    return len(projects)


@shared_task(name="failures.ask_signals_of")
def ask_signals_of(project_id: int) -> dict | None:
    project = Project.objects.filter(pk=project_id).first()
    return vars(asking.ask_due(project)) if project else None


@shared_task(name=signals.TASK)
def try_signal(pk: int, version: int) -> dict | None:
    signal = Signal.objects.filter(pk=pk, version=version).first()
    return vars(asking.try_out(signal)) if signal else None


@shared_task(name="failures.look_at_prompts", expires=150)
def look_at_prompts() -> int:
    """Every few minutes, for each project with new runs, or rules that were not tried yet."""
    projects = prompt_reading.due()
    for project in projects:
        look_at_prompts_of.apply_async(args=[project.pk], expires=150)
    return len(projects)


@shared_task(name=prompt_reading.TASK)
def look_at_prompts_of(project_id: int, now: bool = False) -> dict | None:
    project = Project.objects.filter(pk=project_id).first()
    return vars(prompt_reading.look(project, now=now)) if project else None


@shared_task(name="failures.look_at_replies", expires=150)
def look_at_replies() -> int:
    """Every few minutes, for each project with new runs, or forms that the judge is to read."""
    projects = reply_reading.due()
    for project in projects:
        look_at_replies_of.apply_async(args=[project.pk], expires=150)
    return len(projects)


@shared_task(name=reply_reading.TASK)
def look_at_replies_of(project_id: int, now: bool = False) -> dict | None:
    project = Project.objects.filter(pk=project_id).first()
    return vars(reply_reading.look(project, now=now)) if project else None


@shared_task(name="failures.train_outcomes", expires=600)
def train_outcomes() -> int:
    """Switches models with too many false alarms off, and trains one for each project with enough
    new decisions.
    """
    for project in alarms.watched():
        alarms.watch(project)
    projects = train_job.due()
    for project in projects:
        train_job.start(project=project, by=None)
    return len(projects)
