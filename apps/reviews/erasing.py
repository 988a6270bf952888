"""What reviews keep of erased tasks: the verdicts, on which the reward lock rests, and nothing that
quotes them.
"""

from __future__ import annotations

from django.db.models import Q

from apps.core.bus import on
from apps.evals.erasing import SAYS_NOTHING, TasksErased
from apps.reviews.models import Judgement, ReviewItem, SentOutput


@on(TasksErased)
def forget_tasks(event: TasksErased) -> None:
    sent = SentOutput.objects.filter(task__in=event.tasks)
    sent.update(**SAYS_NOTHING)
    items = ReviewItem.objects.filter(
        Q(sample__task__in=event.tasks) | Q(sent__task__in=event.tasks)
    )
    Judgement.objects.filter(item__in=items.values("pk")).update(note="", reason="")
    items.update(ruling_reason="")
