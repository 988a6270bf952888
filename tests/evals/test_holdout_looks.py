"""Looks at a hold-out: counted by request over versions and sets; by API only with the right, and
so many a day.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core.actions import create_api_key
from apps.core.bus import publish
from apps.core.models import ApiKey
from apps.core.scopes import Scope
from apps.environments.models import Environment
from apps.environments.protocol.guards import Use, UsingTask
from apps.evals import actions, drafts
from apps.evals.exporting import row_of
from apps.evals.formats import TaskRow, write
from apps.evals.holdout import scoring
from apps.evals.holdout.view_log import (
    record_membership,
    record_seen,
    record_view,
    view_count,
    viewers_of,
    views_of,
)
from apps.evals.importing import Choice, store_rows
from apps.evals.models import EvalSet, HoldoutView, Split, Task
from apps.promotion.gate.policy import Policy
from apps.promotion.wear import wear_of
from apps.teamwork.actions import add_comment
from apps.teamwork.targets import kind_named
from tests.environments.gym import called
from tests.factories import (
    admin_of,
    key_headers,
    make_environment,
    make_eval_set,
    make_member,
    make_project,
    make_trajectory,
)
from tests.shared import copied, once

pytestmark = pytest.mark.django_db


def made_set(_: Path) -> tuple[EvalSet, Environment]:
    held = make_eval_set(make_project(), train=2, holdout=3)
    return held, make_environment(held.project)


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_set)


@pytest.fixture
def made(kept: Any, db: None, settings: Any) -> tuple[EvalSet, Environment]:
    return copied(kept, settings)


@pytest.fixture
def held(made: tuple[EvalSet, Environment]) -> EvalSet:
    return made[0]


def headers(held: EvalSet, may: bool = True) -> dict[str, str]:
    return key_headers(held.project, may_see_holdout=may)


# What is counted


def test_a_new_version_begins_with_the_looks_of_its_tasks(held: EvalSet) -> None:
    by = admin_of(held.project)
    for _ in range(4):
        record_view(eval_set=held, by=by)
    newer = drafts.new_version(eval_set=held, by=by)
    assert views_of(newer).count() == views_of(held).count() == 4
    record_view(eval_set=drafts.freeze(eval_set=newer, by=by), by=by)
    assert views_of(held).count() == 5


@pytest.mark.parametrize(
    "change", ["expected", "key", "case", "system", "group", "full stop", "comma", "tag", "hidden"]
)
def test_no_change_beside_the_request_makes_a_task_fresh(held: EvalSet, change: str) -> None:
    """The same request in another set, with another answer, key, spelling, harness or group: it has
    been seen.
    """
    by = admin_of(held.project)
    record_view(eval_set=held, by=by)
    task = held.tasks.holdout().first()
    other = actions.create_eval_set(project=held.project, slug="other", by=by)
    request, messages = task.messages[0]["content"], list(task.messages)
    if change == "system":
        messages = [{"role": "system", "content": "Be brief."}, *messages]
    if change == "case":
        messages = [{"role": "user", "content": f"  {request.upper()} "}]
    respelt = {
        "full stop": request.rstrip(".") if request.endswith(".") else f"{request}.",
        "comma": request.replace(" ", ", ", 1),
        "tag": f"<p>{request}</p>",
        "hidden": request.replace("e", "e\u200b"),
    }
    if change in respelt:
        messages = [{"role": "user", "content": respelt[change]}]
    Task.objects.create(
        project=held.project,
        eval_set=other,
        split=Split.HOLDOUT,
        messages=messages,
        key="new" if change == "key" else task.key,
        group="new" if change == "group" else task.group,
        expected={"answer": "new"} if change == "expected" else task.expected,
        canonical_hash=actions.canonical_hash(messages),
    )
    assert views_of(other).count() == 1


def test_fresh_tasks_begin_with_none_and_one_old_task_brings_its_looks(held: EvalSet) -> None:
    by = admin_of(held.project)
    record_seen(held.project, held.tasks.all(), by=by, detail="a")
    fresh = make_eval_set(held.project)
    assert (
        views_of(held).count() == 1
        and views_of(fresh).count() == 0 == views_of(make_eval_set(make_project())).count()
    )
    assert (
        held.tasks.first().split == Split.TRAIN
        and record_seen(held.project, held.tasks.trainable(), by=by, detail="b") is None
    )


def test_the_looks_outlive_their_set(held: EvalSet) -> None:
    by = admin_of(held.project)
    draft = drafts.new_version(eval_set=held, by=by)
    record_view(eval_set=draft, by=by)
    draft.delete()
    assert views_of(held).count() == 1


def test_what_is_seen_again_in_the_same_place_is_one_look(held: EvalSet) -> None:
    by, other = admin_of(held.project), make_member(held.project)
    first, *rest = held.tasks.holdout()
    for _ in range(3):
        record_seen(held.project, held.tasks.filter(pk=first.pk), by=by, detail="list")
    assert views_of(held).count() == 1
    record_seen(held.project, held.tasks.all(), by=by, detail="list")  # the others are new
    assert views_of(held).count() == 2 and len(views_of(held).first().tasks) == len(rest)
    record_seen(held.project, held.tasks.all(), by=other, detail="list")
    record_seen(held.project, held.tasks.all(), by=by, detail="another place")
    assert views_of(held).count() == 4
    assert {row["who"]: row["n"] for row in viewers_of(held)} == {
        by.username: 1,
        other.username: 1,
    }, "on one day"
    assert view_count(held) == 2


def test_what_shows_content_counts_once_per_person_and_day(held: EvalSet) -> None:
    by, key = (
        admin_of(held.project),
        create_api_key(
            project=held.project, name="k", by=admin_of(held.project), scopes=[Scope.READ]
        )[0],
    )
    record_view(eval_set=held, by=by)
    record_seen(held.project, held.tasks.all(), by=by, detail="list")
    HoldoutView.objects.update(at=timezone.now() - timedelta(days=2))
    record_view(eval_set=held, by=by)
    record_view(eval_set=held, by=None, kind=HoldoutView.Kind.EVALUATION)
    record_membership(
        held.project, [held.tasks.holdout()[0].canonical_hash], by=by, detail="a refusal"
    )
    for _ in range(3):
        record_seen(
            held.project,
            held.tasks.all(),
            by=key,
            detail="scored",
            kind=HoldoutView.Kind.SCORE,
            each_time=True,
        )
    assert view_count(held) == 2 + 3
    assert wear_of(held, Policy()).views == 5, "one number everywhere"


def test_a_run_with_a_held_out_request_is_a_view_wherever_it_came_from(held: EvalSet) -> None:
    by, client = admin_of(held.project), Client()
    client.force_login(by)
    request = held.tasks.holdout().first().messages[0]["content"]
    twins = [
        make_trajectory(
            held.project,
            messages=[
                {"role": "system", "content": "You help."},
                {"role": "user", "content": text},
                {"role": "assistant", "content": "Done."},
            ],
        )
        for text in (f"Please, {request.upper()}", f"{request} Thank you!")
    ]
    other = make_trajectory(
        held.project, messages=[{"role": "user", "content": "How warm is it in Oslo?"}]
    )
    page = "trajectories:detail"
    client.get(reverse(page, args=[held.project.slug, other.pk]))
    assert view_count(held) == 0
    for run in (*twins, *twins):
        client.get(reverse(page, args=[held.project.slug, run.pk]))
        client.get(reverse("trajectories:list", args=[held.project.slug]))
    assert view_count(held) == 1 == HoldoutView.objects.count(), "browsing writes one row a day"
    reader = key_headers(held.project)
    Client().get(f"/api/v1/trajectories/{twins[0].external_id}/", **reader)
    assert view_count(held) == 2


def said(*texts: str) -> list[dict]:
    """A conversation that a user begins."""
    return [
        {"role": ("user", "assistant")[place % 2], "content": text}
        for place, text in enumerate(texts)
    ]


MOVE = "Move my flight to May 3."
BOOKING = ("I have a booking.", "Which one?", "The one to Lima: cancel it.")


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("held_out", "run", "counts"),
    [
        (said(MOVE), said("Hi", "Hello!", MOVE, "Done"), True),
        (said(*BOOKING), said(*BOOKING, "Done", "Thanks"), True),
        (
            said(*BOOKING),
            [
                {"role": "system", "content": "Be brief."},
                *said("Hi", "Hello!", BOOKING[0].upper(), BOOKING[1], f"<p>{BOOKING[2]}</p>", "OK"),
            ],
            True,
        ),
        (said(MOVE), [*said(MOVE[:14]), *said(MOVE[15:])], True),
        (said(*BOOKING), said(BOOKING[2], "Which one?", "No"), False),
        (said(MOVE), said("Move my flight to May 4.", "Done"), False),
    ],
)
def test_a_held_out_conversation_within_a_run_is_a_view_of_its_page(
    held_out: list[dict], run: list[dict], counts: bool
) -> None:
    project = make_project()
    draft = make_eval_set(project, frozen=False)
    Task.objects.create(
        project=project,
        eval_set=draft,
        split=Split.HOLDOUT,
        messages=held_out,
        key="k",
        group="k",
        expected={"answer": "x"},
        canonical_hash=actions.canonical_hash(held_out),
    )
    row, client = make_trajectory(project, messages=run), Client()
    client.force_login(admin_of(project))
    for _ in range(2):
        client.get(reverse("trajectories:list", args=[project.slug]))
        client.get(reverse("trajectories:detail", args=[project.slug, row.pk]))
    assert view_count(draft) == counts == HoldoutView.objects.count()
    Client().get(f"/api/v1/trajectories/{row.external_id}/", **key_headers(project))
    assert view_count(draft) == 2 * counts


def test_a_thread_without_comments_shows_nothing(held: EvalSet) -> None:
    request = held.tasks.holdout().first().messages
    run, headers = make_trajectory(held.project, messages=request), key_headers(held.project)
    comments = f"/api/v1/comments/?on=trajectory:{run.external_id}"
    assert Client().get(comments, **headers).json()["results"] == [] and view_count(held) == 0
    add_comment(
        project=held.project,
        kind=kind_named("trajectory"),
        target=run,
        text="It quotes the request.",
        by=admin_of(held.project),
    )
    assert Client().get(comments, **headers).json()["results"] and view_count(held) == 1


def test_the_page_of_a_set_says_how_often_and_by_whom(held: EvalSet) -> None:
    client, member = Client(), make_member(held.project)
    client.force_login(member)
    for day in range(31):
        view = record_view(eval_set=held, by=member, detail="tasks on the page")
        HoldoutView.objects.filter(pk=view.pk).update(at=timezone.now() - timedelta(days=day))
    newer = drafts.new_version(eval_set=held, by=member)
    page = client.get(reverse("evals:detail", args=[held.project.slug, newer.pk])).content.decode()
    assert "once per person and day" in page and "“Runs in production” are pages" not in page
    assert (
        'Hold-out views <span class="muted small">31</span>' in page
        and f"<b>{member.username}</b>" in page
    )
    assert "has been viewed 31 times" in page and str(held) in page
    api = Client().get(reverse("evals_api:sets"), **headers(held)).json()["results"]
    assert {one["holdout_views"] for one in api} == {31}
    record_seen(held.project, held.tasks.all(), by=member, detail="runs in production: triage")
    page = client.get(reverse("evals:detail", args=[held.project.slug, newer.pk])).content.decode()
    assert "“Runs in production” are pages" in page


# Scores by API


@pytest.fixture
def environment(made: tuple[EvalSet, Environment]) -> Environment:
    return made[1]


def rows(task: Task) -> dict[str, dict]:
    """The same held-out task, as callers may send it."""
    nemo = json.loads(next(iter(write("nemo-gym", [row_of(task)]))))
    bare = {
        "responses_create_params": {"input": task.messages},
        "ground_truth": [
            {"name": task.expected["tool"], "arguments": json.dumps(task.expected["args"])}
        ],
    }
    text = bare | {"responses_create_params": {"input": task.messages[0]["content"]}}
    prompted = bare | {
        "responses_create_params": {"input": task.messages, "instructions": "You are an agent."}
    }
    polite = bare | {
        "responses_create_params": {
            "input": f"Please, {task.messages[0]['content'].lower()} Thanks!"
        }
    }
    return {"exported": nemo, "bare": bare, "text": text, "prompted": prompted, "polite": polite}


ANSWER = called({"name": "tickets.close", "args": {"id": 1}})
FORMS = ["exported", "bare", "text", "prompted", "polite"]


def verify(environment: Environment, row: dict, sent: dict[str, str], **more: Any) -> Any:
    body = json.dumps(row | {"response": ANSWER})
    return Client().post(
        f"/env/{environment}/verify", body, content_type="application/json", **sent, **more
    )


@pytest.mark.parametrize("form", FORMS)
def test_every_score_of_a_held_out_task_is_a_look(
    held: EvalSet, environment: Environment, form: str
) -> None:
    sent, row = headers(held), rows(held.tasks.holdout().first())[form]
    assert [verify(environment, row, sent).status_code for _ in range(5)] == [200] * 5
    assert views_of(held).filter(kind=HoldoutView.Kind.SCORE, api_key__name="test").count() == 5


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("form", FORMS)
def test_a_key_without_the_right_gets_no_score_and_what_it_learnt_is_a_look(
    held: EvalSet, environment: Environment, form: str
) -> None:
    sent, row = headers(held, may=False), rows(held.tasks.holdout().first())[form]
    for _ in range(3):
        refused = verify(environment, row, sent)
        assert (
            refused.status_code == 403
            and "Settings" in refused.json()["detail"]
            and "reward" not in refused.json()
        )
        seeded = Client().post(
            f"/env/{environment}/seed_session",
            json.dumps(row),
            content_type="application/json",
            **sent,
        )
        assert seeded.status_code == 403
    assert [view.kind for view in views_of(held)] == [HoldoutView.Kind.MEMBERSHIP]
    train = rows(held.tasks.trainable().first())[form]
    assert verify(environment, train, sent).status_code == 200 and views_of(held).count() == 1


def test_a_session_that_was_opened_before_the_task_was_held_out_is_not_scored(
    environment: Environment,
) -> None:
    project = environment.project
    sent = key_headers(project)
    row = {
        "responses_create_params": {"input": "Close ticket 77."},
        "ground_truth": [{"name": "x", "arguments": {}}],
    }
    client = Client()
    assert (
        client.post(
            f"/env/{environment}/seed_session",
            json.dumps(row),
            content_type="application/json",
            **sent,
        ).status_code
        == 200
    )
    draft = make_eval_set(project, frozen=False)
    actions.add_task(
        eval_set=draft,
        key="k",
        request="Close ticket 77.",
        expected={"tool": "x", "args": {}},
        split=Split.HOLDOUT,
        by=None,
    )
    innocent = row | {"responses_create_params": {"input": "Something else."}, "response": ANSWER}
    found = client.post(
        f"/env/{environment}/verify", json.dumps(innocent), content_type="application/json", **sent
    )
    assert found.status_code == 403


def test_so_many_scores_a_day_and_no_more(
    held: EvalSet, environment: Environment, settings: Any
) -> None:
    settings.FLYWHEEL_HOLDOUT_SCORES_A_DAY = 3
    sent, row = headers(held), rows(held.tasks.holdout().first())["bare"]
    assert [verify(environment, row, sent).status_code for _ in range(5)] == [200] * 3 + [429] * 2
    assert (
        "FLYWHEEL_HOLDOUT_SCORES_A_DAY" in verify(environment, row, headers(held)).json()["detail"]
    )  # another key
    train = rows(held.tasks.trainable().first())["bare"]
    assert verify(environment, train, sent).status_code == 200
    HoldoutView.objects.update(at=timezone.now() - scoring.DAY)
    assert verify(environment, row, sent).status_code == 200


@pytest.mark.parametrize("path", ["/api/v1/graders/run", "/v1/fine_tuning/alpha/graders/run"])
def test_a_grader_run_on_a_held_out_row_is_a_score(held: EvalSet, path: str) -> None:
    task = held.tasks.holdout().first()
    grader = {
        "type": "string_check",
        "name": "a",
        "operation": "eq",
        "input": "{{sample.output_text}}",
        "reference": "x",
    }
    for item in ({"messages": task.messages}, {"question": task.messages[0]["content"], "id": 7}):
        body = json.dumps({"grader": grader, "model_sample": "x", "item": item})
        refused = Client().post(
            path, body, content_type="application/json", **headers(held, may=False)
        )
        assert refused.status_code == 403 and refused.json()["error"]["code"] == "held_out"
        before = views_of(held).filter(kind=HoldoutView.Kind.SCORE).count()
        assert (
            Client().post(path, body, content_type="application/json", **headers(held)).status_code
            == 200
        )
        assert views_of(held).filter(kind=HoldoutView.Kind.SCORE).count() == before + 1


def test_a_key_sees_only_the_hold_outs_of_its_own_project(held: EvalSet) -> None:
    other = ApiKey.objects.create(project=make_project(), name="o", prefix="fw_", digest="d")
    task = {"messages": held.tasks.holdout().first().messages, "expected": {}}
    publish(UsingTask(other, task, Use.SCORE))
    assert not HoldoutView.objects.exists()


def test_the_right_is_given_with_the_key(held: EvalSet) -> None:
    client, url = Client(), reverse("core:keys", args=[held.project.slug])
    client.force_login(admin_of(held.project))
    client.post(url, {"name": "plain", "scopes": ["read"]})
    client.post(url, {"name": "sees", "scopes": ["read"], "may_see_holdout": "on"})
    assert dict(held.project.api_keys.values_list("name", "may_see_holdout")) == {
        "plain": False,
        "sees": True,
    }
    assert (
        "sees hold-outs"
        in client.get(reverse("core:keys", args=[held.project.slug])).content.decode()
    )


# What answers tell


def test_what_is_left_out_is_a_look(held: EvalSet) -> None:
    """An answer that counts what was left out says that it is held out: also where one row is sent
    at a time.
    """
    by, member = admin_of(held.project), make_member(held.project)
    draft = actions.create_eval_set(project=held.project, slug="draft", by=by)
    near = [
        {
            "messages": [{"role": "user", "content": f"Please, {task.messages[0]['content']}"}],
            "expected": task.expected,
        }
        for task in held.tasks.holdout()
    ]
    url, key = reverse("evals_api:tasks", args=[draft.pk]), headers(held, may=False)
    for number, row in enumerate(near, 1):
        said = Client().post(url, json.dumps([row]), content_type="application/json", **key).json()
        assert (
            said["left_out"] == 1
            and views_of(held).filter(kind=HoldoutView.Kind.MEMBERSHIP).count() == number
        )
    Client().post(url, json.dumps(near), content_type="application/json", **key)  # nothing new
    assert views_of(held).count() == len(near)
    store_rows(
        eval_set=draft,
        rows=[TaskRow(key="a", **near[0])],
        name="f",
        choice=Choice("flywheel"),
        by=member,
    )
    assert views_of(held).first().by == member
    fresh = [
        {"messages": [{"role": "user", "content": "Sing a song."}], "expected": {"answer": "la"}}
    ]
    assert (
        Client().post(url, json.dumps(fresh), content_type="application/json", **key).json()["made"]
        == 1
    )
    assert views_of(held).count() == len(near) + 1


def test_a_refusal_keeps_the_held_out_request_to_itself(held: EvalSet) -> None:
    task = held.tasks.holdout().first()
    draft = actions.create_eval_set(project=held.project, slug="draft", by=None)
    asked = {
        "eval_set": draft,
        "key": "a",
        "expected": task.expected,
        "split": Split.TRAIN,
        "by": None,
    }
    with pytest.raises(actions.HoldoutLeak) as refused:
        actions.add_task(request=f"Please, {task.messages[0]['content'].lower()}", **asked)
    assert task.messages[0]["content"] not in str(refused.value) and str(held) in str(refused.value)
    assert refused.value.held == [task.canonical_hash]
