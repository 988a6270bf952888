"""The kinds of environment that need no server: single-turn, replay, and the messages they are told
in.
"""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.episodes import score_text
from tests.workers.test_workplace_assistant import VALUES, assistant
from workers.lib.environments import EpisodeError, load
from workers.lib.environments.gym_rows import response_of, row_of
from workers.lib.errors import SpecError
from workers.lib.messages import from_items, to_items
from workers.lib.rollouts import replay

USER = {"role": "user", "content": "Close 12."}
TASK = {"id": "t", "messages": [USER], "expected": {"tool": "close", "args": {"id": 12}}}
EXACT = {"kind": "exact"}


def test_a_kind_says_whether_it_has_several_turns() -> None:
    for name in ("workplace", "workplace_assistant", "customer_service"):
        spec = {"kind": "builtin", "name": name, "harness": {}, "verifier": {"kind": "tool_call"}}
        assert load(spec).multi_turn is (name != "workplace")
    for kind, verifier in (("single_turn", {"kind": "no_call"}), ("replay", {"kind": "calls"})):
        assert load({"kind": kind, "harness": {}, "verifier": verifier}).multi_turn is (
            kind == "replay"
        )


@pytest.mark.parametrize("verifier", [{}, {"kind": "telepathy"}])
def test_a_single_turn_needs_a_verifier_there_is(verifier: dict) -> None:
    with pytest.raises(SpecError, match="verifier"):
        load({"kind": "single_turn", "harness": {}, "verifier": verifier})


@pytest.mark.parametrize(
    ("verifier", "text", "here"),
    [
        ({"kind": "exact"}, "four", True),
        ({"kind": "number"}, "4", True),
        ({"kind": "regex", "pattern": "fo"}, "four", True),
        ({"kind": "exact"}, "four" * 10_000, False),
        ({"kind": "math"}, "4", False),
        ({"kind": "compose", "parts": [{"verifier": {"kind": "exact"}}]}, "four", False),
    ],
    ids=["exact", "number", "regex", "long", "math", "compose"],
)
def test_only_what_is_judged_at_once_is_judged_without_a_thread(
    monkeypatch: pytest.MonkeyPatch, verifier: dict, text: str, here: bool
) -> None:
    """The other episodes wait for what is judged in their thread."""
    environment = load({"kind": "single_turn", "harness": {}, "verifier": verifier})
    judged_in, score = [], environment.verifier.score
    monkeypatch.setattr(
        environment.verifier,
        "score",
        lambda given: [judged_in.append(threading.current_thread()), score(given)][1],
    )
    said = [{"role": "assistant", "content": text}]
    found = asyncio.run(
        replay(environment, TASK | {"expected": {"answer": 4 if text == "4" else "four"}}, said)
    )
    assert found.success == (len(text) < 10)
    assert [threading.current_thread() is at for at in judged_in] == [here]


def test_single_turn_scores_a_text_and_a_native_call_the_same() -> None:
    environment = load(
        {"kind": "single_turn", "harness": {"system_prompt": "S"}, "verifier": {"kind": "calls"}}
    )
    assert [m["content"] for m in environment.conversation(TASK)] == ["S", "Close 12."]
    by_text = score_text(environment, TASK, '{"tool": "close", "args": {"id": 12}}')

    async def native(args: dict) -> tuple[float | None, int]:
        episode = environment.open(TASK)
        await episode.step(assistant(("close", args)))
        assert episode.done
        with pytest.raises(EpisodeError):
            await episode.step(assistant(text="more"))
        return (await episode.score()).reward, len(episode.messages)

    assert by_text.reward == 1 and asyncio.run(native({"id": 12})) == (1, 3)
    assert asyncio.run(native({"id": 13}))[0] < 1


def test_the_demo_workplace_is_an_episode_too() -> None:
    environment = load(
        {"kind": "builtin", "name": "workplace", "harness": {}, "verifier": {"kind": "tool_call"}}
    )
    task = {
        "id": "1",
        "messages": [USER],
        "expected": {"tool": "tickets.close", "args": {"id": 1234}},
    }

    async def play(message: dict) -> tuple[float | None, str]:
        episode = environment.open(task)
        await episode.step(message)
        score = await episode.score()
        assert episode.done and score.messages == episode.messages[1:]
        return score.reward, score.messages[-1]["content"]

    assert asyncio.run(play(assistant(("tickets.close", {"id": 1234})))) == (
        1,
        "Ticket 1234 is closed.",
    )
    twice = assistant(("tickets.close", {"id": 1234}), ("tickets.close", {"id": 1234}))
    assert asyncio.run(play(twice))[0] == -1
    assert asyncio.run(play(assistant(text="Closed!"))) == (-1, "Closed!")


# Replay

RESULTS = [
    {
        "tool": "find",
        "args": {"name": "Tom", "page": 1},
        "content": '{"tickets": {"12": {"status": "open"}}}',
    },
    {"tool": "find", "args": {"name": "Tom", "page": 1}, "content": "none left"},
    {"tool": "find", "args": {"name": "Ann"}, "content": "Ann's"},
    {"tool": "close", "args": {"id": 12}, "content": '{"tickets": {"12": {"status": "closed"}}}'},
    {"tool": "broken"},
]
CLOSED = [
    {"path": "tickets.12.status", "equals": "closed"},
    {"path": "calls.email.count", "equals": 0},
]


def replayed(
    metadata: dict, *calls: tuple[str, dict], json_between: bool = False
) -> tuple[list[str], dict]:
    environment = load({"kind": "replay", "harness": {}, "verifier": {"kind": "calls"}})
    task = TASK | {"metadata": {"recorded_results": RESULTS} | metadata}

    async def play() -> tuple[list[str], dict]:
        episode = environment.open(task)
        for call in calls:
            await episode.step(assistant(call))
            if json_between:
                episode = environment.open(task, json.loads(json.dumps(episode.state)))
        await episode.step(assistant(text="Done."))
        return [m["content"] for m in episode.messages if m["role"] == "tool"], vars(
            await episode.score()
        )

    return asyncio.run(play())


@pytest.mark.parametrize("json_between", [False, True])
def test_recorded_results_are_served_in_their_order(json_between: bool) -> None:
    tom = ("find", {"page": 1.0, "name": " tom"})
    answers, _ = replayed(
        {}, tom, tom, tom, ("find", {"name": "Bob"}), ("fly", {}), json_between=json_between
    )
    opened, none_left = RESULTS[0]["content"], RESULTS[1]["content"]
    assert answers == [opened, none_left, none_left, "Error: not recorded", "Error: not recorded"]


def test_the_nearest_is_served_only_where_the_task_says_so() -> None:
    near = ("find", {"name": "Annie"})
    assert replayed({}, near)[0] == ["Error: not recorded"]
    assert replayed({"nearest": True}, near, ("find", {"name": "Tom", "page": 2}))[0] == [
        "Ann's",
        RESULTS[0]["content"],
    ]
    assert replayed({"nearest": True}, ("fly", {}))[0] == ["Error: not recorded"]


def test_assertions_on_the_state_decide_success() -> None:
    close = ("close", {"id": 12})
    right = replayed({"state": CLOSED}, close)[1]
    assert right["reward"] == 1 and right["success"] and right["components"]["state"] == 1
    wrong = replayed({"state": [*CLOSED, {"path": "tickets.12.owner", "equals": "Tom"}]}, close)[1]
    assert (
        wrong["reward"] == pytest.approx(2 / 3)
        and not wrong["success"]
        and "67%" in wrong["details"][0]
    )


# Responses

TEXT = st.text(max_size=20)
NAMES = st.text("abc_.", min_size=1, max_size=8)
ASSISTANT = st.builds(
    lambda text, calls: (
        {"role": "assistant", "content": text or (None if calls else "")}
        | (
            {
                "tool_calls": [
                    {"id": i, "type": "function", "function": {"name": n, "arguments": a}}
                    for i, n, a in calls
                ]
            }
            if calls
            else {}
        )
    ),
    TEXT,
    st.lists(st.tuples(NAMES, NAMES, st.dictionaries(TEXT, TEXT).map(json.dumps)), max_size=3),
)
OTHERS = st.builds(
    lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "system"]), TEXT
) | st.builds(
    lambda name, text: {"role": "tool", "tool_call_id": name, "content": text}, NAMES, TEXT
)


@pytest.mark.proof
@settings(max_examples=200)
@given(st.lists(st.tuples(OTHERS, ASSISTANT), max_size=4))
def test_messages_come_back_from_items_as_they_were(pairs: list[tuple[dict, dict]]) -> None:
    messages = [message for pair in pairs for message in pair]
    for items in (to_items(messages), response_of(messages, name="x", tools=[])["output"]):
        assert from_items(json.loads(json.dumps(items))) == messages


@pytest.mark.parametrize("items", [None, 3, [3], {"type": "message"}])
def test_what_are_no_items_is_refused(items: object) -> None:
    with pytest.raises(ValueError, match="list of objects"):
        from_items(items)


@pytest.mark.proof
@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["type", "role", "content", "name", "arguments", "call_id", "output"]),
            VALUES
            | st.sampled_from(["message", "function_call", "function_call_output", "reasoning"]),
        )
    )
)
def test_hostile_items_never_raise(items: list[dict]) -> None:
    for message in from_items(items):
        assert isinstance(message["role"], str)


def test_a_row_keeps_what_came_with_it() -> None:
    before = {
        "id": 7,
        "category": "c",
        "responses_create_params": {"temperature": 1.0, "instructions": "Be brief."},
    }
    tool = {"type": "function", "function": {"name": "close", "parameters": {"type": "object"}}}
    row = row_of(TASK | {"metadata": {"nemo_gym": before}}, [tool])
    assert (
        row["id"] == 7
        and row["category"] == "c"
        and row["responses_create_params"]["temperature"] == 1.0
    )
    assert row["responses_create_params"]["input"] == [{"role": "user", "content": "Close 12."}]
    assert "instructions" not in row["responses_create_params"]  # they are in the messages
    assert row["responses_create_params"]["tools"][0]["name"] == "close"
    assert row["ground_truth"] == [{"name": "close", "arguments": '{"id": 12}'}]
    assert row_of(TASK | {"expected": {"answer": "4"}}, [])["expected_answer"] == "4"
