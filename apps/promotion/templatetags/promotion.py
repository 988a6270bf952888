from __future__ import annotations

from functools import reduce
from operator import or_

from django import template
from django.db.models import Q

from apps.evals.references import VERSION
from apps.registry.models import ModelKind, ModelVersion
from apps.trajectories.models import Trajectory

register = template.Library()


@register.filter
def more_or_fewer(saved: float) -> str:
    """A number of avoided failed runs, in words: 12 is “12 fewer”, -12 “12 more”."""
    number = round(saved)
    return f"{abs(number):,} {'fewer' if number > 0 else 'more'}"


@register.simple_tag
def version_of(row: Trajectory) -> ModelVersion | None:
    """The project's model version that the run names: as its agent's version, as its model, or an
    agent by its own version.
    """
    said = [named for text in (row.agent_version, row.model) if (named := VERSION.fullmatch(text))]
    names = [Q(name=named[1], version=int(named[2])) for named in said]
    if row.agent_version:
        names.append(Q(kind=ModelKind.AGENT, name=row.agent_name, agent_version=row.agent_version))
    found = (
        list(ModelVersion.objects.filter(reduce(or_, names), project=row.project_id)[: len(names)])
        if names
        else []
    )
    exact = {str(one): one for one in found}
    return next(
        (exact[named[0]] for named in said if named[0] in exact), found[0] if found else None
    )
