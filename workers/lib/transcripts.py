"""What an agent whose loop is not ours says of a run: its own messages, taken out of a conversation. Light and pure."""

from __future__ import annotations

from workers.lib.messages import PROMPT_ROLES, Message, calls_of, is_example, same_json, text_of


def agent_turns(messages: list[Message], prompt: list[Message]) -> list[Message]:
    """The assistant's messages after the task's own, which a whole conversation begins with.

    Instructions and examples are left out on both sides: they are the agent's own, and the task's need not be among them.
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
