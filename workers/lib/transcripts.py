"""Extracts an external agent's own messages from a conversation that it sent. Light and pure."""

from __future__ import annotations

from workers.lib.messages import PROMPT_ROLES, Message, calls_of, is_example, same_json, text_of


def agent_turns(messages: list[Message], prompt: list[Message]) -> list[Message]:
    """The assistant's messages after the task's own, with which a whole conversation begins.

    Instructions and examples are ignored on both sides: the agent has its own, and need not repeat the task's.
    """
    said, asked = _conversation(messages), _conversation(prompt)
    whole = len(said) >= len(asked) and all(map(_same, said, asked))
    return [message for message in said[len(asked) if whole else 0 :] if message.get("role") == "assistant"]


def _conversation(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message.get("role") not in PROMPT_ROLES and not is_example(message)]


def _same(one: Message, other: Message) -> bool:
    if one.get("role") != other.get("role") or text_of(one) != text_of(other):
        return False
    return same_json([call.plain for call in calls_of(one)], [call.plain for call in calls_of(other)])
