from __future__ import annotations

from apps.automation.models import FlowRun
from apps.core.models import Role
from apps.teamwork.targets import Kind, register

register(
    Kind(
        name="flow",
        noun="a flow run",
        model=FlowRun,
        related=("project", "version__flow", "version__created_by", "created_by"),
        title=lambda run: f"the flow run {run}",
        owners=lambda run: [run.created_by, run.version.created_by],
        worker=Role.ENGINEER,
    )
)
