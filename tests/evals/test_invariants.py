"""What the database itself refuses, whatever the code above it does."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from django.db import IntegrityError, connection, transaction

from apps.evals import actions, drafts
from apps.evals.canonical import canonical_hash
from apps.evals.models import EvalSet, Split, Task
from apps.training.actions import TrainingError, freeze_dataset
from apps.training.models import DatasetRow
from apps.trajectories.models import Trajectory
from tests.factories import admin_of, make_eval_set, make_failed, make_project, make_trajectory

pytestmark = pytest.mark.django_db


def refused(sql: str, *values: object) -> None:
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(sql, values)


def test_a_held_out_prompt_cannot_train_anywhere_in_the_project() -> None:
    project = make_project()
    held = make_eval_set(project).tasks.holdout().first()
    draft = make_eval_set(project, frozen=False)
    with pytest.raises(actions.HoldoutLeak) as leak:
        actions.add_task(
            eval_set=draft,
            key="again",
            request=held.messages[0]["content"].upper() + "  ",
            split=Split.TRAIN,
            expected=held.expected,
            by=admin_of(project),
        )
    assert held.messages[0]["content"] == leak.value.pair.theirs
    assert "are the same request;" in str(leak.value)
    refused(
        'INSERT INTO evals_task (id, project_id, eval_set_id, key, split, "group",'
        " canonical_hash, messages, expected, demonstration, origin, created_at) VALUES (%s, %s,"
        " %s, 'x', 'train', 'x', %s, '[]', '{}', '', 'manual', now())",
        uuid.uuid4(),
        project.pk,
        draft.pk,
        held.canonical_hash,
    )


def test_a_group_cannot_stand_on_both_sides() -> None:
    project = make_project()
    held = make_eval_set(project).tasks.holdout().first()
    draft = make_eval_set(project, frozen=False)
    with pytest.raises(actions.HoldoutLeak):
        actions.add_task(
            eval_set=draft,
            key="k",
            request="Something else.",
            split=Split.TRAIN,
            group=held.group,
            expected=held.expected,
            by=admin_of(project),
        )


def test_another_project_is_another_matter() -> None:
    held = make_eval_set(make_project()).tasks.holdout().first()
    other = make_eval_set(make_project(), frozen=False)
    actions.add_task(
        eval_set=other,
        key="k",
        request=held.messages[0]["content"],
        split=Split.TRAIN,
        expected=held.expected,
        by=admin_of(other.project),
    )


def test_a_frozen_set_stays_as_it_is() -> None:
    eval_set = make_eval_set(make_project())
    task = eval_set.tasks.first()
    refused("UPDATE evals_task SET split = 'general' WHERE id = %s", task.pk)
    refused("DELETE FROM evals_task WHERE id = %s", task.pk)
    refused("UPDATE evals_evalset SET digest = 'x' WHERE id = %s", eval_set.pk)
    refused(
        "UPDATE evals_evalset SET state = 'draft', digest = '', frozen_at = NULL WHERE id = %s",
        eval_set.pk,
    )
    with pytest.raises(actions.EvalSetError, match="frozen"):
        actions.remove_task(task=task, by=None)


def test_only_train_tasks_can_be_rows_of_a_dataset() -> None:
    eval_set = make_eval_set(make_project())
    dataset = freeze_dataset(eval_set=eval_set, by=None)
    held = eval_set.tasks.holdout().first()
    for split in ("train", "holdout"):
        with pytest.raises(IntegrityError), transaction.atomic():
            DatasetRow.objects.create(dataset=dataset, task=held, split=split, position=99)
            with connection.cursor() as cursor:
                cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")


def test_a_draft_does_not_train() -> None:
    with pytest.raises(TrainingError, match="draft"):
        freeze_dataset(eval_set=make_eval_set(make_project(), frozen=False), by=None)


def test_the_split_goes_by_group_and_keeps_earlier_hold_outs() -> None:
    project = make_project()
    by = admin_of(project)
    first = actions.create_eval_set(project=project, slug="s", by=by)
    runs = [
        make_failed(
            project, request=f"Close ticket {number}.", metadata={"group": f"g{number // 2}"}
        )
        for number in range(2000, 2020)
    ]
    actions.tasks_from_trajectories(eval_set=first, trajectories=runs, by=by)
    sizes = drafts.split_by_group(eval_set=first, holdout_size=6, validation_size=4, seed=3, by=by)
    assert sizes == {"holdout": 6, "validation": 4, "train": 10}
    groups = {
        split: set(first.tasks.filter(split=split).values_list("group", flat=True))
        for split in Split
    }
    assert not groups[Split.HOLDOUT] & (groups[Split.TRAIN] | groups[Split.VALIDATION])
    drafts.freeze(eval_set=first, by=by)
    second = drafts.new_version(eval_set=first, by=by)
    drafts.split_by_group(eval_set=second, holdout_size=6, seed=99, by=by)
    assert set(second.tasks.holdout().values_list("key", flat=True)) == set(
        first.tasks.holdout().values_list("key", flat=True)
    )


@pytest.mark.proof
def test_the_same_seed_gives_the_same_split() -> None:
    keys = []
    for _ in range(2):
        eval_set = make_eval_set(make_project(), train=0, holdout=0, frozen=False)
        for number in range(20):
            actions.add_task(
                eval_set=eval_set,
                key=f"t{number}",
                request=f"Close ticket {number}.",
                split=Split.TRAIN,
                expected={"tool": "t", "args": {}},
                by=None,
            )
        drafts.split_by_group(eval_set=eval_set, holdout_size=6, seed=5, by=None)
        keys.append(sorted(eval_set.tasks.holdout().values_list("key", flat=True)))
    assert keys[0] == keys[1]


def test_tasks_come_from_corrections_and_successes() -> None:
    project = make_project()
    eval_set = make_eval_set(project, 0, 0, frozen=False)
    wanted = {"tool": "files.share", "args": {"file": "a.txt", "person": "Tom"}}
    made = actions.tasks_from_trajectories(
        eval_set=eval_set,
        by=None,
        trajectories=[
            make_failed(project, request="Share a.txt with Tom.", expected=wanted),
            make_trajectory(
                project,
                request="Close 1500.",
                call={"tool": "tickets.close", "args": {"id": 1500}},
                outcome={"status": "success"},
            ),
            make_trajectory(project, request="Close 1501.", outcome={"status": "failure"}),
            make_failed(project, request="share a.txt  with Tom."),
        ],
    )
    assert (made.made, made.duplicates, made.without_expected) == (2, 1, 1)
    assert Task.objects.get(eval_set=eval_set, origin="failure").expected == wanted


def test_what_production_asks_again_stays_out_of_training() -> None:
    """A second set from the same project, whose requests overlap with the first one's hold-out and
    train tasks.
    """
    project = make_project()
    by = admin_of(project)

    def asked(first: int, last: int) -> list[Trajectory]:
        return [
            make_failed(project, request=f"Close ticket {number}.") for number in range(first, last)
        ]

    def split(eval_set: EvalSet) -> None:
        drafts.split_by_group(eval_set=eval_set, holdout_size=4, validation_size=1, seed=1, by=by)

    first, second = (
        actions.create_eval_set(project=project, slug=slug, by=by) for slug in ("a", "b")
    )
    actions.tasks_from_trajectories(eval_set=first, trajectories=asked(2000, 2010), by=by)
    split(first)
    held = set(first.tasks.holdout().values_list("canonical_hash", flat=True))
    made = actions.tasks_from_trajectories(eval_set=second, trajectories=asked(2000, 2020), by=by)
    assert (made.made, len(made.conflicts)) == (16, 4)
    split(second)
    assert not held & set(second.tasks.values_list("canonical_hash", flat=True))
    trained = first.tasks.exclude(split=Split.HOLDOUT).values_list("canonical_hash", flat=True)
    assert not set(trained) & set(second.tasks.holdout().values_list("canonical_hash", flat=True))
    again = actions.tasks_from_trajectories(
        eval_set=actions.create_eval_set(project=project, slug="c", by=by),
        trajectories=asked(2000, 2010),
        split=Split.HOLDOUT,
        by=by,
    )
    assert (again.made, len(again.conflicts)) == (4, 6)


def test_a_set_without_tasks_cannot_be_frozen(data_dir: Path) -> None:
    empty = make_eval_set(make_project(), 0, 0, frozen=False)
    with pytest.raises(actions.EvalSetError, match="no tasks"):
        drafts.freeze(eval_set=empty, by=None)
    assert EvalSet.objects.get(pk=empty.pk).state == "draft"


def test_the_hash_is_of_what_is_asked() -> None:
    said = [{"role": "user", "content": "Close  Ticket 12."}]
    assert canonical_hash(said) == canonical_hash(
        [
            {"role": "system", "content": "x"},
            {"role": "user", "content": [{"type": "text", "text": "close ticket 12."}]},
        ]
    )
    assert canonical_hash(said) != canonical_hash([{"role": "user", "content": "Close ticket 13."}])


def test_the_same_calls_make_the_same_prompt_whatever_their_ids_and_spaces() -> None:
    def prompt(identity: str, arguments: object, role: str = "system") -> list[dict]:
        call = {
            "id": identity,
            "type": "function",
            "function": {"name": "find", "arguments": arguments},
        }
        return [
            {"role": role, "content": f"You are {identity}."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "Close"},
                    {"type": "text", "text": "ticket 12."},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": identity, "content": "[12]"},
        ]

    first = canonical_hash(prompt("a", '{"id": 12, "open": true}'))
    for other in ('{"open":true,"id":12.0}', {"id": 12, "open": True}):
        assert canonical_hash(prompt("b", other, role="developer")) == first
    assert canonical_hash(prompt("a", '{"id": 13, "open": true}')) != first
    assert canonical_hash(prompt("a", "{")) != canonical_hash(prompt("a", "["))


@pytest.mark.parametrize(
    "after",
    [
        {"tool": "close", "args": {"id": 5}},
        '{"tool": "close", "args": {"id": 5}}',
        {"name": "close", "arguments": '{"id": 5}'},
        '```json\n{"name": "close", "arguments": {"id": 5}}\n```',
        [{"tool": "close", "args": {"id": 5}}],
        {"role": "assistant", "content": '{"tool": "close", "args": {"id": 5}}'},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "close", "arguments": {"id": 5}}}],
        },
    ],
)
def test_a_correction_says_its_call_in_any_form(after: object) -> None:
    assert actions.as_call(after) == {"tool": "close", "args": {"id": 5}}


@pytest.mark.parametrize(
    "after",
    [None, 4, "", "Close it.", {"role": "assistant", "content": "Done."}, [], {"tool": "close"}],
)
def test_a_correction_in_words_says_no_call(after: object) -> None:
    assert actions.as_call(after) is None
