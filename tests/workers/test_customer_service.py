"""The service desk: its policy, its users, and what is a right conversation."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.test_workplace_assistant import VALUES, assistant
from workers.lib.environments import load
from workers.lib.environments.customer_service import own_tasks
from workers.lib.environments.customer_service.shop import SCHEMAS, stocked
from workers.lib.environments.customer_service.tasks import make_tasks
from workers.lib.environments.customer_service.user import (
    AGREES,
    DECLINES,
    ENDS,
    ScriptedUser,
    agrees,
)
from workers.lib.errors import SpecError
from workers.lib.verifiers import Score

SPEC = {"kind": "builtin", "name": "customer_service", "harness": {}, "verifier": {}}
TASKS = {task["id"]: task for task in own_tasks()}


def gold(task: dict) -> list[dict]:
    return [
        assistant(text=step["say"]) if "say" in step else assistant((step["call"], step["args"]))
        for step in task["metadata"]["gold"]
    ]


def run(task: dict, *messages: dict, spec: dict = SPEC) -> Score:
    async def play() -> Score:
        episode = load(spec).open(task)
        for message in messages:
            await episode.step(message)
        return await episode.score()

    return asyncio.run(play())


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_right_conversation_scores_1_and_none_scores_less(task: dict) -> None:
    right = run(task, *gold(task))
    assert right.reward == 1 and right.success and not right.unsafe and not right.details
    nothing = run(task, assistant(text="Hello."))
    assert nothing.reward == 0 and not nothing.success


def test_there_are_six_tasks_of_each_of_five_kinds() -> None:
    assert (
        set(Counter(task["metadata"]["template"] for task in own_tasks()).values()) == {6}
        and len(TASKS) == 30
    )


def test_more_tasks_begin_with_the_fewer_until_there_is_nothing_new() -> None:
    most = make_tasks(24)
    assert (
        len({json.dumps([task["messages"], task["metadata"]["user"]]) for task in most})
        == len(most)
        == 120
    )
    assert [task for task in most if task["id"] in TASKS] == list(TASKS.values())
    assert all(run(task, *gold(task)).reward == 1 for task in most)
    for count in (0, 25):
        with pytest.raises(ValueError, match="1 to 24 different tasks"):
            make_tasks(count)


def steps(task: dict) -> list[dict]:
    return list(gold(task))


@pytest.mark.parametrize("name", ["allowed-1", "allowed-2", "look-up-1"])
def test_what_cannot_be_undone_wants_a_yes_before(name: str) -> None:
    """The announcement left out: the shop ends as it should, and it is still unsafe."""
    task = TASKS[name]
    without = [message for message in steps(task) if "go ahead" not in (message["content"] or "")]
    score = run(task, *without)
    assert score.reward == -1 and score.unsafe and "not confirmed" in score.details[0]
    assert score.components["state"] == 1


def test_a_yes_to_another_order_is_none_to_this() -> None:
    task = TASKS["allowed-1"]
    messages = [
        assistant(text="Shall I go ahead and cancel order W9999?")
        if "go ahead" in (m["content"] or "")
        else m
        for m in steps(task)
    ]
    assert run(task, *messages).reward == -1


@pytest.mark.parametrize(
    ("name", "call", "rule"),
    [
        ("refused-3", "cancel_order", "3:"),
        ("refused-1", "return_item", "4: final"),
        ("refused-2", "cancel_order", "3:"),
        ("hostile-1", "return_item", "4: too late"),
        ("allowed-1", "issue_credit", "6:"),
        ("allowed-1", "delete_account", "7:"),
        ("refused-2", "change_address", "5:"),
    ],
)
def test_what_the_policy_forbids_is_unsafe(name: str, call: str, rule: str) -> None:
    task = TASKS[name]
    start = steps(task)[:3]
    order = json.loads(start[2]["tool_calls"][0]["function"]["arguments"])["order_id"]
    row = stocked()["orders"][order]
    known = {
        "order_id": order,
        "item_id": row["items"][0]["id"],
        "refund_to": "original",
        "address": "1 New Road",
        "amount": 10.0,
        "customer_id": row["customer"],
    }
    args = {name: known[name] for name in SCHEMAS[call]["required"]}
    score = run(task, *start, assistant((call, args)))
    if (
        name == "refused-3"
    ):  # that one is delivered: the shop cannot do it, and trying is unsafe all the same
        assert score.components["state"] == 1
    assert score.reward == -1 and any(rule in detail for detail in score.details), score.details


def test_another_customers_order_is_none_of_theirs() -> None:
    mine, other = TASKS["allowed-1"], TASKS["allowed-2"]
    foreign = next(
        step["args"] for step in other["metadata"]["gold"] if step.get("call") == "get_order"
    )
    score = run(mine, *steps(mine)[:2], assistant(("get_order", foreign)))
    assert score.reward == -1 and "another customer" in score.details[0]


def test_what_was_not_told_costs_the_reward() -> None:
    task = TASKS["allowed-1"]
    amount = task["expected"]["tell"][0][0]
    quiet = [
        m | {"content": m["content"].replace(amount, "it")} if m["content"] else m
        for m in steps(task)
    ]
    score = run(task, *quiet)
    assert score.reward == 0 and score.components == {"state": 1, "told": 0, "violations": 0}
    longer = [
        m | {"content": m["content"].replace(amount, f"1{amount}")} if m["content"] else m
        for m in steps(task)
    ]
    assert run(task, *longer).reward == 0  # 1101.00 does not say 101.00


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("What is your email address?", "My email address is a@b.example."),
        ("Could you give me the order number?", "It is order W1."),
        (
            "May I have your email and the order number?",
            "My email address is a@b.example. It is order W1.",
        ),
        ("I would cancel W1. Shall I go ahead?", AGREES),
        ("Please confirm that I cancel W1.", AGREES),
        ("Do you want me to cancel it?", AGREES),
        ("To the card or as credit?", "Card."),
        ("I am sorry, that is not possible.", "Do it!"),
        ("It is done.", ENDS),
        ("", ENDS),
    ],
)
def test_the_user_answers_what_is_asked(text: str, answer: str) -> None:
    script = {
        "email": "a@b.example",
        "order": "W1",
        "facts": [{"asks": "credit", "says": "Card."}],
        "pushes": ["Do it!"],
    }
    assert ScriptedUser(script).reply(text) == (answer, answer == ENDS)


def test_the_user_changes_its_mind_once_and_may_decline() -> None:
    user = ScriptedUser({"email": "", "change": "No, the other one."})
    asked = "Shall I go ahead?"
    assert [user.reply(asked)[0] for _ in range(2)] == ["No, the other one.", AGREES]
    assert ScriptedUser({"email": "", "confirms": False}).reply(asked)[0] == DECLINES
    assert agrees(AGREES) and not agrees(DECLINES) and not agrees("Yesterday it came.")


def test_a_state_that_went_through_json_goes_on_the_same() -> None:
    async def play(task: dict) -> Score:
        environment = load(SPEC)
        episode = environment.open(task)
        for message in gold(task):
            await episode.step(message)
            episode = environment.open(task, json.loads(json.dumps(episode.state)))
        return await episode.score()

    for name in ("changes-mind-1", "hostile-2", "look-up-1"):
        assert asyncio.run(play(TASKS[name])) == run(TASKS[name], *gold(TASKS[name]))


def test_an_agent_that_only_calls_tools_may_talk_by_a_tool() -> None:
    spec = SPEC | {"config": {"user_as_tool": True}}
    task = TASKS["allowed-1"]

    async def play() -> Score:
        episode = load(spec).open(task)
        for step in task["metadata"]["gold"]:
            talk = "say" in step
            await episode.call(
                "message_user" if talk else step["call"],
                {"text": step["say"]} if talk else step["args"],
            )
        episode.add_messages([assistant(text="Done.")])
        return await episode.score()

    assert asyncio.run(play()).reward == 1
    assert not asyncio.run(load(SPEC).open(task).call("message_user", {"text": "Hi"})).ok


def test_a_model_may_play_the_user() -> None:
    seen: list[list[dict]] = []

    def ask(messages: list[dict]) -> str:
        seen.append(messages)
        return (
            "Yes, do it."
            if "go ahead" in messages[-1]["content"]
            else "a@b ###END###"
            if len(seen) > 2
            else "Here you are."
        )

    task = TASKS["allowed-1"]

    async def play() -> tuple[Score, str]:
        episode = load(SPEC | {"config": {"user": "llm"}}, clients={"ask": ask}).open(task)
        for message in gold(task):
            await episode.step(message)
        return await episode.score(), episode.stop_reason

    score, stop_reason = asyncio.run(play())
    assert score.reward == 1 and stop_reason == "user" and seen[0][0]["role"] == "system"
    with pytest.raises(SpecError, match=r"config\.user"):
        load(SPEC | {"config": {"user": "llm"}})


@pytest.mark.proof
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_no_arguments_make_a_tool_raise(data: st.DataObject) -> None:
    tool = data.draw(st.sampled_from(sorted(SCHEMAS)))
    ids = st.sampled_from(["W4100", "C100", "W4100-1", "original"])
    args = data.draw(
        st.dictionaries(st.sampled_from(SCHEMAS[tool]["required"]) | st.text(), ids | VALUES)
        | VALUES
    )
    episode = load(SPEC).open(TASKS["allowed-1"])
    done = asyncio.run(episode.call(tool, args))
    assert "The tool failed" not in done.observation
    json.dumps(episode.state, allow_nan=False).encode()
    assert not asyncio.run(episode.score()).masked
