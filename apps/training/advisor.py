"""Recommends the smallest fix that the evidence supports, by the guide's rules. Pure: no Django, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Fix = Literal[
    "none", "prompt", "sft", "best_of_n", "rejection", "dpo", "kto", "reward_model", "distill", "on_policy", "grpo"
]
METHODS: dict[str, str] = {
    "sft": "SFT", "best_of_n": "rejection sampling in the run", "rejection": "rejection sampling", "dpo": "DPO", "kto": "KTO",
    "reward_model": "a reward model", "distill": "distillation", "on_policy": "on-policy distillation", "grpo": "GRPO",
}  # fmt: skip

RELIABLE = 0.95
RARELY_IN_FORMAT = 0.7
RARELY_RIGHT_TOOL = 0.5
SOMETIMES = 0.1
MIXED_ENOUGH = 0.15
DEMONSTRATIONS_ENOUGH = 20
PAIRS_ENOUGH = 50
THUMBS_ENOUGH = 20  # ratings of the rarer kind
REWARD_PAIRS = 200  # enough for a reward model to generalise, and for the held-back fifth to show how well
CLEARLY_BETTER = 0.1  # how much higher the teacher's success must be than the model's
# pass@k minus success: a gap that instructions may close, since the model already succeeds sometimes
SOMETIMES_MORE = 0.1


@dataclass(frozen=True)
class Evidence:
    """What an evaluation of the current model and the collected data show. Rates are in [0, 1]. `prompt_tried`: a
    search for a better prompt has finished, or the model has a prompt version; `prompt_cost` is a sentence about the
    cost of a search. `thumbs`: numbers of ratings up and down. `teacher`: the best other model evaluated on the same
    tasks, its success, and whether it has the model's tokenizer and runs here.
    """

    success: float
    valid_json: float
    correct_tool: float
    pass_at_k: float
    k: int
    mixed_share: float
    demonstrations: int = 0
    preference_pairs: int = 0
    thumbs: tuple[int, int] = (0, 0)
    verifiable: bool = True
    prompt_tried: bool = False
    prompt_cost: str = ""
    teacher: tuple[str, float, bool] | None = None

    @classmethod
    def from_metrics(
        cls,
        metrics: dict,
        *,
        demonstrations: int,
        preference_pairs: int = 0,
        thumbs: tuple[int, int] = (0, 0),
        prompt_tried: bool = False,
        prompt_cost: str = "",
        teacher: tuple[str, float, bool] | None = None,
    ) -> Evidence:
        """From the metrics of an evaluation (apps.evals.stats.summarise)."""
        passes = {int(k): value for k, value in metrics["pass_at_k"].items()}
        k = max(passes, default=1)
        tasks = metrics["tasks"]
        return cls(
            success=metrics["success"]["mean"],
            valid_json=metrics["valid_json"]["mean"],
            correct_tool=metrics["correct_tool"]["mean"],
            pass_at_k=passes.get(k, metrics["success"]["mean"]),
            k=k,
            mixed_share=tasks["mixed"] / max(1, sum(tasks.values())),
            demonstrations=demonstrations,
            preference_pairs=preference_pairs,
            thumbs=thumbs,
            prompt_tried=prompt_tried,
            prompt_cost=prompt_cost,
            teacher=teacher,
        )


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
    if evidence.success >= RELIABLE:
        return [
            Advice(
                "none",
                "Do not train",
                f"Success is {evidence.success:.0%}: there is nothing measurable left to fix. "
                "Add fresh, harder tasks from production.",
            )
        ]
    prompt = [_prompt(evidence)] if _prompt_can_help(evidence) else []
    training = _training(evidence) or [_more_signal(evidence)]
    return prompt + [advice for advice in training if not prompt or advice.fix != "prompt"]


def _training(evidence: Evidence) -> list[Advice]:
    plan: list[Advice] = []
    if _needs_format(evidence):
        plan.append(_sft(evidence))
    after_sft = bool(plan)
    plan += _distillation(evidence)
    plan += _preferences(evidence)
    if evidence.verifiable and (after_sft or _grpo_can_learn(evidence)):
        plan.append(_grpo(evidence, after_sft=after_sft))
    if evidence.verifiable and not after_sft and _grpo_can_learn(evidence):
        plan.append(_rejection(evidence))
    return plan


def _preferences(evidence: Evidence) -> list[Advice]:
    """Learning from feedback works offline: it is cheaper than sampling, and the only signal if no verifier can
    judge.
    """
    if evidence.preference_pairs >= PAIRS_ENOUGH:
        reason = "" if evidence.verifiable else ", and no verifier can"
        found = [
            Advice(
                "dpo",
                "DPO on the preference pairs",
                f"{evidence.preference_pairs} pairs show which answer is better{reason}. DPO needs no sampling.",
            )
        ]
        if evidence.preference_pairs >= REWARD_PAIRS:
            found.append(_reward_model(evidence))
        return found
    up, down = evidence.thumbs
    if min(up, down) >= THUMBS_ENOUGH:
        return [
            Advice(
                "kto",
                "KTO on the ratings",
                f"{up} runs were rated good and {down} bad, with few corrections: KTO learns from individual ratings.",
            )
        ]
    return []


def _reward_model(evidence: Evidence) -> Advice:
    return Advice(
        "reward_model",
        "Or a reward model",
        f"{evidence.preference_pairs} pairs are enough to learn what people prefer, and a fifth of them to measure it. As a verifier it can "
        "score any answer, so GRPO can learn where no rule defines success; it must be reviewed first.",
    )


def _distillation(evidence: Evidence) -> list[Advice]:
    """A teacher that already succeeds gives more information per answer than a reward does."""
    if evidence.teacher is None or evidence.teacher[1] < evidence.success + CLEARLY_BETTER:
        return []
    name, success, same_tokens = evidence.teacher
    why = f"{name} succeeds in {success:.0%} of the same tasks; this model succeeds in {evidence.success:.0%}."
    if same_tokens:
        return [Advice("on_policy", "Distil it on policy", f"{why} It provides a probability for every token the "
                                                           f"model writes, which is a denser signal than a reward.")]  # fmt: skip
    return [
        Advice(
            "distill", "Distil its samples", f"{why} Evaluate the train split with it: SFT on the samples that pass."
        )
    ]


def _rejection(evidence: Evidence) -> Advice:
    return Advice(
        "rejection",
        "Or rejection sampling",
        f"pass@{evidence.k} is {evidence.pass_at_k:.0%} where success is {evidence.success:.0%}: SFT on passing samples takes minutes "
        "instead of the hours GRPO takes, but gains less. The run can also do its own sampling.",
    )


def _prompt_can_help(evidence: Evidence) -> bool:
    """Format and tool choice can be explained in a prompt; so can behaviour that the model already gets right
    sometimes.
    """
    return not evidence.prompt_tried and (
        evidence.valid_json < RELIABLE
        or evidence.correct_tool < RELIABLE
        or evidence.pass_at_k - evidence.success >= SOMETIMES_MORE
    )


def _prompt(evidence: Evidence) -> Advice:
    reasons = [
        f"{1 - rate:.0%} of the outputs {fault}"
        for rate, fault in (
            (evidence.valid_json, "are not in the format"),
            (evidence.correct_tool, "choose another tool"),
        )
        if rate < RELIABLE
    ]
    if evidence.pass_at_k - evidence.success >= SOMETIMES_MORE:
        reasons.append(f"pass@{evidence.k} is {evidence.pass_at_k:.0%} where success is {evidence.success:.0%}")
    why = f"{'; '.join(reasons)}: instructions can fix that, and changing the prompt is the smallest fix. {evidence.prompt_cost}"
    return Advice("prompt", "Change the prompt", why.strip())


def _needs_format(evidence: Evidence) -> bool:
    return (
        evidence.valid_json < RARELY_IN_FORMAT
        or evidence.correct_tool < RARELY_RIGHT_TOOL
        or evidence.pass_at_k < SOMETIMES
    )


def _grpo_can_learn(evidence: Evidence) -> bool:
    return evidence.pass_at_k >= SOMETIMES and evidence.mixed_share >= MIXED_ENOUGH


def _sft(evidence: Evidence) -> Advice:
    seen = (
        f"{evidence.valid_json:.0%} of the outputs are valid JSON, {evidence.correct_tool:.0%} choose the right tool "
        f"and {evidence.success:.0%} succeed"
    )
    if evidence.demonstrations < DEMONSTRATIONS_ENOUGH:
        return Advice(
            "prompt",
            "Change the prompt",
            f"{seen}, and {evidence.demonstrations} demonstrations are too few for SFT "
            f"(at least {DEMONSTRATIONS_ENOUGH}). Show the format in the prompt and collect corrections.",
        )
    return Advice(
        "sft",
        "SFT on demonstrations",
        f"{seen}: the model rarely follows the format or picks the right tool, and there are "
        f"{evidence.demonstrations} demonstrations. RL would find too few good samples to reinforce.",
    )


def _grpo(evidence: Evidence, *, after_sft: bool) -> Advice:
    if after_sft:
        return Advice(
            "grpo",
            "GRPO",
            "Success can be verified automatically; once the format is learned, GRPO on the verifier's "
            "reward makes it reliable. Evaluate again before starting it.",
        )
    return Advice(
        "grpo",
        "GRPO",
        f"The model sometimes succeeds but not reliably: success {evidence.success:.0%}, "
        f"pass@{evidence.k} {evidence.pass_at_k:.0%}, and {evidence.mixed_share:.0%} of the tasks pass "
        "sometimes. Those are the tasks RL learns from.",
    )


def _more_signal(evidence: Evidence) -> Advice:
    return Advice(
        "prompt",
        "Change the prompt or the tools",
        f"Success is {evidence.success:.0%}, but only {evidence.mixed_share:.0%} of the tasks pass sometimes "
        "and there are no preference pairs or verifier to add signal, so there is little to learn from.",
    )
