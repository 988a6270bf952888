"""Django's `migrate`, which refuses a database that this version does not know, and has a faster
way to an empty database's tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management import CommandError
from django.core.management.commands import migrate
from django.db import OperationalError, connection
from django.db.migrations.state import ModelState, ProjectState, StateApps
from django.db.models import Field

from apps.core import schema

ADD_MODEL, ADD_FIELD, APPEND_OPTION = (
    ProjectState.add_model,
    ProjectState.add_field,
    ProjectState._append_option,
)
# Who waits for a table holds up everybody who comes later. A migration that is not atomic changes
# tables beside the traffic, and waits as long as it takes.
PATIENCE_S = 10
LOCK_NOT_AVAILABLE = "55P03"
IN_USE = (
    f"A table stayed in use for {PATIENCE_S} s, so the update stopped, and the migration it was in"
    " changed nothing. Run the command again; if that does not help, when there is less traffic, or"
    " after ending what uses the table (SELECT * FROM pg_stat_activity WHERE state <> 'idle')."
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
        try:
            with building_only_what_changes():
                super().handle(*args, **options)
        except OperationalError as error:
            if getattr(error.__cause__, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                raise
            raise CommandError(IN_USE) from error
        schema.note_version()

    def migration_progress_callback(
        self, action: str, migration: Any = None, fake: bool = False
    ) -> None:
        if migration is not None and action in MAY_STOP_HALFWAY:
            is_over = MAY_STOP_HALFWAY[action]
            schema.note_begun(migration, is_over=is_over)
            _wait_for_locks(0 if is_over or not migration.atomic else PATIENCE_S)
        super().migration_progress_callback(action, migration, fake)


def _wait_for_locks(seconds: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [f"{seconds}s"])


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
