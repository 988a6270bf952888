"""Migrations that stop what runs are refused, and those that do not are not."""

from __future__ import annotations

import pytest
from django.contrib.auth import get_user_model
from django.contrib.postgres.operations import (
    AddConstraintNotValid,
    AddIndexConcurrently,
    ValidateConstraint,
)
from django.db import connection, models
from django.db.migrations import Migration, operations
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Q
from django.utils import timezone

from tests.factories import make_project
from tests.release.effects import apply_and_judge

CHECK = models.CheckConstraint(name="named", condition=~Q(name=""))
INDEX = models.Index(fields=["name"], name="by_name")
REFUSED = {
    "an index": (operations.AddIndex("project", INDEX), "core_project is read from end to end"),
    "a check": (operations.AddConstraint("project", CHECK), "core_project is read from end to end"),
    "a unique column": (
        operations.AddConstraint(
            "project", models.UniqueConstraint(fields=["name"], name="one_name")
        ),
        "core_project is read from end to end",
    ),
    "a foreign key with its index": (
        operations.AddField(
            "project", "parent", models.ForeignKey("core.Project", models.CASCADE, null=True)
        ),
        "core_project is read from end to end",
    ),
    "what was null": (
        operations.RunSQL("ALTER TABLE auth_user ALTER last_login SET NOT NULL"),
        "auth_user is read from end to end",
    ),
    "a type": (
        operations.RunSQL(
            "ALTER TABLE core_project ALTER slug TYPE text COLLATE \"C\" USING slug || ''"
        ),
        "core_project is rewritten",
    ),
    "rows": (
        operations.RunSQL("UPDATE core_project SET name = name || '.'"),
        "core_project: all rows",
    ),
    "rows by Python": (
        operations.RunPython(
            lambda apps, editor: apps.get_model("core", "Project").objects.update(name="a")
        ),
        "core_project: all rows",
    ),
    "a default that only Django knows": (
        operations.AddField("project", "region", models.CharField(max_length=9, default="eu")),
        "core_project.region has no default",
    ),
    "a field that goes": (operations.RemoveField("project", "name"), "core_project.name goes"),
    "a field of another name": (
        operations.RenameField("project", "name", "title"),
        "core_project.name goes",
    ),
    "a model that goes": (operations.DeleteModel("Attempts"), "core_attempts."),
}
ALLOWED = {
    "a field that may be null": [
        operations.AddField("project", "region", models.CharField(max_length=9, null=True))
    ],
    "a field with a default of the database": [
        operations.AddField("project", "region", models.CharField(max_length=9, db_default="eu"))
    ],
    "a check in two steps": [
        AddConstraintNotValid("project", CHECK),
        ValidateConstraint("project", "named"),
    ],
    "a table": [operations.CreateModel("New", [("id", models.BigAutoField(primary_key=True))])],
}


def judged(*steps: operations.base.Operation, **about: object) -> list[str]:
    make_project()
    get_user_model().objects.update(last_login=timezone.now())
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    made = type("Made", (Migration,), {"operations": steps, **about})("0099_made", "core")
    state = MigrationExecutor(connection).loader.project_state()
    return apply_and_judge(made, state)


@pytest.mark.django_db
@pytest.mark.parametrize("what", REFUSED)
def test_what_stops_others_is_refused(what: str) -> None:
    operation, reason = REFUSED[what]
    assert any(found.startswith(reason) for found in judged(operation))


@pytest.mark.django_db
@pytest.mark.parametrize("what", ALLOWED)
def test_what_stops_nobody_is_not(what: str) -> None:
    assert judged(*ALLOWED[what], atomic=False) == []


@pytest.mark.django_db(transaction=True)
def test_an_index_that_is_made_beside_the_traffic_is_allowed() -> None:
    try:
        assert judged(AddIndexConcurrently("project", INDEX), atomic=False) == []
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP INDEX IF EXISTS by_name")


@pytest.mark.django_db
def test_a_migration_says_what_is_small_and_what_is_unused() -> None:
    small = {"core_project": "a row for each project"}
    assert judged(operations.AddIndex("project", INDEX), small=small) == []
    unused = {"core_project.name": "not read since 9.0.0"}
    assert judged(operations.RemoveField("project", "name"), small=small, unused=unused) == []


@pytest.mark.django_db
def test_a_change_in_one_transaction_with_its_check_is_not_in_steps() -> None:
    assert judged(*ALLOWED["a check in two steps"], atomic=True)
