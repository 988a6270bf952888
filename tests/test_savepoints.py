"""What `tests.savepoints` sends later is as if it had been sent at once."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import DataError, connection, transaction

from apps.core import pipelined
from apps.core.models import Project
from tests.factories import make_project
from tests.savepoints import waiting

pytestmark = pytest.mark.django_db


class Undo(Exception):
    pass


def names() -> set[str]:
    return set(Project.objects.values_list("name", flat=True))


def rename(project: Project, name: str) -> None:
    Project.objects.filter(pk=project.pk).update(name=name)


def test_what_is_rolled_back_is_gone_and_what_was_around_it_stays(project: Project) -> None:
    with transaction.atomic():
        rename(project, "outer")
        with pytest.raises(Undo), transaction.atomic():
            with transaction.atomic():
                rename(project, "inner")
            assert names() == {"inner"}
            raise Undo
        assert names() == {"outer"}
        with pytest.raises(Undo), transaction.atomic():
            raise Undo
        with transaction.atomic():
            pass
    assert names() == {"outer"}


def test_after_an_error_it_goes_on(project: Project) -> None:
    with transaction.atomic():
        with pytest.raises(DataError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT 1 / %s", [0])
        with pytest.raises(Undo), transaction.atomic(), connection.cursor() as cursor:
            with pytest.raises(DataError):
                cursor.execute("SELECT 1 / %s", [0])
            transaction.savepoint()
            raise Undo
        rename(project, "after")
    assert names() == {"after"}


@pytest.mark.parametrize("how", ["execute", "many", "copy", "iterator", "stream", "trip"])
def test_each_way_to_ask_is_within_its_savepoint(project: Project, how: str) -> None:
    with pytest.raises(Undo), transaction.atomic():
        assert waiting(connection.connection)
        with connection.cursor() as cursor:
            if how == "execute":
                cursor.execute("UPDATE core_project SET name = %s", ["x"])
                assert cursor.rowcount == 1
                cursor.execute("SELECT name FROM core_project; SELECT 2")
                assert cursor.fetchall() == [("x",)] and cursor.nextset()
                assert cursor.fetchall() == [(2,)]
            elif how == "many":
                cursor.executemany("UPDATE core_project SET name = %s", [["y"], ["x"]])
            elif how == "copy":
                with cursor.copy("COPY core_project (name) TO STDOUT") as rows:
                    assert b"".join(bytes(row) for row in rows).strip() == project.name.encode()
            elif how == "trip":
                assert pipelined.send("SELECT 3", []).rows() == [("3",)]
            elif how == "iterator":
                assert list(Project.objects.values_list("pk").iterator()) == [(project.pk,)]
            else:
                assert list(cursor.cursor.stream("SELECT 3")) == [(3,)]
        assert not waiting(connection.connection)
        rename(project, "gone")
        raise Undo
    assert names() == {project.name}


def test_what_committed_is_committed(transactional_db: Any) -> None:
    project = make_project()
    with transaction.atomic(), transaction.atomic():
        rename(project, "kept")
    connection.close()
    assert names() == {"kept"}
