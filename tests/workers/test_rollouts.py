"""Many episodes at a time: limits, isolation, crashes, and both ways to reach a model."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from msgspec import structs

from tests.workers.conftest import Recorder, typed
from tests.workers.episodes import gather
from tests.workers.test_workplace_assistant import assistant
from workers import evaluate
from workers.lib.chat_policy import ChatPolicy
from workers.lib.engines import Output, Prompt, Sampling
from workers.lib.environments import gold_calls, load
from workers.lib.environments.episodes import with_calls
from workers.lib.environments.workplace_assistant import own_tasks
from workers.lib.errors import SpecError
from workers.lib.outgoing import TooMuch
from workers.lib.policies import EnginePolicy, PolicyError, Reply
from workers.lib.posts import Answer, NoAnswer, TooLate
from workers.lib.program import StopFlag
from workers.lib.prompting import as_text
from workers.lib.rollouts import EXCEEDED, Finished, Limits, rollout, stream
from workers.lib.specs.engines import Server
from workers.lib.verifiers import Score

SPEC: dict = {
    "kind": "builtin",
    "name": "workplace_assistant",
    "harness": {"temperature": 0.0},
    "verifier": {},
}
TASK = own_tasks()[0]


def made(task: dict) -> list[dict]:
    return [
        *(assistant((call["tool"], call["args"])) for call in gold_calls(task)),
        assistant(text="Done."),
    ]


class Scripted:
    """Says what `answer(messages)` returns, or raises it."""

    shares_time = False

    def __init__(
        self, say: Callable[[list[dict]], Any], wait: float = 0.0, alive: bool = True
    ) -> None:
        self.say, self.wait, self.alive, self.open, self.most = say, wait, alive, 0, 0

    async def responds(self) -> bool:
        return self.alive

    def forget(self, key: int) -> None:
        pass

    async def answer(
        self,
        messages: list[dict],
        tools: list[dict],
        *,
        seed: int,
        key: int = 0,
        most: int | None = None,
    ) -> Reply:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await asyncio.sleep(self.wait)
            said = self.say(messages)
            if isinstance(said, BaseException):
                raise said
            return Reply(
                said,
                prompt_tokens=7,
                output_tokens=3,
                token_ids=[seed % 7, 1, 2],
                logprobs=[0.0, -1.0, -2.0],
            )
        finally:
            self.open -= 1


def by_gold(messages: list[dict]) -> dict:
    """The right next message for any of the own tasks, known by its request; odd tasks are left
    undone.
    """
    request = next(message["content"] for message in messages if message["role"] == "user")
    number, task = next(
        (n, task) for n, task in enumerate(own_tasks()) if task["messages"][1]["content"] == request
    )
    turn = sum(message["role"] == "assistant" for message in messages)
    return made(task)[turn] if number % 2 == 0 else assistant(text="No.")


def one(
    policy: Scripted, limits: Limits | None = None, task: dict = TASK, spec: dict = SPEC
) -> Finished:
    return asyncio.run(rollout(policy, load(spec).open(task), limits or Limits()))


def test_two_hundred_at_once_are_each_their_own() -> None:
    policy = Scripted(by_gold, wait=0.001)
    tasks = [dict(task) for _ in range(7) for task in own_tasks()][:200]
    found = asyncio.run(gather(policy, load(SPEC), tasks, Limits(), concurrency=200))
    assert [len(samples) for samples in found] == [1] * 200 and policy.most == 200
    for number, [done] in enumerate(found):
        right = (number % 30) % 2 == 0
        assert done.score.reward == float(right) and done.rollout.task["id"] == tasks[number]["id"]
        assert (
            done.stop_reason == "stop" and len(done.replies) == len(made(tasks[number]))
            if right
            else 1
        )


def test_no_more_run_at_once_than_allowed_and_samples_have_their_own_seeds() -> None:
    policy = Scripted(by_gold, wait=0.001)
    found = asyncio.run(
        gather(policy, load(SPEC), list(own_tasks()[:6]), Limits(), n=3, concurrency=4)
    )
    assert policy.most == 4 and [len(samples) for samples in found] == [3] * 6
    seeds = {done.replies[0].token_ids[0] for samples in found for done in samples}
    assert len(seeds) > 1


def test_every_turn_keeps_its_own_tokens() -> None:
    done = one(Scripted(by_gold))
    assert [reply.token_ids[1:] for reply in done.replies] == [[1, 2], [1, 2]]
    assert done.rollout.stats == {
        "turns": 2,
        "stop_reason": "stop",
        "input_tokens": 14,
        "output_tokens": 6,
    }


LOOK = assistant(("analytics_total_visits_count", {}))


@pytest.mark.parametrize(
    ("limits", "turns", "reason"),
    [(Limits(turns=2), 2, "turns"), (Limits(tokens=9), 3, "tokens"), (Limits(turns=0), 6, "turns")],
)
def test_what_reaches_a_limit_fails(limits: Limits, turns: int, reason: str) -> None:
    done = one(Scripted(lambda _: LOOK), limits)
    assert (len(done.replies), done.stop_reason, done.truncated) == (turns, reason, True)
    assert (
        done.score.reward == 0
        and not done.score.masked
        and done.score.details[0] == EXCEEDED[reason]
    )


def test_a_policy_that_fails_masks_with_its_reason() -> None:
    done = one(Scripted(lambda messages: PolicyError("HTTP 500") if len(messages) > 3 else LOOK))
    assert (
        done.score.masked
        and "HTTP 500" in done.score.mask_reason
        and done.stop_reason == "policy error"
    )
    assert [message["role"] for message in done.score.messages] == ["assistant", "tool"]


def test_a_tool_that_crashes_is_an_observation(monkeypatch: pytest.MonkeyPatch) -> None:
    from workers.lib.environments.workplace_assistant import handlers

    def crash(*_: object) -> None:
        raise OSError("/secret/path is gone")

    monkeypatch.setitem(handlers.HANDLERS, "analytics_total_visits_count", crash)
    done = one(Scripted(lambda messages: LOOK if len(messages) == 2 else assistant(text="Done.")))
    told = done.rollout.messages[1]["content"]
    assert "The tool failed (OSError)" in told and "secret" not in told
    assert done.score.reward == 0 and not done.score.masked and done.rollout.calls[0].error


def test_a_verifier_that_crashes_or_hangs_masks_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    from workers.lib.environments import workplace_assistant

    def crash(*_: object) -> Score:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(workplace_assistant.WorkplaceEpisode, "compared", crash)
    done = one(Scripted(by_gold))
    assert (
        done.score.masked
        and done.score.mask_reason == "The verifier failed: ZeroDivisionError: by zero"
    )

    async def hang(_: object) -> Score:
        await asyncio.sleep(30)
        raise AssertionError

    monkeypatch.setattr(workplace_assistant.WorkplaceEpisode, "score", hang)
    done = one(Scripted(by_gold), Limits(score_seconds=0.05))
    assert done.score.masked and "longer than 0.05 seconds" in done.score.mask_reason


@pytest.mark.parametrize(
    ("reward", "turns", "counts"),
    [
        (1e6, {}, True),
        (-1e6, {}, True),
        (1.1e6, {}, False),
        (-1e300, {}, False),
        (math.inf, {}, False),
        (math.nan, {}, False),
        (0.0, {"turn_1": 1e300, "turn_2": -1e300}, False),
        (0.0, {"turn_1": math.nan}, False),
        (1.0, {"turn_1": 1.0, "judge": 1e300}, True),
    ],
)
def test_a_reward_beyond_all_others_is_masked(
    monkeypatch: pytest.MonkeyPatch, reward: float, turns: dict, counts: bool
) -> None:
    from workers.lib.environments import workplace_assistant

    async def pay(_: object) -> Score:
        return Score(reward=reward, success=True, valid=True, components=turns)

    monkeypatch.setattr(workplace_assistant.WorkplaceEpisode, "score", pay)
    done = one(Scripted(by_gold))
    assert done.score.masked != counts and (
        counts or "is not within ±1,000,000" in done.score.mask_reason
    )


def test_one_that_crashes_harms_no_other() -> None:
    def say(messages: list[dict]) -> Any:
        return RuntimeError("boom") if "Callum" in messages[1]["content"] else by_gold(messages)

    found = asyncio.run(
        gather(Scripted(say), load(SPEC), list(own_tasks()), Limits(), concurrency=30)
    )
    crashed = [done for [done] in found if done.score.masked]
    assert crashed and all("RuntimeError: boom" in done.score.mask_reason for done in crashed)
    assert sum(done.score.success for [done] in found) >= 12


@pytest.mark.parametrize(
    "message",
    [
        None,
        3,
        "text",
        {},
        {"tool_calls": 3},
        {"tool_calls": [3, {}, {"function": {"name": 3, "arguments": [1]}}]},
        {
            "content": "\ud800\x00",
            "tool_calls": [
                {"id": "\ud800", "function": {"name": "\x00", "arguments": {"a": "\ud800"}}}
            ],
        },
    ],
)
def test_hostile_messages_are_the_agents_fault_and_can_be_stored(message: Any) -> None:
    done = one(Scripted(lambda _: message))
    assert done.score.reward == 0 and not done.score.masked
    stored = json.dumps(done.score.messages, ensure_ascii=False)
    assert "\x00" not in stored and stored.encode()


def test_a_reader_that_stops_leaves_nothing_running() -> None:
    policy, begun, closed = Scripted(by_gold, wait=0.01), [], []
    environment = load(SPEC)
    opened = environment.open

    def watched(task: dict, state: dict | None = None) -> Any:
        episode = opened(task, state)
        begun.append(episode)

        async def close() -> None:
            closed.append(episode)

        episode.close = close
        return episode

    environment.open = watched

    async def run() -> int:
        async with aclosing(
            stream(policy, environment, own_tasks(), Limits(), concurrency=8)
        ) as found:
            async for _ in found:
                break
        return len(asyncio.all_tasks()) - 1

    assert (
        asyncio.run(run()) == 0
        and policy.open == 0
        and len(begun) >= 8
        and sorted(map(id, closed)) == sorted(map(id, begun))
    )


@pytest.mark.parametrize("bad", [{"id": "x"}, {"id": "x", "messages": 3}, TASK | {"messages": [3]}])
def test_a_task_that_cannot_be_opened_is_masked_and_harms_no_other(bad: dict) -> None:
    [[done], [other]] = asyncio.run(gather(Scripted(by_gold), load(SPEC), [bad, TASK], Limits()))
    assert done.score.masked and done.score.mask_reason and other.score.success


# The chat policy

ENGINE = Server(base_url="http://127.0.0.1:1/v1", model="m", allow_private=True)


def chat(
    *answers: Answer | Exception, alive: bool = False, spec: dict = SPEC
) -> tuple[Finished, list[dict]]:
    seen: list[dict] = []
    left = iter(answers)

    async def post(data: bytes, reader: object = None) -> Answer:
        body = json.loads(data)
        if (
            body["messages"][0]["content"] == "Hi"
        ):  # the question that tells a hung server from a slow answer
            return completion(assistant(text="H")) if alive else Answer(503)
        seen.append(body)
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    async def run() -> Finished:
        async with ChatPolicy(ENGINE, Sampling(max_new_tokens=9)) as policy:
            policy.client.posts.post = post  # type: ignore[method-assign]
            policy.client.sleep = no_wait
            return await rollout(policy, load(spec).open(TASK), Limits())

    return asyncio.run(run()), seen


def test_tools_as_text_respect_a_template_without_system_messages() -> None:
    refuses = "{{ raise_exception('System role not supported') }}"
    engine = structs.replace(ENGINE, dialect="text", template=refuses)
    bodies: list[dict] = []

    async def post(data: bytes, reader: object = None) -> Answer:
        bodies.append(json.loads(data))
        return completion(assistant(text="Done"))

    async def run() -> None:
        async with ChatPolicy(engine, Sampling(max_new_tokens=9)) as policy:
            policy.client.posts.post = post  # type: ignore[method-assign]
            asked = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Q"}]
            await policy.answer(asked, [{"function": {"name": "a"}}], seed=0)

    asyncio.run(run())
    [message] = bodies[0]["messages"]
    assert message["role"] == "user" and all(
        part in message["content"] for part in ("Be kind.", '{"name": "a"}', "Q")
    )


async def no_wait(seconds: float) -> None:
    pass


def answer(text: str, status: int = 200) -> Answer:
    return Answer(status, text.encode())


def completion(message: Any, finish: str = "stop") -> Answer:
    usage = {"prompt_tokens": 5, "completion_tokens": 2}
    return answer(
        json.dumps({"choices": [{"message": message, "finish_reason": finish}], "usage": usage})
    )


def test_the_chat_policy_sends_tools_and_results() -> None:
    done, seen = chat(*map(completion, made(TASK)))
    assert done.score.reward == 1 and len(seen) == 2 and done.rollout.stats["input_tokens"] == 10
    assert len(seen[0]["tools"]) == 27 and seen[0]["max_tokens"] == 9 and seen[0]["model"] == "m"
    assert [message["role"] for message in seen[1]["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]


def test_a_busy_server_is_tried_again() -> None:
    busy = Answer(429, headers={"retry-after": "0"})
    done, seen = chat(
        busy, NoAnswer("no"), Answer(503), completion(assistant(text="No."), "length")
    )
    assert len(seen) == 4 and done.score.reward == 0 and done.truncated


@pytest.mark.parametrize(
    ("answers", "reason", "tries"),
    [
        ([Answer(500)] * 6, "no answer in 6 tries (HTTP 500)", 6),
        ([answer("too long", 413)], "refused the request (HTTP 413): too long", 1),
        ([TooLate("slow")], "no answer within 120 s", 1),
        ([answer('{"choices": []}')], "not a chat completion", 1),
        ([answer("<html>", 200)], "not a chat completion", 1),
    ],
)
def test_a_server_that_gives_no_answer_masks(answers: list, reason: str, tries: int) -> None:
    done, seen = chat(*answers)
    assert done.score.masked and reason in done.score.mask_reason and len(seen) == tries


BROKEN = {"tool_calls": [{"id": "c", "function": {"name": "x", "arguments": "{"}}]}


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([TooLate("slow")], "time"),
        ([TooMuch("more than 2 MiB", "size")], "size"),
        ([TooMuch("no end within 120 s", "time")], "time"),
        (
            [completion(made(TASK)[0]), answer("This model's maximum context length is 9", 400)],
            "context",
        ),
        (
            [
                completion(made(TASK)[0]),
                answer("The prompt (9 tokens) exceeds max_model_len (8).", 400),
            ],
            "context",
        ),
        (
            [
                completion(made(TASK)[0]),
                answer("The decoder prompt is longer than the maximum model length of 8.", 400),
            ],
            "context",
        ),
        ([completion(made(TASK)[0]), answer("bad grammar", 400)], "refused"),
    ],
)
def test_an_answer_or_a_conversation_beyond_what_its_server_takes_fails(
    answers: list, reason: str
) -> None:
    done, _ = chat(*answers, alive=True)
    assert not done.score.masked and (done.score.reward, done.stop_reason) == (0, reason)


@pytest.mark.parametrize("said", ["This model's maximum context length is 9", "bad grammar"])
def test_a_request_that_is_refused_is_no_fault_of_the_agent_whatever_examples_stand_before_it(
    said: str,
) -> None:
    examples = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hello."}]
    done, seen = chat(
        answer(said, 400), spec=SPEC | {"harness": {"temperature": 0.0, "examples": examples}}
    )
    assert (
        done.score.masked and said in done.score.mask_reason and done.stop_reason == "policy error"
    )
    assert [message["role"] for message in seen[0]["messages"]].count("assistant") == 1


def test_a_call_with_broken_arguments_is_sent_back_in_a_form_that_servers_take() -> None:
    done, seen = chat(completion(BROKEN), completion(assistant(text="Hm.")))
    assert seen[1]["messages"][2]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert (
        done.rollout.messages[0]["tool_calls"][0]["function"]["arguments"] == "{"
        and not done.score.masked
    )


def test_a_server_that_refuses_the_key_ends_the_job() -> None:
    with pytest.raises(PolicyError, match="wants a key"):
        chat(answer("bad key", 401))


def test_an_engine_without_an_address_is_refused() -> None:
    with pytest.raises(SpecError):
        ChatPolicy(Server(base_url="x", model="m"), Sampling())


# The lock-step policy


class Engine:
    """Answers by `by_gold` in the product's JSON form; remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[Prompt]] = []
        self.broken = False
        self.odd = ""  # a text that its template cannot write

    def prompt_ids(self, messages: list[dict], *_: object) -> list[int]:
        if self.odd and self.odd in str(messages):
            raise ValueError("Conversation roles must alternate")
        return []

    def generate(
        self, prompts: list[Prompt], sampling: Sampling, show: object = None
    ) -> Iterator[tuple[int, list[Output]]]:
        if self.broken:
            raise MemoryError("too big")
        for prompt in prompts:
            self.prompt_ids(prompt.messages)
        self.batches.append(prompts)
        for index in reversed(range(len(prompts))):
            said = by_gold(prompts[index].messages)
            text = said["content"]
            if calls := said.get("tool_calls"):
                function = calls[0]["function"]
                text = json.dumps(
                    {"tool": function["name"], "args": json.loads(function["arguments"])}
                )
            output = Output(
                text, [1, 2], [-0.1, -0.2], 4, 2, 1.0, False, [len(prompts[index].messages)]
            )
            yield index, [output for _ in prompts[index].seeds]


def test_episodes_go_in_lock_step_with_their_tokens() -> None:
    engine = Engine()
    found = asyncio.run(
        gather(
            EnginePolicy(engine, Sampling()),
            load(SPEC),
            list(own_tasks()),
            Limits(),
            concurrency=30,
        )
    )
    sizes = [len(batch) for batch in engine.batches]
    assert sizes[0] == 30 and sizes == sorted(sizes, reverse=True) and len(sizes) <= 6
    assert [done.score.success for [done] in found] == [number % 2 == 0 for number in range(30)]
    reply = found[0][0].replies[1]
    assert (
        reply.token_ids == [1, 2]
        and reply.logprobs == [-0.1, -0.2]
        and reply.prompt_token_ids == [4]
    )
    assert len(engine.batches[0][0].tools) == 27


def test_samples_of_a_task_share_its_prompt_and_have_their_own_seeds() -> None:
    engine = Engine()
    asyncio.run(
        gather(
            EnginePolicy(engine, Sampling()),
            load(SPEC),
            list(own_tasks()[:3]),
            Limits(),
            n=4,
            seed=5,
        )
    )
    first, second = engine.batches[:2]
    seeds = [seed for prompt in [*first, *second] for seed in prompt.seeds]
    assert [len(prompt.seeds) for prompt in first] == [4, 4, 4] and len(set(seeds)) == len(seeds)
    again = Engine()
    policy = EnginePolicy(again, Sampling())
    asyncio.run(
        gather(policy, load(SPEC), list(own_tasks()[:3]), Limits(), n=4, seed=5, concurrency=2)
    )
    one_by_one = {seed for batch in again.batches for prompt in batch for seed in prompt.seeds}
    assert one_by_one == {
        seed for batch in engine.batches for prompt in batch for seed in prompt.seeds
    }


class Showing(Engine):
    """Shows half of each answer, and writes on when `seen` is set; its `stopped` says that it was
    closed before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.stopped = threading.Event(), False

    def generate(
        self, prompts: list[Prompt], sampling: Sampling, show: Any = None
    ) -> Iterator[tuple[int, list[Output]]]:
        for index, prompt in enumerate(prompts):
            for place in range(len(prompt.seeds)):
                show(index, place, f"half {index}/{place}")
        while not self.seen.wait(0.01):
            try:
                show(0, 0, "half 0/0")
            except PolicyError:
                self.stopped = True
                raise
        yield from super().generate(prompts, sampling)


def test_an_engine_is_watched_while_it_writes() -> None:
    """Each episode's own text, by its key; the engine goes on only when all were seen."""
    engine, shown = Showing(), dict[int, str]()

    def watch(key: int, read: Any) -> None:
        shown[key] = read().text
        if len(shown) == 6:
            engine.seen.set()

    policy = EnginePolicy(engine, Sampling(), watch)
    found = asyncio.run(gather(policy, load(SPEC), list(own_tasks()[:3]), Limits(turns=1), n=2))
    assert shown == {key: f"half {key // 2}/{key % 2}" for key in range(6)} and len(found) == 3


def test_a_watched_engine_stops_writing_when_it_is_closed() -> None:
    async def run() -> None:
        began = asyncio.Event()
        policy = EnginePolicy(engine, Sampling(), lambda key, read: began.set())
        asked = asyncio.create_task(policy.answer([{"role": "user", "content": "Hi"}], [], seed=1))
        await began.wait()
        asked.cancel()
        await policy.aclose()

    engine = Showing()
    asyncio.run(run())
    assert engine.stopped


def test_an_engine_that_fails_ends_the_job_with_a_sentence() -> None:
    engine = Engine()
    engine.broken = True
    with pytest.raises(PolicyError, match="The memory ran out") as caught:
        asyncio.run(gather(EnginePolicy(engine, Sampling()), load(SPEC), [TASK] * 3, Limits()))
    assert isinstance(caught.value.__cause__, MemoryError)


def test_a_conversation_that_cannot_be_written_is_refused_and_the_others_answered() -> None:
    engine = Engine()
    engine.odd = "odd"
    policy = EnginePolicy(engine, Sampling())
    asked = [TASK["messages"], [{"role": "user", "content": "odd"}]]

    async def ask() -> list[Any]:
        answers = (policy.answer(messages, [], seed=0, key=at) for at, messages in enumerate(asked))
        try:
            return await asyncio.gather(*answers, return_exceptions=True)
        finally:
            await policy.aclose()

    answered, refused = asyncio.run(ask())
    assert isinstance(answered, Reply) and isinstance(refused, PolicyError)
    assert (refused.final, refused.limit) == (False, "refused")
    assert "template cannot write this conversation" in str(refused)


def test_waiting_for_the_shared_engine_is_not_the_episodes_time() -> None:
    policy = Scripted(by_gold, wait=2.1)
    policy.shares_time = True
    assert one(policy, Limits(seconds=2)).score.reward == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"tool": "a", "args": {}}', "a"),
        (' {"tool": "a", "args": {}}\n', "a"),
        ('Now.\n<tool_call>\n{"name": "a", "arguments": {"n": 1}}\n</tool_call>', "a"),
        ('<tool_call>\n{"name": "a", "argu', None),
        ('{"tool": "a"}', None),
        ("Hi", None),
    ],
)
def test_a_text_is_a_call_only_in_the_exact_form(text: str, name: str | None) -> None:
    message = with_calls({"role": "assistant", "content": text}, 1)
    assert (message.get("tool_calls") or [{"function": {"name": None}}])[0]["function"][
        "name"
    ] == name


def test_a_conversation_becomes_text() -> None:
    told = as_text(
        [
            {"role": "user", "content": "Q"},
            assistant(("a", {"b": 1})),
            {"role": "tool", "content": "R"},
        ],
        [],
    )
    assert [(m["role"], m["content"]) for m in told] == [
        ("user", "Q"),
        ("assistant", '{"tool": "a", "args": {"b": 1}}'),
        ("user", "Result: R"),
    ]
    assert (
        as_text([{"role": "user", "content": "Q"}], [{"function": {"name": "a"}}])[0]["role"]
        == "system"
    )


# In an evaluation


def job(engine: dict) -> dict:
    return {
        "model": {"base": "m"},
        "engine": engine,
        "environment": SPEC,
        "samples_per_task": 2,
        "tasks": list(own_tasks()[:4]),
    }


def test_an_evaluation_of_several_turns_tells_its_samples(
    events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = EnginePolicy(Engine(), Sampling())
    monkeypatch.setattr(evaluate, "open_policy", lambda *_, **__: policy)
    evaluate.main(typed(job({"kind": "transformers"}), "evaluate"), events, StopFlag())
    samples = events.rows("sample")
    assert sorted((row["task_id"], row["index"]) for row in samples) == sorted(
        (task["id"], index) for task in own_tasks()[:4] for index in (0, 1)
    )
    row = next(row for row in samples if row["task_id"] == TASK["id"])
    assert (
        row["reward"] == 1
        and row["turns"] == 2
        and row["stop_reason"] == "stop"
        and row["output"] == "Done."
    )
    assert [m["role"] for m in row["messages"]] == ["assistant", "tool", "assistant"] and row[
        "output_tokens"
    ] == 4
    assert (
        events.rows("result")[0]["metrics"] == {"samples": 8}
        and events.rows("progress")[-1]["done"] == 8
    )


def test_an_evaluation_is_stopped_cleanly(
    events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workers.lib.program import Stop

    policy = EnginePolicy(Engine(), Sampling())
    monkeypatch.setattr(evaluate, "open_policy", lambda *_, **__: policy)
    stop = StopFlag()
    stop.is_set = True
    with pytest.raises(Stop):
        evaluate.main(typed(job({"kind": "transformers"}), "evaluate"), events, stop)
    assert len(events.rows("sample")) == 1


def test_the_module_is_light() -> None:
    import subprocess
    import sys

    program = (
        "import sys, workers.lib.rollouts; sys.exit(bool({'torch', 'transformers', 'django'} &"
        " set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_tasks_are_taken_as_they_are_needed() -> None:
    taken: list[int] = []

    def tasks() -> Iterator[dict]:
        for number in range(100):
            taken.append(number)
            yield TASK

    async def first() -> None:
        async with aclosing(
            stream(Scripted(by_gold), load(SPEC), tasks(), Limits(), concurrency=2)
        ) as episodes:
            await anext(episodes)

    asyncio.run(first())
    assert len(taken) < 5


def test_answers_that_are_paid_for_are_scored_when_the_jobs_limit_is_used_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And what comes later is not asked, though it may be cheaper: which tasks are evaluated must
    not depend on their price.
    """
    environment, asked = load(SPEC), list[int]()
    episode_type, score = type(environment.open(TASK)), type(environment.open(TASK)).score

    class Limited(Scripted):
        refused: asyncio.Event

        async def answer(
            self, messages: list[dict], tools: list[dict], *, key: int = 0, **rest: Any
        ) -> Reply:
            asked.append(key)
            if key == 1:
                self.refused.set()
                raise PolicyError("The limit is used up.", final=True, limit="spent")
            return Reply(assistant(text="Done."))

    policy = Limited(by_gold)

    async def waits(self: Any) -> Score:
        await policy.refused.wait()
        for _ in range(50):  # meanwhile everybody hears of it
            await asyncio.sleep(0)
        return await score(self)

    async def run() -> list[int]:
        policy.refused, kept = asyncio.Event(), list[int]()
        with pytest.raises(PolicyError, match="used up"):
            async with aclosing(
                stream(policy, environment, [TASK] * 6, Limits(), concurrency=2)
            ) as episodes:
                async for index, _, done in episodes:
                    assert not done.score.masked
                    kept.append(index)
        return kept

    monkeypatch.setattr(episode_type, "score", waits)
    assert asyncio.run(run()) == [0] and asked == [0, 1]
