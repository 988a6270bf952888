"""The page of a set: what it offers a draft, what it hides."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Role
from apps.evals.models import EvalSet, Split
from tests.factories import admin_of, make_eval_set, make_member, make_project

pytestmark = pytest.mark.django_db


def url(eval_set: EvalSet, name: str = "detail") -> str:
    return reverse(f"evals:{name}", args=[eval_set.project.slug, eval_set.pk])


def test_the_general_set_is_added_once(client: Client) -> None:
    draft = make_eval_set(make_project(), frozen=False)
    client.force_login(admin_of(draft.project))
    for _ in range(2):
        client.post(url(draft, "general"))
    assert draft.tasks.filter(split=Split.GENERAL).count() == 60
    page = client.get(url(draft), {"split": "general"}).content.decode()
    assert "Answer with the number only" in page


def test_a_frozen_set_refuses_and_offers_nothing_to_add(client: Client) -> None:
    frozen = make_eval_set(make_project())
    client.force_login(admin_of(frozen.project))
    assert "is frozen" in client.post(url(frozen, "general"), follow=True).content.decode()
    page = client.get(url(frozen)).content.decode()
    assert "From a file" not in page and "Export" in page
    assert client.get(url(frozen, "import")).status_code == 302


def test_a_task_is_confirmed_by_a_member_and_a_held_out_one_by_nobody(client: Client) -> None:
    draft = make_eval_set(make_project(), frozen=False)
    draft.tasks.update(confirmed_by=None)
    open_, held = draft.tasks.trainable().first(), draft.tasks.holdout().first()
    client.force_login(make_member(draft.project, Role.MEMBER))
    for task, status in ((open_, 302), (held, 404)):
        assert client.post(reverse("evals:confirm_task", args=[draft.project.slug, task.pk])).status_code == status
    open_.refresh_from_db()
    assert open_.confirmed_by is not None


def test_hostile_text_stays_text(client: Client) -> None:
    draft = make_eval_set(make_project(), frozen=False)
    draft.tasks.update(expected={"answer": "<script>alert(1)</script>"})
    client.force_login(admin_of(draft.project))
    page = client.get(url(draft)).content.decode()
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
