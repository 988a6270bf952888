"""NeMo Data Designer itself, in its own environment, asks a server on this machine for variants:
they arrive, are filtered, and wait for a review. What it writes is what the stand-in of
tests/evals/test_variants_job.py writes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from apps.core import job_files, runner
from apps.evals import actions
from apps.evals.models import EvalSet, Origin, Split, Task, VariantJob
from apps.evals.variants import batches, model_job
from apps.evals.variants.model_job import WriteOrder
from apps.evals.variants.seeds import ARGUMENTS, EDGE, PARAPHRASE
from tests.evals.test_variants_job import row
from tests.factories import admin_of, make_project
from workers.lib.variants.requests import ORDERS

ROOT = Path(__file__).resolve().parent.parent
pytestmark = [
    pytest.mark.proof,
    pytest.mark.django_db,
    pytest.mark.skipif(
        not (ROOT / ".venv-designer" / "bin" / "python").exists(),
        reason="no .venv-designer: run `make designer`",
    ),
]
KEY = "sk-design-proof"
TOOL = {
    "type": "function",
    "function": {
        "name": "tickets.close",
        "parameters": {
            "type": "object",
            "properties": {"id": {"type": "integer"}, "desk": {"type": "string"}},
            "required": ["id"],
        },
    },
}
HELD = "Please take ticket 55501 off the board and tell Maria that it is done."


def arguments(ticket: Any) -> dict:
    return {"id": ticket, "desk": "12"}  # a text of digits that must stay one


def answer(request: str, ticket: Any) -> str:
    """As models write it: JSON in a fence, with a word before."""
    said = {
        "request": request,
        "calls": [{"name": "tickets.close", "arguments": json.dumps(arguments(ticket))}],
    }
    return f"Here it is.\n```json\n{json.dumps(said)}\n```"


ASKED = {number: f"Close ticket {number}, please." for number in (4711, 4712, 4713)}
GOOD = {
    (4711, PARAPHRASE): ("My boss wants 4711 off the list of open things today.", 4711),
    (4711, ARGUMENTS): ('Mark ticket 90210 as finished, the customer is "happy" {{ now }}.', 90210),
    (4711, EDGE): ("plz shut teh thing with 4711, I cannot type on this bus", 4711),
    (4712, PARAPHRASE): ("We are through with number 4712: file it away.", 4712),
}
NEAR_A_HOLDOUT = {(4712, ARGUMENTS): (HELD.replace("it is done", "it is all done"), 55501)}
INVALID = {
    (4712, EDGE): ("Just close the other one instead.", 4999),  # was to keep the calls
    (4713, ARGUMENTS): (
        "Close number 4800 for good.",
        "4800",
    ),  # a text where the tool wants a number
}
UNUSABLE = {
    (4713, PARAPHRASE): '```json\n{"calls": []}\n```'
}  # not the form asked for; (4713, EDGE) gets no JSON at all


def script() -> dict:
    told = {place: answer(*said) for place, said in (GOOD | NEAR_A_HOLDOUT | INVALID).items()}
    answers = [
        ([ASKED[number], ORDERS[kind][:40]], text)
        for (number, kind), text in (told | UNUSABLE).items()
    ]
    return {"key": KEY, "answers": answers}


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Its address, ending in /v1."""
    path = folder / "script.json"
    path.write_text(json.dumps(script()))
    command = [sys.executable, "-m", "tests.evals.variant_server", str(path)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"  # type: ignore[union-attr]
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def draft(data_dir: Path, settings: Any, monkeypatch: pytest.MonkeyPatch) -> EvalSet:
    settings.FLYWHEEL_OUTGOING_KEYS = ["DESIGN_KEY@127.0.0.1"]
    monkeypatch.setenv("DESIGN_KEY", KEY)
    project = make_project()
    held = actions.create_eval_set(project=project, slug="held", by=None)
    actions.add_task(
        eval_set=held,
        key="h",
        request=HELD,
        expected={"tool": "tickets.close", "args": arguments(55501)},
        split=Split.HOLDOUT,
        by=None,
    )
    eval_set = actions.create_eval_set(project=project, slug="seeds", by=None)
    for number, request in ASKED.items():
        expected = {"tool": "tickets.close", "args": arguments(number)}
        actions.add_task(
            eval_set=eval_set,
            key=f"s{number}",
            request=request,
            expected=expected,
            split=Split.TRAIN,
            by=None,
        )
    Task.objects.filter(eval_set=eval_set).update(confirmed_by=admin_of(project), tools=[TOOL])
    return eval_set


def ask(draft: EvalSet, address: str) -> VariantJob:
    wanted = WriteOrder(address, "scripted", "DESIGN_KEY", [PARAPHRASE, ARGUMENTS, EDGE], 1)
    job = model_job.submit(eval_set=draft, wanted=wanted, by=admin_of(draft.project))
    runner.run(job)
    job.refresh_from_db()
    return job


def test_variants_arrive_are_filtered_and_wait(
    draft: EvalSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_job, "_tidy", lambda home: None)  # the rows are looked at below
    with server(tmp_path) as address:
        job = ask(draft, address)
        with urllib.request.urlopen(address.replace("/v1", "/requests")) as told:
            requests = json.load(told)
    print(json.dumps(job.result, indent=1))
    assert job.state == "succeeded", job
    result = job.result
    counts = {
        name: result[name] for name in ("asked", "failed", "made", "faulty", "alike", "guarded")
    }
    assert counts == {"asked": 9, "failed": 2, "made": 4, "faulty": 2, "alike": 0, "guarded": 1}
    waiting = {
        task.messages[0]["content"]: task
        for task in batches.waiting_in(draft).select_related("variant_of")
    }
    for text, task in waiting.items():
        print(task.key, task.metadata["variant"]["kind"], task.origin, task.expected, text)
    assert {text: task.expected["args"] for text, task in waiting.items()} == {
        text: arguments(ticket) for text, ticket in GOOD.values()
    }
    assert all(
        task.origin == Origin.SYNTHETIC and task.split == Split.TRAIN for task in waiting.values()
    )
    assert {task.metadata["variant"]["model"] for task in waiting.values()} == {"scripted"}
    assert not draft.tasks.trainable().filter(origin=Origin.SYNTHETIC).exists()
    with pytest.raises(actions.EvalSetError, match="Look at 4 at least"):
        batches.use_batch(eval_set=draft, by=None)
    assert len(requests) == 12  # one first, nine, and one more for each of the two unusable ones
    rows_are_those_of_the_stand_in(draft)


def rows_are_those_of_the_stand_in(draft: EvalSet) -> None:
    said = GOOD | NEAR_A_HOLDOUT | INVALID
    keys = {number: str(draft.tasks.get(key=f"s{number}").pk) for number in ASKED}
    expected = [
        row(keys[number], text, 0, kind)
        | {"ground_truth": [{"name": "tickets.close", "arguments": arguments(ticket)}]}
        for (number, kind), (text, ticket) in said.items()
    ]
    lines = (
        (job_files.job_folder(model_job.latest(draft)) / "out" / "rows.jsonl")
        .read_text()
        .splitlines()
    )
    assert sorted(lines) == sorted(json.dumps(one, ensure_ascii=False) for one in expected)


def test_a_refused_key_and_a_server_that_is_away_are_told_in_words(
    draft: EvalSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESIGN_KEY", "sk-wrong")
    with server(tmp_path) as address:
        refused = ask(draft, address)
    away = ask(draft, address)
    host = address.removeprefix("http://").removesuffix("/v1")
    assert refused.error == f"The model's server at {host} refused the key."
    assert away.error == f"The model's server at {host} cannot be reached."
    assert draft.tasks.count() == 3 and "sk-wrong" not in json.dumps(
        [refused.error, refused.result, away.error, away.result]
    )
