"""`flywheel-work`: runs your agent for the evaluations and training runs that it plays, on this
machine. It asks for rollouts, starts a command for each, and reports what that says.

    flywheel-work support-agent@3f2a9c1 -- python agent.py

The command finds its task in the file FLYWHEEL_TASK and on standard input, the model at
OPENAI_BASE_URL or ANTHROPIC_BASE_URL (FLYWHEEL_MODEL is its name), and the environment's tools at
FLYWHEEL_MCP_URL and FLYWHEEL_TOOLS_URL. The last line of its output is JSON: {"messages": […]},
what the agent added to the conversation, or {"output": "text"}. Another exit status than 0 is a
failure.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from flywheel_eval.api import Api, FlywheelError

WAIT_S, ASK_EVERY_S = 20.0, 5.0
MOST_OUTPUT = 4 * 2**20  # bytes of a command's output that are kept
SHOWN, ERROR = 300, 3
GONE = (404, 410)
TRIES = 5  # of a report
SECRET = "FLYWHEEL_API_KEY"  # which the agent has no use for


class Ended(Exception):
    """The rollout is no longer this worker's."""


class Worker:
    def __init__(self, options: argparse.Namespace, api: Api, http: httpx.AsyncClient) -> None:
        self.agent, self.command = options.agent, options.command
        self.timeout_s, self.count = options.timeout, options.concurrency
        self.api, self.http = api, http
        self.jobs: list[dict[str, Any]] = []
        self.asked_at, self.asking = float("-inf"), asyncio.Lock()
        self.said = ""

    async def run(self) -> None:
        """Until it is cancelled. Raises FlywheelError."""
        await self._current_jobs()
        self._say(f"Waiting for rollouts of {self.agent}, {self.count} at a time.")
        async with asyncio.TaskGroup() as group:
            for _ in range(self.count):
                group.create_task(self._serve())

    async def _serve(self) -> None:
        while True:
            jobs = await self._current_jobs()
            for job in random.sample(jobs, len(jobs)):
                if rollout := await self._take(job, WAIT_S if len(jobs) == 1 else 0.0):
                    await self._play(job, rollout)
            if len(jobs) != 1:
                await asyncio.sleep(1.0)

    async def _current_jobs(self) -> list[dict[str, Any]]:
        async with self.asking:
            if time.monotonic() - self.asked_at > ASK_EVERY_S:
                found = await self._ask()
                self.jobs, self.asked_at = found["jobs"], time.monotonic()
                if found["withheld"]:
                    self._say(
                        "An evaluation of a hold-out waits, which this key may not see. Use a key"
                        " with access to hold-outs."
                    )
            return self.jobs

    async def _ask(self) -> dict[str, Any]:
        """Waits for a server that is away; what it refuses is raised."""
        while True:
            try:
                return await self.api.request("GET", "work/", params={"agent": self.agent})
            except FlywheelError as error:
                if error.status is not None:
                    raise
                self._say(str(error))

    async def _take(self, job: dict[str, Any], wait_s: float) -> dict[str, Any] | None:
        try:
            return (await self._post(job["url"], {"wait_s": wait_s}))["rollout"]
        except Ended:
            self.asked_at = float("-inf")  # the job has ended
        except (httpx.TransportError, FlywheelError) as error:
            address = job["url"].partition("/rollout/")[0]
            self._say(
                f"{address}, where “{job['name']}” gives out rollouts, cannot be used from here"
                f" ({type(error).__name__}: {error}). If the job still runs, set"
                " FLYWHEEL_ROLLOUTS_URL on the server."
            )
        await asyncio.sleep(1.0)
        return None

    async def _play(self, job: dict[str, Any], rollout: dict[str, Any]) -> None:
        url, began = f"{job['url']}/{rollout['id']}", time.monotonic()
        name = f"{job['name']}, task {rollout['task']['id']}"
        report: dict[str, Any] = {"released": True}
        running = asyncio.create_task(self._run(rollout))
        alive = asyncio.create_task(self._keep(url, rollout["lease_s"]))
        try:
            await asyncio.wait({running, alive}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                self._say(f"{name}: ended by the server")
                return
            report = running.result()
        finally:
            for task in (running, alive):
                task.cancel()
            await asyncio.gather(running, alive, return_exceptions=True)
            with contextlib.suppress(Ended):
                await self._report(url, report)
        self._say(f"{name}: {report.get('problem') or 'done'} ({time.monotonic() - began:.1f} s)")

    async def _keep(self, url: str, lease_s: float) -> None:
        """Says that this worker is alive; returns when the rollout is no longer its own."""
        seen = time.monotonic()
        while time.monotonic() - seen < lease_s:
            await asyncio.sleep(lease_s / 4)
            try:
                await self._post(url, {"alive": True}, timeout=lease_s / 4)
                seen = time.monotonic()
            except Ended:
                return
            except (httpx.TransportError, FlywheelError):
                continue

    async def _report(self, url: str, report: dict[str, Any]) -> None:
        for number in range(TRIES):
            try:
                await self._post(url, report)
                return
            except httpx.TransportError:
                await asyncio.sleep(0.2 * 2**number)
            except FlywheelError as error:
                self._say(f"A report was not accepted: {error}")
                return

    async def _post(self, url: str, body: dict[str, Any], **given: Any) -> dict[str, Any]:
        response = await self.http.post(url, json=body, **given)
        if response.status_code in GONE:
            raise Ended
        if response.status_code != 200:
            raise FlywheelError(response.text[:SHOWN], response.status_code)
        return response.json()

    async def _run(self, rollout: dict[str, Any]) -> dict[str, Any]:
        """Runs the command; what to report."""
        with tempfile.TemporaryDirectory(prefix="flywheel-work-") as folder:
            task = Path(folder) / "task.json"
            task.write_text(json.dumps(rollout["task"], ensure_ascii=False), encoding="utf-8")
            own = {name: value for name, value in os.environ.items() if name != SECRET}
            variables = own | rollout["variables"] | {"FLYWHEEL_TASK": str(task)}
            try:
                with task.open("rb") as given:
                    process = await asyncio.create_subprocess_exec(
                        *self.command,
                        env=variables,
                        stdin=given,
                        stdout=asyncio.subprocess.PIPE,
                        stderr=asyncio.subprocess.PIPE,
                        start_new_session=True,
                    )
            except OSError as error:
                raise FlywheelError(f"The command cannot be started: {error}.") from error
            try:
                async with asyncio.timeout(self.timeout_s):
                    out, errors = await asyncio.gather(_end(process.stdout), _end(process.stderr))
                    status = await process.wait()
            except TimeoutError:
                problem = f"The agent's command took longer than {self.timeout_s:g} seconds."
                return {"problem": problem, "timed_out": True}
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if status:
            last = errors.strip()[-SHOWN:]
            return {"problem": f"The agent's command ended with status {status}. {last}"}
        return reported(out)

    def _say(self, text: str) -> None:
        """Nothing twice in a row."""
        if text != self.said:
            self.said = text
            print(f"flywheel-work: {text}", file=sys.stderr, flush=True)


def reported(output: str) -> dict[str, Any]:
    """What the last line of an agent's output says; without it only its calls count."""
    lines = output.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):
        found = {}
    names = ("messages", "output")
    said = {name: found[name] for name in names if name in found} if type(found) is dict else {}
    return said or {"messages": []}


async def _end(stream: Any) -> str:
    """The end of what a process writes; all of it is read, so that it never waits."""
    found = bytearray()
    while data := await stream.read(65536):
        found += data
        del found[:-MOST_OUTPUT]
    return found.decode(errors="replace")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "flywheel-work", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("agent", metavar="NAME@VERSION", help="an agent that waits for work")
    made.add_argument("command", nargs="+", metavar="COMMAND", help="after --, with its arguments")
    made.add_argument("--concurrency", type=int, default=4, help="rollouts at a time (4)")
    made.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="of one rollout, besides the server's"
    )
    made.add_argument(
        "--url", default=os.environ.get("FLYWHEEL_URL", ""), help="of the server (FLYWHEEL_URL)"
    )
    made.epilog = (
        "The API key (scope evaluate) is read from FLYWHEEL_API_KEY; the command does not get it."
        " SIGTERM ends it; its rollouts are given to another worker."
    )
    return made


async def work(options: argparse.Namespace) -> None:
    """Raises FlywheelError."""
    if options.concurrency < 1:
        raise FlywheelError("--concurrency must be at least 1.")
    if shutil.which(options.command[0]) is None:
        raise FlywheelError(f"The command “{options.command[0]}” does not exist.")
    loop, this = asyncio.get_running_loop(), asyncio.current_task()
    assert this is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, this.cancel)
    http = httpx.AsyncClient(timeout=WAIT_S + 30)
    async with Api(options.url, os.environ.get(SECRET, "")) as api, http:
        await Worker(options, api, http).run()


def main(arguments: list[str] | None = None) -> int:
    options, status = parser().parse_args(arguments), 0
    try:
        asyncio.run(work(options))
    except* FlywheelError as errors:
        print(f"flywheel-work: {errors.exceptions[0]}", file=sys.stderr)
        status = ERROR
    except* asyncio.CancelledError:
        print("flywheel-work: stopped", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
