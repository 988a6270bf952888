"""Failed runs of the built-in workplace assistant with a planted wrong step, and the agent that
made them, as an OpenAI-compatible server answers for it.

The agent works through a list of things to do, with a look-up before some of them, and ends with a
text. Of each step it gets one in `1 / slip` wrong. It never mends what it did wrong.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

from workers.lib.environments import load
from workers.lib.messages import call_key, native_calls
from workers.lib.policies import RecordedPolicy
from workers.lib.rollouts import NO_LIMITS, rollout

ENVIRONMENT: dict[str, Any] = {
    "kind": "builtin",
    "name": "workplace_assistant",
    "harness": {"max_turns": 60},
    "verifier": {},
}
KINDS = ("wrong value", "not asked for", "stopped early")
PEOPLE = ("Aisha", "Carlos", "Dmitri", "Kofi", "Luis", "Nadia", "Olga", "Raj", "Santiago", "Yuki")
SUBJECTS = ("Budget", "Launch", "Offsite", "Review", "Roadmap", "Invoice", "Hiring", "Support")
DONE = "Everything is done."


@dataclass(frozen=True)
class Planted:
    """`step` is the number of the agent's message (from 0) that is wrong, of `steps`."""

    name: str
    kind: str
    request: str
    calls: list[dict]  # the right ones that change something, in their order
    messages: list[dict]  # of the agent and its tools
    step: int
    steps: int

    @property
    def task(self) -> dict[str, Any]:
        return {
            "id": self.name,
            "messages": [{"role": "user", "content": self.request}],
            "expected": {"calls": self.calls},
            "metadata": {},
        }


def planted(seed: int, *, least: int = 3, most: int = 8) -> Planted:
    """A failed run with `least` to `most` things to do."""
    chance = random.Random(seed)
    calls = [_to_do(chance, n) for n in range(chance.randint(least, most))]
    request = f"Case {seed}. " + " ".join(_in_words(call) for call in calls)
    turns: list[dict] = []
    for call in calls:
        if chance.random() < 0.5:
            turns.append(_called(_look_up(chance.choice(PEOPLE)), len(turns)))
        turns.append(_called(call, len(turns)))
    kind = KINDS[seed % len(KINDS)]
    writes = [at for at, turn in enumerate(turns) if not _is_look_up(turn)]
    step = chance.choice(writes)
    if kind == "wrong value":
        turns[step] = _called(_slipped(calls[writes.index(step)]), step)
    elif kind == "not asked for":
        turns.insert(step, _called(_extra(chance), 1000 + step))
    else:
        del turns[step:]
    turns.append({"role": "assistant", "content": DONE})
    task = {
        "id": "a",
        "messages": [{"role": "user", "content": request}],
        "expected": {"calls": calls},
    }
    environment = load(ENVIRONMENT)
    played = rollout(RecordedPolicy([turns]), environment.open(task), NO_LIMITS)
    done = asyncio.run(played)
    assert not done.score.success and not done.score.masked, done.score
    return Planted(f"planted-{seed}", kind, request, calls, done.rollout.messages, step, len(turns))


def answer(body: dict, to_do: dict[str, list[dict]], *, slip: float = 0.0) -> dict:
    """The agent's next message in a conversation of a chat completions request. `to_do`: {request:
    its calls}.
    """
    messages = body["messages"]
    request = next(one["content"] for one in messages if one["role"] == "user")
    made = [
        call_key(call.tool, call.args)
        for message in messages
        if message["role"] == "assistant"
        for call in native_calls(message)
    ]
    chance = random.Random(f"{body.get('seed')} {len(messages)}")
    left = [call for call in to_do[request] if call_key(call["tool"], call["args"]) not in made]
    if not left:
        return {"role": "assistant", "content": DONE}
    if chance.random() < 0.3:
        return _called(_look_up(chance.choice(PEOPLE)), len(messages))
    call = _slipped(left[0]) if chance.random() < slip else left[0]
    return _called(call, len(messages))


def completion(body: dict, message: dict) -> dict[str, Any]:
    """The whole answer, with a usage that fits what was said."""
    sizes = [
        len(json.dumps(part)) // 4 for part in ([body["messages"], body.get("tools")], message)
    ]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "message": message,
                "finish_reason": "tool_calls" if message.get("tool_calls") else "stop",
            }
        ],
        "usage": {
            "prompt_tokens": sizes[0],
            "completion_tokens": sizes[1],
            "total_tokens": sum(sizes),
        },
    }


def _to_do(chance: random.Random, n: int) -> dict:
    person, subject = chance.choice(PEOPLE), chance.choice(SUBJECTS)
    if chance.random() < 0.5:
        args = {
            "recipient": f"{person.lower()}.{n}@example.com",
            "subject": f"{subject} {n}",
            "body": f"Please look at the {subject.lower()}.",
        }
        return {"tool": "email_send_email", "args": args}
    args = {
        "event_name": f"{subject} {n}",
        "participant_email": f"{person.lower()}.{n}@example.com",
        "event_start": f"2026-12-{chance.randint(10, 28)} 1{chance.randint(0, 6)}:00:00",
        "duration": str(chance.choice((30, 60, 90))),
    }
    return {"tool": "calendar_create_event", "args": args}


def _in_words(call: dict) -> str:
    args = call["args"]
    if call["tool"] == "email_send_email":
        return f"Mail {args['recipient']} about “{args['subject']}”: {args['body']}"
    return (
        f"Book “{args['event_name']}” with {args['participant_email']} at {args['event_start']} for"
        f" {args['duration']} minutes."
    )


def _slipped(call: dict) -> dict:
    """The same call for somebody else."""
    name = "recipient" if call["tool"] == "email_send_email" else "participant_email"
    return {"tool": call["tool"], "args": call["args"] | {name: "someone.else@example.com"}}


def _extra(chance: random.Random) -> dict:
    return {"tool": "email_delete_email", "args": {"email_id": f"{chance.randint(1, 150):08d}"}}


def _look_up(person: str) -> dict:
    return {"tool": "company_directory_find_email_address", "args": {"name": person}}


def _called(call: dict, number: int) -> dict:
    function = {"name": call["tool"], "arguments": json.dumps(call["args"])}
    calls = [{"id": f"call_{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _is_look_up(turn: dict) -> bool:
    return turn["tool_calls"][0]["function"]["name"] == "company_directory_find_email_address"
