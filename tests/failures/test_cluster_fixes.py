from __future__ import annotations

import pytest

from apps.failures.actions.modes import DEFAULT_MODES
from apps.failures.classify import PRECEDENCE
from apps.failures.clusters.fixes import OF_FACT, OF_MODE, TITLES, likely_fix
from apps.failures.clusters.names import FACTS
from apps.failures.rules.findings import UNEXPLAINED


@pytest.mark.parametrize(
    ("given", "kind", "why"),
    [
        pytest.param(
            {"fact": "turn_limit", "mode": "wrong_arguments"}, "limit", "limit", id="the fact first"
        ),
        pytest.param(
            {"fact": "", "mode": "wrong_arguments", "names": ("pay", "amount")},
            "tool",
            "(pay, amount)",
            id="else the mode, with what it is about",
        ),
        pytest.param({"fact": "", "mode": "own-mode"}, "prompt", "lightest", id="neither"),
        pytest.param(
            {"fact": "looped", "mode": "", "corrected": 90},
            "prompt",
            "stop",
            id="light before heavy",
        ),
        pytest.param(
            {"fact": "looped", "mode": "", "corrected": 50, "failed_after": "a 2"},
            "dpo",
            "The fix in a 2 did not hold, so a heavier one is next. There are 50 corrected runs",
            id="came back, pairs",
        ),
        pytest.param(
            {"fact": "", "mode": "", "corrected": 20, "failed_after": "a 2"},
            "sft",
            "20 corrected runs",
            id="came back, demonstrations",
        ),
        pytest.param(
            {"fact": "", "mode": "", "corrected": 1, "failed_after": "a 2"},
            "grpo",
            "only 1 corrected run: too few",
            id="came back, nothing to learn from",
        ),
    ],
)
def test_the_lightest_fix_that_was_not_tried(given: dict, kind: str, why: str) -> None:
    fix = likely_fix(**given)
    assert fix.kind == kind and why in fix.why and fix.title


def test_each_fix_is_of_a_rule_or_a_mode_that_exists() -> None:
    rules = {line.rule.__name__ for line in PRECEDENCE}
    assert OF_FACT.keys() <= rules and FACTS.keys() <= rules
    assert OF_MODE.keys() == {slug for slug, *_ in DEFAULT_MODES} - {UNEXPLAINED}
    assert {kind for kind, _ in (*OF_FACT.values(), *OF_MODE.values())} <= TITLES.keys()
