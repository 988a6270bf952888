"""What a new project takes out of rows that its rules were not written for."""

from __future__ import annotations

from apps.trajectories.actions.redaction import ON_FROM_THE_START
from apps.trajectories.redaction import Redactor, Rule
from bench import redaction
from bench.secret_rows import ORDINARY, SECRETS

REDACTOR = Redactor([Rule(kind, kind) for kind in redaction.ON_FROM_THE_START])


def test_nearly_all_secrets_go() -> None:
    assert redaction.ON_FROM_THE_START == ON_FROM_THE_START
    known = [kind for kind, _, _ in SECRETS if not kind.endswith(redaction.HARD)]
    left = [kind for kind, _, _ in redaction.missed(REDACTOR) if not kind.endswith(redaction.HARD)]
    assert len(known) > 100 and len(left) <= 0.05 * len(known), left


def test_ordinary_rows_stay() -> None:
    assert len(redaction.touched(REDACTOR)) <= 0.02 * len(ORDINARY)
