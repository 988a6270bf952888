"""A candidate beside what a channel runs, as clients feel it: a canary answers its share, a shadow
nobody.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from apps.serving.pieces import Beginning
from apps.serving.recording import span_of
from apps.serving.routes import SHADOW
from apps.serving.spool import Record
from apps.serving.turns import Bounds
from tests.flywheel.machine import eventually
from tests.serving.conftest import TRIAL, Running
from tests.serving.scripted import Scripted
from tests.serving.test_endpoint import TOOL, ask, raw

Make = Callable[[str], Scripted]


def who(running: Running, session: str, text: str = "Hi", **more: Any) -> str:
    answer = running.post(ask(text) | more, headers={"X-Session-Id": session})
    assert answer.status_code == 200, answer.text
    return answer.headers["x-flywheel-version"]


def by_lane(records: list[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.started_ns):
        found.setdefault(record.lane, []).append(record)
    return found


# A canary


def test_a_canary_answers_its_share_of_the_sessions_and_each_answer_is_noted(
    running: Running, server: Make
) -> None:
    running.try_out(alpha := server("alpha"), beta := server("beta"), share=0.5)
    found = {session: {who(running, session) for _ in range(2)} for session in map(str, range(12))}
    assert all(len(versions) == 1 for versions in found.values())
    assert set.union(*found.values()) == {"v1", "v2"} and len(alpha.asked) + len(beta.asked) == 24
    lanes = by_lane(running.records(24))
    assert {record.version for record in lanes["canary"]} == {"v2"} and {
        record.served_as for record in lanes["canary"]
    } == {"beta-adapter"}
    assert {record.version for record in lanes["current"]} == {"v1"}
    assert all(
        record.trial == TRIAL and record.unit and record.served
        for record in lanes["current"] + lanes["canary"]
    )


def test_a_raised_share_moves_no_session_that_runs_and_the_end_of_a_trial_moves_all(
    running: Running, server: Make
) -> None:
    alpha, beta = server("alpha"), server("beta")
    running.try_out(alpha, beta, share=0.0)
    assert {who(running, "old") for _ in range(2)} == {"v1"}
    running.try_out(alpha, beta, share=1.0, step=1)
    assert who(running, "old") == "v1" and who(running, "new") == "v2"
    running.serve(alpha)
    assert {who(running, "old"), who(running, "new")} == {"v1"}
    records = sorted(running.records(6), key=lambda record: record.started_ns)
    assert [(record.lane, record.step) for record in records] == [
        ("current", 0),
        ("current", 0),
        ("current", 1),
        ("canary", 1),
        ("", 0),
        ("", 0),
    ]


def test_sessions_that_begin_while_intake_is_paused_get_the_current_version(
    running: Running, server: Make
) -> None:
    alpha, beta = server("alpha"), server("beta")
    running.try_out(alpha, beta, room=1)
    assert [who(running, session) for session in ("a", "b", "a", "b")] == ["v2", "v1", "v2", "v1"]
    running.try_out(alpha, beta, room=1)  # outcomes came: what began stays as it was
    assert [who(running, session) for session in ("a", "b", "c", "d")] == ["v2", "v1", "v2", "v1"]
    lanes = by_lane(running.records(8))
    assert {lane: len(records) for lane, records in lanes.items()} == {"canary": 4, "outside": 4}
    assert {(one.version, one.trial) for one in lanes["outside"]} == {("v1", TRIAL)}


@pytest.mark.parametrize("stream", [False, True])
def test_no_user_pays_for_a_candidate_that_is_down(
    running: Running, server: Make, stream: bool
) -> None:
    running.try_out(server("alpha"), beta := server("beta"))
    beta.kill()
    for _ in range(2):
        answer = running.post(ask("stream 2") | {"stream": stream}, headers={"X-Session-Id": "s"})
        assert (
            answer.status_code == 200
            and "alpha" in answer.text
            and answer.headers["x-flywheel-version"] == "v1"
        )
    lanes = by_lane(running.records(4))
    assert [(one.served, one.ended, one.version, one.step) for one in lanes["canary"]] == [
        (False, "unreached", "v2", 0)
    ] * 2
    assert "a moment ago" in lanes["canary"][1].problem, "it is not tried for each request"
    assert [(one.version, one.trial, one.unit, one.status) for one in lanes[""]] == [
        ("v1", "", "", 200)
    ] * 2
    assert (
        lanes["canary"][0].trace_id == lanes[""][0].trace_id
        and lanes["canary"][0].span_id != lanes[""][0].span_id
    )


@pytest.mark.parametrize("status", [404, 429, 500, 503])
def test_no_user_pays_for_a_candidate_that_refuses(
    running: Running, server: Make, status: int
) -> None:
    alpha, beta = server("alpha"), server("beta")
    beta.refuses = status
    running.try_out(alpha, beta)
    assert who(running, "s") == "v1" and len(beta.asked) == 1
    lanes = by_lane(running.records(2))
    assert [(one.served, one.status) for one in lanes["canary"]] == [(False, status)]


@pytest.mark.parametrize("bounds", [Bounds(canary_s=0.2)])
def test_no_user_waits_long_for_a_candidate_that_hangs(running: Running, server: Make) -> None:
    alpha, beta = server("alpha"), server("beta")
    beta.hangs = True
    running.try_out(alpha, beta)
    for stream in (False, True):
        assert who(running, "s", "stream 2", stream=stream) == "v1"
    eventually(lambda: beta.left == len(beta.asked) and not beta.open)
    assert {one.served for one in by_lane(running.records(4))["canary"]} == {False}


def test_a_candidate_that_nothing_serves_leaves_all_to_the_current_version(
    running: Running, server: Make
) -> None:
    running.try_out(server("alpha"))
    assert who(running, "s") == "v1"


CHUNK = {
    "id": "c",
    "object": "chat.completion.chunk",
    "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}],
}
CREATED = {
    "type": "response.created",
    "response": {"status": "in_progress", "output": []},
    "sequence_number": 0,
}
ADDED = {
    "type": "response.output_item.added",
    "output_index": 0,
    "item": {"type": "message", "role": "assistant", "content": []},
}
NOTHING = [
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ""}]}
]


def whole(message: Any) -> bytes:
    return raw(json.dumps({"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}))


def events(*data: Any, more: str = "") -> bytes:
    text = "".join(f"data: {one if isinstance(one, str) else json.dumps(one)}\n\n" for one in data)
    return raw(text + more, kind="text/event-stream")


CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
NO_ANSWERS = [
    (CHAT, whole(None), "empty"),
    (CHAT, whole({"role": "assistant", "content": None}), "empty"),
    (CHAT, whole({"role": "assistant", "content": "", "tool_calls": []}), "empty"),
    (CHAT, raw('{"choices": [null]}'), "empty"),
    (CHAT, raw('{"choices": "many"}'), "empty"),
    (CHAT, raw('{"choices": [{"message": {"content": "Hi"}}'), "without an answer"),
    (RESPONSES, raw('{"object": "response", "output": []}'), "empty"),
    (RESPONSES, raw(json.dumps({"object": "response", "output": NOTHING})), "empty"),
    (RESPONSES, raw('{"object": "response", "output": null}'), "without an answer"),
]
FAILED = {"type": "response.failed", "response": {"error": {"message": "no memory"}}}
NO_WORDS = [
    (CHAT, events(CHUNK, "[DONE]"), "empty"),
    (CHAT, events(CHUNK), "empty"),
    (CHAT, events(CHUNK, {"error": {"message": "no memory"}}, "[DONE]"), "no memory"),
    (CHAT, events(CHUNK, "{not json", CHUNK), "empty"),
    (CHAT, events("<html>"), "without an answer"),
    (CHAT, events(more=": still thinking\n\n"), "without an answer"),
    (CHAT, events(CHUNK)[:-1] + b"x", "without an answer"),
    (RESPONSES, events(CREATED, ADDED), "without an answer"),
    (RESPONSES, events(CREATED, FAILED), "no memory"),
    (
        RESPONSES,
        events(CREATED, ADDED, {"type": "response.completed", "response": {"output": NOTHING}}),
        "empty",
    ),
]


@pytest.mark.parametrize("stream", [False, True])
def test_no_user_gets_an_answer_of_a_candidate_that_has_no_word(
    running: Running, server: Make, stream: bool
) -> None:
    running.try_out(server("alpha"), beta := server("beta"))
    cases = NO_WORDS if stream else NO_ANSWERS
    for path, beta.raw, _ in cases:
        answer = running.post(ask("stream 2") | {"input": "stream 2", "stream": stream}, path)
        assert answer.headers["x-flywheel-version"] == "v1" and "alpha" in answer.text, beta.raw
        assert "no memory" not in answer.text and "html" not in answer.text
    tried = by_lane(running.records(2 * len(cases)))["canary"]
    for (_, sent, problem), one in zip(cases, tried, strict=True):
        assert not one.served and problem in span_of(one).status_message, sent


@pytest.mark.parametrize("bounds", [Bounds(canary_s=0.3)])
def test_no_user_gets_a_stream_of_a_candidate_that_stops_before_its_first_word(
    running: Running, server: Make
) -> None:
    running.try_out(server("alpha"), beta := server("beta"))
    for beta.says, left in (("hang after 0", 1), ("die after 0", 2)):
        running.endpoint.servers.down.clear()
        answer = running.post(ask("stream 2") | {"stream": True})
        assert answer.headers["x-flywheel-version"] == "v1" and answer.text.count("alpha ") == 2
        eventually(lambda left=left: beta.left == left and not beta.open, 10)  # type: ignore[misc]
    tried = by_lane(running.records(4))["canary"]
    assert [one.served for one in tried] == [False, False] and all(
        one.problem and one.answer for one in tried
    )


def choice(**delta: Any) -> dict[str, Any]:
    return CHUNK | {"choices": [{"index": 0, "delta": delta}]}


def item(kind: str) -> dict[str, Any]:
    return {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {"type": kind, "name": "look"},
    }


@pytest.mark.parametrize(
    ("path", "event", "begun"),
    [
        ("/chat/completions", choice(content="\n"), True),
        ("/chat/completions", choice(reasoning_content="Hm"), True),
        ("/chat/completions", choice(refusal="No."), True),
        ("/chat/completions", choice(reasoning="Hm"), True),
        ("/chat/completions", choice(function_call={"name": "look", "arguments": ""}), True),
        (
            "/chat/completions",
            choice(
                tool_calls=[{"index": 0, "id": "c", "function": {"name": "look", "arguments": ""}}]
            ),
            True,
        ),
        ("/responses", {"type": "response.output_text.delta", "delta": "a"}, True),
        ("/responses", item("function_call"), True),
        ("/responses", item("web_search_call"), True),
        ("/responses", item("reasoning"), True),
        ("/chat/completions", choice(role="assistant", content=""), False),
        ("/responses", item("message"), False),
        ("/responses", CREATED, False),
        ("/responses", {"type": "response.output_text.delta", "delta": ""}, False),
        ("/chat/completions", {"choices": [], "usage": None}, False),
        ("/chat/completions", choice(content=None), False),
    ],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_an_answer_begins_with_a_word_a_thought_a_refusal_or_a_call(
    path: str, event: dict, begun: bool, size: int
) -> None:
    beginning, text = Beginning(path), f": ping\n\ndata: {json.dumps(event)}\n\n".encode()
    stops = [beginning.feed(text[at : at + size]) for at in range(0, len(text), size)]
    assert beginning.has_begun == begun and any(stops) == begun


def test_a_candidates_stream_is_kept_back_no_longer_than_to_its_first_word(
    running: Running, server: Make
) -> None:
    running.try_out(server("alpha"), beta := server("beta"))
    beta.says = "hang after 1"
    with running.client().chat.completions.create(**ask("Hi"), stream=True) as stream:
        assert [next(stream).choices[0].delta.content for _ in range(2)] == ["", "beta "]
    (noted,) = running.records(1)
    assert (noted.lane, noted.ended, noted.served) == ("canary", "left", True)


def test_a_candidate_that_breaks_off_within_its_answer_ends_it(
    running: Running, server: Make
) -> None:
    """The client has heard its beginning: another version's end would be a mix."""
    running.try_out(alpha := server("alpha"), server("beta"))
    with pytest.raises(openai.APIError, match="broke its answer off"):
        list(running.client().chat.completions.create(**ask("die after 3"), stream=True))
    (noted,) = running.records(1)
    assert (noted.lane, noted.ended, noted.served, alpha.asked) == ("canary", "broken", True, [])


def test_a_canary_with_tools_streams_and_the_responses_api(running: Running, server: Make) -> None:
    running.try_out(alpha := server("alpha"), server("beta"))
    client = running.client()
    with client.chat.completions.stream(**ask("tool"), tools=[TOOL]) as stream:
        stream.until_done()
        assert (
            stream.get_final_completion().choices[0].message.tool_calls[0].function.name
            == "weather"
        )
    assert client.responses.create(model="production", input="stream 2").output_text == "beta beta "
    assert (
        list(client.responses.create(model="production", input="a 2", stream=True))[
            -1
        ].response.output_text
        == "beta beta "
    )
    assert not alpha.asked and {record.lane for record in running.records(3)} == {"canary"}


def test_a_client_that_leaves_a_canary_stops_it(running: Running, server: Make) -> None:
    running.try_out(server("alpha"), beta := server("beta"))
    beta.gap_s = 0.02
    stream = running.client().chat.completions.create(**ask("stream 5000"), stream=True)
    next(stream)
    stream.close()
    eventually(lambda: beta.left == 1 and not beta.open)
    (noted,) = running.records(1)
    assert (noted.lane, noted.ended, noted.served) == ("canary", "left", True)


# A shadow


def test_a_shadow_is_asked_the_same_and_nobody_gets_its_answer(
    running: Running, server: Make
) -> None:
    running.try_out(alpha := server("alpha"), beta := server("beta"), kind=SHADOW)
    text = running.client().chat.completions.create(**ask("tool"), tools=[TOOL], stream=True)
    assert "beta" not in str(list(text)) and who(running, "s") == "v1"
    eventually(lambda: len(beta.asked) == 2)
    lanes = by_lane(running.records(4))
    assert [(one.served, one.version, one.stream) for one in lanes["shadow"]] == [
        (False, "v2", False)
    ] * 2
    assert {one.shadow_of for one in lanes["shadow"]} == {one.span_id for one in lanes["current"]}
    assert {one.unit for one in lanes["shadow"]} == {one.unit for one in lanes["current"]}
    assert all(one.paired and one.served and one.trial == TRIAL for one in lanes["current"])
    asked = next(one for one in beta.asked if "tools" in one)
    assert asked == {
        name: value for name, value in alpha.asked[0].items() if "stream" not in name
    } | {"model": "beta-adapter"}
    tool = next(one for one in lanes["shadow"] if b"call_7" in one.answer)
    assert json.loads(span_of(tool).attributes["gen_ai.output.messages"])[0]["tool_calls"]


def test_a_shadow_of_the_responses_api_and_what_it_cannot_answer(
    running: Running, server: Make
) -> None:
    running.try_out(server("alpha"), beta := server("beta"), kind=SHADOW)
    client = running.client()
    assert client.responses.create(model="production", input="a 2").output_text == "alpha alpha "
    client.responses.create(model="production", input="a 2", previous_response_id="resp_1")
    lanes = by_lane(running.records(3))
    assert len(beta.asked) == 1 and len(lanes["shadow"]) == 1 and len(lanes["current"]) == 1
    assert [(one.trial, one.unit, one.paired) for one in lanes[""]] == [("", "", False)]


def test_only_a_share_is_shadowed_and_only_that_counts(running: Running, server: Make) -> None:
    running.try_out(server("alpha"), beta := server("beta"), kind=SHADOW, share=0.5)
    for session in map(str, range(12)):
        assert who(running, session) == "v1"
    eventually(lambda: running.endpoint.shadows.asked == len(beta.asked) > 0)
    n = len(beta.asked)
    assert n < 12
    lanes = by_lane(running.records(12 + n))
    assert len(lanes["current"]) == len(lanes["shadow"]) == n and len(lanes[""]) == 12 - n


@pytest.mark.parametrize("bounds", [Bounds(shadows=2, shadow_s=600)])
def test_a_shadow_that_hangs_is_felt_by_nobody_and_what_is_too_much_is_dropped(
    running: Running, server: Make
) -> None:
    running.try_out(server("alpha"), beta := server("beta"), kind=SHADOW)
    beta.hangs = True
    assert {who(running, str(number)) for number in range(5)} == {"v1"}
    said = running.post(path="/healthz").json()
    assert said["shadows"] == {"open": 2, "asked": 2, "dropped": 3}
    assert {one.lane for one in running.records(5)} == {"current"}


@pytest.mark.parametrize("bounds", [Bounds(shadow_s=0.1)])
def test_a_shadow_that_gives_no_answer_is_noted_so(running: Running, server: Make) -> None:
    running.try_out(server("alpha"), beta := server("beta"), kind=SHADOW)
    beta.hangs = True
    who(running, "s")
    (noted,) = by_lane(running.records(2))["shadow"]
    assert (noted.ended, noted.served) == ("late", False) and "within 0.1 s" in noted.problem
    eventually(lambda: not running.endpoint.shadows.open and not beta.open)
    beta.kill()
    running.bound(shadow_s=300)
    who(running, "s")
    assert by_lane(running.records(4))["shadow"][1].ended == "unreached"


def test_what_a_client_left_is_not_shadowed(running: Running, server: Make) -> None:
    running.try_out(alpha := server("alpha"), beta := server("beta"), kind=SHADOW)
    alpha.gap_s = 0.02
    stream = running.client().chat.completions.create(**ask("stream 5000"), stream=True)
    next(stream)
    stream.close()
    eventually(lambda: alpha.left == 1 and not alpha.open)
    assert [one.ended for one in running.records(1)] == ["left"] and not beta.asked
