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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from workers.lib.engines import SoFar
from workers.lib.messages import ToolCall, native_calls, text_of
from workers.lib.policies import Reply

SYSTEM = "developer"  # the newer name of the role “system”


@dataclass
class Call:
    """A request and its answer. `messages` are as the model was given them, `answer` as the agent
    was; `so_far` ends with the answer's tokens. `parent` is the call whose tokens its prompt
    continues. `begins` says why it continues none, although its messages do: "" if they do not.
    """

    number: int
    messages: list[dict]
    tools: list[dict]
    answer: dict
    reply: Reply
    so_far: SoFar
    parent: Call | None = None
    begins: str = ""


@dataclass
class Tree:
    """The calls of one rollout, in the order in which they were answered."""

    calls: list[Call] = field(default_factory=list)
    _ends: dict[str, Call] = field(default_factory=dict)  # by the digest up to their answers

    def continued_by(self, messages: Sequence[dict], tools: list[dict]) -> Call | None:
        """The call whose answer is the last one in a request, with the same before it."""
        places = [at for at, one in enumerate(messages[:-1]) if one.get("role") == "assistant"]
        if not places:
            return None
        digests = list(_digests(messages[: places[-1] + 1], tools))
        return self._ends.get(digests[-1])

    def add(self, call: Call) -> None:
        parent = call.parent
        if parent is not None:
            ids = parent.so_far.ids
            if call.reply.prompt_token_ids[: len(ids)] != ids:
                call.parent, call.begins = None, TEMPLATE
        self.calls.append(call)
        *_, last = _digests([*call.messages, call.answer], call.tools)
        self._ends[last] = call

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


TEMPLATE = "the chat template writes what came before in another way once the conversation goes on"


def joined(parent: Call, messages: list[dict]) -> list[dict]:
    """A request that continues `parent`, with the earlier messages as the model was given them."""
    return [*parent.messages, *messages[len(parent.messages) :]]


def request_key(messages: Sequence[dict], tools: list[dict]) -> str:
    """Equal for requests that ask the same."""
    *_, last = _digests(messages, tools)
    return last


def _digests(messages: Sequence[dict], tools: list[dict]) -> Iterator[str]:
    """For each message, of the tools and everything up to it."""
    so_far = hashlib.sha256(json.dumps(tools, sort_keys=True).encode())
    for message in messages:
        so_far = so_far.copy()
        so_far.update(json.dumps(meaning_of(message), sort_keys=True).encode() + b"\n")
        yield so_far.hexdigest()


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
