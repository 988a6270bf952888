"""A prompt search as a job: what may be searched, what the child is given, what is kept, and who
may do what.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core import jobs, runner
from apps.core.models import JobState, Role
from apps.core.runner import complete, store
from apps.evals import actions as evals
from apps.evals import drafts
from apps.evals.actions import HoldoutLeak
from apps.evals.models import EvalSet, Split
from apps.failures.actions.diagnose import classify_project
from apps.registry.actions import ModelError, register_agent, register_prompt
from apps.registry.models import ModelKind, ModelVersion, Phase, Server, ServerRun
from apps.reviews.actions import TrainingLocked
from apps.training.actions import TrainingError
from apps.training.models import PromptSearch
from apps.training.prompt_search import actions
from apps.training.prompt_search.cost import Size, expected
from apps.training.prompt_search.job import search_spec
from tests.factories import (
    admin_of,
    candidate_event,
    key_headers,
    make_base,
    make_endpoint,
    make_environment,
    make_eval_set,
    make_failed,
    make_managed,
    make_member,
    make_project,
    make_search,
    make_server,
    override,
)
from tests.forms import as_read
from workers.lib.prices import Price
from workers.lib.specs.engines import InProcess

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(data_dir: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A served model, tasks of all splits, a reward that may be optimised, a server that writes
    proposals.
    """
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    settings.FLYWHEEL_GEPA_PYTHON = sys.executable
    monkeypatch.setattr(jobs, "enqueue", lambda job: None)
    project = make_project()
    environment = make_environment(project)
    override(environment)
    server = make_server(project, prices={"*": [1.0, 2.0]})
    return {
        "project": project,
        "environment": environment,
        "server": server,
        "version": make_endpoint(project, server),
        "eval_set": make_eval_set(project, train=4, validation=3),
        "by": admin_of(project),
        "folder": data_dir,
    }


def search_of(world: dict[str, Any], **given: Any) -> PromptSearch:
    version = given.pop("version", world["version"])
    eval_set = given.pop("eval_set", world["eval_set"])
    return make_search(
        version, eval_set, world["environment"], **{"server": world["server"]} | given
    )


def say(search: PromptSearch, *events: dict) -> None:
    store(search, [event | {"seq": seq} for seq, event in enumerate(events, search.last_seq + 1)])


def done(search: PromptSearch, best: int, prompt: str = "Be exact.") -> PromptSearch:
    """Ended by its child with this result."""
    say(
        search,
        candidate_event(0, "start", "", score=0.0),
        candidate_event(1, "kept", prompt, score=0.8, before=0, after=2),
    )
    complete(
        search,
        {
            "best": best,
            "prompt": prompt if best else "",
            "score": 0.8 * bool(best),
            "start_score": 0.0,
            "proposals": 1,
            "stopped": "",
            "used": {},
        },
    )
    search.refresh_from_db()
    return search


# What may be searched


@pytest.mark.proof
def test_what_cannot_be_searched_is_refused(world: dict[str, Any], settings: Any) -> None:
    project, by = world["project"], world["by"]
    agent = register_agent(project=project, name="desk", agent_version="1", by=by)
    free = make_server(project, "http://127.0.0.1:9/v1")
    for given, says in (
        ({"version": agent}, "part of its own code"),
        ({"eval_set": make_eval_set(project)}, "no validation tasks"),
        ({"eval_set": make_eval_set(project, validation=1, frozen=False)}, "is a draft"),
        ({"config": {"most_calls": 8}}, "takes 9 calls of the agent"),
        ({"config": {"most_cals": 8}}, "did you mean “most_calls”"),
        ({"server": free, "config": {"most_usd": 1}}, "No price is known for writer on"),
        ({"engine": "nowhere"}, "nothing else can generate"),
    ):
        with pytest.raises(TrainingError, match=says):
            search_of(world, **given)
    assert not PromptSearch.objects.exists()


def test_a_reward_that_nobody_reviewed_optimises_no_prompt(world: dict[str, Any]) -> None:
    search = search_of(world)
    world["environment"].verifier.overrides.all().delete()
    with pytest.raises(TrainingLocked):
        search_of(world)
    with pytest.raises(TrainingLocked):
        search_spec(search)
    assert (
        api(world, "post", "searches", body=wanted(world)).status_code == 409
        and PromptSearch.objects.count() == 1
    )


@pytest.mark.proof
def test_a_managed_server_may_write_the_proposals(world: dict[str, Any], settings: Any) -> None:
    """Its address is private, and another one after each start."""
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = False
    base = make_base(world["project"], world["folder"])
    writer = make_managed(base, "http://127.0.0.1:9998/v1")
    given = {"version": base, "engine": "transformers", "server": writer}
    search = search_of(world, **given)
    ServerRun.objects.update(phase=Phase.WAITING)
    with pytest.raises(ModelError, match="not up"):
        search_spec(search)
    with pytest.raises(TrainingError, match="not up"):
        search_of(world, **given)
    ServerRun.objects.update(phase=Phase.UP)
    Server.objects.filter(pk=writer.pk).update(base_url="http://127.0.0.1:9999/v1")
    spec = as_read(search_spec(search))
    assert spec.server.base_url == "http://127.0.0.1:9999/v1" and spec.server.allow_private


@pytest.mark.proof
@pytest.mark.parametrize(
    ("prices", "usd", "says"),
    [
        ({"*": [1.0, 2.0]}, 0.5, "$0.5000"),
        ({"*": [0.0, 0.0]}, 0.5, "$0.5000"),
        ({"other": [1.0, 2.0]}, None, "no price is known for writer on"),
        ({}, None, "no price is known for writer on"),
    ],
)
def test_a_failed_search_says_what_it_used(
    world: dict[str, Any], prices: dict, usd: float | None, says: str
) -> None:
    """Also what is unknown: a server without prices is not free."""
    server = make_server(world["project"], "http://127.0.0.1:9/v1", prices=prices)
    search = search_of(world, server=server)
    search.claim("test")
    used = {"calls": 7, "input_tokens": 1_200, "output_tokens": 30, "usd": 0.5 if prices else 0.0}
    paid = {"type": "metric", "step": 7, "values": used}
    say(search, paid, candidate_event(0, "start", "Be nice.", score=0.25))
    search.finish(JobState.FAILED, error="The server went away.")
    args = [world["project"].slug, search.pk]
    client = client_of(make_member(world["project"], Role.VIEWER))
    shown = client.get(reverse("training:search", args=args)).content.decode()
    assert "7 of 100 calls" in shown and "1,200 tokens in, 30 out" in shown and says in shown
    assert ("$0" in shown) == (usd is not None)
    found = api(world, "get", "search", search.pk).json()
    assert found["used"] == used | {"usd": usd} and found["state"] == "failed"
    assert (found["candidates"][0]["usd"] is None) == (usd is None)
    listed = client.get(reverse("training:searches", args=args[:1])).content.decode()
    assert ("unknown" in listed) == (usd is None)


def test_what_was_held_out_since_is_not_sent(world: dict[str, Any]) -> None:
    """Each task of a search is compared with the hold-outs again when it starts."""
    project, request = (
        world["project"],
        "Send the quarterly numbers of the Lisbon office to Maria before noon on Friday.",
    )
    draft = make_eval_set(project, validation=1, frozen=False)
    expected = {"tool": "email.send", "args": {"to": "Maria", "subject": "numbers"}}
    evals.add_task(
        eval_set=draft, key="long", request=request, expected=expected, split=Split.TRAIN, by=None
    )
    search = search_of(world, eval_set=drafts.freeze(eval_set=draft, by=world["by"]))
    assert search_spec(search).tasks
    held = evals.create_eval_set(project=project, slug="late", by=None)
    held.tasks.create(  # behind the back of `add_task`, which refuses it
        project=project,
        key="h",
        split=Split.HOLDOUT,
        group="late",
        canonical_hash="ab" * 32,
        expected={"answer": "la"},
        messages=[{"role": "user", "content": f"From my inbox, do it today: {request}"}],
    )
    with pytest.raises(HoldoutLeak, match="Nothing was trained"):
        search_spec(search)


# What the child is given


def test_the_child_gets_train_and_validation_and_no_hold_out(world: dict[str, Any]) -> None:
    search = search_of(world, config={"most_usd": 2.5})
    PromptSearch.objects.filter(pk=search.pk).update(used={"calls": 7, "usd": 0.5, "best": 0.1})
    search.refresh_from_db()
    spec = as_read(search_spec(search))
    keys = {str(task.pk): task.split for task in world["eval_set"].tasks.all()}
    assert [keys[task["id"]] for task in spec.tasks] == ["train"] * 4
    assert [keys[task["id"]] for task in spec.validation_tasks] == ["validation"] * 3
    assert (
        spec.prompt == world["environment"].harness["system_prompt"]
        and spec.server.model == "writer"
    )
    price = Price(1.0, 2.0, source=f"server {world['server'].name}")
    assert (spec.config.most_usd, spec.server.price, spec.engine.price) == (2.5, price, price)
    assert (spec.used.calls, spec.used.usd, spec.python) == (7, 0.5, sys.executable)


@pytest.mark.proof
def test_the_proposals_may_be_written_by_a_model_behind_the_responses_api(
    world: dict[str, Any],
) -> None:
    Server.objects.filter(pk=world["server"].pk).update(dialect="responses")
    world["server"].refresh_from_db()
    spec = as_read(search_spec(search_of(world)))
    assert (spec.server.dialect, spec.engine.dialect) == ("responses", "native")


@pytest.mark.proof
def test_a_prompt_version_is_where_it_starts(world: dict[str, Any]) -> None:
    prompt = {"system_prompt": "Be kind.", "temperature": 0.25}
    version = register_prompt(
        project=world["project"], name="kind", on=world["version"], prompt=prompt, by=None
    )
    search = search_of(world, version=version)
    spec = search_spec(search)
    assert spec.prompt == "Be kind." and spec.environment.harness.temperature == 0.25
    search.claim("test")
    made = done(search, best=1).model_version
    assert made.prompt == {"system_prompt": "Be exact.", "temperature": 0.25}
    assert (made.parent, made.name, str(made)) == (version, "kind", "kind-v2")


@pytest.mark.proof
def test_the_failures_evidence_goes_along(world: dict[str, Any]) -> None:
    project = world["project"]
    trajectory = make_failed(project, request="Close ticket 4321.")
    classify_project(project=project)
    draft = make_eval_set(project, validation=1, frozen=False)
    task = draft.tasks.trainable().first()
    type(task).objects.filter(pk=task.pk).update(trajectory=trajectory)
    frozen = drafts.freeze(eval_set=draft, by=world["by"])
    found = search_spec(search_of(world, eval_set=frozen)).evidence
    assert set(found) == {str(task.pk)} and trajectory.failure.mode.name in found[str(task.pk)]


# What is kept


def test_the_best_becomes_a_prompt_version_with_its_lineage(world: dict[str, Any]) -> None:
    search = search_of(world)
    search.claim("test")
    say(
        search,
        {
            "type": "metric",
            "step": 9,
            "values": {"calls": 9, "usd": 0.5, "input_tokens": 3, "best": 0.1},
        },
    )
    made = done(search, best=1).model_version
    assert search.state == JobState.SUCCEEDED and search.result["model_version"] == str(made)
    assert (
        made.kind == ModelKind.PROMPT
        and made.prompt == {"system_prompt": "Be exact."}
        and made.parent == world["version"]
    )
    lineage = made.lineage
    assert (lineage["search"], lineage["candidate"], lineage["environment"]) == (
        str(search.pk),
        1,
        str(world["environment"]),
    )
    assert (
        lineage["dataset_digest"] == search.dataset.digest
        and lineage["reflecting"]["model"] == "writer"
    )
    assert (
        "gone",
        "system_prompt: Be exact.",
    ) not in made.prompt_changes() and made.prompt_before()["system_prompt"]
    assert search.used == {"calls": 9, "usd": 0.5, "input_tokens": 3}


def test_a_start_that_nothing_beats_makes_no_version(world: dict[str, Any]) -> None:
    search = search_of(world)
    search.claim("test")
    assert done(search, best=0).model_version is None and search.state == JobState.SUCCEEDED
    assert not ModelVersion.objects.filter(kind=ModelKind.PROMPT).exists()


def test_a_prompt_that_says_what_is_held_out_is_not_saved(world: dict[str, Any]) -> None:
    held = world["eval_set"].tasks.holdout().first()
    search = search_of(world)
    search.claim("test")
    say(search, candidate_event(0, "start", "", score=0.0))
    with pytest.raises(HoldoutLeak, match="was not saved"):
        complete(
            search,
            {"best": 1, "prompt": f"For example: {held.messages[0]['content']}", "score": 1.0},
        )
    assert not ModelVersion.objects.filter(kind=ModelKind.PROMPT).exists()


def test_a_resumed_search_reports_its_candidates_again(world: dict[str, Any]) -> None:
    search = search_of(world)
    search.claim("test")
    say(
        search,
        candidate_event(0, "start", "", score=0.0),
        candidate_event(1, "rejected", "a", before=1, after=0),
    )
    search.finish(JobState.FAILED, error="The server is down.")
    actions.resume(search=search, by=world["by"])
    with pytest.raises(TrainingError, match="failed or was cancelled"):
        actions.resume(search=search, by=world["by"])
    search.refresh_from_db()
    assert search.claim("test") and search.attempt == 2
    say(
        search,
        candidate_event(0, "start", "", score=0.0),
        candidate_event(1, "rejected", "a"),
        candidate_event(2, "kept", "b"),
    )
    assert list(search.candidates.values_list("number", "before")) == [
        (0, None),
        (1, 1.0),
        (2, None),
    ]


CHILD = """
import json, os, sys
spec = json.load(open(sys.argv[1]))
fd, seq = int(os.environ["FLYWHEEL_EVENTS_FD"]), 0
for event in json.loads(spec["prompt"]):
    seq += 1
    os.write(fd, json.dumps(event | {"seq": seq}).encode() + b"\\n")
"""


@pytest.mark.proof
@pytest.mark.django_db(transaction=True)
def test_the_runner_takes_it_from_the_queue_to_the_version(
    world: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "child.py"
    program.write_text(CHILD)
    monkeypatch.setattr(runner, "command", lambda *_: [sys.executable, str(program)])
    search = search_of(world)
    result = {
        "type": "result",
        "best": 1,
        "prompt": "Be exact.",
        "score": 1.0,
        "start_score": 0.5,
        "proposals": 1,
        "stopped": "",
    }
    search.spec["prompt"] = json.dumps(
        [
            candidate_event(0, "start", "", score=0.5),
            candidate_event(1, "kept", "Be exact.", score=1.0),
            result,
        ]
    )
    search.save(update_fields=["spec"])
    runner.run(search)
    search.refresh_from_db()
    assert search.state == JobState.SUCCEEDED, search.error
    assert (
        search.model_version.prompt == {"system_prompt": "Be exact."}
        and search.candidates.count() == 2
    )


# Cost


@pytest.mark.parametrize(
    ("size", "calls", "first"),
    [
        (Size(10, proposals=2), 10 + 2 * 16, 16),
        (Size(10, samples=3, proposals=1, minibatch=2), 3 * 24, 3 * 14),
    ],
)
def test_how_many_calls_a_search_takes(size: Size, calls: int, first: int) -> None:
    assert (size.calls, size.first_calls) == (calls, first)


def test_what_a_search_costs_at_most() -> None:
    size = Size(10, proposals=2)
    found = expected(size, tokens=(100, 10), price=Price(1.0, 2.0), reflecting=Price(10.0, 20.0))
    assert found.calls == 42 and found.tokens == 42 * 110 + 2 * 3 * 800 + 2 * 800
    assert found.usd == pytest.approx((42 * 120 + 4800 * 10 + 1600 * 20) / 1e6)
    assert expected(size, tokens=(100, 10), price=Price()).usd is None
    assert expected(size, tokens=(1, 1), price=None, most_calls=5).calls == 5


# Pages


def client_of(user: Any) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.mark.proof
def test_a_search_is_started_followed_and_stopped_by_page(world: dict[str, Any]) -> None:
    project = world["project"]
    client, slug = client_of(make_member(project, Role.ENGINEER)), project.slug
    new = reverse("training:search_new", args=[slug])
    assert "Start search" in client.get(new).content.decode()
    body = {
        "version": world["version"].pk,
        "eval_set": world["eval_set"].pk,
        "environment": world["environment"].pk,
        "engine": "auto",
        "server": world["server"].pk,
        "model": "writer",
        "most_calls": 5,
        "most_proposals": 3,
        "samples_per_task": 1,
        "minibatch": 3,
        "score": "success",
        "seed": 0,
    }
    assert "Raise the limit to at least that" in client.post(new, body).content.decode()
    answer = client.post(new, body | {"most_calls": 50, "most_usd": "0.5"})
    search = PromptSearch.objects.get()
    assert answer.status_code == 302 and search.spec["config"]["most_usd"] == 0.5
    page = client.get(answer["Location"]).content.decode()
    assert "No candidates yet" in page and "Cancel" in page
    assert "Max agent calls" in page and "no limit" in page and "most_calls" not in page
    search.claim("test")
    say(
        search,
        candidate_event(0, "start", "Be nice.", score=0.0),
        candidate_event(1, "kept", "Be nice.\n<b>Be exact.", score=0.5),
    )
    status = client.get(reverse("training:search_status", args=[slug, search.pk])).content.decode()
    assert (
        "&lt;b&gt;Be exact." in status
        and "<b>Be exact." not in status
        and "best 0.50 (#1)" in status
    )
    client.post(reverse("training:search_cancel", args=[slug, search.pk]))
    search.refresh_from_db()
    assert search.cancel_requested_at
    search.finish(JobState.CANCELLED)
    page = client.get(answer["Location"]).content.decode()
    assert "Resume" in page
    saved = client.post(
        reverse("training:search_save", args=[slug, search.pk, 1]), follow=True
    ).content.decode()
    assert "Saved as" in saved
    assert (
        ModelVersion.objects.get(kind=ModelKind.PROMPT)
        .prompt["system_prompt"]
        .endswith("<b>Be exact.")
    )


def held_since(world: dict[str, Any]) -> EvalSet:
    """A frozen set with a task that another set has held out since, behind the back of `add_task`,
    which refuses it.
    """
    project, request = (
        world["project"],
        "Send the quarterly numbers of the Lisbon office to Maria before noon on Friday.",
    )
    draft = make_eval_set(project, validation=1, frozen=False)
    answer = {"tool": "email.send", "args": {"to": "Maria", "subject": "numbers"}}
    evals.add_task(
        eval_set=draft, key="long", request=request, expected=answer, split=Split.TRAIN, by=None
    )
    frozen = drafts.freeze(eval_set=draft, by=world["by"])
    evals.create_eval_set(project=project, slug="late", by=None).tasks.create(
        project=project,
        key="h",
        split=Split.HOLDOUT,
        group="late",
        canonical_hash="ab" * 32,
        expected={"answer": "la"},
        messages=[{"role": "user", "content": f"From my inbox, do it today: {request}"}],
    )
    return frozen


def test_who_is_told_that_something_is_held_out_has_looked(world: dict[str, Any]) -> None:
    """By a refused start, by page and API, and by a candidate that is not saved."""
    project, draft = world["project"], held_since(world)
    client, views = client_of(world["by"]), project.holdout_views
    body = {
        "version": world["version"].pk,
        "eval_set": draft.pk,
        "environment": world["environment"].pk,
        "engine": "auto",
        "server": world["server"].pk,
        "model": "writer",
        "most_calls": 50,
        "most_proposals": 3,
        "samples_per_task": 1,
        "minibatch": 3,
        "score": "success",
        "seed": 0,
    }
    new = reverse("training:search_new", args=[project.slug])
    assert "Lisbon" in client.post(new, body).content.decode() and views.count() == 1
    refused = api(world, "post", "searches", body=wanted(world, eval_set=str(draft.pk)))
    assert refused.status_code == 409 and views.count() == 2
    search, held = search_of(world), world["eval_set"].tasks.holdout().first()
    search.candidates.create(
        number=1, parent=0, state="kept", prompt=held.messages[0]["content"], score=0.5
    )
    client.post(reverse("training:search_save", args=[project.slug, search.pk, 1]))
    assert views.count() == 3 and not ModelVersion.objects.filter(kind=ModelKind.PROMPT).exists()


@pytest.mark.proof
def test_without_gepa_the_page_says_how_to_get_it(world: dict[str, Any], settings: Any) -> None:
    settings.FLYWHEEL_GEPA_PYTHON = "/nowhere/python"
    client = client_of(world["by"])
    assert (
        "make gepa"
        in client.get(reverse("training:search_new", args=[world["project"].slug])).content.decode()
    )


# API


def api(
    world: dict[str, Any], method: str, name: str, *args: Any, body: Any = None, project: Any = None
) -> Any:
    headers = key_headers(project or world["project"])
    data = json.dumps(body) if body is not None else None
    return getattr(Client(), method)(
        reverse(f"training_api:{name}", args=args), data, content_type="application/json", **headers
    )


def wanted(world: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "version": str(world["version"]),
        "eval_set": str(world["eval_set"].pk),
        "environment": str(world["environment"]),
        "server": world["server"].name,
        "model": "writer",
        "most_calls": 60,
        "most_usd": 1.5,
    } | changes


def test_a_search_is_started_polled_and_stopped_by_api(world: dict[str, Any]) -> None:
    started = api(world, "post", "searches", body=wanted(world))
    assert started.status_code == 201, started.content
    pk = started.json()["id"]
    search = PromptSearch.objects.get(pk=pk)
    search.claim("test")
    say(search, candidate_event(0, "start", "Be nice.", score=0.25))
    found = api(world, "get", "search", pk).json()
    assert (found["state"], found["config"]["most_usd"], found["model"]) == (
        "running",
        1.5,
        "writer",
    )
    assert found["candidates"][0] | {"score": 0.25, "state": "start"} == found["candidates"][0]
    assert [row["id"] for row in api(world, "get", "searches").json()["results"]] == [pk]
    assert api(world, "post", "search_resume", pk).status_code == 409
    assert api(world, "post", "search_cancel", pk).status_code == 200
    search.refresh_from_db()
    search.finish(JobState.CANCELLED)
    assert api(world, "post", "search_cancel", pk).status_code == 409
    assert api(world, "post", "search_resume", pk).json()["state"] == "queued"
    done_search = PromptSearch.objects.get(pk=pk)
    done_search.claim("test")
    done(done_search, best=1)
    read = api(world, "get", "search", pk).json()
    assert (read["score"], read["start_score"], read["model_version"]) == (0.8, 0.0, "m-prompt-v1")


def test_a_candidate_is_saved_by_api_unless_it_says_what_is_held_out(world: dict[str, Any]) -> None:
    search, held = search_of(world), world["eval_set"].tasks.holdout().first()
    search.candidates.create(number=1, parent=0, state="kept", prompt="Be exact.", score=0.5)
    search.candidates.create(
        number=2, parent=0, state="kept", prompt=held.messages[0]["content"], score=0.5
    )
    saved = api(world, "post", "search_save", search.pk, body={"candidate": 1})
    assert saved.status_code == 201 and saved.json()["prompt"]["system_prompt"] == "Be exact."
    assert api(world, "post", "search_save", search.pk, body={"candidate": 1}).status_code == 200
    refused = api(world, "post", "search_save", search.pk, body={"candidate": 2})
    assert (
        refused.status_code == 409 and held.messages[0]["content"] not in refused.json()["detail"]
    )
    assert world["project"].holdout_views.get().api_key.name == "test"
    for body, status in (({"candidate": 9}, 404), ({}, 400), ({"candidate": -1}, 400)):
        assert api(world, "post", "search_save", search.pk, body=body).status_code == status
    assert (
        api(
            world, "post", "search_save", search.pk, body={"candidate": 1}, project=make_project()
        ).status_code
        == 404
    )
    key, url = key_headers(world["project"]), reverse("training_api:search_save", args=[search.pk])
    world["project"].memberships.update(role=Role.VIEWER)
    assert (
        Client().post(url, '{"candidate": 1}', content_type="application/json", **key).status_code
        == 403
    )


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"most_calls": 0}, 400, "most_calls"),
        ({"most_calls": None}, 400, "most_calls"),
        ({"surplus": 1}, 400, "surplus"),
        ({"server": "nowhere"}, 404, "no server"),
        ({"version": "none-v9"}, 404, "model_version"),
        ({"most_calls": 8}, 409, "Raise the limit to at least that"),
        ({"engine": "nowhere"}, 409, "nothing else can generate"),
        ({"model": " "}, 409, "Enter the model on"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(
    world: dict[str, Any], changes: dict, status: int, says: str
) -> None:
    answer = api(world, "post", "searches", body=wanted(world, **changes))
    assert answer.status_code == status and says in answer.content.decode(), answer.content
    assert not PromptSearch.objects.exists()


def test_another_projects_key_sees_nothing(world: dict[str, Any]) -> None:
    search, other = search_of(world), make_project()
    assert api(world, "get", "search", search.pk, project=other).status_code == 404
    assert api(world, "post", "search_cancel", search.pk, project=other).status_code == 404
    assert api(world, "post", "searches", body=wanted(world), project=other).status_code == 404
    assert api(world, "get", "searches", project=other).json()["results"] == []


def test_the_key_of_somebody_who_left_starts_nothing(world: dict[str, Any]) -> None:
    key = key_headers(world["project"])
    world["project"].memberships.filter(user=world["by"]).update(role=Role.VIEWER)
    url = reverse("training_api:searches")
    assert (
        Client()
        .post(url, json.dumps(wanted(world)), content_type="application/json", **key)
        .status_code
        == 403
    )


@pytest.mark.proof
def test_a_model_in_this_installation_can_be_searched_for(world: dict[str, Any]) -> None:
    """No price is needed for it: only the proposals cost money."""
    base = make_base(world["project"], world["folder"])
    spec = search_spec(search_of(world, version=base, config={"most_usd": 1}))
    assert isinstance(spec.engine, InProcess) and spec.config.most_usd == 1
