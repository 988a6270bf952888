"""Takes an episode to a step of a recorded run: what the agent did there is done again, and what it
saw is compared with what the environment answers now. Light: no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workers.lib.environments import Episode
from workers.lib.messages import Message, text_of
from workers.lib.transcripts import same_result

SHOWN = 120  # characters of a message in a reason


@dataclass(frozen=True)
class Difference:
    """Where the environment does not answer as it did in the recorded run. `at` is the position of
    the agent's message whose consequences differ.
    """

    at: int
    text: str


async def resume(episode: Episode, recorded: Sequence[Message]) -> Difference | None:
    """Does again what the agent did in `recorded`, the messages of a run after its task's. None if
    the environment answered the same throughout, so that its state is that of the recorded run.
    """
    turns = list(turns_of(recorded))
    for at, said, answers in turns:
        if episode.done:
            return Difference(
                at, f"The environment ends the episode before this step ({episode.stop_reason})."
            )
        before = len(episode.messages)
        await episode.step(dict(said))
        is_last = at == turns[-1][0]
        if text := _difference(answers, episode.messages[before + 1 :], is_last):
            return Difference(at, text)
    return None


def turns_of(recorded: Sequence[Message]) -> Iterator[tuple[int, Message, list[Message]]]:
    """(position, message, what followed until the next one) of each message of the agent."""
    places = [at for at, message in enumerate(recorded) if message.get("role") == "assistant"]
    for at, following in zip(places, [*places[1:], len(recorded)], strict=False):
        yield at, recorded[at], list(recorded[at + 1 : following])


def _difference(recorded: list[Message], answered: list[Message], is_last: bool) -> str:
    """Empty if they are the same. After the agent's last message, a run need not have recorded what
    the environment says.
    """
    for then, now in zip(recorded, answered, strict=False):
        if then.get("role") != now.get("role") or not same_result(text_of(then), text_of(now)):
            return (
                f"The environment answers “{text_of(now)[:SHOWN]}” where the run has"
                f" “{text_of(then)[:SHOWN]}”."
            )
    if len(recorded) > len(answered):
        missing = text_of(recorded[len(answered)])[:SHOWN]
        return f"The environment does not answer where the run has “{missing}”."
    if len(answered) > len(recorded) and not is_last:
        more = text_of(answered[len(recorded)])[:SHOWN]
        return f"The environment answers “{more}”, which the run does not have."
    return ""
