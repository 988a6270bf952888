"""What the tests of a file begin with, made once for all of them: Django's `setUpTestData`, as
fixtures.

    @pytest.fixture(scope="module")
    def kept(request):
        yield from once(request, World)

    @pytest.fixture
    def world(kept, db, settings):
        return copied(kept, settings)

Not in a file with tests of `transaction=True`: they empty the database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import pytest
from django.db import transaction
from django.test import override_settings

T = TypeVar("T")


def once(request: pytest.FixtureRequest, build: Callable[[Path], T]) -> Iterator[tuple[T, Path]]:
    """Of a fixture of the file: what `build` makes with a data folder. Its rows are rolled back
    after the last test.
    """
    marks = [
        item.get_closest_marker("django_db")
        for item in request.session.items
        if item.path == request.path
    ]
    assert not any(mark and mark.kwargs.get("transaction") for mark in marks), (
        f"{request.path} has transactional tests"
    )
    request.getfixturevalue("django_db_setup")
    folder = request.getfixturevalue("tmp_path_factory").mktemp("data")
    with request.getfixturevalue("django_db_blocker").unblock(), transaction.atomic():
        with override_settings(FLYWHEEL_DATA_DIR=folder):
            made = build(folder)
        yield made, folder
        transaction.set_rollback(True)


def copied(kept: tuple[T, Path], settings: Any) -> T:
    """Of a fixture of one test: it may change its objects; what it writes is rolled back as in
    every test.
    """
    made, settings.FLYWHEEL_DATA_DIR = kept
    return deepcopy(made)
