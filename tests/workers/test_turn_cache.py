"""Keys and values kept between an episode's turns: the same answers, and only what is new is
computed.
"""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.workers.conftest import FORGETS
from tests.workers.test_engine import CLOSE, SYSTEM
from workers.lib.engines import Output, Prompt, Sampling, SoFar
from workers.lib.policies import EnginePolicy
from workers.lib.specs.engines import InProcess, Model
from workers.lib.specs.environment import Environment, Harness
from workers.lib.specs.measure_latency import Timed
from workers.ml import transformers_engine, tree
from workers.ml.models import load_base
from workers.ml.policies import open_side_by_side
from workers.ml.transformers_engine import TransformersEngine

SAMPLING = Sampling(1.0, 1.0, 7)


@dataclass
class Talk:
    """One conversation with an engine; `keeps`: with what was computed before."""

    number: int
    keeps: bool
    messages: list[dict] = field(default_factory=list)
    so_far: SoFar | None = None
    outputs: list[Output] = field(default_factory=list)

    def prompt(self) -> Prompt:
        told = (
            "Close 12."
            if not self.outputs
            else f"Result {self.number % 2} of turn {len(self.outputs)}."
        )
        self.messages = [*(self.messages or [SYSTEM]), {"role": "user", "content": told}]
        return Prompt(
            self.messages, [100 * self.number + len(self.outputs)], [], self.so_far, self.keeps
        )

    def answered(self, output: Output) -> None:
        self.so_far = SoFar(
            self.messages, [], output.prompt_token_ids + output.token_ids, output.computed
        )
        self.messages = [*self.messages, {"role": "assistant", "content": output.text}]
        self.outputs.append(output)


def turn(engine: TransformersEngine, talks: list[Talk]) -> int:
    """The next answer of each; how many tokens of prompts were computed."""
    computed, forward = [], tree.forward_part
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            tree,
            "forward_part",
            lambda d, part, above: computed.append(len(part.ids)) or forward(d, part, above),
        )
        found = dict(engine.generate([talk.prompt() for talk in talks], SAMPLING))
    for index, talk in enumerate(talks):
        talk.answered(found[index][0])
    return sum(computed)


@pytest.fixture
def engine(tiny_model: Path) -> TransformersEngine:
    return TransformersEngine(*load_base(tiny_model), batch_size=64)


def same(mine: list[Talk], theirs: list[Talk]) -> None:
    for one, other in zip(mine, theirs, strict=True):
        assert [output.token_ids for output in one.outputs] == [
            output.token_ids for output in other.outputs
        ]
        for output, plain in zip(one.outputs, other.outputs, strict=True):
            assert output.prompt_token_ids == plain.prompt_token_ids
            assert output.logprobs == pytest.approx(plain.logprobs, abs=CLOSE)


ORDERS = {  # which conversations have a turn together
    "together": [[0, 1, 2, 3]] * 4,
    "some end": [[0, 1, 2, 3], [0, 1, 2], [2], [2, 0]],
    "others come": [[0, 1], [2, 0], [1, 2, 3], [3, 0, 1]],
    "one by one": [[0], [0], [1], [0], [1]],
}


@pytest.mark.parametrize("name", [*ORDERS])
@pytest.mark.more(rows=1)
@pytest.mark.parametrize("part", [5, 256])
def test_answers_are_those_of_prompts_computed_anew(
    name: str, part: int, engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tree.PART, "cpu", part)
    mine, theirs = ([Talk(number, keeps) for number in range(4)] for keeps in (True, False))
    costs = [0, 0]
    for order in ORDERS[name]:
        for at, talks in enumerate((mine, theirs)):
            costs[at] += turn(engine, [talks[number] for number in order])
    same(mine, theirs)
    assert costs[0] < costs[1]


def test_only_what_is_new_of_a_prompt_is_computed(engine: TransformersEngine) -> None:
    talks = [Talk(number, True) for number in range(3)]
    turn(engine, talks)
    for _ in range(3):
        before = [len(talk.so_far.ids) for talk in talks]
        computed = turn(engine, talks)
        new = sum(
            len(talk.outputs[-1].prompt_token_ids) - n
            for talk, n in zip(talks, before, strict=True)
        )
        # The last sampled token went through the model now, if at all.
        assert computed <= new + len(talks)


def test_a_template_that_writes_earlier_turns_anew_is_computed_anew(
    engine: TransformersEngine,
) -> None:
    engine.tokenizer.chat_template = FORGETS
    mine, theirs = ([Talk(number, keeps) for number in range(2)] for keeps in (True, False))
    for _ in range(3):
        assert turn(engine, mine) == turn(engine, theirs)
    same(mine, theirs)


def test_memory_is_bounded_and_freed_with_the_episodes(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    talks = [Talk(number, True) for number in range(3)]
    turn(engine, talks)
    [store] = engine.stores
    monkeypatch.setitem(transformers_engine.KEPT, "cpu", store.size)
    other = Talk(9, True)
    turn(engine, [other])
    assert other.so_far.computed is None and talks[0].so_far.computed is not None
    del store
    talks.clear()
    gc.collect()
    assert not engine.stores
    monkeypatch.undo()
    turn(engine, [other])
    assert other.so_far.computed is not None


def test_nothing_is_kept_of_a_conversation_that_does_not_go_on(engine: TransformersEngine) -> None:
    talk = Talk(0, False)
    turn(engine, [talk])
    assert talk.so_far.computed is None and not engine.stores


async def let_go(policy: EnginePolicy) -> None:
    """Until the engine has left its batch, and its thread what it was given for that: a result is
    told before its work is forgotten, which is sure where the thread does the next thing."""
    await policy.running
    await asyncio.get_running_loop().run_in_executor(policy.thread, int)


def test_a_policy_keeps_it_from_turn_to_turn_until_the_episode_or_the_policy_ends(
    engine: TransformersEngine,
) -> None:
    async def ask() -> list[int]:
        policy, kept = EnginePolicy(engine, SAMPLING), []
        for key in (0, 1):
            messages = [SYSTEM, {"role": "user", "content": f"Close {key}."}]
            reply = await policy.answer(messages, [], seed=key, key=key)
            messages = [*messages, reply.message, {"role": "user", "content": "And?"}]
            await policy.answer(messages, [], seed=key, key=key)
            await let_go(policy)
            gc.collect()
            kept.append(len(engine.stores))
        policy.forget(0)
        gc.collect()
        kept.append(len(engine.stores))
        await policy.aclose()
        gc.collect()
        return [*kept, len(engine.stores)]

    assert asyncio.run(ask()) == [1, 2, 1, 0]


def test_a_policy_of_single_answers_keeps_nothing(engine: TransformersEngine) -> None:
    async def ask() -> int:
        policy = EnginePolicy(engine, SAMPLING, goes_on=False)
        await policy.answer([SYSTEM], [], seed=0)
        return len(engine.stores)

    assert asyncio.run(ask()) == 0


@pytest.mark.proof
def test_a_version_that_is_timed_keeps_the_beginning_of_its_prompts(tiny_model: Path) -> None:
    """As a server does; another version has its own."""
    version = Timed(
        id="a",
        model=Model(base=str(tiny_model)),
        engine=InProcess(),
        environment=Environment(kind="tools", harness=Harness(), verifier={}),
    )
    policies = open_side_by_side([version, version], [SAMPLING] * 2, merged=True)
    mine, theirs = (
        [policy.engine for policy in policies],
        TransformersEngine(*load_base(tiny_model)),
    )
    for engine in mine:
        costs = []
        for number in range(3):
            talks = [Talk(number, False) for _ in range(2)]
            costs.append([turn(engine, talks[:1]), turn(theirs, talks[1:])])
            same(talks[:1], talks[1:])
        assert costs[0][0] == costs[0][1] and all(kept < new / 2 for kept, new in costs[1:])
    for policy in policies:
        asyncio.run(policy.aclose())
