"""The demo's production agent. `python -m workers.demo_agent spec.json`.

It answers requests with a real model, runs its calls in the simulated workplace, and logs each run
through the public API with an API key, like any agent. Its simulated users then report the outcome
and, if it went wrong, what they wanted. Once a version is deployed, it calls the endpoint, which
logs the runs itself.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import msgspec

from workers.evaluate import limits_of, sampling_of
from workers.lib.engines import Sampling
from workers.lib.environments import load, opening
from workers.lib.environments.episodes import as_assistant
from workers.lib.events import Emitter
from workers.lib.policies import PolicyError, Reply, seed_of
from workers.lib.program import StopFlag, run_main
from workers.lib.rollouts import Finished, play
from workers.lib.shares import Shares, divided
from workers.lib.specs.demo_agent import Api, DemoAgent, Request
from workers.lib.specs.engines import InProcess
from workers.lib.typed import plain
from workers.lib.verifiers import Score
from workers.ml.policies import episodes_at_once, open_policy

RETRIES = 40  # about a minute for a server that is down: no requests are lost meanwhile
AT_ONCE = 64  # concurrent requests to the endpoint: a server's batch
AWAY = (429, 500, 502, 503, 504)


class Production:
    """The model behind the endpoint. `traces`: {number of a request: its trajectory}. Close it with
    `aclose`.
    """

    shares_time = False

    def __init__(
        self, endpoint: Api, channel: str, sampling: Sampling, requests: list[Request]
    ) -> None:
        headers = {"Authorization": f"Bearer {endpoint.key}"}
        self.http = httpx2.AsyncClient(base_url=endpoint.url, headers=headers, timeout=120)
        self.channel, self.sampling, self.requests = channel, sampling, requests
        self.traces = [secrets.token_hex(16) for _ in requests]

    async def aclose(self) -> None:
        await self.http.aclose()

    def forget(self, key: int) -> None:
        """Nothing is stored between turns."""

    async def responds(self) -> bool:
        return True

    async def answer(
        self,
        messages: list[dict],
        tools: list[dict],
        *,
        seed: int,
        key: int = 0,
        most: int | None = None,
    ) -> Reply:
        """Raises PolicyError."""
        request, turn = (
            self.requests[key],
            sum(message["role"] == "assistant" for message in messages),
        )
        body = {
            "model": self.channel,
            "messages": messages,
            "max_tokens": self.sampling.max_new_tokens,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "seed": seed_of(seed, turn, 0),
            "user": user_of(request),
            "metadata": {"group": request.group, "template": request.template},
        } | ({"tools": tools} if tools else {})
        headers = {"traceparent": f"00-{self.traces[key]}-{secrets.token_hex(8)}-01"}
        began = time.perf_counter()
        found = await self._post(body, headers)
        choice, usage = found["choices"][0], found.get("usage") or {}
        said = as_assistant(choice["message"], 1 + turn)
        return Reply(
            message=said,
            text=said["content"] or "",
            prompt_tokens=usage.get("prompt_tokens", 0),
            output_tokens=usage.get("completion_tokens", 0),
            latency_ms=(time.perf_counter() - began) * 1000,
            truncated=choice.get("finish_reason") == "length",
        )

    async def _post(self, body: dict, headers: dict[str, str]) -> dict:
        why = ""
        for attempt in range(RETRIES):
            try:
                response = await self.http.post("/v1/chat/completions", json=body, headers=headers)
                if response.status_code == 200:
                    return response.json()
                why = response.text[:300]
                if response.status_code not in AWAY:
                    break
            except httpx2.TransportError as error:
                why = f"{type(error).__name__}: {error}"
            await asyncio.sleep(min(2.0, 0.2 * (attempt + 1)))
        raise PolicyError(f"The endpoint gave no answer. {why}", final=True)


def user_of(request: Request) -> str:
    return f"user-{int(request.group[:2], 16) % 12 + 1}"


def post(client: httpx2.Client, path: str, body: dict) -> None:
    """Send until it is acknowledged; the id makes repeats harmless. Raises if the server rejects
    it.
    """
    for attempt in range(RETRIES):
        try:
            response = client.post(path, json=body)
        except httpx2.TransportError:
            response = None
        if response is not None and response.status_code < 500:
            response.raise_for_status()
            return
        time.sleep(min(2.0, 0.2 * (attempt + 1)))
    raise ConnectionError(f"{path} did not answer after {RETRIES} tries.")


def trajectory(
    spec: DemoAgent, name: str, request: Request, done: Finished, tools: list[dict]
) -> dict:
    ended = datetime.now(UTC)
    harness, latency_ms = spec.environment.harness, sum(reply.latency_ms for reply in done.replies)
    usage = {
        "input_tokens": sum(reply.prompt_tokens for reply in done.replies),
        "output_tokens": sum(reply.output_tokens for reply in done.replies),
        "cost_usd": 0,
    }
    return {
        "id": name,
        "agent": plain(spec.agent),
        "model": spec.model_name,
        "workload": "workplace",
        "user_id": user_of(request),
        "started_at": (ended - timedelta(milliseconds=latency_ms)).isoformat(),
        "ended_at": ended.isoformat(),
        "messages": [
            *opening(harness),
            {"role": "user", "content": request.request},
            *done.score.messages,
        ],
        "tools": tools,
        "latency_ms": round(latency_ms, 1),
        "usage": usage,
        "metadata": {"group": request.group, "template": request.template},
    }


def feedback(request: Request, score: Score, index: int) -> dict:
    """The simulated user's feedback: that it was fine, or what they had wanted."""
    if score.success:
        return {"outcome": {"status": "success"}, "by": "user"}
    return {
        "outcome": {"status": "failure", "reason": "The request was not carried out as asked."},
        "by": "user",
        "corrected": request.expected,
        "message_index": index,
    }


def main(spec: DemoAgent, events: Emitter, stop: StopFlag) -> None:
    requests = spec.requests
    events.progress(0, len(requests), "loading the model")
    environment = load(spec.environment)
    harness, engine = spec.environment.harness, spec.engine
    tasks = [
        {
            "id": str(i),
            "messages": [{"role": "user", "content": row.request}],
            "expected": row.expected,
        }
        for i, row in enumerate(requests)
    ]
    blamed, sent = len(opening(harness)) + 1, 0
    production = (
        Production(spec.endpoint, spec.model_name, sampling_of(harness), requests)
        if spec.endpoint
        else None
    )
    shares = Shares()
    if production is None and isinstance(engine, InProcess):
        shares = divided("workers.demo_agent", Path(spec.model.base), len(tasks))
        engine = msgspec.structs.replace(engine, threads=engine.threads or shares.threads)
    headers = {"Authorization": f"Bearer {spec.api.key}"}
    with httpx2.Client(base_url=spec.api.url, headers=headers, timeout=30) as client:

        def count(_: Any = None) -> None:
            nonlocal sent
            sent += 1
            events.progress(sent, len(requests), f"{sent} runs logged")

        def log(index: int, _: int, done: Finished) -> None:
            request, name = requests[index], f"{spec.id_prefix}-{index:04d}"
            if production:
                name = production.traces[index]
            else:
                post(
                    client,
                    "/api/v1/trajectories/",
                    trajectory(spec, name, request, done, environment.tools),
                )
            post(
                client,
                f"/api/v1/trajectories/{name}/feedback/",
                feedback(request, done.score, blamed),
            )
            if shares.number:
                events.sample(index=index)  # for the process that counts
            count()
            stop.check()

        play(
            production or open_policy(engine, spec.model, sampling_of(harness)),
            environment,
            tasks,
            limits_of(harness),
            log,
            concurrency=AT_ONCE if production else episodes_at_once(engine, environment),
            seed=spec.seed,
            only=shares.of(len(tasks)),
            check=(lambda: shares.read(count)) if shares.others else None,
        )
        shares.read_all(count, stop.check)
    events.result(
        metrics={"sent": len(requests)}, trajectories=production.traces if production else []
    )


if __name__ == "__main__":
    run_main(DemoAgent, main)
