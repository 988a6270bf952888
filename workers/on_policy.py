"""On-policy distillation of a LoRA adapter. `python -m workers.on_policy spec.json` (docs/jobs.md).

The student plays episodes of the training tasks, as in GRPO. A teacher with the same tokenizer
gives the probability that it would have assigned to each of the student's tokens, and the student
is trained towards it by the reverse KL, token by token:

    loss = mean over tokens of log π_student(y_t | y_<t) − log π_teacher(y_t | y_<t)

Its gradient is that of a policy gradient in which a token's advantage is log π_teacher − log
π_student, without discounting: each token is only responsible for itself (Thinking Machines,
“On-Policy Distillation”, 2025; the loss is MiniLLM's 2306.08543 and GKD's 2306.13649 with λ = 1, β
= 1, estimated on the sampled token instead of summed over the vocabulary, so that the teacher's
log-probabilities of the sampled tokens are enough). The teacher runs in this process, or on a vLLM
server that returns prompt log-probabilities (workers.lib.teacher_server); if the server is lost, or
its limit is used up, the run ends with a checkpoint. The samples are the student's own at
temperature 1 and each is used once, so no correction is needed. No reward is trained on; the
verifier's scores are only displayed. A resumed run gives the same result as an uninterrupted one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from workers import grpo
from workers.grpo import Trainer
from workers.lib.alarms import Watchman
from workers.lib.errors import SpecError
from workers.lib.events import Emitter
from workers.lib.prefixes import count_tokens
from workers.lib.program import Stop, StopFlag, run_main
from workers.lib.same_tokenizer import why_not_same
from workers.lib.specs.grpo import Grpo, GrpoConfig
from workers.lib.specs.on_policy import OnPolicy
from workers.lib.teacher_server import TeacherServer, spent
from workers.lib.token_rows import TokenRow, rows_of
from workers.ml import checkpoint
from workers.ml.models import device, load_policy, training_dtype
from workers.ml.tree import logprobs_of, pad, scored_parts, use_tree


class Distillation(Trainer):
    """Plays, validates and saves like GRPO, but learns from the teacher."""

    def __init__(self, spec: OnPolicy, events: Emitter, stop: StopFlag) -> None:
        if spec.teacher_server is None:
            refuse_other_tokenizer(spec)
        super().__init__(as_grpo(spec), events, stop)
        self.teacher = self.served = None
        if spec.teacher_server is None:
            loaded, _ = load_policy(
                spec.teacher.base, spec.teacher.adapter, training_dtype(spec.engine.dtype)
            )
            self.teacher = loaded.to(device())
            use_tree(self.teacher)
        elif self.ranks.is_main:
            self.served = TeacherServer(spec.teacher_server, self.out)
        self.watchman = Watchman(
            self.config.alarms, "on_policy", checkpoint.seen_by("alarms", self.resume)
        )

    def train(self) -> Path:
        try:
            self.ranks.from_main(self.require_same_tokens)
            return super().train()
        finally:
            if self.served:
                self.served.close()

    def require_same_tokens(self) -> None:
        if self.served:
            asked = self.engine.prompt_ids(self.tasks[0]["messages"])
            text = self.engine.tokenizer.decode(asked)
            self.served.require_same_tokens(self.engine.tokenizer, [text], self.check)

    def require_scores(self) -> None:
        """A run without any reward is fine, since no reward is trained on."""

    def update(self, groups: list[Any], stale: bool = False) -> dict[str, float]:
        rows = [row for group in groups for done in group.episodes for row in rows_of(done)]
        if not rows:
            return {"train/loss": 0.0}
        tokens, numbers = (
            sum(sum(row.learnt) for row in rows),
            self.ranks.mine([row.ids for row in rows]),
        )
        mine, began = [rows[number] for number in numbers], time.perf_counter()
        served = self.ranks.from_main(
            lambda: self.served and self.served.logprobs(rows, self.check)
        )
        asked = (
            {"time/teacher_s": time.perf_counter() - began} | spent(self.served.account)
            if self.served
            else {}
        )

        def share() -> dict[str, float]:
            if not mine:
                return {}
            if served is None:
                teacher = logprobs_of(self.teacher, mine, 1.0, self.check)
            else:
                teacher = padded([served[number] for number in numbers]).to(device())
            return add_gradients(self.model, mine, teacher, self.config, self.check, tokens)

        try:
            metrics = self.ranks.totals(share)
        except Stop:
            self.undo(None)
            raise
        self.ranks.add_gradients(self.model.parameters())
        self.move(metrics)
        return metrics | asked | count_tokens([row.ids for row in rows], self.config.micro_batch)


def padded(values: Sequence[Sequence[float]]) -> Tensor:
    """[R, U], with 0 after the end of each row."""
    return pad_sequence([torch.tensor(one) for one in values], batch_first=True)


def add_gradients(
    model: Any,
    rows: list[TokenRow],
    teacher: Tensor,
    config: GrpoConfig,
    check: Any = lambda: None,
    tokens: int = 0,
) -> dict[str, float]:
    """Add the gradients of the loss to the model's. `teacher` [R, U]: its log-probabilities of the
    rows' sampled tokens; `tokens`: the number of tokens in the mean, if these rows are only a part
    of it.
    """
    real = pad([[1] * sum(row.learnt) for row in rows], 0)[1].to(teacher.device)
    tokens, size = tokens or int(real.sum()), config.micro_batch or len(rows)
    found = {
        "train/loss": 0.0,
        "train/entropy": 0.0,
        "train/teacher_logp": float((teacher * real).sum() / tokens),
    }
    for start in range(0, len(rows), size):
        for some in scored_parts(
            model, rows[start : start + size], 1.0, recompute=config.gradient_checkpointing
        ):
            check()
            here = (some.rows + start, slice(some.real.shape[1]))
            student, used = some.tokens.logprobs, real[here]
            gap = (student.detach() - teacher[here]) * used  # the negative advantage
            (gap * student).sum().div(tokens).backward()
            found["train/loss"] += float(gap.sum() / tokens)
            found["train/entropy"] += float((some.tokens.entropies * used).sum() / tokens)
    return found | {"train/teacher_kl": found["train/loss"]}


def refuse_other_tokenizer(spec: OnPolicy) -> None:
    """Raises SpecError."""
    if why := why_not_same(Path(spec.model.base), Path(spec.teacher.base)):
        raise SpecError(
            f"The teacher writes other tokens than the student: {why}. Choose a teacher of the"
            " student's family, or distil from the teacher's evaluation (method distill), which"
            " compares text."
        )


def as_grpo(spec: OnPolicy) -> Grpo:
    """The spec for playing: groups are not compared, nothing is corrected, and there is no KL to
    the initial policy.
    """
    same = {field.name for field in structs.fields(GrpoConfig)}
    given = {name: value for name, value in structs.asdict(spec.config).items() if name in same}
    config = GrpoConfig(
        **given | {"kl_every": 0, "correction": "off", "temperature": 1.0, "top_p": 1.0}
    )
    fields = {
        name: value
        for name, value in structs.asdict(spec).items()
        if name not in ("config", "teacher", "teacher_server")
    }
    return Grpo(**fields, config=config)


def main(spec: OnPolicy, events: Emitter, stop: StopFlag) -> None:
    grpo.main(spec, events, stop, Distillation, label="loading student and teacher")


if __name__ == "__main__":
    run_main(OnPolicy, main)
