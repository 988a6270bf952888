"""One rollout's calls: which continue which, what is learned, and what masks it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.lib.engines import SoFar
from workers.lib.harness import open_rollout
from workers.lib.harness.open_rollout import Captured, OpenRollout, Settings
from workers.lib.harness.tools import Refused
from workers.lib.openai_requests import ApiError, ChatRequest
from workers.lib.policies import PolicyError, Reply
from workers.lib.token_rows import rows_of_replies
from workers.lib.verifiers import Execution

USER = {"role": "user", "content": "Go."}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {}}}
CALL = '<tool_call>{"name": "find", "arguments": {"id": 7}}</tool_call>'


def encoded(text: str) -> list[int]:
    return list(text.encode())


class Spelling:
    """A model whose tokens are bytes, and whose answers are given; a number in brackets in front of
    each makes them differ. `rewrites`: its template writes earlier answers in another way.
    """

    def __init__(self, *answers: str, rewrites: bool = False, model: str = "step-1") -> None:
        self.answers, self.rewrites, self.model = list(answers), rewrites, model
        self.asked: list[list[dict]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: PolicyError | None = None

    async def sample(
        self, messages: list[dict], tools: list[dict], so_far: SoFar | None, **more: Any
    ) -> tuple[Reply, SoFar]:
        self.asked.append(messages)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        place = len(self.asked)
        text = self.answers.pop(0) if self.answers else f"[{place}] {more['seed']}"
        if so_far is not None and not self.rewrites:
            new = messages[len(so_far.messages) + 1 :]
            prompt = so_far.ids + encoded("".join(f"|{one['content']}" for one in new))
        else:
            prompt = encoded("".join(f"|{one.get('content')}" for one in messages))
        ids = encoded(text)
        reply = Reply(
            {"role": "assistant", "content": text},
            text,
            len(prompt),
            len(ids),
            prompt_token_ids=prompt,
            token_ids=ids,
            logprobs=[-1.0] * len(ids),
            model=self.model,
        )
        return reply, SoFar(messages, tools, prompt + ids, asked=len(prompt))

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode()


class Shop:
    """An episode with one tool."""

    def __init__(self) -> None:
        self.tools, self.calls = [TOOL], list[Execution]()

    async def call(self, tool: str, args: Any) -> Execution:
        self.calls.append(Execution(True, False, "found", name=tool, args=args))
        return self.calls[-1]


def played(
    work: Callable[[OpenRollout], Awaitable[Any]],
    sampler: Spelling | None = None,
    *,
    said: list[dict] = [],  # noqa: B006
    has_failed: bool = False,
    **settings: Any,
) -> Captured:
    async def run() -> Captured:
        rollout = OpenRollout(
            sampler or Spelling(), Shop(), Settings("m", **settings), seed=1, key=0
        )
        await work(rollout)
        return rollout.freeze(said, has_failed=has_failed)

    return asyncio.run(run())


async def ask(rollout: OpenRollout, messages: list[dict], **more: Any) -> dict:
    asked = ChatRequest(messages=messages, **more)
    answered = await rollout.answer(asked)
    rollout.delivered(answered)
    return answered.message


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def test_a_request_continues_the_tokens_whatever_a_client_writes_about_them() -> None:
    """Ids of calls, the arguments' form, empty contents, parts of texts."""

    async def work(rollout: OpenRollout) -> None:
        first = await ask(rollout, [USER], tools=[TOOL])
        call = first["tool_calls"][0]
        function = call["function"] | {"arguments": '{ "id":7 }'}
        again = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "x", "type": "function"}],
        }
        again["tool_calls"][0]["function"] = function
        result = {"role": "tool", "tool_call_id": "x", "content": "blue"}
        parts = USER | {"content": [{"type": "text", "text": "Go."}]}
        await ask(rollout, [parts, again, result], tools=[TOOL])

    found = played(work, Spelling(CALL, "It is blue."))
    assert (found.mask, found.branches) == ("", 1)
    (row,) = rows_of_replies(found.replies)
    assert bytes(row.ids).decode() == f"|Go.{CALL}|blueIt is blue."
    assert found.conversation[-1]["content"] == "It is blue."


@pytest.mark.parametrize(
    "changed",
    [
        lambda first: [user("Go!"), first],
        lambda first: [USER, first | {"content": f"{first['content']}!"}],
        lambda first: [{"role": "system", "content": "It is noon."}, USER, first],
        lambda first: [USER, first, first],
    ],
)
def test_a_rewritten_history_begins_a_branch(changed: Callable[[dict], list[dict]]) -> None:
    async def work(rollout: OpenRollout) -> None:
        first = await ask(rollout, [USER])
        await ask(rollout, [*changed(first), user("On.")])

    assert played(work).branches == 2


def test_a_template_that_rewrites_earlier_answers_begins_a_branch() -> None:
    async def work(rollout: OpenRollout) -> None:
        first = await ask(rollout, [USER])
        await ask(rollout, [USER, first, user("On.")])

    found = played(work, Spelling("aa", "bb", rewrites=True))
    assert found.branches == 2 and not found.mask


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_every_sampled_token_is_learned_exactly_once(parents: list[int]) -> None:
    """In any tree of calls: each is asked after the answer of an earlier one, or anew."""

    async def work(rollout: OpenRollout) -> None:
        histories = [[USER]]
        for number, parent in enumerate(parents):
            history = histories[parent % len(histories)]
            asked = [*history, user(f"q{number}")]
            histories.append([*asked, await ask(rollout, asked)])

    found = played(work)
    rows = rows_of_replies(found.replies)
    learned = [
        bytes(id for id, is_learned in zip(row.ids, row.learnt, strict=True) if is_learned)
        for row in rows
    ]
    sampled = b"".join(bytes(reply.token_ids) for reply in found.replies)
    assert sorted(b"".join(learned)) == sorted(sampled)
    assert len(found.replies) == len(parents) and found.branches <= len(parents)
    for reply in found.replies:
        whole = bytes(reply.prompt_token_ids + reply.token_ids)
        assert any(bytes(row.ids).startswith(whole) for row in rows)


def test_a_repeated_request_gets_the_answer_that_is_on_its_way() -> None:
    async def work(rollout: OpenRollout) -> None:
        sampler = rollout.sampler
        sampler.gate.clear()
        first = asyncio.ensure_future(ask(rollout, [USER]))
        await asyncio.sleep(0)
        first.cancel()
        again = asyncio.ensure_future(ask(rollout, [USER], temperature=0.1))
        await asyncio.sleep(0)
        sampler.gate.set()
        await again
        assert len(sampler.asked) == 1

    found = played(work)
    assert not found.mask and len(found.replies) == 1


def test_the_same_question_later_is_another_sample() -> None:
    async def work(rollout: OpenRollout) -> None:
        one, other = await ask(rollout, [USER]), await ask(rollout, [USER])
        assert one["content"].split()[1] != other["content"].split()[1]  # another seed

    assert played(work).branches == 2


def test_a_cut_answer_masks() -> None:
    async def never_read(rollout: OpenRollout) -> None:
        await rollout.answer(ChatRequest(messages=[USER]))
        await ask(rollout, [user("Other.")])

    assert played(never_read).mask == open_rollout.CUT

    async def never_finished(rollout: OpenRollout) -> None:
        await ask(rollout, [USER])
        rollout.sampler.gate.clear()
        asyncio.ensure_future(rollout.answer(ChatRequest(messages=[user("Other.")])))  # noqa: RUF006
        await asyncio.sleep(0)

    assert played(never_finished).mask == open_rollout.OPEN_AT_END
    assert played(never_finished, has_failed=True).mask == ""


def test_a_failure_masks_unless_it_was_asked_again() -> None:
    async def fails(rollout: OpenRollout) -> None:
        await ask(rollout, [user("First.")])
        rollout.sampler.error = PolicyError("the server hung")
        with pytest.raises(ApiError):
            await ask(rollout, [USER])

    async def succeeds(rollout: OpenRollout) -> None:
        await fails(rollout)
        rollout.sampler.error = None
        await ask(rollout, [USER])

    assert played(fails).mask == open_rollout.FAILED.format("the server hung")
    assert played(succeeds).mask == ""


def test_a_context_that_is_too_long_is_the_agents_to_mend() -> None:
    async def work(rollout: OpenRollout) -> None:
        rollout.sampler.error = PolicyError("too long", limit="context")
        with pytest.raises(ApiError) as refused:
            await ask(rollout, [user("all of it")])
        assert refused.value.status == 400
        rollout.sampler.error = None
        await ask(rollout, [USER])

    assert played(work).mask == ""


def test_weights_of_two_steps_mask() -> None:
    async def work(rollout: OpenRollout) -> None:
        await ask(rollout, [USER])
        rollout.sampler.model = "step-2"
        await ask(rollout, [user("More.")])

    assert played(work).mask == open_rollout.WEIGHTS


def test_an_answer_or_a_call_that_the_model_did_not_write_masks() -> None:
    async def calls(rollout: OpenRollout, args: dict) -> None:
        await ask(rollout, [USER], tools=[TOOL])
        await rollout.call("find", args)

    own = open_rollout.OWN_CALL.format("find")
    assert (
        played(lambda rollout: calls(rollout, {"id": 7, "deep": None}), Spelling(CALL)).mask == ""
    )
    assert played(lambda rollout: calls(rollout, {"id": 8}), Spelling(CALL)).mask == own
    ours = played(lambda rollout: calls(rollout, {"id": 8}), Spelling(CALL), own_code=True)
    assert ours.mask == ""

    other = [{"role": "assistant", "content": "Something else."}]
    assert "did not write" in played(lambda rollout: ask(rollout, [USER]), said=other).mask


FOUND = {
    "type": "function",
    "function": {"name": "bulk_find", "parameters": {"properties": {"deep": {"default": 2}}}},
}


@pytest.mark.parametrize(
    ("written", "called", "why"),
    [
        (CALL, [{"id": 7}, {"id": 7}], open_rollout.REPEATED),
        (f"{CALL}{CALL}", [{"id": 7}, {"id": 7}], ""),
        (CALL, [{"id": 7, "all": True}], open_rollout.OWN_CALL),
        (CALL.replace('"id": 7', ""), [{"id": 7}], open_rollout.OWN_CALL),
        (CALL.replace("find", "mcp__env__find"), [{"id": 7}], ""),
        (CALL.replace("find", "bulk_find"), [{"id": 7}], open_rollout.OWN_CALL),
        ("I cannot find it.", [{"id": 7}], open_rollout.OWN_CALL),
        ("Action: find[7]", [{"id": 7}], ""),
        ("Action: find[7]", [{"id": 7}, {"id": 7}], open_rollout.REPEATED),
        ("find[7] and find[7]", [{"id": 7}, {"id": 7}], ""),
        ("Action: find[70]", [{"id": 7}], open_rollout.OWN_CALL),
        ("Action: refind[7]", [{"id": 7}], open_rollout.OWN_CALL),
        (CALL.replace("7", '"H7"'), [{"id": "h7"}], open_rollout.OWN_CALL),
        (CALL.replace("7", '"7"'), [{"id": 7}], ""),
    ],
)
def test_each_written_call_runs_once_as_it_was_written(
    written: str, called: list[dict], why: str
) -> None:
    async def work(rollout: OpenRollout) -> None:
        rollout.episode.tools = [TOOL, FOUND]
        reads_text = "<tool_call>" not in written  # a framework that offers the model no tools
        await ask(rollout, [USER], tools=[] if reads_text else [TOOL, FOUND])
        for args in called:
            await rollout.call("find", args)

    assert played(work, Spelling(written)).mask == why.format("find")


def test_a_call_that_failed_may_be_tried_again_and_one_with_defaults_is_the_same() -> None:
    async def work(rollout: OpenRollout) -> None:
        rollout.episode.tools = [FOUND]
        await ask(rollout, [USER], tools=[FOUND])
        call = rollout.episode.call
        rollout.episode.call = lambda tool, args: failing()
        await rollout.call("bulk_find", {"id": 7, "deep": 2})
        rollout.episode.call = call
        await rollout.call("bulk_find", {"id": 7, "deep": 2})

    async def failing() -> Execution:
        return Execution(False, False, "try again")

    assert not played(work, Spelling(CALL.replace("find", "bulk_find"))).mask


def test_a_call_made_before_the_model_wrote_it_is_not_its_own() -> None:
    async def work(rollout: OpenRollout) -> None:
        await rollout.call("find", {"id": 7})
        await ask(rollout, [USER], tools=[TOOL])

    assert played(work, Spelling(CALL)).mask == open_rollout.OWN_CALL.format("find")


def test_all_that_is_reported_was_written() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"id": 7}'}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call]}
    end = {"role": "assistant", "content": "Done."}

    async def work(rollout: OpenRollout) -> None:
        first = await ask(rollout, [USER], tools=[TOOL])
        await ask(rollout, [USER, first, user("On.")], tools=[TOOL])

    def mask(said: list[dict], *answers: str) -> str:
        return played(work, Spelling(*answers), said=said).mask

    assert mask([calls, end], CALL, "Done.") == ""
    assert mask([calls, end], "No.", "Done.") == open_rollout.OWN_CALL.format("find")
    assert mask([calls, calls, end], CALL, "Done.") == open_rollout.REPEATED.format("find")
    assert "did not write" in mask([end | {"content": "7!"}, end], "No.", "Done.")


def test_an_environment_that_fails_masks_and_a_tool_may_not_outlive_its_agent() -> None:
    async def breaks(rollout: OpenRollout) -> None:
        async def broken(tool: str, args: dict) -> Execution:
            raise OSError("no disk")

        await ask(rollout, [USER], tools=[TOOL])
        rollout.episode.call = broken
        with pytest.raises(Refused):
            await rollout.call("find", {"id": 7})

    broken = played(breaks, Spelling(CALL), has_failed=True).mask
    assert broken.startswith("The environment failed: ") and "no disk" in broken

    async def leaves(rollout: OpenRollout) -> None:
        async def slow(tool: str, args: dict) -> Execution:
            await asyncio.sleep(60)
            raise AssertionError

        await ask(rollout, [USER], tools=[TOOL])
        rollout.episode.call = slow
        asyncio.ensure_future(rollout.call("find", {"id": 7}))  # noqa: RUF006
        await asyncio.sleep(0)

    assert played(leaves, Spelling(CALL)).mask == open_rollout.TOOL_AT_END


def test_an_error_of_the_sampler_is_no_answer_and_may_be_asked_again() -> None:
    async def work(rollout: OpenRollout) -> None:
        rollout.sampler.error = ValueError("not text")
        with pytest.raises(ValueError, match="not text"):
            await ask(rollout, [USER])
        rollout.sampler.error = None
        await ask(rollout, [USER])

    assert played(work).mask == ""


def test_an_answer_that_arrives_twice_leaves_the_next_one_open() -> None:
    async def work(rollout: OpenRollout) -> None:
        asked = ChatRequest(messages=[USER])
        one = await rollout.answer(asked)
        rollout.delivered(one)
        await rollout.answer(asked)
        rollout.delivered(one)

    assert played(work).mask == open_rollout.CUT


def test_only_what_was_seen_before_a_stop_string_is_learned() -> None:
    async def work(rollout: OpenRollout) -> None:
        first = await ask(rollout, [USER], stop="Observation:")
        assert first["content"] == "Think. "
        await ask(rollout, [USER, first, user("seen")])

    found = played(work, Spelling("Think. Observation: I made this up", "Done"))
    assert found.branches == 1
    (row,) = rows_of_replies(found.replies)
    assert bytes(row.ids).decode() == "|Go.Think. Observation:|seenDone"


def test_limits_end_it() -> None:
    async def calls(rollout: OpenRollout) -> None:
        for n in range(3):
            await ask(rollout, [user(str(n))])
        with pytest.raises(ApiError):
            await ask(rollout, [user("more")])
        assert rollout.exceeded == "turns"

    assert not played(calls, calls=3, has_failed=True).mask

    async def tokens(rollout: OpenRollout) -> None:
        await ask(rollout, [USER])
        with pytest.raises(ApiError):
            await ask(rollout, [user("more")])
        assert rollout.exceeded == "tokens"

    played(tokens, Spelling("12345"), tokens=5)

    async def flood(rollout: OpenRollout) -> None:
        rollout.sampler.gate.clear()
        asked = [
            asyncio.ensure_future(ask(rollout, [user(str(n))]))
            for n in range(open_rollout.AT_ONCE + 1)
        ]
        await asyncio.sleep(0)
        rollout.sampler.gate.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [one.status for one in found if isinstance(one, ApiError)] == [429]

    played(flood)


@pytest.mark.parametrize("way", ["asks", "calls"])
def test_nothing_counts_after_its_end(way: str) -> None:
    async def run() -> None:
        rollout = OpenRollout(Spelling(), Shop(), Settings("m"), seed=1, key=0)
        await ask(rollout, [USER])
        rollout.freeze()
        with pytest.raises((ApiError, Refused)) as refused:
            await (ask(rollout, [USER]) if way == "asks" else rollout.call("find", {}))
        assert refused.value.status == 410
        assert len(rollout.tree.calls) == 1 and not rollout.episode.calls

    asyncio.run(run())


def test_several_answers_at_once_are_refused() -> None:
    async def work(rollout: OpenRollout) -> None:
        with pytest.raises(ApiError, match="n must be 1"):
            await ask(rollout, [USER], n=8)

    assert played(work).mask.startswith(open_rollout.NO_CALL)
