"""Tokens of a model's variants: counted at the wire, never more than the limit, estimated before
the start.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from workers import write_variants
from workers.lib.errors import JobError
from workers.lib.specs.engines import ModelServer
from workers.lib.specs.write_variants import Seed, WriteVariants
from workers.lib.variants.requests import FRAME, MAX_TOKENS, Wish, expected, fitting
from workers.lib.variants.usage import (
    BYTES_PER_TOKEN,
    LimitReached,
    Meter,
    cost_of,
    install,
    tokens_of,
)
from workers.lib.variants.usage import Answer as Said
from workers.write_variants import design

SEED = {
    "key": "s1",
    "messages": [{"role": "user", "content": "Close 4711."}],
    "calls": [{"name": "close", "arguments": {"id": 4711}}],
    "tools": [],
}
BODY = b"x" * 30
SPEC = WriteVariants(
    server=ModelServer(base_url="http://127.0.0.1:1/v1", model="m"),
    seeds=[Seed(**SEED)],
    kinds=["paraphrase", "arguments"],
    each=3,
    most_tokens=1,
)


def meter(most: int, answer: int = 100) -> tuple[Meter, list[dict[str, int]]]:
    told: list[dict[str, int]] = []
    return Meter(most, answer, told.append), told


def usage(given: Any, made: Any) -> bytes:
    return json.dumps({"usage": {"prompt_tokens": given, "completion_tokens": made}}).encode()


@pytest.mark.parametrize(
    ("said", "cost"),
    [
        (Said(200, usage(7, 5)), (7, 5, False)),
        (Said(200, usage(0, 0)), (tokens_of(30), tokens_of(len(usage(0, 0))), True)),
        (Said(200, b"{}"), (tokens_of(30), 1, True)),
        (Said(200, usage(-1, 5)), (tokens_of(30), tokens_of(len(usage(-1, 5))), True)),
        (Said(200, usage(True, 5)), (tokens_of(30), tokens_of(len(usage(True, 5))), True)),
        (Said(200, usage(2**40, 5)), (tokens_of(30), tokens_of(len(usage(2**40, 5))), True)),
        (Said(200, b"[" * 100_000), (tokens_of(30), tokens_of(100_000), True)),
        (Said(429, usage(7, 5)), (0, 0, False)),
        (Said(503, b""), (0, 0, False)),
    ],
)
def test_the_server_counts_and_where_it_does_not_it_is_estimated(said: Said, cost: tuple) -> None:
    assert cost_of(BODY, said) == cost


def test_a_request_begins_only_if_its_longest_answer_fits_beside_those_under_way() -> None:
    one, told = meter(2 * (tokens_of(30) + 100))
    with one.call(BODY), one.call(BODY):
        assert one.left == 0
        with pytest.raises(LimitReached), one.call(BODY):
            raise AssertionError("a third one began")
    assert told[-1]["calls"] == 2
    again, _ = meter(tokens_of(30) + 100)
    with again.call(BODY) as said:
        said.status, said.content = 200, usage(7, 5)
    assert again.used == {"calls": 1, "input_tokens": 7, "output_tokens": 5, "estimated": 0}


def test_what_never_arrived_costs_nothing_and_what_timed_out_may_have_cost_all() -> None:
    one, told = meter(10_000)
    for error in (httpx.ConnectError("away"), httpx.ReadTimeout("slow")):
        with pytest.raises(type(error)), one.call(BODY):
            raise error
    assert [(use["output_tokens"], use["estimated"]) for use in told] == [(0, 0), (100, 1)]


@pytest.fixture
def transports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """httpx's own transport answers here; what `install` puts in its place goes with the test."""
    sent: list[bytes] = []

    def handle_request(self: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        sent.append(request.read())
        return httpx.Response(200, stream=httpx.ByteStream(usage(7, 5)))

    async def handle_async_request(
        self: httpx.AsyncHTTPTransport, request: httpx.Request
    ) -> httpx.Response:
        sent.append(await request.aread())
        return httpx.Response(200, stream=httpx.ByteStream(usage(7, 5)))

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle_request)
    monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle_async_request)
    return sent


def test_every_request_of_the_process_is_counted_and_the_one_too_many_is_never_sent(
    transports: list[bytes],
) -> None:
    one, _ = meter(250)
    install(one)
    with httpx.Client() as client:
        assert (
            client.post("http://m.example/v1", json={"a": 1}).json()["usage"]["prompt_tokens"] == 7
        )

    async def many() -> None:
        async with httpx.AsyncClient() as client:
            for _ in range(10):
                assert (await client.post("http://m.example/v1", json={"a": 1})).status_code == 200
            with pytest.raises(LimitReached):
                await client.post("http://m.example/v1", json={"a": "x" * 100})

    asyncio.run(many())
    assert len(transports) == 11 and one.used["calls"] == 11 and one.used["input_tokens"] == 77


# Before the start, and on the way


def test_what_is_expected_is_rather_too_much() -> None:
    cost = expected(SPEC)
    prompts = [wish.prompt for wish in write_variants.wishes(SPEC)]
    assert cost.questions == 6 and cost.input_tokens > sum(map(len, prompts)) / BYTES_PER_TOKEN
    assert cost.max_request_tokens > MAX_TOKENS and cost.most_tokens >= 2 * cost.tokens
    assert cost.most_tokens >= write_variants.PARALLEL * cost.max_request_tokens


def wish(size: int) -> Wish:
    return Wish("s", "edge", "x" * size)


def test_so_many_are_asked_side_by_side_as_fit_whatever_they_answer() -> None:
    one = tokens_of(3_000 + FRAME + 2) + MAX_TOKENS
    for most, count in ((one - 1, 0), (one, 1), (3 * one, 3), (99 * one, 5)):
        assert fitting([wish(3_000)] * 5, meter(most, MAX_TOKENS)[0]) == count
    assert fitting([wish(3_000), wish(30_000), wish(3_000)], meter(2 * one, MAX_TOKENS)[0]) == 1


def test_at_the_limit_it_ends_with_what_it_has() -> None:
    room = iter([16, 3, 0])
    rows: list[dict] = []
    done = design(
        [wish(1)] * 40,
        lambda chunk: [{}] * len(chunk),
        rows.extend,
        lambda done, total: None,
        lambda _: next(room),
        "That is the limit.",
    )
    assert (
        done == {"asked": 19, "made": 19, "failed": 0, "stopped": "That is the limit."}
        and len(rows) == 19
    )
    with pytest.raises(JobError, match="That is the limit"):
        design(
            [wish(1)],
            lambda chunk: [],
            rows.extend,
            lambda done, total: None,
            lambda _: 0,
            "That is the limit.",
        )
