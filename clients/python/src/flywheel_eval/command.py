"""`flywheel-eval`: an evaluation as a CI step.

Exit status: 0 promote, 1 reject, 2 inconclusive, 3 something went wrong, 4 nothing was measured (no
version to compare with; or, in more than half of the samples, the agent failed, could not be
scored, or answered in words alone where tasks need calls).
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from flywheel_eval.api import Api, FlywheelError
from flywheel_eval.evaluating import evaluate
from flywheel_eval.reporting import junit, markdown
from flywheel_eval.types import Agent, Answer, Task

EXIT = {"promote": 0, None: 0, "reject": 1, "inconclusive": 2}
ERROR, NOT_MEASURED = 3, 4
INTERRUPTED = 130


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Status 2, which is argparse's own, says that the gate was inconclusive."""
        self.print_usage(sys.stderr)
        self.exit(ERROR, f"{self.prog}: {message}\n")


def parser() -> argparse.ArgumentParser:
    made = _Parser("flywheel-eval", description=__doc__)
    made.add_argument(
        "agent", nargs="?", help="module:function, which is given a Task and returns its answer"
    )
    made.add_argument(
        "--command",
        help=(
            "a shell command instead: it reads a task as JSON and writes a text, or an answer as"
            " JSON"
        ),
    )
    made.add_argument("--eval-set", required=True, metavar="NAME@VERSION")
    made.add_argument("--environment", required=True, metavar="SLUG@VERSION")
    made.add_argument("--name", required=True, help="what the agent is called on the server")
    made.add_argument(
        "--version", help="of the agent; else the commit that CI builds, or git's HEAD"
    )
    made.add_argument(
        "--split",
        default="regression",
        help="of the eval set (regression); holdout decides promotions, and wears out",
    )
    made.add_argument("--samples", type=int, default=4, help="answers per task (4)")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--concurrency", type=int, default=8, help="tasks at a time (8)")
    made.add_argument(
        "--against",
        default="production",
        metavar="CHANNEL",
        help="compare with what is live there (production)",
    )
    made.add_argument("--no-gate", action="store_true", help="evaluate only, compare with nothing")
    made.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML")
    made.add_argument(
        "--tasks",
        action="store_true",
        help="with a test case for each task; of a hold-out this is a look",
    )
    made.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write a summary for the pull request"
    )
    made.add_argument(
        "--url", default=os.environ.get("FLYWHEEL_URL", ""), help="of the server (FLYWHEEL_URL)"
    )
    made.add_argument(
        "--patience", type=float, default=3600.0, metavar="SECONDS", help="for the scores (3600)"
    )
    made.epilog = (
        "The API key is read from FLYWHEEL_API_KEY. A hold-out needs one that may see hold-outs."
    )
    return made


def main(arguments: list[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        return run(options)
    except FlywheelError as error:
        print(f"flywheel-eval: {error}", file=sys.stderr)
        return ERROR
    except OSError as error:
        print(f"flywheel-eval: a file cannot be written: {error}", file=sys.stderr)
        return ERROR
    except KeyboardInterrupt:
        print("flywheel-eval: stopped; the same command goes on where it was.", file=sys.stderr)
        return INTERRUPTED
    except (
        BaseException
    ) as error:  # Python's own status would be 1, which says that the gate rejects
        traceback.print_exc()
        print(f"flywheel-eval: {type(error).__name__}: {error}", file=sys.stderr)
        return ERROR


def run(options: argparse.Namespace) -> int:
    """The exit status. Raises FlywheelError, OSError."""
    agent = program(options.command) if options.command else load(options.agent or "")
    result = evaluate(
        agent,
        eval_set=options.eval_set,
        environment=options.environment,
        agent=options.name,
        version=options.version,
        split=options.split,
        samples=options.samples,
        seed=options.seed,
        concurrency=options.concurrency,
        against=None if options.no_gate else options.against,
        url=options.url,
        patience_s=options.patience,
        notify=_notify,
    )
    summary = markdown(result)
    print(summary)
    if options.markdown:
        appended = str(options.markdown) == os.environ.get("GITHUB_STEP_SUMMARY")
        with options.markdown.open("a" if appended else "w", encoding="utf-8") as file:
            file.write(summary)
    if options.junit:
        samples = asyncio.run(_samples(options.url, result.run["id"])) if options.tasks else None
        options.junit.write_bytes(junit(result, samples))
    if result.problem:
        print(f"flywheel-eval: nothing was measured. {result.problem}", file=sys.stderr)
        return NOT_MEASURED
    return EXIT[result.verdict]


def load(name: str) -> Agent:
    """The function that `module:function` names. Raises FlywheelError."""
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise FlywheelError("Name the agent as module:function, or give --command.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # whatever the module does when it is imported
        raise FlywheelError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise FlywheelError(f"{name} is not a function.")
    return found


def program(command: str) -> Agent:
    """An agent that is a command: {id, messages, tools, sample, mcp_url, tools_url} in; out a text,
    or {"output" | "tool_calls" | "messages" | "error", …} as JSON. A status other than 0 is the
    answer's error."""

    def answer(task: Task) -> Answer:
        done = subprocess.run(
            command, shell=True, input=json.dumps(vars(task)), capture_output=True, text=True
        )
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:]
            raise RuntimeError(f"the command ended with status {done.returncode}. {' '.join(last)}")
        try:
            said = json.loads(done.stdout)
            return (
                Answer(**said)
                if isinstance(said, dict) and said.keys() <= vars(Answer()).keys()
                else Answer(output=done.stdout)
            )
        except ValueError:
            return Answer(output=done.stdout.strip())

    return answer


async def _samples(url: str, pk: str) -> list[dict[str, Any]]:
    async with Api(url, os.environ.get("FLYWHEEL_API_KEY", "")) as api:
        return [sample async for sample in api.samples(pk)]


def _notify(received: int, expected: int) -> None:
    print(f"{received:,} of {expected:,} answers", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
