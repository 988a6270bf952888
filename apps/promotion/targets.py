"""Comments on a gate report on a hold-out may quote its tasks: they are shown to people who may
open the tasks.
"""

from __future__ import annotations

from typing import Any

from apps.evals.commentable import outputs_opened, role_of
from apps.promotion.models import GateReport
from apps.teamwork.targets import Kind, register


def title_of(report: GateReport) -> str:
    return f"the gate report {report.baseline.model_version} → {report.candidate.model_version}"


def _is_open(report: GateReport, by: Any) -> bool:
    return outputs_opened(report.candidate, by)


register(
    Kind(
        name="report",
        noun="a gate report",
        model=GateReport,
        title=title_of,
        role=lambda report: role_of(report.candidate),
        is_open=_is_open,
        related=(
            "project",
            "created_by",
            "baseline__model_version",
            "candidate__model_version",
            "candidate__project",
        ),
        may_be_quoted=lambda report: False,
        owners=lambda report: [report.created_by],
    )
)
