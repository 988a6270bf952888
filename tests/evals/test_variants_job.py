"""A model's variants as a job: asked for with a good address only, done once, filtered and reviewed
like the templates'.

A small program stands in for the one with NeMo Data Designer; tests/test_proof_write_variants.py
holds it against the real one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core import job_files, jobs, runner
from apps.core.models import AuditEvent, Role
from apps.evals import actions
from apps.evals.actions import EvalSetError
from apps.evals.models import EvalSet, Origin, Split, Task, VariantJob
from apps.evals.variants import batches, model_job
from apps.evals.variants.model_job import WriteOrder
from apps.evals.variants.seeds import ARGUMENTS, EDGE, PARAPHRASE
from apps.failures.judge import rubrics
from apps.registry.model_prices import NewPrice, set_price
from tests.evals.test_importing import key_of
from tests.factories import admin_of, freeze_set, make_member, make_project
from tests.shared import copied, once

pytestmark = pytest.mark.django_db
# What the child writes: rows, events, standard error; and how it ends.
PROGRAM = """\
import json, os, sys, time
from pathlib import Path
spec = json.loads(Path(sys.argv[3]).read_text())
play = json.loads(Path({play!r}).read_text())
out = Path(spec["out_dir"]); out.mkdir()
Path({play!r} + ".env").write_text(json.dumps(dict(os.environ)))
keys = {{seed["messages"][-1]["content"]: seed["key"] for seed in spec["seeds"]}}
for row in play["rows"]:
    about = row["verifier_metadata"]
    about["key"] = keys.get(about["key"], about["key"])
(out / "rows.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in play["rows"]))
for number, event in enumerate(play["events"], 1):
    os.write(int(os.environ["FLYWHEEL_EVENTS_FD"]), json.dumps({{"seq": number}} | event).encode() \
+ b"\\n")
time.sleep(play.get("sleep_s", 0))
sys.exit(play.get("status", 0))
"""


def made_draft(_: Path) -> EvalSet:
    project = make_project()
    eval_set = actions.create_eval_set(project=project, slug="seeds", by=None)
    for number in range(4):
        actions.add_task(
            eval_set=eval_set,
            key=f"s{number}",
            request=f"Close ticket {4711 + number}.",
            split=Split.TRAIN,
            expected={"tool": "tickets.close", "args": {"id": 4711 + number}},
            by=admin_of(project),
        )
    Task.objects.filter(eval_set=eval_set).update(confirmed_by=admin_of(project))
    return eval_set


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_draft)


@pytest.fixture
def draft(kept: Any, data_dir: Path, settings: Any) -> EvalSet:
    draft = copied(kept, settings)
    settings.FLYWHEEL_DATA_DIR = data_dir
    return draft


@pytest.fixture
def plays(settings: Any, tmp_path: Path) -> Callable[..., Path]:
    """Has the child's stand-in do something; the file beside it with “.env” is what it was told."""
    play, program, python = tmp_path / "play.json", tmp_path / "program.py", tmp_path / "python"
    program.write_text(PROGRAM.format(play=str(play)))
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n')
    python.chmod(0o755)
    settings.FLYWHEEL_DESIGNER_PYTHON = str(python)

    def play_it(*rows: dict, **more: Any) -> Path:
        result = {
            "type": "result",
            "asked": 8,
            "made": len(rows),
            "failed": 8 - len(rows),
            "stopped": "",
        }
        progress = {"type": "progress", "done": 3, "total": 8, "label": ""}
        play.write_text(json.dumps({"rows": rows, "events": [progress, result]} | more))
        return Path(f"{play}.env")

    play_it()
    return play_it


def row(about: str, request: str, ticket: Any, kind: str = PARAPHRASE) -> dict:
    return {
        "responses_create_params": {"input": [{"role": "user", "content": request}]},
        "ground_truth": [{"name": "tickets.close", "arguments": {"id": ticket}}],
        "verifier_metadata": {"key": about, "kind": kind},
    }


GOOD = (
    row("Close ticket 4711.", "My boss wants number 4711 off the list of open things today.", 4711),
    row(
        "Close ticket 4712.",
        "Ticket 90210 is done, so mark it as finished, thank you.",
        90210,
        ARGUMENTS,
    ),
    row(
        "Close ticket 4713.", "plz shut teh thing with 4713, I cannot type on this bus", 4713, EDGE
    ),
)
WANTED = WriteOrder("http://127.0.0.1:9/v1", "writer", "", [PARAPHRASE, ARGUMENTS, EDGE], 2)


def ask(draft: EvalSet, wanted: WriteOrder = WANTED) -> VariantJob:
    """Submits and does the job; what is known of it then."""
    return done(model_job.submit(eval_set=draft, wanted=wanted, by=admin_of(draft.project)))


def done(job: VariantJob) -> VariantJob:
    runner.run(job)
    job.refresh_from_db()
    return job


def test_what_comes_back_waits_for_a_review_and_is_synthetic_for_ever(
    draft: EvalSet, plays: Callable, django_capture_on_commit_callbacks: Any
) -> None:
    plays(*GOOD)
    with django_capture_on_commit_callbacks(execute=True):
        job = ask(draft)
    assert job.state == "succeeded" and job.result["made"] == 3 and job.result["failed"] == 5, job
    waiting = list(batches.waiting_in(draft).select_related("variant_of"))
    assert {task.origin for task in waiting} == {Origin.SYNTHETIC} and {
        task.split for task in waiting
    } == {Split.TRAIN}
    assert {task.metadata["variant"]["kind"] for task in waiting} == {PARAPHRASE, ARGUMENTS, EDGE}
    assert {task.metadata["variant"]["model"] for task in waiting} == {"writer"}
    assert all(
        task.variant_of.group == task.group and task.confirmed_by is None for task in waiting
    )
    assert not draft.tasks.trainable().filter(origin=Origin.SYNTHETIC).exists()
    with pytest.raises(EvalSetError, match="Review at least 3"):
        batches.use_batch(eval_set=draft, by=None)
    assert [path.name for path in job_files.job_folder(job).iterdir()] == ["stderr-1.log"]
    asked = AuditEvent.objects.get(action="variants.asked_for")
    assert asked.detail["server"] == WANTED.base_url and asked.detail["asked"] == 24


USED = {
    "type": "metric",
    "step": 3,
    "values": {"calls": 3, "input_tokens": 900, "output_tokens": 90, "estimated": 1},
}


def test_what_was_used_is_told_however_the_job_ends_and_stays_in_the_audit_log(
    client: Client, draft: EvalSet, plays: Callable
) -> None:
    client.force_login(admin_of(draft.project))
    plays(
        events=[USED, {"type": "error", "message": "The model's server refused the key."}], status=1
    )
    assert ask(draft).state == "failed"
    assert (
        "Used: 3 calls, 990 tokens (900 in, 90 out; 1 call estimated"
        in client.get(url(draft)).content.decode()
    )
    stopped = {
        "type": "result",
        "asked": 5,
        "made": 3,
        "failed": 2,
        "stopped": "The limit allows no further question.",
    }
    plays(*GOOD, events=[USED, stopped])
    job = ask(draft)
    page = client.get(url(draft)).content.decode()
    assert (
        job.state == "succeeded"
        and "5 of 24 variants; 3 ready for review" in page
        and "Stopped early: The limit" in page
    )
    assert [
        entry.detail["output_tokens"]
        for entry in AuditEvent.objects.filter(action="variants.model_asked")
    ] == [
        90,
        90,
    ]


def test_a_limit_is_always_given_and_one_that_allows_no_question_is_refused(
    draft: EvalSet, plays: Callable
) -> None:
    plays(*GOOD)
    with pytest.raises(EvalSetError, match="may need up to"):
        model_job.submit(eval_set=draft, wanted=replace(WANTED, tokens=100), by=None)
    model_job.submit(eval_set=draft, wanted=WANTED, by=None)
    job = model_job.latest(draft)
    cost = model_job.cost_of(batches.usable_seeds(draft), WANTED)
    assert (
        job.spec["wanted"]["tokens"] == cost.most_tokens > job.spec["expected"] == cost.tokens > 0
        and cost.questions == 24
    )


@pytest.mark.proof
def test_the_page_says_what_it_will_cost(client: Client, draft: EvalSet, plays: Callable) -> None:
    client.force_login(admin_of(draft.project))
    page = client.get(url(draft)).content.decode()
    assert (
        "Expected: 24 questions" in page
        and "$" not in page.partition('id="cost"')[2].partition("</p>")[0]
    )
    assert (
        "Expected: 12 questions"
        in client.get(
            url(draft), FORM | {"design-kinds": [PARAPHRASE], "design-each": 3}
        ).content.decode()
    )
    fields = {
        "text": "x",
        "base_url": "http://127.0.0.1:9/v1",
        "model": "judge-model",
        "key_variable": "",
        "usd_per_day": 1,
    }
    rubrics.save_version(project=draft.project, fields=fields, by=None)
    rubrics.switch(project=draft.project, version=1, by=None)
    price = NewPrice(model="judge-model", input=1_000, output=0)
    set_price(project=draft.project, by=None, given=price)
    assert "about $" in client.get(url(draft)).content.decode()
    kept = client.post(
        url(draft, "variant_job_start"), FORM | {"design-tokens": 7}, follow=True
    ).content.decode()
    assert "may need up to" in kept and 'value="7"' in kept and f'value="{WANTED.base_url}"' in kept


@pytest.mark.proof
def test_the_same_filters_as_for_templates(draft: EvalSet, plays: Callable) -> None:
    held = actions.create_eval_set(project=draft.project, slug="held", by=None)
    actions.add_task(
        eval_set=held,
        key="h",
        request="Please take ticket 55501 off the board and tell Maria that it is done.",
        expected={"tool": "tickets.close", "args": {"id": 55501}},
        split=Split.HOLDOUT,
        by=None,
    )
    near = "Please take ticket 55501 off the board and tell Maria that it is all done."
    plays(
        *GOOD,
        row("Close ticket 4711.", near, 55501, ARGUMENTS),  # nearly a held-out one
        row(
            "Close ticket 4711.",
            "My boss wants number 4711 off the list of all open things today.",
            4711,
        ),  # alike
        row(
            "Close ticket 4711.", "Close another one for me.", 4999, ARGUMENTS
        ),  # does not say the value
        row("Close ticket 4711.", "Close 4999 for me.", 4999),  # was to keep the calls
        row("Close ticket 4711.", "Close 4712 for me.", "4712", ARGUMENTS),  # is of another type
        row("gone", "Close 4712 for me.", 4712),
    )
    result = ask(draft).result
    assert {name: result[name] for name in ("made", "faulty", "alike", "guarded")} == {
        "made": 3,
        "faulty": 4,
        "alike": 1,
        "guarded": 1,
    }
    assert not draft.tasks.filter(messages__0__content=near).exists()


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (
            {
                "events": [{"type": "error", "message": "The model's server refused the key."}],
                "status": 1,
            },
            "refused the key",
        ),
        ({"events": [], "status": 3}, "status 3"),
        ({"events": [], "status": 0}, "status 0"),
        ({}, "No usable variant"),
    ],
)
def test_a_failure_says_why_and_stores_nothing(
    draft: EvalSet, plays: Callable, more: dict, words: str
) -> None:
    plays(**more)
    job = ask(draft)
    assert job.state == "failed" and words in job.error
    assert draft.tasks.count() == 4


def test_it_is_done_once_and_a_set_that_was_frozen_meanwhile_takes_none(
    draft: EvalSet, plays: Callable
) -> None:
    plays(*GOOD)
    job = model_job.submit(eval_set=draft, wanted=WANTED, by=None)
    with pytest.raises(EvalSetError, match="already"):
        model_job.submit(eval_set=draft, wanted=WANTED, by=None)
    freeze_set(draft)
    assert done(job).state == "failed" and "frozen" in job.error
    assert done(job).attempt == 1 and draft.tasks.count() == 4


def test_a_stop_ends_it_and_stores_nothing(
    draft: EvalSet, plays: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    plays(*GOOD, events=[USED], sleep_s=60)
    job, real = model_job.submit(eval_set=draft, wanted=WANTED, by=None), runner.store

    def store(job: VariantJob, events: list[dict]) -> bool:
        asked = real(job, events)
        if events and not asked:  # it writes; somebody stops it
            model_job.stop(eval_set=draft, by=None)
        return asked

    monkeypatch.setattr(runner, "store", store)
    assert done(job).state == "cancelled" and draft.tasks.count() == 4
    assert AuditEvent.objects.get(action="variants.model_asked").detail["calls"] == 3
    with pytest.raises(EvalSetError, match="No model is writing"):
        model_job.stop(eval_set=draft, by=None)


def test_a_queued_job_is_stopped_at_once(draft: EvalSet, plays: Callable) -> None:
    job = model_job.submit(eval_set=draft, wanted=WANTED, by=None)
    model_job.stop(eval_set=draft, by=None)
    assert done(job).state == "cancelled" and not job.attempt


def test_a_model_writes_variants_by_api_and_is_stopped(draft: EvalSet, plays: Callable) -> None:
    asked = {"base_url": WANTED.base_url, "model": "writer", "kinds": [PARAPHRASE], "each": 1}
    admin, member = key_of(draft.project, Role.OWNER), key_of(draft.project)

    def post(name: str, body: dict, key: dict) -> Any:
        address = reverse(f"evals_api:{name}", args=[draft.pk])
        return Client().post(address, json.dumps(body), content_type="application/json", **key)

    nowhere = post("variant_job_start", {}, admin)
    assert nowhere.status_code == 400 and "no judge" in nowhere.json()["error"]
    started = post("variant_job_start", asked, admin)
    assert started.status_code == 202 and started.json()["state"] == "queued", started.content
    assert (
        post("variant_job_start", asked, admin).status_code
        == 409
        == post("variants", {}, admin).status_code
    )
    stopped = post("variant_job_stop", {}, member)
    assert stopped.status_code == 200 and stopped.json()["job"]["state"] == "cancelled"
    plays(*GOOD)
    post("variant_job_start", asked, admin)
    done(model_job.latest(draft))
    read = Client().get(reverse("evals_api:variants", args=[draft.pk]), **member).json()
    assert (
        read["job"]["state"] == "succeeded"
        and read["job"]["result"]["made"] == read["review"]["size"] > 0
    )


def test_a_job_that_lost_its_worker_is_not_done_again(draft: EvalSet, plays: Callable) -> None:
    job = model_job.submit(eval_set=draft, wanted=WANTED, by=None)
    assert job.claim("a worker that died")
    VariantJob.objects.update(
        heartbeat_at=timezone.now() - timedelta(minutes=5), used=USED["values"]
    )
    assert jobs.reap()["failed"] == 1
    job.refresh_from_db()
    assert (
        job.state == "failed"
        and "stopped answering. Nothing was stored; start it again." in job.error
    )
    assert AuditEvent.objects.get(action="variants.model_asked").detail["output_tokens"] == 90


def test_the_child_gets_the_one_key_that_was_named(
    draft: EvalSet, plays: Callable, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.FLYWHEEL_OUTGOING_KEYS = ["MY_KEY@127.0.0.1", "OTHER_KEY"]
    for name in ("MY_KEY", "OTHER_KEY", "DATABASE_URL"):
        monkeypatch.setenv(name, f"secret-{name}")
    told = plays(*GOOD)
    ask(draft, WriteOrder(WANTED.base_url, "writer", "MY_KEY", [PARAPHRASE], 1))
    given = json.loads(told.read_text())
    assert given["MY_KEY"] == "secret-MY_KEY" and not {"OTHER_KEY", "DATABASE_URL"} & set(given)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base_url": "ftp://x"}, "must begin with http"),
        ({"base_url": "http://169.254.169.254/v1"}, "metadata service"),
        ({"key_variable": "DATABASE_URL"}, "may not be read"),
        ({"key_variable": "OPENAI_API_KEY"}, "may go to api.openai.com only"),
        ({"each": 500}, "at most 2,000"),
    ],
)
def test_what_cannot_go_well_is_refused_before_it_is_asked(
    draft: EvalSet, plays: Callable, changes: dict, words: str
) -> None:
    with pytest.raises(EvalSetError, match=words):
        model_job.submit(
            eval_set=draft, wanted=WriteOrder(**{**WANTED.__dict__, **changes}), by=None
        )
    assert model_job.latest(draft) is None


@pytest.mark.proof
def test_seeds_and_a_free_place_are_needed(draft: EvalSet, plays: Callable) -> None:
    plays(*GOOD)
    ask(draft)
    with pytest.raises(EvalSetError, match="batch needs review"):
        model_job.submit(eval_set=draft, wanted=WANTED, by=None)
    batches.discard_batch(eval_set=draft, by=None)
    draft.tasks.update(confirmed_by=None)
    with pytest.raises(EvalSetError, match="no confirmed task"):
        model_job.submit(eval_set=draft, wanted=WANTED, by=None)


# The page


def url(draft: EvalSet, name: str = "variants") -> str:
    return reverse(f"evals:{name}", args=[draft.project.slug, draft.pk])


def test_without_data_designer_the_page_says_how_to_get_it(
    client: Client, draft: EvalSet, settings: Any
) -> None:
    settings.FLYWHEEL_DESIGNER_PYTHON = "/nowhere/python"
    client.force_login(admin_of(draft.project))
    page = client.get(url(draft)).content.decode()
    assert "make designer" in page and "Create variants" in page and "Generate variants" not in page
    answer = client.post(url(draft, "variant_job_start"), FORM, follow=True).content.decode()
    assert "is not installed here" in answer and model_job.latest(draft) is None


FORM = {
    "design-server": "other",
    "design-base_url": WANTED.base_url,
    "design-model": "writer",
    "design-key_variable": "",
    "design-kinds": [PARAPHRASE, ARGUMENTS],
    "design-each": 2,
}


def test_from_the_form_to_the_review(client: Client, draft: EvalSet, plays: Callable) -> None:
    plays(*GOOD)
    client.force_login(admin_of(draft.project))
    page = client.post(url(draft, "variant_job_start"), FORM, follow=True).content.decode()
    assert (
        "writer writes variants" in page
        and "0 of 16 requested" in page
        and "Create variants" not in page
    )
    assert (
        "Wait for it"
        in client.post(
            url(draft, "make_variants"), {"kinds": [PARAPHRASE], "each": 1, "seed": 0}, follow=True
        ).content.decode()
    )
    assert "HX-Refresh" not in client.get(
        url(draft, "variant_job_status"), headers={"HX-Request": "true"}
    )
    done(model_job.latest(draft))
    assert (
        client.get(url(draft, "variant_job_status"), headers={"HX-Request": "true"})["HX-Refresh"]
        == "true"
    )
    page = client.get(url(draft)).content.decode()
    assert (
        "3 ready for review" in page
        and 'title="Written by a model">writer' in page
        and "5 answers could not be used" in page
    )


@pytest.mark.proof
def test_what_a_model_says_is_shown_as_text(
    client: Client, draft: EvalSet, plays: Callable
) -> None:
    plays(
        row(
            "Close ticket 4711.", "<script>alert(1)</script> close 4711 now, would you please", 4711
        )
    )
    ask(draft)
    client.force_login(admin_of(draft.project))
    page = client.get(url(draft)).content.decode()
    assert "&lt;script&gt;alert(1)" in page and "<script>alert(1)" not in page


def test_only_an_operator_names_another_server(
    client: Client, draft: EvalSet, plays: Callable
) -> None:
    client.force_login(make_member(draft.project))
    assert "No model available" in client.get(url(draft)).content.decode()
    client.post(url(draft, "variant_job_start"), FORM)
    assert model_job.latest(draft) is None
    fields = {
        "text": "x",
        "base_url": "http://127.0.0.1:9/v1",
        "model": "judge-model",
        "key_variable": "",
        "usd_per_day": 1,
    }
    rubrics.save_version(project=draft.project, fields=fields, by=None)
    rubrics.switch(project=draft.project, version=1, by=None)
    assert "The judge: judge-model" in client.get(url(draft)).content.decode()
    client.post(
        url(draft, "variant_job_start"),
        FORM | {"design-server": "judge", "design-base_url": "http://evil.example/v1"},
    )
    wanted = model_job.latest(draft).spec["wanted"]
    assert (wanted["base_url"], wanted["model"]) == ("http://127.0.0.1:9/v1", "judge-model")


@pytest.mark.more(rows=2)
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"design-model": " "}, "Model: Required for another server."),
        ({"design-kinds": ["distractors"]}, "What to vary: Select a valid choice"),
        ({"design-each": 99}, "less than or equal to 20"),
        ({"design-server": ""}, "Choose a model to write the variants."),
    ],
)
def test_a_bad_form_says_what_is_wrong(
    client: Client, draft: EvalSet, plays: Callable, changes: dict, words: str
) -> None:
    client.force_login(admin_of(draft.project))
    assert (
        words
        in client.post(
            url(draft, "variant_job_start"), FORM | changes, follow=True
        ).content.decode()
    )
    assert model_job.latest(draft) is None
