"""Which project a command is about."""

from __future__ import annotations

from django.core.management import CommandError

from apps.core.models import Project


def find_project(slug: str | None) -> Project:
    """The one with this short name, or the only one. Raises CommandError, exit status 2."""
    found = list(Project.objects.filter(slug=slug) if slug else Project.objects.all()[:2])
    if len(found) == 1:
        return found[0]
    known = (
        ", ".join(Project.objects.order_by("slug").values_list("slug", flat=True)[:20]) or "none"
    )
    raise CommandError(f"Name a project with --project. There are: {known}.", returncode=2)
