"""Tasks that people work with: edited, tagged, moved and removed, by page and API, and never across
a hold-out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import AuditEvent, Role
from apps.evals import actions, drafts, editing
from apps.evals.canonical import set_digest
from apps.evals.formats import TaskRow, read, write
from apps.evals.models import EvalSet, HoldoutView, Origin, Split, Task
from tests.factories import (
    admin_of,
    key_headers,
    make_eval_set,
    make_failed,
    make_member,
    make_project,
)
from tests.shared import copied, once
from tests.test_access import logged_in

pytestmark = pytest.mark.django_db
ANSWER = {"answer": "Done."}


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(
        request, lambda _: make_eval_set(make_project(), train=4, holdout=2, frozen=False)
    )


@pytest.fixture
def draft(kept: Any, db: None, settings: Any) -> EvalSet:
    return copied(kept, settings)


def first(eval_set: EvalSet, split: Split = Split.TRAIN) -> Task:
    return eval_set.tasks.filter(split=split).first()


def engineer(eval_set: EvalSet) -> Client:
    return logged_in(make_member(eval_set.project, Role.ENGINEER))


def edit(task: Task, **changes: Any) -> Task:
    return editing.edit_task(
        task=task, seen=editing.fingerprint(task), by=admin_of(task.project), **changes
    )


def change(eval_set: EvalSet, tasks: Any, what: str, value: str = "") -> int:
    return editing.change_tasks(
        eval_set=eval_set,
        tasks=[task.pk for task in tasks],
        what=what,
        value=value,
        by=admin_of(eval_set.project),
    )


def test_a_task_of_a_frozen_set_is_edited_in_its_next_version() -> None:
    frozen = make_eval_set(make_project())
    task, digest = first(frozen), frozen.digest
    made = edit(task, expected=ANSWER, tags=["billing"])
    assert (made.eval_set.version, made.eval_set.is_frozen, made.expected, made.metadata) == (
        2,
        False,
        ANSWER,
        {"tags": ["billing"]},
    )
    task.refresh_from_db()
    assert (
        task.expected != ANSWER
        and set_digest(map(actions.content_of, frozen.tasks.all())) == digest
    )
    assert edit(first(made.eval_set), demonstration="x").eval_set == made.eval_set, (
        "the open draft is used again"
    )
    event = AuditEvent.objects.filter(action="task.edited").earliest("pk")
    assert event.detail["changed"] == ["expected", "metadata"]


def test_two_tabs_do_not_overwrite_each_other() -> None:
    frozen = make_eval_set(make_project())
    task = first(frozen)
    seen = editing.fingerprint(task)
    edit(task, expected=ANSWER)
    with pytest.raises(editing.Changed, match="changed in"):
        editing.edit_task(task=task, seen=seen, by=None, demonstration="late")
    assert not Task.objects.filter(demonstration="late").exists()


def test_an_edited_request_may_not_be_another_task_or_a_held_out_one(draft: EvalSet) -> None:
    one, two = draft.tasks.filter(split=Split.TRAIN)[:2]
    held = first(draft, Split.HOLDOUT)
    with pytest.raises(actions.EvalSetError, match="another task with this request"):
        edit(one, messages=two.messages)
    with pytest.raises(actions.EvalSetError, match="another task with this request") as refused:
        edit(one, messages=held.messages)
    assert refused.value.held == {held.canonical_hash}, "who is told so has learnt what is held out"
    with pytest.raises(actions.HoldoutLeak):
        edit(
            one,
            messages=[
                {"role": "user", "content": f"Please: {held.messages[0]['content']} Thank you!"}
            ],
        )
    changed = edit(one, messages=[{"role": "user", "content": "Water the ferns."}])
    assert changed.canonical_hash == changed.group != one.canonical_hash


def test_tasks_are_moved_all_or_none(draft: EvalSet) -> None:
    train = list(draft.tasks.filter(split=Split.TRAIN))
    assert change(draft, train[:2], "move", "validation") == 2
    Task.objects.filter(pk__in=[train[2].pk, train[3].pk]).update(
        group="g", group_key="g", groups=["g"]
    )
    with pytest.raises(actions.HoldoutLeak):
        change(draft, [train[2]], "move", "holdout")  # the other one of its group stays
    assert draft.tasks.filter(split=Split.HOLDOUT).count() == 2
    assert change(draft, train[2:], "move", "holdout") == 2
    assert change(draft, draft.tasks.filter(split=Split.HOLDOUT), "move", "train") == 4, (
        "nothing has held them out yet"
    )
    with pytest.raises(actions.EvalSetError, match="Choose one of the splits"):
        change(draft, train, "move", "nowhere")


def test_what_an_earlier_version_holds_out_never_moves_into_training() -> None:
    frozen = make_eval_set(make_project())
    draft = drafts.new_version(eval_set=frozen, by=None)
    with pytest.raises(actions.HoldoutLeak):
        change(draft, draft.tasks.filter(split=Split.HOLDOUT), "move", "train")
    assert draft.tasks.filter(split=Split.HOLDOUT).count() == 3
    with pytest.raises(actions.EvalSetError, match="frozen"):
        change(frozen, frozen.tasks.all(), "tag", "x")


def test_synthetic_tasks_are_not_held_out(draft: EvalSet) -> None:
    Task.objects.filter(pk=first(draft).pk).update(origin=Origin.SYNTHETIC)
    with pytest.raises(actions.EvalSetError, match="synthetic"):
        change(draft, draft.tasks.filter(origin=Origin.SYNTHETIC), "move", "holdout")


def test_tags_confirm_and_remove(draft: EvalSet) -> None:
    tasks = list(draft.tasks.filter(split=Split.TRAIN)[:2])
    assert (
        change(draft, tasks, "tag", " billing ") == 2
        and change(draft, tasks, "tag", "billing") == 0
    )
    assert editing.tags_in(draft) == ["billing"] and editing.tags_of({"tags": "a, b ,a"}) == [
        "a",
        "b",
    ]
    assert change(draft, tasks[:1], "untag", "billing") == 1
    for bad in ("", "a,b", "x" * 41):
        with pytest.raises(actions.EvalSetError, match="A tag has"):
            change(draft, tasks, "tag", bad)
    Task.objects.update(confirmed_by=None)
    assert (
        change(draft, tasks, "confirm") == 2 and draft.tasks.filter(confirmed_by=None).count() == 4
    )
    assert change(draft, tasks, "remove") == 2 and draft.tasks.count() == 4
    with pytest.raises(actions.EvalSetError, match="Choose one of"):
        change(draft, tasks, "explode")


@pytest.mark.proof
def test_by_the_page(draft: EvalSet) -> None:
    client, task = engineer(draft), first(draft)
    url = reverse("evals:edit_task", args=[draft.project.slug, task.pk])
    form = client.get(url).context["form"]
    given = {
        name: form.initial[name]
        for name in ("request", "expected", "demonstration", "tags", "seen")
    }
    assert given["request"] == task.messages[0]["content"], "one text is edited as text"
    for expected, problem in (
        ("{", "Not JSON"),
        ('{"tool": 3, "args": {}}', "expected.tool"),
        ('{"pattern": "("}', "pattern"),
        ("[]", "expected"),
    ):
        page = client.post(url, given | {"expected": expected})
        assert page.status_code == 400 and problem in page.content.decode()
    for expected in (
        {"calls": []},
        {"constraint": {"contains": ["x"]}},
        {"pattern": "a+"},
        {"schema": {"type": "object"}},
        {"rubric": "Is it polite?"},
        {"state": {"tickets": {}}},
        {"tests": ["assert 1"]},
        ANSWER,
    ):
        given["seen"] = client.get(url).context["form"].initial["seen"]
        saved = client.post(
            url, given | {"expected": json.dumps(expected), "tags": "a, b"}, follow=True
        )
        assert (
            next(iter(expected)) in saved.content.decode()
            and Task.objects.get(pk=task.pk).expected == expected
        )
    assert (
        "since you opened it"
        in client.post(url, given | {"expected": json.dumps({"answer": "late"})}).content.decode()
    )
    detail = reverse("evals:detail", args=[draft.project.slug, draft.pk])
    listed = client.get(detail, {"tag": "a"})
    assert [row.pk for row in listed.context["page"]] == [
        task.pk
    ] and 'value="b"' in listed.content.decode()
    held = first(draft, Split.HOLDOUT)
    held.metadata = {"tags": ["secret"]}
    held.save()
    assert "secret" not in client.get(detail).content.decode()
    assert (
        client.get(reverse("evals:edit_task", args=[draft.project.slug, held.pk])).status_code
        == 302
    ), "it is to be opened first"
    other = draft.tasks.filter(split=Split.TRAIN).last()
    near = reverse("evals:edit_task", args=[draft.project.slug, other.pk])
    form = client.get(near).context["form"]
    again = {name: form.initial[name] for name in given} | {"request": held.messages[0]["content"]}
    assert client.post(near, again).status_code == 400
    assert HoldoutView.objects.exists(), "who is refused has learnt that the request is held out"
    many = reverse("evals:change_tasks", args=[draft.project.slug, draft.pk])
    client.post(many, {"ids": f"{task.pk},nonsense", "what": "move", "split": "validation"})
    assert Task.objects.get(pk=task.pk).split == "validation"


def test_a_task_written_by_hand_may_expect_any_form(draft: EvalSet) -> None:
    given = {
        "key": "polite",
        "request": "Say hello to the ferns.",
        "expected": '{"rubric": "Is it polite?"}',
        "split": "train",
    }
    engineer(draft).post(reverse("evals:add_task", args=[draft.project.slug, draft.pk]), given)
    made = draft.tasks.get(key="polite")
    assert made.expected == {"rubric": "Is it polite?"} and made.demonstration == ""


def test_no_way_of_storing_a_task_takes_an_empty_request(draft: EvalSet) -> None:
    by, task = admin_of(draft.project), first(draft)
    whole = {"key": "e", "expected": ANSWER, "split": Split.TRAIN, "by": by}
    for add in (
        lambda: actions.add_task(eval_set=draft, request=" ", **whole),
        lambda: actions.store_tasks(
            eval_set=draft,
            tasks=[actions.written_task(draft, request="\u3164", **whole)],
            by=by,
            what="test",
        ),
        lambda: edit(task, messages=[{"role": "user", "content": "\u200b \n"}]),
    ):
        with pytest.raises(actions.EvalSetError, match="Enter the request"):
            add()
    run = make_failed(draft.project, request="\u200b")
    made = actions.tasks_from_trajectories(eval_set=draft, trajectories=[run], by=by)
    assert made.made == 0 and not draft.tasks.filter(key="e").exists()


def test_by_the_api(draft: EvalSet) -> None:
    headers = key_headers(draft.project)
    task, held = first(draft), first(draft, Split.HOLDOUT)

    def post(name: str, body: dict) -> Any:
        return Client().post(
            reverse(f"evals_api:{name}", args=[draft.pk]),
            json.dumps(body),
            content_type="application/json",
            **headers,
        )

    assert post("edit_task", {"key": task.key, "expected": ANSWER, "tags": ["x"]}).json() == {
        "set": str(draft),
        "key": task.key,
    }
    assert Task.objects.get(pk=task.pk).expected == ANSWER
    assert post(
        "change_tasks", {"keys": [task.key], "what": "move", "value": "validation"}
    ).json() == {"changed": 1}
    for name, body, status in (
        ("edit_task", {"key": "none"}, 404),
        ("edit_task", {"key": task.key, "expected": {"tool": 1}}, 400),
        ("edit_task", {"key": task.key, "messages": []}, 400),
        ("edit_task", {"key": task.key, "messages": [{"role": "user", "content": " "}]}, 400),
        ("change_tasks", {"keys": [task.key], "what": "explode"}, 400),
        ("change_tasks", {"keys": [task.key, "none"], "what": "remove"}, 404),
        ("change_tasks", {"keys": [held.key], "what": "move", "value": "train"}, 403),
        ("edit_task", {"key": held.key}, 403),
    ):
        assert post(name, body).status_code == status, (name, body)
    assert HoldoutView.objects.filter(api_key__isnull=False).exists(), (
        "a key that is refused has learnt that a task is held out"
    )
    near = {"key": first(draft).key, "messages": first(draft, Split.HOLDOUT).messages}
    HoldoutView.objects.all().delete()
    assert (
        post("edit_task", near).status_code == 409
        and HoldoutView.objects.filter(api_key__isnull=False).exists()
    )


def test_tasks_as_csv_come_back_as_they_were() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    rows = [
        TaskRow(
            "a",
            [{"role": "user", "content": '=HYPERLINK("http://evil")'}],
            {"answer": "x"},
            metadata={"tags": ["b", "c"], "n": 1},
        ),
        TaskRow(
            "b",
            [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi,\n“you”"}],
            {"calls": []},
            demonstration="'=1",
        ),
        TaskRow(
            "c",
            [
                {"role": "user", "content": "Hi"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c", "content": "7"},
            ],
            {"pattern": "7"},
            group="g",
            split="train",
            tools=[{"type": "function", "function": {"name": "f"}}],
        ),
        TaskRow(
            "d",
            [{"role": "user", "content": '[{"role": "user", "content": "quoted"}]'}],
            {"rubric": "Good?"},
        ),
    ]
    lines = list(write("csv", rows))
    assert not any(cell.startswith("=") for line in lines for cell in line.split(","))
    assert list(read("csv", "".join(lines).splitlines(keepends=True))) == rows
