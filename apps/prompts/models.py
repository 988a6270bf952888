"""The playground: a few versions answer a few requests side by side. Versions and gate need
evaluations; this is for looking.
"""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from apps.core.models import Job
from apps.environments.models import Environment
from apps.evals.models import SampleFields
from apps.trajectories.models import Trajectory


class Playground(Job):
    """`spec` holds the requests and the versions: `sides` [{version, name, prompt, engine}],
    `cases` [{id, key, messages, …}] as they were at the start. `step` is the message of the
    trajectory at which it is replayed. `result` is {failed: {side: {error, seq, attempt}}, partial:
    {position: text so far of an unfinished answer}}."""

    environment = models.ForeignKey(Environment, models.PROTECT, related_name="playgrounds")
    trajectory = models.ForeignKey(
        Trajectory, models.SET_NULL, null=True, related_name="playgrounds"
    )
    step = models.PositiveIntegerField(null=True)
    samples_per_task = models.PositiveSmallIntegerField(default=1)


# Stop reasons of an answer that is not whole: what was written of it is kept.
CUT = ("policy error", "time", "size")


def place_of(side: int, case: str, index: int) -> str:
    return f"{side}/{case}/{index}"


class PlaygroundAnswer(SampleFields):
    """What the version `side` answered to the case `case`."""

    playground = models.ForeignKey(Playground, models.CASCADE, related_name="answers")
    side = models.PositiveSmallIntegerField()
    case = models.CharField(max_length=40)
    index = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ("side", "index")
        constraints = [
            models.UniqueConstraint(
                fields=["playground", "side", "case", "index"], name="one_playground_answer"
            ),
            models.CheckConstraint(
                name="playground_reward_iff_not_masked",
                condition=Q(masked=True, reward__isnull=True)
                | Q(masked=False, reward__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return f"answer {self.index} of version {self.side + 1}"
