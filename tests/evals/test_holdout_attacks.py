"""A small slice of what `python -m bench.holdout_attacks` measures, with another seed; and the ways
that lead around a look.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Project
from apps.core.runner import step
from apps.evals import actions, drafts, importing
from apps.evals.canonical import group_key
from apps.evals.formats import read
from apps.evals.models import EvalSet, HoldoutView, Split
from apps.evals.near_duplicates.letters import Letters, parts_of, readings
from apps.evals.near_duplicates.search import HeldOut, Row
from apps.trajectories.exports import SftExport
from apps.trajectories.models import Trajectory
from bench.holdout_attacks.__main__ import held, through
from bench.holdout_attacks.rows import AROUND, CALLS, PLACES, row, user
from bench.holdout_attacks.tasks import Invented, invent
from bench.holdout_attacks.texts import KEPT
from tests.amounts import amount
from tests.factories import admin_of, key_headers, make_environment, make_project, make_trajectory

SEED = 4711
AS_CALLS = ["calendar", "operations", "order"]


@pytest.fixture(scope="module")
def tasks() -> list[Invented]:
    return invent(SEED, amount(1, 2))


@pytest.fixture(scope="module")
def index(tasks: list[Invented]) -> HeldOut:
    return HeldOut([held(task) for task in tasks])


@pytest.mark.more(rows=25)
@pytest.mark.parametrize("name", KEPT)
def test_no_dress_hides_a_request(name: str, tasks: list[Invented], index: HeldOut) -> None:
    pairs = [(task, row(task, user(AROUND.format(KEPT[name](task.request))))) for task in tasks]
    assert [task.request for task in through(index, pairs)] == []


@pytest.mark.more(rows=16)
@pytest.mark.parametrize("name", [name for name in PLACES if name != "tool names"])
def test_no_place_hides_a_request(name: str, tasks: list[Invented], index: HeldOut) -> None:
    missed = through(index, [(task, PLACES[name](task)) for task in tasks])
    assert len(missed) <= (20 if name == "half user, half tool description" else 0), [
        task.request for task in missed
    ]


@pytest.mark.more
@pytest.mark.parametrize("name", CALLS)
def test_no_form_hides_a_call(name: str, tasks: list[Invented], index: HeldOut) -> None:
    assert (
        through(index, [(task, CALLS[name](task)) for task in tasks if task.family in AS_CALLS])
        == []
    )


def test_other_tasks_of_the_templates_are_not_refused() -> None:
    some = invent(SEED, 16)
    index = HeldOut([held(task) for task in some[::2]])
    rest = some[1::2]
    found = list(index.search((at, Row.of(task.row())) for at, task in enumerate(rest)))
    assert len(found) <= 0.03 * len(rest), [rest[match.key].request for match in found]


@pytest.mark.parametrize(
    ("text", "as_said"),
    [
        ("(1) book (2) a (3) table (4) for (5) 12", "book a table for 12"),
        ("0 book 1 a 2 2 table 3 for 4 five", "book a 2 table for five"),
        ("um book um a um table um for um four um", "book a table for four"),
    ],
)
def test_what_counts_the_words_and_what_comes_again_is_read_over(text: str, as_said: str) -> None:
    assert Letters.of(parts_of(as_said)) in set(readings(parts_of(text)))


# Groups, looks and scores


@pytest.fixture
def project(db: None) -> Project:
    return make_project()


@pytest.fixture
def kept(project: Project, tasks: list[Invented]) -> EvalSet:
    """A draft with the first task of each family held out; the group of the mails is a customer, of
    SQL a session.
    """
    eval_set = actions.create_eval_set(project=project, slug="kept", by=admin_of(project))
    groups = {"mail": "customer:Mara", "sql": "S-77", "maths": "user:Ádám", "form": "Mara"}
    rows = [
        task.row(split="holdout", group=groups.get(task.family, f"g-{task.key}"))
        for task in {task.family: task for task in reversed(tasks)}.values()
    ]
    stored = store(eval_set, rows)
    assert stored.made == len(rows)
    return eval_set


def store(eval_set: EvalSet, rows: list[dict]) -> Any:
    return importing.store_rows(
        eval_set=eval_set,
        rows=list(read("flywheel", map(json.dumps, rows))),
        name="file",  # type: ignore[arg-type]
        choice=importing.Choice("flywheel"),
        by=admin_of(eval_set.project),
    )


def draft(project: Project) -> EvalSet:
    return actions.create_eval_set(project=project, slug="other", by=admin_of(project))


def innocent(**changes: Any) -> dict:
    return {
        "messages": user("Paint a fence in the garden with two coats of green."),
        "expected": {"answer": "x"},
    } | changes


def looks(project: Project) -> int:
    return HoldoutView.objects.filter(project=project).count()


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("given", "is_held"),
    [
        ({"group": "mara"}, True),
        ({"group": "  MARA\u00a0"}, True),
        ({"group": "Ｍara"}, True),
        ({"group": "Ma\u200bra"}, True),
        ({"group": "Marab"}, False),
        ({"metadata": {"customer": " mara "}}, True),
        ({"metadata": {"Customer": "Mara"}}, True),
        ({"metadata": {"customer": ["Lena", "Mara"]}}, True),
        ({"metadata": {"customer": "Lena"}}, False),
        ({"metadata": {"session_id": "s-77"}}, True),
        ({"metadata": {"thread_id": "S-77"}}, True),
        ({"metadata": {"user_id": "Ádám"}}, True),
        ({"metadata": {"user_id": "A\u0301dám"}}, True),
    ],
)
def test_a_group_is_one_in_every_spelling(
    project: Project, kept: EvalSet, given: dict, is_held: bool
) -> None:
    made = store(draft(project), [innocent(**given)])
    assert (made.guarded, made.made) == ((1, 0) if is_held else (0, 1))


@pytest.mark.parametrize(
    "given",
    [
        {"session_id": "s-77"},
        {"metadata": {"session_id": "S-77"}},
        {"metadata": {"customer": "MARA "}},
        {"metadata": {"group": " mara"}},
        {"user_id": "ÁDÁM"},
    ],
)
def test_a_run_of_a_held_out_group_is_not_taught_in_any_spelling(
    project: Project, kept: EvalSet, given: dict
) -> None:
    run = make_trajectory(
        project, request="Paint a fence green.", outcome={"status": "success"}, **given
    )
    assert list(SftExport(Trajectory.objects.filter(pk=run.pk), project=project)) == []


def test_a_group_is_divided_whole_in_every_spelling(project: Project) -> None:
    eval_set = draft(project)
    groups = ["Mara", "mara ", "MARA", "Lena", "lena", "Noor"]
    subjects = ["fence", "kitchen", "boat", "chair", "letter", "garden"]
    rows = [
        innocent(group=group, messages=user(f"Tell me all about the {subject}, in {at} lines."))
        for at, (group, subject) in enumerate(zip(groups, subjects, strict=True))
    ]
    store(eval_set, rows)
    drafts.split_by_group(eval_set=eval_set, holdout_size=2, seed=1, by=admin_of(project))
    sides = {
        (group_key(group), split) for group, split in eval_set.tasks.values_list("group", "split")
    }
    assert len(sides) == 3


@pytest.mark.parametrize("split", ["train", "holdout"])
@pytest.mark.parametrize(
    "changes", [{}, {"messages": user("Paint a fence green today.")}], ids=["request", "key"]
)
def test_to_be_told_of_a_duplicate_is_a_look(
    project: Project, kept: EvalSet, tasks: list[Invented], split: str, changes: dict
) -> None:
    key = key_headers(project)
    body = json.dumps([tasks[0].row(split=split, **changes)])
    Client().post(
        reverse("evals_api:tasks", args=[kept.pk]), body, content_type="application/json", **key
    )
    assert HoldoutView.objects.get(project=project).api_key.name == "test"


def test_a_page_that_tells_of_a_duplicate_is_a_look(
    project: Project, kept: EvalSet, tasks: list[Invented]
) -> None:
    client = Client()
    client.force_login(admin_of(project))
    form = {
        "key": "new",
        "request": tasks[0].request,
        "expected": '{"tool": "a", "args": {}}',
        "split": "train",
    }
    client.post(reverse("evals:add_task", args=[project.slug, kept.pk]), form)
    assert looks(project) == 1
    run = make_trajectory(
        project,
        request=tasks[2].request,
        call={"tool": "a", "args": {}},
        outcome={"status": "success"},
    )
    actions.tasks_from_trajectories(eval_set=kept, trajectories=[run], by=admin_of(project))
    assert looks(project) == 2


def test_an_import_by_a_worker_that_is_refused_is_a_look(
    project: Project,
    kept: EvalSet,
    tasks: list[Invented],
    data_dir: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused(**given: Any) -> None:
        raise actions.HoldoutLeak("The same group.", held=[kept.tasks.holdout()[0].canonical_hash])

    monkeypatch.setattr(actions, "store_tasks", refused)
    identity = importing.keep([json.dumps(innocent()).encode()])
    by = admin_of(project)
    job = importing.submit(
        identity=identity,
        eval_set=draft(project),
        name="f",
        choice=importing.Choice("flywheel"),
        by=by,
    )
    assert job.claim("test")
    job.refresh_from_db()
    steps = importing.steps(job)
    with pytest.raises(actions.HoldoutLeak):
        while step(job, steps, None)[0]:
            pass
    assert looks(project) == 1


CHECK = {
    "type": "string_check",
    "name": "g",
    "input": "{{sample.output_text}}",
    "reference": "x",
    "operation": "eq",
}


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    "place",
    [
        lambda said: {"grader": CHECK | {"input": said}},
        lambda said: {"grader": CHECK | {"reference": f"The answer to “{said}”"}},
        lambda said: {"grader": CHECK, "model_sample": said},
        lambda said: {
            "grader": CHECK | {"input": said[:90] + "{{item.rest}}"},
            "item": {"rest": said[90:]},
        },
        lambda said: {
            "grader": {
                "type": "multi",
                "name": "m",
                "calculate_output": "g",
                "graders": {"g": CHECK | {"input": said}},
            }
        },
        lambda said: {
            "grader": {
                "type": "python",
                "name": "p",
                "source": f"Q = {said!r}\ndef grade(sample, item):\n    return 1.0",
            }
        },
        lambda said: {"grader": CHECK, "item": {"task": {"messages": user(said)}}},
    ],
)
def test_a_grader_that_has_the_request_anywhere_scores_only_by_right(
    project: Project, kept: EvalSet, tasks: list[Invented], place: Any
) -> None:
    body = json.dumps({"model_sample": "y", **place(tasks[0].request)})
    for right, status in ((False, 403), (True, 200)):
        key = key_headers(project, may_see_holdout=right)
        answer = Client().post("/api/v1/graders/run", body, content_type="application/json", **key)
        assert answer.status_code == status, answer.content
    assert set(HoldoutView.objects.values_list("kind", flat=True)) == {"membership", "score"}


def test_other_graders_score_without_the_right(project: Project, kept: EvalSet) -> None:
    make_environment(project)
    key = key_headers(project)
    body = json.dumps({"grader": CHECK, "model_sample": "x", "item": {"q": "Paint a fence green."}})
    assert (
        Client()
        .post("/api/v1/graders/run", body, content_type="application/json", **key)
        .json()["reward"]
        == 1
    )
    assert Split.HOLDOUT in set(kept.tasks.values_list("split", flat=True)) and looks(project) == 0


CONTRACT = (
    "Send the signed rental contract of the flat in Lisbon to Noor Rahman before Friday noon and"
    " ask him for a stamped receipt"
)
CRATES = (
    "Move 12 green crates from the Oslo depot to the Rome depot on Monday morning and weigh each"
)


@pytest.mark.parametrize(
    ("request_text", "text", "is_same"),
    [
        (
            CONTRACT,
            (
                "Before Friday noon ask him for a stamped receipt and send the signed rental"
                " contract of the flat in Lisbon to Noor Rahman"
            ),
            True,
        ),
        (CONTRACT, CONTRACT.replace("signed rental ", "").replace("stamped ", ""), True),
        (
            CONTRACT,
            CONTRACT.replace("signed rental", "unsigned lease").replace("stamped ", ""),
            False,
        ),
        (CONTRACT, CONTRACT.replace("Lisbon", "Porto"), False),
        (CONTRACT, CONTRACT.replace("for a stamped receipt", "about the blue keys"), False),
        (CONTRACT, CONTRACT.replace("Send the signed", "Shred an old"), False),
        (CONTRACT, CONTRACT.replace("signed", "").replace("ask him for", "scan"), False),
        (
            CRATES,
            (
                "Weigh each and move 12 green crates from the Oslo depot to the Rome depot on"
                " Monday morning"
            ),
            True,
        ),
        (
            CRATES,
            CRATES.replace("Oslo", "x").replace("Rome", "Oslo").replace("x depot", "Rome depot"),
            False,
        ),
    ],
)
def test_what_stands_in_place_of_missing_words_decides(
    request_text: str, text: str, is_same: bool
) -> None:
    task = Invented("any", "any", request_text, {"answer": "It is done."})
    said = list(HeldOut([held(task)]).every([(0, Row.of(row(task, user(text))))]))
    assert bool(said) is is_same
