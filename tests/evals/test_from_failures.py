"""A task from a failure: where it is cut, what is suggested and by whom, what is stored, and that a
leak blocks it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

from apps.core.models import AuditEvent, Project
from apps.evals import actions, source_runs
from apps.evals.holdout.groups import groups_of, template_of
from apps.evals.holdout.view_log import views_of
from apps.evals.models import EvalSet, Origin, Split, Task
from apps.evals.source_runs import default_cut, prompt_at, read_run, step_at, steps_of
from apps.evals.suggestions import (
    PERSON,
    SUCCESS,
    TRUTH,
    Suggestion,
    demonstration_of,
    suggestions,
)
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Failure, FailureCluster, FailureState
from apps.failures.rules.reading import read
from apps.trajectories.models import Trajectory
from tests.factories import (
    admin_of,
    freeze_set,
    make_cluster,
    make_eval_set,
    make_failed,
    make_project,
    make_trajectory,
    row,
    tool_message,
)
from tests.shared import copied, once

pytestmark = pytest.mark.django_db

SYSTEM = {"role": "system", "content": "You are an agent."}
EXAMPLE = {"role": "assistant", "content": "Hello.", "name": "example_assistant"}
ASK = {"role": "user", "content": "Close ticket 12."}
CALL = tool_message({"tool": "tickets.find", "args": {"id": 12}})
REPLY = {"role": "tool", "tool_call_id": "call_1", "content": "open"}
DONE = {"role": "assistant", "content": "Closed."}
RUN = [SYSTEM, EXAMPLE, ASK, CALL, REPLY, DONE]


def failure_of(trajectory: Trajectory) -> Failure:
    classify_project(project=trajectory.project)
    return Failure.objects.get(trajectory=trajectory)


def test_a_task_may_be_cut_before_each_step_of_the_agent() -> None:
    assert steps_of(RUN) == [3, 5]
    assert [message["role"] for message in prompt_at(RUN, 5)] == ["user", "assistant", "tool"]
    assert prompt_at(RUN, 3) == [ASK]
    assert steps_of([SYSTEM, CALL, REPLY, DONE]) == [3], "the request came from a tool"


@pytest.mark.parametrize(("blamed", "cut"), [(3, 3), (4, 3), (5, 5), (None, 3), (0, 3)])
def test_the_blamed_step_is_where_it_is_cut(blamed: int | None, cut: int) -> None:
    assert default_cut(steps_of(RUN), blamed) == cut
    assert default_cut(steps_of([ASK]), blamed) is None


def failed(project: Project, **given: Any) -> Trajectory:
    usual = {"messages": RUN, "outcome": {"status": "failure"}}
    return make_trajectory(project, **usual | given)


def changes(*calls: dict[str, Any]) -> dict[str, Any]:
    """The episode in which these calls change something."""
    return {"calls": list(calls), "lookups": ["tickets.find"]}


def suggested(run: Trajectory, cut: int) -> list[Suggestion]:
    return list(suggestions(step_at(read_run(run), cut)))


def test_a_persons_word_comes_before_ground_truth_and_that_before_a_later_success() -> None:
    project = make_project()
    right = {"tool": "tickets.close", "args": {"id": 12}}
    edit = {
        "kind": "edit",
        "message_index": 3,
        "by": "ada",
        "after": right | {"args": {"id": 12, "note": "done"}},
    }
    row = failed(project, interventions=[edit], metadata={"expected_calls": [right]})
    success = make_trajectory(
        project,
        messages=[SYSTEM, ASK, tool_message({"tool": "tickets.shut", "args": {"id": 12}}), REPLY],
        outcome={"status": "success"},
    )
    found = suggested(row, 3)
    assert [item.source for item in found] == [PERSON, TRUTH, SUCCESS]
    assert found[0].expected == edit["after"] and found[0].detail == "by ada"
    assert found[1].expected == changes(right)
    assert found[2].expected == changes({"tool": "tickets.shut", "args": {"id": 12}})
    assert found[2].success is not None and found[2].success.messages == success.messages


def test_a_value_with_several_sources_keeps_the_place_of_the_first() -> None:
    right, other = (
        {"tool": name, "args": {"id": 12}} for name in ("tickets.close", "tickets.shut")
    )
    project = make_project()
    edit = {"kind": "edit", "message_index": 3, "after": right}
    row = failed(project, interventions=[edit], metadata={"expected_calls": [other]})
    make_trajectory(
        project, messages=[SYSTEM, ASK, tool_message(other), REPLY], outcome={"status": "success"}
    )
    assert [(item.expected, item.source) for item in suggested(row, 3)] == [
        (right, PERSON),
        (changes(other), TRUTH),
    ]


def test_an_edit_of_another_step_says_nothing_of_this_one() -> None:
    edit = {"kind": "edit", "message_index": 5, "after": "It is closed."}
    row = failed(make_project(), interventions=[edit])
    assert suggested(row, 3) == []
    assert suggested(row, 5)[0].expected == {"answer": "It is closed."}


def test_look_ups_are_never_expected_and_changes_made_already_are_not_asked_for_again() -> None:
    find, close, send = (
        {"tool": name, "args": {"id": 12}}
        for name in ("tickets.find", "tickets.close", "mail.send")
    )
    row = failed(make_project(), metadata={"expected_calls": [find, close, send]})
    assert [item.expected for item in suggested(row, 5)] == [changes(close, send)]
    done = [SYSTEM, ASK, tool_message(close), REPLY, DONE]
    row = failed(make_project(), messages=done, metadata={"expected_calls": [find, close, send]})
    assert [item.expected for item in suggested(row, 4)] == [changes(send)]


def test_an_earlier_success_or_one_of_another_request_is_none() -> None:
    project = make_project()
    make_trajectory(project, messages=RUN, outcome={"status": "success"})
    row = failed(project)
    make_trajectory(
        project,
        messages=[{"role": "user", "content": "Close ticket 13."}, CALL],
        outcome={"status": "success"},
    )
    assert suggested(row, 3) == []


def test_demonstrations_and_groups() -> None:
    assert json.loads(demonstration_of({"calls": [{"tool": "a", "args": {}, "accept": {}}]})) == [
        {"tool": "a", "args": {}}
    ]
    assert demonstration_of({"answer": ["yes", "ja"]}) == "yes"
    assert demonstration_of({"constraint": {"contains": ["x"]}}) == ""
    names = [
        name for name, _ in groups_of(failed(make_project(), session_id="s1", user_id="u1")).offered
    ]
    assert names[0] == "session" and {"request", "template", "user", "trajectory", "day"} <= set(
        names
    )
    other = [{"role": "user", "content": "Close ticket 99."}]
    assert (
        template_of([ASK])
        == template_of(other)
        != template_of([{"role": "user", "content": "Open ticket 12."}])
    )


# The page


def made_world(_: Path) -> dict[str, Any]:
    project = make_project()
    failure = failure_of(make_failed(project, call={"tool": "tickets.find", "args": {"id": 1234}}))
    draft = actions.create_eval_set(project=project, slug="new", by=None)
    url = reverse("evals:task_from_failure", args=[project.slug, failure.pk])
    return {"project": project, "failure": failure, "draft": draft, "url": url}


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_world)


@pytest.fixture
def world(kept: Any, client: Client, db: None, settings: Any) -> dict[str, Any]:
    world = copied(kept, settings)
    client.force_login(admin_of(world["project"]))
    return world | {"client": client}


def given(draft: EvalSet, **changes: Any) -> dict[str, Any]:
    expected = json.dumps({"tool": "tickets.close", "args": {"id": 1234}})
    usual = {
        "cut": 1,
        "expected": expected,
        "eval_set": draft.pk,
        "split": "train",
        "group": "",
        "replayable": "on",
    }
    return usual | changes


def group_of(failure: Failure) -> str:
    return groups_of(failure.trajectory).offered[0][1]


def test_messages_are_numbered_as_in_the_run(client: Client) -> None:
    """Also if the run begins with a system prompt, which is not part of the task."""
    project = make_project()
    client.force_login(admin_of(project))
    called = row(call={"tool": "tickets.find", "args": {"id": 1234}})["messages"]
    failure = failure_of(
        make_failed(project, messages=[{"role": "system", "content": "Be brief."}, *called])
    )
    page = client.get(
        reverse("evals:task_from_failure", args=[project.slug, failure.pk]), {"cut": 2}
    ).content.decode()
    assert 'href="#m1">#1</a>' in page and 'href="#m0"' not in page and 'href="#r0">#0</a>' in page


def test_the_page_suggests_with_the_source_and_stores_what_is_confirmed(
    world: dict[str, Any],
) -> None:
    client, failure, draft = world["client"], world["failure"], world["draft"]
    page = client.get(world["url"]).content.decode()
    assert escape(PERSON) in page and "tickets.close" in page
    response = client.post(world["url"], given(draft, group=group_of(failure)))
    assert response["Location"] == reverse("failures:triage", args=[world["project"].slug])
    task = draft.tasks.get()
    assert task.origin == Origin.FAILURE and task.confirmed_by == admin_of(world["project"])
    assert task.trajectory == failure.trajectory and task.metadata["source"] == PERSON
    assert task.tools and task.messages == [{"role": "user", "content": "Close ticket 1234."}]
    assert json.loads(task.demonstration) == task.expected
    assert task.metadata["recorded_results"] == [
        {"tool": "tickets.find", "args": {"id": 1234}, "content": "Done."}
    ]
    failure.refresh_from_db()
    assert failure.state == FailureState.CONFIRMED


def test_a_changed_value_is_the_persons_own(world: dict[str, Any]) -> None:
    expected = json.dumps({"calls": []})
    body = given(
        world["draft"],
        group=group_of(world["failure"]),
        expected=expected,
        replayable="",
        state='[{"path": "tickets.1234.status", "equals": "open"}]',
    )
    world["client"].post(world["url"], body)
    task = world["draft"].tasks.get()
    assert task.expected == {"calls": []} and task.metadata["source"] == "written by hand"
    assert "recorded_results" not in task.metadata and task.metadata["state"][0]["equals"] == "open"


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"expected": "{"}, "Not JSON"),
        ({"expected": "{}"}, "neither a call nor an answer"),
        ({"expected": '{"tool": "", "args": {}}'}, "Give the tool"),
        ({"expected": r'{"answer": "half \ud83d of it"}'}, "cannot be stored"),
        ({"expected": r'{"tool": "a", "args": {"nul\u0000": 1}}'}, "cannot be stored"),
        ({"expected": '{"tool": "a", "args": {"n": NaN}}'}, "Not JSON"),
        ({"state": "[1]"}, "Must be a list"),
        ({"state": r'[{"path": "a\u0000", "equals": "\udfff"}]'}, "cannot be stored"),
        ({"split": "general"}, "Select a valid choice"),
    ],
)
def test_bad_input_is_told_and_nothing_is_stored(
    world: dict[str, Any], changes: dict, words: str
) -> None:
    response = world["client"].post(
        world["url"], given(world["draft"], group=group_of(world["failure"]), **changes)
    )
    assert response.status_code == 400 and words in response.content.decode()
    assert not Task.objects.exists()


@pytest.mark.parametrize(
    "request_", ["Close ticket 1234.", "Please could you close the ticket 1234?"]
)
def test_a_leak_blocks_with_both_requests_and_counts_as_a_look(
    world: dict[str, Any], request_: str
) -> None:
    held = make_eval_set(world["project"], train=1, holdout=1, frozen=False)
    actions.add_task(
        eval_set=held,
        key="held",
        request=request_,
        split=Split.HOLDOUT,
        by=None,
        expected={"tool": "tickets.close", "args": {"id": 1234}},
    )
    response = world["client"].post(
        world["url"], given(world["draft"], group=group_of(world["failure"]))
    )
    page = response.content.decode()
    assert response.status_code == 400 and "would leak" in page
    assert request_ in page and str(held) in page
    assert not world["draft"].tasks.exists()
    assert {view.kind for view in views_of(held)} == {
        "membership",
        "view",
    }  # told that it is held out, and shown it
    world["failure"].refresh_from_db()
    assert world["failure"].state == FailureState.OPEN


def test_a_frozen_set_is_not_offered(world: dict[str, Any]) -> None:
    frozen = make_eval_set(world["project"])
    response = world["client"].post(world["url"], given(frozen, group=group_of(world["failure"])))
    assert response.status_code == 400 and not frozen.tasks.filter(origin=Origin.FAILURE).exists()


def test_the_same_request_twice_is_told(world: dict[str, Any]) -> None:
    body = given(world["draft"], group=group_of(world["failure"]))
    world["client"].post(world["url"], body)
    response = world["client"].post(world["url"], body)
    assert response.status_code == 400 and "already has this request" in response.content.decode()


def test_successes_that_match_become_regression_tasks(world: dict[str, Any]) -> None:
    project, draft = world["project"], world["draft"]
    for number, tag in ((7, "a"), (8, "a"), (9, "b")):
        make_trajectory(
            project,
            request=f"Close ticket {number}.",
            call={"tool": "tickets.close", "args": {"id": number}},
            outcome={"status": "success"},
            tags=[tag],
        )
    url = reverse("evals:from_successes", args=[project.slug, draft.pk])
    assert "Add 2" in world["client"].get(f"{url}?tag=a").content.decode()
    world["client"].post(f"{url}?tag=a", {"split": "regression"})
    assert {task.split for task in draft.tasks.all()} == {"regression"} and draft.tasks.count() == 2
    assert {task.origin for task in draft.tasks.all()} == {Origin.SUCCESS}


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("state", "then"),
    [("new", "in_evals"), ("triaged", "in_evals"), ("reopened", "in_evals"), ("fixed", "fixed")],
)
def test_a_cluster_is_in_evals_when_a_task_is_made_of_it(
    world: dict[str, Any], state: str, then: str
) -> None:
    cluster = make_cluster(world["failure"])
    FailureCluster.objects.filter(pk=cluster.pk).update(
        state=state, fixed_at=timezone.now(), fixed_version="2"
    )
    world["client"].post(world["url"], given(world["draft"], group=group_of(world["failure"])))
    assert world["draft"].tasks.count() == 1
    cluster.refresh_from_db()
    assert cluster.state == then
    moves = AuditEvent.objects.filter(action="cluster.moved")
    assert [event.detail["before"] for event in moves] == ([] if then == state else [state])


def test_the_run_is_read_once_for_the_page_and_the_task(
    world: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []
    monkeypatch.setattr(source_runs, "read", lambda data: runs.append(data) or read(data))
    body = given(world["draft"], group=group_of(world["failure"]))
    assert world["client"].post(world["url"], body).status_code == 302
    assert world["draft"].tasks.count() == 1 and len(runs) == 1


def test_without_a_draft_the_first_task_opens_one(client: Client) -> None:
    project = make_project()
    failure = failure_of(make_failed(project))
    client.force_login(admin_of(project))
    url = reverse("evals:task_from_failure", args=[project.slug, failure.pk])
    html = client.get(url).content.decode()
    assert "saving creates <b>production-failures</b>" in html and not project.eval_sets.exists()
    right = {"tool": "tickets.close", "args": {"id": 1234}}
    body = {
        "expected": json.dumps(right),
        "split": "train",
        "group": groups_of(failure.trajectory).offered[0][1],
    }
    assert (
        client.post(url, body | {"expected": "{"}).status_code == 400
        and not project.eval_sets.exists()
    )
    made = client.post(url, body, follow=True)
    draft = project.eval_sets.get()
    link = reverse("evals:detail", args=[project.slug, draft.pk])
    assert (
        f'A task was added to <a href="{link}">production-failures@1</a>, ' in made.content.decode()
    )
    assert 'name="holdout_size" value="1"' in client.get(link).content.decode()
    assert (str(draft), draft.tasks.get().trajectory) == (
        "production-failures@1",
        failure.trajectory,
    )
    told = client.get(url).content.decode()
    task = draft.tasks.get()
    assert "This request is already in" in told and f"task={task.pk}" in told
    assert (
        task.key
        in client.get(
            reverse("evals:detail", args=[project.slug, draft.pk]), {"task": task.pk}
        ).content.decode()
    )
    freeze_set(draft, admin_of(project))
    other = failure_of(make_failed(project, request="Close ticket 4321."))
    url = reverse("evals:task_from_failure", args=[project.slug, other.pk])
    right["args"]["id"] = 4321
    group = groups_of(other.trajectory).offered[0][1]
    assert (
        client.post(url, body | {"expected": json.dumps(right), "group": group}).status_code == 302
    )
    assert project.eval_sets.get(version=2).tasks.count() == 2


def test_that_a_request_is_held_out_is_not_said_beforehand(client: Client) -> None:
    project = make_project()
    failure = failure_of(make_failed(project))
    client.force_login(admin_of(project))
    url = reverse("evals:task_from_failure", args=[project.slug, failure.pk])
    right = json.dumps({"tool": "tickets.close", "args": {"id": 1234}})
    group = groups_of(failure.trajectory).offered[0][1]
    assert (
        client.post(url, {"expected": right, "split": "holdout", "group": group}).status_code == 302
    )
    assert project.eval_sets.get().tasks.get().split == Split.HOLDOUT
    assert "This request is already in" not in client.get(url).content.decode()
