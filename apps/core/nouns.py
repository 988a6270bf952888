"""What pages call the rows of a model, if its own name is not what a user would say."""

from __future__ import annotations

from django.db.models import Model

from apps.core.models import Job

NOUNS = {
    "core.apikey": ("API key", "API keys"),
    "core.auditevent": ("audit log entry", "audit log entries"),
    "environments.environment": ("environment version", "environment versions"),
    "environments.verifier": ("verifier version", "verifier versions"),
    "evals.evalrun": ("evaluation", "evaluations"),
    "evals.evalset": ("eval set version", "eval set versions"),
    "evals.holdoutview": ("hold-out view", "hold-out views"),
    "training.promptsearch": ("prompt search", "prompt searches"),
    "trajectories.trajectory": ("trajectory", "trajectories"),
}


def noun(model: type[Model], n: int = 1) -> str:
    one, several = NOUNS.get(model._meta.label_lower) or (
        model._meta.verbose_name,
        model._meta.verbose_name_plural,
    )
    return str(one if n == 1 else several)


def title_of(job: Job) -> str:
    """The name of a job, with its kind if the name does not say it."""
    kind = noun(type(job))
    return job.name if kind.lower() in job.name.lower() else f"{job.name} ({kind})"
