"""Runs that were tried in the playground go with it: its requests and answers are theirs."""

from __future__ import annotations

from collections.abc import Mapping

from apps.core.bus import on
from apps.core.job_files import remove_work
from apps.prompts.models import Playground
from apps.trajectories.copies import Copies


@on(Copies)
def playgrounds_of(question: Copies) -> Mapping[str, int]:
    rows = Playground.objects.filter(
        project=question.project, trajectory__in=question.runs.values("pk")
    )
    pks = list(rows.values_list("pk", flat=True))
    if question.erase and pks:
        remove_work(Playground, pks)
        rows.delete()
    return {"playgrounds": len(pks)}
