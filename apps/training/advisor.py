"""Recommends the smallest fix that the evidence supports, by the guide's rules. Pure: no Django, no
torch.

Every sentence says only what the evidence holds: tests/training/test_advisor.py has each one with
the facts that it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Fix = Literal[
    "none",
    "answers",
    "evaluate",
    "facts",
    "prompt",
    "demonstrations",
    "sft",
    "best_of_n",
    "rejection",
    "dpo",
    "kto",
    "reward_model",
    "distill",
    "on_policy",
    "grpo",
    "signal",
]
METHODS: dict[str, str] = {
    "sft": "SFT",
    "best_of_n": "rejection sampling in the run",
    "rejection": "rejection sampling",
    "dpo": "DPO",
    "kto": "KTO",
    "reward_model": "a reward model",
    "distill": "distillation",
    "on_policy": "on-policy distillation",
    "grpo": "GRPO",
}

RELIABLE = 0.95
RARELY_IN_FORMAT = 0.7
RARELY_RIGHT_TOOL = 0.5
SOMETIMES = 0.1
MIXED_ENOUGH = 0.15
DEMONSTRATIONS_ENOUGH = 20
PAIRS_ENOUGH = 50
THUMBS_ENOUGH = 20  # ratings of the rarer kind
REWARD_PAIRS = (
    200  # enough for a reward model to generalise, and for the held-back fifth to show how well
)
# Of the samples: so many that show nothing come first, and what the rest show is too little to
# advise by.
MANY, NEARLY_ALL = 0.5, 0.9
CLEARLY_BETTER = 0.1  # how much higher the teacher's success must be than the model's
# pass@k minus success: a gap that instructions may close, since the model already succeeds
# sometimes
SOMETIMES_MORE = 0.1
FACT_FAILURES, FACT_SHARE = (
    5,
    0.25,
)  # retrieval failures, and their share of all failures, that make facts the first fix


@dataclass(frozen=True)
class Evidence:
    """What an evaluation of the current model and the collected data show. Rates are in [0, 1];
    None is not measured.

    `no_answer`, `masked`, `lack_calls`: of `samples`, those that the agent failed to answer, those
    that could not be scored, and those of a whole agent that failed without a visible call.
    `mixed_share`: of tasks that pass in some samples and fail in others, None with one sample per
    task. `fact_failures`: (retrieval failures in production, all failures there). `prompt_tried`: a
    search for a better prompt has finished, or the model has a prompt version; `prompt_cost` is a
    sentence about the cost of a search. `preference_pairs`: corrected runs of the set's agent;
    `thumbs`: its ratings up and down. `teacher`: the best other model evaluated on the same tasks,
    its success, and whether it has the model's tokenizer and runs here.
    """

    success: float
    valid_json: float | None
    correct_tool: float | None
    pass_at_k: float
    k: int
    mixed_share: float | None
    tasks: int = 0
    samples: int = 0
    no_answer: int = 0
    masked: int = 0
    lack_calls: int = 0
    demonstrations: int = 0
    preference_pairs: int = 0
    thumbs: tuple[int, int] = (0, 0)
    fact_failures: tuple[int, int] = (0, 0)
    verifiable: bool = True
    prompt_tried: bool = False
    prompt_cost: str = ""
    teacher: tuple[str, float, bool] | None = None

    @classmethod
    def from_metrics(cls, metrics: dict, *, agent: bool = False, **collected: Any) -> Evidence:
        """From the metrics of an evaluation (apps.evals.stats.summarise); `collected` are the other
        fields. `agent`: of a whole agent, which has its own loop.
        """
        counts = metrics.get("counts", {})
        passes = {int(k): value for k, value in metrics["pass_at_k"].items()}
        k = max(passes, default=1)
        tasks = metrics["tasks"]
        return cls(
            success=metrics["success"]["mean"],
            valid_json=metrics["valid_json"]["mean"],
            correct_tool=metrics["correct_tool"]["mean"],
            pass_at_k=passes.get(k, metrics["success"]["mean"]),
            k=k,
            mixed_share=tasks["mixed"] / max(1, sum(tasks.values())) if k > 1 else None,
            tasks=sum(tasks.values()),
            samples=counts.get("samples", 0),
            no_answer=counts.get("no_answer", 0),
            masked=counts.get("masked", 0),
            lack_calls=counts.get("lack_calls", 0) if agent and not counts.get("called") else 0,
            **collected,
        )

    @property
    def show_nothing(self) -> int:
        """Samples that say nothing about what the agent can do."""
        return self.no_answer + self.masked + self.lack_calls


@dataclass(frozen=True)
class Advice:
    """One recommendation. The first of a list is what to do now, the others come later."""

    fix: Fix
    title: str
    why: str

    @property
    def method(self) -> str:
        """The training method's name; "" if it is not training."""
        return METHODS.get(self.fix, "")


def advise(evidence: Evidence) -> list[Advice]:
    """Recommendations in the order to follow them. Never empty."""
    unanswered = _unanswered(evidence)
    if unanswered and evidence.show_nothing >= NEARLY_ALL * evidence.samples:
        return [unanswered]
    return [unanswered, *_plan(evidence)] if unanswered else _plan(evidence)


def _plan(evidence: Evidence) -> list[Advice]:
    if evidence.success >= RELIABLE:
        why = (
            f"Success is {evidence.success:.0%} on {evidence.tasks} tasks. Add fresh, harder tasks"
            " from production."
        )
        return [Advice("none", "Do not train", why)]
    first = [*_facts(evidence), *_prompt(evidence)]
    training = _training(evidence)
    return first + training if training else first + [_no_signal(evidence)] * (not first)


def _training(evidence: Evidence) -> list[Advice]:
    plan: list[Advice] = []
    if rarely := _rarely(evidence):
        plan.append(_sft(evidence, rarely))
    plan += _distillation(evidence)
    plan += _preferences(evidence)
    if evidence.verifiable and rarely:
        plan.append(_grpo_later())
    elif evidence.verifiable and evidence.mixed_share is None:
        plan.append(_evaluate(evidence))
    elif evidence.verifiable and evidence.mixed_share >= MIXED_ENOUGH:
        plan += [_grpo(evidence), _rejection(evidence)]
    return plan


# Before training


def _unanswered(evidence: Evidence) -> Advice | None:
    """Where many samples show nothing of what the agent can do. If nearly all do, nothing else
    follows from the few others.
    """
    samples = f"of {evidence.samples:,} samples"
    reasons = [
        (
            evidence.no_answer,
            "Make the agent answer",
            f"the agent failed to answer {evidence.no_answer:,} {samples} (it crashed, took too"
            " long or said nothing)",
        ),
        (
            evidence.masked,
            "Make the evaluation score it",
            f"{evidence.masked:,} {samples} could not be scored",
        ),
        (
            evidence.lack_calls,
            "Make the agent's calls visible",
            f"{evidence.lack_calls:,} {samples} failed without a call, though the tasks have tools",
        ),
    ]
    nothing = evidence.show_nothing
    if not nothing or nothing < MANY * evidence.samples:
        return None
    shares = "; ".join(text for count, _, text in reasons if count)
    rest = "nothing else can be concluded from this evaluation"
    if nothing < NEARLY_ALL * evidence.samples:
        rest = "until then, the rest of this advice is uncertain"
    why = f"{shares[0].upper()}{shares[1:]}. Mend that first and evaluate again: {rest}."
    return Advice("answers", max(reasons)[1], why)


def _facts(evidence: Evidence) -> list[Advice]:
    """The guide's first row. What is right in form and never right in content may lack what it
    would have to know.
    """
    of_facts, failures = evidence.fact_failures
    why = []
    if of_facts >= FACT_FAILURES and of_facts >= FACT_SHARE * failures:
        why.append(f"{of_facts} of {failures} failures in production are retrieval failures.")
    if _right_in_form(evidence) and evidence.pass_at_k < SOMETIMES:
        why.append(
            f"{_forms(evidence)}, but {_tries(evidence)}: the form is right and the content is not."
        )
    if not why:
        return []
    ending = (
        "If the right answer needs facts that the request does not contain, no training method adds"
        " them reliably."
    )
    return [
        Advice(
            "facts",
            "Give the model the facts: retrieval, a tool, or data in the prompt",
            " ".join([*why, ending]),
        )
    ]


def _right_in_form(evidence: Evidence) -> bool:
    measured = [rate for rate in (evidence.valid_json, evidence.correct_tool) if rate is not None]
    return bool(measured) and min(measured) >= RELIABLE


def _prompt(evidence: Evidence) -> list[Advice]:
    """Format and tool choice can be explained in a prompt; so can behaviour that the model already
    gets right sometimes.
    """
    if evidence.prompt_tried:
        return []
    reasons = [
        f"{1 - rate:.0%} of the outputs {fault}"
        for rate, fault in (
            (evidence.valid_json, "are not in the expected format"),
            (evidence.correct_tool, "do not choose the right tool"),
        )
        if rate is not None and rate < RELIABLE
    ]
    if evidence.pass_at_k - evidence.success >= SOMETIMES_MORE:
        reasons.append(
            f"pass@{evidence.k} is {evidence.pass_at_k:.0%} where success is {evidence.success:.0%}"
        )
    if not reasons:
        return []
    why = (
        f"{'; '.join(reasons)}. Instructions may fix that, and changing the prompt is the smallest"
        f" fix. {evidence.prompt_cost}"
    )
    return [Advice("prompt", "Change the prompt", why.strip())]


def _evaluate(evidence: Evidence) -> Advice:
    return Advice(
        "evaluate",
        "Evaluate with several samples per task",
        f"Success is {evidence.success:.0%} with one sample per task, which does not show the tasks"
        " that pass in some samples and fail in others: those that reinforcement learning learns"
        " from.",
    )


def _no_signal(evidence: Evidence) -> Advice:
    up, down = evidence.thumbs
    why = [f"Success is {evidence.success:.0%}, and there is little to learn from."]
    if evidence.mixed_share is not None:
        why.append(
            f"{evidence.mixed_share:.0%} of the tasks pass in some samples and fail in others."
        )
    why.append(
        f"Of this agent, {evidence.preference_pairs} runs are corrected (DPO needs about"
        f" {PAIRS_ENOUGH}), {up} rated good and {down} bad."
    )
    if not evidence.verifiable:
        why.append("No verifier scores its answers.")
    return Advice("signal", "Change the tools, or collect corrections", " ".join(why))


# Training


def _rarely(evidence: Evidence) -> list[str]:
    """What happens too rarely for a reward to reinforce it."""
    found = []
    if evidence.valid_json is not None and evidence.valid_json < RARELY_IN_FORMAT:
        found.append(f"only {evidence.valid_json:.0%} of the outputs are in the expected format")
    if evidence.correct_tool is not None and evidence.correct_tool < RARELY_RIGHT_TOOL:
        found.append(f"only {evidence.correct_tool:.0%} choose the right tool")
    if evidence.pass_at_k < SOMETIMES:
        found.append(_tries(evidence))
    return found


def _tries(evidence: Evidence) -> str:
    if evidence.k == 1:
        return f"only {evidence.success:.0%} of the outputs succeed"
    return f"only {evidence.pass_at_k:.0%} of the tasks succeed in any of {evidence.k} samples"


def _forms(evidence: Evidence) -> str:
    rates = (
        (evidence.valid_json, "are in the expected format"),
        (evidence.correct_tool, "choose the right tool"),
    )
    return " and ".join(
        f"{rate:.0%} of the outputs {what}" for rate, what in rates if rate is not None
    )


def _sft(evidence: Evidence, rarely: list[str]) -> Advice:
    seen = ", ".join(rarely)
    seen = seen[0].upper() + seen[1:]
    if evidence.demonstrations < DEMONSTRATIONS_ENOUGH:
        return Advice(
            "demonstrations",
            "Collect demonstrations for SFT",
            f"{seen}. SFT could show the model how, but {evidence.demonstrations} of the training"
            f" tasks have a demonstration; {DEMONSTRATIONS_ENOUGH} are a start. Each correction of"
            " a run becomes one.",
        )
    return Advice(
        "sft",
        "SFT on demonstrations",
        f"{seen}, which leaves a reward little to reinforce. {evidence.demonstrations} of the"
        " training tasks have a demonstration that SFT can imitate.",
    )


def _distillation(evidence: Evidence) -> list[Advice]:
    """A teacher that already succeeds gives more information per answer than a reward does."""
    if evidence.teacher is None or evidence.teacher[1] < evidence.success + CLEARLY_BETTER:
        return []
    name, success, same_tokens = evidence.teacher
    why = (
        f"{name} succeeds in {success:.0%} of the same tasks; this model succeeds in"
        f" {evidence.success:.0%}."
    )
    if same_tokens:
        denser = (
            "It provides a probability for every token the model writes, which is a denser signal"
            " than a reward."
        )
        return [Advice("on_policy", "Distil it on policy", f"{why} {denser}")]
    return [
        Advice(
            "distill",
            "Distil its samples",
            f"{why} Evaluate the train split with it: SFT on the samples that pass.",
        )
    ]


def _preferences(evidence: Evidence) -> list[Advice]:
    """Learning from feedback works offline: it is cheaper than sampling, and the only signal if no
    verifier can judge.
    """
    pairs, (up, down) = evidence.preference_pairs, evidence.thumbs
    if pairs >= PAIRS_ENOUGH:
        reason = "" if evidence.verifiable else " No verifier scores its answers."
        why = (
            f"{pairs} corrected runs of this agent show which answer is better.{reason} DPO needs"
            " no sampling."
        )
        dpo = Advice("dpo", "DPO on the corrections", why)
        return [dpo, _reward_model(evidence)] if pairs >= REWARD_PAIRS else [dpo]
    if min(up, down) >= THUMBS_ENOUGH:
        why = (
            f"{up} runs of this agent were rated good and {down} bad, and {pairs} corrected: KTO"
            " learns from individual ratings."
        )
        return [Advice("kto", "KTO on the ratings", why)]
    return []


def _reward_model(evidence: Evidence) -> Advice:
    return Advice(
        "reward_model",
        "Or a reward model",
        f"{evidence.preference_pairs} corrected runs are enough to train a reward model and to hold"
        " back a fifth to measure it. As a verifier it can score any answer, so GRPO can learn"
        " where no rule defines success; it must be reviewed first.",
    )


def _grpo(evidence: Evidence) -> Advice:
    return Advice(
        "grpo",
        "GRPO",
        f"Success is {evidence.success:.0%} and pass@{evidence.k} {evidence.pass_at_k:.0%}:"
        f" {evidence.mixed_share:.0%} of the tasks pass in some samples and fail in others. Those"
        " are the tasks RL learns from.",
    )


def _grpo_later() -> Advice:
    return Advice(
        "grpo",
        "GRPO",
        "A verifier scores the answers: once the model succeeds sometimes, GRPO on that reward can"
        " make it reliable. Evaluate again before starting it.",
    )


def _rejection(evidence: Evidence) -> Advice:
    return Advice(
        "rejection",
        "Or rejection sampling",
        f"pass@{evidence.k} is {evidence.pass_at_k:.0%} where success is {evidence.success:.0%}:"
        " SFT on the passing samples of one evaluation needs no sampling during training, but"
        " usually gains less than GRPO. The run can also do its own sampling.",
    )
