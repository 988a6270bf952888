"""What spans around model calls hold of their request completes calls that hold only answers."""

from __future__ import annotations

import json
from typing import Any

from apps.trajectories.otlp import Span, assemble

SECOND = 10**9
PROMPT = {"role": "system", "content": "Answer about parcels."}
HISTORY = [
    PROMPT,
    {"role": "user", "content": [{"type": "text", "text": "Where is parcel 4?"}]},
    {"role": "assistant", "content": "At the harbour."},
    {"role": "user", "content": "And 5 and 6?"},
]


def span(number: int, parent: int, at: int, operation: str, **attributes: Any) -> Span:
    return Span(
        f"{7:032x}",
        f"{number:016x}",
        f"{parent:016x}" if parent else "",
        start_ns=1_790_000_000 * SECOND + at * SECOND,
        end_ns=1_790_000_000 * SECOND + (at + 1) * SECOND,
        attributes={"gen_ai.operation.name": operation}
        | {name.replace("__", "."): value for name, value in attributes.items()},
    )


def chat(number: int, at: int, words: str, **more: Any) -> Span:
    said = [{"role": "assistant", "parts": [{"type": "text", "content": words}]}]
    return span(number, 2, at, "chat", gen_ai__output__messages=json.dumps(said), **more)


def look(number: int, at: int, parcel: int) -> Span:
    return span(
        number,
        2,
        at,
        "execute_tool",
        gen_ai__tool__name="locate",
        gen_ai__tool__call__id=f"call_of_parcel_{parcel}",
        gen_ai__tool__call__arguments=json.dumps({"parcel": parcel}),
        gen_ai__tool__call__result=f"parcel {parcel} is in Bergen",
    )


def run(request: Any, **of_agent: Any) -> list[dict]:
    """An agent whose model calls two tools at once, with words beside them, and then answers."""
    spans = [
        span(1, 0, 0, "invoke_agent", gen_ai__agent__name="post", **of_agent),
        span(2, 1, 1, "framework_step", acme__step__request=json.dumps(request)),
        chat(3, 2, "I look."),
        look(4, 3, 5),
        look(5, 3, 6),
        chat(6, 5, "Both in Bergen."),
    ]
    (one,) = assemble(spans, [])
    return one.row["messages"]


def test_the_request_around_calls_that_hold_only_answers_completes_the_run():
    for request in (
        HISTORY,
        {"messages": HISTORY},
        {"system": PROMPT["content"], "messages": HISTORY[1:]},
    ):
        messages = run(request)
        assert [m["role"] for m in messages] == [
            "system",
            "user",
            "assistant",
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
        ]
        assert messages[0] == PROMPT
        assert messages[4]["content"] == "I look."
        ids = ["call_of_parcel_5", "call_of_parcel_6"]
        assert [call["id"] for call in messages[4]["tool_calls"]] == ids
        assert [m["tool_call_id"] for m in messages[5:7]] == ids
        assert messages[7]["content"] == "Both in Bergen."


def test_instructions_of_the_agent_come_before_a_request_that_has_none():
    messages = run(HISTORY[1:], gen_ai__system_instructions="Answer about parcels.")
    assert messages[:2] == [PROMPT, {"role": "user", "content": "Where is parcel 4?"}]


def test_what_a_call_says_itself_wins_over_what_is_around_it():
    asked = [{"role": "user", "parts": [{"type": "text", "content": "Where is parcel 9?"}]}]
    spans = [
        span(1, 0, 0, "invoke_agent", acme__input=json.dumps(HISTORY)),
        span(2, 1, 1, "framework_step"),
        chat(3, 2, "On its way.", gen_ai__input__messages=json.dumps(asked)),
    ]
    (one,) = assemble(spans, [])
    assert [m["content"] for m in one.row["messages"]] == ["Where is parcel 9?", "On its way."]


def test_an_outline_of_a_history_or_an_answer_is_no_request():
    outline = [
        *HISTORY,
        {"role": "assistant", "content": "[locate]"},
        {"role": "tool", "content": "[result]"},
    ]
    for value in (outline, HISTORY[:3], [{"role": "admin", "content": "x"}], ["Where?"]):
        assert all(m["role"] != "user" for m in run(value))


def openinference(number: int, parent: int, at: int, kind: str, **more: Any) -> Span:
    made = span(number, parent, at, "", openinference__span__kind=kind, **more)
    del made.attributes["gen_ai.operation.name"]
    return made


def one_call_with_steps(*answers: dict) -> list[Span]:
    """All steps of an agent recorded as one model call, with a tool that fails after the first."""
    whole = openinference(2, 1, 1, "LLM")
    whole.attributes |= {
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "Where is parcel 4?",
    }
    whole.end_ns += 20 * SECOND
    failed = openinference(4, 2, 4, "TOOL", tool__name="locate", tool_call__id="call_parcel_4")
    failed.status_code, failed.status_message = 2, "no such parcel"
    steps = [
        openinference(10 + at, 2, 2 + 4 * at, "LLM", output__value=json.dumps(answer))
        for at, answer in enumerate(answers)
    ]
    return [openinference(1, 0, 0, "AGENT"), whole, failed, *steps]


CALLED = {
    "text": "",
    "toolCalls": [{"toolCallId": "call_parcel_4", "toolName": "locate", "args": {"parcel": 4}}],
}


def test_a_step_inside_a_model_call_that_answers_recovers_from_a_tools_error():
    (one,) = assemble(one_call_with_steps(CALLED, {"text": "Lost.", "toolCalls": []}), [])
    assert one.row["outcome"]["status"] == "unknown"
    (one,) = assemble(one_call_with_steps(CALLED, {"text": "", "toolCalls": []}), [])
    assert one.row["outcome"] == {"status": "failure", "reason": "no such parcel"}


def test_words_and_calls_in_one_object_are_an_answer():
    (one,) = assemble(one_call_with_steps(CALLED, {"text": "", "toolCalls": []}), [])
    called, replied = one.row["messages"][1:]
    assert called["tool_calls"][0]["id"] == replied["tool_call_id"] == "call_parcel_4"
    assert called["tool_calls"][0]["function"]["name"] == "locate"
    assert not called["content"]


def test_the_steps_inside_a_model_call_are_its_answer_with_calls_and_replies():
    talk = {"text": "I look.", "toolCalls": CALLED["toolCalls"]}
    (one,) = assemble(one_call_with_steps(talk, {"text": "Lost.", "toolCalls": []}), [])
    asked, called, answered, said = one.row["messages"]
    assert (asked["content"], called["content"], said["content"]) == (
        "Where is parcel 4?",
        "I look.",
        "Lost.",
    )
    assert called["tool_calls"][0]["function"]["arguments"] == {"parcel": 4}
    assert answered["content"] == "no such parcel"
    assert len(one.row["metadata"]["steps"]) == 5


def lang_chain(said: dict, **head: Any) -> str:
    """An answer as LangChain serialises it, with the head of the response beside it."""
    kwargs = {"type": "ai", "response_metadata": head, **said}
    path = ["langchain", "schema", "messages", "AIMessage"]
    message = {"lc": 1, "type": "constructor", "id": path, "kwargs": kwargs}
    return json.dumps({"outputs": [{"update": {"messages": [message]}}]})


def alias(words: str, outer: str, **more: Any) -> dict:
    """The row of a call that knows only the name that was asked for, inside a span that knows."""
    named = {"gen_ai__request__model": "m", "gen_ai__response__model": "m"}
    spans = [
        span(1, 0, 0, "invoke_agent"),
        span(2, 1, 1, "framework_step", traceloop__entity__output=outer),
        chat(3, 2, words, gen_ai__usage__input_tokens=9, **named, **more),
    ]
    return assemble(spans, [])[0].row


def test_the_answer_in_a_span_above_says_which_model_answered_and_what_it_thought():
    content = [{"type": "reasoning", "reasoning": "Ships."}, {"type": "text", "text": "At sea."}]
    used = {"output_token_details": {"reasoning": 7}, "input_tokens": 9, "output_tokens": 8}
    said = {"content": content, "usage_metadata": used}
    outer = lang_chain(said, id="resp_one", model_name="m-2026-07-18", object="response")
    row = alias("At sea.", outer)
    assert row["model"] == "m-2026-07-18" and row["usage"]["reasoning_tokens"] == 7
    assert row["messages"][-1]["content"] == [
        {"type": "reasoning", "text": "Ships."},
        {"type": "text", "text": "At sea."},
    ]
    assert alias("On land.", outer)["model"] == "m"  # another answer
    assert alias("At sea.", outer, gen_ai__response__id="resp_two")["model"] == "m"


def counted(output: int, **parts: int) -> dict:
    return {"prompt_tokens": 9, "completion_tokens": output, **parts}


def beside(words: str, used: dict, name: str = "meta") -> dict:
    """An answer with what was counted in an object beside its words."""
    return {"role": "assistant", "content": words, name: {"model": "m", "usage": used}}


def test_counts_in_an_object_of_any_name_beside_the_same_answer():
    def used(*answers: dict) -> list[dict]:
        state = json.dumps({"state": {"steps": list(answers), "exit": "text"}})
        named = {"gen_ai__request__model": "m", "gen_ai__response__model": "m-1"}
        spans = [
            span(1, 0, 0, "invoke_agent", traceloop__entity__output=state),
            *(
                chat(number, number, "Yes.", gen_ai__usage__output_tokens=number, **named)
                for number in (5, 7)
            ),
        ]
        for call in spans[1:]:
            call.parent_id = spans[0].span_id
        return [call["usage"] for call in assemble(spans, [])[0].row["usage"]["calls"]]

    first, second = used(
        beside("No.", counted(5, cached_tokens=2)),
        beside("Yes.", counted(7, cached_tokens=4), "info"),
        beside("Yes.", counted(5, cached_tokens=3)),
    )
    assert (first["cache_read_tokens"], second["cache_read_tokens"]) == (3, 4)
    alone, other = used(beside("Yes.", counted(6, cached_tokens=3)))
    assert "cache_read_tokens" not in alone | other


def test_a_call_that_said_nothing_failed_with_its_agent_and_costs_nothing():
    def run_of(status: int) -> dict:
        asked = json.dumps([{"role": "user", "content": "Where?"}])
        spans = [
            span(1, 0, 0, "invoke_agent"),
            chat(2, 1, "I look.", gen_ai__usage__input_tokens=9),
            span(3, 1, 3, "chat", gen_ai__input__messages=asked),
        ]
        spans[0].status_code, spans[0].status_message = status, "overloaded"
        spans[1].parent_id = spans[0].span_id
        return assemble(spans, [])[0].row

    failed = run_of(2)
    assert "uncounted_calls" not in failed["metadata"] and len(failed["usage"]["calls"]) == 1
    assert failed["metadata"]["steps"][2]["error"] == "overloaded"
    assert run_of(0)["metadata"]["uncounted_calls"] == 1


def test_only_a_call_that_the_provider_refused_costs_nothing():
    words = [{"role": "assistant", "parts": [{"type": "text", "content": "At s"}]}]
    for kind, answer, unknown in (
        ("acme.RateLimitError", None, 0),
        ("acme.APITimeoutError", None, 1),
        ("asyncio.CancelledError", None, 1),
        ("acme.APIError", words, 1),
    ):
        failed = span(3, 0, 3, "chat", error__type=kind)
        failed.status_code = 2
        if answer:
            failed.attributes["gen_ai.output.messages"] = json.dumps(answer)
        (one,) = assemble([failed], [])
        assert one.row["metadata"].get("uncounted_calls", 0) == unknown, kind
