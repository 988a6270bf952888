"""What an agent asked its model in one rollout, as a tree of calls. Pure; light: no torch.

A request continues an earlier call if its messages are those of that call, its answer, and new
ones. Its prompt is then that call's tokens and those of the new messages, never a tokenization of
text. A request that continues none (history was rewritten or compacted, a sub-agent, a parallel
branch) begins a branch of the same rollout; each sampled token is learned once, in the branch in
which it was sampled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from workers.lib.engines import SoFar
from workers.lib.messages import ToolCall, native_calls, text_of
from workers.lib.policies import Reply
from workers.lib.storable import storable_json

SYSTEM = "developer"  # the newer name of the role “system”


@dataclass
class Call:
    """A request and its answer. `messages` are as the model was given them, `answer` as the agent
    was; `so_far` ends with the answer's tokens. `end` is the digest of the conversation up to the
    answer. `parent` is the call whose tokens its prompt continues.
    """

    number: int
    messages: list[dict]
    tools: list[dict]
    answer: dict
    reply: Reply
    so_far: SoFar
    end: str
    parent: Call | None = None

    @property
    def new_messages(self) -> list[dict]:
        """Those that its prompt adds to that of its parent, and the parent's answer."""
        return self.messages[len(self.parent.messages) + 1 if self.parent else 0 :]


@dataclass
class Tree:
    """The calls of one rollout, in the order in which they were answered."""

    calls: list[Call] = field(default_factory=list)
    _ends: dict[str, Call] = field(default_factory=dict)

    def continued_by(self, said: History) -> Call | None:
        """The call whose answer is the last one in a request, with the same before it."""
        return self._ends.get(said.last_answer)

    def add(self, call: Call) -> None:
        """It continues no tokens if the chat template writes what came before in another way."""
        if call.parent is not None:
            ids = call.parent.so_far.ids
            if call.reply.prompt_token_ids[: len(ids)] != ids:
                call.parent = None
        self.calls.append(call)
        self._ends[call.end] = call

    def branches(self) -> list[list[Call]]:
        """Every call in exactly one branch: the first that continues a call is in that call's
        branch, another one begins its own.
        """
        found: list[list[Call]] = []
        ending_with: dict[int, list[Call]] = {}
        for call in self.calls:
            branch = ending_with.pop(call.parent.number, None) if call.parent else None
            if branch is None:
                found.append(branch := [])
            branch.append(call)
            ending_with[call.number] = branch
        return found


def joined(parent: Call, messages: list[dict]) -> list[dict]:
    """A request that continues `parent`, with the earlier messages as the model was given them."""
    return [*parent.messages, *messages[len(parent.messages) :]]


class History:
    """A request's tools and messages, read once, as digests that are equal for those that say the
    same: `key` of all, `last_answer` of everything up to the last answer before the last message.
    """

    def __init__(self, messages: Sequence[dict], tools: list[dict]) -> None:
        self._hash = hashlib.sha256(json.dumps(tools, sort_keys=True).encode())
        self.last_answer = ""
        for message in messages[:-1]:
            self._add(message)
            if message.get("role") == "assistant":
                self.last_answer = self._hash.hexdigest()
        self._add(messages[-1])
        self.key = self._hash.hexdigest()

    def end(self, answer: dict) -> str:
        """The digest up to the answer to it, which is asked for once."""
        self._add(answer)
        return self._hash.hexdigest()

    def _add(self, message: dict) -> None:
        said = storable_json(meaning_of(message))
        self._hash.update(json.dumps(said, sort_keys=True).encode() + b"\n")


def meaning_of(message: dict) -> list:
    """What a message says, however a client writes it: its role, its text, and its calls. Ids of
    calls are ignored, since clients replace them; so is white space around an answer.
    """
    role = message.get("role", "")
    if role != "assistant":
        return ["system" if role == SYSTEM else role, text_of(message)]
    return [
        role,
        text_of(message).strip(),
        [[c.tool, _arguments(c)] for c in native_calls(message)],
    ]


def _arguments(call: ToolCall) -> str:
    return call.arguments if call.args is None else json.dumps(call.args, sort_keys=True)
