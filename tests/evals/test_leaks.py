"""Nothing that is held out, or nearly the same, comes into anything that trains, whichever way is
tried.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.core.models import Project
from apps.environments.models import Environment, Package
from apps.evals import actions, drafts
from apps.evals.canonical import canonical_hash
from apps.evals.holdout import leaks
from apps.evals.models import EvalSet, Split, Task
from apps.evals.near_duplicates import compare
from apps.evals.near_duplicates.calls import document
from apps.evals.near_duplicates.training import texts_of
from apps.training.actions import TrainingError, freeze_dataset
from apps.training.models import Dataset, Method, TrainingRun
from apps.training.refusals import refuse_leaks
from apps.training.sft_rows import sft_row, whole_conversation
from apps.trajectories.exports import SftExport
from tests.amounts import amount
from tests.factories import (
    PACKAGE,
    admin_of,
    freeze_set,
    make_environment,
    make_failed,
    make_package,
    make_project,
    make_trajectory,
    task_from_trajectory,
)
from tests.shared import copied, once
from workers.lib.environments import load
from workers.lib.environments.packages.files import digest_of

pytestmark = pytest.mark.django_db
HELD = "Schedule a meeting with Anna Novak on 3 May at 14:30 about the budget review."
CALL = {
    "tool": "calendar.create",
    "args": {"title": "budget review", "with": "Anna Novak", "start": "3 May 14:30"},
}
OTHER = "Delete ticket 9913 and tell the owner that the printer works again."
OTHER_CALL = {"tool": "tickets.delete", "args": {"id": 9913}}


def paraphrases() -> st.SearchStrategy[str]:
    """The held-out request in other spellings: case, fillers, signs, hidden characters, its parts
    in another order.
    """
    first, second = (
        "Schedule a meeting with Anna Novak",
        "on 3 May at 14:30 about the budget review",
    )
    ordered = st.sampled_from([f"{first} {second}", f"{second}, {first}", f"{first}, {second}"])
    spelt = st.sampled_from([str, str.upper, str.lower, str.title])
    around = st.sampled_from(
        ["{}", "Please {}!", "Hi, could you {}? Thanks.", "  {}\n", "{}\u200b …"]
    )
    hidden = st.sampled_from(
        [
            lambda text: text,
            lambda text: text.replace("e", "e\u200d", 2),
            lambda t: t.replace(" ", "  "),
        ]
    )
    return st.builds(
        lambda text, spell, form, hide: form.format(hide(spell(text))),
        ordered,
        spelt,
        around,
        hidden,
    )


def made_project(_: Path) -> Project:
    project = make_project()
    by = admin_of(project)
    eval_set = actions.create_eval_set(project=project, slug="kept", by=by)
    add(eval_set, HELD, CALL, Split.HOLDOUT)
    drafts.freeze(eval_set=eval_set, by=by)
    return project


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_project)


@pytest.fixture
def project(kept: Any, db: None, settings: Any) -> Project:
    return copied(kept, settings)


def add(eval_set: EvalSet, request: str, call: dict, split: Split = Split.TRAIN) -> Task:
    return actions.add_task(
        eval_set=eval_set,
        key=f"task-{Task.objects.count()}",
        request=request,
        expected=call,
        split=split,
        by=admin_of(eval_set.project),
    )


def draft(project: Project) -> EvalSet:
    """With one good task, so that there is something to train on."""
    number = EvalSet.objects.filter(project=project).count()
    made = actions.create_eval_set(project=project, slug=f"draft-{number}", by=admin_of(project))
    add(made, OTHER, OTHER_CALL)
    return made


# The ways in. Each tries to put a request into a draft, by whatever means.


def by_hand(eval_set: EvalSet, request: str) -> None:
    add(eval_set, request, CALL)


def by_page(eval_set: EvalSet, request: str) -> None:
    client = Client()
    client.force_login(admin_of(eval_set.project))
    form = {
        "key": "sneaked",
        "request": request,
        "expected": json.dumps(CALL),
        "split": "train",
        "group": "g",
    }
    client.post(reverse("evals:add_task", args=[eval_set.project.slug, eval_set.pk]), form)


def from_one_trajectory(eval_set: EvalSet, request: str) -> None:
    trajectory = make_failed(eval_set.project, request=request, expected=CALL)
    task_from_trajectory(
        eval_set=eval_set, trajectory=trajectory, split=Split.TRAIN, by=admin_of(eval_set.project)
    )


def from_trajectories(eval_set: EvalSet, request: str) -> None:
    trajectories = [make_failed(eval_set.project, request=request, expected=CALL)]
    actions.tasks_from_trajectories(
        eval_set=eval_set, trajectories=trajectories, by=admin_of(eval_set.project)
    )


def unsaved(eval_set: EvalSet, request: str, split: Split = Split.TRAIN) -> Task:
    messages = [{"role": "user", "content": request}]
    return Task(
        project=eval_set.project,
        eval_set=eval_set,
        key=f"raw-{Task.objects.count()}",
        split=split,
        group=request,
        canonical_hash=canonical_hash(messages),
        messages=messages,
        expected=CALL,
        demonstration=json.dumps(CALL),
    )


def by_import(eval_set: EvalSet, request: str) -> None:
    actions.store_tasks(
        eval_set=eval_set,
        tasks=[unsaved(eval_set, request)],
        by=admin_of(eval_set.project),
        what="file",
    )


def by_orm(eval_set: EvalSet, request: str) -> None:
    unsaved(eval_set, request).save()


def by_bulk(eval_set: EvalSet, request: str) -> None:
    Task.objects.bulk_create([unsaved(eval_set, request)])


def by_edit(eval_set: EvalSet, request: str) -> None:
    task = add(eval_set, "Remind me to water the plants in the hall on Sunday.", OTHER_CALL)
    messages = [{"role": "user", "content": request}]
    Task.objects.filter(pk=task.pk).update(
        messages=messages, canonical_hash=canonical_hash(messages)
    )


def by_split(eval_set: EvalSet, request: str) -> None:
    unsaved(eval_set, request, Split.VALIDATION).save()
    add(eval_set, "Remind me to water the plants in the hall on Sunday.", OTHER_CALL)
    drafts.split_by_group(eval_set=eval_set, holdout_size=1, seed=1, by=admin_of(eval_set.project))


def by_demonstration(eval_set: EvalSet, request: str) -> None:
    """The request is innocent, and the conversation before it is not."""
    messages = [
        {"role": "user", "content": request},
        {"role": "assistant", "content": json.dumps(CALL)},
        {"role": "user", "content": "Now close ticket 4 for me, it is done since Friday."},
    ]
    task = unsaved(eval_set, "x" + request)
    task.messages, task.canonical_hash = messages, canonical_hash(messages)
    task.save()


WAYS: list[Callable[[EvalSet, str], None]] = [
    by_hand,
    by_page,
    from_one_trajectory,
    from_trajectories,
    by_import,
    by_orm,
    by_bulk,
    by_edit,
    by_split,
    by_demonstration,
]


def trained_on(eval_set: EvalSet) -> list[dict]:
    """The rows that a training run of this draft would get; none where it is refused."""
    by = admin_of(eval_set.project)
    try:
        with transaction.atomic():
            frozen = freeze_set(eval_set, by)
            dataset = freeze_dataset(eval_set=frozen, by=by)
    except (actions.EvalSetError, TrainingError):
        return []
    tasks = [row.task for row in dataset.rows.select_related("task")]
    plain = load({"kind": "single_turn", "harness": {}, "verifier": {"kind": "no_call"}})
    return [whole_conversation(row) for task in tasks if (row := sft_row(task, plain))] + [
        task.as_spec() for task in tasks
    ]


def near(row: dict[str, Any]) -> bool:
    held = document([{"role": "user", "content": HELD}], CALL)
    units = texts_of(row)
    return any(
        compare.similarity(held, document(unit.messages, unit.expected)) >= compare.THRESHOLD
        for unit in units
    )


@pytest.mark.more
@settings(
    max_examples=amount(10, 60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(way=st.sampled_from(WAYS), request=paraphrases())
def test_no_way_leads_from_a_hold_out_into_training(
    project: Project, way: Callable[[EvalSet, str], None], request: str
) -> None:
    with transaction.atomic():
        eval_set = draft(project)
        try:
            with transaction.atomic():
                way(eval_set, request)
        except (actions.EvalSetError, IntegrityError):
            pass
        assert not [row for row in trained_on(eval_set) if near(row)]
        transaction.set_rollback(True)


def test_what_shares_nothing_trains(project: Project) -> None:
    """The same question with no way tried: the test above would pass if nothing ever trained."""
    assert len(trained_on(draft(project))) == 2


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(request=paraphrases())
def test_no_export_to_train_on_has_it(project: Project, request: str) -> None:
    with transaction.atomic():
        make_trajectory(project, request=request, call=CALL, outcome={"status": "success"})
        make_trajectory(project, request=OTHER, call=OTHER_CALL, outcome={"status": "success"})
        export = SftExport(project.trajectories.all(), project=project)
        lines = [json.loads(line) for line in export]
        assert export.written == 1 and sum(export.left_out.values()) == 1
        assert not [line for line in lines if near(line)]
        transaction.set_rollback(True)


def test_a_leak_is_told_side_by_side(project: Project) -> None:
    with pytest.raises(actions.HoldoutLeak, match=r"please schedule.*kept@1, Hold-out") as raised:
        add(draft(project), HELD.replace("Schedule", "please schedule"), CALL)
    assert raised.value.pair.theirs == HELD
    assert HELD not in str(raised.value)


def test_the_same_template_with_other_values_is_no_leak(project: Project) -> None:
    other = {
        "tool": "calendar.create",
        "args": {"title": "roof", "with": "Bob Li", "start": "7 June 09:00"},
    }
    assert add(
        draft(project), "Schedule a meeting with Bob Li on 7 June at 09:00 about the roof.", other
    ).pk


def test_what_is_added_in_bulk_leaves_leaks_out_and_tells_them(project: Project) -> None:
    eval_set = draft(project)
    tasks = [
        unsaved(eval_set, HELD.upper() + " please"),
        unsaved(eval_set, "Book a room for 12 people tomorrow."),
    ]
    tasks[0].key, tasks[1].key, tasks[1].expected = "one", "two", OTHER_CALL
    tasks[1].demonstration = json.dumps(OTHER_CALL)
    made = actions.store_tasks(eval_set=eval_set, tasks=tasks, by=admin_of(project), what="test")
    assert (made.made, [leak.key for leak in made.leaks]) == (1, ["one"])


def test_near_duplicates_go_to_one_side_of_a_split() -> None:
    project = make_project()
    eval_set = actions.create_eval_set(project=project, slug="fresh", by=admin_of(project))
    for number in range(12):
        request = f"Book room {number}01 for the team of Maria Berg{number} on {number + 1} May"
        call = {"tool": "rooms.book", "args": {"room": f"{number}01", "day": f"{number + 1} May"}}
        unsaved_pair = [
            unsaved(eval_set, request),
            unsaved(eval_set, f"Please, {request.lower()}!"),
        ]
        for place, task in enumerate(unsaved_pair):
            task.key, task.expected = f"{number}-{place}", call
            task.canonical_hash = f"{number}-{place}"
        Task.objects.bulk_create(unsaved_pair)
    sizes = drafts.split_by_group(eval_set=eval_set, holdout_size=6, seed=3, by=admin_of(project))
    tasks = list(eval_set.tasks.all())
    assert sizes["holdout"] >= 6 and sizes["train"] > 0
    assert not list(leaks.near(project, tasks))
    assert {task.split for task in tasks if task.key.startswith("3-")} in ({"holdout"}, {"train"})


def test_an_example_in_the_prompt_is_no_way_in(project: Project) -> None:
    environment = make_environment(project)
    environment.harness = environment.harness | {
        "examples": [{"role": "user", "content": HELD.lower()}]
    }
    found = list(leaks.of_harness(environment))
    assert len(found) == 1 and "kept@1" in found[0].theirs_set


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("inbox.json", '{"mails": [{"body": %s}]}'),
        ("mail.py", "class A:\n    def start(self, task):\n        return {'mail': %s}"),
        ("by_subject.json", '{"mails": {%s: "unread"}}'),
        ("mail.py", "MAIL = b%s"),
        ("inbox.jsonl", '{"id": "m1", "request": %s}\n{"id": "m2", "request": "Hello"}'),
        ("rows.json", '[{"id": "t1", "prompt": "Which printer?", "start": {"mail": %s}}]'),
        ("mail.py", "MAIL = {'id': 1, 'question': 'Who?', 'mail': %s}"),
        ("mail.py", "class Inbox:\n    def tasks(self):\n        return [%s]"),
        ("prompt.md", "# How to work\n\n- %s\n"),
        ("guide.rst", "Guide\n=====\n\n%s\n"),
        ("settings.toml", "[mail]\nbody = %s\n"),
        ("tests/test_mail.py", "MAIL = %s\n"),
        ("mail.py", "class Mail:\n    %s\n    def read(self):\n        return self.__doc__"),
    ],
)
def test_no_file_of_a_package_shows_what_is_held_out(
    project: Project, tmp_path: Path, path: str, content: str
) -> None:
    environment = make_package(project, tmp_path)
    assert not list(leaks.of_harness(environment))
    add_file(environment, path, content % json.dumps(f"Forwarded: {HELD.lower()} Thanks!"))
    (leak,) = leaks.of_harness(environment)
    assert leak.key == f"{path} of {environment}"


def add_file(environment: Environment, path: str, text: str) -> None:
    files = environment.package.files | {path: base64.b64encode(text.encode()).decode()}
    environment.package = Package(
        project=environment.project, name="counter", digest=digest_of(files), files=files
    )


def test_a_package_may_hold_its_own_tasks_out_but_show_them_nowhere_else(
    project: Project, tmp_path: Path
) -> None:
    environment = make_package(project, tmp_path)
    row = {"key": "own", "metadata": {"goal": HELD.replace("Schedule", "Plan")}}
    text = json.dumps(row | {"asked": HELD, "note": "No id, and another name of the request"})
    code = PACKAGE.replace(
        "return [",
        "row = __import__('json').loads((__import__('pathlib').Path(__file__).parent"
        " / 'rows.json').read_text())\n        return [{'id': row['key'], 'prompt': row['asked'],"
        " 'metadata': row['metadata']}, ",
    )
    add_file(environment, "rows.json", text)
    add_file(environment, "__init__.py", code)
    assert not list(leaks.of_harness(environment))
    add_file(environment, "inbox.json", json.dumps([{"id": "own", "request": HELD}, "Hi!"]))
    assert len(list(leaks.of_harness(environment))) == 1


# Every place whose text trains: the request stands there behind other words, and the answer has
# another form.

WRAPPED = (
    f"Customers write all sorts of things to us, often late at night. {HELD.lower()} That was the"
    " last one."
)


def with_system_prompt(task: Task) -> None:
    task.messages = [{"role": "system", "content": WRAPPED}, *task.messages]


def with_tool_result(task: Task) -> None:
    task.messages = [
        *task.messages,
        {"role": "tool", "tool_call_id": "c", "content": json.dumps({"body": WRAPPED})},
    ]


def with_tool_description(task: Task) -> None:
    task.tools = [
        {"type": "function", "function": {"name": "f", "description": WRAPPED, "parameters": {}}}
    ]


def with_demonstration(task: Task) -> None:
    task.demonstration = WRAPPED


def with_recorded_result(task: Task) -> None:
    task.metadata = {"recorded_results": [{"tool": "inbox.read", "args": {}, "content": WRAPPED}]}


def with_the_same_calls(task: Task) -> None:
    task.expected = {"calls": [CALL]}


def with_the_call_demonstrated(task: Task) -> None:
    task.demonstration = f"<tool_call>{json.dumps(CALL)}</tool_call>"


def with_half_of_it_demonstrated(task: Task) -> None:
    first, second = HELD.split(" at ")
    task.messages = [{"role": "user", "content": f"{first} at"}]
    task.canonical_hash, task.demonstration = canonical_hash(task.messages), second
    task.metadata = {
        "source": "written by a clerk of the shop for another customer on some other day"
    }


def with_a_property_of_its_name(task: Task) -> None:
    schema = {"type": "object", "properties": {HELD: {"type": "string"}}}
    task.tools = [
        {"type": "function", "function": {"name": "f", "description": "?", "parameters": schema}}
    ]


def with_the_call_accepted(task: Task) -> None:
    accept = {name: ["zz", value] for name, value in CALL["args"].items()}
    task.expected = {
        "tool": CALL["tool"],
        "args": dict.fromkeys(CALL["args"], "zz"),
        "accept": accept,
    }


PLACES = [
    with_the_call_demonstrated,
    with_half_of_it_demonstrated,
    with_a_property_of_its_name,
    with_the_call_accepted,
    with_system_prompt,
    with_tool_result,
    with_tool_description,
    with_demonstration,
    with_recorded_result,
    with_the_same_calls,
]


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("put", PLACES)
def test_no_text_of_a_task_holds_what_is_held_out(
    project: Project, put: Callable[[Task], None]
) -> None:
    eval_set, by = draft(project), admin_of(project)
    task = unsaved(eval_set, "Which printer is the nearest to the canteen?")
    task.expected, task.demonstration = {"answer": "P4"}, "P4"
    put(task)
    made = actions.store_tasks(eval_set=eval_set, tasks=[task], by=by, what="file")
    assert (made.made, len(made.leaks)) == (0, 1)
    assert HELD not in str(made.leaks[0])
    Task.objects.bulk_create([task])
    with pytest.raises(actions.HoldoutLeak):
        freeze_set(eval_set, by)


@pytest.mark.parametrize("put", PLACES)
def test_a_new_held_out_task_is_searched_in_what_trains_already(
    put: Callable[[Task], None],
) -> None:
    project = make_project()
    eval_set = draft(project)
    task = unsaved(eval_set, "Which printer is the nearest to the canteen?")
    task.expected, task.demonstration = {"answer": "P4"}, "P4"
    put(task)
    task.save()
    with pytest.raises(actions.HoldoutLeak):
        add(draft(project), HELD, CALL, Split.HOLDOUT)


@pytest.mark.parametrize(
    "harness",
    [
        {"system_prompt": WRAPPED},
        {
            "examples": [
                {"role": "user", "content": WRAPPED},
                {"role": "assistant", "content": "ok"},
            ]
        },
        {"tools": [{"type": "function", "function": {"name": "f", "description": WRAPPED}}]},
    ],
)
def test_no_harness_shows_what_is_held_out(project: Project, harness: dict) -> None:
    environment = make_environment(project)
    environment.harness = environment.harness | harness
    found = list(leaks.of_harness(environment))
    assert [leak.theirs for leak in found] == [HELD]


def test_the_rows_of_a_job_are_searched_once_more(project: Project) -> None:
    run = TrainingRun(
        project=project,
        method=Method.SFT,
        environment=make_environment(project),
        dataset=Dataset(project=project),
    )
    row = {"messages": [{"role": "user", "content": OTHER}], "tools": [], "completion": "Done."}
    refuse_leaks(run, [], [("good", row)])
    for bad in (
        {"completion": WRAPPED},
        {"messages": [{"role": "system", "content": WRAPPED}, *row["messages"]]},
    ):
        with pytest.raises(actions.HoldoutLeak, match="Nothing was trained"):
            refuse_leaks(run, [], [("good", row), ("bad", row | bad)])


def test_no_export_has_a_run_that_says_it_elsewhere(project: Project) -> None:
    make_trajectory(
        project,
        request=f"FYI, from my inbox: {HELD.upper()}",
        call=OTHER_CALL,
        outcome={"status": "success"},
    )
    make_trajectory(project, request=OTHER, call=OTHER_CALL, outcome={"status": "success"})
    export = SftExport(project.trajectories.all(), project=project)
    assert len(list(export)) == 1 and sum(export.left_out.values()) == 1


def test_a_changed_hold_out_is_searched_as_it_is_now(project: Project) -> None:
    """The index of a hold-out is kept in memory only as long as its rows are the same."""
    row = [("row", {"text": f"{OTHER} {OTHER}"})]
    assert not list(leaks.of_rows(project, row))
    add(
        actions.create_eval_set(project=project, slug="more", by=admin_of(project)),
        OTHER,
        OTHER_CALL,
        Split.HOLDOUT,
    )
    assert list(leaks.of_rows(project, row))
