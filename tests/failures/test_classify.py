from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.failures.classify import PRECEDENCE, classify, classify_run
from apps.failures.rules.reading import read
from apps.trajectories.importers.tau_bench import rows
from tests.factories import tool_message
from workers.lib.environments.workplace import TOOLS

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "tau_bench"
LABELS = Path(__file__).resolve().parents[2] / "bench" / "data" / "tau_hand_labels.json"
WANTED = {"tool": "tickets.close", "args": {"id": 1234}}
CLOSED = {"tool": "tickets.close", "args": {"id": 7}}
SEARCH = [{"type": "function", "function": {"name": "search_mail", "parameters": {}}}]
MODES = {
    "format_error",
    "wrong_tool_choice",
    "wrong_arguments",
    "bad_planning",
    "unsafe_action",
    "retrieval_failure",
    "hallucinated_api",
    "incomplete_execution",
    "misread_tool_result",
    "ambiguous_request",
    "policy_violation",
    "unexplained",
}


def run(
    *turns: dict,
    status: str = "failure",
    wanted: dict | None = None,
    tools: list | None = None,
    **more: Any,
) -> dict:
    fix = [{"kind": "edit", "after": wanted}] if wanted else []
    return {
        "messages": [{"role": "user", "content": "Close ticket 1234."}, *turns],
        "tools": TOOLS if tools is None else tools,
        "outcome_status": status,
        "interventions": fix,
        **more,
    }


def call(tool: str, **args: Any) -> dict:
    return tool_message({"tool": tool, "args": args})


def calls(*made: tuple[str, dict]) -> dict:
    functions = [{"name": tool, "arguments": args} for tool, args in made]
    return {
        "role": "assistant",
        "tool_calls": [{"id": f"c{at}", "function": one} for at, one in enumerate(functions)],
    }


def reply(text: str, of: str = "call_1") -> dict:
    return {"role": "tool", "tool_call_id": of, "content": text}


def words(text: str) -> dict:
    return {"role": "assistant", "content": text}


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def raw(text: str, tool: str = "tickets.close") -> dict:
    return {
        "role": "assistant",
        "tool_calls": [{"id": "call_1", "function": {"name": tool, "arguments": text}}],
    }


def deletes(**more: Any) -> dict:
    return run(DELETE, reply("Deleted."), status="success", **more)


BROKEN = raw("{id:")
DELETE = call("email.delete_mailbox", owner="Tom")
EDITED = [{"kind": "edit", "message_index": 1, "before": WANTED, "after": CLOSED}]
A, B = (call("search_mail", q="a"), reply("one")), (call("search_mail", q="b"), reply("two"))
LOOP = [
    turn
    for text in ('{"id": 1234, "why": "x"}', '{"why":"x","id":1234}', '{"id": 1234.0, "why": "X"}')
    for turn in (raw(text, "search_mail"), reply("none"))
]
TOGETHER = {
    "role": "assistant",
    "tool_calls": [
        raw(f'{{"q": "{q}"}}', "search_mail")["tool_calls"][0] for q in ("AA", "Aa", "aa")
    ],
}
LATE = {"exit_status": "exit_cost"}
FAILED = (call("tickets.close", id=5), reply("Error: no"))

DOWN = (call("tickets.close", id=5), reply('{"error": {"code": 503, "message": "later"}}'))

HARM = [
    pytest.param(
        deletes(interventions=[{"kind": "approve", "message_index": 1}]), None, None, id="approved"
    ),
    pytest.param(
        deletes(interventions=[{"kind": "approve"}]), None, None, id="approved, nobody knows what"
    ),
    pytest.param(
        deletes(interventions=[{"kind": "approve", "message_index": 9}]),
        "unsafe_action",
        1,
        id="approved another",
    ),
    pytest.param(deletes(), None, None, id="approvals are not recorded"),
    pytest.param(
        run(DELETE, wanted={"tool": "email.delete_mailbox", "args": {"owner": "Ann"}}),
        "wrong_arguments",
        1,
        id="asked for",
    ),
    pytest.param(
        run(call("tickets.close", id=7), reply("Closed."), metadata={"expected": []}),
        "unsafe_action",
        1,
        id="a change too many",
    ),
    pytest.param(
        run(
            BROKEN,
            reply("Error"),
            call("tickets.close", id=7),
            reply("Closed."),
            metadata={"expected": []},
        ),
        "unsafe_action",
        3,
        id="harm before form",
    ),
]

NOTHING = [
    pytest.param(run(words(""), status="unknown"), "incomplete_execution", 1, id="an empty answer"),
    pytest.param(
        run({"role": "assistant", "content": [{"type": "text", "text": " "}]}),
        "incomplete_execution",
        1,
        id="empty parts",
    ),
    pytest.param(
        run({"role": "assistant", "content": None, "refusal": "No."}, status="unknown"),
        None,
        None,
        id="a refusal",
    ),
    pytest.param(
        run(
            {"role": "assistant", "content": [{"type": "image_url", "image_url": {}}]},
            status="unknown",
        ),
        None,
        None,
        id="a picture",
    ),
    pytest.param(
        run(words(""), user("Hello?"), words("Here I am."), status="unknown"),
        None,
        None,
        id="empty, and then an answer",
    ),
    pytest.param(
        {**run(words(""), status="unknown"), "messages": [user(""), words("")]},
        None,
        None,
        id="content was not captured",
    ),
    pytest.param(
        run(words(""), status="success"),
        None,
        None,
        id="an empty answer is a success where somebody says so",
    ),
]

CONTRACTS = [
    pytest.param(run(BROKEN), "format_error", 1, id="arguments that do not parse"),
    pytest.param(run(raw("[1]")), "format_error", 1, id="arguments that are a list"),
    pytest.param(run(raw('{"id": NaN}')), "format_error", 1, id="NaN is not JSON"),
    pytest.param(
        run(raw('{"id": ' + "[" * 9000 + "]" * 9000 + "}")), "format_error", 1, id="absurdly nested"
    ),
    pytest.param(
        run(raw('{"id": 123456789012345678901234567890}'), status="unknown"),
        None,
        None,
        id="a long integer is JSON",
    ),
    pytest.param(run(call("tickets.shut", id=1)), "hallucinated_api", 1, id="no such tool"),
    pytest.param(
        run(raw("{}", ""), status="unknown"), "hallucinated_api", 1, id="a tool without a name"
    ),
    pytest.param(run(call("tickets.close", id="x")), "wrong_arguments", 1, id="breaks the schema"),
    pytest.param(
        run(call("tickets.close", id="x"), status="success"),
        "wrong_arguments",
        1,
        id="broken in a success",
    ),
    pytest.param(
        run(call("tickets.close", id="x"), reply("Closed."), status="success"),
        None,
        None,
        id="the tool took it",
    ),
    pytest.param(
        run(
            call("tickets.close", id="x"),
            reply("Error: no"),
            call("tickets.close", id=1),
            reply("Closed."),
            status="success",
        ),
        None,
        None,
        id="made good",
    ),
    pytest.param(
        run(
            BROKEN,
            reply("Error: JSON"),
            call("tickets.close", id=1),
            reply("Closed."),
            status="unknown",
        ),
        None,
        None,
        id="form made good",
    ),
    pytest.param(
        run(
            BROKEN,
            reply("Error: JSON"),
            call("tickets.close", id=1),
            reply("Error: no"),
            status="unknown",
        ),
        "format_error",
        1,
        id="not made good",
    ),
    pytest.param(
        run({**BROKEN, "name": "example_assistant"}, words("Fine."), status="unknown"),
        None,
        None,
        id="examples of the prompt",
    ),
]

SHOWN = [
    pytest.param(run(*A, *A, *A, tools=SEARCH), "bad_planning", 3, id="loop"),
    pytest.param(
        run(TOGETHER, tools=SEARCH, status="unknown"), None, None, id="three in one step are none"
    ),
    pytest.param(run(*LOOP, tools=SEARCH), "bad_planning", 3, id="loop, written otherwise"),
    pytest.param(run(*A, *B, *A, *B, tools=SEARCH), "bad_planning", 5, id="A-B-A-B"),
    pytest.param(
        run(*A, *B, *A, words("Here."), tools=SEARCH, status="unknown"),
        None,
        None,
        id="A-B-A is none",
    ),
    pytest.param(
        run(
            *[t for n in range(4) for t in (A[0], reply(f"{n} done"))],
            words("Here."),
            tools=SEARCH,
            status="unknown",
        ),
        None,
        None,
        id="waiting is none",
    ),
    pytest.param(
        run(*FAILED, *FAILED, words("Ticket 5 has been closed."), status="unknown"),
        "incomplete_execution",
        1,
        id="an error again, and an answer",
    ),
    pytest.param(
        run(
            call("tickets.close", id=5, why="old"),
            reply("HTTP 422: why"),
            *A,
            call("tickets.close", id=5, why="done"),
            reply("HTTP 422: why"),
            call("tickets.close", id=5),
            reply("HTTP 422: why"),
            words("Ticket 5 has been closed."),
            status="unknown",
            metadata=LATE,
            tools=[],
        ),
        "incomplete_execution",
        1,
        id="the first wrong call, whatever worked in between and ended the run",
    ),
    pytest.param(
        run(*DOWN, *DOWN, words("It is closed."), status="unknown"),
        "incomplete_execution",
        5,
        id="a service that failed, and an answer",
    ),
    pytest.param(
        run(*DOWN, *DOWN, status="unknown"),
        "incomplete_execution",
        3,
        id="a service that failed at the end",
    ),
    pytest.param(
        run(*FAILED, words("It does not exist."), status="unknown"),
        None,
        None,
        id="one error may be the answer",
    ),
    pytest.param(
        run(
            *FAILED,
            call("tickets.close", id=6),
            reply("Error: no"),
            words("Neither exists."),
            status="unknown",
        ),
        None,
        None,
        id="errors of different things",
    ),
    pytest.param(
        run(
            call("tickets.close", id=5),
            reply("Error: no"),
            call("tickets.create", title="a", priority="low"),
            reply("Made."),
            status="unknown",
        ),
        None,
        None,
        id="another way was found",
    ),
    pytest.param(
        run(
            call("tickets.close", id=5),
            reply('{"error": "needs the owner"}'),
            words("The owner has to agree. Shall I ask?"),
            user("Yes."),
            call("tickets.create", title="a", priority="low"),
            reply('{"ticket": 9}'),
            words("I have asked: ticket 9. It is closed as soon as the owner agrees."),
            status="unknown",
        ),
        None,
        None,
        id="an honest answer after an error",
    ),
    pytest.param(
        run(words("a"), user("b"), words("c"), outcome_reason="max_turns reached"),
        "incomplete_execution",
        3,
        id="turn limit",
    ),
    pytest.param(
        run(words("a"), user("b"), words("c"), status="unknown", metadata=LATE),
        "incomplete_execution",
        3,
        id="limit in the metadata",
    ),
    pytest.param(
        run(words("a"), user("b"), words("c"), status="unknown", outcome_label="length"),
        "incomplete_execution",
        3,
        id="limit in the label",
    ),
    pytest.param(
        run(
            words("a"), user("b"), words("c"), status="unknown", metadata={"finish_reason": "stop"}
        ),
        None,
        None,
        id="a usual end",
    ),
    pytest.param(
        run(*A, *B, tools=SEARCH, metadata=LATE), "incomplete_execution", None, id="limit at a call"
    ),
    pytest.param(
        run(call("tickets.close", id=5), reply("Done.")),
        "unexplained",
        None,
        id="failed without a reason",
    ),
    pytest.param(
        run(call("tickets.close", id=5), reply("Done."), status="unknown"),
        None,
        None,
        id="nothing wrong",
    ),
]

PEOPLE = [
    pytest.param(
        run(
            words("a"),
            user("b"),
            words("c"),
            status="unknown",
            interventions=[{"kind": "takeover", "message_index": 2}],
        ),
        "unexplained",
        1,
        id="takeover",
    ),
    pytest.param(
        run(words("a"), status="success", interventions=[{"kind": "takeover"}]),
        None,
        None,
        id="takeover in a success",
    ),
    pytest.param(
        run(DELETE, status="unknown", interventions=[{"kind": "reject", "message_index": 1}]),
        "unsafe_action",
        1,
        id="rejected danger",
    ),
    pytest.param(
        run(words("a"), status="unknown", interventions=[{"kind": "reject", "message_index": 1}]),
        "unexplained",
        1,
        id="rejected words",
    ),
    pytest.param(
        run(
            words("a"),
            status="unknown",
            interventions=[{"kind": "edit", "message_index": 1, "after": {"content": "b"}}],
        ),
        "unexplained",
        1,
        id="changed words",
    ),
    pytest.param(
        run(
            *A,
            words("b"),
            user("c"),
            words("d"),
            user("[rating] 1/5"),
            tools=SEARCH,
            status="unknown",
        ),
        "unexplained",
        3,
        id="rated badly",
    ),
    pytest.param(
        run(*A, *FAILED, words("b"), user("[rating] 1/5"), tools=[], status="unknown"),
        "unexplained",
        3,
        id="rated badly after a call that failed",
    ),
    pytest.param(
        run(*A, *DOWN, words("b"), user("[rating] 1/5"), tools=[], status="unknown"),
        "unexplained",
        5,
        id="rated badly after a service failed",
    ),
]

KNOWN = [
    pytest.param(
        run(call("email.archive", folder="social"), wanted=WANTED),
        "wrong_tool_choice",
        1,
        id="wrong tool",
    ),
    pytest.param(
        run(call("email.archive", folder=4), wanted=WANTED),
        "wrong_tool_choice",
        1,
        id="wrong tool, broken too",
    ),
    pytest.param(
        run(call("tickets.close", id=99), wanted=WANTED), "wrong_arguments", 1, id="wrong argument"
    ),
    pytest.param(
        run(call("tickets.close", id=99), wanted=WANTED, status="success"),
        None,
        None,
        id="a success is left alone",
    ),
    pytest.param(
        run(call("tickets.close", id=99), status="unknown", wanted=WANTED),
        "wrong_arguments",
        1,
        id="corrected by a person",
    ),
    pytest.param(
        run(calls(("tickets.close", {"id": 7})), status="unknown", interventions=EDITED),
        "wrong_arguments",
        1,
        id="the log has the mended call",
    ),
    pytest.param(
        run(
            call("tickets.close", id=1),
            call("tickets.close", id=2),
            status="unknown",
            interventions=[{"kind": "edit", "message_index": 2, "after": CLOSED}],
        ),
        "wrong_arguments",
        2,
        id="only that step",
    ),
    pytest.param(
        run(
            calls(("files.share", {"file": "a", "person": "b"})),
            metadata={"expected": {"tool": "files.share"}},
            status="unknown",
        ),
        None,
        None,
        id="any arguments",
    ),
    pytest.param(
        run(
            call("tickets.close", id=1),
            reply("Closed."),
            words("One is closed."),
            metadata={"expected": [CLOSED, {"tool": "tickets.close", "args": {"id": 1}}]},
        ),
        "incomplete_execution",
        None,
        id="missing step",
    ),
    pytest.param(
        run(
            call("search_mail", q="x"),
            reply("y"),
            words("5"),
            tools=SEARCH,
            metadata={
                "ground_truth": [
                    {"name": "search_mail", "arguments": '{"q": "x"}'},
                    {"name": "search_mail", "arguments": '{"q": "z"}'},
                ]
            },
        ),
        "retrieval_failure",
        None,
        id="missing look-up",
    ),
    pytest.param(
        run(
            calls(("search_mail", {"q": "x"}), ("search_mail", {"q": "z"})),
            tools=SEARCH,
            metadata={"expected": [{"tool": "search_mail", "args": {"q": "x"}}]},
        ),
        "bad_planning",
        1,
        id="a call too many",
    ),
    pytest.param(
        run(
            *A,
            words("5"),
            tools=SEARCH,
            metadata={"info": {"task": {"actions": [], "outputs": ["1,234"]}}},
        ),
        "unexplained",
        None,
        id="never told",
    ),
]


@pytest.mark.parametrize(
    ("trajectory", "mode", "blamed"), HARM + NOTHING + CONTRACTS + SHOWN + PEOPLE + KNOWN
)
def test_the_mode_and_the_blamed_step(
    trajectory: dict, mode: str | None, blamed: int | None
) -> None:
    found = classify(trajectory)
    if mode is None:
        assert found is None
    else:
        assert found is not None and (found.mode, found.blamed_message) == (mode, blamed), found
        assert found.evidence and all(item.text for item in found.evidence)


def test_all_layers_give_evidence_with_the_messages_own_words() -> None:
    found = classify(run(*FAILED, *FAILED, words("It has been closed."), wanted=WANTED))
    assert found is not None
    rules = [(item.rule, item.message_index, item.confidence) for item in found.evidence]
    assert rules == [
        ("expected_calls", 1, "certain"),
        ("error_never_recovered", 4, "likely"),
        ("rejected_by_a_person", None, "certain"),
    ]
    assert found.evidence[1].quote == "Error: no"


def test_a_success_is_only_asked_for_harm_and_contracts() -> None:
    of_success = {line.rule.__name__ for line in PRECEDENCE if "success" in line.outcomes}
    assert of_success == {
        "dangerous_without_approval",
        "arguments_do_not_parse",
        "tool_is_not_there",
        "arguments_break_the_schema",
    }


def test_replies_find_their_call_whatever_the_order_and_without_ids() -> None:
    both = calls(
        ("tickets.close", {"id": 1}), ("tickets.create", {"title": "a", "priority": "low"})
    )
    again = [call("tickets.create", title="a", priority="low"), reply("Error: no")]
    named = [reply("Error: no", "c1"), reply("Closed.", "c0")]
    nameless = [{"role": "tool", "content": "Closed."}, {"role": "tool", "content": "Error: no"}]
    for replies in (named, nameless):
        run_read = read(run(both, *replies, *again, *again, status="unknown"))
        assert [(one.tool, one.error) for one in run_read.calls[:2]] == [
            ("tickets.close", False),
            ("tickets.create", True),
        ]
        found = classify_run(run_read)
        assert found is not None and "tickets.create" in found.evidence[0].text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
CALL = st.fixed_dictionaries(
    {
        "tool": st.sampled_from(
            ["tickets.close", "email.delete_mailbox", "get_x", "transfer_to_human", "x"]
        )
    },
    optional={"args": JSON},
)
FUNCTION = st.fixed_dictionaries(
    {
        "name": st.text(max_size=4)
        | st.sampled_from(["tickets.close", "email.delete_mailbox", "get_x"])
    },
    optional={"arguments": st.none() | st.text() | st.dictionaries(st.text(), JSON, max_size=3)},
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system"])},
        optional={
            "content": st.none()
            | st.text()
            | st.sampled_from(["Error: no", "[]", "It has been done.", "Yes.", "no, I meant b"])
            | st.lists(st.dictionaries(st.text(), st.text(), max_size=2), max_size=2),
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {"function": FUNCTION}, optional={"id": st.sampled_from("ab")}
                ),
                max_size=2,
            ),
            "tool_call_id": st.sampled_from("ab"),
            "name": st.just("example_user"),
        },
    ),
    max_size=8,
)
INTERVENTIONS = st.lists(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["takeover", "edit", "approve", "reject", "abort"])},
        optional={
            "message_index": st.none() | st.integers(0, 12),
            "before": JSON | CALL,
            "after": JSON | CALL,
            "note": st.text(),
        },
    ),
    max_size=3,
)
METADATA = st.fixed_dictionaries(
    {},
    optional={"expected": JSON | st.lists(CALL, max_size=4), "info": JSON, "finish_reason": JSON},
)
OFFERED = st.just(TOOLS) | st.lists(JSON, max_size=2) | st.just([])


@pytest.mark.proof
@given(
    MESSAGES, st.sampled_from(["success", "failure", "unknown"]), INTERVENTIONS, METADATA, OFFERED
)
def test_whatever_comes_the_answer_is_of_the_form(
    turns: list[dict], status: str, interventions: list[dict], metadata: dict, tools: list
) -> None:
    given_run = {
        "messages": turns,
        "tools": tools,
        "outcome_status": status,
        "interventions": interventions,
        "metadata": metadata,
    }
    found = classify(given_run)
    assert classify(json.loads(json.dumps(given_run))) == found
    assert found is not None or status != "failure"
    if found is None:
        return
    assert found.mode in MODES and found.evidence[0].mode == found.mode
    assert found.blamed_message is None or turns[found.blamed_message]["role"] == "assistant"
    for item in found.evidence:
        assert item.message_index is None or 0 <= item.message_index < len(turns)
        assert json.loads(json.dumps(item.as_dict()))["confidence"] in ("certain", "likely")


@pytest.mark.skipif(not DATA.exists(), reason="the sample data lies beside the project, not in it")
def test_real_trajectories_of_another_agent() -> None:
    records = [
        item for path in sorted(DATA.glob("*.json")) for item in json.loads(path.read_text())
    ]
    found = {}
    for _, row in rows(enumerate(records), "tau-bench"):
        found[row["id"]] = classify(
            {
                "messages": row["messages"],
                "outcome_status": row["outcome"]["status"],
                "metadata": row["metadata"],
            }
        )
    failed = [item for item in found.values() if item is not None]
    assert len(failed) == sum(item["reward"] != 1 for item in records)
    labels = json.loads(LABELS.read_text())
    assert len(labels) == 40 and all(label["mode"] in MODES for label in labels)
    assert (
        sum(found[label["id"]].mode == label["mode"] for label in labels) >= 33
    )  # 35 when the labels were made, with rules that read English
