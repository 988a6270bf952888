from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.failures.classify import classify
from workers.environments.workplace import TOOLS, tool_message

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "tau_bench"
WANTED = {"tool": "tickets.close", "args": {"id": 1234}}
SEARCH = [{"type": "function", "function": {"name": "search_mail", "parameters": {}}}]


def run(
    *turns: dict, status: str = "failure", wanted: dict | None = None, tools: list | None = None, **more: Any
) -> dict:
    fix = [{"kind": "edit", "after": wanted}] if wanted else []
    return {
        "messages": [{"role": "user", "content": "Close ticket 1234."}, *turns], "tools": TOOLS if tools is None else tools,
        "outcome_status": status, "interventions": fix, **more,
    }  # fmt: skip


def call(tool: str, **args: Any) -> dict:
    return tool_message({"tool": tool, "args": args})


def reply(text: str) -> dict:
    return {"role": "tool", "tool_call_id": "call_1", "content": text}


def words(text: str) -> dict:
    return {"role": "assistant", "content": text}


BROKEN = {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "tickets.close", "arguments": "{id:"}}]}

CASES = [
    pytest.param(run(words("I closed it.")), "format_error", 1, id="words instead of a call"),
    pytest.param(run(BROKEN), "format_error", 1, id="arguments that do not parse"),
    pytest.param(run(call("tickets.shut", id=1)), "hallucinated_api", 1, id="no such tool"),
    pytest.param(run(call("email.delete_mailbox", owner="Tom"), wanted=WANTED), "unsafe_action", 1, id="dangerous"),
    pytest.param(run(call("email.delete_mailbox", owner="Tom"), status="success"), "unsafe_action", 1, id="harm in success"),
    pytest.param(run(call("email.delete_mailbox", owner="Tom"),
                     wanted={"tool": "email.delete_mailbox", "args": {"owner": "Ann"}}), "wrong_arguments", 1, id="asked for"),
    pytest.param(run(call("email.archive", folder="social"), wanted=WANTED), "wrong_tool_choice", 1, id="wrong tool"),
    pytest.param(run(call("tickets.close", id=99), wanted=WANTED), "wrong_arguments", 1, id="wrong argument"),
    pytest.param(run(call("tickets.close", id="x")), "wrong_arguments", 1, id="breaks the schema"),
    pytest.param(run(call("search_mail", q="a"), reply("[]"), words("It says 5."), tools=SEARCH), "retrieval_failure", 2, id="empty"),
    pytest.param(run(*[t for _ in range(3) for t in (call("search_mail", q="a"), reply("a"))], tools=SEARCH), "bad_planning", 5, id="loop"),
    pytest.param(run(call("tickets.close", id=5), reply("Error: no"), status="unknown"), "incomplete_execution", 2, id="error"),
    pytest.param(run(call("tickets.close", id=5), reply("Done.")), "incomplete_execution", 1, id="failed without a reason"),
    pytest.param(run(call("tickets.close", id=5), reply("Done."), status="unknown"), None, None, id="nothing wrong"),
    pytest.param(run(call("tickets.close", id="x"), status="success"), None, None, id="a success is left alone"),
]  # fmt: skip


@pytest.mark.parametrize(("trajectory", "mode", "blamed"), CASES)
def test_the_mode_and_the_blamed_step(trajectory: dict, mode: str | None, blamed: int | None) -> None:
    found = classify(trajectory)
    if mode is None:
        assert found is None
    else:
        assert found is not None and (found.mode, found.blamed_message) == (mode, blamed)
        assert found.evidence and all(item.text for item in found.evidence)


messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool"])},
        optional={
            "content": st.none() | st.text() | st.lists(st.dictionaries(st.text(), st.text(), max_size=2), max_size=2),
            "tool_calls": st.lists(st.fixed_dictionaries({"function": st.fixed_dictionaries(
                {"name": st.text()}, optional={"arguments": st.none() | st.text() | st.dictionaries(st.text(), st.integers())})}), max_size=2),
        },
    ),
    max_size=6,
)  # fmt: skip


@given(messages, st.sampled_from(["success", "failure", "unknown"]))
def test_it_never_raises(turns: list[dict], status: str) -> None:
    found = classify({"messages": turns, "tools": TOOLS, "outcome_status": status})
    if found and found.blamed_message is not None:
        assert 0 <= found.blamed_message < len(turns)


@pytest.mark.skipif(not DATA.exists(), reason="the sample data lies beside the project, not in it")
def test_real_trajectories_of_another_agent() -> None:
    rows = [row for path in sorted(DATA.glob("*.json")) for row in json.loads(path.read_text())]
    found = [
        classify(
            {"messages": row["traj"], "tools": [], "outcome_status": "success" if row["reward"] == 1 else "failure"}
        )
        for row in rows
    ]
    failed = [item for item, row in zip(found, rows, strict=True) if row["reward"] != 1]
    assert len(failed) > 50 and all(failed)
