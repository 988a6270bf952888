"""A limit on tokens and money holds for many questions at a time, and what was begun is
finished.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from tests.registry.model_server import chat, serving
from workers.lib.chat_policy import ChatPolicy
from workers.lib.engines import Sampling
from workers.lib.environments import load
from workers.lib.policies import PolicyError
from workers.lib.prices import price_from_json
from workers.lib.rollouts import Finished, Limits, rollout
from workers.lib.specs.engines import Server
from workers.lib.spending import (
    NOTHING,
    Account,
    Meter,
    Price,
    Spent,
    Usage,
    estimate,
    is_counted,
    usage_of,
)


async def spend(meter: Meter, rng: random.Random, questions: int) -> tuple[int, int]:
    """(answered, refused), at most 16 at a time; every answer costs at most what it was booked
    with.
    """
    answered = refused = 0
    turns = asyncio.Semaphore(16)

    async def ask() -> None:
        nonlocal answered, refused
        async with turns:
            most = Usage(rng.randint(1, 50), rng.randint(1, 50))
            try:
                await meter.book(most)
            except Spent:
                refused += 1
                return
            account = meter.account
            assert account.used.tokens + account.booked.tokens <= account.most_tokens
            await asyncio.sleep(0)
            meter.settle(
                most, Usage(rng.randint(0, most.input_tokens), rng.randint(0, most.output_tokens))
            )
            answered += 1

    await asyncio.gather(*(ask() for _ in range(questions)))
    return answered, refused


@pytest.mark.parametrize("seed", range(5))
def test_a_limit_is_never_exceeded_and_nearly_used(seed: int) -> None:
    meter = Meter(Price(), most_tokens=2000)
    answered, refused = asyncio.run(spend(meter, random.Random(seed), 300))
    assert answered + refused == 300 and refused
    assert meter.account.open == 0 and meter.account.booked == NOTHING
    assert 2000 - 100 < meter.account.used.tokens <= 2000, (
        "estimates that settle lower are used for more questions"
    )


def test_an_account_holds_in_one_event_loop_after_the_other() -> None:
    """A job that plays several rounds has a loop for each, and waits in each for questions that may
    turn out cheaper.
    """
    account = Account(most_tokens=100)

    async def one(booked: int, used: int) -> None:
        await account.book(Usage(booked), 0.0)
        await asyncio.sleep(0)
        account.settle(Usage(booked), 0.0, Usage(used), 0.0)

    async def two() -> None:
        await asyncio.gather(one(60, 10), one(60, 10))

    for used in (20, 40):
        asyncio.run(two())
        assert (account.used.tokens, account.open, account.booked) == (used, 0, NOTHING)


def test_money_and_no_limit() -> None:
    async def booked(meter: Meter, times: int) -> None:
        for _ in range(times):
            await meter.book(Usage(1000, 1000))
            meter.settle(Usage(1000, 1000), Usage(1000, 1000))

    price = Price(0.5, 1.5)
    assert price.of(Usage(1000, 1000)) == 0.002
    with pytest.raises(Spent, match=r"limit of \$0.01 .* \$0.0100 is spent"):
        asyncio.run(booked(Meter(price, most_usd=0.01), 6))
    asyncio.run(booked(Meter(price), 100))


def test_questions_at_two_prices_share_one_limit() -> None:
    account = Account(most_usd=0.01)
    cheap, dear = (Meter(Price(output=usd), account=account) for usd in (1.0, 10.0))

    async def ask(meter: Meter, tokens: int) -> None:
        await meter.book(Usage(0, tokens))
        meter.settle(Usage(0, tokens), Usage(0, tokens))

    asyncio.run(ask(cheap, 5000))
    asyncio.run(ask(dear, 500))
    assert account.used_usd == 0.01 and account.booked_usd == 0
    with pytest.raises(Spent, match=r"limit of \$0.01 .* \$0.0100 is spent"):
        asyncio.run(ask(cheap, 1))


@pytest.mark.parametrize(
    "given",
    [
        None,
        "many",
        [],
        {},
        {"prompt_tokens": -1},
        {"prompt_tokens": True},
        {"prompt_tokens": 1.5},
        {"prompt_tokens": 2**40},
        {"completion_tokens": "three"},
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"completion_tokens": 1},
    ],
)
def test_a_server_that_does_not_count_is_estimated(given: Any) -> None:
    assert usage_of(given, asked=40, text="x" * 30) == Usage(40, 11)
    assert not is_counted(given, "x" * 30)
    half = {"prompt_tokens": 7, "completion_tokens": 0}
    assert usage_of(half, asked=40, text="") == Usage(7, 0) and is_counted(half, "")
    assert usage_of(half, asked=40, text="x" * 30) == Usage(7, 11)
    assert not is_counted(half, "x" * 30)
    assert estimate("é" * 30, [{"a": 1}]) > 30


def answered(usage: Any, **message: Any) -> tuple[Finished, int]:
    """An episode of one answer, and the tokens that it took off the limit."""
    status, said = chat(message)
    with serving({("POST", "/v1/chat/completions"): (status, said | {"usage": usage})}) as server:

        async def run() -> tuple[Finished, int]:
            engine = Server(base_url=server.base, model="m", allow_private=True)
            task = {
                "id": "t",
                "messages": [{"role": "user", "content": "Hi"}],
                "expected": {"answer": "ok"},
            }
            environment = load(
                {"kind": "single_turn", "harness": {}, "verifier": {"kind": "exact"}}
            )
            async with ChatPolicy(engine, Sampling(max_new_tokens=4)) as policy:
                done = await rollout(policy, environment.open(task), Limits())
                return done, policy.meter.account.used.tokens

        return asyncio.run(run())


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": 10**30, "completion_tokens": 1},
        {"prompt_tokens": 2, "completion_tokens": -4},
        {"prompt_tokens": 0, "completion_tokens": 0},
        [1],
    ],
)
def test_a_server_that_does_not_count_makes_no_answer_free(usage: Any) -> None:
    """Nor does it lose one: a number that no column holds was refused by the database with all that
    came with it.
    """
    done, _ = answered(usage, content="ok")
    assert done.score.success and (done.used["input_tokens"], done.used["output_tokens"]) == (
        None,
        None,
    )
    done, _ = answered({"prompt_tokens": 2**31 - 1, "completion_tokens": 1}, content="ok")
    assert (done.used["input_tokens"], done.used["output_tokens"]) == (2**31 - 1, 1)


def test_calls_and_reasoning_that_a_server_does_not_count_are_estimated() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "x" * 3000}}
    assert answered(None, content=None, tool_calls=[call])[1] > 1000
    assert answered(None, content="", reasoning_content="x" * 3000)[1] > 1000


def asked_until_spent(most_tokens: int, concurrency: int) -> tuple[int, int, str]:
    """(replies, questions that the server got, the sentence at the end). Each answer has 6 tokens
    by the server's count.
    """
    with serving({("POST", "/v1/chat/completions"): chat({"content": "ok"})}) as server:

        async def run() -> tuple[int, str]:
            engine = Server(
                base_url=server.base,
                model="m",
                allow_private=True,
                concurrency=concurrency,
                most_tokens=most_tokens,
            )
            async with ChatPolicy(engine, Sampling(max_new_tokens=4)) as policy:
                questions = [
                    policy.answer([{"role": "user", "content": "Hi"}], [], seed=n)
                    for n in range(40)
                ]
                done = await asyncio.gather(*questions, return_exceptions=True)
            said = [answer for answer in done if isinstance(answer, PolicyError)]
            assert all(error.final for error in said)
            return len(done) - len(said), str(said[0]) if said else ""

        replies, sentence = asyncio.run(run())
        return replies, len(server.asked), sentence


@pytest.mark.parametrize("concurrency", [1, 8])
def test_an_evaluation_stops_before_its_limit_and_keeps_what_it_has(concurrency: int) -> None:
    replies, asked, sentence = asked_until_spent(100, concurrency)
    assert 12 <= replies == asked <= 16, "6 tokens each by the server's count, below 100"
    assert "limit of 100 tokens allows no further question" in sentence and "are kept" in sentence
    assert asked_until_spent(0, concurrency)[:2] == (40, 40)
    assert asked_until_spent(5, concurrency)[:2] == (
        0,
        0,
    ), "a question that could exceed it alone is never asked"


@pytest.mark.parametrize(
    "price", [{"input": -1}, {"output": -1}, {"tiers": [{"above": 9, "rates": {"input": -1}}]}]
)
def test_a_price_below_nothing_is_refused(price: dict) -> None:
    with pytest.raises(msgspec.ValidationError, match=r">= 0.0"):
        price_from_json(price)
