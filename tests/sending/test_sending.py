"""docs/sending.md as users run it: its snippets above ordinary programs, real SDKs, a real server.

Every program answers four questions in one process: one goes well, one's tool raises, and for two
the provider is down, at once and after the tool. They must arrive as four trajectories.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.amounts import amount
from tests.flywheel.machine import eventually, holds_in_the_end
from tests.sending.provider import MODEL
from tests.sending.snippets import PROGRAMS, SDKS, User, sections

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]
needs_sdks = pytest.mark.skipif(not SDKS.exists(), reason="the SDKs are not installed: make sdks")
CITIES = ("Oslo", "Atlantis", "Outage", "Relapse")
LATER = "Reporting outcomes later"
TRAJECTORY_ID = sections()[LATER]["python"][0]
WEATHER = "7 °C and rain"
RAISED, DOWN = "no such city: Atlantis", "The model is overloaded."


@dataclass
class Way:
    """How an agent is written, and what of its runs differs from the others'."""

    heading: str
    program: str
    sees_tools: bool = True  # whether an error inside a tool is seen
    has_session: bool = False  # whether the program names one, with the question
    tells_question: bool = True  # whether a first call that fails sends what was asked


WAYS = {
    "openai": Way("OpenAI SDK", "openai_loop.py", sees_tools=False),
    "openai-streamed": Way("OpenAI SDK", "openai_stream.py", sees_tools=False),
    "openai-decorated": Way("OpenAI SDK", "openai_decorated.py"),
    "pydantic-ai": Way("pydantic-ai", "pydantic_ai_agent.py"),
    "openai-agents": Way("OpenAI Agents SDK", "openai_agents.py", tells_question=False),
    "langgraph": Way("LangGraph", "langgraph_agent.py", has_session=True),
    "langfuse": Way("Langfuse's SDK", "langfuse_decorated.py"),
}


def question(city: str, name: str) -> str:
    return f"What is the weather in {city}? ({name})"


def stored(api: httpx2.Client) -> dict[str, dict[str, Any]]:
    """All trajectories by id."""
    rows = api.get("", params={"limit": 500}).raise_for_status().json()["results"]
    return {row["id"]: row for row in rows}


def conversation(city: str, name: str, upto: int, tool_said: str = WEATHER) -> list[tuple]:
    """The first `upto` turns of a run, as `turns` has them."""
    whole = [
        ("system", "Be brief.", []),
        ("user", question(city, name), []),
        ("assistant", None, [("get_weather", {"city": city})]),
        ("tool", tool_said, []),
        ("assistant", f"In {city}: {tool_said}", []),
    ]
    return whole[:upto]


def turns(row: dict[str, Any]) -> list[tuple]:
    """Role, text and calls of each message; fails where a reply does not name the call before
    it.
    """
    found, called = [], []
    for message in row["messages"]:
        calls = message.get("tool_calls") or []
        if message["role"] == "tool":
            assert message["tool_call_id"] in called
        called += [call["id"] for call in calls]
        functions = [call["function"] for call in calls]
        found.append(
            (message["role"], message["content"], [(f["name"], arguments(f)) for f in functions])
        )
    return found


def arguments(function: dict[str, Any]) -> dict[str, Any]:
    found = function["arguments"]
    return found if isinstance(found, dict) else json.loads(found)


@needs_sdks
@pytest.mark.more
@pytest.mark.parametrize("name", amount(("openai", "openai-streamed", "langfuse"), tuple(WAYS)))
def test_runs_of_an_sdk_arrive_whole(name: str, user: User, api: httpx2.Client) -> None:
    way = WAYS[name]
    before = stored(api).keys()
    said = user.paste(
        way.heading,
        way.program,
        *(question(city, name) for city in CITIES),
        TRAJECTORY_ID_SNIPPET=TRAJECTORY_ID,
    )
    assert f"In Oslo: {WEATHER}" in said and RAISED in said and said.count(DOWN) >= 2, said

    holds_in_the_end(
        lambda: runs_are_whole(
            way, name, [row for row in stored(api).values() if row["id"] not in before]
        )
    )


def runs_are_whole(way: Way, name: str, rows: list[dict[str, Any]]) -> None:
    """Fails while spans are on their way: those of one run may come in several requests, and the
    last tells how it ended.
    """
    of = {
        next((city for city in CITIES if city in str(row["messages"][:2])), "Outage"): row
        for row in rows
    }
    assert len(rows) == len(of) == 4

    assert turns(of["Oslo"]) == conversation("Oslo", name, 5)
    assert of["Oslo"]["outcome"]["status"] == "unknown"
    assert (of["Oslo"]["usage"]["input_tokens"], of["Oslo"]["usage"]["output_tokens"]) == (150, 20)
    assert of["Oslo"]["model"] == MODEL
    assert not way.has_session or of["Oslo"]["session_id"] == question("Oslo", name)
    assert of["Oslo"]["agent"] == {"name": "helpdesk", "version": "3"}

    assert turns(of["Atlantis"])[:3] == conversation("Atlantis", name, 3)
    if way.sees_tools:
        assert RAISED in of["Atlantis"]["messages"][3]["content"]
        assert (
            of["Atlantis"]["outcome"]["status"] == "failure"
            and RAISED in of["Atlantis"]["outcome"]["reason"]
        )
    else:
        assert of["Atlantis"]["outcome"]["status"] == "unknown"

    for city in ("Outage", "Relapse"):
        assert of[city]["outcome"]["status"] == "failure" and DOWN in of[city]["outcome"]["reason"]
    assert turns(of["Relapse"]) == conversation("Relapse", name, 4)
    if way.tells_question:
        assert turns(of["Outage"]) == conversation("Outage", name, 2)
        assert of["Outage"]["model"] == "gpt-5-mini"
    else:
        assert turns(of["Outage"]) == [("user", None, [])]

    for row in rows if way.tells_question else (of["Oslo"],):
        (tool,) = row["tools"]
        assert (
            tool["function"]["name"] == "get_weather"
            and "city" in tool["function"]["parameters"]["properties"]
        )


@needs_sdks
def test_an_outcome_is_said_later_by_the_id_of_the_trace(user: User, api: httpx2.Client) -> None:
    before = stored(api).keys()
    said = user.paste(
        "OpenAI SDK",
        "openai_decorated.py",
        question("Oslo", "later"),
        TRAJECTORY_ID_SNIPPET=TRAJECTORY_ID,
    )
    name = said.split()[said.split().index("trajectory") + 1]
    assert eventually(lambda: stored(api).keys() - before) == {name}
    user.sh(sections()[LATER]["sh"][0], TRAJECTORY_ID=name)
    row = api.get(f"{name}/").json()
    assert row["outcome"] == {"status": "success", "label": "solved", "reward": 1.0, "reason": ""}
    assert [(news["by"], news["note"]) for news in row["interventions"]] == [
        ("customer", "Said thank you.")
    ]
    assert turns(row) == conversation("Oslo", "later", 5)


@needs_sdks
def test_spans_by_hand(user: User, api: httpx2.Client) -> None:
    before = stored(api).keys()
    user.paste("Spans by hand")

    def is_whole() -> None:
        rows = [row for name, row in stored(api).items() if name not in before]
        assert len(rows) == 1
        row = rows[0]
        call = ("get_weather", {"city": "Oslo"})
        assert turns(row) == [
            ("system", "Be brief.", []),
            ("user", "Is it raining in Oslo?", []),
            ("assistant", None, [call]),
            ("tool", "7 °C and rain", []),
            ("assistant", "Yes.", []),
        ]
        assert (row["usage"]["input_tokens"], row["usage"]["output_tokens"]) == (150, 15)
        assert (row["model"], row["session_id"]) == ("gpt-5-mini", "ticket-4713")
        assert row["tools"][0]["function"]["name"] == "get_weather"

    holds_in_the_end(is_whole, patience_s=60)


@needs_sdks
def test_requests(user: User, api: httpx2.Client) -> None:
    user.paste("requests")
    user.paste("requests")
    row = api.get("ticket-4711/").json()
    assert [message["role"] for message in row["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert (row["outcome"]["status"], row["outcome"]["reward"]) == ("success", 1.0)
    assert row["agent"] == {"name": "helpdesk", "version": "3"}


def test_curl_and_seeing_it_arrive(user: User, api: httpx2.Client) -> None:
    assert json.loads(user.sh(sections()["curl"]["sh"][0]))["accepted"] == 1
    row = api.get("ticket-4712/").json()
    assert (row["outcome"]["status"], row["outcome"]["reason"]) == (
        "failure",
        "refused what it may do",
    )
    assert len(json.loads(user.sh(sections()["Seeing it arrive"]["sh"][0]))["results"]) == 1


@pytest.mark.parametrize(("key", "status"), [(None, "200"), ("fw_another-key-000000", "401")])
def test_the_check_tells_whether_the_key_is_right(key: str | None, status: str, user: User) -> None:
    check = sections()["Address and key"]["sh"][1]
    assert user.sh(check, **({"FLYWHEEL_API_KEY": key} if key else {})).strip() == status


def test_every_snippet_and_program_is_tested() -> None:
    with_python = {heading for heading, blocks in sections().items() if blocks["python"]}
    assert with_python == {way.heading for way in WAYS.values()} | {
        "Spans by hand",
        "requests",
        LATER,
    }
    assert {path.name for path in PROGRAMS.glob("*.py")} == {way.program for way in WAYS.values()}
