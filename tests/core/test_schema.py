"""A database of another version of Flywheel: `prepare` and `up` refuse it, health shows it, and
nothing is changed.
"""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client

from apps.core import schema

pytestmark = pytest.mark.django_db


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.fixture
def _other_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = schema._digests() | {"evals.0001_initial": "0123456789abcdef"}
    monkeypatch.setattr(schema, "_digests", lambda: changed)


def schema_is_up() -> bool:
    return Client().get("/healthz").json()["parts"]["schema"]


def test_a_database_of_this_version_is_taken() -> None:
    assert schema.differences() == [] and schema_is_up()
    call_command("migrate", verbosity=0)


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("ALTER TABLE core_project DROP COLUMN name CASCADE", "core_project lacks the column name"),
        ("ALTER TABLE webhooks_webhook RENAME TO hooks", "the table webhooks_webhook is missing"),
        (
            "ALTER TABLE core_project ADD COLUMN region text NOT NULL",
            "core_project requires a column region",
        ),
        (f"COMMENT ON TABLE {schema.TABLE} IS NULL", "core.0001_initial differs"),
        (
            (
                f"INSERT INTO {schema.TABLE} (app, name, applied) VALUES ('evals', '0031_later',"
                " now())"
            ),
            "evals.0031_later differs",
        ),
        (
            (
                f"INSERT INTO {schema.TABLE} (app, name, applied) VALUES ('account', '0099_later',"
                " now())"
            ),
            "account.0099_later differs",
        ),
        (
            f"DELETE FROM {schema.TABLE} WHERE app NOT IN ('auth', 'contenttypes')",
            "core_project was not made by this version",
        ),
    ],
)
def test_another_versions_database_is_refused(statement: str, sentence: str) -> None:
    execute(statement)
    before = MigrationRecorder(connection).applied_migrations().keys()
    with pytest.raises(CommandError, match="another version of Flywheel") as refused:
        call_command("prepare")
    assert sentence in str(refused.value) or "more" in str(refused.value)
    assert any(sentence in different for different in schema.differences())
    assert MigrationRecorder(connection).applied_migrations().keys() == before
    assert not schema_is_up()


@pytest.mark.usefixtures("_other_digest")
def test_a_migration_that_was_rewritten_under_its_name_is_refused() -> None:
    with pytest.raises(CommandError, match=r"evals\.0001_initial differs"):
        call_command("migrate", verbosity=0)
    assert not schema_is_up()


def test_a_harmless_column_more_is_no_other_version() -> None:
    execute("ALTER TABLE core_project ADD COLUMN note text")
    assert schema.differences() == []


def test_a_database_that_is_behind_may_be_migrated_and_is_not_healthy_before() -> None:
    execute(f"DELETE FROM {schema.TABLE} WHERE app = 'dashboard'")
    assert schema.differences() == [] and not schema_is_up()


def test_a_migration_that_failed_can_be_repeated_in_another_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was noted before it was applied does not count until it is."""
    execute(f"DELETE FROM {schema.TABLE} WHERE app = 'dashboard'")
    changed = schema._digests() | {"dashboard.0001_initial": "0123456789abcdef"}
    monkeypatch.setattr(schema, "_digests", lambda: changed)
    call_command("migrate", "dashboard", fake=True, verbosity=0)
    assert schema.differences() == []
