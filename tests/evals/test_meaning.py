"""The semantic check: what it is asked with, what its job finds, what people decide, and what
follows from that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import runner
from apps.core.models import AuditEvent, Role
from apps.evals import actions, drafts
from apps.evals.actions import EvalSetError, HoldoutLeak
from apps.evals.canonical import canonical_hash
from apps.evals.holdout import groups
from apps.evals.meaning import check, verdicts
from apps.evals.meaning.check import Source
from apps.evals.models import (
    EvalSet,
    HoldoutView,
    MeaningCheck,
    MeaningPair,
    MeaningVerdict,
    Split,
    Task,
)
from tests.embeddings_server import HTML, EmbeddingServer, running
from tests.factories import (
    admin_of,
    key_headers,
    make_base,
    make_endpoint,
    make_member,
    make_project,
)
from tests.forms import as_read
from tests.shared import copied, once

pytestmark = pytest.mark.django_db
HELD = (
    "Cancel my hotel in Vienna but keep the flight.",
    "How do I get red wine out of linen?",
    "Which shop opens on Sundays?",
)
SAME = "Das Zimmer brauche ich nicht mehr, den Flug schon."  # the first of HELD
OTHERS = (
    "Write a poem on autumn.",
    "Sort these names.",
    "What is seven times eight?",
    "Lower the blinds.",
)
NOWHERE = Source(base_url="http://127.0.0.1:9/v1", model="m")


@pytest.fixture
def server(settings: Any, data_dir: Path) -> Iterator[EmbeddingServer]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    with running() as found:
        found.meanings = {SAME: HELD[0]}
        yield found


def made_draft(_: Path) -> EvalSet:
    project = make_project()
    eval_set = actions.create_eval_set(project=project, slug="set", by=None)
    for number, request in enumerate(HELD):
        add(eval_set, f"held-{number}", request, Split.HOLDOUT)
    for number, request in enumerate((SAME, *OTHERS)):
        add(eval_set, f"other-{number}", request, Split.VALIDATION if number == 4 else Split.TRAIN)
    return eval_set


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_draft)


@pytest.fixture
def draft(kept: Any, data_dir: Path, settings: Any) -> EvalSet:
    draft = copied(kept, settings)
    settings.FLYWHEEL_DATA_DIR, settings.FLYWHEEL_ALLOW_PRIVATE_URLS = data_dir, True
    return draft


def add(eval_set: EvalSet, key: str, request: str, split: Split) -> Task:
    return actions.add_task(
        eval_set=eval_set,
        key=key,
        request=request,
        expected={"answer": f"the answer to {key}"},
        split=split,
        by=admin_of(eval_set.project),
    )


def ask(eval_set: EvalSet, source: Source = NOWHERE, by: Any = None, **more: Any) -> MeaningCheck:
    return check.submit(
        eval_set=eval_set, source=source, by=by or admin_of(eval_set.project), **more
    )


def done(job: MeaningCheck) -> MeaningCheck:
    runner.run(job)
    job.refresh_from_db()
    return job


def checked_with(eval_set: EvalSet, *pairs: tuple[str, str]) -> list[MeaningPair]:
    """A finished check with pairs of these keys, as its program would have found them."""
    job = ask(eval_set)
    job.claim("test")
    check.comparison_spec(job)
    ids = {task.key: str(task.pk) for task in eval_set.tasks.all()}
    found = [{"held": ids[one], "other": ids[two], "text": 0, "score": 1.0} for one, two in pairs]
    result = check.complete(job, {"pairs": found, "texts": 8, "known": 0})
    assert job.finish("succeeded", result=result)
    return list(job.pairs.select_related("job__eval_set__project"))


def decide(pair: MeaningPair, verdict: str, by: Any = None) -> MeaningVerdict:
    return verdicts.decide(pair=pair, verdict=verdict, by=by or admin_of(pair.job.project))


def keys(eval_set: EvalSet) -> set[str]:
    return set(eval_set.tasks.values_list("key", flat=True))


def page(user: Any, eval_set: EvalSet, name: str = "evals:meaning", **query: str) -> str:
    client = Client()
    client.force_login(user)
    return client.get(
        reverse(name, args=[eval_set.project.slug, eval_set.pk]), query
    ).content.decode()


# The job


@pytest.mark.proof
def test_a_servers_vectors_find_the_same_task_in_other_words(
    server: EmbeddingServer, draft: EvalSet
) -> None:
    job = done(ask(draft, Source(base_url=server.url, model="embed-1"), most=3))
    assert job.state == "succeeded" and job.result["texts"] == 13 and job.done == job.total == 13, (
        job.error
    )
    pairs = list(job.pairs.all())
    assert [pair.position for pair in pairs] == [0, 1, 2] and (
        pairs[0].held.key,
        pairs[0].other.key,
    ) == (
        "held-0",
        "other-0",
    )
    assert pairs[0].text == SAME and pairs[0].score > pairs[1].score >= pairs[2].score
    [sent] = server.bodies
    answers = [f"the answer to other-{at}" for at in range(5)]
    assert set(sent["input"]) == {*HELD, SAME, *OTHERS, *answers} and sent["model"] == "embed-1"
    look = HoldoutView.objects.get()
    assert len(look.tasks) == 3 and server.url in look.detail, (
        "what a server is sent of a hold-out is a look"
    )


@pytest.mark.proof
def test_a_bad_server_ends_the_job_in_a_sentence(server: EmbeddingServer, draft: EvalSet) -> None:
    server.raw = HTML
    job = done(ask(draft, Source(base_url=server.url, model="m")))
    assert job.state == "failed" and not job.pairs.exists()
    assert (
        job.error
        == f"The embeddings server at 127.0.0.1:{server.server_port} answered with something that"
        " is not a list of embeddings."
    )
    assert ask(draft).state == "queued", "it may be asked for again"


def test_a_models_version_is_its_own_source_and_a_served_one_its_server(
    draft: EvalSet, data_dir: Path
) -> None:
    base = make_base(draft.project, data_dir)
    spec = as_read(check.comparison_spec(ask(draft, Source(version=base.pk))))
    assert spec.model.base == base.base and spec.engine.batch_size == check.BATCH
    assert not HoldoutView.objects.exists(), "nothing left this installation"
    assert {one.text for one in spec.held} == set(HELD) and len(spec.others) == 5
    MeaningCheck.objects.all().delete()
    served = make_endpoint(draft.project, served_as="e")
    spec = as_read(check.comparison_spec(ask(draft, Source(version=served.pk))))
    assert spec.engine.base_url == served.server.base_url and spec.engine.model == "e"


def test_all_that_could_train_is_compared_and_nothing_else(draft: EvalSet) -> None:
    task = draft.tasks.get(key="other-1")
    turns = [
        {"role": "user", "content": "Hello, I have a question."},
        {"role": "assistant", "content": "Go on."},
        {"role": "user", "content": "When does the museum close?"},
    ]
    Task.objects.filter(pk=task.pk).update(
        messages=turns, demonstration="It closes at six in the evening."
    )
    for key, split in (("r", Split.REGRESSION), ("g", Split.GENERAL)):
        add(draft, key, f"Tell me {key * 9}.", split)
    spec = check.comparison_spec(ask(draft))
    found = {one.id: one.texts for one in spec.others}
    assert set(found) == {
        str(pk)
        for pk in draft.tasks.filter(split__in=("train", "validation")).values_list("pk", flat=True)
    }
    texts = found[str(task.pk)]
    assert (
        "When does the museum close?" in texts
        and "It closes at six in the evening." in texts
        and any("Hello" in text for text in texts)
    )


# Asking


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (Source(base_url="ftp://x/v1", model="m"), "http:// or https://"),
        (Source(base_url="http://169.254.169.254/v1", model="m"), "metadata service"),
        (Source(base_url="http://127.0.0.1:9/v1"), "Enter the name of the model"),
        (
            Source(base_url="https://x.example/v1", model="m", key_variable="DATABASE_URL"),
            "may not be read",
        ),
        (
            Source(base_url="https://x.example/v1", model="m", key_variable="BOUND_KEY"),
            "may go to y.example only",
        ),
        (Source(version=999_999), "no such model version"),
    ],
)
def test_a_source_that_may_not_be_asked_is_refused(
    source: Source, says: str, draft: EvalSet, settings: Any
) -> None:
    settings.FLYWHEEL_OUTGOING_KEYS = ["BOUND_KEY@y.example"]
    with pytest.raises(EvalSetError, match=re.escape(says)):
        ask(draft, source)
    assert not MeaningCheck.objects.exists() and not HoldoutView.objects.exists()


def test_too_many_texts_are_refused_before_anything_is_sent(
    draft: EvalSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "MOST_TEXTS", draft.tasks.count() - 1)
    with pytest.raises(
        EvalSetError, match=f"has {draft.tasks.count()} tasks to compare; a check takes at most"
    ):
        ask(draft)
    assert not MeaningCheck.objects.exists()


def test_a_version_of_another_project_is_no_source(draft: EvalSet, data_dir: Path) -> None:
    with pytest.raises(EvalSetError, match="no such model version"):
        ask(draft, Source(version=make_base(make_project(), data_dir).pk))


def test_a_key_that_is_bound_to_no_host_is_an_operators(
    draft: EvalSet, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FLYWHEEL_OUTGOING_KEYS = ["FREE_KEY"]
    monkeypatch.setenv("FREE_KEY", "sk-1")
    source = Source(base_url="https://x.example/v1", model="m", key_variable="FREE_KEY")
    with pytest.raises(EvalSetError, match="only an operator"):
        ask(draft, source, make_member(draft.project))
    job = ask(draft, source)
    assert check.comparison_spec(job).engine.api_key_env == "FREE_KEY" and "sk-1" not in str(
        job.spec
    )
    settings.FLYWHEEL_OUTGOING_KEYS = []
    with pytest.raises(EvalSetError, match="may not be read"):
        check.comparison_spec(job)  # checked again when it starts


def test_there_must_be_two_sides_and_one_check_at_a_time(draft: EvalSet) -> None:
    ask(draft)
    with pytest.raises(EvalSetError, match="already running"):
        ask(draft)
    check.stop(eval_set=draft, by=None)
    assert draft.meaning_checks.get().state == "cancelled"
    with pytest.raises(EvalSetError, match="No semantic check is running"):
        check.stop(eval_set=draft, by=None)
    draft.tasks.exclude(split=Split.HOLDOUT).delete()
    with pytest.raises(EvalSetError, match="no train or validation tasks"):
        ask(draft)
    draft.tasks.all().delete()
    with pytest.raises(EvalSetError, match="no hold-out"):
        ask(draft)


# Deciding


def test_the_same_task_leaves_the_draft_and_stays_out(draft: EvalSet) -> None:
    [pair] = checked_with(draft, ("held-0", "other-0"))
    decide(pair, "same")
    assert "other-0" not in keys(draft) and "held-0" in keys(draft)
    review = verdicts.review_of(draft)
    assert review.open == 0 and review.is_current and review.pairs[0].verdict.verdict == "same"
    with pytest.raises(HoldoutLeak, match="decided by a person"):
        add(draft, "again", SAME, Split.TRAIN)
    other = actions.create_eval_set(project=draft.project, slug="elsewhere", by=None)
    with pytest.raises(HoldoutLeak, match="decided by a person"):
        add(other, "again", SAME, Split.TRAIN)
    assert AuditEvent.objects.get(action="meaning.decided").detail["verdict"] == "same"


def test_undo_puts_the_task_back_as_it_was(draft: EvalSet) -> None:
    task = draft.tasks.get(key="other-0")
    Task.objects.filter(pk=task.pk).update(
        groups=sorted(["a", task.group]), metadata={"x": 1}, confirmed_by=admin_of(draft.project)
    )
    Task.objects.filter(key="other-1").update(variant_of=task)
    before = Task.objects.filter(pk=task.pk).values().get()
    [pair, other] = checked_with(draft, ("held-0", "other-0"), ("held-1", "other-0"))
    decide(pair, "same")
    assert verdicts.review_of(draft).open == 0, "no decision is left about a task that is gone"
    pair.refresh_from_db()
    verdicts.undo(pair=pair, by=admin_of(draft.project))
    after = Task.objects.filter(pk=task.pk).values().get()
    assert before | {"created_at": 0} == after | {"created_at": 0}
    assert Task.objects.get(key="other-1").variant_of == task
    review = verdicts.review_of(draft)
    assert review.open == 2 and review.is_current and not MeaningVerdict.objects.exists()
    with pytest.raises(EvalSetError, match="no decision"):
        verdicts.undo(pair=other, by=None)


@pytest.mark.proof
def test_undo_says_why_a_task_cannot_come_back_and_changes_nothing(draft: EvalSet) -> None:
    [pair] = checked_with(draft, ("held-0", "other-0"))
    decide(pair, "same")
    add(draft, "other-0", "Something else under the same key.", Split.TRAIN)
    with pytest.raises(EvalSetError, match="cannot be restored"):
        verdicts.undo(pair=pair, by=None)
    assert MeaningVerdict.objects.count() == 1
    draft.tasks.filter(key="other-0").delete()
    drafts.freeze(eval_set=draft, by=None)
    with pytest.raises(EvalSetError, match="is frozen"):
        verdicts.undo(pair=pair, by=None)
    assert MeaningVerdict.objects.count() == 1


def test_different_is_remembered_by_content_in_the_next_version(draft: EvalSet) -> None:
    [pair] = checked_with(draft, ("held-1", "other-2"))
    decide(pair, "different")
    assert keys(draft) == {*(f"held-{n}" for n in range(3)), *(f"other-{n}" for n in range(5))}
    drafts.freeze(eval_set=draft, by=None)
    newer = drafts.new_version(eval_set=draft, by=None)
    ids = {task.key: str(task.pk) for task in newer.tasks.all()}
    assert check.comparison_spec(ask(newer)).known == [(ids["held-1"], ids["other-2"])]
    MeaningCheck.objects.filter(eval_set=newer).delete()
    newer.tasks.filter(key="other-2").update(
        demonstration="A demonstration that nobody has compared yet."
    )
    assert check.comparison_spec(ask(newer)).known == [], "what it teaches has changed"


def test_two_people_do_not_overwrite_each_other(draft: EvalSet) -> None:
    [pair] = checked_with(draft, ("held-0", "other-0"))
    first = make_member(draft.project)
    decide(pair, "different", first)
    decide(pair, "different")
    with pytest.raises(EvalSetError, match=f"{first} has already decided"):
        decide(pair, "same")
    with pytest.raises(EvalSetError, match="Choose"):
        decide(pair, "perhaps")
    assert MeaningVerdict.objects.get().by == first and "other-0" in keys(draft)


def test_in_a_frozen_set_the_same_task_refuses_training_and_the_next_freezing(
    draft: EvalSet,
) -> None:
    [pair] = checked_with(draft, ("held-0", "other-0"))
    draft.tasks.update(groups=["day:2026-11-29"])  # which no group is held out by
    drafts.freeze(eval_set=draft, by=None)
    decide(pair, "same")
    assert verdicts.review_of(draft).unresolved == 1 and "other-0" in keys(draft)
    refused = groups.refusal(draft.project, draft.tasks.trainable())
    assert (
        "“other-0” is held out by set@1: a person judged them to be the same task"
        in refused.sentence
    )
    assert refused.held == [canonical_hash([{"role": "user", "content": HELD[0]}])]
    newer = drafts.new_version(eval_set=draft, by=None)
    with pytest.raises(HoldoutLeak, match="decided by a person") as caught:
        drafts.freeze(eval_set=newer, by=None)
    assert {caught.value.pair.ours, caught.value.pair.theirs} == {HELD[0], SAME}
    verdicts.undo(pair=pair, by=None)
    assert groups.refusal(draft.project, draft.tasks.trainable()) is None
    assert drafts.freeze(eval_set=newer, by=None).is_frozen


@pytest.mark.proof
def test_a_division_keeps_what_was_judged_the_same_on_one_side(draft: EvalSet) -> None:
    [pair] = checked_with(draft, ("held-0", "other-0"))
    decide(pair, "same")
    held = draft.tasks.get(key="held-0")
    Task.objects.filter(eval_set=draft).update(split=Split.TRAIN)
    add(draft, "again", SAME, Split.TRAIN)
    sides = set()
    for seed in range(6):
        drafts.split_by_group(eval_set=draft, holdout_size=2, seed=seed, by=None)
        pairs = draft.tasks.filter(key__in=("again", held.key)).values_list("split", flat=True)
        assert len(set(pairs)) == 1
        sides |= set(pairs)
    assert sides == {"train", "holdout"}


# The pages


@pytest.mark.proof
def test_the_freeze_form_says_whether_a_check_was_made_and_what_is_undecided(
    draft: EvalSet,
) -> None:
    user = admin_of(draft.project)
    assert "No semantic check has been run. Freeze it?" in page(user, draft, "evals:detail")
    pairs = checked_with(draft, ("held-0", "other-0"), ("held-1", "other-2"))
    assert "Semantic check: 2 of 2 pairs undecided. Freeze it?" in page(user, draft, "evals:detail")
    decide(pairs[1], "different")
    assert "1 of 2 pairs undecided. Freeze it?" in page(user, draft, "evals:detail")
    add(draft, "new", "Translate the menu.", Split.TRAIN)
    assert "1 of 2 pairs undecided. The tasks have changed since. Freeze it?" in page(
        user, draft, "evals:detail"
    )
    assert drafts.freeze(eval_set=draft, by=None).is_frozen, "freezing never demands it"


def test_the_pairs_are_shown_to_members_and_each_look_is_counted(draft: EvalSet) -> None:
    checked_with(draft, ("held-0", "other-0"))
    HoldoutView.objects.all().delete()
    member = make_member(draft.project)
    shown = page(member, draft)
    assert HELD[0] in shown and SAME in shown and HELD[1] not in shown
    look = HoldoutView.objects.get()
    assert look.by == member and len(look.tasks) == 1
    page(member, draft)
    assert HoldoutView.objects.count() == 1
    assert HELD[0] not in page(make_member(draft.project, Role.VIEWER), draft)
    assert HELD[0] not in page(member, draft, show="different") and "No pairs" in page(
        member, draft, show="different"
    )


def test_a_decision_by_keyboard_answers_with_the_pair_and_its_undo(draft: EvalSet) -> None:
    [pair] = checked_with(draft, ("held-0", "other-0"))
    client = Client()
    client.force_login(make_member(draft.project))
    urls = {
        name: reverse(f"evals:meaning_{name}", args=[draft.project.slug, pair.pk])
        for name in ("decide", "undo")
    }
    answer = client.post(
        urls["decide"], {"verdict": "same"}, HTTP_HX_REQUEST="true"
    ).content.decode()
    assert (
        'data-key="u"' in answer
        and "Removed from the draft" in answer
        and 'id="undecided" hx-swap-oob="true">0<' in answer
    )
    answer = client.post(urls["undo"], HTTP_HX_REQUEST="true").content.decode()
    assert 'data-key="s"' in answer and 'data-key="d"' in answer and "other-0" in keys(draft)
    answer = client.post(
        urls["decide"], {"verdict": "nonsense"}, HTTP_HX_REQUEST="true"
    ).content.decode()
    assert "Choose “same task” or “different”." in answer
    assert client.post(urls["decide"], {"verdict": "different"}).status_code == 302
    assert MeaningVerdict.objects.get().verdict == "different"


@pytest.mark.proof
def test_a_form_that_is_wrong_says_so_and_keeps_what_was_typed(draft: EvalSet) -> None:
    client = Client()
    client.force_login(make_member(draft.project))
    url = reverse("evals:meaning_start", args=[draft.project.slug, draft.pk])
    said = client.post(
        url, {"base_url": "http://169.254.169.254/v1", "model": "m", "most": 9}
    ).content.decode()
    assert "metadata service" in said and "http://169.254.169.254/v1" in said
    assert "Choose a model version" in client.post(url, {"most": 9}).content.decode()
    assert "less than or equal to 500" in client.post(url, {"most": 501}).content.decode()
    assert (
        client.post(url, {"base_url": "http://127.0.0.1:9/v1", "model": "m", "most": 9}).status_code
        == 302
    )
    assert draft.meaning_checks.get().spec["most"] == 9


# The API


def test_a_key_with_the_right_asks_reads_and_stops(draft: EvalSet, data_dir: Path) -> None:
    base = make_base(draft.project, data_dir)
    plain, right = (key_headers(draft.project, may_see_holdout=may) for may in (False, True))
    url = reverse("evals_api:meaning_checks", args=[draft.pk])

    def post(body: Any, headers: dict) -> Any:
        return Client().post(url, body, content_type="application/json", **headers)

    assert post({"model_version": str(base)}, plain).status_code == 403
    for body, path in (
        ({}, "model_version"),
        ({"model_version": 1}, "model_version"),
        ({"model_version": str(base), "base_url": "http://x/v1"}, "model_version"),
        ({"pairs": 0}, "pairs"),
        ({"pairs": True}, "pairs"),
        ({"modell": "m"}, "modell"),
        ([], ""),
    ):
        refused = post(body, right)
        assert refused.status_code == 400 and refused.json()["path"] == path, (body, refused.json())
    assert post({"model_version": "gone-v9"}, right).status_code == 404
    asked = post({"model_version": str(base), "pairs": 5}, right)
    assert (
        asked.status_code == 202
        and asked.json()["state"] == "queued"
        and asked.json()["by"] == str(base)
    )
    assert post({"model_version": str(base)}, right).status_code == 409
    job = reverse("evals_api:meaning_check", args=[draft.pk, asked.json()["id"]])
    assert Client().get(url, **plain).json()["results"][0]["id"] == asked.json()["id"]
    assert (
        Client().get(job, **plain).status_code == 403
        and Client().get(job, **right).json()["pairs"] == []
    )
    assert Client().post(f"{job}cancel/", **plain).status_code == 403
    stopped = Client().post(f"{job}cancel/", **right)
    assert stopped.status_code == 200 and stopped.json()["state"] == "cancelled"
    assert Client().post(f"{job}cancel/", **right).status_code == 409
    [pair] = checked_with(draft, ("held-0", "other-0"))
    HoldoutView.objects.all().delete()
    read = (
        Client()
        .get(reverse("evals_api:meaning_check", args=[draft.pk, pair.job_id]), **right)
        .json()
    )
    assert [(one["held"], one["other"], one["verdict"]) for one in read["pairs"]] == [
        (HELD[0], "other-0", None)
    ]
    assert HoldoutView.objects.get().api_key.may_see_holdout
    other = key_headers(make_project(), may_see_holdout=True)
    assert Client().get(job, **other).status_code == 404 == Client().get(url, **other).status_code
