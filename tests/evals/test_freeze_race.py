"""Freezing a set while another request changes it."""

from __future__ import annotations

import pytest
from django.db import transaction

from apps.evals import actions, drafts
from apps.evals.canonical import set_digest
from apps.evals.models import EvalSet, Task
from tests.concurrent import Other
from tests.factories import admin_of, make_eval_set, make_project

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_task_is_not_removed_while_its_set_is_frozen() -> None:
    project = make_project()
    draft = make_eval_set(project, frozen=False)
    task, n = draft.tasks.first(), draft.tasks.count()
    with transaction.atomic():
        frozen = drafts.freeze(eval_set=draft, by=admin_of(project))
        remover = Other(lambda: actions.remove_task(task=Task.objects.get(pk=task.pk), by=None))
        remover.wait_until_it_waits()
    with pytest.raises(actions.EvalSetError, match="is frozen"):
        remover.wait()
    assert draft.tasks.count() == n
    assert EvalSet.objects.get(pk=draft.pk).digest == frozen.digest == set_digest(fields(draft))


def fields(eval_set: EvalSet) -> list[dict]:
    names = ("key", "split", "group", "messages", "expected", "demonstration", "tools", "metadata")
    return list(eval_set.tasks.values(*names))


def test_a_task_that_was_removed_first_is_not_in_the_digest() -> None:
    project = make_project()
    draft = make_eval_set(project, frozen=False)
    task, by = draft.tasks.first(), admin_of(project)
    with transaction.atomic():
        actions.remove_task(task=task, by=by)
        freezer = Other(lambda: drafts.freeze(eval_set=EvalSet.objects.get(pk=draft.pk), by=by))
        freezer.wait_until_it_waits()
    assert freezer.wait().digest == set_digest(fields(draft))
