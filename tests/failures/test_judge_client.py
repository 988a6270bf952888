"""The judge's client against a real HTTP server on this machine."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import jsonschema
import pytest

from apps.failures.judge.asking import ask
from apps.failures.judge.client import (
    DROPPABLE,
    Completion,
    Server,
    ServerError,
    complete,
    estimate,
)
from apps.failures.judge.prompt import Mode, make
from tests.failures.judge_server import RESPONSE, JudgeServer, Reply, form_of, running, says
from workers.lib.chat_client import refused_name, wait_s
from workers.lib.prices import Price
from workers.lib.spending import NOTHING, Usage

CHAT = [{"role": "system", "content": "Judge."}, {"role": "user", "content": "A run."}]
MODES = [Mode("bad_planning", "Bad planning")]
KEY = "sk-very-secret-0815"


@pytest.fixture
def judge() -> Iterator[JudgeServer]:
    with running() as server:
        yield server


def at(judge: JudgeServer, **changes: Any) -> Server:
    return Server(judge.url, "m-1", **{"allow_private": True, "timeout_s": 5.0} | changes)


class Clock:
    """A sleep that does not."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)


def failed(server: Server, sleep: Any = None) -> ServerError:
    with pytest.raises(ServerError) as caught:
        complete(server, CHAT, sleep or Clock())
    return caught.value


def test_the_fake_server_answers_in_the_form_of_the_real_one() -> None:
    for usage in (None, Reply().usage):
        jsonschema.validate(form_of(Reply("hi", usage=usage), {"model": "m"}), RESPONSE)


def test_a_question_is_asked_once_with_json_and_no_temperature(judge: JudgeServer) -> None:
    judge.script = [Reply("yes")]
    assert complete(at(judge), CHAT) == Completion("yes", Usage(1000, 100))
    assert judge.seen == [
        {
            "model": "m-1",
            "messages": CHAT,
            "temperature": 0,
            "max_tokens": 800,
            "response_format": {"type": "json_object"},
        }
    ]
    assert judge.keys == [None]


@pytest.mark.parametrize(
    ("refuses", "asked"),
    [
        (("response_format",), {"temperature", "max_tokens"}),
        (("max_tokens",), {"temperature", "max_completion_tokens", "response_format"}),
        (("temperature",), {"max_tokens", "response_format"}),
        (("max_tokens", "temperature", "response_format"), {"max_completion_tokens"}),
    ],
)
def test_what_a_server_does_not_know_is_left_out(
    judge: JudgeServer, refuses: tuple[str, ...], asked: set
) -> None:
    judge.refuses, judge.script = refuses, [Reply("yes")]
    clock = Clock()
    assert complete(at(judge), CHAT, clock).text == "yes"
    assert set(judge.seen[-1]) - {"model", "messages"} == asked
    assert len(judge.seen) == 1 + len(refuses) and clock.waits == []


def test_a_request_that_stays_refused_is_said(judge: JudgeServer) -> None:
    judge.script = [Reply("context is too long", 400)] * 5
    assert "HTTP 400" in str(error := failed(at(judge))) and "context is too long" in str(error)
    assert len(judge.seen) == 2 and not error.final  # once more without response_format
    assert refused_name({"model": "m"}, b"anything", DROPPABLE) == {}


@pytest.mark.parametrize(
    ("replies", "waits"),
    [
        ([Reply("slow down", 429)], [0.5]),
        ([Reply("slow down", 429, {"Retry-After": "7"})], [7.0]),
        ([Reply("oh", 500), Reply("oh", 503), Reply("oh", 502)], [0.5, 1.0, 2.0]),
    ],
)
def test_a_busy_or_broken_server_is_asked_again(
    judge: JudgeServer, replies: list[Reply], waits: list[float]
) -> None:
    clock = Clock()
    judge.script = [*replies, Reply("yes")]
    assert complete(at(judge), CHAT, clock).text == "yes" and clock.waits == waits


def test_a_server_that_stays_broken_is_given_up(judge: JudgeServer) -> None:
    judge.script = [Reply("oh", 500)] * 9
    assert "gave no answer in 4 tries (HTTP 500)" in str(failed(at(judge))) and len(judge.seen) == 4


def test_a_long_rest_is_not_waited_for(judge: JudgeServer) -> None:
    judge.script = [Reply("slow down", 429, {"Retry-After": "3600"})]
    clock = Clock()
    assert "it wants 3600 s of rest" in str(failed(at(judge), clock)) and clock.waits == []


def test_retry_after_may_be_a_date() -> None:
    assert (
        50
        < wait_s(1, format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True))
        <= 60
    )
    assert wait_s(1, format_datetime(datetime.now(UTC) - timedelta(days=1), usegmt=True)) == 0
    assert wait_s(3, "soon") == 2.0


def test_a_timeout_is_said_and_its_question_counted(judge: JudgeServer) -> None:
    judge.script = [Reply("late", delay_s=5.0)]
    error = failed(at(judge, timeout_s=0.1))
    assert "no answer within 0.1 s" in str(error) and error.usage == Usage(estimate(CHAT), 0)
    assert len(judge.seen) == 1


def test_an_endless_answer_is_cut_off(judge: JudgeServer) -> None:
    judge.script = [Reply(raw=b"x" * (2 * 1024 * 1024 + 1))]
    assert "more than 2 MiB" in str(failed(at(judge)))


@pytest.mark.parametrize(
    "raw",
    [
        b"<html>",
        b"[]",
        b'{"choices": []}',
        b'{"choices": [{"message": null}]}',
        b"\xff",
        b'{"choices":' * 9999,
        b'{"choices": [{"message": {"content": ["a"]}}]}',
    ],
)
def test_an_answer_of_another_shape_is_said(judge: JudgeServer, raw: bytes) -> None:
    judge.script = [Reply(raw=raw)]
    assert "not a chat completion" in str(failed(at(judge)))


@pytest.mark.parametrize(
    ("status", "says_", "final"),
    [
        (401, "wants a key", True),
        (404, "no model “m-1”", True),
        (302, "redirects", True),
        (413, "HTTP 413", False),
    ],
)
def test_a_refusal_is_not_tried_again(
    judge: JudgeServer, status: int, says_: str, final: bool
) -> None:
    judge.script = [
        Reply("no", status, {"Location": "http://169.254.169.254/"} if status == 302 else {})
    ]
    error = failed(at(judge))
    assert says_ in str(error) and error.final is final and len(judge.seen) == 1


def test_no_server_at_all_is_said() -> None:
    error = failed(Server("http://127.0.0.1:9/v1", "m", allow_private=True))
    assert "127.0.0.1:9 gave no answer in 4 tries" in str(error) and error.usage == NOTHING


def test_tokens_that_a_server_does_not_count_are_estimated(judge: JudgeServer) -> None:
    judge.script = [
        Reply("four words are here", usage=None),
        Reply("x", usage={"prompt_tokens": -1}),
    ]
    assert complete(at(judge), CHAT).usage == Usage(estimate(CHAT), 7)
    assert complete(at(judge), CHAT).usage.input_tokens == estimate(CHAT)


def test_prices() -> None:
    server = Server("http://x/v1", "m", price=Price(3, 15, 0.3))
    assert server.cost(Usage(1_000_000, 100_000)) == pytest.approx(4.5)
    assert server.cost(Usage(1_000_000, 0, cache_read_tokens=1_000_000)) == pytest.approx(0.3)
    assert server.max_cost(CHAT) > 2 * server.cost(Usage(estimate(CHAT), 800))
    dear = replace(server, price=Price(3, 15, 0.3, 3.75))  # to write to a cache
    assert dear.max_cost(CHAT) > server.max_cost(CHAT)


# The key


def test_the_key_goes_to_the_server_and_nowhere_else(
    judge: JudgeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    server = at(judge, key_variable="SOME_KEY", key_hosts={"SOME_KEY": ""})
    judge.script = [
        Reply(f"I was given {KEY}."),
        Reply(f"what is {KEY}?", 413),
        *[Reply(f"bad {KEY}", 400)] * 2,
        Reply(raw=KEY.encode()),
    ]
    with caplog.at_level(logging.DEBUG):
        said = [complete(server, CHAT).text, *(str(failed(server)) for _ in range(3))]
    assert judge.keys[0] == f"Bearer {KEY}"
    assert said[0] == "I was given [key]." and KEY not in "".join(said) + caplog.text
    assert KEY not in repr(server)


@pytest.mark.parametrize("value", ["", "two words", "line\nbreak", "ключ", "tab\tbed"])
def test_a_key_that_is_none_is_not_sent_nor_said(
    judge: JudgeServer, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("SOME_KEY", value)
    error = failed(at(judge, key_variable="SOME_KEY", key_hosts={"SOME_KEY": ""}))
    assert (
        "SOME_KEY" in str(error)
        and error.final
        and (not value or value not in str(error))
        and not judge.seen
    )


def test_other_variables_are_not_read(judge: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", KEY)
    assert "may not be read" in str(
        failed(at(judge, key_variable="SECRET_KEY", key_hosts={"SOME_KEY": ""}))
    )
    elsewhere = at(judge, key_variable="SECRET_KEY", key_hosts={"SECRET_KEY": "api.openai.com"})
    assert "may go to api.openai.com only" in str(failed(elsewhere)) and not judge.seen


# Addresses


def test_a_name_that_leads_inside_is_refused_when_it_is_called(
    judge: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS decides at the last moment; the address that was checked is the one that is connected
    to.
    """
    port, asked = judge.server_port, []

    def looked_up(host: str, *args: Any, **more: Any) -> list:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    url = f"http://judge.example.com:{port}/v1"
    refused = failed(Server(url, "m", allow_private=False))
    assert "judge.example.com is at 127.0.0.1" in str(refused) and refused.final and not judge.seen
    assert (
        complete(Server(url, "m", allow_private=True), CHAT).text and "judge.example.com" in asked
    )


# One run before the judge


def prompt() -> Any:
    said = [
        {"role": "user", "content": "Close ticket 7."},
        {"role": "assistant", "content": "I closed ticket 9."},
    ]
    return make("", MODES, {"messages": said, "outcome_status": "failure"})


def test_an_answer_without_json_is_asked_for_again_with_what_was_wrong(judge: JudgeServer) -> None:
    good = says(mode="bad_planning", message_index=1, quote="ticket 9", reason="x")
    judge.script = [Reply("It failed, I think."), Reply(f"Sure:\n```json\n{good}\n```")]
    judged = ask(at(judge), asked := prompt())
    assert (
        judged.answer and judged.answer.mode == "bad_planning" and judged.usage == Usage(2000, 200)
    )
    assert judged.raw[0] == "It failed, I think." and judged.error == ""
    assert judge.seen[1]["messages"][:2] == asked.chat
    assert "There is no JSON object in it." in judge.seen[1]["messages"][3]["content"]


def test_a_second_bad_answer_is_an_error_with_its_cost(judge: JudgeServer) -> None:
    judge.script = [
        Reply("no"),
        Reply(says(mode="laziness"), finish_reason="length"),
        Reply("never asked"),
    ]
    judged = ask(at(judge), prompt())
    assert (
        judged.answer is None
        and "cut off" in judged.error
        and "“mode” is 'laziness'" in judged.error
    )
    assert len(judge.seen) == 2 and judged.usage == Usage(2000, 200)


def test_a_server_that_breaks_at_the_second_try_costs_the_first(judge: JudgeServer) -> None:
    judge.script = [Reply("no"), *[Reply("oh", 500)] * 4]
    judged = ask(at(judge), prompt(), Clock())
    assert (
        judged.answer is None
        and "gave no answer" in judged.error
        and judged.usage == Usage(1000, 100)
    )
