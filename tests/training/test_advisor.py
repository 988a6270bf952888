from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.evals.stats import SampleRow, summarise
from apps.training.advisor import Advice, Evidence, advise


def evidence(**changes: Any) -> Evidence:
    usual = {
        "success": 0.4,
        "valid_json": 0.96,
        "correct_tool": 0.8,
        "pass_at_k": 0.7,
        "k": 8,
        "mixed_share": 0.5,
        "tasks": 40,
        "demonstrations": 80,
        "prompt_tried": True,
    }
    return Evidence(**(usual | changes))


RIGHT_FORM = {"valid_json": 1.0, "correct_tool": 0.99}


@pytest.mark.parametrize(
    ("shown", "fixes"),
    [
        pytest.param(evidence(success=0.97), ["none"], id="nothing to fix"),
        pytest.param(
            evidence(success=0.0, valid_json=0.4, pass_at_k=0.02),
            ["sft", "grpo"],
            id="never in format",
        ),
        pytest.param(
            evidence(valid_json=0.4, demonstrations=3),
            ["demonstrations", "grpo"],
            id="no demonstrations",
        ),
        pytest.param(evidence(correct_tool=0.2), ["sft", "grpo"], id="wrong tool family"),
        pytest.param(evidence(), ["grpo", "rejection"], id="sometimes"),
        pytest.param(evidence(mixed_share=0.05), ["signal"], id="nothing to learn from"),
        pytest.param(evidence(verifiable=False, preference_pairs=80), ["dpo"], id="preferences"),
        pytest.param(evidence(verifiable=False), ["signal"], id="no signal"),
        pytest.param(
            evidence(preference_pairs=80),
            ["dpo", "grpo", "rejection"],
            id="corrections and a verifier",
        ),
        pytest.param(
            evidence(preference_pairs=49), ["grpo", "rejection"], id="too few corrections"
        ),
        pytest.param(
            evidence(preference_pairs=80, valid_json=0.4),
            ["sft", "dpo", "grpo"],
            id="corrections, but no format",
        ),
        pytest.param(evidence(verifiable=False, thumbs=(90, 20)), ["kto"], id="ratings"),
        pytest.param(
            evidence(verifiable=False, thumbs=(90, 19)), ["signal"], id="ratings of one kind"
        ),
        pytest.param(
            evidence(verifiable=False, thumbs=(90, 20), preference_pairs=50),
            ["dpo"],
            id="pairs say more",
        ),
        pytest.param(
            evidence(prompt_tried=False),
            ["prompt", "grpo", "rejection"],
            id="the prompt of the first day",
        ),
        pytest.param(
            evidence(prompt_tried=False, valid_json=0.4),
            ["prompt", "sft", "grpo"],
            id="format, never told",
        ),
        pytest.param(
            evidence(prompt_tried=False, correct_tool=1.0, pass_at_k=0.45),
            ["grpo", "rejection"],
            id="nothing to say",
        ),
        pytest.param(evidence(prompt_tried=False, success=0.97), ["none"], id="reliable"),
        pytest.param(
            evidence(success=0.0, pass_at_k=0.05, mixed_share=0.0, **RIGHT_FORM),
            ["facts", "sft", "grpo"],
            id="right in form, never in content",
        ),
        pytest.param(
            evidence(success=0.0, pass_at_k=0.05, mixed_share=0.0, demonstrations=0, **RIGHT_FORM),
            ["facts", "demonstrations", "grpo"],
            id="facts, and nothing to imitate",
        ),
        pytest.param(
            evidence(fact_failures=(12, 30)),
            ["facts", "grpo", "rejection"],
            id="retrieval fails in production",
        ),
        pytest.param(evidence(fact_failures=(4, 4)), ["grpo", "rejection"], id="four are few"),
        pytest.param(
            evidence(k=1, pass_at_k=0.4, mixed_share=None),
            ["evaluate"],
            id="one sample shows no spread",
        ),
        pytest.param(
            evidence(
                valid_json=None, correct_tool=None, success=0.0, pass_at_k=0.0, mixed_share=0.0
            ),
            ["sft", "grpo"],
            id="free text: form is not measured, so nothing is said of it",
        ),
        pytest.param(
            evidence(success=0.0, pass_at_k=0.0, samples=320, no_answer=320),
            ["answers"],
            id="it crashed",
        ),
        pytest.param(
            evidence(success=0.05, pass_at_k=0.1, samples=320, no_answer=200, masked=90),
            ["answers"],
            id="it crashed or could not be scored",
        ),
        pytest.param(
            evidence(success=1.0, samples=320, masked=300),
            ["answers"],
            id="the few that were scored are right",
        ),
        pytest.param(
            evidence(success=0.0, pass_at_k=0.0, samples=320, lack_calls=300),
            ["answers"],
            id="an agent whose calls are not seen",
        ),
        pytest.param(
            evidence(samples=320, no_answer=160),
            ["answers", "grpo", "rejection"],
            id="half did not answer",
        ),
        pytest.param(
            evidence(samples=320, no_answer=159), ["grpo", "rejection"], id="most answered"
        ),
    ],
)
def test_the_lightest_fix(shown: Evidence, fixes: list[str]) -> None:
    assert [advice.fix for advice in advise(shown)] == fixes


def test_a_prompt_change_says_why_and_what_it_costs() -> None:
    first = advise(evidence(prompt_tried=False, valid_json=0.4, prompt_cost="It costs $2."))[0]
    assert first.why.startswith(
        "60% of the outputs are not in the expected format; 20% of the outputs do not choose the"
        " right tool; pass@8 is 70%"
    )
    assert first.why.endswith("It costs $2.")


# Every sentence that the advisor can say, and the facts without which it is false. `{name}` is a
# number of the evidence.

NUMBERS = {
    "success": lambda e: f"{e.success:.0%}",
    "valid": lambda e: f"{e.valid_json:.0%}",
    "invalid": lambda e: f"{1 - e.valid_json:.0%}",
    "tool": lambda e: f"{e.correct_tool:.0%}",
    "wrong_tool": lambda e: f"{1 - e.correct_tool:.0%}",
    "pass": lambda e: f"{e.pass_at_k:.0%}",
    "mixed": lambda e: f"{e.mixed_share:.0%}",
    "k": lambda e: str(e.k),
    "tasks": lambda e: str(e.tasks),
    "samples": lambda e: f"{e.samples:,}",
    "no_answer": lambda e: f"{e.no_answer:,}",
    "masked": lambda e: f"{e.masked:,}",
    "lack_calls": lambda e: f"{e.lack_calls:,}",
    "demonstrations": lambda e: str(e.demonstrations),
    "pairs": lambda e: str(e.preference_pairs),
    "up": lambda e: str(e.thumbs[0]),
    "down": lambda e: str(e.thumbs[1]),
    "retrieval": lambda e: str(e.fact_failures[0]),
    "failures": lambda e: str(e.fact_failures[1]),
    "teacher": lambda e: e.teacher[0],
    "taught": lambda e: f"{e.teacher[1]:.0%}",
    "cost": lambda e: re.escape(e.prompt_cost),
}
IN_FORM = "{valid} of the outputs are in the expected format"
IN_TOOL = "{tool} of the outputs choose the right tool"
RARE = [
    ("only {valid} of the outputs are in the expected format", lambda e: e.valid_json < 0.7),
    ("only {tool} choose the right tool", lambda e: e.correct_tool < 0.5),
    (
        "only {pass} of the tasks succeed in any of {k} samples",
        lambda e: e.k > 1 and e.pass_at_k < 0.1,
    ),
    ("only {success} of the outputs succeed", lambda e: e.k == 1 and e.success < 0.1),
]
RARELY = "|".join(f"(?:{text})" for text, _ in RARE)
FAULTS = [
    ("{invalid} of the outputs are not in the expected format", lambda e: e.valid_json < 0.95),
    ("{wrong_tool} of the outputs do not choose the right tool", lambda e: e.correct_tool < 0.95),
    ("pass@{k} is {pass} where success is {success}", lambda e: e.pass_at_k > e.success),
]
FAULT = "|".join(f"(?:{text})" for text, _ in FAULTS)
NOTHING_SEEN = (
    r"the agent failed to answer {no_answer} of {samples} samples \(it crashed, took too long or"
    r" said nothing\)",
    "{masked} of {samples} samples could not be scored",
    "{lack_calls} of {samples} samples failed without a call, though the tasks have tools",
)
SHARE = "|".join(f"(?:{text})" for text in NOTHING_SEEN)


def share_of_nothing(e: Evidence) -> float:
    return (e.no_answer + e.masked + e.lack_calls) / e.samples if e.samples else 0


def shows_nothing(e: Evidence) -> bool:
    return share_of_nothing(e) >= 0.9


SENTENCES: list[tuple[str, Any]] = [
    (f"(?i:(?:{SHARE})(?:; (?:{SHARE}))*).", lambda e: share_of_nothing(e) >= 0.5),
    (
        "Mend that first and evaluate again: until then, the rest of this advice is uncertain.",
        lambda e: 0.5 <= share_of_nothing(e) < 0.9,
    ),
    (
        ("Mend that first and evaluate again: nothing else can be concluded from this evaluation."),
        shows_nothing,
    ),
    ("Success is {success} on {tasks} tasks.", lambda e: e.success >= 0.95),
    ("Add fresh, harder tasks from production.", lambda e: e.success >= 0.95),
    (
        "{retrieval} of {failures} failures in production are retrieval failures.",
        lambda e: e.fact_failures[0] >= 5,
    ),
    (
        (
            f"(?:{IN_FORM}|{IN_TOOL}|{IN_FORM} and {IN_TOOL}), but (?:{RARELY}): the form is right"
            " and the content is not."
        ),
        lambda e: (
            all(rate is None or rate >= 0.95 for rate in (e.valid_json, e.correct_tool))
            and e.pass_at_k < 0.1
        ),
    ),
    (
        (
            "If the right answer needs facts that the request does not contain, no training method"
            " adds them reliably."
        ),
        None,
    ),
    (f"(?:{FAULT})(?:; (?:{FAULT}))*.", None),
    (
        "Instructions may fix that, and changing the prompt is the smallest fix.",
        lambda e: not e.prompt_tried,
    ),
    ("{cost}", lambda e: e.prompt_cost),
    (f"(?i:(?:{RARELY})(?:, (?:{RARELY}))*), which leaves a reward little to reinforce.", None),
    (f"(?i:(?:{RARELY})(?:, (?:{RARELY}))*).", None),
    (
        "{demonstrations} of the training tasks have a demonstration that SFT can imitate.",
        lambda e: e.demonstrations,
    ),
    (
        (
            "SFT could show the model how, but {demonstrations} of the training tasks have a"
            " demonstration; 20 are a start."
        ),
        lambda e: e.demonstrations < 20,
    ),
    ("Each correction of a run becomes one.", None),
    (
        "{teacher} succeeds in {taught} of the same tasks; this model succeeds in {success}.",
        lambda e: e.teacher[1] > e.success,
    ),
    (
        (
            "It provides a probability for every token the model writes, which is a denser signal"
            " than a reward."
        ),
        lambda e: e.teacher[2],
    ),
    ("Evaluate the train split with it: SFT on the samples that pass.", lambda e: not e.teacher[2]),
    (
        "{pairs} corrected runs of this agent show which answer is better.",
        lambda e: e.preference_pairs,
    ),
    ("No verifier scores its answers.", lambda e: not e.verifiable),
    ("DPO needs no sampling.", None),
    (
        (
            "{pairs} corrected runs are enough to train a reward model and to hold back a fifth to"
            " measure it."
        ),
        lambda e: e.preference_pairs >= 200,
    ),
    (
        (
            "As a verifier it can score any answer, so GRPO can learn where no rule defines"
            " success; it must be reviewed first."
        ),
        None,
    ),
    (
        (
            "{up} runs of this agent were rated good and {down} bad, and {pairs} corrected: KTO"
            " learns from individual ratings."
        ),
        None,
    ),
    (
        (
            "A verifier scores the answers: once the model succeeds sometimes, GRPO on that reward"
            " can make it reliable."
        ),
        lambda e: e.verifiable,
    ),
    ("Evaluate again before starting it.", None),
    (
        (
            "Success is {success} and pass@{k} {pass}: {mixed} of the tasks pass in some samples"
            " and fail in others."
        ),
        lambda e: e.mixed_share > 0,
    ),
    ("Those are the tasks RL learns from.", None),
    (
        (
            "pass@{k} is {pass} where success is {success}: SFT on the passing samples of one"
            " evaluation needs no sampling during training, but usually gains less than GRPO."
        ),
        lambda e: e.pass_at_k > e.success,
    ),
    ("The run can also do its own sampling.", None),
    (
        (
            "Success is {success} with one sample per task, which does not show the tasks that pass"
            " in some samples and fail in others: those that reinforcement learning learns from."
        ),
        lambda e: e.k == 1,
    ),
    ("Success is {success}, and there is little to learn from.", lambda e: e.success < 0.95),
    ("{mixed} of the tasks pass in some samples and fail in others.", None),
    (
        (
            "Of this agent, {pairs} runs are corrected \\(DPO needs about 50\\), {up} rated good"
            " and {down} bad."
        ),
        None,
    ),
]


def filled(text: str, shown: Evidence) -> str:
    """The pattern with this evidence's numbers; a number that was not measured matches nothing."""

    def number(match: re.Match[str]) -> str:
        try:
            return NUMBERS[match[1]](shown)
        except TypeError:
            return "(?!)"

    return re.sub(r"\{(\w+)\}", number, text.replace(".", r"\.").replace(r"(?\.", "(?."))


def holds(rule: Any, shown: Evidence) -> bool:
    try:
        return rule is None or bool(rule(shown))
    except TypeError:  # about something that was not measured
        return False


def check(advice: Advice, shown: Evidence) -> None:
    rest = advice.why
    while rest:
        for text, rule in SENTENCES:
            match = (
                re.match(rf"(?:{filled(text, shown)})(?: |$)", rest)
                if text != "{cost}" or shown.prompt_cost
                else None
            )
            if match and match[0] and holds(rule, shown):
                rest = rest[match.end() :]
                break
        else:
            raise AssertionError(f"No sentence that these facts support: {rest!r} of {shown}")
    for text, rule in (*RARE, *FAULTS):
        plain = filled(text, shown)
        if "(?!)" not in plain and re.search(rf"(?<!\d){plain}", advice.why):
            assert holds(rule, shown), (advice.why, shown)
    if advice.fix in ("grpo", "rejection"):
        assert shown.verifiable


shares = st.sampled_from([0.0, 0.02, 0.1, 0.4, 0.52, 0.7, 0.8, 0.94, 0.95, 0.99, 1.0])


@st.composite
def possible(draw: st.DrawFn) -> Evidence:
    """Any evidence that an evaluation and a project can give."""
    success, k = draw(shares), draw(st.sampled_from([1, 2, 8]))
    passes = success if k == 1 else max(success, draw(shares))
    mixed = None if k == 1 else draw(shares) if passes > success else 0.0
    retrieval = draw(st.sampled_from([0, 4, 5, 12]))
    return Evidence(
        success=success,
        valid_json=draw(st.none() | shares),
        correct_tool=draw(st.none() | shares),
        pass_at_k=passes,
        k=k,
        mixed_share=mixed,
        tasks=draw(st.sampled_from([1, 40])),
        samples=320,
        no_answer=draw(st.sampled_from([0, 0, 100, 287, 288])),
        masked=draw(st.sampled_from([0, 0, 32])),
        lack_calls=draw(st.sampled_from([0, 0, 156])),
        demonstrations=draw(st.sampled_from([0, 19, 20, 80])),
        preference_pairs=draw(st.sampled_from([0, 3, 49, 50, 199, 200])),
        thumbs=draw(st.sampled_from([(0, 0), (90, 19), (90, 20)])),
        fact_failures=(retrieval, retrieval + draw(st.sampled_from([0, 3, 40]))),
        verifiable=draw(st.booleans()),
        prompt_tried=draw(st.booleans()),
        prompt_cost=draw(st.sampled_from(["", "A search costs $2."])),
        teacher=draw(st.none() | st.tuples(st.just("big-v1"), shares, st.booleans())),
    )


@settings(max_examples=500, deadline=None, derandomize=True)
@given(possible())
def test_no_sentence_contradicts_the_facts(shown: Evidence) -> None:
    plan = advise(shown)
    assert plan and all(advice.title and advice.why for advice in plan)
    assert len({advice.fix for advice in plan}) == len(plan)
    assert shows_nothing(shown) == ([advice.fix for advice in plan] == ["answers"])
    assert (share_of_nothing(shown) >= 0.5) == (plan[0].fix == "answers")
    for advice in plan:
        check(advice, shown)


@pytest.mark.parametrize(("agent", "fix"), [(True, "answers"), (False, "demonstrations")])
def test_missing_calls_are_invisible_only_of_a_whole_agent(agent: bool, fix: str) -> None:
    rows = [
        SampleRow(str(at // 2), 0.0, valid=False, tool_ok=False, needs_calls=True)
        for at in range(40)
    ]
    shown = Evidence.from_metrics(summarise(rows), agent=agent, prompt_tried=True)
    assert advise(shown)[0].fix == fix
    old = summarise(rows)
    old["counts"] = {"tasks": 20, "samples": 40, "masked": 0}
    assert advise(Evidence.from_metrics(old, agent=agent, prompt_tried=True))
