from __future__ import annotations

from django import template

from apps.evals.lookups import VERSION
from apps.registry.models import ModelKind, ModelVersion
from apps.trajectories.models import Trajectory

register = template.Library()


@register.simple_tag
def version_of(row: Trajectory) -> ModelVersion | None:
    """Which of the project's model versions the run names: as its agent's version, as its model, or an agent by its own version."""
    rows = ModelVersion.objects.filter(project=row.project_id)
    for named in filter(None, map(VERSION.fullmatch, (row.agent_version, row.model))):
        if found := rows.filter(name=named[1], version=int(named[2])).first():
            return found
    agents = rows.filter(kind=ModelKind.AGENT, name=row.agent_name, agent_version=row.agent_version)
    return agents.first() if row.agent_version else None
