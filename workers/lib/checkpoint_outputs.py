"""Selects the tasks that a policy answers at the start and at each checkpoint, so that people can
read what changes, and checks whether the answers exploit the reward. Light.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from workers.lib.environments import Environment
from workers.lib.probes.exploits import Exploits, Own, scorer_of
from workers.lib.probes.watch import Paid, Seen
from workers.lib.rollouts import Finished


def chosen(tasks: Sequence[dict], most: int, seed: int) -> list[dict]:
    """The same tasks in every attempt, in their original order."""
    picked = sorted(
        random.Random(f"outputs {seed}").sample(range(len(tasks)), min(most, len(tasks)))
    )
    return [tasks[place] for place in picked]


class CheckpointOutputs:
    """`most` training tasks and as many validation tasks; the latter only if they are not all
    validated at that step anyway.
    """

    def __init__(
        self,
        tasks: Sequence[dict],
        validation: Sequence[dict],
        most: int,
        *,
        seed: int,
        environment: Environment,
        check: Callable[[], None],
    ) -> None:
        self.training, self.validation = chosen(tasks, most, seed), chosen(validation, most, seed)
        self.exploits = Exploits(scorer_of(environment), check)

    def tasks(self, *, validated: bool) -> list[dict]:
        return self.training if validated else [*self.training, *self.validation]

    def look(self, answered: Sequence[tuple[dict, Sequence[Finished]]]) -> Seen:
        """Check the answers for what a probe would report; `answered` are tasks with their
        episodes.
        """
        return self.exploits.look(
            [
                Own(
                    Paid(task, [reply.message for reply in done.replies], done.score.reward),
                    done.score,
                )
                for task, episodes in answered
                for done in episodes
            ]
        )
