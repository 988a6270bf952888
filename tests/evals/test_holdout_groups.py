"""A group that is held out is held out for later runs too, through every way to training, whatever
the set was grouped by.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.test import Client
from django.urls import reverse

from apps.core.models import Project
from apps.evals import actions, drafts, exporting, from_failures, importing
from apps.evals.canonical import canonical_hash
from apps.evals.formats import TaskRow
from apps.evals.holdout.groups import groups_of, held_out_runs
from apps.evals.models import EvalSet, Split, Task
from apps.evals.source_runs import read_run, step_at
from apps.evals.suggestions import BY_HAND, Suggestion
from apps.failures.actions.diagnose import classify_project
from apps.training.actions import TrainingError, freeze_dataset
from apps.training.models import Method, TrainingRun
from apps.training.refusals import refuse_leaks
from apps.trajectories.exports import HELD_OUT, SftExport
from apps.trajectories.models import Trajectory
from tests.amounts import amount
from tests.factories import (
    admin_of,
    freeze_set,
    make_environment,
    make_failed,
    make_project,
    make_trajectory,
    task_from_trajectory,
)

pytestmark = [pytest.mark.django_db, pytest.mark.more]
LATER = "Order a new headset for the front desk by Monday."
CALL = {"tool": "shop.order", "args": {"item": "headset"}}
# By what the hold-out was grouped: (fields of its run, the name of the group, fields of a later run
# of the same group)
KINDS: dict[str, tuple[dict, str, dict]] = {
    "user": ({"user_id": "Zoë Ng"}, "user", {"user_id": "Zoë Ng", "session_id": "other"}),
    "session": ({"session_id": "s-17"}, "session", {"session_id": "s-17", "user_id": "else"}),
    "log": (
        {"metadata": {"group": "acme"}},
        "named in the log",
        {"metadata": {"group": "acme", "x": 1}},
    ),
    "day": ({"started_at": "2026-03-01T08:00:00Z"}, "day", {"started_at": "2026-03-01T23:00:00Z"}),
    "template": (
        {"request": "Order 12 headsets of kind A77."},
        "template",
        {"request": "Order 9 headsets of kind B2."},
    ),
    "long": ({"user_id": "u" * 190}, "user", {"user_id": "u" * 190}),
}


def run_of(project: Project, **fields: Any) -> Trajectory:
    return make_failed(project, expected=CALL, **{"request": LATER} | fields)


def hold_out(project: Project, group: str, slug: str = "kept") -> EvalSet:
    """A frozen set whose only held-out task is of this group, and asks something that nothing else
    asks.
    """
    by = admin_of(project)
    held = actions.create_eval_set(project=project, slug=slug, by=by)
    actions.add_task(
        eval_set=held,
        key="held",
        request="Translate the menu of the canteen into Danish.",
        group=group,
        by=by,
        expected={"tool": "text.translate", "args": {"to": "da"}},
        split=Split.HOLDOUT,
    )
    return drafts.freeze(eval_set=held, by=by)


@pytest.fixture(params=amount(["user", "template"], list(KINDS)))
def world(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A hold-out grouped by something, and a later run that shares nothing else with it."""
    project = make_project()
    first, name, fields = KINDS[request.param]
    group = dict(groups_of(run_of(project, **first)).offered)[name]
    draft = actions.create_eval_set(project=project, slug="draft", by=admin_of(project))
    hold_out(project, group)
    return {"project": project, "draft": draft, "run": run_of(project, **fields), "group": group}


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("world", KINDS, indirect=True)
def test_a_later_run_is_recognised(world: dict[str, Any]) -> None:
    stranger = run_of(
        world["project"], request="Water the plants.", started_at="2026-05-05T05:05:05Z"
    )
    found = held_out_runs(world["project"], [world["run"], stranger])
    assert found == {world["run"].pk: world["group"]}


def test_adding_many_runs_leaves_it_out_and_counts_it(world: dict[str, Any]) -> None:
    made = actions.tasks_from_trajectories(
        eval_set=world["draft"], trajectories=[world["run"]], by=None
    )
    assert (made.made, len(made.conflicts)) == (0, 1)


def test_adding_one_run_says_why_not(world: dict[str, Any]) -> None:
    with pytest.raises(actions.HoldoutLeak, match="belong to the same group"):
        task_from_trajectory(
            eval_set=world["draft"],
            trajectory=world["run"],
            split=Split.TRAIN,
            by=admin_of(world["project"]),
        )


@pytest.mark.more(rows=3)
@pytest.mark.parametrize("split", [Split.TRAIN, Split.VALIDATION, Split.REGRESSION])
def test_a_task_from_its_failure_is_refused_by_any_group(
    world: dict[str, Any], split: Split
) -> None:
    classify_project(project=world["project"])
    made = from_failures.make_task(
        failure=world["run"].failure,
        step=step_at(read_run(world["run"]), 1),
        answer=Suggestion(CALL, BY_HAND),
        eval_set=world["draft"],
        split=split,
        group="my own",
        by=None,
    )
    assert (made.made, len(made.conflicts)) == (0, 1)


@pytest.mark.more(rows=1)
def test_the_page_of_a_failure_shows_the_two_tasks_of_the_group(world: dict[str, Any]) -> None:
    project = world["project"]
    classify_project(project=project)
    client = Client()
    client.force_login(admin_of(project))
    body = {
        "cut": 1,
        "eval_set": world["draft"].pk,
        "split": "train",
        "expected": json.dumps(CALL),
        "group": f"request:{canonical_hash([])}",
        "demonstration": "",
    }
    body["group"] = dict(groups_of(world["run"]).offered)["request"]
    page = client.post(
        reverse("evals:task_from_failure", args=[project.slug, world["run"].failure.pk]), body
    )
    assert page.status_code == 400 and "of the same group" in page.content.decode()
    assert not world["draft"].tasks.exists()


def test_the_sft_export_of_runs_leaves_it_out(world: dict[str, Any]) -> None:
    project = world["project"]
    make_trajectory(
        project,
        request="Water it.",
        outcome={"status": "success"},
        started_at="2026-05-05T05:05:05Z",
    )
    rows = project.trajectories.exclude(pk=world["run"].pk).filter(outcome_status="success") | (
        project.trajectories.filter(pk=world["run"].pk)
    )
    export = SftExport(rows.order_by("pk"), project=project)
    data = b"".join(export)
    assert b"Water it." in data and LATER.encode() not in data and export.left_out == {HELD_OUT: 1}


def test_the_database_itself_refuses_it(world: dict[str, Any]) -> None:
    task = actions.build_task(world["draft"], world["run"], Split.TRAIN)
    task.group = "my own"
    with pytest.raises(IntegrityError, match="never_trains"), transaction.atomic():
        task.save()
    with pytest.raises(IntegrityError, match="never_trains"), transaction.atomic():
        Task.objects.bulk_create([task])


def test_a_file_that_the_product_wrote_does_not_launder_a_group(world: dict[str, Any]) -> None:
    """Exported in another project, where nothing is held out: the group of its run comes back with
    the task.
    """
    elsewhere = make_project()
    draft = actions.create_eval_set(project=elsewhere, slug="a", by=None)
    run = run_of(elsewhere, **KINDS["session"][2] | {"metadata": {"any": 1}})
    actions.tasks_from_trajectories(eval_set=draft, trajectories=[run], by=None)
    row = exporting.row_of(draft.tasks.get())
    hold_out(world["project"], "s-17", slug="more")
    done = importing.store_rows(
        eval_set=world["draft"],
        rows=[TaskRow(**{**vars_of(row), "group": "other", "line": 1})],
        name="f",
        choice=importing.Choice("flywheel"),
        by=None,
    )
    assert (done.made, done.guarded) == (0, 1)


def vars_of(row: TaskRow) -> dict[str, Any]:
    return {
        name: getattr(row, name)
        for name in ("key", "messages", "expected", "tools", "split", "metadata")
    }


def test_a_metadata_column_of_a_file_holds_later_runs_out() -> None:
    project = make_project()
    hold_out(project, "customer:17")
    draft = actions.create_eval_set(project=project, slug="draft", by=None)
    runs = [
        run_of(project, metadata={"customer": 17}),
        run_of(project, metadata={"customer": 18}, request="Water it."),
    ]
    made = actions.tasks_from_trajectories(eval_set=draft, trajectories=runs, by=None)
    assert (made.made, len(made.conflicts)) == (1, 1)
    rows = [
        TaskRow(
            key="k",
            messages=[{"role": "user", "content": "Go."}],
            expected=CALL,
            metadata={"customer": "17"},
            line=1,
        )
    ]
    done = importing.store_rows(
        eval_set=draft, rows=rows, name="f", choice=importing.Choice("flywheel"), by=None
    )
    assert (done.made, done.guarded) == (0, 1)


@pytest.fixture
def trained() -> dict[str, Any]:
    """A frozen train split with a task of a user's run, and a dataset of it: stored before the user
    is held out.
    """
    project = make_project()
    by = admin_of(project)
    eval_set = actions.create_eval_set(project=project, slug="train", by=by)
    actions.tasks_from_trajectories(
        eval_set=eval_set, trajectories=[run_of(project, user_id="ada")], by=by
    )
    return {"project": project, "by": by, "set": freeze_set(eval_set, by)}


def test_a_group_of_what_trains_cannot_be_held_out(trained: dict[str, Any]) -> None:
    with pytest.raises(actions.HoldoutLeak, match="belong to the same group"):
        hold_out(trained["project"], "user:ada")


def hold_out_behind_the_back(trained: dict[str, Any]) -> None:
    """As a database that was written by an older version may be."""
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE evals_task DISABLE TRIGGER ALL")
    Task.objects.filter(eval_set=trained["set"]).update(split="train")
    held = actions.create_eval_set(project=trained["project"], slug="late", by=None)
    Task.objects.create(
        project=trained["project"],
        eval_set=held,
        key="held",
        split=Split.HOLDOUT,
        group="user:ada",
        messages=[{"role": "user", "content": "Sing."}],
        expected={"answer": "la"},
        canonical_hash="ab" * 32,
    )
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE evals_task ENABLE TRIGGER ALL")


@pytest.mark.django_db(transaction=True)
def test_the_last_doors_refuse_what_was_stored_before(trained: dict[str, Any]) -> None:
    dataset = freeze_dataset(eval_set=trained["set"], by=trained["by"])
    hold_out_behind_the_back(trained)
    with pytest.raises(TrainingError, match="“user:ada”"):
        freeze_dataset(eval_set=trained["set"], by=trained["by"])
    run = TrainingRun(
        project=trained["project"],
        method=Method.GRPO,
        dataset=dataset,
        environment=make_environment(trained["project"]),
    )
    with pytest.raises(actions.HoldoutLeak, match=r"Nothing was trained.*“user:ada”"):
        refuse_leaks(run, list(trained["set"].tasks.all()), [])
    with pytest.raises(actions.EvalSetError, match="“user:ada”"):
        exporting.export(eval_set=trained["set"], format="flywheel", split=Split.TRAIN, by=None)


def test_dividing_keeps_together_what_any_group_joins() -> None:
    """Two tasks grouped by user and by session: the run of one belongs to the other's group."""
    project, by = make_project(), None
    draft = actions.create_eval_set(project=project, slug="mixed", by=by)
    one = run_of(project, session_id="s1", user_id="ada", request="Water the plants in hall 7.")
    actions.tasks_from_trajectories(eval_set=draft, trajectories=[one], by=by)
    requests = [
        "Sing a song about the sea.",
        "Book two seats for the opera.",
        "Name the capital of Peru.",
        "Fix the sink.",
    ]
    for group, request in zip(("user:ada", "b", "c", "d"), requests, strict=True):
        actions.add_task(
            eval_set=draft,
            key=request,
            request=request,
            expected={"answer": group},
            split=Split.TRAIN,
            by=by,
            group=group,
        )
    for seed in range(6):
        drafts.split_by_group(eval_set=draft, holdout_size=2, seed=seed, by=by)
        sides = {task.split for task in draft.tasks.filter(group__in=["s1", "user:ada"])}
        assert len(sides) == 1
