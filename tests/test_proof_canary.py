"""Canaries on a real vLLM (CPU) with SmolLM2 and two adapters, asked through the endpoint's own
processes: one candidate is promoted by what its sessions say, one that users reject is rolled back,
and one that the server loses costs no user an answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from django.test import Client
from openai import OpenAI

from apps.core.actions import create_api_key
from apps.core.models import Project
from apps.core.scopes import Scope
from apps.failures import classify_job
from apps.promotion import actions
from apps.promotion.deployment import actions as deployments
from apps.promotion.deployment import running as deploying
from apps.promotion.deployment import unloading
from apps.promotion.deployment.placements import placements_of
from apps.promotion.models import Channel, Fingerprint, GateReport, Trial, TrialAnswer
from apps.promotion.trials import actions as trials
from apps.promotion.trials import running
from apps.promotion.trials.plans import Plan, Step
from apps.registry.actions import register_base
from apps.registry.models import ModelVersion, Server
from apps.trajectories import assembly, digest, traces
from apps.trajectories.models import Trace, Trajectory
from flywheel import embedded
from tests import test_proof_deployment as deployment_proof
from tests.factories import (
    admin_of,
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_server,
)
from tests.flywheel.machine import eventually, free_port
from tests.test_proof_deployment import (
    MODEL,
    PATIENCE_S,
    PORT,
    ROOT,
    VLLM,
    adapter,
    done,
    kill,
    says,
)
from workers.lib.serving import Adapters, Address, list_models

serve = deployment_proof.serve  # the fixture
URL, QUESTION = f"http://127.0.0.1:{PORT}/v1", "Tell me about refunds."  # as `says` asks
pytestmark = [
    pytest.mark.proof,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not VLLM.exists(), reason="no .venv-vllm: run `make vllm`"),
]
# Two steps, decided by what is counted: by a margin of 50 points some 40 sessions are enough.
PLAN = Plan(
    steps=[
        Step(share=0.3, min_sessions=3, min_minutes=0),
        Step(share=0.5, min_sessions=6, min_minutes=0),
    ],
    margin=0.5,
)
MOST_SESSIONS = 200  # of a trial; it is decided after some 40


class Scene:
    """A channel that runs the base on a vLLM with three slots, and two adapters that it does not
    run yet.
    """

    def __init__(
        self, project: Project, folder: Path, serve: Callable[[], subprocess.Popen]
    ) -> None:
        self.project, self.by = project, admin_of(project)
        self.base = register_base(project=project, name="smollm2", folder=ROOT / MODEL, by=self.by)
        self.one, self.two = (adapter(self.base, folder, seed) for seed in (1, 2))
        actions.set_initial(channel=actions.channel_of(project), version=self.base, by=self.by)
        serve()
        server = make_server(
            project, URL, name="vllm", kind="vllm", adapters_at=str(folder / "artifacts")
        )
        slots = {
            "runtime_lora": {"value": True, "how": ""},
            "lora_slots": {"value": 3, "how": "", "most": 3},
        }
        Server.objects.filter(pk=server.pk).update(capabilities=slots, health="healthy")
        make_endpoint(project, server, served_as="base", parent=self.base, name="served-base")
        deployments.add_target(
            channel=self.channel, server=Server.objects.get(pk=server.pk), by=self.by
        )
        done(self.channel.deployments.active().get())
        self.eval_set, self.environment = (
            make_eval_set(project, holdout=32),
            make_environment(project),
        )

    @property
    def channel(self) -> Channel:
        """As it is now."""
        return Channel.objects.get(project=self.project)

    def report(self, version: ModelVersion) -> GateReport:
        """In favour of `version`, whose fingerprint has been computed."""
        channel = self.channel
        report = actions.make_gate_report(
            baseline=make_eval_run(self.eval_set, channel.current, self.environment, success=0.0),
            candidate=make_eval_run(self.eval_set, version, self.environment, success=1.0),
            by=self.by,
            channel=channel,
        )
        for job in version.fingerprint_jobs.active():
            done(job)
        assert Fingerprint.objects.get(version=version).source == "computed"
        return report

    def served_as(self, version: ModelVersion | None = None) -> str:
        """The name of what the channel runs, or of `version`, on the server."""
        (place,) = placements_of(self.channel, version)
        return place.served_as


@pytest.fixture
def scene(
    project: Project,
    data_dir: Path,
    settings: Any,
    monkeypatch: Any,
    serve: Callable[[], subprocess.Popen],
) -> Scene:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    for module in (unloading, deploying, deployments):
        monkeypatch.setattr(module, "unload_soon", unloading.unload_leaving)
    return Scene(project, data_dir, serve)


def listed() -> set[str]:
    return {row["id"] for row in list_models(Address(URL, allow_private=True)).models}


@pytest.fixture
def endpoint(settings: Any, tmp_path: Path) -> Iterator[str]:
    """The address of the endpoint, in processes of its own on the database of the tests."""
    database = urlsplit(os.environ.get("DATABASE_URL") or embedded.database_url())
    port, spool = free_port(), tmp_path / "spool"
    more = {
        "DATABASE_URL": (
            database._replace(path=f"/{settings.DATABASES['default']['NAME']}").geturl()
        ),
        "FLYWHEEL_ALLOW_PRIVATE_URLS": "true",
        "FLYWHEEL_ENDPOINT_SPOOL": str(spool),
        "FLYWHEEL_ENDPOINT_CANARY_S": "600",  # a busy machine is no reason to step in
    }
    command = [
        sys.executable,
        "-m",
        "flywheel.processes",
        "endpoint",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with (tmp_path / "endpoint.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | more, stdout=log, stderr=log, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}"

    def is_up() -> bool:
        assert process.poll() is None, (tmp_path / "endpoint.log").read_text()[-3000:]
        try:
            return httpx2.get(f"{address}/healthz", trust_env=False).status_code == 200
        except httpx2.HTTPError:
            return False

    eventually(is_up, PATIENCE_S)
    yield address
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        kill(process)


@dataclass
class Talk:
    """A session of two turns: who answered (by the headers), under which names on the server, and
    what the first answer was.
    """

    session: str
    versions: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    traces: list[str] = field(default_factory=list)
    said: str = ""


class Users:
    """People who talk to the endpoint one after another, and say of each run whether it was
    good.
    """

    def __init__(self, scene: Scene, address: str) -> None:
        scopes = [Scope.GENERATE, Scope.INGEST]
        _, self.secret = create_api_key(
            project=scene.project, name="agent", by=scene.by, scopes=scopes
        )
        self.openai = OpenAI(
            base_url=f"{address}/v1", api_key=self.secret, max_retries=0, timeout=900
        )
        self.scene, self.talks = scene, list[Talk]()

    def talk(self, session: str = "") -> Talk:
        talk = Talk(session or f"session-{len(self.talks)}")
        messages: Any = [{"role": "user", "content": QUESTION}]
        talk.said = self._ask(talk, messages)
        self._ask(
            talk,
            [
                *messages,
                {"role": "assistant", "content": talk.said},
                {"role": "user", "content": "Go on."},
            ],
        )
        if not session:
            self.talks.append(talk)
        return talk

    def _ask(self, talk: Talk, messages: Any) -> str:
        """The first question of a session is answered in one piece, the second as a stream."""
        given: Any = {
            "model": "production",
            "messages": messages,
            "max_tokens": 16,
            "temperature": 0,
        }
        headers, stream = {"X-Session-Id": talk.session}, len(messages) > 1
        raw = self.openai.chat.completions.with_raw_response.create(
            **given, stream=stream, extra_headers=headers
        )
        talk.versions.add(raw.headers["x-flywheel-version"])
        talk.traces.append(raw.headers["x-flywheel-trace-id"])
        parsed: Any = raw.parse()
        if not stream:
            talk.names.add(parsed.model)
            return str(parsed.choices[0].message.content)
        chunks = list(parsed)
        talk.names |= {chunk.model for chunk in chunks}
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    def judge(self, talk: Talk, status: str) -> None:
        """By the API; the id of a run is the trace of its first answer."""
        said = {"outcome": {"status": status, "reason": f"The user says {status}."}}
        client = Client(HTTP_AUTHORIZATION=f"Bearer {self.secret}")
        url = f"/api/v1/trajectories/{talk.traces[0]}/feedback/"
        answer = client.post(url, said, content_type="application/json")
        assert answer.status_code == 200, answer.content

    def until_asked(self, version: ModelVersion) -> Talk:
        """The endpoint has heard that `version` answers (a share), once it does."""
        for _ in range(MOST_SESSIONS):
            if (talk := self.talk()).versions == {str(version)}:
                return talk
        raise AssertionError(f"{version} answers nobody")

    def stored(self) -> None:
        """What workers do in the seconds after answers."""
        asked = {trace for talk in self.talks for trace in talk.traces}

        def all_are_there() -> bool:
            assembly.step()
            known = Trace.objects.filter(project=self.scene.project, trace_id__in=asked)
            return known.count() == len(asked) and not traces.look().has_spans

        eventually(all_are_there, PATIENCE_S)
        self.classified()

    def classified(self) -> None:
        digest.run()
        classify_job.classify_new(self.scene.project, for_s=600)
        for job in self.scene.project.classifications.active():
            done(job)


def begin(scene: Scene, version: ModelVersion, then: Trial.Then = Trial.Then.HOLD) -> Trial:
    """A canary whose candidate is loaded and proved beside what is live."""
    before, live = listed(), scene.channel.current
    trial = trials.begin(
        channel=scene.channel,
        kind=Trial.Kind.CANARY,
        by=scene.by,
        reason="see",
        plan=PLAN,
        gate_report=scene.report(version),
        then=then,
    )
    assert trial.state == "preparing"
    job = done(trial.deployment)
    trial.refresh_from_db()
    assert trial.state == "running" and scene.channel.current == live
    assert job.kind == "trial" and job.outcomes[0]["proof"]["level"] == "weights"
    assert listed() == before | {scene.served_as(version)} != before
    return trial


def decided(trial: Trial, users: Users, judged: Callable[[Talk], str]) -> list[Talk]:
    """Sessions, four at a time, until the trial decides by them; each is judged by `judged`.
    Returns those that count in it.
    """
    before = len(users.talks)
    users.until_asked(trial.version)
    known, talks = len(users.talks) - 1, users.talks[before:]
    for _ in range(MOST_SESSIONS // 4):
        talks += [users.talk() for _ in range(4)]
        users.stored()
        for talk in talks:
            users.judge(talk, judged(talk))
        users.classified()
        if running.look(trial.pk) not in ("wait", "next"):
            break
        talks = []
    trial.refresh_from_db()
    return users.talks[known:]


def check_kept(trial: Trial, talks: list[Talk], names: dict[str, str]) -> None:
    """Each answer is a row of the trial in the lane of who gave it, and each session a run.
    `names`: on the server, by version.
    """
    asked = [trace for talk in talks for trace in talk.traces]
    found = TrialAnswer.objects.filter(trial=trial, trace_id__in=asked)
    eventually(lambda: found.count() == len(asked), PATIENCE_S)
    rows = {row.trace_id: row for row in found}
    for talk in talks:
        (version,) = talk.versions
        assert talk.names == {names[version]}
        lane = "canary" if version == str(trial.version) else "current"
        assert [(rows[trace].lane, rows[trace].answered) for trace in talk.traces] == [
            (lane, True)
        ] * 2
        run = Trajectory.objects.get(project=trial.project, session_id=talk.session)
        assert (run.model, run.agent_version, run.external_id) == (version, version, talk.traces[0])
        assert run.metadata["attributes"]["flywheel.served_as"] == names[version]


def all_get(users: Users, version: ModelVersion, *before: Talk) -> None:
    """Everybody does now: those who come, and those whom another version answered before."""
    eventually(lambda: users.talk(before[0].session).versions == {str(version)}, PATIENCE_S)
    talks = [users.talk(talk.session) for talk in before[:4]] + [users.talk() for _ in range(4)]
    assert all(talk.versions == {str(version)} for talk in talks)


def is_gone(name: str) -> bool:
    """Beat has what leaves unloaded."""
    unloading.unload_leaving()
    return name not in listed()


def test_one_canary_is_promoted_and_two_are_rolled_back(
    scene: Scene, endpoint: str, settings: Any
) -> None:
    settings.FLYWHEEL_TRIAL_SETTLE_MINUTES = 0
    base, one, two, users = scene.base, scene.one, scene.two, Users(scene, endpoint)

    # Everybody is content, and the candidate is promoted by what was counted.
    trial = begin(scene, one, Trial.Then.PROMOTE)
    served = scene.served_as(one)
    said = {str(base): says("base"), str(one): says(served)}
    assert len(set(said.values())) == 2
    talks = decided(trial, users, lambda talk: "success")
    assert trial.state == "promoting" and [row["what"] for row in trial.decisions] == [
        "next",
        "promoting",
    ]
    assert {version for talk in talks for version in talk.versions} == set(said)
    assert all(talk.said == said[version] for talk in talks for version in talk.versions)
    check_kept(trial, talks, {str(base): "base", str(one): served})
    done(scene.channel.deployments.active().get())
    trial.refresh_from_db()
    assert (
        trial.state == "promoted" and scene.channel.current == one and scene.served_as() == served
    )
    all_get(users, one, *[talk for talk in talks if talk.versions == {str(base)}])
    print(len(talks), "sessions, then:", trial.ended_because)

    # Users reject what the next candidate says.
    trial = begin(scene, two)
    candidate = scene.served_as(two)
    talks = decided(
        trial, users, lambda talk: "failure" if str(two) in talk.versions else "success"
    )
    assert (
        trial.state == "rolled_back"
        and "Success" in trial.ended_because
        and scene.channel.current == one
    )
    check_kept(trial, talks, {str(one): served, str(two): candidate})
    all_get(users, one, *[talk for talk in talks if talk.versions == {str(two)}])
    eventually(lambda: is_gone(candidate), PATIENCE_S)
    assert listed() == {"base", served}
    print(len(talks), "sessions, then:", trial.ended_because)

    # The server loses the candidate in the middle: the current version steps in for it, and it is
    # rolled back.
    trial = begin(scene, two)
    users.until_asked(two)
    Adapters(Address(URL, allow_private=True), "vllm").unload(scene.served_as(two))
    while running.look(trial.pk) in ("wait", "next"):
        assert len(users.talks) < 3 * MOST_SESSIONS
        talks = [users.talk() for _ in range(4)]
        assert all(talk.versions == {str(one)} and talk.names == {served} for talk in talks)
        users.stored()
    trial.refresh_from_db()
    assert trial.state == "rolled_back" and scene.channel.current == one
    assert TrialAnswer.objects.filter(trial=trial, lane="canary", answered=False).exists()
    print("Then:", trial.ended_because)
