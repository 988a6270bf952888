from __future__ import annotations

import pytest

from apps.training.advisor import Evidence, advise


def evidence(**changes) -> Evidence:
    usual = {
        "success": 0.4, "valid_json": 0.95, "correct_tool": 0.8, "pass_at_k": 0.7, "k": 8, "mixed_share": 0.5,
        "demonstrations": 80,
    }  # fmt: skip
    return Evidence(**(usual | changes))


@pytest.mark.parametrize(
    ("given", "fixes"),
    [
        pytest.param(evidence(success=0.97), ["none"], id="nothing to fix"),
        pytest.param(evidence(success=0.0, valid_json=0.4, pass_at_k=0.02), ["sft", "grpo"], id="never in format"),
        pytest.param(evidence(valid_json=0.4, demonstrations=3), ["prompt", "grpo"], id="no demonstrations"),
        pytest.param(evidence(correct_tool=0.2), ["sft", "grpo"], id="wrong tool family"),
        pytest.param(evidence(), ["grpo"], id="sometimes"),
        pytest.param(evidence(mixed_share=0.05), ["prompt"], id="nothing to learn from"),
        pytest.param(evidence(verifiable=False, preference_pairs=80), ["dpo"], id="preferences"),
        pytest.param(evidence(verifiable=False), ["prompt"], id="no signal"),
    ],
)
def test_the_lightest_fix(given: Evidence, fixes: list[str]) -> None:
    plan = advise(given)
    assert [advice.fix for advice in plan] == fixes
    assert all(advice.title and advice.why for advice in plan)
