"""Variants: consistent, valid, unlike each other, apart until looked through, synthetic for ever,
never held out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.core.models import Role
from apps.core.scopes import Scope
from apps.evals import actions
from apps.evals.actions import EvalSetError
from apps.evals.models import EvalSet, HoldoutView, Origin, Split, Task
from apps.evals.near_duplicates import compare
from apps.evals.near_duplicates.calls import document
from apps.evals.variants import batches, templates
from apps.evals.variants.seeds import ARGUMENTS, PARAPHRASE, Seed, count, faults
from apps.evals.variants.templates import KINDS
from apps.training.actions import freeze_dataset
from tests.evals.test_importing import key_of
from tests.factories import admin_of, freeze_set, make_eval_set, make_project
from tests.shared import copied, once

TOOL = {
    "type": "function",
    "function": {
        "name": "book_room",
        "parameters": {
            "type": "object",
            "properties": {
                "room": {"type": "string"},
                "day": {"type": "string"},
                "seats": {"type": "integer"},
            },
            "required": ["room", "day", "seats"],
        },
    },
}
SEED = Seed(
    "s",
    [{"role": "user", "content": "Book room B-14 for 12 people on 2026-03-04."}],
    {"tool": "book_room", "args": {"room": "B-14", "day": "2026-03-04", "seats": 12}},
    [TOOL],
    [{"tool": "find_room", "args": {"room": "B-14"}, "content": "B-14 is free on 2026-03-04"}],
)


def made(kind: str, seed: Seed = SEED, count: int = 30) -> list[Seed]:
    return list(templates.variants(seed, [kind], count, random.Random(7)))


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_makes_good_variants(kind: str) -> None:
    found = made(kind)
    assert len(found) > 10
    assert all(variant.messages != SEED.messages for variant in found)
    good = [variant for variant in found if not faults(SEED, variant)]
    assert len(good) > 0.9 * len(found), [faults(SEED, variant) for variant in found]


def test_a_changed_value_changes_everywhere() -> None:
    for variant in made(ARGUMENTS):
        said = variant.messages[0]["content"]
        assert variant.expected != SEED.expected
        for value in variant.expected["args"].values():
            assert count(value, said)
        room = variant.expected["args"]["room"]
        assert (
            variant.recorded[0]["args"]["room"] == room and room in variant.recorded[0]["content"]
        )
        assert isinstance(variant.expected["args"]["seats"], int)


def test_other_words_keep_what_is_right_and_what_is_quoted() -> None:
    seed = Seed(
        "s",
        [
            {
                "role": "user",
                "content": "Find a 'get the biggest' map of Biggest Hill and book 2 seats.",
            }
        ],
        {"tool": "find", "args": {"place": "Biggest Hill", "note": "get the biggest"}},
    )
    found = {variant.messages[0]["content"] for variant in made(PARAPHRASE, seed)}
    assert all(variant.expected == seed.expected for variant in made(PARAPHRASE, seed))
    assert all("'get the biggest' map of Biggest Hill and book 2 seats" in text for text in found)
    assert any(text.startswith("Look up a") for text in found) and any(
        text.endswith("?") for text in found
    )


@pytest.mark.parametrize(
    ("request_", "args"),
    [
        ("Solve 3x^2 - 4x + 7 = 0 with a = 3.", {"a": 3}),  # the 3 stands in the equation as well
        ("Solve 5x^2 - 4x = 0 with b = -4.", {"b": -4}),
        (
            "Get the value of 500 at 8% a year.",
            {"amount": 500, "rate": 0.08},
        ),  # 0.08 follows from 8
        (
            "Move the call on 2026-03-04 to 16:30.",
            {"event_id": "00000256", "start": "16:30"},
        ),  # found by the date
        ("Book Monday, 2026-03-02.", {"day": "2026-03-02"}),
        ("What fell in month 12?", {"month": 12}),
        ("Average 85, 90 and 88.", {"data": [85, 90, 88]}),
        ("Note C4, water is H2O, COVID-19.", {"note": "C4", "text": "H2O", "topic": "COVID-19"}),
        ("Who won in Q3?", {"quarter": "Q3"}),
    ],
)
def test_a_value_that_hangs_on_others_stays(request_: str, args: dict) -> None:
    assert (
        made(
            ARGUMENTS,
            Seed("s", [{"role": "user", "content": request_}], {"tool": "t", "args": args}),
        )
        == []
    )


def test_numbers_keep_their_order_size_and_decimals() -> None:
    seed = Seed(
        "s",
        [
            {
                "role": "user",
                "content": "From 1960 to 1963, at least 0.05, 30.45 or 5000, but not -25.",
            }
        ],
        {"tool": "t", "args": {"a": 1960, "b": 1963, "c": 0.05, "d": 30.45, "e": 5000, "f": -25}},
    )
    found = [variant.expected["args"] for variant in made(ARGUMENTS, seed, 300)]
    assert len(found) > 200
    for args in found:
        assert (
            1956 <= args["a"] < args["b"] <= 1967 and 0 < args["c"] < 0.1 and args["e"] % 1000 == 0
        )
        assert -34 < args["f"] < -16 and round(args["d"], 2) == args["d"] and 20 < args["d"] < 41


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {
                "expected": {
                    "tool": "book_room",
                    "args": {"room": "C-9", "day": "2026-03-04", "seats": 12},
                }
            },
            "does not say",
        ),
        (
            {
                "expected": {
                    "tool": "book_room",
                    "args": {"room": "B-14", "day": "2026-03-04", "seats": "12"},
                }
            },
            "integer",
        ),
        ({"expected": {"tool": "", "args": {}}}, "tool"),
        ({"messages": []}, "no message"),
        ({"tools": []}, ""),
    ],
)
def test_faults_are_found(changes: dict, words: str) -> None:
    found = faults(SEED, Seed(**{**SEED.__dict__, **changes}))
    assert any(words in fault for fault in found) if words else not found


def test_a_value_that_the_seed_did_not_say_either_is_derived() -> None:
    seed = Seed(
        "s",
        [{"role": "user", "content": "Book it for tomorrow, 4 seats."}],
        {"tool": "book_room", "args": {"day": "2026-05-06", "seats": 4}},
    )
    assert not faults(
        seed, Seed("s", [{"role": "user", "content": "4 seats for tomorrow."}], seed.expected)
    )


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(max_size=80),
    args=st.dictionaries(
        st.text(min_size=1, max_size=6),
        st.one_of(st.integers(), st.text(max_size=8), st.lists(st.integers(), max_size=2)),
        max_size=3,
    ),
    number=st.integers(0, 99),
)
def test_no_seed_breaks_it(text: str, args: dict, number: int) -> None:
    seed = Seed(
        "s",
        [{"role": "user", "content": f"x {text} {json.dumps(list(args.values()))}"}],
        {"tool": "t", "args": args},
        [TOOL],
    )
    for variant in templates.variants(seed, list(KINDS), 1, random.Random(number)):
        faults(seed, variant)
        assert variant.expected["args"].keys() == args.keys()


# Batches


def made_draft(_: Path) -> EvalSet:
    project = make_project()
    eval_set = actions.create_eval_set(project=project, slug="seeds", by=None)
    for number, (verb, tool) in enumerate(
        (("Close", "close"), ("Reopen", "open"), ("Delete", "delete"), ("Assign", "assign"))
    ):
        actions.add_task(
            eval_set=eval_set,
            key=f"s{number}",
            request=f"{verb} ticket {4711 + number} by 2026-03-0{number + 1}.",
            split=Split.TRAIN,
            by=admin_of(project),
            expected={
                "tool": f"tickets.{tool}",
                "args": {"id": 4711 + number, "day": f"2026-03-0{number + 1}"},
            },
        )
    Task.objects.filter(eval_set=eval_set).update(confirmed_by=admin_of(project))
    return eval_set


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_draft)


@pytest.fixture
def draft(kept: Any, db: None, settings: Any) -> EvalSet:
    return copied(kept, settings)


def batch(draft: EvalSet, **changes: Any) -> batches.Made:
    usual = {"kinds": [ARGUMENTS, PARAPHRASE], "each": 4, "by": admin_of(draft.project)}
    return batches.make_batch(eval_set=draft, **usual | changes)


def test_a_batch_is_synthetic_waits_and_has_no_near_duplicates(draft: EvalSet) -> None:
    found = batch(draft)
    waiting = list(batches.waiting_in(draft))
    assert found.made == len(waiting) >= 10
    assert {task.origin for task in waiting} == {Origin.SYNTHETIC} and {
        task.split for task in waiting
    } == {Split.TRAIN}
    assert all(
        task.variant_of.group == task.group and task.confirmed_by is None for task in waiting
    )
    documents = [(task.key, document(task.messages, task.expected)) for task in waiting]
    assert compare.pairs(documents) == []
    assert not draft.tasks.trainable().filter(origin=Origin.SYNTHETIC).exists()
    with pytest.raises(EvalSetError, match="needs review"):
        batch(draft)
    with pytest.raises(EvalSetError, match="need review"):
        freeze_set(draft)


def judged(draft: EvalSet, good: int, bad: int) -> None:
    tasks = list(batches.waiting_in(draft))[: good + bad]
    for number, task in enumerate(tasks):
        verdict = batches.ACCEPTED if number < good else batches.REJECTED
        batches.judge(task=task, verdict=verdict, by=admin_of(draft.project))


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("good", "bad", "may"),
    [(0, 0, False), (9, 0, False), (8, 2, False), (9, 1, True), (10, 0, True)],
)
def test_a_batch_is_used_when_enough_of_a_sample_is_good(
    draft: EvalSet, good: int, bad: int, may: bool
) -> None:
    size = batch(draft).made
    judged(draft, good, bad)
    if not may:
        with pytest.raises(EvalSetError, match="Review at least 10"):
            batches.use_batch(eval_set=draft, by=None)
        return
    assert batches.use_batch(eval_set=draft, by=None) == size - bad
    assert draft.tasks.trainable().filter(origin=Origin.SYNTHETIC).count() == size - bad
    assert batches.review_of(draft) is None
    with pytest.raises(EvalSetError):
        batches.judge(
            task=draft.tasks.filter(origin=Origin.SYNTHETIC).first(), verdict="accepted", by=None
        )
    dataset = freeze_dataset(eval_set=freeze_set(draft), by=None)
    assert dataset.size == 4 + size - bad


def test_a_discarded_batch_is_gone(draft: EvalSet) -> None:
    size = batch(draft).made
    assert batches.discard_batch(eval_set=draft, by=None) == size
    assert draft.tasks.count() == 4
    with pytest.raises(EvalSetError, match="No batch"):
        batches.use_batch(eval_set=draft, by=None)


def test_the_sample_stays_the_same_and_is_of_ten(draft: EvalSet) -> None:
    batch(draft)
    first = [task.pk for task in batches.sample(batches.waiting_in(draft))]
    assert len(first) == 10 and first == [
        task.pk for task in batches.sample(batches.waiting_in(draft).order_by("-key"))
    ]


def test_seeds_are_confirmed_train_tasks(draft: EvalSet) -> None:
    draft.tasks.update(confirmed_by=None)
    with pytest.raises(EvalSetError, match="no confirmed task"):
        batch(draft)
    batches.confirm(task=draft.tasks.first(), by=admin_of(draft.project))
    assert {task.variant_of.key for task in batches.waiting_in(draft)} <= {"s0"} and batch(
        draft
    ).made
    batches.discard_batch(eval_set=draft, by=None)
    draft.tasks.update(split=Split.HOLDOUT, confirmed_by=admin_of(draft.project))
    with pytest.raises(EvalSetError, match="no confirmed task"):
        batch(draft)


def test_a_variant_near_a_holdout_is_left_out(draft: EvalSet) -> None:
    first = batch(draft, seed=3, kinds=[ARGUMENTS])
    near = batches.waiting_in(draft).first()
    batches.discard_batch(eval_set=draft, by=None)
    other = actions.create_eval_set(project=draft.project, slug="held", by=None)
    actions.add_task(
        eval_set=other,
        key="h",
        request=f"Please {near.messages[0]['content']} Thanks!",
        split=Split.HOLDOUT,
        by=None,
        expected=near.expected,
    )
    again = batch(draft, seed=3, kinds=[ARGUMENTS])
    assert again.guarded >= 1 and again.made < first.made
    assert not batches.waiting_in(draft).filter(canonical_hash=near.canonical_hash).exists()


def test_the_database_never_holds_one_out(draft: EvalSet) -> None:
    batch(draft)
    with pytest.raises(IntegrityError), transaction.atomic():
        batches.waiting_in(draft).update(split=Split.HOLDOUT)


@pytest.mark.proof
def test_the_page_by_keyboard(client: Client, draft: EvalSet) -> None:
    client.force_login(admin_of(draft.project))
    url = reverse("evals:variants", args=[draft.project.slug, draft.pk])
    assert "4 confirmed tasks" in client.get(url).content.decode()
    client.post(
        reverse("evals:make_variants", args=[draft.project.slug, draft.pk]),
        {"kinds": [ARGUMENTS], "each": 6, "seed": 1},
    )
    for _ in range(10):
        page = client.get(url)
        assert b'data-key="y"' in page.content
        task = page.context["following"]
        client.post(
            reverse("evals:judge_variant", args=[draft.project.slug, task]), {"verdict": "accepted"}
        )
    assert b'data-key="y"' not in client.get(url).content
    client.post(reverse("evals:end_batch", args=[draft.project.slug, draft.pk]), {"do": "use"})
    assert draft.tasks.trainable().filter(origin=Origin.SYNTHETIC).count() >= 10


# The API


def call(of: EvalSet, name: str, body: Any = None, key: Any = None) -> Any:
    address = reverse(f"evals_api:{name}", args=[of.pk])
    headers = key_of(of.project) if key is None else key
    if body is None:
        return Client().get(address, **headers)
    return Client().post(address, json.dumps(body), content_type="application/json", **headers)


def test_variants_are_made_looked_through_and_used_by_api(draft: EvalSet) -> None:
    before = call(draft, "variants").json()
    assert (before["seeds"], before["review"], before["sample"], before["job"]) == (
        4,
        None,
        [],
        None,
    )
    made = call(draft, "variants", {"kinds": [ARGUMENTS, PARAPHRASE], "each": 4})
    assert (
        made.status_code == 201 and made.json()["made"] == batches.waiting_in(draft).count() >= 10
    )
    assert call(draft, "variants", {}).status_code == 409  # one waits
    read = call(draft, "variants").json()
    assert (
        len(read["sample"]) == read["review"]["needed"] == 10 and not read["review"]["may_be_used"]
    )
    assert {one["seed"] for one in read["sample"]} <= {"s0", "s1", "s2", "s3"}
    early = call(draft, "end_batch", {"do": "use"})
    assert early.status_code == 409 and "Review at least 10" in early.json()["detail"]
    for number, one in enumerate(read["sample"]):
        word = "accepted" if number else "rejected"
        found = call(draft, "judge_variant", {"task": one["task"], "verdict": word})
        assert found.status_code == 200 and found.json()["review"]["looked"] == number + 1
    used = call(draft, "end_batch", {"do": "use"}).json()["used"]
    assert (
        used
        == made.json()["made"] - 1
        == draft.tasks.trainable().filter(origin=Origin.SYNTHETIC).count()
    )
    assert call(draft, "end_batch", {"do": "discard"}).status_code == 409
    assert (
        call(draft, "judge_variant", {"task": one["task"], "verdict": "accepted"}).status_code
        == 409
    )


def test_a_batch_is_discarded_by_api(draft: EvalSet) -> None:
    made = call(draft, "variants", {}).json()["made"]
    assert call(draft, "end_batch", {"do": "discard"}).json() == {"discarded": made}
    assert not draft.tasks.filter(origin=Origin.SYNTHETIC).exists()


def test_a_task_is_confirmed_by_api_but_no_held_out_one(draft: EvalSet) -> None:
    draft.tasks.update(confirmed_by=None)
    assert call(draft, "variants", {}).status_code == 409  # nothing to start from
    assert call(draft, "confirm_task", {"key": "s0"}).json() == {"confirmed": "s0"}
    assert (
        draft.tasks.get(key="s0").confirmed_by is not None
        and call(draft, "variants").json()["seeds"] == 1
    )
    draft.tasks.filter(key="s1").update(split=Split.HOLDOUT)
    held, none = (call(draft, "confirm_task", {"key": key}) for key in ("s1", "gone"))
    assert held.status_code == none.status_code == 404 and held.content == none.content


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("variants", {"kinds": ["edge"]}, 400),
        ("variants", {"each": 21}, 400),
        ("variants", {"kinds": []}, 400),
        ("judge_variant", {"task": "x", "verdict": "accepted"}, 404),
        ("judge_variant", {"task": "x", "verdict": "good"}, 400),
        ("end_batch", {"do": "keep"}, 400),
        ("confirm_task", {"key": 3}, 400),
        ("variant_job_start", {"each": 0}, 400),
        ("variant_job_start", {}, 400),
        ("variant_job_stop", {}, 409),
    ],
)
def test_what_makes_no_sense_is_refused_by_api(
    draft: EvalSet, name: str, body: dict, status: int
) -> None:
    assert call(draft, name, body).status_code == status


WRITES = {
    "variants": {},
    "judge_variant": {"task": "x", "verdict": "accepted"},
    "end_batch": {"do": "discard"},
    "confirm_task": {"key": "s0"},
    "variant_job_start": {},
    "variant_job_stop": {},
}


@pytest.mark.parametrize("name", WRITES)
def test_who_may_make_variants_by_api(draft: EvalSet, name: str) -> None:
    draft.tasks.update(confirmed_by=None)
    for key, status in (
        ({}, 401),
        (key_of(make_project()), 404),
        (key_of(draft.project, Role.VIEWER), 403),
        (key_of(draft.project, scopes=[Scope.READ, Scope.EVALUATE]), 403),
    ):
        assert call(draft, name, WRITES[name], key).status_code == status
    assert not draft.tasks.exclude(confirmed_by=None).exists() and not draft.variant_jobs.exists()


def test_a_variant_that_is_left_out_is_a_look_of_the_key(draft: EvalSet) -> None:
    held = actions.create_eval_set(project=draft.project, slug="held", by=None)
    near = templates.variants(
        batches.seed_of(draft.tasks.get(key="s0")), [ARGUMENTS], 1, random.Random(0)
    )
    one = next(iter(near))
    actions.add_task(
        eval_set=held,
        key="h",
        request=one.messages[0]["content"],
        split=Split.HOLDOUT,
        expected=one.expected,
        by=None,
    )
    made = call(draft, "variants", {"kinds": [ARGUMENTS], "each": 1, "seed": 0})
    assert made.status_code == 201 and made.json()["guarded"] >= 1
    assert HoldoutView.objects.filter(api_key__name="ci").exists()


def test_a_frozen_set_takes_none(db: None) -> None:
    with pytest.raises(EvalSetError, match="frozen"):
        batch(make_eval_set(make_project()))
