"""The evaluation itself: tasks are answered concurrently, answers go out in batches, the end is
waited for.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from flywheel_eval.api import MOST_BYTES, Api, FlywheelError
from flywheel_eval.types import Agent, Answer, Result, Task, answer_of, encoded

BATCH, BATCH_BYTES, BATCH_S = 100, 8 * 2**20, 2.0
VERSION_VARIABLES = ("GITHUB_SHA", "CI_COMMIT_SHA", "BUILD_VCS_NUMBER", "GIT_COMMIT")
Notify = Callable[[int, int], None]


def evaluate(my_agent: Agent, **given: Any) -> Result:
    """`evaluate_async` for programs without an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(evaluate_async(my_agent, **given))
    raise FlywheelError("An event loop is running here: use `await evaluate_async(…)`.")


async def evaluate_async(
    my_agent: Agent,
    *,
    eval_set: str,
    environment: str,
    agent: str,
    version: str | None = None,
    split: str = "regression",
    samples: int = 4,
    seed: int = 0,
    concurrency: int = 8,
    against: str | None = "production",
    url: str | None = None,
    api_key: str | None = None,
    patience_s: float = 3600.0,
    notify: Notify | None = None,
) -> Result:
    """Has `my_agent` answer every task of a split `samples` times, and waits until the server has
    scored the answers.

    `my_agent` is a function or coroutine function of a Task; functions run in threads. What it
    raises is its answer's error. `agent` and `version` (else that of the CI system, or git's HEAD)
    name what is evaluated. Begun again with the same arguments while the evaluation is under way,
    it goes on where it stopped. Regression tasks may be evaluated as often as you like; every
    evaluation of a hold-out costs the later ones certainty. `against`: a channel; the gate compares
    with what is live there. `notify` is called with how many answers are there, and of how many.
    Raises FlywheelError.
    """
    version = version or version_here()
    asked = {
        "eval_set": eval_set,
        "environment": environment,
        "split": split,
        "samples_per_task": samples,
        "seed": seed,
        "agent": {"name": agent, "version": version},
    }
    url, api_key = (
        url or os.environ.get("FLYWHEEL_URL", ""),
        api_key or os.environ.get("FLYWHEEL_API_KEY", ""),
    )
    async with Api(url, api_key) as api:
        run = await api.start(asked)
        if run["answers"]["open"]:
            await _answer_all(api, run, my_agent, version, max(1, concurrency), notify)
        run = await _ended(api, run["id"], patience_s)
        if _nothing_scored(run):
            return Result(run)
        if run["state"] != "succeeded":
            raise FlywheelError(
                f"The evaluation {run['state']}. {run['error']} See {run['url']}".replace("  ", " ")
            )
        return Result(run, await api.gate(run["id"], against) if against else {})


def _nothing_scored(run: dict[str, Any]) -> bool:
    """Whether it failed because every sample is masked, which `Result.problem` says."""
    counts = (run.get("metrics") or {}).get("counts") or {}
    return run["state"] == "failed" and 0 < counts.get("samples", 0) == counts.get("masked")


def version_here() -> str:
    """The commit that is evaluated. Raises FlywheelError where nothing says it."""
    for name in VERSION_VARIABLES:
        if os.environ.get(name):
            return os.environ[name]
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10
        )
        if done.returncode == 0:
            return done.stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        pass
    raise FlywheelError(
        "Which version of the agent is this? Give `version`, for instance the git commit."
    )


async def _answer_all(
    api: Api,
    run: dict[str, Any],
    my_agent: Agent,
    version: str,
    concurrency: int,
    notify: Notify | None,
) -> None:
    """Answers what is missing; at most `concurrency` tasks are worked on, and few batches held, at
    a time.
    """
    todo: asyncio.Queue[Task | None] = asyncio.Queue(concurrency)
    lines: asyncio.Queue[bytes | None] = asyncio.Queue(4 * BATCH)
    threads = ThreadPoolExecutor(concurrency, "agent")

    async def read() -> None:
        async for task in _missing(api, run["id"]):
            await todo.put(task)
        for _ in range(concurrency):
            await todo.put(None)

    async def work() -> None:
        while (task := await todo.get()) is not None:
            answer = await _answered(my_agent, task, threads)
            await lines.put(encoded(answer.as_row(task), MOST_BYTES))

    async def work_all() -> None:
        await asyncio.gather(*(work() for _ in range(concurrency)))
        await lines.put(None)

    tasks = [
        asyncio.create_task(one)
        for one in (read(), work_all(), _send_all(api, run["id"], version, lines, notify))
    ]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        threads.shutdown(wait=False, cancel_futures=True)


async def _missing(api: Api, pk: str) -> AsyncIterator[Task]:
    async for row in api.tasks(pk):
        links = {link["index"]: (link["mcp"], link["tools"]) for link in row.get("rollouts", [])}
        for index in row["missing"]:
            yield Task(row["id"], row["messages"], row["tools"], index, *links.get(index, ()))


async def _answered(my_agent: Agent, task: Task, threads: ThreadPoolExecutor) -> Answer:
    """What the agent said, or what it failed with: a failing agent is something to measure, not an
    end.
    """
    began = time.perf_counter()
    try:
        if inspect.iscoroutinefunction(my_agent) or inspect.iscoroutinefunction(
            type(my_agent).__call__
        ):
            given = await my_agent(task)  # type: ignore[misc]
        else:
            given = await asyncio.get_running_loop().run_in_executor(
                threads, partial(my_agent, task)
            )
            given = await given if inspect.isawaitable(given) else given
        answer = answer_of(given)
    except (
        Exception,
        SystemExit,
        asyncio.CancelledError,
    ) as error:  # also sys.exit(0), or the agent would choose the status of the command
        if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise
        answer = Answer(error=f"{type(error).__name__}: {error}"[:2000])
    if answer.latency_ms is None:
        answer.latency_ms = (time.perf_counter() - began) * 1000
    return answer


async def _send_all(
    api: Api, pk: str, version: str, lines: asyncio.Queue[bytes | None], notify: Notify | None
) -> None:
    """Sends answers as they come, a batch at a time, then says that no more come."""
    more = True
    while more:
        batch, more = await _batch(lines)
        if batch:
            done = await _sent(api, pk, version, batch)
            if notify:
                notify(done["received"], done["expected"])
    await api.finish(pk)


async def _batch(lines: asyncio.Queue[bytes | None]) -> tuple[list[bytes], bool]:
    """What comes within a while, up to a size; and whether more may come."""
    batch, size, until = [], 0, time.monotonic() + BATCH_S
    while len(batch) < BATCH and size < BATCH_BYTES:
        try:
            left = until - time.monotonic()
            line = await (asyncio.wait_for(lines.get(), max(left, 0.001)) if batch else lines.get())
        except TimeoutError:
            break
        if line is None:
            return batch, False
        batch.append(line)
        size += len(line)
    return batch, True


async def _sent(api: Api, pk: str, version: str, batch: list[bytes]) -> dict[str, Any]:
    """How many answers are there. What the server does not take of an answer is sent as the agent's
    error, once; a sample that another process has answered meanwhile keeps that answer."""
    done = await api.answer(pk, version, batch)
    again = []
    for row in done["rejected"]:
        if row["path"] == "index":
            continue
        sent = json.loads(batch[row["index"]])
        error = f"The answer was not accepted: {row['path']} {row['error']}"
        again.append(
            json.dumps({"task": sent["task"], "index": sent["index"], "error": error}).encode()
        )
    if again:
        done = await api.answer(pk, version, again)
    return done["answers"]


async def _ended(api: Api, pk: str, patience_s: float) -> dict[str, Any]:
    """The evaluation once it has ended. Raises FlywheelError where that takes too long."""
    until, wait = time.monotonic() + patience_s, 0.5
    while (run := await api.run(pk))["state"] in ("queued", "running"):
        if time.monotonic() > until:
            raise FlywheelError(
                f"The answers are not scored after {patience_s:.0f} seconds ({run['label']}). Does"
                f" a worker run? {run['url']}"
            )
        await asyncio.sleep(wait)
        wait = min(5.0, wait * 1.3)
    return run
