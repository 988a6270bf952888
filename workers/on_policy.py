"""On-policy distillation of a LoRA adapter. `python -m workers.on_policy spec.json` (docs/jobs.md).

The student plays episodes of the training tasks, as in GRPO; a teacher with the same tokenizer says how likely it would have
written each of the student's tokens, and the student moves towards it by the reverse KL, token by token:

    loss = mean over tokens of log π_student(y_t | y_<t) − log π_teacher(y_t | y_<t)

Its gradient is that of a policy gradient whose advantage of a token is log π_teacher − log π_student, with no discount: each
token answers for itself (Thinking Machines, “On-Policy Distillation”, 2025; the loss is MiniLLM's 2306.08543 and GKD's 2306.13649
with λ = 1, β = 1, estimated on the sampled token instead of summed over the vocabulary, so that a teacher's log-probabilities
of tokens are enough). The samples are the student's own at temperature 1, and each is used once, so nothing is corrected. No
reward trains; the verifier's scores are shown. A resumed run is the unbroken one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import structs
from torch import Tensor

from workers import grpo
from workers.grpo import Trainer
from workers.lib.alarms import Watchman
from workers.lib.errors import SpecError
from workers.lib.events import Emitter
from workers.lib.program import Stop, StopFlag, run_main
from workers.lib.same_tokenizer import why_not_same
from workers.lib.specs import Grpo, GrpoConfig, OnPolicy
from workers.lib.token_rows import TokenRow, rows_of
from workers.ml import checkpoint
from workers.ml.models import device, load_policy, training_dtype
from workers.ml.tree import logprobs_of, pad, scored_parts, use_tree


class Distillation(Trainer):
    """Plays, validates and saves as GRPO does; what a step learns is the teacher's."""

    def __init__(self, spec: OnPolicy, events: Emitter, stop: StopFlag) -> None:
        refuse_other_tokenizer(spec)
        super().__init__(as_grpo(spec), events, stop)
        self.teacher, _ = load_policy(spec.teacher.base, spec.teacher.adapter, training_dtype(spec.engine.dtype))
        self.teacher = self.teacher.to(device())
        use_tree(self.teacher)
        self.watchman = Watchman(self.config.alarms, "on_policy", checkpoint.seen_by("alarms", self.resume))

    def judge_end(self) -> None:
        """No reward trains, so a run without one has learned as much."""

    def update(self, groups: list[Any], stale: bool = False) -> dict[str, float]:
        rows = [row for group in groups for done in group.episodes for row in rows_of(done)]
        if not rows:
            return {"train/loss": 0.0}
        tokens = sum(sum(row.learnt) for row in rows)
        mine = [rows[number] for number in self.ranks.mine([row.ids for row in rows])]

        def share() -> dict[str, float]:
            if not mine:
                return {}
            teacher = logprobs_of(self.teacher, mine, 1.0, self.check)
            return add_gradients(self.model, mine, teacher, self.config, self.check, tokens)

        try:
            metrics = self.ranks.totals(share)
        except Stop:
            self.undo(None)
            raise
        self.ranks.add_gradients(self.model.parameters())
        self.move(metrics)
        return metrics


def add_gradients(
    model: Any, rows: list[TokenRow], teacher: Tensor, config: GrpoConfig, check: Any = lambda: None, tokens: int = 0
) -> dict[str, float]:
    """Adds the gradients of the loss to the model's. `teacher` [R, U]: its log-probabilities of the rows' sampled tokens; `tokens`: how
    many the mean is over, where these rows are not all."""
    real = pad([[1] * sum(row.learnt) for row in rows], 0)[1].to(teacher.device)
    tokens, size = tokens or int(real.sum()), config.micro_batch or len(rows)
    found = {"train/loss": 0.0, "train/entropy": 0.0, "train/teacher_logp": float((teacher * real).sum() / tokens)}
    for start in range(0, len(rows), size):
        for some in scored_parts(model, rows[start : start + size], 1.0, recompute=config.gradient_checkpointing):
            check()
            here = (some.rows + start, slice(some.real.shape[1]))
            student, used = some.tokens.logprobs, real[here]
            gap = (student.detach() - teacher[here]) * used  # the advantage, with its sign turned
            (gap * student).sum().div(tokens).backward()
            found["train/loss"] += float(gap.sum() / tokens)
            found["train/entropy"] += float((some.tokens.entropies * used).sum() / tokens)
    return found | {"train/teacher_kl": found["train/loss"]}


def refuse_other_tokenizer(spec: OnPolicy) -> None:
    """Raises SpecError."""
    if why := why_not_same(Path(spec.model.base), Path(spec.teacher.base)):
        raise SpecError(
            f"The teacher writes other tokens than the student: {why}. Choose a teacher of the student's family, or distil from the "
            "teacher's evaluation (method distill), which compares text."
        )


def as_grpo(spec: OnPolicy) -> Grpo:
    """The part that plays: no group is compared, nothing is corrected, no KL to the start."""
    same = {field.name for field in structs.fields(GrpoConfig)}
    given = {name: value for name, value in structs.asdict(spec.config).items() if name in same}
    config = GrpoConfig(**given | {"kl_every": 0, "correction": "off", "temperature": 1.0, "top_p": 1.0})
    fields = {name: value for name, value in structs.asdict(spec).items() if name not in ("config", "teacher")}
    return Grpo(**fields, config=config)


def main(spec: OnPolicy, events: Emitter, stop: StopFlag) -> None:
    grpo.main(spec, events, stop, Distillation, label="loading student and teacher")


if __name__ == "__main__":
    run_main("on_policy", main)
