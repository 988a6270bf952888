"""Spans become runs: which belong together, how they ended, and the same rows in whatever order
they came.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.trajectories import schema
from apps.trajectories.otlp import Event, LogRecord, Scope, Span, assemble
from apps.trajectories.otlp.conventions import KNOWN
from workers.lib.messages import exchanges

SECOND = 10**9
NOON = 1_790_000_000 * SECOND


def span(number: int, at: float, parent: int = 0, trace: int = 1, **more: Any) -> Span:
    """A span of one second; `number` and `trace` make its ids, `at` is its start in seconds."""
    attributes = {
        key.replace("__", "."): value for key, value in more.pop("attributes", {}).items()
    }
    start = NOON + int(at * SECOND)
    return Span(
        f"{trace:032x}",
        f"{number:016x}",
        f"{parent:016x}" if parent else "",
        start_ns=start,
        end_ns=start + int(more.pop("seconds", 1) * SECOND),
        attributes=attributes,
        **more,
    )


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def bot(text: str) -> dict:
    return {"role": "assistant", "content": text}


def wants(call: str, name: str = "look") -> dict:
    return {
        "role": "assistant",
        "tool_calls": [{"id": call, "function": {"name": name, "arguments": "{}"}}],
    }


def replied(call: str, text: str) -> dict:
    return {"role": "tool", "tool_call_id": call, "content": text}


def model(
    number: int, at: float, given: list, said: list, parent: int = 0, trace: int = 1, **more: Any
) -> Span:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(given),
        "gen_ai.output.messages": json.dumps(said),
        "gen_ai.usage.input_tokens": 10,
        "gen_ai.usage.output_tokens": 1,
    }
    return span(number, at, parent, trace, attributes=attributes | more.pop("extra", {}), **more)


def agent(
    number: int, at: float, seconds: float, parent: int = 0, trace: int = 1, **more: Any
) -> Span:
    attributes = {"gen_ai.operation.name": "invoke_agent"} | more.pop("extra", {})
    return span(number, at, parent, trace, seconds=seconds, attributes=attributes, **more)


def tool(
    number: int, at: float, call: str = "", parent: int = 0, result: Any = None, **more: Any
) -> Span:
    attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "look",
        "gen_ai.tool.call.id": call,
    }
    return span(
        number,
        at,
        parent,
        attributes=attributes | ({"gen_ai.tool.call.result": result} if result else {}),
        **more,
    )


def texts(row: dict) -> list[str | None]:
    return [message["content"] for message in row["messages"]]


FAILED = {"status_code": 2, "status_message": "it broke"}


def test_calls_in_their_own_traces_are_stitched_by_history() -> None:
    first = [user("Hi")], [wants("c1")]
    second = [user("Hi"), wants("c1"), replied("c1", "ok")], [bot("Done.")]
    third = [*second[0], *second[1], user("More")], [bot("Enough.")]
    calls = [
        model(i, i * 2, *said, trace=i) for i, said in enumerate((first, second, third), start=1)
    ]
    (run,) = assemble(calls, [])
    assert texts(run.row) == ["Hi", None, "ok", "Done.", "More", "Enough."]
    assert run.key == f"{1:032x}" and len(run.trace_ids) == 3
    usage = run.row["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], len(usage["calls"])) == (30, 3, 3)
    assert [step["message_index"] for step in run.row["metadata"]["steps"]] == [1, 3, 5]
    apart = [assemble([call], [])[0].links[call.trace_id] for call in calls]
    for earlier, later in itertools.pairwise(apart):
        assert earlier.has & later.wants and later.has & earlier.wants


def test_equal_talks_at_the_same_time_are_told_apart_by_their_ids() -> None:
    spans = []
    for run in range(3):
        call, at = f"call-{run}", run * 0.1
        spans.append(model(1, at, [user("Hi")], [wants(call)], trace=10 + run))
        spans.append(
            model(
                2,
                at + 2,
                [user("Hi"), wants(call), replied(call, "ok")],
                [bot(str(run))],
                trace=20 + run,
            )
        )
    rows = [run.row for run in assemble(spans, [])]
    assert [texts(row)[-1] for row in rows] == ["0", "1", "2"]
    assert [run.trace_ids for run in assemble(spans, [])] == [
        {f"{10 + run:032x}", f"{20 + run:032x}"} for run in range(3)
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"extra": {"session.id": "a"}}, {"extra": {"session.id": "b"}}),
        ({"scope": Scope("x")}, {"scope": Scope("y")}),
        ({"resource": {"service.name": "x"}}, {"resource": {"service.name": "y"}}),
    ],
)
def test_what_different_people_or_services_say_is_not_stitched(one: dict, other: dict) -> None:
    spans = [
        model(1, 0, [user("Hi")], [bot("Hello")], trace=1, **one),
        model(2, 2, [user("Hi"), bot("Hello"), user("More")], [bot("Yes")], trace=2, **other),
    ]
    assert len(assemble(spans, [])) == 2


@pytest.mark.parametrize("extra", [{}, {"session.id": "s"}])
def test_the_same_question_again_is_a_retry_only_in_the_same_session(extra: dict) -> None:
    spans = [
        model(1, 0, [user("Hi")], [], trace=1, extra=extra, **FAILED),
        model(2, 2, [user("Hi")], [bot("Hello")], trace=2, extra=extra),
    ]
    runs = assemble(spans, [])
    assert len(runs) == (1 if extra else 2)
    assert [run.row["outcome"]["status"] for run in runs] == (
        ["unknown"] if extra else ["failure", "unknown"]
    )


def test_a_history_that_was_cut_is_joined_by_conversation() -> None:
    extra = {"gen_ai.conversation.id": "talk"}
    spans = [
        model(1, 0, [user("One"), bot("1"), user("Two")], [bot("Second.")], trace=1, extra=extra),
        model(2, 2, [bot("Second."), user("Three")], [bot("Third.")], trace=2, extra=extra),
        model(3, 4, [user("Something else")], [bot("Fourth.")], trace=3, extra=extra),
    ]
    runs = assemble(spans, [])
    assert [texts(run.row) for run in runs] == [
        ["One", "1", "Two", "Second.", "Three", "Third."],
        ["Something else", "Fourth."],
    ]
    assert {run.row["session_id"] for run in runs} == {"talk"}


def test_agents_side_by_side_in_one_trace_are_runs_of_their_own() -> None:
    spans = [span(1, 0, seconds=20)]
    for number in (1, 2):
        extra = {"gen_ai.conversation.id": f"talk-{number}", "gen_ai.agent.name": f"agent-{number}"}
        spans.append(agent(number * 10, number * 5, 3, parent=1, extra=extra))
        spans.append(
            model(
                number * 10 + 1,
                number * 5 + 1,
                [user("Hi")],
                [bot(str(number))],
                parent=number * 10,
            )
        )
    runs = assemble(spans, [])
    assert [run.row["agent"]["name"] for run in runs] == ["agent-1", "agent-2"]
    assert [run.key for run in runs] == [f"{1:032x}", f"{1:032x}:{20:016x}"]


def batch(*agents: tuple[str, dict], root: dict | None = None, gap: float = 10) -> list[Span]:
    """A root with agents below it, one after the other, each with one model call: (what it is
    asked, its attributes).
    """
    spans = [span(1, 0, seconds=gap * (len(agents) + 1), **(root or {}))]
    for number, (asked, extra) in enumerate(agents, start=1):
        failed = FAILED if asked.startswith("!") else {}
        spans.append(agent(number * 10, number * gap, 3, parent=1, extra=extra, **failed))
        said = [] if failed else [bot(f"Answer to {asked}")]
        spans.append(
            model(
                number * 10 + 1, number * gap + 1, [user(asked)], said, parent=number * 10, **failed
            )
        )
    return spans


def test_runs_below_the_root_of_a_batch_job_are_apart() -> None:
    """One failed, and the root with it: the others are no failures for that."""
    spans = batch(("One", {}), ("!Two", {}), ("Three", {}), root=FAILED)
    runs = assemble(spans, [])
    assert [texts(run.row) for run in runs] == [
        ["One", "Answer to One"],
        ["!Two"],
        ["Three", "Answer to Three"],
    ]
    assert [run.row["outcome"]["status"] for run in runs] == ["unknown", "failure", "unknown"]
    assert [run.key for run in runs] == [f"{1:032x}", f"{1:032x}:{20:016x}", f"{1:032x}:{30:016x}"]
    assert all(run.row["latency_ms"] == 3000 for run in runs)


@pytest.mark.parametrize("name", ["gen_ai.conversation.id", "session.id"])
@pytest.mark.parametrize("frame", [{}, {"attributes": {"traceloop.span.kind": "workflow"}}])
def test_conversations_in_one_trace_are_apart_whatever_is_above_them(
    name: str, frame: dict
) -> None:
    spans = batch(("One", {name: "a"}), ("Two", {name: "b"}), ("Three", {name: "a"}), root=frame)
    runs = assemble(spans, [])
    assert [len(run.spans) for run in runs] == [4, 2] and texts(runs[1].row) == [
        "Two",
        "Answer to Two",
    ]
    calls = [
        model(number, number * 3, [user(asked)], [bot("Yes.")], parent=1, extra={name: asked})
        for number, asked in enumerate(("One", "Two"), start=2)
    ]
    assert [texts(run.row)[0] for run in assemble([span(1, 0, seconds=20), *calls], [])] == [
        "One",
        "Two",
    ]


def test_what_the_root_says_of_user_and_workload_holds_for_each_run() -> None:
    said = {"user.id": "u1", "langfuse.trace.name": "nightly"}
    rows = [
        run.row for run in assemble(batch(("One", {}), ("Two", {}), root={"attributes": said}), [])
    ]
    assert [(row["user_id"], row["workload"]) for row in rows] == [("u1", "nightly")] * 2


def test_the_turns_of_one_conversation_below_one_root_are_one_run() -> None:
    spans = batch(("One", {}), ("Two", {}))
    known = [user("One"), bot("Answer to One"), user("Two")]
    spans[-1] = model(21, 21, known, [bot("Answer to Two")], parent=20)
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["One", "Answer to One", "Two", "Answer to Two"]
    same = {"gen_ai.conversation.id": "talk"}
    assert len(assemble(batch(("One", same), ("Two", same)), [])) == 1


def test_agents_of_one_crew_are_one_run() -> None:
    def crew(*names: str) -> list[Span]:
        chain, worker = {"openinference.span.kind": "CHAIN"}, {"openinference.span.kind": "AGENT"}
        return batch(
            *((name, worker | {"agent.name": name}) for name in names), root={"attributes": chain}
        )

    assert len(assemble(crew("planner", "writer"), [])) == 1
    assert len(assemble(crew("helper", "helper"), [])) == 2  # the same agent again and again


def test_agents_whose_root_has_not_come_may_be_tools_of_it() -> None:
    spans = batch(("One", {}), ("Two", {}))
    assert len(assemble(spans[1:], [])) == 1
    assert len(assemble([agent(1, 0, 99), *spans[1:]], [])) == 1


def test_what_was_called_outside_of_all_runs_is_a_run_too() -> None:
    spans = [
        *batch(("One", {}), ("Two", {})),
        model(2, 1, [user("Which?")], [bot("Both.")], parent=1),
    ]
    assert [texts(run.row)[0] for run in assemble(spans, [])] == ["Which?", "One", "Two"]


def test_an_agent_that_is_a_tool_keeps_its_own_thread() -> None:
    spans = [
        agent(1, 0, 20),
        model(2, 1, [user("Plan")], [wants("c1", "look")], parent=1),
        tool(3, 3, "c1", parent=1, result="found", seconds=8),
        agent(4, 4, 6, parent=3, extra={"gen_ai.agent.name": "searcher"}),
        model(5, 5, [user("Search"), bot("a"), user("b"), bot("c")], [bot("found")], parent=4),
        model(
            6, 12, [user("Plan"), wants("c1"), replied("c1", "found")], [bot("Planned.")], parent=1
        ),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Plan", None, "found", "Planned."]
    (thread,) = run.row["metadata"]["threads"]
    assert thread["messages"][-1]["content"] == "found"
    assert run.row["usage"]["input_tokens"] == 30


def test_a_hand_over_with_other_instructions_goes_on_in_the_same_thread() -> None:
    one, two = ({"role": "system", "content": name} for name in ("triage", "refunds"))
    spans = [
        agent(1, 0, 10),
        model(2, 1, [one, user("Money back")], [wants("c1", "transfer")], parent=1),
        model(
            3,
            3,
            [two, user("Money back"), wants("c1", "transfer"), replied("c1", "ok")],
            [bot("Sure.")],
            parent=1,
        ),
    ]
    assert texts(assemble(spans, [])[0].row) == ["triage", "Money back", None, "ok", "Sure."]


def test_a_call_seen_by_two_instrumentations_counts_once() -> None:
    outer = model(2, 1, [user("Hi")], [bot("Hello")], parent=1)
    inner = model(3, 1.1, [user("Hi")], [bot("Hello")], parent=2, seconds=0.5)
    (run,) = assemble([agent(1, 0, 5), outer, inner], [])
    usage = run.row["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], len(usage["calls"])) == (10, 1, 1)
    assert texts(run.row) == ["Hi", "Hello"]


def test_what_a_tool_answered_is_put_after_a_call_that_nothing_answers() -> None:
    called = {
        "role": "assistant",
        "tool_calls": [wants("c1")["tool_calls"][0], wants("c2")["tool_calls"][0]],
    }
    spans = [
        agent(1, 0, 10, **FAILED),
        model(2, 1, [user("Hi")], [called], parent=1),
        tool(3, 3, "c2", parent=1, **FAILED),
        tool(4, 3, "c1", parent=1, result={"a": 1}),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Hi", None, '{"a":1}', "it broke"]
    assert [m.get("tool_call_id") for m in run.row["messages"][2:]] == ["c1", "c2"]
    assert {s["span_id"][-1]: s.get("message_index") for s in run.row["metadata"]["steps"]} == {
        "1": None,
        "2": 1,
        "3": 3,
        "4": 2,
    }


def test_content_that_was_not_captured_leaves_the_shape_of_the_run() -> None:
    bare = {"attributes": {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}}
    (run,) = assemble(
        [agent(1, 0, 10), span(2, 1, 1, **bare), tool(3, 3, "c1", parent=1), span(4, 5, 1, **bare)],
        [],
    )
    assert [message["role"] for message in run.row["messages"]] == ["user", "assistant", "tool"]
    assert run.row["metadata"]["content_captured"] is False and run.row["model"] == "m"


def test_an_agent_that_calls_its_tools_itself() -> None:
    root = span(
        1,
        0,
        seconds=9,
        attributes={
            "openinference.span.kind": "AGENT",
            "input.value": "Hi",
            "output.value": '{"answer": "Two."}',
        },
    )
    (run,) = assemble([root, tool(2, 1, parent=1, result="2")], [])
    assert texts(run.row) == ["Hi", None, "2", "Two."]


ENDINGS = {
    "all went well": ([], "unknown", 0),
    "tool failed, model went on": ([tool(3, 3, "c1", parent=1, **FAILED)], "unknown", 1),
    "tool failed last": ([tool(3, 7, "c9", parent=1, **FAILED)], "failure", 0),
    "call failed, tried again": ([model(3, 3, [user("Hi")], [], parent=1, **FAILED)], "unknown", 1),
    "call failed last": ([model(3, 7, [user("Hi")], [], parent=1, **FAILED)], "failure", 0),
    "an HTTP request failed": (
        [span(3, 7, 1, attributes={"http__route": "/"}, **FAILED)],
        "unknown",
        0,
    ),
    "a call inside a tool that went well": (
        [
            tool(3, 7, "c9", parent=1, result="ok"),
            model(9, 7.1, [user("x")], [], parent=3, seconds=0.1, **FAILED),
        ],
        "unknown",
        0,
    ),
}


@pytest.mark.parametrize(("more", "status", "recovered"), ENDINGS.values(), ids=ENDINGS)
def test_a_run_failed_if_an_error_ended_it(more: list[Span], status: str, recovered: int) -> None:
    spans = [agent(1, 0, 10, status_code=1), model(2, 1, [user("Hi")], [wants("c1")], parent=1)]
    spans.append(
        model(4, 5, [user("Hi"), wants("c1"), replied("c1", "ok")], [bot("Done.")], parent=1)
    )
    (run,) = assemble(spans + more, [])
    assert run.row["outcome"] == (
        {"status": "unknown"} if status == "unknown" else {"status": status, "reason": "it broke"}
    )
    assert run.row["metadata"].get("recovered_errors", 0) == recovered


def test_a_failed_root_fails_the_run() -> None:
    (run,) = assemble(
        [agent(1, 0, 9, **FAILED), model(2, 1, [user("Hi")], [bot("Done.")], parent=1)], []
    )
    assert run.row["outcome"] == {"status": "failure", "reason": "it broke"}


def test_traces_without_an_agent_hold_no_run() -> None:
    assert assemble([span(1, 0, attributes={"http.route": "/"})], [LogRecord(body="plain")]) == []
    assert assemble([], []) == []


def test_unknown_attributes_are_kept_up_to_a_limit() -> None:
    extra = {"own.number": 7, "own.same": "x", "own.huge": "y" * 100_000}
    spans = [
        agent(1, 0, 9, extra=extra),
        model(2, 1, [user("Hi")], [bot("Yes")], parent=1, extra={"own.number": 8}),
    ]
    metadata = assemble(spans, [])[0].row["metadata"]
    assert metadata["attributes"] == {"own.number": 7, "own.same": "x"}
    assert metadata["attributes_by_span"] == {f"{2:016x}": {"own.number": 8}}
    assert metadata["attributes_omitted"] == 1


def test_a_long_run_keeps_its_first_steps() -> None:
    spans = [agent(1, 0, 3_000), *(tool(number, number, parent=1) for number in range(2, 2_500))]
    row = schema.parse(assemble(spans, [])[0].row)
    assert len(row.metadata["steps"]) == 2_000 and row.metadata["steps_omitted"] == 499


def test_rings_of_parents_and_spans_sent_twice_do_no_harm() -> None:
    ring = [agent(1, 0, 3, parent=2), agent(2, 0, 3, parent=1), agent(3, 1, 1, parent=3)]
    pending = agent(9, 0, 0, extra={"logfire.span_type": "pending_span"})
    assert assemble([*ring, *ring, pending], [])[0].row["metadata"]["span_count"] == 3


MIXED = [
    agent(1, 0, 10, trace=1),
    model(2, 1, [user("Hi")], [wants("c1")], parent=1, trace=1),
    tool(3, 3, "c1", parent=1, result="ok"),
    model(4, 5, [user("Hi"), wants("c1"), replied("c1", "ok")], [bot("Done.")], parent=1, trace=1),
    model(5, 20, [user("A")], [wants("c2")], trace=2),
    model(6, 22, [user("A"), wants("c2"), replied("c2", "b")], [bot("C")], trace=3),
    model(
        7,
        24,
        [user("A"), wants("c2"), replied("c2", "b"), bot("C"), user("D")],
        [bot("E")],
        trace=4,
    ),
    model(8, 20, [user("A")], [wants("c3")], trace=5, **FAILED),
    span(9, 30, trace=6, attributes={"gen_ai.operation.name": "chat"}),
]
MIXED_LOGS = [
    LogRecord(f"{6:032x}", f"{9:016x}", 1, "gen_ai.user.message", {"content": "logged"}),
    LogRecord(f"{6:032x}", f"{9:016x}", 2, "gen_ai.choice", {"message": {"content": "answer"}}),
]


@pytest.mark.proof
@given(st.permutations(MIXED), st.permutations(MIXED_LOGS), st.integers(0, 4))
def test_the_order_of_arrival_changes_nothing(
    spans: list[Span], logs: list[LogRecord], again: int
) -> None:
    assert assemble(spans + spans[:again], logs + logs[:again]) == assemble(MIXED, MIXED_LOGS)


@given(st.permutations(MIXED), st.integers(1, len(MIXED)))
def test_late_spans_join_the_run_of_their_trace(spans: list[Span], cut: int) -> None:
    early, late = assemble(spans[:cut], MIXED_LOGS), assemble(MIXED, MIXED_LOGS)
    for run in early:
        schema.parse(run.row)
        assert any(run.trace_ids <= other.trace_ids for other in late)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=10)
    | st.sampled_from(
        [
            "[]",
            "{}",
            '[{"role":"user","content":[[1]]}]',
            '[{"role":[],"parts":{}}]',
            "chat",
            "LLM",
            "TOOL",
            '{"type":"tool_call","name":{}}',
            '[{"type":["x"]}]',
            "ai.toolCall",
            "execute_tool",
            "1e999",
            '{"messages":[{"tool_calls":[{"function":{"name":"f"}}]}]}',
            '[{"lc":1,"kwargs":{"id":3}}]',
            '{"function":{"name":"f","parameters":[]}}',
            "[" * 70 + "]" * 70,
            '{"n":1' + "0" * 400 + "}",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "parts",
                    "type",
                    "id",
                    "name",
                    "tool_calls",
                    "function",
                    "text",
                    "message",
                    "arguments",
                    "input",
                    "lc",
                    "kwargs",
                    "event.name",
                    "index",
                ]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
KEYS = st.sampled_from(sorted(KNOWN)) | st.sampled_from(
    [
        "llm.input_messages.0.message.role",
        "llm.input_messages.0",
        "llm.input_messages.x",
        "gen_ai.prompt.0.content",
        "gen_ai.completion.0.tool_calls.0.name",
        "llm.tools.0.tool.json_schema",
        "tag.tags.0",
        "own",
        "http.route",
    ]
)
ATTRIBUTES = st.dictionaries(KEYS, VALUES, max_size=8)
IDS = st.integers(1, 5)
EVENTS = st.builds(
    Event,
    st.sampled_from(
        [
            "exception",
            "gen_ai.choice",
            "gen_ai.user.message",
            "gen_ai.evaluation.result",
            "gen_ai.content.prompt",
            "gen_ai.client.inference.operation.details",
            "gen_ai..message",
        ]
    ),
    IDS,
    st.dictionaries(
        st.sampled_from(
            [
                "exception.type",
                "exception.message",
                "content",
                "message",
                "index",
                "tool_calls",
                "gen_ai.prompt",
                "gen_ai.evaluation.score",
            ]
        ),
        VALUES,
        max_size=4,
    ),
)
SPANS = st.builds(
    lambda trace, number, parent, **more: Span(
        f"{trace:032x}", f"{number:016x}", f"{parent:016x}", **more
    ),
    IDS,
    IDS,
    IDS,
    name=st.sampled_from(["", "chat", "execute_tool x"]),
    start_ns=st.integers(0, 2**63 - 1),
    end_ns=st.integers(0, 2**63 - 1),
    status_code=st.integers(0, 2),
    attributes=ATTRIBUTES,
    events=st.lists(EVENTS, max_size=2),
    resource=ATTRIBUTES,
)
LOGS = st.builds(
    lambda trace, number, event, body: LogRecord(
        f"{trace:032x}", f"{number:016x}", 1, event.name, body, event.attributes
    ),
    IDS,
    IDS,
    EVENTS,
    VALUES,
)


@settings(max_examples=100, deadline=None)
@given(st.lists(SPANS, max_size=6), st.lists(LOGS, max_size=3))
def test_any_spans_give_rows_of_the_form(spans: list[Span], logs: list[LogRecord]) -> None:
    for run in assemble(spans, logs):
        schema.parse(run.row)
        assert run.key == run.row["id"] and run.trace_ids
        for step in run.row["metadata"]["steps"]:
            assert step.get("message_index", 0) < len(run.row["messages"])


def graph(
    trace: int, at: float, given: list, said: str, name: str = "helpdesk", root: int = 1
) -> list[Span]:
    """One `invoke` of a LangGraph as OpenInference tells it: chains all the way down to the
    model.
    """
    step = {
        "openinference__span__kind": "CHAIN",
        "metadata": '{"langgraph_node": "model", "thread_id": "t-1"}',
    }
    above = root - 1  # the user's own span, if there is one
    return [
        span(
            root,
            at,
            above,
            trace,
            seconds=3,
            name=name,
            attributes={"openinference__span__kind": "CHAIN"},
        ),
        span(root + 1, at + 0.1, root, trace, name="model", attributes=step),
        span(root + 2, at + 0.2, root + 1, trace, name="prompt", attributes=step),
        model(
            root + 3,
            at + 0.3,
            given,
            [bot(said)],
            root + 1,
            trace,
            extra={"metadata": step["metadata"]},
        ),
    ]


def test_every_invoke_of_a_graph_is_a_run_with_the_graph_as_its_agent() -> None:
    history = [user("One?"), bot("One."), user("Two?")]
    first, second = (
        run.row
        for run in assemble(graph(1, 0, [user("One?")], "One.") + graph(2, 5, history, "Two."), [])
    )
    assert texts(first) == ["One?", "One."] and texts(second) == ["One?", "One.", "Two?", "Two."]
    assert (
        first["agent"]["name"] == "helpdesk"
        and first["session_id"] == second["session_id"] == "t-1"
    )
    assert [step["kind"] for step in first["metadata"]["steps"]] == [
        "agent",
        "other",
        "other",
        "model",
    ]


def test_a_graph_below_a_span_of_the_user_is_the_agent_and_its_default_name_is_none() -> None:
    (run,) = assemble(
        [
            span(1, 0, seconds=9, name="POST /chat"),
            *graph(1, 1, [user("One?")], "One.", "LangGraph", 2),
        ],
        [],
    )
    assert [step["kind"] for step in run.row["metadata"]["steps"]] == [
        "other",
        "agent",
        "other",
        "other",
        "model",
    ]
    assert run.row["agent"]["name"] == ""


def test_steps_whose_graph_has_not_come_yet_are_no_agents() -> None:
    (run,) = assemble(graph(1, 0, [user("One?")], "One.")[1:], [])
    assert [step["kind"] for step in run.row["metadata"]["steps"]] == ["other", "other", "model"]
    assert texts(run.row) == ["One?", "One."]


def test_a_call_that_failed_and_tells_nothing_makes_no_thread() -> None:
    silent = span(3, 2, 1, attributes={"gen_ai.operation.name": "chat"}, **FAILED)
    (run,) = assemble([agent(1, 0, 9), model(2, 1, [user("One?")], [wants("c1")], 1), silent], [])
    assert "threads" not in run.row["metadata"] and run.row["outcome"]["status"] == "failure"


def said(answer: str) -> dict:
    return {"gen_ai.output.messages": json.dumps([bot(answer)])}


FINAL = {
    "the framework made the answer of what the model said": (
        [
            agent(1, 0, 10, extra=said("Order 7 ships on Monday.")),
            model(2, 1, [user("When?")], [wants("c1")], parent=1),
            tool(3, 3, "c1", parent=1, result="Monday"),
        ],
        ["When?", None, "Monday", "Order 7 ships on Monday."],
    ),
    "another agent took over": (
        [
            agent(1, 0, 10),
            model(2, 1, [user("Hi"), bot("x"), user("y")], [bot("I hand over.")], parent=1),
            agent(4, 3, 4, parent=1),
            model(5, 4, [user("Go on")], [bot("It is done.")], parent=4),
        ],
        ["Hi", "x", "y", "I hand over.", "It is done."],
    ),
    "the model said it": (
        [
            agent(1, 0, 10, extra=said("Hello  there")),
            model(2, 1, [user("Hi")], [bot("Hello there")], parent=1),
        ],
        ["Hi", "Hello there"],
    ),
    "as JSON around what the model said": (
        [
            agent(1, 0, 10, extra=said('{"answer": "Hello \\"you\\""}')),
            model(2, 1, [user("Hi")], [bot('Hello "you"')], parent=1),
        ],
        ["Hi", 'Hello "you"'],
    ),
    "the turns of a conversation keep their places": (
        [
            agent(1, 0, 2, extra=said("One.")),
            model(2, 1, [user("1")], [bot("One.")], parent=1),
            agent(3, 5, 2, trace=2, extra=said("Two.")),
            model(4, 6, [user("1"), bot("One."), user("2")], [bot("Two.")], parent=3, trace=2),
        ],
        None,
    ),
}


@pytest.mark.parametrize("name", FINAL)
def test_the_final_answer_is_in_the_transcript_once(name: str) -> None:
    spans, expected = FINAL[name]
    rows = [run.row for run in assemble(spans, [])]
    if expected is None:
        assert all(
            texts(row)[-1] in ("One.", "Two.") and texts(row).count(texts(row)[-1]) == 1
            for row in rows
        )
    else:
        assert [texts(row) for row in rows] == [expected]


def test_a_call_without_an_id_gets_the_one_by_which_it_is_answered() -> None:
    """As LiteLLM's callback tells them: the answer without an id, the history with it."""
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}
    spans = [
        model(1, 0, [user("Hi")], [call]),
        model(2, 5, [user("Hi"), wants("c1"), replied("c1", "Two")], [bot("It is two.")], trace=2),
    ]
    [run] = assemble(spans, [])
    assert [message["role"] for message in run.row["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert (
        run.row["messages"][1]["tool_calls"][0]["id"]
        == run.row["messages"][2]["tool_call_id"]
        == "c1"
    )


def raised(kind: str, said: str = "") -> dict[str, Any]:
    """What a span that an exception ended has."""
    event = Event("exception", NOON, {"exception.type": kind, "exception.message": said})
    return {"status_code": 2, "status_message": said, "events": [event]}


@pytest.mark.parametrize(
    ("error", "status", "tags"),
    [
        (
            raised("langgraph.errors.GraphInterrupt", "(Interrupt(value='Ship it?'),)"),
            "unknown",
            ["paused"],
        ),
        (raised("GeneratorExit"), "unknown", ["client-left"]),
        (raised("System.OperationCanceledException"), "unknown", ["cancelled"]),
        (raised("System.OperationCanceledException", "the operation timed out"), "failure", []),
        (raised("ValueError", "no such order"), "failure", []),
    ],
)
def test_an_exception_that_steers_is_no_failure(error: dict, status: str, tags: list[str]) -> None:
    paused_tool = tool(3, 3, "c1", parent=1, **error)
    (run,) = assemble(
        [
            agent(1, 0, 9, **error),
            model(2, 1, [user("Ship it")], [wants("c1")], parent=1),
            paused_tool,
        ],
        [],
    )
    assert (run.row["outcome"]["status"], run.row["tags"]) == (status, tags)
    is_error = status == "failure"
    assert (
        bool(run.row["metadata"].get("errors"))
        == is_error
        == any("error" in s for s in run.row["metadata"]["steps"])
    )
    assert [message["role"] for message in run.row["messages"]] == ["user", "assistant"] + [
        "tool"
    ] * is_error


def test_a_cancellation_inside_a_time_limit_is_a_failure() -> None:
    late = raised("TimeoutError", "30 s are over")
    call = model(2, 1, [user("Hi")], [], parent=1, **raised("asyncio.exceptions.CancelledError"))
    (run,) = assemble([agent(1, 0, 9, **late), call], [])
    assert (run.row["outcome"]["reason"], run.row["tags"]) == ("TimeoutError: 30 s are over", [])


def test_a_run_that_went_on_after_a_pause_is_not_tagged() -> None:
    spans = [agent(1, 0, 9), model(2, 1, [user("Hi")], [wants("c1")], parent=1)]
    spans += [tool(3, 3, "c1", parent=1, **raised("GraphInterrupt"))]
    spans += [model(4, 5, [user("Hi"), wants("c1"), replied("c1", "ok")], [bot("Done.")], parent=1)]
    (run,) = assemble(spans, [])
    assert (run.row["tags"], texts(run.row)) == ([], ["Hi", None, "ok", "Done."])


@pytest.mark.parametrize(("error", "status"), [({}, "unknown"), (FAILED, "failure")])
def test_without_model_calls_the_agent_says_whether_it_recovered_from_a_tool(
    error: dict, status: str
) -> None:
    (run,) = assemble(
        [agent(1, 0, 9, **error), tool(2, 3, parent=1, result="Try again", **FAILED)], []
    )
    assert run.row["outcome"]["status"] == status
    assert run.row["metadata"].get("recovered_errors", 0) == (status == "unknown")


def in_state(response: str, previous: str = "") -> dict[str, str]:
    return {"gen_ai.response.id": response} | (
        {"gen_ai.conversation.id": previous} if previous else {}
    )


def test_a_history_that_the_server_keeps_is_put_together_in_order() -> None:
    spans = [
        agent(1, 0, 20),
        model(2, 1, [user("One?")], [wants("c1")], parent=1, extra=in_state("r1")),
        model(3, 4, [replied("c1", "1")], [bot("It is 1.")], parent=1, extra=in_state("r2", "r1")),
        model(4, 7, [user("And two?")], [bot("It is 2.")], parent=1, extra=in_state("r3", "r2")),
    ]
    for order in (spans, spans[::-1]):
        (run,) = assemble(order, [])
        assert texts(run.row) == ["One?", None, "1", "It is 1.", "And two?", "It is 2."]
        assert run.row["session_id"] == ""


def test_a_history_that_the_server_keeps_is_found_in_other_traces() -> None:
    named = [
        model(1, 0, [user("One?")], [wants("call_a1b2")], extra=in_state("r1")),
        model(
            2,
            4,
            [replied("call_a1b2", "1")],
            [bot("It is 1.")],
            trace=2,
            extra=in_state("r2", "r1"),
        ),
        model(3, 8, [user("And two?")], [bot("It is 2.")], trace=3, extra=in_state("r3", "r2")),
    ]
    (run,) = assemble(named, [])
    assert texts(run.row) == ["One?", None, "1", "It is 1.", "And two?", "It is 2."]
    unnamed = [model(1, 0, [user("One?")], [wants("call_a1b2")])]
    unnamed += [model(2, 4, [replied("call_a1b2", "1")], [bot("It is 1.")], trace=2)]
    (run,) = assemble(unnamed, [])
    assert texts(run.row) == ["One?", None, "1", "It is 1."]
    numbered = [
        model(1, 0, [user("One?")], [wants("0")]),
        model(2, 4, [replied("0", "1")], [bot("It is 1.")], trace=2),
    ]
    assert len(assemble(numbered, [])) == 2
    one, other = (assemble([part], [])[0].links for part in named[:2])
    assert (
        one[f"{1:032x}"].has & other[f"{2:032x}"].wants
        and other[f"{2:032x}"].has & one[f"{1:032x}"].wants
    )


def test_calls_that_a_framework_dropped_from_the_history_stand_before_their_replies() -> None:
    def problem(text: str) -> dict:
        return {"role": "tool-response", "content": text}

    asked = [user("One?")]
    spans = [
        agent(1, 0, 20),
        model(2, 1, asked, [wants("c1")], parent=1),
        model(3, 4, [*asked, problem("No 1")], [wants("c2")], parent=1),
        model(
            4,
            7,
            [*asked, problem("No 1"), problem("No 2"), user("Answer now.")],
            [bot("None.")],
            parent=1,
        ),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["One?", None, "No 1", None, "No 2", "Answer now.", "None."]
    assert [message.get("tool_call_id") for message in run.row["messages"]] == [
        None,
        None,
        "c1",
        None,
        "c2",
        None,
        None,
    ]


def test_a_title_made_from_the_same_request_is_a_thread_of_its_own() -> None:
    asked = [user("One?")]
    spans = [agent(1, 0, 20), model(2, 1, asked, [bot("It is 1.")], parent=1)]
    spans += [model(3, 4, [*asked, user("Name this talk.")], [bot("Ones")], parent=1)]
    (run,) = assemble(spans, [])
    assert len(run.row["metadata"]["threads"]) == 1


TWICE = {"gen_ai.response.id": "r1"}
BARE = {
    "gen_ai.operation.name": "chat",
    "gen_ai.usage.input_tokens": 10,
    "gen_ai.usage.output_tokens": 1,
}


@pytest.mark.parametrize(
    ("second", "scope", "tokens"),
    [
        ({**BARE, **TWICE}, "sdk", 10),
        (BARE, "sdk", 10),
        ({**BARE, "gen_ai.response.id": "r2"}, "sdk", 20),
        ({**BARE, **TWICE}, "wrapper", 20),  # two calls at once of one instrumentation
        ({**BARE, "gen_ai.usage.input_tokens": 11}, "sdk", 21),
    ],
)
def test_a_call_that_two_instrumentations_record_side_by_side_counts_once(
    second: dict, scope: str, tokens: int
) -> None:
    whole = model(2, 1, [user("Hi")], [bot("Hello")], parent=1, extra=TWICE, scope=Scope("wrapper"))
    bare = span(3, 1.1, 1, seconds=0.8, attributes=second, scope=Scope(scope))
    for spans in ([whole, bare], [bare, whole]):
        (run,) = assemble([agent(1, 0, 9), *spans], [])
        assert (run.row["usage"]["input_tokens"], texts(run.row)) == (tokens, ["Hi", "Hello"])


def test_exact_messages_inside_win_over_raw_values_outside_and_a_preparation_is_no_call() -> None:
    raw = {
        "openinference.span.kind": "LLM",
        "input.value": '{"messages": ["Message(role=user, text=Hi)"]}',
    }
    exact = {
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Hi",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "Hello",
        "llm.token_count.prompt": 7,
    }
    spans = [
        agent(1, 0, 9),
        span(
            2,
            1,
            1,
            seconds=0.5,
            attributes=raw | {"output.value": '["Message(role=user, text=Hi)", "tools"]'},
        ),
        span(3, 2, 1, seconds=3, attributes=raw),
        span(4, 2.1, 3, attributes=raw | exact),
    ]
    (run,) = assemble(spans, [])
    assert texts(run.row) == ["Hi", "Hello"] and run.row["usage"]["input_tokens"] == 7
    assert "threads" not in run.row["metadata"]


def several(*calls: tuple[str, str]) -> dict:
    """An assistant's turn with calls of (id, argument); "" is no id."""
    made = [
        {"function": {"name": "look", "arguments": json.dumps({"q": q})}} | ({"id": i} if i else {})
        for i, q in calls
    ]
    return {"role": "assistant", "tool_calls": made}


def answered(*texts: str, ids: tuple[str, ...] = ()) -> list[dict]:
    return [
        {"role": "tool", "content": text} | ({"tool_call_id": ids[n]} if ids else {})
        for n, text in enumerate(texts)
    ]


PAIRS = {
    "no ids": [several(("", "a"), ("", "b")), *answered("A", "B")],
    "no ids, a message for each call": [
        several(("", "a")),
        several(("", "b")),
        *answered("A", "B"),
    ],
    "ids in the replies only": [several(("", "a"), ("", "b")), *answered("A", "B", ids=("x", "y"))],
    "ids in the calls only": [several(("x", "a"), ("y", "b")), *answered("A", "B")],
    "the same id twice": [several(("x", "a"), ("x", "b")), *answered("A", "B", ids=("x", "x"))],
    "the same id in each turn": [
        several(("x", "a")),
        *answered("A", ids=("x",)),
        several(("x", "b")),
        *answered("B", ids=("x",)),
    ],
    "replies in another order": [
        several(("x", "a"), ("y", "b")),
        *answered("B", "A", ids=("y", "x")),
    ],
}


@pytest.mark.parametrize("name", PAIRS)
def test_several_calls_pair_with_their_own_replies(name: str) -> None:
    (run,) = assemble([model(1, 0, [user("Hi"), *PAIRS[name]], [bot("Done.")])], [])
    found = exchanges(run.row["messages"])
    assert [(pair.call.args["q"], pair.result["content"]) for pair in found] == [
        ("a", "A"),
        ("b", "B"),
    ]
    assert all(pair.id and pair.id == pair.result["tool_call_id"] for pair in found)


def test_tool_spans_without_ids_answer_the_calls_with_their_arguments() -> None:
    def looked(number: int, at: float, q: str) -> Span:
        attributes = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look"}
        said = {
            "gen_ai.tool.call.arguments": json.dumps({"q": q}),
            "gen_ai.tool.call.result": q.upper(),
        }
        return span(number, at, 1, attributes=attributes | said)

    call = several(("x", "a"), ("y", "b"), ("x", "c"))
    (run,) = assemble(
        [
            agent(1, 0, 9),
            model(2, 1, [user("Hi")], [call], parent=1),
            looked(3, 3, "b"),
            looked(4, 4, "a"),
            looked(5, 5, "c"),
        ],
        [],
    )
    assert texts(run.row) == ["Hi", None, "A", "B", "C"]


LONG = [user("Hi"), bot("Which one? " + "x" * 90), user("The second")]
CUTS = {
    "gen_ai.input.messages": json.dumps(LONG),
    "input.value": json.dumps({"messages": LONG, "temperature": 0}),
    "langfuse.observation.input": json.dumps({"tools": [], "messages": LONG}),
    "ai.prompt.messages": json.dumps([user([{"type": "text", "text": "Hi"}]), *LONG[1:]]),
}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("room", [0.3, 0.6, 0.95])
def test_json_that_was_cut_is_never_anybodys_words(name: str, room: float) -> None:
    attributes = {"gen_ai.operation.name": "chat", name: CUTS[name][: int(len(CUTS[name]) * room)]}
    answer = {"gen_ai.output.messages": json.dumps([bot("Fine.")])}
    (run,) = assemble([span(1, 0, attributes=attributes | answer)], [])
    said = texts(run.row)
    assert (
        said[-1] == "Fine."
        and said[:-1] == [message["content"] for message in LONG][: len(said) - 1]
    )
    assert run.row["tags"] == ["cut-off"]


def test_a_later_call_completes_a_history_that_was_cut() -> None:
    cut = model(1, 0, LONG, [bot("Fine.")])
    cut.attributes["gen_ai.input.messages"] = cut.attributes["gen_ai.input.messages"][:60]
    whole = [*LONG, bot("Fine."), user("Thanks")]
    (run,) = assemble([agent(9, 0, 9), cut, model(2, 4, whole, [bot("Bye.")])], [])
    assert texts(run.row) == [*(message["content"] for message in whole), "Bye."]


@pytest.mark.parametrize(
    "text", ['[urgent] {"a": 1', "{not json", '{"a": 1} is what I sent', "[1, 2", '{"a": [1, 2]}}']
)
def test_words_that_look_a_little_like_json_stay_words(text: str) -> None:
    attributes = {"openinference.span.kind": "LLM", "input.value": text, "output.value": "Fine."}
    (run,) = assemble([span(1, 0, attributes=attributes)], [])
    assert (texts(run.row), run.row["tags"]) == ([text, "Fine."], [])


def answer(number: int, **more: Any) -> Span:
    """A call whose server keeps the history: it holds its own question and answer alone."""
    response = json.dumps({"id": f"resp_{number}", "object": "response", "output": []})
    extra = {"output.value": response} | more.pop("extra", {})
    given, said = [user(f"Question {number}")], [bot(f"Answer {number}")]
    return model(number, number, given, said, extra=extra, trace=number, **more)


BEFORE = {
    "an attribute": {"openai.request.previous_response_id": "resp_1"},
    "the request's parameters": {
        "llm.invocation_parameters": '{"previous_response_id": "resp_1", "model": "m"}'
    },
    "parameters of a client": {
        "llm.invocation_parameters": '{"model_kwargs": {"previous_response_id": "resp_1"}}'
    },
    "Langfuse's parameters": {
        "langfuse.observation.model.parameters": '{"previous_response_id": "resp_1"}'
    },
    "options of a provider": {
        "ai.request.providerOptions": '{"openai": {"previousResponseId": "resp_1"}}'
    },
    "the raw request": {"input.value": '{"input": "Q", "previous_response_id": "resp_1"}'},
    "Gemini's name": {"gen_ai.request.model_parameters": '{"previous_interaction_id": "resp_1"}'},
}


@pytest.mark.parametrize("extra", BEFORE.values(), ids=BEFORE)
def test_an_earlier_answer_is_named_in_many_places(extra: dict) -> None:
    (run,) = assemble([answer(1), answer(2, extra=extra)], [])
    said = [message["content"] for message in run.row["messages"]]
    assert said == ["Question 1", "Answer 1", "Question 2", "Answer 2"] and not run.row["tags"]
    (alone,) = assemble([answer(2, extra=extra)], [])
    assert alone.row["tags"] == ["missing-history"]


def test_a_conversation_on_the_server_is_one_run() -> None:
    named = [{"conversation": "conv_1"}, {"conversation": {"id": "conv_1"}}, {"conversation": "1"}]
    spans = [
        answer(number, extra={"llm.invocation_parameters": json.dumps(parameters)})
        for number, parameters in enumerate(named, 1)
    ]
    runs = assemble(spans, [])
    assert [len(run.row["messages"]) for run in runs] == [4, 2]


def test_replies_join_the_only_run_that_waits_for_them() -> None:
    def asks(number: int, identity: str, **extra: Any) -> Span:
        given, said = [user(f"Question {number}")], [wants(identity)]
        return model(number, number, given, said, trace=number, extra=extra)

    def goes_on(identity: str, **extra: Any) -> Span:
        return model(9, 9, [replied(identity, "x")], [bot("So.")], trace=9, extra=extra)

    (run,) = assemble([asks(1, "call_long_1"), goes_on("call_long_1")], [])
    assert len(run.row["messages"]) == 4 and not run.row["tags"]
    both = [asks(1, "functions.look:0"), asks(2, "functions.look:0"), goes_on("functions.look:0")]
    assert [run.row["tags"] for run in assemble(both, [])] == [[], [], ["missing-history"]]
    assert len(assemble([asks(1, "1"), goes_on("1")], [])) == 2
    session = {"session.id": "s"}
    assert len(assemble([asks(1, "1", **session), goes_on("1", **session)], [])) == 1


def test_an_agent_that_goes_on_with_another_trace_lacks_its_history() -> None:
    agent = span(3, 2, trace=2, seconds=5, attributes={"gen_ai.operation.name": "invoke_agent"})
    second = answer(2, extra=BEFORE["an attribute"], parent=3)
    tags = [run.row["tags"] for run in assemble([answer(1), agent, second], [])]
    assert tags == [[], ["missing-history"]]
