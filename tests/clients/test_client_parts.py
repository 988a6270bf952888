"""The parts of clients/python that need no server: retries, encoding, reports."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from flywheel_eval import Answer, Api, FlywheelError, Result, Task, api, command, evaluating
from flywheel_eval.reporting import junit, markdown
from flywheel_eval.types import answer_of, encoded

Handler = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(api.asyncio, "sleep", sleep)
    return found


def ask(handler: Handler, what: str = "run", *args: Any) -> Any:
    async def program() -> Any:
        async with Api(
            "http://flywheel.test", "fw_key", transport=httpx.MockTransport(handler)
        ) as client:
            return await getattr(client, what)(*(args or ("1",)))

    return asyncio.run(program())


def in_turn(*responses: httpx.Response | Exception) -> Handler:
    left = iter(responses)

    def handler(request: httpx.Request) -> httpx.Response:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    return handler


def test_a_server_that_is_away_or_busy_is_asked_again(waited: list[float]) -> None:
    busy = httpx.Response(429, headers={"Retry-After": "7"})
    found = ask(
        in_turn(
            httpx.ConnectError("refused"),
            httpx.Response(502),
            busy,
            httpx.ReadTimeout("x"),
            httpx.Response(200, json={"a": 1}),
        )
    )
    assert (
        found == {"a": 1}
        and len(waited) == 4
        and waited[2] == 7
        and waited == sorted(waited[:2]) + waited[2:]
    )


def test_a_server_that_stays_away_ends_in_a_sentence(waited: list[float]) -> None:
    def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(
        FlywheelError, match=r"does not answer \(ConnectError: refused\).*tried 7 times"
    ):
        ask(away)
    assert len(waited) == 6


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (httpx.Response(401, json={"detail": "This API key is unknown."}), "unknown"),
        (
            httpx.Response(400, json={"path": "seed", "error": "must be at least 0"}),
            "seed must be at least 0",
        ),
        (httpx.Response(404, text="<html>"), "answered with 404"),
        (httpx.Response(404, json=["x"]), "answered with 404"),
        (httpx.Response(200, text="<html>"), "Is it a Flywheel server"),
        (httpx.Response(200, json=[]), "Is it a Flywheel server"),
    ],
)
def test_what_will_not_change_is_not_asked_again(
    waited: list[float], response: httpx.Response, said: str
) -> None:
    with pytest.raises(FlywheelError, match=said):
        ask(in_turn(response))
    assert not waited


def test_a_batch_that_is_too_large_goes_in_halves_and_rejections_keep_their_places() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        lines = request.content.split(b"\n")
        if len(lines) > 2:
            return httpx.Response(413, json={"detail": "too large"})
        bad = [
            {"index": at, "path": "task", "error": "no"}
            for at, line in enumerate(lines)
            if line == b"bad"
        ]
        return httpx.Response(
            200,
            json={
                "accepted": len(lines) - len(bad),
                "duplicates": 0,
                "rejected": bad,
                "answers": {},
            },
        )

    done = ask(handler, "answer", "1", "v", [b"a", b"bad", b"b", b"c", b"bad"])
    assert done["accepted"] == 3 and [row["index"] for row in done["rejected"]] == [1, 4]


def test_the_key_never_leaves_for_an_address_that_is_none() -> None:
    for url, key in (
        ("flywheel.test", "k"),
        ("", "k"),
        ("http://x", ""),
        ("http://x", "k\n"),
        ("http://x", "ключ"),
    ):
        with pytest.raises(FlywheelError):
            Api(url, key)


TASK = Task("t", [], [], 1)


@pytest.mark.parametrize(
    ("given", "row"),
    [
        ("a", {"output": "a"}),
        ("", {"output": ""}),
        (
            {"role": "assistant", "content": "a"},
            {"messages": [{"role": "assistant", "content": "a"}]},
        ),
        ([], {"messages": []}),
        (Answer(error="x", input_tokens=0), {"error": "x", "input_tokens": 0}),
    ],
)
def test_an_answer_of_each_form(given: Any, row: dict) -> None:
    assert answer_of(given).as_row(TASK) == {"task": "t", "index": 1} | row


@pytest.mark.parametrize("given", [None, 7, {"content": "a"}, ["a"], {1}])
def test_what_is_no_answer(given: Any) -> None:
    with pytest.raises(TypeError, match="return an Answer"):
        answer_of(given)


@pytest.mark.more(rows=2)
@pytest.mark.parametrize("value", [float("nan"), {1}, b"x", "x" * 100, object()])
def test_what_cannot_be_sent_becomes_an_error(value: Any) -> None:
    sent = json.loads(encoded({"task": "t", "index": 0, "output": value}, 80))
    assert sent["error"] and set(sent) == {"task", "index", "error"}
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert "error" in json.loads(encoded({"task": "t", "index": 0, "messages": deep}, 10**9))


def result(**gate: Any) -> Result:
    check = {
        "name": "success",
        "title": "Success | rate",
        "state": "worse",
        "required": True,
        "baseline": 0.5,
        "candidate": 0.25,
        "difference": -0.25,
        "low": -0.3,
        "high": None,
        "n": 3,
        "sentence": "It fell\x08 <b>.",
    }
    run = {
        "id": "1",
        "eval_set": "support@3",
        "split": "holdout",
        "model_version": "a@1",
        "url": "http://x/run",
        "metrics": {
            "success": {"mean": None, "low": None, "high": None, "n": 0},
            "counts": {"samples": 4, "masked": 0, "agent_errors": 0},
        },
    }
    report = {
        "verdict": "reject",
        "summary": "Rejected: <script>*",
        "checks": [check, check | {"required": False}],
        "url": "http://x/r",
    }
    return Result(run, report | gate)


@pytest.mark.parametrize("error", [SystemExit(0), asyncio.CancelledError(), ValueError("no")])
@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_an_agent_that_ends_the_process_has_failed(error: BaseException, kind: str) -> None:
    def ends(task: Task) -> str:
        raise error

    async def ends_too(task: Task) -> str:
        raise error

    async def program() -> Answer:
        with ThreadPoolExecutor(1) as threads:
            return await evaluating._answered(
                ends if kind == "function" else ends_too, Task("t", [], [], 0), threads
            )

    assert asyncio.run(program()).error.startswith(type(error).__name__)


ASKED = [
    "--eval-set",
    "s@1",
    "--environment",
    "e@1",
    "--name",
    "a",
    "--version",
    "1",
    "--url",
    "http://127.0.0.1:1",
]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "are required"),
        ([*ASKED, "--samples", "x"], "--samples"),
        (["ends:agent", *ASKED], "ends:agent cannot be loaded"),
        (["json:loads", *ASKED], "KeyError"),
    ],
)
def test_no_other_status_than_3_says_that_something_went_wrong(
    given: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    """1 and 2 are the gate's verdicts, and 0 is a promotion."""
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("FLYWHEEL_API_KEY", "fw_key")

    async def start(self: Api, asked: dict) -> dict:
        return {}

    monkeypatch.setattr(Api, "start", start)
    try:
        status = command.main(given)
    except SystemExit as end:
        status = end.code
    assert status == 3 and said in capsys.readouterr().err


def test_a_summary_makes_no_markup_of_what_it_is_given() -> None:
    text = markdown(result())
    assert (
        "Success \\| rate" in text
        and "<script>" not in text
        and "-0.250" in text
        and "(not required)" in text
    )
    assert markdown(Result(result().run)).startswith("### a@1 on support@3 (holdout): evaluated")


@pytest.mark.parametrize(
    ("counts", "gate", "problem"),
    [
        ({"samples": 80}, {}, ""),
        ({"samples": 80, "agent_errors": 24, "masked": 16}, {}, ""),
        ({"samples": 80, "agent_errors": 24, "masked": 17}, {}, "17 could not be scored"),
        ({"samples": 80, "agent_errors": 41}, {}, "the agent failed to answer 41"),
        ({"samples": 80, "masked": 41}, {}, "41 could not be scored"),
        ({"samples": 80, "masked": 1, "other_results": 1}, {}, ""),
        ({"samples": 80, "masked": 80, "other_results": 80}, {}, "80 runs saw other results"),
        (
            {"samples": 80, "called": 0, "lack_calls": 41},
            {"verdict": "inconclusive"},
            "41 failed, and no run called a tool",
        ),
        (
            {"samples": 80, "called": 0, "lack_calls": 21, "agent_errors": 20},
            {"verdict": None},
            "answer 20; 21 failed, and no run called a tool",
        ),
        ({"samples": 80, "called": 0, "lack_calls": 80}, {"verdict": "reject"}, ""),
        ({"samples": 80, "called": 0, "lack_calls": 40}, {}, ""),
        ({"samples": 80, "called": 1, "lack_calls": 79}, {}, ""),
        (
            {"samples": 80},
            {"verdict": None, "summary": "No baseline."},
            "Nothing to compare with. No baseline.",
        ),
        ({}, {}, "no samples"),
    ],
)
def test_what_shows_nothing_about_the_agent_has_a_problem(
    counts: dict, gate: dict, problem: str
) -> None:
    made = result(**gate)
    made.run["metrics"]["counts"] = counts
    assert problem in made.problem and bool(made.problem) == bool(problem)


def test_a_summary_has_the_notes_of_the_server() -> None:
    made = result()
    assert "Note" not in markdown(made)
    made.run["notes"] = ["No run called a tool of the environment; 40 tasks need calls.", "<b> |"]
    text = markdown(made)
    assert "**Note:** No run called a tool of the environment; 40 tasks need calls.\n" in text
    assert "**Note:** \\<b\\> \\|" in text


def test_junit_is_xml_whatever_it_is_given() -> None:
    sample = {
        "key": "k\x00",
        "masked": False,
        "success": False,
        "details": ["\ud800", 7],
        "mask_reason": "",
    }
    suite = ElementTree.fromstring(
        junit(result(), [sample, sample | {"key": "m", "masked": True, "mask_reason": "x\x1b"}])
    )
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "3", "1")
    assert ElementTree.fromstring(junit(result(verdict=None))).get("failures") == "2"
