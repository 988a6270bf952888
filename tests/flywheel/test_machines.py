"""An installation over nine machines (`make proof`), which share PostgreSQL, the broker and a
bucket, and no disk: a whole turn of the wheel, while runs arrive, one machine dies, one freezes and
two are cut off.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from django.urls import reverse

from tests.factories import row
from tests.flywheel.cluster import HERE, Cluster, Node, why_not
from tests.flywheel.machine import eventually
from tests.workers.conftest import make_tiny_model

pytestmark = [pytest.mark.proof, pytest.mark.skipif(bool(why_not()), reason=why_not())]
KEY, PASSWORD = "fw_test-key-0123456789", "operator-of-the-proof"
PATIENCE_S = 1800.0
MACHINES = {
    "web1": ["web"],
    "web2": ["web"],
    "ingest1": ["ingest"],
    "ingest2": ["ingest"],
    "default": ["default", "judge"],
    "eval": ["eval", "serve"],
    "train1": ["train"],
    "train2": ["train"],
    "front": ["endpoint", "beat"],
}
STEPS, EVERY = 400, 20
FLOW = f"""
retries: 2
steps:
- do: classify
- do: cluster
- {{do: collect_tasks, into: support, days: 30}}
- {{do: freeze_set, set: support, holdout: 12}}
- {{do: review, set: "step:freeze_set", environment: workplace}}
- {{do: evaluate, name: baseline, set: "step:freeze_set", environment: workplace, samples: 2}}
- {{do: train, method: sft, set: "step:freeze_set", environment: workplace,
   config: {{steps: {STEPS}, learning_rate: 0.001, batch_size: 2, save_every: {EVERY}}}}}
- {{do: evaluate, name: candidate, set: "step:freeze_set", environment: workplace, model: \
"step:train", samples: 2}}
- {{do: gate, baseline: baseline, candidate: candidate}}
- {{do: ask, question: "Is it good?"}}
"""
WORLD = """
from pathlib import Path
from apps.automation import actions
from apps.automation.specs import read_yaml
from apps.core.actions import create_api_key
from apps.core.models import Project
from apps.environments.actions import save_environment
from apps.promotion import actions as promotion
from apps.promotion.deployment import actions as deployments
from apps.registry import managed
from apps.registry.actions import register_base
from apps.registry.models import Dialect, ServerKind
from django.contrib.auth import get_user_model
from tests.factories import make_environment, make_failed, override
project = Project.objects.get()
by = get_user_model().objects.get(username="admin")
base = register_base(project=project, name="tiny", folder=Path({folder!r}), by=by)
promotion.set_initial(channel=promotion.channel_of(project), version=base, by=by)
environment = make_environment(project)
environment = save_environment(
    project=project, slug="workplace", builtin="workplace", by=by, verifier=environment.verifier,
    harness=dict(environment.harness, max_new_tokens=8))
for number in range(40):
    ticket = 5000 + 37 * number
    make_failed(project, request=f"Close ticket {{ticket}} of {{['Ada', 'Bo', 'Cy', 'Di'][number % \
4]}} please.")
override(environment)
managed.add_managed(project=project, fields={{"name": "production", "base": base, "kind":
    ServerKind.TRANSFORMERS, "dialect": Dialect.NATIVE}}, by=by)
flow = actions.save_flow(project=project, name="whole", spec=read_yaml({text!r}), by=by)
_, key = create_api_key(project=project, name="e", by=by, scopes=["generate", "read"])
print(key, actions.run_now(flow=flow, by=by).pk)
"""
SERVE = """
import time
from apps.core.models import Project
from apps.promotion import actions as promotion
from apps.promotion.deployment import actions as deployments
from apps.registry import managed
project = Project.objects.get()
server, by = project.servers.get(), project.memberships.first().user
run = managed.start(server=server, by=by)
while not managed.is_up(server):
    run.refresh_from_db()
    assert run.is_active, run.error
    time.sleep(1)
    server.refresh_from_db()
channel = promotion.channel_of(project)
deployments.add_target(channel=channel, server=server, by=by)
while any(one.is_active for one in channel.deployments.all()):
    time.sleep(1)
print([one.state for one in channel.deployments.all()], run.worker)
"""
PROMOTE = """
import json, time
from apps.core.models import JobState, Project
from apps.promotion import actions as promotion
from apps.promotion.deployment import fingerprints
from apps.evals.models import EvalSet
from apps.training.models import TrainingRun
from tests.factories import make_environment, make_eval_run, make_eval_set
project = Project.objects.get()
by, channel = project.memberships.first().user, promotion.channel_of(project)
base, better = channel.current, TrainingRun.objects.get().model_version
eval_set, environment = make_eval_set(project, holdout=32), make_environment(project)
report = promotion.make_gate_report(
    baseline=make_eval_run(eval_set, base, environment, success=0.0),
    candidate=make_eval_run(eval_set, better, environment, success=1.0), by=by, channel=channel)
while any(job.is_active for job in better.fingerprint_jobs.all()):
    time.sleep(1)
promotion.promote(channel=channel, report=report, by=by, reason="better")
while any(one.is_active for one in channel.deployments.all()):
    time.sleep(1)
channel.refresh_from_db()
last = channel.deployments.order_by("-created_at").first()
print(json.dumps([str(channel.current), str(better), last.error, last.outcomes], default=str))
"""
ROLL_BACK = """
import time
from apps.core.models import Project
from apps.promotion import actions as promotion
project = Project.objects.get()
by, channel = project.memberships.first().user, promotion.channel_of(project)
promotion.rollback(channel=channel, by=by, reason="back")
while any(one.is_active for one in channel.deployments.all()):
    time.sleep(1)
channel.refresh_from_db()
print(channel.current)
"""


class Sender:
    """Sends runs to both web machines in turn, to the next where one does not answer; knows what
    was acknowledged.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self.urls = [f"http://{node.address}:8000" for node in nodes]
        self.acknowledged: list[str] = []
        self.failed = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        number = 0
        with httpx2.Client(timeout=5, headers={"Authorization": f"Bearer {KEY}"}) as client:
            while not self.over.wait(1.0):
                number += 1
                name = f"sent-{number}"
                for url in (self.urls[number % 2], self.urls[1 - number % 2]):
                    try:
                        made = client.post(f"{url}/api/v1/trajectories/", json=row(id=name))
                    except httpx2.HTTPError:
                        self.failed += 1
                        continue
                    if made.status_code in (200, 201):
                        self.acknowledged.append(name)
                        break
                    self.failed += 1

    def stop(self) -> None:
        self.over.set()
        self.thread.join(60)


class Browser:
    """A person whose requests the balancer sends to one web machine or the other."""

    def __init__(self, nodes: list[Node]) -> None:
        self.urls = [f"http://{node.address}:8000" for node in nodes]
        self.client = httpx2.Client(timeout=120)
        self.token = ""

    def get(self, machine: int, path: str) -> httpx2.Response:
        answer = self.client.get(f"{self.urls[machine]}{path}", headers=self.headers(machine))
        if token := re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', answer.text):
            self.token = token[1]
        return answer

    def post(self, machine: int, path: str, data: dict, files: Any = None) -> httpx2.Response:
        address = f"{self.urls[machine]}{path}"
        return self.client.post(
            address,
            data=data | {"csrfmiddlewaretoken": self.token},
            files=files,
            headers=self.headers(machine) | {"Referer": address},
        )

    def headers(self, machine: int) -> dict[str, str]:
        """Cookies are of all machines, as behind one name."""
        held = {cookie.name: cookie.value for cookie in self.client.cookies.jar}
        return {"Cookie": "; ".join(f"{name}={value}" for name, value in held.items())}

    def log_in(self) -> None:
        self.get(0, "/login/")
        assert self.post(0, "/login/", {"login": "admin", "password": PASSWORD}).status_code == 302


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster() as made:
        yield made


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "tiny")


def rows(cluster: Cluster, query: str, *given: Any) -> list[tuple]:
    url = cluster.environment.get("DATABASE_DIRECT_URL", cluster.environment["DATABASE_URL"])
    with psycopg.connect(url) as connection:
        return connection.execute(query, given or None).fetchall()


def begun(cluster: Cluster, tiny: Path) -> dict[str, Node]:
    """All machines, each with a copy of the base model and nothing else, and their processes."""
    nodes = {name: cluster.node(name) for name in MACHINES}
    for node in nodes.values():
        shutil.copytree(tiny, node.folder / "models" / "tiny")
        node.environment |= {
            "FLYWHEEL_URL": f"http://{nodes['web1'].address}:8000",
            "FLYWHEEL_ENDPOINT_URL": f"http://{nodes['front'].address}:8001",
        }
    first = nodes["web1"]
    first.environment |= {"FLYWHEEL_API_KEY": KEY, "FLYWHEEL_ADMIN_PASSWORD": PASSWORD}
    first.run("manage.py", "prepare")
    for node in nodes.values():
        for name in MACHINES[node.name]:
            node.start(name)
    for name in ("web1", "web2"):
        eventually(lambda name=name: ready(nodes[name]), PATIENCE_S)
    return nodes


def ready(node: Node) -> bool:
    try:
        answer = httpx2.get(f"http://{node.address}:8000/readyz", timeout=20)
    except httpx2.HTTPError:
        return False
    return answer.status_code == 200


def state(cluster: Cluster, run: str) -> dict[str, str]:
    found = rows(cluster, "SELECT key, state, said FROM automation_flowstep WHERE run_id = %s", run)
    assert not [one for one in found if one[1] == "failed"], found
    return {key: state for key, state, _ in found}


def where(cluster: Cluster, table: str) -> str:
    """The machine that has the running job."""
    found = rows(cluster, f"SELECT worker FROM {table} WHERE state = 'running'")
    return found[0][0].partition(":")[0] if found else ""


def imports_a_file(browser: Browser, slug: str) -> None:
    """Previewed by one web machine, started by the other, read by a worker of a third."""
    form, start = (
        reverse(f"trajectories:{name}", args=[slug]) for name in ("import", "import_start")
    )
    browser.get(0, form)
    text = "".join(json.dumps(row(id=f"imported-{number}")) + "\n" for number in range(3))
    seen = browser.post(0, form, {"format": "auto"}, files={"file": ("runs.jsonl", text)})
    token = re.search(r'name="token" value="([^"]+)"', seen.text)
    assert token, seen.text
    begun = browser.post(1, start, {"token": token[1]})
    assert begun.status_code == 302, begun.text


def asks(front: Node, key: str) -> str:
    """The endpoint's answer says which version gave it."""
    answer = httpx2.post(
        f"http://{front.address}:8001/v1/chat/completions",
        headers={"Authorization": f"Bearer {key}"},
        json={
            "model": "production",
            "messages": [{"role": "user", "content": "Close ticket 5000."}],
            "max_tokens": 4,
        },
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    return answer.headers.get("x-flywheel-version", "")


def test_a_whole_turn_over_machines_that_share_no_disk(cluster: Cluster, tiny: Path) -> None:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.0f} s  {text}", flush=True)

    nodes = begun(cluster, tiny)
    say("all processes are ready")
    webs = [nodes["web1"], nodes["web2"]]
    sender, browser = Sender(webs), Browser(webs)
    browser.log_in()
    (slug,) = rows(cluster, "SELECT slug FROM core_project")[0]
    page = browser.get(1, f"/p/{slug}/")
    assert page.status_code == 200
    for path in re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text):
        assert browser.get(1, path).status_code == 200, path  # each web machine has made them
    imports_a_file(browser, slug)
    program = WORLD.format(folder=f"{HERE}/models/tiny", text=FLOW)
    key, run = nodes["web1"].python(program).split()
    eventually(lambda: where(cluster, "evals_evalrun"), PATIENCE_S)
    say("the baseline is evaluated; its machine is cut off, a digesting one is frozen")
    with nodes["eval"].cut_off(), nodes["ingest1"].frozen():
        eventually(lambda: not where(cluster, "evals_evalrun"), PATIENCE_S)
        say("its job is taken from it")
    eventually(lambda: where(cluster, "training_trainingrun"), PATIENCE_S)
    say("the machine is back, has evaluated, and the run trains")
    kept = "SELECT count(*) FROM core_keptfile WHERE path LIKE %s"
    eventually(lambda: rows(cluster, kept, "out/checkpoint-%")[0][0], PATIENCE_S)
    died = where(cluster, "training_trainingrun")
    nodes[died].die()
    say(f"{died} died with a checkpoint kept")
    other = {"train1": "train2", "train2": "train1"}[died]
    eventually(lambda: where(cluster, "training_trainingrun") == other, PATIENCE_S)
    with nodes["web2"].cut_off():
        eventually(lambda: state(cluster, run)["train"] == "done", PATIENCE_S)
    said = rows(
        cluster,
        "SELECT message FROM core_joblog WHERE attempt = 2 AND message LIKE %s",
        f"%, on {other}, continues%",
    )
    say(said[0][0])
    again = re.search(r"checkpoint at step (\d+): (?:(\d+) steps? w|no step)", said[0][0])
    assert again and int(again[1]) >= EVERY
    eventually(lambda: where(cluster, "evals_evalrun"), PATIENCE_S)
    say("the candidate is evaluated; its worker is asked to stop, and ends what it does")
    leaving = nodes["eval"].started["eval"]
    leaving.terminate()
    assert leaving.wait(PATIENCE_S) == 0
    nodes["eval"].start("eval")
    eventually(lambda: state(cluster, run).get("ask") == "waiting", PATIENCE_S)
    tried = rows(cluster, "SELECT attempt FROM evals_evalrun ORDER BY created_at DESC LIMIT 1")
    assert tried == [(1,)]
    say("the candidate is compared")
    say(nodes["web1"].python(SERVE))
    asks(nodes["front"], key)
    live, better, error, outcomes = json.loads(nodes["web2"].python(PROMOTE))
    assert live == better, (error, outcomes)
    say(f"{live} is live")
    eventually(lambda: asks(nodes["front"], key) == live, PATIENCE_S)
    base = nodes["web2"].python(ROLL_BACK)
    assert base == "tiny-v1"
    eventually(lambda: asks(nodes["front"], key) == base, PATIENCE_S)
    say("rolled back")
    sender.stop()
    query = "SELECT external_id, count(*) FROM trajectories_trajectory GROUP BY 1"
    stored = dict(rows(cluster, query))
    say(f"{len(sender.acknowledged)} runs acknowledged, {sender.failed} answers missing")
    assert all(stored.get(name) == 1 for name in sender.acknowledged)
    assert all(stored.get(f"imported-{number}") == 1 for number in range(3))
    eventually(lambda: not rows(cluster, "SELECT 1 FROM trajectories_arrival LIMIT 1"), PATIENCE_S)
    say(f"PgBouncer stood between: {cluster.is_pooled}")
    for table in ("evals_evalrun", "training_trainingrun", "trajectories_upload"):
        assert {one for (one,) in rows(cluster, f"SELECT state FROM {table}")} == {"succeeded"}
