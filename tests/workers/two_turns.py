"""An environment of two turns that a model of random weights can learn from scratch: letters first,
then digits.
"""

from __future__ import annotations

import itertools

from workers.lib.advantages import turn_components
from workers.lib.environments import EnvironmentFailed
from workers.lib.environments.episodes import ToolEnvironment, ToolEpisode
from workers.lib.messages import text_of
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.verifiers import Clients, Score


class TwoTurns(ToolEnvironment):
    """`config`: every `crashes`-th episode fails after its first answer. `luck`: the first turn
    earns that much or loses it by chance, whatever it says, and the second turn its share of
    letters; both are reported."""

    def __init__(self, spec: EnvironmentSpec, *, clients: Clients | None = None) -> None:
        super().__init__(spec)
        self.crashes, self.opened = spec.config.get("crashes", 0), itertools.count(1)
        self.luck = spec.config.get("luck", 0)
        self.turn_rewards = bool(self.luck)

    def open(self, task: dict, state: dict | None = None) -> Talk:
        episode = Talk(self, task, state)
        episode.luck = self.luck
        episode.crashes = bool(self.crashes) and next(self.opened) % self.crashes == 0
        return episode


class Talk(ToolEpisode):
    crashes, luck = False, 0

    async def replied(self, text: str) -> None:
        if self.crashes:
            raise EnvironmentFailed("the server closed the connection")
        if self.turns == 2:
            self.stop_reason = "stop"
        else:
            self.said.append({"role": "user", "content": "Now digits."})

    async def score(self) -> Score:
        first, second = [
            text_of(message) for message in self.said if message["role"] == "assistant"
        ]
        if self.luck:
            earned = [
                self.luck * (1 - 2 * (sum(first.encode()) % 2)),
                sum(one.isalpha() for one in second) / max(1, len(second)),
            ]
            return Score(reward=sum(earned), components=turn_components(earned))
        reward = (_letters(first) - _letters(second)) / 2
        return Score(reward=reward, success=reward > 0.5)


def _letters(text: str) -> float:
    """Letters − digits, as a share: who answers alike in both turns gains nothing."""
    letters = [letter for letter in text if letter.isascii()]
    return sum(letter.isalpha() - letter.isdigit() for letter in letters) / max(1, len(text))
