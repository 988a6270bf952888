from __future__ import annotations

import pytest

from apps.training.advisor import Evidence, advise


def evidence(**changes) -> Evidence:
    usual = {
        "success": 0.4, "valid_json": 0.95, "correct_tool": 0.8, "pass_at_k": 0.7, "k": 8, "mixed_share": 0.5,
        "demonstrations": 80, "prompt_tried": True,
    }  # fmt: skip
    return Evidence(**(usual | changes))


@pytest.mark.parametrize(
    ("given", "fixes"),
    [
        pytest.param(evidence(success=0.97), ["none"], id="nothing to fix"),
        pytest.param(evidence(success=0.0, valid_json=0.4, pass_at_k=0.02), ["sft", "grpo"], id="never in format"),
        pytest.param(evidence(valid_json=0.4, demonstrations=3), ["prompt", "grpo"], id="no demonstrations"),
        pytest.param(evidence(correct_tool=0.2), ["sft", "grpo"], id="wrong tool family"),
        pytest.param(evidence(), ["grpo", "rejection"], id="sometimes"),
        pytest.param(evidence(mixed_share=0.05), ["prompt"], id="nothing to learn from"),
        pytest.param(evidence(verifiable=False, preference_pairs=80), ["dpo"], id="preferences"),
        pytest.param(evidence(verifiable=False), ["prompt"], id="no signal"),
        pytest.param(evidence(preference_pairs=80), ["dpo", "grpo", "rejection"], id="corrections and a verifier"),
        pytest.param(evidence(preference_pairs=49), ["grpo", "rejection"], id="too few corrections"),
        pytest.param(
            evidence(preference_pairs=80, valid_json=0.4), ["sft", "dpo", "grpo"], id="corrections, but no format"
        ),
        pytest.param(evidence(verifiable=False, thumbs=(90, 20)), ["kto"], id="ratings"),
        pytest.param(evidence(verifiable=False, thumbs=(90, 19)), ["prompt"], id="ratings of one kind"),
        pytest.param(evidence(verifiable=False, thumbs=(90, 20), preference_pairs=50), ["dpo"], id="pairs say more"),
        pytest.param(
            evidence(prompt_tried=False),
            ["prompt", "grpo", "rejection"],
            id="sometimes, with the prompt of the first day",
        ),
        pytest.param(evidence(prompt_tried=False, valid_json=0.4), ["prompt", "sft", "grpo"], id="format, never told"),
        pytest.param(
            evidence(prompt_tried=False, valid_json=0.4, demonstrations=3), ["prompt", "grpo"], id="said once"
        ),
        pytest.param(
            evidence(prompt_tried=False, valid_json=1.0, correct_tool=1.0, pass_at_k=0.45),
            ["grpo", "rejection"],
            id="nothing to say",
        ),
        pytest.param(evidence(prompt_tried=False, success=0.97), ["none"], id="reliable"),
    ],
)
def test_the_lightest_fix(given: Evidence, fixes: list[str]) -> None:
    plan = advise(given)
    assert [advice.fix for advice in plan] == fixes
    assert all(advice.title and advice.why and "{" not in advice.why for advice in plan)


def test_a_prompt_change_says_why_and_what_it_costs() -> None:
    first = advise(evidence(prompt_tried=False, valid_json=0.4, prompt_cost="It costs $2."))[0]
    assert first.why.startswith(
        "60% of the outputs are not in the format; 20% of the outputs choose another tool; pass@8 is 70%"
    )
    assert first.why.endswith("It costs $2.")
