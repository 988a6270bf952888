"""The parts of a prompt search that need no GEPA: what the reflecting model is shown, what is kept
on disk, how proposals count.
"""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest

from workers.lib.journal import Journal, KeptAccount, key_of
from workers.lib.prompt_search.library import Reporter, Wire
from workers.lib.prompt_search.records import feedback, record
from workers.lib.rollouts import Finished
from workers.lib.spending import Meter, Price, Spent, Usage
from workers.lib.verifiers import Rollout, Score


def finished(stop_reason: str = "", **score: object) -> Finished:
    given = {"reward": 0.0} | score
    return Finished(Rollout(task={}), Score(**given), [], stop_reason, 0.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("done", "expected", "evidence", "says"),
    [
        (finished(success=True, reward=1.0), {"a": 1}, "x", ["This was right."]),
        (
            finished(details=["No such ticket.", "No such ticket."]),
            {},
            "",
            ["This was wrong (reward 0).", "- No such ticket."],
        ),
        (finished(reward=None), {}, "", ["This was wrong."]),
        (
            finished(components={"invalid": -1.0}),
            {},
            "",
            ["This was wrong (reward 0).", "The verifier's components: invalid -1."],
        ),
        (
            finished(unsafe=True),
            {"tool": "é"},
            "",
            [
                "This was wrong (reward 0).",
                "- An action was unsafe.",
                'What was expected: {"tool": "é"}',
            ],
        ),
        (
            finished("turns"),
            {},
            "wrong tool",
            [
                "This was wrong (reward 0).",
                "- The agent took more turns than it may.",
                "In production the same task failed before: wrong tool",
            ],
        ),
    ],
)
def test_feedback_is_the_verifiers_and_the_failures(
    done: Finished, expected: dict, evidence: str, says: list
) -> None:
    assert feedback(done, expected, evidence).split("\n") == says


def test_a_record_has_a_bounded_size_and_both_ends() -> None:
    long = [{"role": "user", "content": "a" * 9_000 + "end"}]
    done = finished(
        messages=[
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "close", "arguments": "{}"}}],
            }
        ]
    )
    made = record({"messages": long}, done, "")
    assert (
        len(made["Inputs"]) < 4_100
        and made["Inputs"].endswith("end")
        and "left out" in made["Inputs"]
    )
    assert made["Generated Outputs"] == 'assistant: [{"name": "close", "arguments": "{}"}]'


def test_a_journal_reads_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    journal = Journal(path)
    journal.keep(key_of("a", 1), {"score": 1.0})
    journal.close()
    with path.open("a") as file:
        file.write('7\n{"key": "cut o')
    again = Journal(path)
    again.keep("b", 2)
    again.close()
    assert Journal(path).answers == {key_of("a", 1): {"score": 1.0}, "b": 2}


def test_an_account_goes_on_from_its_journal(tmp_path: Path) -> None:
    """One question is answered, one was open when the worker died."""
    most, price = Usage(100, 1000), Price(output=1000)

    async def first() -> None:
        meter = Meter(
            price, account=KeptAccount(Journal(tmp_path / "j"), most_tokens=0, most_usd=10)
        )
        await meter.book(most)
        meter.settle(most, Usage(90, 200))
        await meter.book(most)

    asyncio.run(first())
    account = KeptAccount(Journal(tmp_path / "j"), most_tokens=0, most_usd=2)
    assert account.used == Usage(190, 1200) and account.used_usd == pytest.approx(1.2)
    with pytest.raises(Spent):
        asyncio.run(Meter(price, account=account).book(most))
    elsewhere = KeptAccount(
        Journal(tmp_path / "none"), most_tokens=0, most_usd=2, before=(Usage(1, 2), 1.5)
    )
    assert elsewhere.used_usd == 1.5 and elsewhere.used == Usage(1, 2)


def test_proposals_are_numbered_in_their_order_with_their_parents() -> None:
    """GEPA numbers only those that it keeps."""
    told = io.StringIO()
    reporter = Reporter(Wire(io.StringIO(), told))
    reporter.on_valset_evaluated(
        {"candidate_idx": 0, "candidate": {"system_prompt": "a"}, "average_score": 0.5}
    )
    reporter.on_candidate_selected({"candidate_idx": 0})
    reporter.on_proposal_end({"new_instructions": {"system_prompt": "b"}})
    reporter.on_candidate_rejected({"old_score": 1.0, "new_score": 0.0})
    reporter.on_candidate_selected({"candidate_idx": 0})
    reporter.on_proposal_end({"new_instructions": {"system_prompt": "c"}})
    reporter.on_valset_evaluated(
        {"candidate_idx": 1, "candidate": {"system_prompt": "c"}, "average_score": 0.7}
    )
    reporter.on_candidate_selected({"candidate_idx": 1})
    reporter.on_proposal_end({"new_instructions": {"system_prompt": "d"}})
    reporter.on_candidate_rejected({"old_score": 1.0, "new_score": 1.0})
    rows = [json.loads(line) for line in told.getvalue().splitlines()]
    assert [(row["number"], row["state"], row["parent"], row["prompt"]) for row in rows] == [
        (0, "start", None, "a"),
        (1, "rejected", 0, "b"),
        (2, "kept", 0, "c"),
        (3, "rejected", 2, "d"),
    ]
