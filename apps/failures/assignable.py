from __future__ import annotations

from apps.core.models import Role
from apps.failures.models import FailureCluster
from apps.teamwork.targets import Kind, register

register(
    Kind(
        name="cluster",
        noun="a cluster",
        model=FailureCluster,
        related=("project",),
        title=lambda cluster: f"the cluster “{cluster.name}”",
        takes_comments=False,
        worker=Role.REVIEWER,
    )
)
