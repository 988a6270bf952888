"""A database of another version of Flywheel: `prepare` and `up` refuse it, health shows it, and
nothing is changed.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.core.management.commands import migrate as django_migrate
from django.db import OperationalError, connection
from django.db.migrations import Migration
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from psycopg.errors import LockNotAvailable

from apps.core import schema
from apps.core.management.commands import migrate
from flywheel.command import needs_schema
from flywheel.version import VERSION

pytestmark = pytest.mark.django_db


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def migrations_table(statement: str) -> str:
    return statement.format(schema.TABLE)


def kind() -> schema.Kind:
    return schema.schema_state().kind


def schema_is_up() -> bool:
    return Client().get("/healthz").json()["parts"]["schema"]


def note(**changes: Any) -> None:
    """Changes what the database says of itself."""
    noted = schema._noted()
    kept = {"version": noted.version, "digests": noted.digests, "begun": noted.begun} | changes
    schema._write_note(kept["version"], kept["digests"], kept["begun"])


LATER = "INSERT INTO {} (app, name, applied) VALUES ('evals', '0031_later', now())"


@pytest.fixture
def _other_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = schema._digests() | {"evals.0001_initial": "0123456789abcdef"}
    monkeypatch.setattr(schema, "_digests", lambda: changed)


def test_a_database_of_this_version_is_taken() -> None:
    assert kind() == "current" and schema_is_up()
    call_command("migrate", verbosity=0)
    assert schema._noted().version == VERSION
    schema.require_current()


@pytest.mark.parametrize(
    ("statement", "found", "sentence"),
    [
        (
            "ALTER TABLE core_project DROP COLUMN name CASCADE",
            "different",
            "core_project lacks the column name",
        ),
        (
            "ALTER TABLE webhooks_webhook RENAME TO hooks",
            "different",
            "the table webhooks_webhook is missing",
        ),
        (
            "ALTER TABLE core_project ADD COLUMN region text NOT NULL",
            "different",
            "core_project requires a column region",
        ),
        ("COMMENT ON TABLE {} IS NULL", "different", "automation.0001_initial differs"),
        (LATER, "newer", "evals.0031_later"),
        (
            "INSERT INTO {} (app, name, applied) VALUES ('account', '0099_later', now())",
            "newer",
            "account.0099_later",
        ),
        (
            "DELETE FROM {} WHERE app NOT IN ('auth', 'contenttypes')",
            "different",
            "account_emailaddress was not made by this version",
        ),
        (
            "DELETE FROM {} WHERE app = 'registry'",
            "different",
            "was applied and registry.0001_initial was not",
        ),
    ],
)
def test_another_versions_database_is_refused_before_anything_is_changed(
    statement: str, found: str, sentence: str
) -> None:
    execute(migrations_table(statement))
    before = MigrationRecorder(connection).applied_migrations().keys(), schema._noted()
    for command in ("prepare", "migrate"):
        with pytest.raises(CommandError) as refused:
            call_command(command)
        assert sentence in str(refused.value) and "Nothing was changed" in str(refused.value)
    assert kind() == found
    with pytest.raises(CommandError, match=re.escape(sentence)):
        schema.require_current()
    assert (MigrationRecorder(connection).applied_migrations().keys(), schema._noted()) == before


@pytest.mark.usefixtures("_other_digest")
def test_a_migration_that_was_rewritten_under_its_name_is_refused() -> None:
    with pytest.raises(CommandError, match=r"evals\.0001_initial differs"):
        call_command("migrate", verbosity=0)
    assert not schema_is_up()


def test_a_harmless_column_more_is_no_other_version() -> None:
    execute("ALTER TABLE core_project ADD COLUMN note text")
    assert kind() == "current"


def test_a_database_that_is_behind_may_be_migrated_and_nothing_starts_before() -> None:
    note(version="0.0.9")
    execute(migrations_table("DELETE FROM {} WHERE app = 'dashboard'"))
    assert kind() == "behind" and not schema_is_up()
    with pytest.raises(
        CommandError, match=r"\(0\.0\.9\).*lacks dashboard\.0001.*manage\.py migrate"
    ):
        schema.require_current()
    assert schema.require_migratable()


def test_processes_go_on_while_a_newer_version_has_added_something() -> None:
    """Old ones are beside new ones during an update; none that is old is started then."""
    note(version="9.1.0", digests=schema._noted().digests | {"evals.0031_later": "0" * 16})
    execute(migrations_table(LATER))
    execute("ALTER TABLE core_project ADD COLUMN region text NOT NULL DEFAULT 'eu'")
    assert kind() == "newer" and schema_is_up()
    with pytest.raises(CommandError, match=r"evals\.0031_later \(9\.1\.0\)"):
        schema.require_current()
    execute("ALTER TABLE core_project ALTER COLUMN region DROP DEFAULT")
    assert not schema_is_up()


def test_an_update_that_was_interrupted_is_continued() -> None:
    execute(migrations_table("DELETE FROM {} WHERE app = 'dashboard'"))
    note(begun={("dashboard", "0001_initial")})
    assert kind() == "unfinished"
    with pytest.raises(CommandError, match=r"interrupted in dashboard\.0001_initial"):
        schema.require_current()
    call_command("migrate", "dashboard", fake=True, verbosity=0)
    assert kind() == "current"


def test_an_update_that_a_newer_version_was_interrupted_in_is_left_to_it() -> None:
    note(version="9.1.0", begun={("evals", "0031_later")})
    assert kind() == "newer"
    with pytest.raises(CommandError, match=r"evals\.0031_later"):
        call_command("migrate", verbosity=0)


def test_only_a_migration_that_is_not_atomic_can_be_half_applied() -> None:
    class Steps(Migration):
        atomic = False

    for made in (Migration("0002_whole", "evals"), Steps("0002_steps", "evals")):
        schema.note_begun(made, is_over=False)
    assert schema._noted().begun == {("evals", "0002_steps")}
    schema.note_begun(Steps("0002_steps", "evals"), is_over=True)
    assert schema._noted().begun == set()


def test_a_migration_that_failed_can_be_repeated_in_another_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was noted before it was applied does not count until it is."""
    execute(migrations_table("DELETE FROM {} WHERE app = 'dashboard'"))
    changed = schema._digests() | {"dashboard.0001_initial": "0123456789abcdef"}
    monkeypatch.setattr(schema, "_digests", lambda: changed)
    call_command("migrate", "dashboard", fake=True, verbosity=0)
    assert kind() == "current"


@pytest.mark.parametrize(
    ("name", "checked"),
    [
        ("unlock", True),
        ("import_trajectories", True),
        ("createsuperuser", True),
        ("migrate", False),
        ("prepare", False),
        ("up", False),
        ("shell", False),
    ],
)
def test_commands_that_use_the_database_are_refused_another_versions(
    name: str, checked: bool
) -> None:
    assert needs_schema(load_command_class(get_commands()[name], name)) == checked


def lock_timeout() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        return cursor.fetchone()[0]


def test_an_update_waits_for_a_table_for_some_seconds_only() -> None:
    """Who comes after it would wait as long."""
    command = migrate.Command()
    command.verbosity = 0
    for is_atomic, patience in ((True, f"{migrate.PATIENCE_S}s"), (False, "0")):
        made = Migration("0002_made", "evals")
        made.atomic = is_atomic
        command.migration_progress_callback("apply_start", made)
        assert lock_timeout() == patience
        command.migration_progress_callback("apply_success", made)
        assert lock_timeout() == "0" and schema._noted().begun == set()


def test_a_table_that_stays_in_use_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def waits(self: Any, *args: Any, **options: Any) -> None:
        raise OperationalError from LockNotAvailable()

    monkeypatch.setattr(django_migrate.Command, "handle", waits)
    with pytest.raises(CommandError, match=r"stayed in use for 10 s.*changed nothing"):
        call_command("migrate", verbosity=0)
