"""The demo's production agent. `python -m workers.demo_agent spec.json`.

It answers requests with a real model, runs its calls in the simulated workplace, and logs each run through the public
API with a key, as any agent would. Its users then say how it went, and what they wanted where it went wrong.
The spec: {model, engine, environment, requests: [{request, expected, group}], api: {url, key},
agent: {name, version}, model_name, seed, id_prefix}.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import httpx

from workers.evaluate import rollouts, sampling_of
from workers.lib.engines import Output, open_engine
from workers.lib.environments import load, opening
from workers.lib.events import Emitter
from workers.lib.spec import StopFlag, run_main
from workers.lib.verifiers import Score

RETRIES = 40  # a server that is away is tried again for about a minute: nothing is lost meanwhile


def post(client: httpx.Client, path: str, body: dict) -> None:
    """Sends until it is acknowledged; the id makes a repeat harmless. Raises for what the server refuses."""
    for attempt in range(RETRIES):
        try:
            response = client.post(path, json=body)
        except httpx.TransportError:
            response = None
        if response is not None and response.status_code < 500:
            response.raise_for_status()
            return
        time.sleep(min(2.0, 0.2 * (attempt + 1)))
    raise ConnectionError(f"{path} did not answer after {RETRIES} tries.")


def trajectory(spec: dict, name: str, request: dict, output: Output, score: Score, tools: list[dict]) -> dict:
    ended = datetime.now(UTC)
    harness = spec["environment"]["harness"]
    return {
        "id": name,
        "agent": spec["agent"],
        "model": spec["model_name"],
        "workload": "workplace",
        "user_id": f"user-{int(request['group'][:2], 16) % 12 + 1}",
        "started_at": (ended - timedelta(milliseconds=output.latency_ms)).isoformat(),
        "ended_at": ended.isoformat(),
        "messages": [*opening(harness), {"role": "user", "content": request["request"]}, *score.messages],
        "tools": tools,
        "latency_ms": round(output.latency_ms, 1),
        "usage": {"input_tokens": output.prompt_tokens, "output_tokens": output.output_tokens, "cost_usd": 0},
        "metadata": {"group": request["group"], "template": request["template"]},
    }


def feedback(request: dict, score: Score, index: int) -> dict:
    """What the user says afterwards: fine, or what they had wanted."""
    if score.success:
        return {"outcome": {"status": "success"}, "by": "user"}
    return {
        "outcome": {"status": "failure", "reason": "The request was not carried out as asked."},
        "by": "user",
        "corrected": request["expected"],
        "message_index": index,
    }


def main(spec: dict, events: Emitter, stop: StopFlag) -> None:
    requests = spec["requests"]
    events.progress(0, len(requests), "loading the model")
    environment = load(spec["environment"])
    engine = open_engine(spec["engine"], spec["model"])
    tasks = [
        {"id": str(i), "messages": [{"role": "user", "content": row["request"]}], "expected": row["expected"]}
        for i, row in enumerate(requests)
    ]
    headers = {"Authorization": f"Bearer {spec['api']['key']}"}
    sampling = sampling_of(spec["environment"]["harness"], spec["seed"])
    with httpx.Client(base_url=spec["api"]["url"], headers=headers, timeout=30) as client:
        for done, (task, [(output, score)]) in enumerate(rollouts(engine, environment, tasks, sampling, 1), 1):
            request, name = requests[int(task["id"])], f"{spec['id_prefix']}-{int(task['id']):04d}"
            row = trajectory(spec, name, request, output, score, environment.tools)
            post(client, "/api/v1/trajectories/", row)
            blamed = len(opening(spec["environment"]["harness"])) + 1
            post(client, f"/api/v1/trajectories/{name}/feedback/", feedback(request, score, blamed))
            events.progress(done, len(requests), f"{done} runs logged")
            stop.check()
    events.result(metrics={"sent": len(requests)})


if __name__ == "__main__":
    run_main("demo_agent", main)
