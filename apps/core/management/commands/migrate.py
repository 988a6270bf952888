"""Django's `migrate`, which refuses a database that this version does not know, and has a faster
way to an empty database's tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.commands import migrate
from django.db.migrations.state import ModelState, ProjectState, StateApps
from django.db.models import Field

from apps.core import schema

ADD_MODEL, ADD_FIELD, APPEND_OPTION = (
    ProjectState.add_model,
    ProjectState.add_field,
    ProjectState._append_option,
)
MAY_STOP_HALFWAY = {
    "apply_start": False,
    "apply_success": True,
    "unapply_start": False,
    "unapply_success": True,
}


class Command(migrate.Command):
    any_schema = True

    def handle(self, *args: Any, **options: Any) -> None:
        schema.require_migratable()
        with building_only_what_changes():
            super().handle(*args, **options)
        schema.note_version()

    def migration_progress_callback(
        self, action: str, migration: Any = None, fake: bool = False
    ) -> None:
        if migration is not None and action in MAY_STOP_HALFWAY:
            schema.note_begun(migration, is_over=MAY_STOP_HALFWAY[action])
        super().migration_progress_callback(action, migration, fake)


@contextmanager
def building_only_what_changes() -> Iterator[None]:
    """When a migration creates a model, or adds a field, an index or a constraint, Django also
    builds every model that is related to it again: with two hundred models that was nine tenths of
    the time. No other model refers to a new one, so it is built alone, as when a program defines
    its models; a field joins its model as there; indexes and constraints only join their model's
    list. Whatever else changes a model still rebuilds all that are related to it."""
    ProjectState.add_model, ProjectState.add_field = _add_model, _add_field
    ProjectState._append_option = _append_option
    try:
        yield
    finally:
        ProjectState.add_model, ProjectState.add_field = ADD_MODEL, ADD_FIELD
        ProjectState._append_option = APPEND_OPTION


@contextmanager
def _building_nothing(state: ProjectState) -> Iterator[StateApps | None]:
    apps = state.__dict__.pop("apps", None)
    try:
        yield apps
    finally:
        if apps is not None:
            state.__dict__["apps"] = apps


def _add_model(state: ProjectState, model: ModelState) -> None:
    if "apps" in state.__dict__ and model.name_lower in state.apps.all_models[model.app_label]:
        ADD_MODEL(state, model)  # in place of one that there is
        return
    with _building_nothing(state) as apps:
        ADD_MODEL(state, model)
    if apps is not None:
        apps.render_multiple([model])


def _add_field(
    state: ProjectState,
    app_label: str,
    model_name: str,
    name: str,
    field: Field,
    preserve_default: bool,
) -> None:
    with _building_nothing(state) as apps:
        ADD_FIELD(state, app_label, model_name, name, field, preserve_default)
    if apps is not None:
        added = state.models[app_label, model_name].fields[name].clone()
        added.contribute_to_class(apps.get_model(app_label, model_name), name)
        apps.clear_cache()  # what each model knows of the relations to it


def _append_option(
    state: ProjectState, app_label: str, model_name: str, option: str, added: Any
) -> None:
    """`option`: “indexes” or “constraints”."""
    with _building_nothing(state) as apps:
        APPEND_OPTION(state, app_label, model_name, option, added)
    if apps is not None:
        meta = apps.get_model(app_label, model_name)._meta
        setattr(meta, option, [*getattr(meta, option), added])
