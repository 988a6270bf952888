"""The facts about an evaluation that REST and webhooks return."""

from __future__ import annotations

from typing import Any

from django.urls import reverse

from apps.evals.models import EvalRun
from apps.evals.notes import Pace, notes_of
from apps.registry.models import ModelKind
from apps.webhooks.actions import announce
from apps.webhooks.models import Event


def facts_of(run: EvalRun) -> dict[str, Any]:
    """Names, state and numbers. Without the error's text, which may quote a held-out task."""
    return {
        "id": str(run.pk),
        "name": run.name,
        "state": run.state,
        "eval_set": str(run.eval_set),
        "eval_set_id": str(run.eval_set_id),
        "split": run.split,
        "environment": str(run.environment),
        "model_version": str(run.model_version),
        "played_by": run.played_by,
        "samples_per_task": run.samples_per_task,
        "done": run.done,
        "total": run.total,
        "metrics": run.result.get("metrics"),
        "notes": run_notes(run),
        "created_at": run.created_at,
        "started_at": run.started_at,
        "finished_at": run.finished_at,
    }


def run_notes(run: EvalRun) -> list[str]:
    """What to know before trusting its numbers, in sentences; before it has any, that its samples
    will time out.
    """
    if counts := (run.result.get("metrics") or {}).get("counts"):
        return notes_of(counts, agent=run.model_version.kind == ModelKind.AGENT)
    pace = Pace(**run.spec["pace"]) if run.spec.get("pace") else None
    return [pace.sentence] if pace and pace.is_too_slow else []


def announce_end(run: EvalRun) -> None:
    """In the transaction that ends the evaluation, however it ends."""
    addresses = {
        "api": reverse("evals_api:run", args=[run.pk]),
        "page": reverse("evals:run", args=[run.project.slug, run.pk]),
    }
    announce(
        project=run.project,
        event=Event.EVALUATION_FINISHED,
        subject=f"{run.name}: {run.state}",
        data={"evaluation": facts_of(run), **addresses},
    )
