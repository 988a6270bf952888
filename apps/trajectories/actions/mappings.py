"""Mappings that a project keeps for its files."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from apps.core.actions import audit
from apps.core.models import Project
from apps.trajectories.importers import OpenFile
from apps.trajectories.importers.choices import fits
from apps.trajectories.importers.mapping import Mapping, MappingError, as_json, load
from apps.trajectories.models import ImportMapping

MAX_MAPPINGS = 200


@transaction.atomic
def save_mapping(*, project: Project, name: str, mapping: Mapping, by: Any) -> ImportMapping:
    """Keeps it under this name, in place of another of the name. Raises MappingError."""
    name = name.strip()
    if not 0 < len(name) <= 80 or "/" in name:
        raise MappingError("Mapping names must have 1 to 80 characters and no slash.")
    known = ImportMapping.objects.filter(project=project)
    if not known.filter(name=name).exists() and known.count() >= MAX_MAPPINGS:
        raise MappingError(f"A project can have at most {MAX_MAPPINGS} mappings. Delete one first.")
    saved, _ = ImportMapping.objects.update_or_create(
        project=project,
        name=name,
        defaults={"mapping": as_json(mapping), "by": by if getattr(by, "pk", None) else None},
    )
    audit("trajectories.mapping_saved", project=project, by=by, target=project, name=name)
    return saved


@transaction.atomic
def delete_mapping(*, saved: ImportMapping, by: Any) -> None:
    audit(
        "trajectories.mapping_deleted",
        project=saved.project,
        by=by,
        target=saved.project,
        name=saved.name,
    )
    saved.delete()


def find_mapping(project: Project, name: str) -> Mapping:
    """Raises MappingError if there is none of this name."""
    saved = (
        ImportMapping.objects.filter(project=project, name=name).first()
        if "\0" not in name
        else None
    )
    if saved is None:
        names = ", ".join(project.import_mappings.values_list("name", flat=True)[:20]) or "none yet"
        raise MappingError(f"There is no mapping “{name}”. Available mappings: {names}.")
    return load(saved.mapping)


def fitting_mappings(project: Project, reading: OpenFile) -> list[ImportMapping]:
    """The project's mappings that fit the columns of a file, that with the most fields first."""
    found = [one for one in project.import_mappings.all() if _fits(one, reading)]
    return sorted(found, key=lambda one: -len(one.mapping["fields"]))


def _fits(saved: ImportMapping, reading: OpenFile) -> bool:
    try:
        return fits(load(saved.mapping), reading.head, reading.source.columns)
    except MappingError:
        return False


def names_that_fit(found: list[ImportMapping]) -> str:
    """A sentence for whoever has to choose a mapping; "" where none fits."""
    return (
        f" Saved mappings that fit these columns: {', '.join(one.name for one in found)}."
        if found
        else ""
    )
