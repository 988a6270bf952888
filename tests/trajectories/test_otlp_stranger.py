"""What instrumentations of strangers leave out or say in words of their own, and what says it for
them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from apps.trajectories.dialects import messages_of
from apps.trajectories.otlp import Event, Scope, assemble
from tests.trajectories.test_otlp_assemble import (
    agent,
    bot,
    model,
    replied,
    span,
    texts,
    user,
    wants,
)


def named(value: Any) -> str:
    return json.dumps(value)


CALL = {"tool_function": "look", "tool_arguments": '{"at": "Ulm"}', "call_id": "c1"}
TURN = ["look", {"at": "Ulm"}]


def told(messages: list[dict]) -> list[Any]:
    """Who said what; of calls their tool and arguments."""
    said: list[Any] = []
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        words = [[one["name"], json.loads(one["arguments"])] for one in calls]
        said.append((message["role"], *(words or [message["content"]])))
    return said


@pytest.mark.parametrize(
    ("calls", "result"),
    [
        (named(CALL), named({"call_id": "c1", "output": "rain"})),
        (named({"assistant": [named(CALL)]}), named({"tool": "rain"})),
        (named({"functionName": "look", "functionArgs": '{"at": "Ulm"}'}), "rain"),
        ({"assistant": [{"tool": "look", "args": '{"at": "Ulm"}'}]}, {"tool": "rain"}),
    ],
)
def test_calls_in_words_of_their_own_among_speakers(calls: Any, result: Any) -> None:
    given = [named({"system": "Be brief."}), named({"user": "Regen?"}), calls, result]
    assert told(messages_of(given, "user")) == [
        ("system", "Be brief."),
        ("user", "Regen?"),
        ("assistant", TURN),
        ("tool", "rain"),
    ]


@pytest.mark.parametrize(
    "answer",
    [
        {"assistant": [CALL]},
        {"tools": [CALL]},
        named({"tools": [{"tool_name": "look", "tool_arguments": '{"at": "Ulm"}'}]}),
    ],
)
def test_an_answer_of_calls_in_words_of_their_own(answer: Any) -> None:
    assert told(messages_of(answer, "assistant")) == [("assistant", TURN)]


@pytest.mark.parametrize(
    "value",
    [
        [{"tool": "look", "city": "Ulm"}, {"user": "Regen?"}],
        [named({"user": "Regen?"}), {"invoice": 7}],
        {"tools": [{"name": "look"}]},
        {"rows": [{"tool": "hammer"}]},
    ],
)
def test_what_only_resembles_a_call_is_none(value: Any) -> None:
    assert not any(message.get("tool_calls") for message in messages_of(value, "assistant"))


def without_ids(call: dict) -> dict:
    calls = [{k: v for k, v in one.items() if k != "id"} for one in call["tool_calls"]]
    return call | {"tool_calls": calls}


def lost_ids(trace: int, at: float, ids: str = "c1") -> list[Any]:
    """A call in a trace of its own, and the next one, whose history has no ids."""
    first = model(1, at, [user("Hi")], [wants(ids)], trace=trace)
    result = {key: value for key, value in replied(ids, "ok").items() if key != "tool_call_id"}
    given = [user("Hi"), without_ids(wants(ids)), result]
    return [first, model(2, at + 2, given, [bot("Done.")], trace=trace + 1)]


def test_a_history_without_ids_goes_on_with_the_only_run_that_ended_so() -> None:
    (run,) = assemble(lost_ids(1, 0), [])
    (call,) = run.row["messages"][1]["tool_calls"]
    assert call["id"] == "c1" and run.row["messages"][2]["tool_call_id"] == "c1"
    both = [lost_ids(1, 0), lost_ids(3, 0.1, "c2")]
    assert len(assemble([one for pair in both for one in pair], [])) == 4


SDK = {"scope": Scope("vendor.sdk", "", "")}


def bare(number: int, at: float, trace: int, sent: int, made: int, **extra: Any) -> Any:
    """An SDK's own record of a call: counts, and no message."""
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": sent,
        "gen_ai.usage.output_tokens": made,
    }
    return span(number, at, 0, trace, seconds=0.5, attributes=attributes | extra, **SDK)


def counted(number: int, at: float, given: list, said: list, sent: int, **extra: Any) -> Any:
    counts = {"gen_ai.usage.input_tokens": sent, "gen_ai.usage.output_tokens": 7}
    return model(number, at, given, said, parent=9, extra=counts | extra)


HISTORY = [user("Hi"), wants("c1"), replied("c1", "ok")]


@pytest.mark.parametrize("with_ids", [True, False])
def test_the_own_record_of_several_calls_in_another_trace_is_no_run(with_ids: bool) -> None:
    ids = [{"gen_ai.response.id": f"resp-{n}"} if with_ids else {} for n in (1, 2)]
    calls = [
        counted(1, 0, HISTORY[:1], HISTORY[1:2], 20, **ids[0]),
        counted(2, 2, HISTORY, [bot("Done.")], 30, **ids[1]),
    ]
    apart = [
        bare(3, 0.2, 2, 20, 7, **ids[0]),
        bare(4, 2.2, 2 if with_ids else 3, 30, 7, **ids[1]),
    ]
    (run,) = assemble([agent(9, 0, 4), *calls, *apart], [])
    assert run.row["usage"]["input_tokens"] == 50 and run.row["usage"]["output_tokens"] == 14
    assert texts(run.row)[-1] == "Done."


def test_equal_counts_of_two_that_speak_are_two_calls() -> None:
    one = counted(1, 0, [user("Hi")], [bot("A.")], 20)
    talk = [user("Ho"), bot("Yes?"), user("Well")]
    other = model(2, 0.2, talk, [bot("B.")], trace=2, seconds=0.5, **SDK)
    other.attributes |= {"gen_ai.usage.input_tokens": 20, "gen_ai.usage.output_tokens": 7}
    assert len(assemble([agent(9, 0, 4), one, other], [])) == 2


def test_a_count_without_what_a_cache_gave_is_corrected_by_the_other_record() -> None:
    cached = {"gen_ai.usage.cache_read.input_tokens": 4}
    outer = counted(1, 0, [user("Hi")], [bot("A.")], 16, **cached)
    inner = bare(2, 0.2, 2, 20, 7, **cached)
    (run,) = assemble([agent(9, 0, 4), outer, inner], [])
    assert run.row["usage"]["input_tokens"] == 20 and run.row["usage"]["cache_read_tokens"] == 4


def test_what_an_error_of_only_a_type_was_is_said_by_the_record_around_it() -> None:
    failed = {"status_code": 2}
    outer = model(1, 0, [user("Hi")], [], **failed, status_message="Quota of today is used up")
    inner = span(
        2,
        0.2,
        1,
        1,
        seconds=0.5,
        attributes={"gen_ai.operation.name": "chat", "error.type": "quota_error"},
        **SDK,
        **failed,
    )
    (run,) = assemble([outer, inner], [])
    assert run.row["outcome"] == {"status": "failure", "reason": "Quota of today is used up"}


@pytest.mark.parametrize("name", ["sessionId", "session_id", "threadId", "conversation_id"])
def test_a_session_in_metadata_in_any_spelling(name: str) -> None:
    attributes = {
        "openinference.span.kind": "LLM",
        "input.value": "Hi",
        "output.value": "Ho",
        "llm.model_name": "m",
        "metadata": named({"runId": "r", name: "talk-7", "userId": "ann"}),
    }
    (run,) = assemble([span(1, 0, 0, 1, attributes=attributes)], [])
    assert (run.row["session_id"], run.row["user_id"]) == ("talk-7", "ann")


def test_counts_of_what_had_only_begun_are_none() -> None:
    begun = {"vendor.usage.partial.output_tokens": 1, "vendor.usage.partial.input_tokens": 20}
    whole = {"gen_ai.usage.input_tokens": 20, "gen_ai.usage.output_tokens": 7}
    call = model(1, 0, [user("Hi")], [bot("Ho")], parent=9, extra=begun)
    for name in whole:
        del call.attributes[name]
    (run,) = assemble([agent(9, 0, 4, extra=whole), call], [])
    assert run.row["usage"]["output_tokens"] == 7


def test_a_failed_call_whose_request_is_named_by_speakers_is_a_run() -> None:
    given = [named({"system": "Be brief."}), named({"user": "Regen?"})]
    events = [Event("data.input", 0, {"input": given})]
    attributes = {"span.type": "inference", "entity.2.name": "m-1"}
    failed = {"status_code": 2, "status_message": "it broke"}
    (run,) = assemble([span(1, 0, 0, 1, attributes=attributes, events=events, **failed)], [])
    assert texts(run.row) == ["Be brief.", "Regen?"]
    assert run.row["outcome"]["reason"] == "it broke"
