"""A server or agent that is too slow for the limit is named before an evaluation starts there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone

from apps.core.models import JobState, Project
from apps.environments.models import Environment
from apps.evals.jobs import evaluation_spec
from apps.evals.models import EvalRun, Sample, Split
from apps.evals.notes import Pace
from apps.evals.submission import submit_eval
from apps.registry import engines
from apps.registry.models import ModelVersion
from tests.evals.test_runs_api import Api
from tests.factories import (
    admin_of,
    make_base,
    make_endpoint,
    make_environment,
    make_eval_set,
    make_project,
    make_server,
)
from tests.shared import copied, once
from workers.lib.chat_client import HOPELESS_SERVER
from workers.lib.rollouts import HUNG
from workers.lib.serving import NO_TEST_ANSWER

pytestmark = pytest.mark.django_db
LATE = {
    "masked": True,
    "reward": None,
    "stop_reason": "policy error",
    "mask_reason": "The policy gave no answer: The model server at gpu gave no answer within 30 s.",
}


def pace(seconds: list[float], given_up: int = 0, had_s: float = 30, limit_s: float = 30) -> Pace:
    return Pace.of(seconds, given_up, had_s, limit_s, "m on gpu in helpdesk@1, 2026-11-28")


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        (pace([5.0] * 20), "took 5 s (p95 of 20 samples: m on gpu in helpdesk@1, 2026-11-28)"),
        (pace([5.0] * 20), "the limit here is 30 s per sample, and none took longer."),
        (pace([5.0] * 5 + [40.0] * 15, had_s=60), "about 75% would time out at that pace."),
        (pace([5.0] * 12, 64), "took more than 30 s (p95 of 76 samples"),
        (pace([5.0] * 12, 64), ": about 84% would time out at that pace. Use a faster server"),
        (pace([5.0] * 12, 64, limit_s=10), "about 84% would time out"),
        (pace([5.0] * 12, 64, limit_s=120), "0% to 84% would time out"),
        (pace([5.0] * 6 + [50.0] * 6, 12, had_s=60, limit_s=90), "0% to 50% would time out"),
        (pace([5.0] * 6 + [50.0] * 6, 12, had_s=60, limit_s=40), "about 75% would time out"),
        (pace([0.25] * 999 + [31.0]), "took 0.25 s (p95 of 1,000 samples"),
        (pace([0.25] * 999 + [31.0]), "about 0.1% would time out"),
        (pace([0.25] * 4999, 1), ": less than 0.1% would time out"),
        (pace([0.25] * 4999, 1, limit_s=60), ": 0% to less than 0.1% would time out"),
        (pace([30.2] * 20), "took 30.2 s (p95 of 20 samples"),
        (pace([30.4] * 20, limit_s=30.3), "took 30.4 s (p95 of 20 samples"),
        (pace([9.96] * 20, limit_s=9.98), "took 9.96 s (p95 of 20 samples"),
        (pace([], 20), "took more than 30 s (p95 of 20 samples"),
        (pace([], 20), "about 100% would time out"),
        (pace([]), "ended because no answer came within 30 s; the limit here is 30 s per sample."),
    ],
)
def test_a_pace_says_what_the_earlier_samples_hold(shown: Pace, says: str) -> None:
    assert says in shown.sentence
    assert shown.is_too_slow == ("none took longer" not in shown.sentence)


class Scene:
    def __init__(self, project: Project) -> None:
        self.project = project
        self.set, self.environment = make_eval_set(self.project), make_environment(self.project)
        self.server = make_server(self.project, "https://gpu.example.com/v1", name="gpu")
        self.version = make_endpoint(self.project, self.server)

    def earlier(self, *samples: dict[str, Any], **fields: Any) -> EvalRun:
        """A finished evaluation with these samples, whose answers took 5 s if nothing else."""
        version = fields.pop("model_version", self.version)
        engine = engines.choose(version) | fields.pop("engine", {})
        run = EvalRun.objects.create(
            project=self.project,
            name="before",
            eval_set=self.set,
            environment=fields.pop("environment", self.environment),
            model_version=version,
            spec={"seed": 0, "engine": engine},
            state=JobState.SUCCEEDED,
            finished_at=timezone.now(),
            **fields,
        )
        task = self.set.tasks.first()
        usual = {"reward": 0.0, "latency_ms": 5000.0}
        Sample.objects.bulk_create(
            Sample(run=run, task=task, index=at, **usual | sample)
            for at, sample in enumerate(samples)
        )
        return run

    def notes(self, version: ModelVersion | None = None, **more: Any) -> list[str]:
        """What the API says of an evaluation that has just been queued."""
        body = {
            "eval_set": str(self.set),
            "environment": str(self.environment),
            "model_version": (version or self.version).pk,
            "samples_per_task": 1,
            "split": "train",
        }
        made = Api(self.project).post("evals_api:runs", body=body | more)
        assert made.status_code == 201, made.content
        assert made.json()["state"] == "queued"
        EvalRun.objects.get(pk=made.json()["id"]).request_cancel()
        return made.json()["notes"]

    def page(self, **query: Any) -> str:
        client = Client()
        client.force_login(admin_of(self.project))
        url = reverse("evals:new_run", args=[self.project.slug, self.set.pk])
        return client.get(url, query).content.decode()


@override_settings(FLYWHEEL_ALLOW_PRIVATE_URLS=True)
def made_scene(_: Path) -> Scene:
    return Scene(make_project())


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from once(request, made_scene)


@pytest.fixture
def scene(kept: Any, data_dir: Path, settings: Any) -> Scene:
    scene = copied(kept, settings)
    settings.FLYWHEEL_DATA_DIR, settings.FLYWHEEL_ALLOW_PRIVATE_URLS = data_dir, True
    return scene


def with_limit(environment: Environment, seconds: float) -> Environment:
    """Another version of it."""
    made = Environment.objects.get(pk=environment.pk)
    made.pk, made.version, made.hash = None, 1000 + int(seconds), f"{seconds}"
    made.harness = made.harness | {"max_seconds": seconds}
    made.save()
    return made


def test_a_slow_server_is_named_on_the_page_and_in_the_api_before_it_is_asked(
    scene: Scene,
) -> None:
    scene.environment = with_limit(scene.environment, 30)
    scene.earlier(*[LATE | {"latency_ms": None}] * 64, *[{}] * 12)
    (note,) = scene.notes()
    assert f"{scene.version} on gpu in {scene.environment}, 20" in note
    assert "more than 30 s (p95 of 76 samples" in note and "about 84% would time out" in note
    assert note in scene.page(model_version=scene.version.pk)
    patient = with_limit(scene.environment, 90)
    (note,) = scene.notes(environment=str(patient))
    assert "the limit here is 90 s per sample: 0% to 84% would time out" in note
    assert note in scene.page(model_version=scene.version.pk, environment=patient.pk)


def test_an_evaluation_without_a_limit_had_that_of_each_answer(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Environment, "needs_tools", True)
    scene.environment = with_limit(scene.environment, 0)
    scene.earlier(*[LATE | {"latency_ms": None}] * 10, *[{}] * 10)
    for limit, share in ((60, "about 50%"), (300, "0% to 50%")):
        (note,) = scene.notes(environment=str(with_limit(scene.environment, limit)))
        assert "took more than 120 s" in note and f"{share} would time out" in note


@pytest.mark.proof
def test_nothing_is_said_where_nothing_is_known(scene: Scene, data_dir: Path) -> None:
    base = make_base(scene.project, data_dir)
    other = make_endpoint(scene.project, scene.server, "another", name="another")
    elsewhere = make_endpoint(
        scene.project, make_server(scene.project, "https://cpu.example.com/v1", name="cpu"), "m"
    )
    slow = [LATE | {"latency_ms": None}] * 20
    assert scene.notes() == [] and "would time out" not in scene.page()
    scene.earlier(*slow[:4])
    assert scene.notes() == [], "four samples are few"
    judge = {"stop_reason": "stop", "mask_reason": "The judge at x gave no answer within 60 s."}
    scene.earlier(*[LATE | judge | {"latency_ms": 5000.0}] * 20)
    assert scene.notes() == [] and "none took longer" in scene.page(model_version=scene.version.pk)
    scene.earlier(*slow)
    assert scene.notes()
    for version in (base, other, elsewhere):
        assert scene.notes(version) == []
        assert "would time out" not in scene.page(model_version=version.pk)
    in_process = scene.earlier(*slow, model_version=base)
    assert in_process.spec["engine"]["kind"] == "transformers" and scene.notes(base) == []


@pytest.mark.proof
def test_the_newest_evaluation_counts_and_the_same_environment_before_others(scene: Scene) -> None:
    slow = [{"stop_reason": "time", "latency_ms": None}] * 20
    scene.earlier(*slow)
    assert "about 100%" in scene.notes()[0]
    scene.earlier(*[{}] * 20)
    assert scene.notes() == [], "the server has become faster"
    other = with_limit(scene.environment, 60)
    scene.earlier(*slow, environment=other)
    assert scene.notes() == []
    assert f"in {other}" in scene.notes(environment=str(other))[0]


def test_a_server_that_answered_nothing_in_time_is_known_by_that(scene: Scene) -> None:
    scene.earlier(error=f"The model server at gpu gave no answer within 30 s. {HOPELESS_SERVER}")
    (note,) = scene.notes()
    assert "ended because no answer came within 300 s" in note
    scene.earlier(*[LATE | {"latency_ms": None, "mask_reason": HUNG}] * 9)
    assert "about 100% would time out" in scene.notes()[0]


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("answer", "model", "limit_s", "says"),
    [
        ({"value": 25_000, "how": ""}, "m", 20, "took 25 s for a test call of at most 64 tokens"),
        ({"value": None, "how": NO_TEST_ANSWER}, "m", 30, "got no answer within 30 s for a test"),
        ({"value": None, "how": NO_TEST_ANSWER}, "", 30, "got no answer within 30 s for a test"),
        ({"value": 25_000, "how": ""}, "m", 30, ""),
        ({"value": 25_000, "how": ""}, "another", 20, ""),
        ({"value": None, "how": NO_TEST_ANSWER}, "m", 100, ""),
        ({"value": None, "how": "The test call was not answered."}, "m", 30, ""),
        ({}, "m", 30, ""),
    ],
)
def test_without_evaluations_the_last_check_of_a_server_is_what_is_known(
    scene: Scene, answer: dict, model: str, limit_s: float, says: str
) -> None:
    scene.environment = with_limit(scene.environment, limit_s)
    known = {"capabilities": {"answer_ms": answer} if answer else {}, "probed_model": model}
    type(scene.server).objects.filter(pk=scene.server.pk).update(**known)
    notes = scene.notes()
    assert [f"The last check of m on gpu {says}" in note for note in notes] == [True] * bool(says)
    scene.earlier(*[{}] * 20)
    assert scene.notes() == [], "evaluations say more"


@pytest.mark.proof
def test_an_agent_is_known_by_its_address_and_name_whatever_its_version(scene: Scene) -> None:
    def register(**fields: Any) -> ModelVersion:
        body = {
            "kind": "agent",
            "name": "support-agent",
            "reached_by": "http",
            "base_url": "http://127.0.0.1:9/v1",
        }
        made = Api(scene.project).post("registry_api:model_versions", body=body | fields)
        assert made.status_code in (200, 201), made.content
        return ModelVersion.objects.get(pk=made.json()["id"])

    old, new = register(agent_version="1"), register(agent_version="2")
    took = [{"latency_ms": 40_000.0}] * 10 + [{"latency_ms": 90_000.0}] * 10
    scene.earlier(*took, model_version=old)
    assert scene.notes(new) == []
    (note,) = scene.notes(new, timeout_s=60)
    assert "took 90 s" in note and "about 50% would time out" in note
    assert "Allow more seconds per sample" in note
    page = scene.page(model_version=new.pk, timeout_s="60", engine="")
    assert "about 50% would time out" in page
    assert "none took longer" in scene.page(model_version=new.pk, timeout_s="")
    other = register(agent_version="3", base_url="http://127.0.0.1:8/v1")
    assert scene.notes(other, timeout_s=60) == []


@pytest.mark.proof
def test_what_the_page_selects_first_is_what_it_speaks_of(scene: Scene) -> None:
    scene.earlier(*[{"stop_reason": "time", "latency_ms": None}] * 20)
    assert "about 100% would time out" in scene.page()
    run = submit_eval(
        project=scene.project,
        eval_set=scene.set,
        split=Split.TRAIN,
        environment=scene.environment,
        model_version=scene.version,
        by=admin_of(scene.project),
    )
    client = Client()
    client.force_login(admin_of(scene.project))
    page = client.get(reverse("evals:run", args=[scene.project.slug, run.pk])).content.decode()
    assert "about 100% would time out" in page


@pytest.mark.parametrize(("limit_s", "timeout_s"), [(600, 600), (30, 120), (0, 120)])
def test_one_answer_may_take_as_long_as_its_sample(
    scene: Scene, limit_s: float, timeout_s: float
) -> None:
    scene.environment = with_limit(scene.environment, limit_s)
    run = scene.earlier()
    run.spec |= {"batch_size": 8}
    assert evaluation_spec(run).engine.timeout_s == timeout_s
