"""The suite's own databases: what a test committed goes, and each process has a copy of one that
was migrated once.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, models
from django.db.migrations.state import ModelState, ProjectState
from django.test import TransactionTestCase

from apps.core.management.commands.migrate import building_only_what_changes
from apps.core.models import AuditEvent, Project
from tests import database
from tests.emptied import STAYS, empty
from tests.factories import make_base, make_failed, make_project

NO_MODELS = {"django_migrations", "cache"}  # which Django's flush leaves alone too
TABLES = """SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind \
IN ('r', 'p') AND NOT relispartition"""


def rows() -> dict[str, int]:
    """{table: how many} of every table that there is, whoever made it; a partition's are its
    table's.
    """
    with connection.cursor() as cursor:
        cursor.execute(TABLES)
        names = [name for (name,) in cursor.fetchall()]
        cursor.execute(
            " UNION ALL ".join(f"""SELECT '{name}', count(*) FROM "{name}\"""" for name in names)
        )
        return dict(cursor.fetchall())


@pytest.fixture
def committed(transactional_db: None, data_dir: Path) -> Project:
    """Rows that point at each other, some in partitions, some of which a trigger says that they
    stay.
    """
    project = make_project()
    make_base(project, data_dir)
    make_failed(project)
    filled = {table for table, count in rows().items() if count}
    assert filled > STAYS | {
        "core_project",
        "core_membership",
        "core_auditevent",
        "trajectories_trajectory",
    }
    return project


@pytest.mark.parametrize(
    "by", [empty, TransactionTestCase("__init__")._fixture_teardown], ids=["itself", "after a test"]
)
def test_what_was_committed_goes_and_what_is_djangos_own_stays(
    committed: Project, by: Callable[[], Any]
) -> None:
    before = rows()
    by()
    after = rows()
    assert {table for table, count in after.items() if count} <= STAYS | NO_MODELS
    assert all(after[table] == before[table] > 0 for table in STAYS)


def test_then_triggers_are_looked_at_again_also_where_it_failed(committed: Project) -> None:
    def fails(execute: Callable, statement: Any, *rest: Any) -> Any:
        if "DELETE" in str(statement):
            raise OSError("The disk is full.")
        return execute(statement, *rest)

    with connection.execute_wrapper(fails), pytest.raises(OSError, match="full"):
        empty()
    with pytest.raises(IntegrityError, match="append-only"), connection.cursor() as cursor:
        cursor.execute("DELETE FROM core_auditevent")
    empty()
    assert not AuditEvent.objects.exists() and acts() == "origin"


def acts() -> str:
    """As what this connection writes: “origin” fires triggers and looks at foreign keys."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW session_replication_role")
        return cursor.fetchone()[0]


def test_a_process_has_a_copy_of_what_these_migrations_make(db: None) -> None:
    made = database.migrated(connection.creation)
    assert (
        made.startswith(database.NAMES)
        and database.copied_from(connection.creation, connection.settings_dict["NAME"]) == made
    )
    call_command("migrate", check_unapplied=True, verbosity=0)


def test_a_changed_migration_is_another_database(monkeypatch: pytest.MonkeyPatch) -> None:
    first, read = database._digest(), Path.read_bytes

    def changed(name: str) -> str:
        monkeypatch.setattr(
            Path,
            "read_bytes",
            lambda path: read(path) + (b"# more" if str(path).endswith(name) else b""),
        )
        return database._digest()

    digests = {
        first,
        changed("registry/migrations/0001_initial.py"),
        changed("trajectories/partitions.py"),
    }
    assert len(digests) == 3 and changed("nothing") == first


def test_a_migration_builds_only_what_it_changes() -> None:
    state = ProjectState()
    assert not state.apps.get_models()
    with building_only_what_changes():
        state.add_model(ModelState("core", "One", [("id", models.AutoField(primary_key=True))]))
        one = state.apps.get_model("core", "One")
        key = models.ForeignKey("core.One", models.CASCADE, related_name="others")
        state.add_model(
            ModelState("core", "Two", [("id", models.AutoField(primary_key=True)), ("one", key)])
        )
        two = state.apps.get_model("core", "Two")
        assert (
            state.apps.get_model("core", "One") is one is two._meta.get_field("one").related_model
        )
        assert [relation.related_model for relation in one._meta.related_objects] == [
            two
        ] and one.others
        state.add_index("core", "two", models.Index("one", name="by_one"))
        state.add_constraint("core", "two", models.UniqueConstraint("one", name="one_each"))
        assert state.apps.get_model("core", "Two") is two
        assert [found.name for found in (*two._meta.indexes, *two._meta.constraints)] == [
            "by_one",
            "one_each",
        ]
        key = models.ForeignKey("core.Two", models.CASCADE, related_name="firsts")
        state.add_field("core", "one", "best", key, preserve_default=True)
        assert state.apps.get_model("core", "One") is one and one._meta.get_field("best")
        assert [relation.related_model for relation in two._meta.related_objects] == [one]
        state.rename_field("core", "one", "best", "first")
    changed = state.apps.get_model("core", "One")
    assert changed._meta.get_field("first") and changed is not one
    rebuilt = state.apps.get_model("core", "Two")
    assert rebuilt._meta.get_field("one").related_model is changed and rebuilt is not two
    assert [found.name for found in (*rebuilt._meta.indexes, *rebuilt._meta.constraints)] == [
        "by_one",
        "one_each",
    ]
    assert ProjectState.add_model.__module__ == "django.db.migrations.state"
