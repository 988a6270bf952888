"""Blame by replay against planted steps. `python -m bench.replay [--cases 24] [--slip 0.02] [--each
8] [--every]`

Failed runs of the built-in workplace assistant with a planted wrong step (`bench.planted_steps`)
are sent to a product of its own (`manage.py up`) with their tasks, by REST alone; then a step
search is run for each. Its agent is an OpenAI-compatible server that slips in one of `1 / slip`
steps. Says in how many the planted step is blamed, and what it took. All of it goes to
var/bench/replay-SLIP-EACH.json.

`--simulate` runs the program's search without a product, for agents that slip more and less often.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx2

from apps.core.intervals import wilson
from apps.evals.replays.verdict import verdict_of
from bench.peers import machine
from bench.planted_steps import ENVIRONMENT, Planted, answer, completion, planted
from workers.find_step import Search
from workers.lib.environments import load
from workers.lib.events import Emitter
from workers.lib.policies import Reply
from workers.lib.program import StopFlag
from workers.lib.rollouts import NO_LIMITS
from workers.lib.specs.engines import InProcess, Model
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.specs.find_step import FindStep
from workers.lib.typed import convert

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 1800
SHOWN = ("name", "kind", "steps", "planted", "blamed", "is_sure", "continuations", "error")


class Agent(ThreadingHTTPServer):
    """The planted runs' agent."""

    daemon_threads = True

    def __init__(self, cases: list[Planted], slip: float) -> None:
        super().__init__(("127.0.0.1", 0), AgentHandler)
        self.to_do, self.slip = {one.request: one.calls for one in cases}, slip
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


class AgentHandler(BaseHTTPRequestHandler):
    server: Agent

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._send({"object": "list", "data": [{"id": "planted", "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/v1/chat/completions":
            self.send_error(404)
            return
        request = next((one["content"] for one in body["messages"] if one["role"] == "user"), "")
        if request in self.server.to_do:
            said = answer(body, self.server.to_do, slip=self.server.slip)
        else:  # the product's own check of the server
            said = {"role": "assistant", "content": "Hello."}
        self._send(completion(body, said))

    def _send(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Product:
    """`manage.py up` in a data folder of its own, whose key is kept beside it for the next time."""

    def __init__(self, folder: Path, port: int) -> None:
        given = {
            "FLYWHEEL_DATA_DIR": str(folder),
            "FLYWHEEL_ALLOW_PRIVATE_URLS": "1",
            "FLYWHEEL_DEMO": "0",
        }
        self.log = folder.parent / "up.log"
        self.is_new = not folder.exists()
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "up", "--port", str(port)],
            cwd=ROOT,
            env=os.environ | given,
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
        )
        key = folder.parent / "key"
        if not key.exists():
            key.write_text(self.until(lambda: re.search(r"fw_[\w-]+", self.log.read_text()))[0])
        headers = {"Authorization": f"Bearer {key.read_text().strip()}"}
        self.http = httpx2.Client(
            base_url=f"http://127.0.0.1:{port}/api/v1", headers=headers, timeout=120
        )
        self.until(lambda: self._is_up())

    def _is_up(self) -> bool:
        try:
            return self.http.get("/eval-sets/").status_code == 200
        except httpx2.TransportError:
            return False

    def until(self, check: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := check()):
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise SystemExit(f"The product does not answer. {self.log.read_text()[-2000:]}")
            time.sleep(1)
        return found

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        answered = self.http.request(method, path, json=body, params=query or None)
        if answered.status_code >= 400:
            raise SystemExit(f"{method} {path}: {answered.status_code} {answered.text[:500]}")
        return answered.json() if answered.content else None

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)


def register(product: Product, agent: Agent) -> int:
    """The number of its model version."""
    name = f"agent-{agent.server_port}"
    server = {"name": name, "base_url": agent.url, "prices": {"planted": [0.5, 1.5]}}
    product.ask("POST", "/servers/", server)
    version = {"kind": "endpoint", "name": "office", "server": name, "served_as": "planted"}
    return product.ask("POST", "/model-versions/", version)["id"]


def prepare(product: Product, cases: list[Planted]) -> None:
    """Sends runs and tasks, and makes the environment."""
    for case in cases:
        run = {
            "id": case.name,
            "agent": {"name": "office", "version": "1"},
            "messages": [{"role": "user", "content": case.request}, *case.messages],
            "outcome": {"status": "failure"},
        }
        product.ask("POST", "/trajectories/", run)
    eval_set = product.ask("POST", "/eval-sets/", {"name": "planted"})["id"]
    tasks = [
        {
            "key": case.name,
            "messages": [{"role": "user", "content": case.request}],
            "expected": {"calls": case.calls},
            "split": "train",
        }
        for case in cases
    ]
    product.ask("POST", f"/eval-sets/{eval_set}/tasks/", tasks)
    product.ask(
        "POST",
        "/environments/",
        {
            "slug": "office",
            "kind": "builtin",
            "builtin": ENVIRONMENT["name"],
            "harness": ENVIRONMENT["harness"],
        },
    )
    product.ask("POST", "/classification/")
    product.until(lambda: product.ask("GET", "/classification/")["waiting"] == 0)


def step_of(case: Planted) -> int:
    """The message of the planted step, in the run that begins with a request."""
    return [at for at, one in enumerate(case.messages, 1) if one["role"] == "assistant"][case.step]


def measured(product: Product, case: Planted, settings: dict[str, Any]) -> dict[str, Any]:
    body = {"failure": case.name} | settings
    query = {name: str(value).lower() for name, value in body.items()}
    forecast = product.ask("GET", "/step-searches/forecast/", **query)
    began = time.perf_counter()
    search = product.ask("POST", "/step-searches/", body)
    path = f"/step-searches/{search['id']}/"
    ended = ("succeeded", "failed", "cancelled")
    found = product.until(lambda: (row := product.ask("GET", path))["state"] in ended and row)
    return {
        "name": case.name,
        "kind": case.kind,
        "steps": case.steps,
        "planted": step_of(case),
        "blamed": found["verdict"]["step"],
        "is_sure": found["verdict"]["is_sure"],
        "state": found["state"],
        "error": found["error"],
        "seconds": time.perf_counter() - began,
        "continuations": found["done"],
        "tokens": found["input_tokens"] + found["output_tokens"],
        "usd": found["usd"],
        "forecast": forecast,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    right = [row for row in rows if row["blamed"] == row["planted"]]
    sure = [row for row in rows if row["is_sure"]]
    sure_right = [row for row in sure if row["blamed"] == row["planted"]]
    said = [row["forecast"]["input_tokens"] + row["forecast"]["output_tokens"] for row in rows]
    return {
        "cases": len(rows),
        "right": len(right),
        "interval": wilson(len(right), len(rows)),
        "sure": len(sure),
        "sure_and_right": len(sure_right),
        "first_step_right": sum(row["planted"] == 1 for row in rows),
        "steps": fmean(row["steps"] for row in rows),
        "continuations": fmean(row["continuations"] for row in rows),
        "tokens": fmean(row["tokens"] for row in rows),
        "forecast_tokens": fmean(said),
        "usd": fmean(row["usd"] or 0.0 for row in rows),
        "seconds": fmean(row["seconds"] for row in rows),
    }


class Simulated:
    """The planted runs' agent as a policy."""

    shares_time = True

    def __init__(self, case: Planted, slip: float) -> None:
        self.case, self.slip = case, slip

    async def answer(
        self,
        messages: list[dict],
        tools: list[dict],
        *,
        seed: int,
        key: int = 0,
        most: int | None = None,
    ) -> Reply:
        body = {"messages": messages, "seed": seed}
        return Reply(answer(body, {self.case.request: self.case.calls}, slip=self.slip))

    async def responds(self) -> bool:
        return True

    def forget(self, key: int) -> None:
        pass

    async def aclose(self) -> None:
        pass


def simulated(case: Planted, slip: float, each: int, every: bool) -> dict[str, Any]:
    spec = FindStep(
        model=Model(base="-"),
        engine=InProcess(),
        environment=convert(ENVIRONMENT, EnvironmentSpec, "environment"),
        task=case.task,
        recorded=case.messages,
        steps=[at for at, one in enumerate(case.messages) if one["role"] == "assistant"],
        each=each,
        every=every,
        seed=case.step,
    )
    environment, events = load(spec.environment), Emitter(mute=True)
    search = Search(spec, environment, NO_LIMITS, spec.steps, events, StopFlag())
    asyncio.run(search.run(Simulated(case, slip)))
    verdict = verdict_of(spec.steps, search.tried, ended=True)
    return {
        "planted": spec.steps[case.step],
        "blamed": verdict.step,
        "is_sure": verdict.is_sure,
        "steps": case.steps,
        "continuations": sum(one.attempts for one in search.tried.values()),
    }


def simulate(cases: list[Planted]) -> None:
    """Prints a table: how often the planted step is blamed, by agent and continuations per step."""
    print("| slips | per step | blamed right | certain | certain and right | continuations |")
    print("|---|---|---|---|---|---|")
    for slip in (0.0, 0.05, 0.2):
        for each in (4, 8):
            rows = [simulated(case, slip, each, every=False) for case in cases]
            right = [row for row in rows if row["blamed"] == row["planted"]]
            sure = [row for row in rows if row["is_sure"]]
            both = [row for row in sure if row["blamed"] == row["planted"]]
            low, high = wilson(len(right), len(rows))
            print(
                f"| {slip:.0%} | {each} | {len(right)} of {len(rows)} [{low:.0%}, {high:.0%}] |"
                f" {len(sure)} | {len(both)} | {fmean(row['continuations'] for row in rows):.0f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=24)
    parser.add_argument("--first", type=int, default=1000, help="the seed of the first case")
    parser.add_argument("--slip", type=float, default=0.02)
    parser.add_argument("--each", type=int, default=8)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--port", type=int, default=8125)
    parser.add_argument("--folder", type=Path, default=ROOT / "var" / "bench" / "replay")
    parser.add_argument("--simulate", action="store_true")
    given = parser.parse_args()
    if given.simulate:
        return simulate([planted(given.first + n, most=12) for n in range(given.cases)])
    given.folder.mkdir(parents=True, exist_ok=True)
    cases = [planted(given.first + n) for n in range(given.cases)]
    agent = Agent(cases, given.slip)
    product = Product(given.folder / "data", given.port)
    try:
        if product.is_new:
            prepare(product, cases)
        settings = {
            "environment": "office@1",
            "model_version": register(product, agent),
            "each": given.each,
            "every": given.every,
        }
        rows = []
        for case in cases:
            rows.append(measured(product, case, settings))
            print([rows[-1][name] for name in SHOWN], flush=True)
        result = {"machine": machine(), "settings": vars(given) | {"folder": ""}, "rows": rows}
        result["summary"] = summary(rows)
        name = f"replay-{given.slip:g}-{given.each}{'-every' if given.every else ''}.json"
        found = ROOT / "var" / "bench" / name
        found.parent.mkdir(parents=True, exist_ok=True)
        found.write_text(json.dumps(result, indent=1))
        print(json.dumps(result["summary"], indent=1))
    finally:
        product.stop()
        agent.shutdown()


if __name__ == "__main__":
    main()
