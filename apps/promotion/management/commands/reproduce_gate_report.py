"""`manage.py reproduce_gate_report ID | FILE`: checks a gate report's signature, and recomputes the
report from stored samples.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from django.core.management import BaseCommand, CommandError, CommandParser

from apps.promotion.gate import NotComparable
from apps.promotion.inputs import reproduce
from apps.promotion.models import GateReport
from apps.promotion.signing import code_hash, is_signed, signed_document


class Command(BaseCommand):
    help = (
        "Checks a gate report's signature and recomputes it from the stored samples; fails where"
        " anything differs."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "report",
            metavar="ID or FILE",
            help="A report's id, or the JSON that its page downloads",
        )

    def handle(self, *, report: str, **options: Any) -> None:
        document, row = self._given(report)
        if not is_signed(document["document"], document["signature"]):
            raise CommandError(
                "The signature is invalid: the report was changed, or signed with another key."
            )
        self.stdout.write("Signature: valid.")
        if code_hash() != document["document"]["inputs"]["code_sha256"]:
            self.stdout.write(
                "The gate's code has changed since; the comparison uses the current code."
            )
        try:
            again, same = reproduce(row)
        except NotComparable as error:
            raise CommandError(f"Not reproduced: {error}") from error
        self.stdout.write(f"{again.verdict}: {again.summary}")
        if not same:
            raise CommandError(
                "Not reproduced: the samples or the gate have changed since the report was made."
            )
        self.stdout.write("Reproduced: the same samples, policy and verdict.")

    def _given(self, report: str) -> tuple[dict[str, Any], GateReport]:
        """The signed document, from the file or as stored, and the stored report with its id."""
        given: dict[str, Any] | None = None
        if Path(report).is_file():
            try:
                given = json.loads(Path(report).read_text())
                report = given["document"]["id"]
                _ = given["document"]["inputs"]["code_sha256"], given["signature"]
            except (ValueError, TypeError, KeyError) as error:
                raise CommandError(f"{report} is not a report downloaded from its page.") from error
        try:
            row = GateReport.objects.filter(pk=UUID(str(report))).first()
        except ValueError as error:
            raise CommandError(f"{report} is neither a file nor the id of a report.") from error
        if row is None:
            raise CommandError(f"There is no gate report {report}.")
        return given or signed_document(row), row
