"""The page of a set: what it offers a draft, what it hides."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.html import escape

from apps.core.models import JobState, Role
from apps.evals import actions, drafts
from apps.evals.models import EvalSet, HoldoutView, Split, Task
from apps.evals.submission import submit_eval
from tests.factories import (
    admin_of,
    key_headers,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_failed,
    make_member,
    make_project,
    make_server,
    unsearched,
)

pytestmark = pytest.mark.django_db


def url(eval_set: EvalSet, name: str = "detail") -> str:
    return reverse(f"evals:{name}", args=[eval_set.project.slug, eval_set.pk])


@pytest.mark.proof
def test_the_general_set_is_added_once(client: Client) -> None:
    draft = make_eval_set(make_project(), frozen=False)
    client.force_login(admin_of(draft.project))
    with unsearched():
        for _ in range(2):
            client.post(url(draft, "general"))
    assert draft.tasks.filter(split=Split.GENERAL).count() == 500
    page = client.get(url(draft), {"split": "general"}).content.decode()
    assert "general-arithmetic-1-01" in page


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
    client.force_login(make_member(draft.project, Role.ENGINEER))
    for task, status in ((open_, 302), (held, 404)):
        assert (
            client.post(
                reverse("evals:confirm_task", args=[draft.project.slug, task.pk])
            ).status_code
            == status
        )
    open_.refresh_from_db()
    assert open_.confirmed_by is not None


def test_a_hold_out_lists_no_task_until_it_is_opened(client: Client) -> None:
    frozen = make_eval_set(make_project())
    client.force_login(admin_of(frozen.project))
    page = client.get(url(frozen), {"split": "holdout"}).content.decode()
    assert "3 held-out tasks" in page and "data-row" not in page
    assert client.post(url(frozen, "show_holdout")).content.decode().count("data-row") == 3


def test_a_draft_without_tasks_says_how_to_add_some_and_cannot_be_frozen(client: Client) -> None:
    draft = make_eval_set(make_project(), train=0, holdout=0, frozen=False)
    client.force_login(admin_of(draft.project))
    page = client.get(url(draft)).content.decode()
    assert "Send or import some" in page and 'disabled title="Add tasks first"' in page


def test_hostile_text_stays_text(client: Client) -> None:
    draft = make_eval_set(make_project(), frozen=False)
    draft.tasks.update(expected={"answer": "<script>alert(1)</script>"})
    client.force_login(admin_of(draft.project))
    page = client.get(url(draft)).content.decode()
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_a_leak_is_shown_side_by_side_and_that_is_a_look(client: Client) -> None:
    held = make_eval_set(make_project(), frozen=True)
    secret = held.tasks.holdout().first().messages[-1]["content"]
    draft = actions.create_eval_set(project=held.project, slug="other", by=None)
    client.force_login(admin_of(held.project))
    given = {
        "key": "near",
        "request": secret,
        "expected": '{"tool": "x", "args": {}}',
        "split": Split.TRAIN,
    }
    before = held.holdout_views.count()
    answer = client.post(url(draft, "add_task"), given)
    assert answer.status_code == 400 and answer.content.decode().count(escape(secret)) == 2
    assert held.holdout_views.count() == before + 1 and not draft.tasks.exists()
    client.post(
        url(draft, "add_task"),
        given | {"split": Split.HOLDOUT, "request": "Something else entirely, by hand"},
    )
    assert held.holdout_views.count() == before + 1 and draft.tasks.count() == 1


def test_a_viewer_is_offered_nothing_to_change(client: Client) -> None:
    draft = make_eval_set(make_project(), frozen=False)
    client.force_login(make_member(draft.project, Role.VIEWER))
    page = client.get(url(draft)).content.decode()
    assert (
        draft.tasks.first().key in page
        and url(draft, "freeze") not in page
        and url(draft, "split") not in page
    )


def test_where_there_is_nothing_to_evaluate_the_page_says_what_is_missing(client: Client) -> None:
    frozen = make_eval_set(make_project(), frozen=True)
    client.force_login(admin_of(frozen.project))
    assert "No model to evaluate" in client.get(url(frozen, "new_run")).content.decode()


def test_the_search_finds_tasks_by_key_and_request_and_never_tells_of_held_out_ones(
    client: Client,
) -> None:
    frozen = make_eval_set(make_project())
    client.force_login(admin_of(frozen.project))
    tasks = frozen.tasks.order_by("pk")
    free, held = (
        tasks.exclude(split=Split.HOLDOUT).first(),
        tasks.filter(split=Split.HOLDOUT).first(),
    )

    def found(text: str) -> tuple[list[Task], str]:
        answer = client.get(url(frozen), {"q": text})
        return list(answer.context["page"]), answer.content.decode()

    assert (
        free in found(free.key.upper())[0] and free in found(free.messages[-1]["content"][:12])[0]
    )
    for text in (held.key, held.messages[-1]["content"]):
        rows, page = found(text)
        assert held not in rows and "Held-out task<" not in page
    rows, page = found("<script>%_nothing")
    assert not rows and "No matches" in page and "<script>%_" not in page


@pytest.mark.proof
def test_the_list_leads_to_an_evaluation_on_the_set_frozen_last(client: Client) -> None:
    project = make_project()
    client.force_login(admin_of(project))
    page = reverse("evals:list", args=[project.slug])
    assert "Evaluate a model" not in client.get(page).content.decode()
    make_eval_set(project)
    newest = make_eval_set(project)
    assert url(newest, "new_run") in client.get(page).content.decode()
    client.force_login(make_member(project, Role.VIEWER))
    assert (
        "new_run" not in client.get(page).content.decode()
        and "New eval set" not in client.get(page).content.decode()
    )


@pytest.mark.proof
def test_a_failed_evaluation_is_started_again_from_its_page_with_the_same_choices(
    client: Client, tmp_path: Path
) -> None:
    project = make_project()
    frozen, base, environment = (
        make_eval_set(project),
        make_base(project, tmp_path),
        make_environment(project),
    )
    run = submit_eval(
        project=project,
        eval_set=frozen,
        split=Split.TRAIN,
        environment=environment,
        model_version=base,
        samples_per_task=1,
        by=admin_of(project),
    )
    page = reverse("evals:run", args=[project.slug, run.pk])
    client.force_login(admin_of(project))
    assert "Evaluate again" not in client.get(page).content.decode(), "it is under way"
    assert run.claim("test") and run.finish(JobState.FAILED, error="The server is gone.")
    again = (
        f"{url(frozen, 'new_run')}?model_version={base.pk}&environment={environment.pk}&split=train"
    )
    assert escape(again) in client.get(page).content.decode()
    chosen = client.get(again).context["form"].initial
    assert (chosen["model_version"], chosen["environment"], chosen["split"]) == (
        str(base.pk),
        str(environment.pk),
        Split.TRAIN,
    )
    client.force_login(make_member(project, Role.VIEWER))
    assert "Evaluate again" not in client.get(page).content.decode()


def test_every_field_of_an_evaluation_is_on_the_page_once_and_what_is_wrong_is_unfolded(
    client: Client, tmp_path: Path
) -> None:
    project = make_project()
    frozen, base, environment = (
        make_eval_set(project),
        make_base(project, tmp_path),
        make_environment(project),
    )
    make_server(project, "https://gpu.example.com/v1")
    client.force_login(admin_of(project))
    answer = client.get(url(frozen, "new_run"))
    page = answer.content.decode()
    assert all(page.count(f'name="{field.name}"') == 1 for field in answer.context["form"])
    assert '<details class="more-fields">' in page
    assert not [word for word in ("`agent`", "slug@version", "“auto”") if word in page]  # the API's
    given = {
        "model_version": base.pk,
        "environment": environment.pk,
        "split": Split.HOLDOUT,
        "samples_per_task": 2,
        "seed": 0,
    }
    wrong = client.post(url(frozen, "new_run"), given | {"most_tokens": -1}).content.decode()
    assert '<details class="more-fields" open>' in wrong


def test_an_evaluation_is_started_once_and_the_list_shows_it_before_it_has_numbers(
    client: Client, tmp_path: Path
) -> None:
    project = make_project()
    frozen, base, environment = (
        make_eval_set(project),
        make_base(project, tmp_path),
        make_environment(project),
    )
    client.force_login(admin_of(project))
    given = {
        "model_version": base.pk,
        "environment": environment.pk,
        "split": Split.HOLDOUT,
        "samples_per_task": 2,
        "seed": 0,
    }
    first = client.post(url(frozen, "new_run"), given)
    assert first.status_code == 302
    assert "already running" in client.post(url(frozen, "new_run"), given).content.decode()
    assert (
        frozen.runs.count() == 1
        and frozen.holdout_views.filter(kind=HoldoutView.Kind.EVALUATION).count() == 1
    )
    page = client.get(reverse("evals:list", args=[project.slug]))
    assert page.status_code == 200 and base.name in page.content.decode()
    assert client.get(first["Location"]).status_code == 200
    for shown in (page, client.get(url(frozen))):
        assert f"Hold-out · {environment}<" in shown.content.decode()


def test_outputs_on_held_out_tasks_are_a_look_of_each_person_once(
    client: Client, tmp_path: Path
) -> None:
    project = make_project()
    run = make_eval_run(
        make_eval_set(project), make_base(project, tmp_path), make_environment(project)
    )
    page = reverse("evals:learnability", args=[project.slug, run.pk])
    for user in (admin_of(project), make_member(project)):
        client.force_login(user)
        for _ in range(2):
            client.get(page)
    assert run.eval_set.holdout_views.filter(kind=HoldoutView.Kind.VIEW).count() == 2


def test_the_page_says_what_freezing_without_a_hold_out_means_and_repairs_it(
    client: Client,
) -> None:
    project = make_project()
    alone = make_eval_set(project, train=3, holdout=0, frozen=False)
    client.force_login(admin_of(project))
    engineer = client
    page = engineer.get(url(alone, "detail")).content.decode()
    assert "Freeze without a hold-out" in page and 'name="without_holdout"' in page
    refused = engineer.post(url(alone, "freeze"), follow=True)
    assert "has no held-out tasks" in refused.content.decode()
    frozen = engineer.post(
        url(alone, "freeze"), {"without_holdout": "yes"}, follow=True
    ).content.decode()
    assert "holds nothing out" in frozen and "Make it a draft again" in frozen
    engineer.post(url(alone, "reopen"))
    alone.refresh_from_db()
    assert not alone.is_frozen
    with_holdout = make_eval_set(project, frozen=False)
    assert (
        "3 of 6 tasks stay held out" in engineer.get(url(with_holdout, "detail")).content.decode()
    )


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("Farmácia", " For example: farmacia"),
        ("bug reports", " For example: bug-reports"),
        ("薬局", ""),
        ("", ""),
    ],
)
def test_a_name_that_is_none_is_answered_with_one(name: str, example: str) -> None:
    project = make_project()
    client = Client()
    client.force_login(make_member(project, Role.ENGINEER))
    answer = client.post(reverse("evals:create", args=[project.slug]), {"slug": name}, follow=True)
    (message,) = answer.context["messages"]
    assert str(message) == f"Enter a name: letters a to z, digits and dashes.{example}"


@pytest.mark.proof
def test_an_environment_for_a_set_is_offered_productions_system_prompt(client: Client) -> None:
    project = make_project()
    eval_set = make_eval_set(project, train=4, holdout=3, frozen=False)
    prompts = ["Be brief.", "Be brief.", "Be kind.", "", "Secret.", "Secret.", "Secret."]
    for task, prompt in zip(eval_set.tasks.order_by("-split", "key"), prompts, strict=True):
        run = make_failed(project, messages=[*system(prompt), *task.messages])
        Task.objects.filter(pk=task.pk).update(trajectory=run)
    drafts.freeze(eval_set=eval_set, by=admin_of(project))
    client.force_login(admin_of(project))
    page = client.get(url(eval_set, "environment")).content.decode()
    assert "Be brief.</textarea>" in page and "2 of 4 runs" in page and "Secret." not in page
    asked = reverse("evals_api:set_environment", args=[eval_set.pk])
    found = client.get(asked, **key_headers(project)).json()
    assert found == {"system_prompt": "Be brief.", "count": 2, "runs": 4}
    other = make_eval_set(project)
    found = client.get(
        reverse("evals_api:set_environment", args=[other.pk]), **key_headers(project)
    )
    assert found.json() == {"system_prompt": None, "count": 0, "runs": 0}
    assert "From production" not in client.get(url(other, "environment")).content.decode()


def system(prompt: str) -> list[dict]:
    return [{"role": "system", "content": prompt}] if prompt else []
