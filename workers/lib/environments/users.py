"""Who answers an agent's words: what is stored for its task's user to say, or a model that plays
the user. Light: no torch.

A task's metadata contains `user_turns` (texts, one for each answer in words) and `user_says`
(sentences: what the user wants and knows besides what the conversation has).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable

from workers.lib.environments import EnvironmentFailed
from workers.lib.errors import SpecError
from workers.lib.messages import text_of
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.verifiers import Clients

Ask = Callable[[list[dict]], Awaitable[str] | str]
OVER = "###END###"
ACTS_AS = (
    "You play the user of an AI agent. Say one short message at a time, in the language of the"
    " conversation, only what this user would say. Agree to what you asked for and to nothing else,"
    f" and invent no wishes. When your wish is settled or finally refused, answer {OVER}. What you"
    " want and know besides what you have said:\n"
)
_SWAPPED = {"assistant": "user", "user": "assistant"}


def user_model(spec: EnvironmentSpec, clients: Clients | None) -> Ask | None:
    """The model that plays the users, if `config.user` is “llm”. Raises SpecError."""
    chosen = spec.config.get("user", "script")
    if chosen not in ("script", "llm"):
        raise SpecError("“environment.config.user” must be script or llm.")
    if chosen == "script":
        return None
    if (ask := (clients or {}).get("ask")) is None:
        raise SpecError(
            "“environment.config.user”: a simulated user by a model needs a client “ask”."
        )
    return ask


def texts_in(task: dict, name: str) -> list[str]:
    """The texts in a field of a task's metadata; [] if it holds something else."""
    found = (task.get("metadata") or {}).get(name)
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


async def play_user(ask: Ask, acts_as: str, messages: Iterable[dict]) -> tuple[str, bool]:
    """(the user's next message, whether it ends the conversation), from a model that is told
    `acts_as` and what was said, with the roles swapped. Raises EnvironmentFailed, which masks the
    episode.
    """
    said = [
        {"role": _SWAPPED[message["role"]], "content": text}
        for message in messages
        if message.get("role") in _SWAPPED and (text := text_of(message))
    ]
    try:
        answer = ask([{"role": "system", "content": acts_as}, *said])
        text = str(await answer if isawaitable(answer) else answer)
    except Exception as error:
        raise EnvironmentFailed(
            f"the simulated user did not answer ({type(error).__name__}: {error})"
        ) from error
    return text.replace(OVER, "").strip() or "Goodbye.", OVER in text
