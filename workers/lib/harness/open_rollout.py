"""One rollout while its agent runs: it answers the agent's requests with the model in training,
runs the environment's tools, and records every call before its answer leaves. Light: no torch.

A rollout whose tokens cannot be trusted is masked with a reason, never trained on in part: a call
that was cut or failed, an answer that the agent did not get from here, weights of two steps.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

from workers.lib.answer_text import message_of
from workers.lib.engines import SoFar
from workers.lib.environments import Episode
from workers.lib.errors import sentence
from workers.lib.harness.lineage import Call, History, Tree, joined, meaning_of
from workers.lib.harness.tools import MOST_CALLS, TOO_MANY, Called, Refused, names_of
from workers.lib.messages import ToolCall, calls_of, native_calls, same_json, same_value, text_of
from workers.lib.openai_requests import ApiError, ChatRequest
from workers.lib.policies import PolicyError, Reply, Sampler, seed_of
from workers.lib.transcripts import agent_turns, reported_results, same_result
from workers.lib.verifiers import Execution

AT_ONCE = 32  # requests of one rollout that are answered at the same time
ENDED = "This rollout has ended."
NO_CALL = "The agent did not call the model at its rollout's address."
REFUSED = "Its last request was refused: {}"
CUT = "The agent closed the connection before its answer was complete."
OPEN_AT_END = "The agent ended while the model was still answering it."
FAILED = "The model gave no answer: {}"
WEIGHTS = "Its calls were answered by the weights of several steps."
NOT_SAMPLED = (
    "The agent answered with text that the model here did not write, so it used another model, or"
    " changed the answer: “{}”."
)
OWN_CALL = (
    "The agent called the tool {} with arguments that the model here did not write, so it used"
    " another model, or calls tools by itself."
)
REPEATED = (
    "The agent called the tool {} more often than the model here wrote that call: code repeated it."
)
TOOL_AT_END = "The agent ended while a tool of its environment was still running."
TOOL_FAILED = "The environment failed: {}"
TOOL_SLOW = "The tool took longer than {:g} seconds."
TOOL_S = 60.0
SHOWN = 120
Place = tuple[int, int]  # the number of an answer, and of a call in it
Calls = Counter[Place]
EXCEEDED = {
    "turns": "This rollout has made all the calls that it may.",
    "tokens": "This rollout has generated all the tokens that it may.",
}


@dataclass(frozen=True)
class Settings:
    """What a rollout may use: calls to the model, generated tokens (0: no limit). `model` is the
    name that its agent sees. `own_code`: whether the agent's own code, too, may call tools and
    write the answer.
    """

    model: str
    calls: int = 200
    tokens: int = 0
    own_code: bool = False


@dataclass(frozen=True)
class Answered:
    """`finish_reason` is OpenAI's."""

    message: dict
    finish_reason: str
    usage: dict[str, int]


@dataclass
class Captured:
    """A frozen rollout. `replies` are in the order of branches, so that rows of tokens continue
    where calls do. `mask` says why it must not be trained on; "" if it may. `notes` counts what the
    agent asked for and did not get. `bypassed`: it did without the model here. `altered`: how many
    of the tools' results its model was given in other words.
    """

    replies: list[Reply]
    conversation: list[dict]
    mask: str
    notes: Counter[str]
    branches: int
    bypassed: bool
    altered: int


class OpenRollout:
    """Used in a single event loop, so `freeze` is one step: what is asked later is refused.

    `token` is its capability: whoever has it acts as the rollout's agent, and may do nothing else.
    """

    def __init__(
        self,
        sampler: Sampler,
        episode: Episode,
        settings: Settings,
        *,
        seed: int,
        key: int,
        busy: Callable[[bool], None] = lambda busy: None,
    ) -> None:
        self.sampler, self.episode, self.settings = sampler, episode, settings
        self.seed, self.key, self.busy = seed, key, busy
        self.token, self.loop = secrets.token_urlsafe(32), asyncio.get_running_loop()
        self.tree, self.notes = Tree(), Counter[str]()
        self.mask = ""
        self.final: PolicyError | None = None  # why the model will not answer any more
        self.exceeded = ""  # the limit that it reached (a stop reason of rollouts)
        self.is_open = True
        # By request: its answer, until that is delivered; and why it got none.
        self._asked: dict[str, asyncio.Future[Answered]] = {}
        self._failed: dict[str, str] = {}
        self.refusals: list[str] = []  # of requests that could not be read: the last one
        self._times = Counter[str]()  # how often the same was asked
        self._tokens = 0
        self._made: Calls = Counter()  # the written calls that ran
        self._own = ""  # why a call that ran cannot be credited to the model
        self._tool = asyncio.Lock()  # an episode runs its calls one after the other
        self._tool_calls = 0

    # What the agent asks for

    async def answer(self, asked: ChatRequest, ignored: Iterable[str] = ()) -> Answered:
        """The same request again, while its first answer has not arrived, gets that answer: clients
        repeat what was cut off. `ignored` is what it asked for that only alters sampling. Raises
        ApiError.
        """
        self._check_open()
        self._note(asked, ignored)
        tools = _tools_of(asked)
        history = History(asked.messages, tools)
        key = history.key
        future = self._asked.get(key)
        if future is None:
            self._check_limits()
            work = self._sample(asked, tools, history, self._times[key])
            future = self._asked[key] = asyncio.ensure_future(work)
            self._times[key] += 1
        else:
            self.notes["the same request again before its answer was complete"] += 1
        try:
            answered = await asyncio.shield(future)
        except Exception as error:
            self._asked.pop(key, None)
            if not isinstance(error, ApiError) or error.status >= 500:
                self._failed[key] = str(error)
            raise
        self._failed.pop(key, None)
        return answered

    def delivered(self, answered: Answered) -> None:
        """The agent has this answer: the same request is a new one from now on."""
        done = (key for key, future in self._asked.items() if _has(future, answered))
        self._asked.pop(next(done, ""), None)

    @property
    def tools(self) -> Sequence[dict]:
        return self.episode.tools

    @property
    def ended(self) -> str:
        return "" if self.is_open else ENDED

    async def call(self, name: str, args: dict) -> Called:
        """Runs a tool of the environment. Raises Refused.

        Each written call may run once, after it was written; one that failed may be tried again.
        """
        self._tool_calls += 1
        if self._tool_calls > MOST_CALLS:
            raise Refused(429, TOO_MANY)
        async with self._tool:
            if not self.is_open:
                raise Refused(410, ENDED)
            place = self._claim(name, args, self._made)
            try:
                async with asyncio.timeout(TOOL_S):
                    done = await self.episode.call(name, args)
            except Exception as error:  # says nothing about the agent
                slow = isinstance(error, TimeoutError)
                said = TOOL_SLOW.format(TOOL_S) if slow else sentence(error)
                self.distrust(TOOL_FAILED.format(said))
                raise Refused(500, said) from error
            if place is not None and not done.ok:
                self._made[place] -= 1
            return Called(done.observation, not done.ok)

    def _claim(self, name: str, args: dict, made: Calls) -> Place | None:
        """The written call that this one is, counted in `made`; None, and why, if there is none
        that has not run.
        """
        tools, why = self.episode.tools, OWN_CALL
        for call in self.tree.calls:
            for place, most in _written(name, args, call, tools):
                if made[call.number, place] < most:
                    made[call.number, place] += 1
                    return call.number, place
                why = REPEATED
        self._own = self._own or why.format(name)
        return None

    def distrust(self, why: str) -> None:
        """Mask this rollout, whatever it does from here on."""
        self.mask = self.mask or why

    def refused(self, why: str) -> None:
        self.refusals = [REFUSED.format(why)]

    # Its end

    def freeze(
        self, reported: Sequence[dict] = (), *, has_failed: bool = False, problem: str = ""
    ) -> Captured:
        """No call counts from here on. `reported` is what the agent says that it did, if it says
        so. An agent that `has_failed` by itself, by a `problem`, is not masked for what it left
        open: failing must not be better than answering wrongly.
        """
        self.is_open = False
        branches = self.tree.branches()
        replies = [call.reply for branch in branches for call in branch]
        conversation = self._conversation(reported)
        own = "" if self.settings.own_code else self._unwritten(conversation) or self._own
        mask = (
            self.mask
            or self._untrusted(replies, problem)
            or ("" if has_failed else self._unfinished() or own)
        )
        for future in self._asked.values():
            future.cancel()
        return Captured(
            replies,
            conversation,
            mask,
            self.notes,
            len(branches),
            bypassed=bool(own) or mask == NO_CALL,
            altered=self._altered(),
        )

    def _conversation(self, reported: Sequence[dict]) -> list[dict]:
        """What was said after the task: as the agent reports it, or along the branch whose call was
        answered last.
        """
        if reported or not self.tree.calls:
            return list(reported)
        last = root = self.tree.calls[-1]
        while root.parent is not None:
            root = root.parent
        return [*last.messages[len(root.messages) :], last.answer]

    def _untrusted(self, replies: list[Reply], problem: str) -> str:
        """Why the tokens may not be learned, whatever the agent did; "" if they may."""
        if not replies:
            none = OPEN_AT_END if self._asked else NO_CALL
            reasons = [none, *self._failed.values(), *self.refusals, problem]
            return " ".join(filter(None, dict.fromkeys(reasons)))
        weights = {reply.model for reply in replies if reply.token_ids}
        return WEIGHTS if len(weights) > 1 else ""

    def _unfinished(self) -> str:
        """What had not ended, or failed, when the agent ended; "" if nothing."""
        if self._asked:
            is_done = all(future.done() for future in self._asked.values())
            return CUT if is_done else OPEN_AT_END
        if self._tool.locked():
            return TOOL_AT_END
        return FAILED.format(next(iter(self._failed.values()))) if self._failed else ""

    def _unwritten(self, conversation: list[dict]) -> str:
        """What the agent reports and the model here did not write: its last message as a whole,
        and the text and the calls of the others, which clients merge and split.
        """
        answers = [call.answer for call in self.tree.calls]
        said = [m for m in conversation if m.get("role") == "assistant"]
        if not said:
            return ""
        texts = {"", *(text_of(answer).strip() for answer in answers)}
        other = next((m for m in said if text_of(m).strip() not in texts), None)
        if other is None and meaning_of(said[-1]) not in map(meaning_of, answers):
            other = said[-1]
        if other is not None:
            return NOT_SAMPLED.format((text_of(other) or str(other.get("tool_calls")))[:SHOWN])
        made: Calls = Counter()
        for call in (call for message in said for call in native_calls(message)):
            self._claim(call.tool, call.args or {}, made)
        return ""

    def _altered(self) -> int:
        """The results that the environment's tools returned to no call here, although a model was
        given them: the agent's code cut or rewrote them. That is part of the agent, like its
        prompts: what was sampled after them is as it was, and the state is the environment's.
        """
        found, names = set[tuple[str, str]](), names_of(self.episode.tools)
        for call in self.tree.calls:
            for turn in agent_turns([*_last_answer(call), *call.new_messages], []):
                for written, text in zip(calls_of(turn), reported_results(turn), strict=False):
                    name = next((one for one in names if _is_named(written.tool, one, names)), "")
                    if name and text is not None and not self._returned(name, text):
                        found.add((name, text))
        return len(found)

    def _returned(self, name: str, text: str) -> bool:
        results = {call.observation for call in self.episode_calls if call.name == name}
        return text in results or any(same_result(text, one) for one in results)

    @property
    def episode_calls(self) -> Sequence[Execution]:
        """The calls of tools that ran at this rollout's address."""
        return getattr(self.episode, "calls", ())

    # Sampling

    async def _sample(
        self, asked: ChatRequest, tools: list[dict], history: History, times: int
    ) -> Answered:
        parent = self.tree.continued_by(history)
        messages = joined(parent, asked.messages) if parent else asked.messages
        turn = sum(message["role"] == "assistant" for message in messages)
        self.busy(True)
        try:
            reply, so_far = await self.sampler.sample(
                messages,
                tools,
                parent.so_far if parent else None,
                seed=seed_of(self.seed, turn, times),
                key=self.key,
                most=self._tokens_left(),
            )
        except PolicyError as error:
            self.final = error if error.final else self.final
            raise _refused(error) from error
        finally:
            self.busy(False)
        text, reply, so_far = self._cut(reply, so_far, asked.stops)
        self._tokens += reply.output_tokens
        answer = _message(reply, text, bool(tools), asked)
        finish = "length" if reply.truncated else "stop"
        if answer.get("tool_calls") and finish == "stop":
            finish = "tool_calls"
        number = len(self.tree.calls) + 1
        end = history.end(answer)
        self.tree.add(Call(number, messages, tools, answer, reply, so_far, end, parent))
        asked_for, written = reply.prompt_tokens, reply.output_tokens
        usage = {"prompt_tokens": asked_for, "completion_tokens": written}
        return Answered(answer, finish, usage | {"total_tokens": asked_for + written})

    def _cut(self, reply: Reply, so_far: SoFar, stops: Sequence[str]) -> tuple[str, Reply, SoFar]:
        """The text up to the first stop string, and the tokens up to where that is complete: the
        agent saw nothing of the others, so they are not learned.
        """
        at = min((at for stop in stops if (at := reply.text.find(stop)) >= 0), default=-1)
        if at < 0:
            return reply.text, reply, so_far
        ids, decode = reply.token_ids, self.sampler.decode
        if not ids:
            return reply.text[:at], replace(reply, text=reply.text[:at]), so_far

        def has_stop(count: int) -> bool:
            return any(stop in decode(ids[:count]) for stop in stops)

        count = bisect_left(range(len(ids)), True, key=has_stop)
        cut = replace(
            reply,
            text=decode(ids[:count]),
            token_ids=ids[:count],
            logprobs=reply.logprobs[:count],
            output_tokens=count,
            truncated=False,
        )
        left = so_far.ids[: so_far.asked + count]
        return reply.text[:at], cut, replace(so_far, ids=left, computed=None)

    # Its limits

    def _check_open(self) -> None:
        if not self.is_open:
            raise ApiError(410, ENDED)
        if self.exceeded:
            raise ApiError(400, EXCEEDED[self.exceeded])

    def _check_limits(self) -> None:
        if sum(not future.done() for future in self._asked.values()) >= AT_ONCE:
            said = f"{AT_ONCE} requests of this rollout are being answered; wait for one."
            raise ApiError(429, said, retry_after_s=1)
        if sum(self._times.values()) >= self.settings.calls:
            self.exceeded = "turns"
        elif self._tokens_left() == 0:
            self.exceeded = "tokens"
        self._check_open()

    def _tokens_left(self) -> int | None:
        most = self.settings.tokens
        return max(0, most - self._tokens) if most else None

    def _note(self, asked: ChatRequest, ignored: Iterable[str]) -> None:
        """Counts what the agent asked for and does not get: sampling is the run's."""
        if (asked.n or 1) != 1:
            raise ApiError(400, "n must be 1: each rollout samples one answer at a time.", "n")
        self.notes.update(
            name
            for name in ("temperature", "top_p", "seed", "logprobs", "max_tokens")
            if getattr(asked, name, None) not in (None, False)
        )
        if asked.model not in ("", self.settings.model):
            self.notes[f"model {asked.model}"[:SHOWN]] += 1
        self.notes.update(ignored)


def _has(future: asyncio.Future[Answered], answered: Answered) -> bool:
    is_whole = future.done() and not future.cancelled() and not future.exception()
    return is_whole and future.result() is answered


def _message(reply: Reply, text: str, has_tools: bool, asked: ChatRequest) -> dict:
    """An answer whose tokens are known is read from their text; a server's is as it read it."""
    if reply.token_ids:
        return message_of(text, has_tools, asked.parallel_tool_calls is not False)
    is_whole = text == (text_of(reply.message) or text)
    return reply.message if is_whole else {"role": "assistant", "content": text}


def _tools_of(asked: ChatRequest) -> list[dict]:
    return (asked.tools or []) if asked.tool_choice != "none" else []


def _refused(error: PolicyError) -> ApiError:
    """400 for what the agent sent, 503 for what it may ask again."""
    return ApiError(400, str(error)) if error.limit else ApiError(503, str(error))


def _written(name: str, args: dict, call: Call, tools: Sequence[dict]) -> Iterator[tuple[int, int]]:
    """The calls of an answer that are this one: the place of each, and how often it may run. A
    framework that reads calls from text in a form of its own offers the model no tools; the tool's
    name and all values must then be words of that text, and it may run with the same arguments as
    often as it is named there.
    """
    calls = native_calls(call.answer)
    for place, written in enumerate(calls):
        if _is_same(written, name, args, tools):
            yield place, 1
    text = text_of(call.answer)
    if calls or call.tools or not (most := _times(name, text)):
        return
    if _is_spelled(_without_defaults(name, args, {}, tools), text):
        yield -1 - crc32(json.dumps(args, sort_keys=True).encode()), most


def _is_same(written: ToolCall, name: str, args: dict, tools: Sequence[dict]) -> bool:
    """A framework may put its server's name before the tool's, unless that is another tool's name,
    and add arguments that have defaults.
    """
    asked = written.args or {}
    return (
        _is_named(written.tool, name, names_of(tools))
        and all(key in args and _is_as_written(value, args[key]) for key, value in asked.items())
        and not _without_defaults(name, args, asked, tools)
    )


def _is_named(tool: str, name: str, names: Sequence[str]) -> bool:
    prefixed = tuple(f"{mark}{name}" for mark in "_.-/")
    return tool == name or (tool.endswith(prefixed) and tool not in names)


def _last_answer(call: Call) -> list[dict]:
    return [call.parent.answer] if call.parent else []


def _without_defaults(name: str, args: dict, asked: dict, tools: Sequence[dict]) -> dict:
    """The arguments that were not asked for, without those that are null or the tool's default."""
    schema = next((tool["function"] for tool in tools if tool["function"]["name"] == name), {})
    properties = (schema.get("parameters") or {}).get("properties") or {}
    defaults = {key: one.get("default") for key, one in properties.items() if isinstance(one, dict)}
    return {
        key: value
        for key, value in args.items()
        if key not in asked and value is not None and not same_value(value, defaults.get(key))
    }


def _is_spelled(value: Any, text: str) -> bool:
    if isinstance(value, dict | list):
        return all(
            _is_spelled(one, text) for one in (value.values() if isinstance(value, dict) else value)
        )
    if value is None or isinstance(value, bool):
        return True
    said = value if isinstance(value, str) else json.dumps(value)
    return bool(_times(said, text) or _times(json.dumps(said)[1:-1], text))


def _times(word: str, text: str) -> int:
    """How often a text has it as a word of its own."""
    if not word.strip():
        return 0
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text))


def _is_as_written(value: Any, given: Any) -> bool:
    """Frameworks may convert a value to the type that its tool declares, and nothing else."""
    if same_json(value, given):
        return True
    is_one = not any(isinstance(one, dict | list) for one in (value, given))
    texts = [one if isinstance(one, str) else json.dumps(one) for one in (value, given)]
    return is_one and texts[0] == texts[1]
