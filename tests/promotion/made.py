"""What many tests of promotions begin with, and reports as the gate would have made and signed
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from apps.evals.models import EvalSet
from apps.promotion import actions
from apps.promotion.models import Channel, GateReport
from apps.promotion.signing import document_of, sign
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_project,
)


class Pair:
    """Production runs the base, which fails all held-out tasks; an adapter on it fails none."""

    holdout, samples, success = 32, 2, (0.0, 1.0)

    def __init__(self, folder: Path) -> None:
        self.folder, self.project = folder, make_project()
        self.by = admin_of(self.project)
        self.base = make_base(self.project, folder)
        self.channel = actions.channel_of(self.project)
        actions.set_initial(channel=self.channel, version=self.base, by=None)
        self.channel.refresh_from_db()
        self.better = make_adapter(self.project, self.base, folder)
        self.environment = make_environment(self.project)
        self.eval_set = self.make_set()
        self.runs = [
            make_eval_run(self.eval_set, version, self.environment, success, self.samples)
            for version, success in zip((self.base, self.better), self.success, strict=True)
        ]

    def make_set(self) -> EvalSet:
        return make_eval_set(self.project, holdout=self.holdout)

    def report(self, channel: Channel | None = None) -> GateReport:
        channel = channel or self.channel
        return actions.make_gate_report(
            baseline=self.runs[0], candidate=self.runs[1], by=self.by, channel=channel
        )


def signed_again(report: GateReport, verdict: str, **columns: Any) -> None:
    for name, value in columns.items():
        setattr(report, name, value)
    report.verdict, report.report = verdict, report.report | {"verdict": verdict}
    report.signature = sign(document_of(report))
    report.save()
