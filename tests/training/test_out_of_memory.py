"""A run whose memory ends: its error says what to reduce, and where it may it is tried again with
less, for the same update.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from apps.core import jobs, runner
from apps.core.models import JobLog, JobState
from apps.evals import actions as evals
from apps.evals import drafts
from apps.evals.models import Split
from apps.registry.actions import register_base
from apps.training.actions import freeze_dataset, submit_training
from apps.training.memory import at_once, in_words, reductions
from apps.training.models import Method, TrainingRun
from tests.core.conftest import ended
from tests.factories import admin_of, make_environment, override
from tests.workers.conftest import make_tiny_model
from workers.lib.specs.methods import CONFIGS
from workers.lib.typed import convert, plain

# Bytes: less than 64 answers with their prompts take side by side (over 2 GB), more than 4 do
# (under 1.3 GB).
MORE = 1700 * 10**6
LIMITED = Path(__file__).parent / "limited.py"
GRPO = {
    "steps": 1,
    "learning_rate": 1e-3,
    "prompts_per_step": 4,
    "generations": 16,
    "max_new_tokens": 8,
}
Submit = Callable[..., TrainingRun]


def whole(method: str, **given: Any) -> dict[str, Any]:
    return plain(convert({"steps": 1, "learning_rate": 1e-4} | given, CONFIGS[method]))


@pytest.mark.parametrize(
    ("method", "given", "says"),
    [
        (
            "grpo",
            {},
            "micro_batch to 4 (now 32), sample_batch to 4 (now 32), gradient_checkpointing to true",
        ),
        (
            "grpo",
            {"prompts_per_step": 32},
            (
                "micro_batch to 4 (now 256), sample_batch to 4 (now 64), gradient_checkpointing to"
                " true"
            ),
        ),
        (
            "grpo",
            {"micro_batch": 4, "sample_batch": 2, "gradient_checkpointing": True},
            "micro_batch to 2 (now 4), sample_batch to 1 (now 2)",
        ),
        ("grpo", {"micro_batch": 1, "sample_batch": 1, "gradient_checkpointing": True}, ""),
        ("sft", {"batch_size": 8}, "micro_batch to 4 (now 8), gradient_checkpointing to true"),
        ("rejection", {"batch_size": 1}, "gradient_checkpointing to true"),
        ("dpo", {"batch_size": 9}, "micro_batch to 3 (now 9), gradient_checkpointing to true"),
        ("dpo", {"batch_size": 7}, "micro_batch to 1 (now 7), gradient_checkpointing to true"),
        (
            "dpo",
            {"batch_size": 12, "processes": 2},
            "micro_batch to 3 (now 6), gradient_checkpointing to true",
        ),
        ("kto", {"batch_size": 8}, "gradient_checkpointing to true"),
    ],
)
def test_what_is_reduced_leaves_the_update_as_it_is(method: str, given: dict, says: str) -> None:
    config = whole(method, **given)
    changed = reductions(method, config)
    assert in_words(changed, config) == says
    assert convert(config | changed, CONFIGS[method])
    assert all(
        at_once(name, config | changed) < at_once(name, config)
        for name in changed
        if name.endswith("batch")
    )


@pytest.fixture
def limited(db: Any, project: Any, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Submit:
    """Submits runs over a small model and long prompts, whose programs get `more` bytes of
    memory.
    """
    by, environment = admin_of(project), make_environment(project)
    override(environment)
    eval_set = evals.create_eval_set(project=project, slug="long", by=by)
    expected = {"tool": "tickets.close", "args": {"id": 1234}}
    evals.store_tasks(
        eval_set=eval_set,
        by=by,
        what="made",
        tasks=[
            evals.written_task(
                eval_set,
                key=f"task-{number}",
                request=f"{number}. " + f"ticket {number} " * 120,
                split=Split.TRAIN,
                by=by,
                expected=expected,
            )
            for number in range(1000, 1004)
        ],
    )
    folder = make_tiny_model(
        data_dir / "base",
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_key_value_heads=4,
        initializer_range=0.02,
    )
    parent = register_base(project=project, name="base", folder=folder, by=by)
    dataset = freeze_dataset(
        eval_set=drafts.freeze(eval_set=eval_set, by=by, without_holdout=True), by=by
    )
    monkeypatch.setattr(jobs, "enqueue", lambda job: None)

    def make(more: int, **config: Any) -> TrainingRun:
        monkeypatch.setattr(
            runner, "command", lambda *_: [sys.executable, str(LIMITED), str(more), "grpo"]
        )
        return submit_training(
            project=project,
            method=Method.GRPO,
            parent=parent,
            dataset=dataset,
            environment=environment,
            config=GRPO | config,
            by=by,
        )

    return make


RAN_OUT = {
    "type": "error",
    "seq": 1,
    "message": "The memory ran out: the process used up to 2.1 GB of memory and asked for 90 MB"
    " more.",
    "cause": "memory",
}
TELLS = """
import json, os, sys
config = json.load(open(sys.argv[1]))["config"]
told = [config[name] for name in ("micro_batch", "sample_batch", "gradient_checkpointing")]
line = json.dumps({"type": "error", "seq": 1, "message": f"told {told}"})
os.write(int(os.environ["FLYWHEEL_EVENTS_FD"]), line.encode() + b"\\n")
exit(1)
"""


def ending_with(event: dict[str, Any]) -> list[str]:
    """The command of a program that says this, and ends."""
    line = f"{json.dumps(event)}\n".encode()
    program = f"import os; os.write(int(os.environ['FLYWHEEL_EVENTS_FD']), {line!r}); exit(1)"
    return [sys.executable, "-c", program]


@pytest.mark.more(rows=1)
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.proof)])
def test_the_memory_of_a_process_ends_and_the_run_goes_on_with_less(
    limited: Submit, real: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the proof the memory of both attempts is limited, which takes 40 CPU s. That a program
    says so of an error of torch is in tests/workers/test_program.py."""
    run = limited(MORE)
    if not real:
        monkeypatch.setattr(runner, "command", lambda *_: ending_with(RAN_OUT))
    runner.run(run)
    run = ended(run)
    assert (run.state, run.attempt) == (JobState.QUEUED, 1), run.error
    assert run.reduced == {"micro_batch": 4, "sample_batch": 4, "gradient_checkpointing": True}
    note = JobLog.objects.filter(job=run.pk, level="warning").last()
    assert re.match(r"The memory ran out: the process used up to .* and asked for ", note.message)
    assert (
        "Retrying with less memory and the same update: micro_batch to 4 (now 64)" in note.message
    )
    if not real:
        monkeypatch.setattr(runner, "command", lambda *_: [sys.executable, "-c", TELLS])
    runner.run(run)
    run = ended(run)
    # the model is too small to be right once
    error = "No weight has changed" if real else "told [4, 4, True]"
    assert run.attempt == 2 and run.error.startswith(error)
    assert run.spec["config"]["micro_batch"] == 0, "what was submitted stays as it was"


@pytest.mark.proof
@pytest.mark.django_db(transaction=True)
def test_without_the_option_its_error_says_what_to_reduce(
    limited: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = limited(MORE, retry_smaller=False)
    ran_out = RAN_OUT | {"message": "The memory ran out."}
    monkeypatch.setattr(runner, "command", lambda *_: ending_with(ran_out))
    runner.run(run)
    run = ended(run)
    assert (run.state, run.attempt, run.reduced) == (JobState.FAILED, 1, {})
    assert run.error == (
        "The memory ran out. Set micro_batch to 4 (now 64), sample_batch to 4 (now 64),"
        " gradient_checkpointing to true: the update stays the same."
    )
