"""Reports as the gate would have made and signed them."""

from __future__ import annotations

from typing import Any

from apps.promotion.models import GateReport
from apps.promotion.signing import document_of, sign


def signed_again(report: GateReport, verdict: str, **columns: Any) -> None:
    for name, value in columns.items():
        setattr(report, name, value)
    report.verdict, report.report = verdict, report.report | {"verdict": verdict}
    report.signature = sign(document_of(report))
    report.save()
