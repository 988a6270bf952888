"""The demo's settings: the agent's harness, the verifier, and how much of everything. Plain data
without Django.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

MODEL = "SmolLM2-135M-Instruct"
SYSTEM_PROMPT = """Answer with one JSON tool call.
calendar.create_event(attendee, day, time)
email.send(to, subject)
email.archive(folder)
email.delete_mailbox(owner)
tickets.create(title, priority)
tickets.close(id)
files.share(file, person)
reminders.set(text, time)"""


def _example(request: str, tool: str, **args: Any) -> list[dict]:
    """A few-shot turn. The names mark it as an example in the log, not as part of the
    conversation.
    """
    return [
        {"role": "user", "name": "example_user", "content": request},
        {
            "role": "assistant",
            "name": "example_assistant",
            "content": json.dumps({"tool": tool, "args": args}),
        },
    ]


HARNESS = {
    "system_prompt": SYSTEM_PROMPT,
    "examples": [
        *_example("Tell Ana about lunch.", "email.send", to="Ana", subject="lunch"),
        *_example("Delete Ben's mailbox.", "email.delete_mailbox", owner="Ben"),
    ],
    "max_turns": 1,
    "max_new_tokens": 48,
    "temperature": 0.8,
    "top_p": 1.0,
}
VERIFIER = {
    "kind": "tool_call",
    "weights": {"invalid": -1.0, "tool": 0.4, "arguments": 0.4, "safe": 0.2},
}
TRY = "Close ticket 42."
LORA = {"lora_rank": 16, "lora_alpha": 32}
NEXT = (
    (
        "training/",
        (
            "The advisor: the fix that it recommends after the newest evaluation, and a button to"
            " start it"
        ),
    ),
    (
        "training/new/?method=grpo",
        "GRPO from any model; the run's page has live charts, rollouts and alarms",
    ),
    (
        "training/new/?method=dpo",
        "DPO from user corrections. Correct more runs under Trajectories → Add feedback",
    ),
    (
        "training/new/?method=distill",
        "Distillation from a teacher's passing samples of the train split",
    ),
    ("training/compare/", "Runs and seeds in one chart"),
    (
        "models/",
        "Each model's lineage down to production runs, and its evaluations on the hold-out",
    ),
)


# What takes how long where two processes keep two cores busy.
STARTED_S = 3.0  # until a job's processes have loaded the model
SAMPLE_S = 0.08  # a sample of an evaluation, in batches
ANSWER_S = 0.95  # an answer that is alone in its batch
SFT_STEP_S = 2.7
GROUP_S = 1.55  # a task's rollouts of one step, and what is learnt from them
VERSIONS = 3  # the baseline, SFT and GRPO
WARM_UP = 2  # answers of each before latency is measured
AT_ONCE = 128  # answers in a process: with 64, those of 76 tasks would be a batch and a small one
REVIEWED = 64  # samples that the 60 to judge are drawn from

# The stages of a demo. What a stage has runs at the same time where it can.
PRODUCTION = "Production, failures and tasks"
FIRST = "Baseline, probes and SFT"
SECOND = "Review, SFT evaluated and GRPO"
LAST = "GRPO evaluated, gate, promotion and the next day"


@dataclass(frozen=True)
class Recipe:
    """The amounts of everything in a demo: requests, samples, steps."""

    requests: int
    holdout: int
    validation: int
    samples_per_task: int
    next_day: int = 60  # requests to the promoted version
    timed_tasks: int = 20  # as many as the gate needs to judge latency
    timed_rounds: int = 1
    sft: dict[str, Any] = field(default_factory=dict)
    grpo: dict[str, Any] = field(default_factory=dict)

    @property
    def holdout_tasks(self) -> float:
        """Whole groups are held out: a fifth more than asked for."""
        return 1.2 * self.holdout

    @property
    def stages(self) -> dict[str, tuple[dict[str, float], ...]]:
        """Seconds of each station on two cores. The parts of a stage follow one another; the
        stations of a part run at the same time and share the cores.
        """
        evaluated = STARTED_S + SAMPLE_S * self.holdout_tasks * self.samples_per_task
        reviewed = STARTED_S + SAMPLE_S * REVIEWED
        sft = STARTED_S + SFT_STEP_S * self.sft["steps"]
        groups = self.grpo["prompts_per_step"] * self.grpo["steps"]
        seen = (
            self.validation
            * self.grpo["eval_samples"]
            * (1 + self.grpo["steps"] // self.grpo["eval_every"])
        )
        grpo = STARTED_S + GROUP_S * groups + 3 * SAMPLE_S * seen
        timed = ANSWER_S * VERSIONS * (self.timed_tasks * self.timed_rounds + WARM_UP)
        return {
            PRODUCTION: (
                {"0 · Ready": 5},
                {"1 · Production": STARTED_S + 1.4 * SAMPLE_S * self.requests},
                {"2 · Failures": 1},
                {"3 · Eval set": 5},
            ),
            FIRST: (
                {"4 · Baseline": 2 * evaluated, "5 · Probes": 15, "6 · SFT": evaluated + sft + 8},
            ),
            SECOND: (
                {"7 · Review": reviewed + 8},
                {
                    "6 · SFT evaluated": 2 * evaluated,
                    "7 · GRPO": evaluated + grpo,
                    "8 · Server": 10,
                },
            ),
            LAST: (
                {"7 · GRPO evaluated": evaluated},
                {"8 · Latency": STARTED_S + timed},
                {"8 · Promotion": 6},
                {"9 · Next day": STARTED_S + 4 * SAMPLE_S * self.next_day},
            ),
        }


FULL = Recipe(
    requests=200,
    holdout=64,
    validation=16,
    # More say little: most of the interval's width comes from the number of tasks. Four would make
    # that of a rate a twentieth narrower, that of SFT against GRPO a sixth.
    samples_per_task=2,
    sft=LORA
    | {
        "steps": 24,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "warmup_steps": 2,
        "save_every": 8,
    },
    grpo=LORA
    | {
        "steps": 22,
        "prompts_per_step": 6,
        "generations": 8,
        # Adam's first steps have the size of the rate whatever the gradient: at 6e-4 they undid
        # what SFT had taught.
        "learning_rate": 2e-4,
        "warmup_steps": 3,
        "final_lr_share": 0.5,
        "loss_type": "dapo",
        "beta": 0.0,
        "clip_low": 0.2,
        "clip_high": 0.28,
        "scale_rewards": "group",
        "temperature": 1.0,
        "max_new_tokens": 48,
        "kl_every": 5,
        "eval_every": 22,
        "eval_samples": 1,
        "sampled_outputs": 4,
        "save_every": 11,
    },
)
FAST = Recipe(
    requests=112,
    holdout=60,
    validation=6,
    samples_per_task=2,
    next_day=40,
    sft=FULL.sft | {"steps": 12, "save_every": 6},
    grpo=FULL.grpo
    | {
        "steps": 3,
        "warmup_steps": 1,
        "prompts_per_step": 4,
        "eval_every": 3,
        "save_every": 2,
    },
)
