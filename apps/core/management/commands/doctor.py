"""`manage.py doctor`: what is wrong with this installation, in a terminal."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from django.core import checks
from django.core.management import BaseCommand, CommandParser
from django.utils import timezone

from apps.core.watching import undelivered
from apps.core.watching.alerts import try_out
from apps.core.watching.conditions import Checked, Severity, check_all, unknown
from apps.core.watching.incidents import Memory, Wrong, with_rows
from apps.core.watching.probes import wrong_json
from flywheel.beginning import described

PATIENCE_S, PAUSE_S = 15.0, 0.5  # of a process that has just begun, on a machine that is busy
WRONG, UNKNOWN = 1, 2


def check_patiently() -> list[Checked]:
    """Again for a while, as long as all that is wrong is that something could not be checked."""
    until = time.monotonic() + PATIENCE_S
    while ends_with(checked := check_all()) == UNKNOWN and time.monotonic() < until:
        time.sleep(PAUSE_S)
    return checked


def ends_with(checked: list[Checked]) -> int:
    critical = [one for one in checked if one.condition.severity == Severity.CRITICAL]
    if any(one.findings for one in critical):
        return WRONG
    return UNKNOWN if any(one.unknown for one in critical) else 0


class Command(BaseCommand):
    any_schema = True
    help = (
        "Says what is wrong with this installation, since when, and what to do. Ends with 1 where"
        " something critical is wrong, and with 2 where it could not be checked."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--json", action="store_true", help="for programs")
        parser.add_argument(
            "--send-test", action="store_true", help="sends operators a test alert, and ends"
        )

    def handle(self, *, json: bool, send_test: bool, **options: Any) -> None:
        if send_test:
            self.stdout.write(try_out())
            sys.exit(WRONG if undelivered.ways() else 0)
        checked = check_patiently()
        wrongs = with_rows(Memory().see(checked, timezone.now()))
        unfit = checks.run_checks()
        (self._as_json if json else self._as_text)(checked, wrongs, unfit)
        if status := ends_with(checked):
            sys.exit(status)

    def _as_json(self, checked: list[Checked], wrongs: list[Wrong], unfit: list[Any]) -> None:
        said = {
            "installation": described(),
            "wrong": [wrong_json(wrong) | {"says": wrong.says} for wrong in wrongs],
            "unknown": {one.condition.name: one.why for one in checked if one.unknown},
            "settings": [message.msg for message in unfit],
        }
        self.stdout.write(json.dumps(said, indent=2))

    def _as_text(self, checked: list[Checked], wrongs: list[Wrong], unfit: list[Any]) -> None:
        self.stdout.write(f"Installation: {described()}.")
        for wrong in wrongs:
            one = wrong.condition
            paint = self.style.ERROR if one.severity == "critical" else self.style.WARNING
            self.stdout.write(paint(f"{one.severity.upper():<9}{one.title}"))
            for line in (
                f"{wrong.says} Since {wrong.since:%Y-%m-%d %H:%M:%S} UTC.",
                one.todo,
                f"See {one.docs}.",
            ):
                self.stdout.write(f"{'':<9}{line}")
        for reason, conditions in unknown(checked).items():
            names = ", ".join(one.name for one in conditions)
            self.stdout.write(f"{'UNKNOWN':<9}{reason} So nobody knows: {names}.")
        for message in unfit:
            self.stdout.write(self.style.WARNING(f"{'SETTINGS':<9}{message.msg} {message.hint}"))
        well = len(checked) - len({wrong.condition.name for wrong in wrongs})
        well -= sum(bool(one.unknown) for one in checked)
        self.stdout.write(f"{'OK':<9}{well} of {len(checked)} conditions are well.")
