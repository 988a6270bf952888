"""clients/python against a live server and a real worker: an agent that answers in CI, and the CI
step itself.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from flywheel_eval import Answer, FlywheelError, Task, evaluate, evaluate_async, evaluating
from flywheel_eval.command import main

from apps.core.models import Project
from apps.evals.models import EvalRun, EvalSet, HoldoutView
from apps.promotion.actions import set_initial
from apps.promotion.models import GateReport
from apps.promotion.policies import channel_of
from tests.amounts import amount
from tests.e2e.workers import worker
from tests.factories import admin_of, make_environment, make_eval_set, make_key, make_project

pytestmark = pytest.mark.django_db(transaction=True)


class Scene:
    """A project on a live server, and a key of it in the environment."""

    def __init__(self, regression: int) -> None:
        self.project: Project = make_project()
        self.environment = make_environment(self.project)
        self.eval_set: EvalSet = make_eval_set(self.project, holdout=1, regression=regression)

    @property
    def asked(self) -> dict[str, Any]:
        return {
            "eval_set": str(self.eval_set),
            "environment": str(self.environment),
            "agent": "support-agent",
        }

    def command(self, version: str, *more: str) -> list[str]:
        asked = (
            "--eval-set",
            str(self.eval_set),
            "--environment",
            str(self.environment),
            "--name",
            "support-agent",
        )
        return [*more, *asked, "--samples", "2", "--version", version]


@pytest.fixture
def scene(
    live_server: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch, request: Any
) -> Iterator[Scene]:
    made = Scene(getattr(request, "param", 3))
    monkeypatch.setenv("FLYWHEEL_URL", live_server.url)
    monkeypatch.setenv("FLYWHEEL_API_KEY", make_key(made.project, may_see_holdout=True))
    with worker(EvalRun):
        yield made


def call_of(task: Task) -> dict[str, Any]:
    number = int(re.search(r"\d+", task.messages[-1]["content"])[0])
    return {"name": "tickets.close", "arguments": {"id": number}}


def good(task: Task) -> Answer:
    return Answer(tool_calls=[call_of(task)], output_tokens=9)


async def poor(task: Task) -> str:
    await asyncio.sleep(0)
    return "I do not know."


AGENT_FILE = """
import re
def good(task):
    from flywheel_eval import Answer
    number = int(re.search(r"[0-9]+", task.messages[-1]["content"])[0])
    return Answer(tool_calls=[{"name": "tickets.close", "arguments": {"id": number}}])
def poor(task):
    return "I do not know."
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "our_agent.py").write_text(AGENT_FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.more
@pytest.mark.parametrize("scene", [36], indirect=True)
def test_a_ci_step_fails_on_a_planted_regression_and_says_promote_where_it_is_better(
    scene: Scene, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    channel = channel_of(scene.project)
    assert main(scene.command("one", "our_agent:poor")) == 4  # nothing is live
    told = capsys.readouterr()
    assert "Nothing is live" in told.err
    assert "**Note:** No run called a tool of the environment; 36 tasks need calls" in told.out
    before = EvalRun.objects.get(model_version__agent_version="one")
    set_initial(channel=channel, version=before.model_version, by=admin_of(scene.project))
    files = ("--junit", "a.xml", "--markdown", "a.md", "--tasks")
    assert main(scene.command("two", "our_agent:good", *files)) == 0
    report = GateReport.objects.get()
    assert report.verdict == "promote" and f"/reports/{report.pk}/" in (folder / "a.md").read_text()
    suite = ElementTree.fromstring((folder / "a.xml").read_bytes())
    assert (
        suite.get("failures") == "0"
        and len(suite.findall("testcase[@classname='flywheel.tasks']")) == 36
    )
    type(channel).objects.filter(pk=channel.pk).update(current=report.candidate.model_version)
    assert main(scene.command("three", "our_agent:poor", "--junit", "b.xml")) == 1
    suite = ElementTree.fromstring((folder / "b.xml").read_bytes())
    assert int(suite.get("failures", "0")) >= 2  # success and the verdict
    # regression tasks do not wear out: the last comparison is as sharp as the first
    for number in range(4, amount(5, 8)):
        # equal: not shown to be better
        assert main(scene.command(str(number), "our_agent:good")) == 2
    assert set(GateReport.objects.values_list("comparison", flat=True)) == {1}
    assert not EvalRun.objects.filter(split="holdout").exists() and not HoldoutView.objects.exists()


@pytest.mark.proof
def test_an_agent_that_crashes_is_no_green_build(
    scene: Scene, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "broken.py").write_text(
        "def agent(task):\n    raise OSError('no API key')\n"
        "def silent(task):\n    return ' \\n'\n"
        "def blank(task):\n    return {'role': 'assistant', 'content': None}\n"
    )
    ways = [(agent, more) for agent in ("agent", "silent", "blank") for more in ([], ["--no-gate"])]
    for agent, more in amount(ways[1:3], ways):
        files = ("--junit", "a.xml", "--markdown", "a.md")
        version = f"{agent}{len(more)}"
        assert main(scene.command(version, f"broken:{agent}", *more, *files)) == 4
        assert (
            "failed to answer 6" in capsys.readouterr().err
            and "nothing was measured" in (folder / "a.md").read_text()
        )
        assert ElementTree.fromstring((folder / "a.xml").read_bytes()).get("failures") == "1"


@pytest.mark.proof
def test_an_evaluation_is_one_call(scene: Scene) -> None:
    told: list[tuple[int, int]] = []
    result = evaluate(
        good, version="1", samples=2, notify=lambda *counts: told.append(counts), **scene.asked
    )
    assert result.run["state"] == "succeeded" and result.metrics["success"] == {
        "mean": 1.0,
        "low": pytest.approx(0.438, abs=0.01),
        "high": 1.0,
        "n": 3,
    }
    assert result.verdict is None and "Nothing is live" in result.problem and told[-1] == (6, 6)
    samples = EvalRun.objects.get().samples.all()
    assert all(sample.latency_ms > 0 and sample.output_tokens == 9 for sample in samples)
    alone = evaluate(good, version="2", against=None, samples=1, **scene.asked)
    assert alone.verdict is None and not alone.problem


@pytest.mark.proof
def test_it_works_inside_an_event_loop(scene: Scene) -> None:
    async def program() -> Any:
        with pytest.raises(FlywheelError, match="evaluate_async"):
            evaluate(poor, version="1", samples=1, **scene.asked)
        return await evaluate_async(poor, version="1", samples=1, against=None, **scene.asked)

    assert asyncio.run(program()).metrics["success"]["mean"] == 0.0


class Killed(BaseException):
    """What no agent's fault is: the machine goes away."""


@pytest.mark.proof
def test_a_run_that_was_killed_goes_on_where_it_was(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluating, "BATCH", 1)
    asked: list[tuple[str, int]] = []

    async def dies(task: Task) -> str:
        if len(asked) == 4:
            while EvalRun.objects.get().answers.count() < 2:
                await asyncio.sleep(0.01)
            raise Killed
        asked.append((task.id, task.sample))
        return "x"

    with pytest.raises(Killed):
        asyncio.run(evaluate_async(dies, version="1", samples=2, concurrency=1, **scene.asked))
    run = EvalRun.objects.get()
    there = {(str(task), index) for task, index in run.answers.values_list("task", "index")}
    assert there and run.state == "queued"
    again: list[tuple[str, int]] = []

    def counts(task: Task) -> str:
        again.append((task.id, task.sample))
        return "x"

    result = evaluate(counts, version="1", samples=2, **scene.asked)
    assert (
        result.run["id"] == str(run.pk) and not set(again) & there and len(again) + len(there) == 6
    )


def test_what_an_agent_does_wrong_is_its_failure_and_the_run_is_complete(scene: Scene) -> None:
    answers = iter(
        [
            "x" * (2 * 2**20),
            "\ud800 half a pair \x00",
            {"role": "assistant", "content": float("nan")},
            Answer(output="x", latency_ms=float("inf")),
            Answer(output="x", input_tokens=-1),
            {1, 2},
        ]
    )
    lock = threading.Lock()

    def strange(task: Task) -> Any:
        with lock:
            return next(answers)

    result = evaluate(strange, version="1", samples=2, against=None, **scene.asked)
    assert result.run["state"] == "succeeded" and result.metrics["counts"] == {
        "tasks": 3,
        "samples": 6,
        "masked": 0,
        "agent_errors": 5,
        "other_results": 0,
        "no_answer": 5,
        "called": 0,
        "lack_calls": 1,
        "tasks_need_calls": 1,
    }
    failed = EvalRun.objects.get().samples.filter(stop_reason="agent error")
    said = " ".join(line for sample in failed for line in sample.details)
    assert failed.count() == 5 and all(
        word in said for word in ("bytes", "JSON", "input_tokens", "returned set")
    )


@pytest.mark.proof
def test_two_processes_share_one_evaluation(scene: Scene) -> None:
    results: list[Any] = []
    threads = [
        threading.Thread(
            target=lambda: results.append(
                evaluate(poor, version="1", samples=2, against=None, **scene.asked)
            )
        )
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({result.run["id"] for result in results}) == 1 == EvalRun.objects.count()
    assert EvalRun.objects.get().samples.count() == 6


@pytest.mark.proof
def test_an_agent_may_be_a_command(
    scene: Scene, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = (
        "import json,re,sys; t=json.load(sys.stdin); n=int(re.search('[0-9]+',"
        " t['messages'][-1]['content'])[0]); sys.exit('no') if t['sample'] else"
        " print(json.dumps({'tool_calls': [{'name': 'tickets.close', 'arguments': {'id': n}}]}))"
    )
    (folder / "agent.py").write_text(script)
    assert main(scene.command("1", "--command", "python3 agent.py", "--no-gate")) == 0
    assert EvalRun.objects.get().result["metrics"]["success"]["mean"] == 0.5
    assert "0.500" in capsys.readouterr().out


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["--eval-set", "none@1"], "No eval set"),
        (["--environment", "x"], "No environment"),
        (["--samples", "0"], "samples_per_task"),
        (["--name", "a b"], "name"),
        (["--split", "validation"], "no tasks"),
        (["--url", "ftp://x"], "FLYWHEEL_URL"),
        (["--against", "none", "--no-gate", "--split", "x"], "split"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_a_status_of_its_own(
    scene: Scene, folder: Path, capsys: pytest.CaptureFixture[str], change: list[str], said: str
) -> None:
    assert main([*scene.command("1", "our_agent:poor"), *change]) == 3
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1 and "Traceback" not in told


def test_a_key_that_is_wrong_or_may_not_see_the_hold_out(
    scene: Scene, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, said in (
        (make_key(scene.project), "has no access to hold-outs"),
        ("fw_wrong", "unknown or revoked"),
        ("", "No API key"),
    ):
        monkeypatch.setenv("FLYWHEEL_API_KEY", key)
        assert main(scene.command("1", "our_agent:poor", "--split", "holdout")) == 3
        assert said in capsys.readouterr().err
    for name in ("our_agent", "our_agent:none", "not_there:x", "our_agent:AGENT.x"):
        assert main(scene.command("1", name)) == 3
    assert not EvalRun.objects.exists()


@pytest.mark.proof
def test_an_evaluation_that_is_cancelled_meanwhile_is_an_error(scene: Scene) -> None:
    def cancels(task: Task) -> str:
        EvalRun.objects.get().request_cancel()
        return "x"

    with pytest.raises(FlywheelError, match="cancelled"):
        evaluate(cancels, version="1", samples=1, concurrency=1, **scene.asked)


def test_the_docs_examples_say_what_the_command_takes() -> None:
    root = Path(__file__).resolve().parents[2] / "clients" / "python"
    from flywheel_eval.command import parser

    known = {option for action in parser()._actions for option in action.option_strings}
    for name in ("README.md", "examples/github-actions.yml", "examples/gitlab-ci.yml"):
        text = (root / name).read_text()
        assert set(re.findall(r"(?<=\s)--[a-z][-a-z]+", text)) <= known, name
