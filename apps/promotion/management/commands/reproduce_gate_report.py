"""`manage.py reproduce_gate_report ID`: a stored gate report made again from the stored samples."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.core.management import BaseCommand, CommandError, CommandParser

from apps.promotion.actions import reproduce
from apps.promotion.models import GateReport


class Command(BaseCommand):
    help = "Recomputes a gate report from the stored samples and says whether it is the same."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("report", type=UUID, metavar="ID")

    def handle(self, *, report: UUID, **options: Any) -> None:
        row = GateReport.objects.filter(pk=report).first()
        if row is None:
            raise CommandError(f"There is no gate report {report}.")
        again, same = reproduce(row)
        self.stdout.write(f"{again.verdict}: {again.summary}")
        if not same:
            raise CommandError("Not reproduced: the samples or the gate have changed since the report was made.")
        self.stdout.write("Reproduced: the same samples, policy and verdict.")
