"""What pages call the rows of a model, and where they show them."""

from __future__ import annotations

from functools import cache

from django.apps import apps
from django.db.models import Model

from apps.core.models import Job


def noun(model: type[Model], n: int = 1) -> str:
    """A model has `nouns` where its own name is not what a user would say."""
    names = (model._meta.verbose_name, model._meta.verbose_name_plural)
    singular, plural = getattr(model, "nouns", names)
    return str(singular if n == 1 else plural)


def title_of(job: Job) -> str:
    """The name of a job, with its kind if the name does not say it."""
    kind = noun(type(job))
    return job.name if kind.lower() in job.name.lower() else f"{job.name} ({kind})"


def pages() -> dict[str, str]:
    """{model: the route of a row's page}, from each AppConfig."""
    return _routes("pages")


def lists() -> dict[str, str]:
    """{model: the route of the list where its rows are}, from each AppConfig."""
    return _routes("lists")


@cache
def _routes(attribute: str) -> dict[str, str]:
    return {
        label: route
        for config in apps.get_app_configs()
        for label, route in getattr(config, attribute, {}).items()
    }
