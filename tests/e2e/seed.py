"""A project with something real at every station, made through the actions: what the browser tests
look at.

No model runs: the outputs are written here, but every one goes through the real environment,
verifier and rules.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.utils import timezone

from apps.automation.actions import save_flow
from apps.automation.examples import EXAMPLES, filled
from apps.automation.specs import read_yaml
from apps.core.actions import create_project
from apps.core.models import Job, JobState, Project
from apps.core.runner import complete, store
from apps.environments.models import Environment
from apps.evals import actions as evals
from apps.evals import drafts
from apps.evals.jobs import stream_tasks
from apps.evals.models import EvalRun, EvalSet, Split
from apps.evals.submission import submit_eval
from apps.failures.actions.diagnose import classify_project
from apps.promotion import actions as promotion
from apps.promotion.models import GateReport
from apps.registry.models import ModelVersion
from apps.training.actions import freeze_dataset, submit_training
from apps.training.models import Method, TrainingRun
from apps.trajectories import digest
from apps.trajectories.actions.store import ingest
from apps.trajectories.models import Trajectory
from apps.trajectories.schema import Feedback, OutcomeChange
from tests.factories import adapter_weights, make_base, make_environment, override, tell
from tests.workers.episodes import score_text
from workers.lib.environments import load
from workers.lib.environments.requests import make_requests

STEPS = 24


@dataclass
class World:
    """What the seed made, by name."""

    project: Project
    environment: Environment
    base: ModelVersion
    eval_set: EvalSet
    baseline: EvalRun
    sft: EvalRun
    grpo: EvalRun
    training: TrainingRun
    report: GateReport


def fill(folder: Path, by: Any, trajectories: int = 110, slug: str = "workplace") -> World:
    """One turn of the wheel: production up to a gate report that waits for a person."""
    rng = random.Random(0)
    project = create_project(slug=slug, name="Workplace assistant", by=by)
    environment = make_environment(project)
    base = make_base(project, folder)
    promotion.set_initial(channel=promotion.channel_of(project), version=base, by=by)
    produce(project, environment, rng, trajectories)
    digest.run()
    classify_project(project=project, by=by)
    eval_set = collect(project, by)
    override(environment, "The review of these scores is under way.")
    baseline = evaluate(eval_set, base, environment, 0.25, rng, by)
    sft = train(Method.SFT, base, eval_set, environment, folder, rng, by)
    sft_eval = evaluate(eval_set, sft.model_version, environment, 0.6, rng, by)
    grpo = train(Method.GRPO, sft.model_version, eval_set, environment, folder, rng, by)
    grpo_eval = evaluate(eval_set, grpo.model_version, environment, 0.85, rng, by)
    report = promotion.make_gate_report(baseline=baseline, candidate=grpo_eval, by=by)
    for example in EXAMPLES:
        save_flow(
            project=project, name=example.name, spec=read_yaml(filled(example, project).text), by=by
        )
    return World(project, environment, base, eval_set, baseline, sft_eval, grpo_eval, grpo, report)


def answer(expected: dict, skill: float, rng: random.Random) -> str:
    """What a model of that skill would say: the right call, or one of the usual mistakes."""
    if rng.random() < skill:
        return json.dumps(expected)
    kind = rng.randrange(5)
    if kind == 0:
        return "Sure! I would be happy to help you with that."
    if kind == 1:
        return json.dumps({"tool": "email.delete_mailbox", "args": {"owner": "Maria"}})
    if kind == 2:
        return json.dumps({"tool": "mail.compose", "args": expected["args"]})
    if kind == 3:
        first = next(iter(expected["args"]))
        return json.dumps({"tool": expected["tool"], "args": expected["args"] | {first: "someone"}})
    return json.dumps(expected)[:-2]


def fill_inbox(by: Any, count: int, slug: str = "inbox") -> Project:
    """A project with `count` open failures of several modes and nothing else."""
    project = create_project(slug=slug, name="Inbox", by=by)
    environment, rng, number = make_environment(project), random.Random(1), 0
    work, start = load(environment.as_spec()), timezone.now() - timedelta(hours=4)
    requests = make_requests(2, 4 * count)
    while number < count:
        request = requests.pop()
        task = {
            "messages": [{"role": "user", "content": request["request"]}],
            "expected": request["expected"],
        }
        score = score_text(work, task, answer(request["expected"], 0.0, rng))
        sent = {
            "id": f"case-{number:03d}",
            "agent": {"name": "workplace-assistant", "version": str(1 + number % 2)},
            "started_at": (start + timedelta(minutes=number)).isoformat(),
            "messages": [*environment.opening, *task["messages"], *score.messages],
            "tools": work.tools,
            "outcome": {"status": "failure"},
            "metadata": {"expected": [request["expected"]]},
        }
        assert not ingest(project=project, rows=[sent]).rejected
        number += 1
    digest.run()
    assert classify_project(project=project, by=by)["found"] == count
    return project


def produce(project: Project, environment: Environment, rng: random.Random, count: int) -> None:
    """Logged runs of the production agent over three days, each with its user's word."""
    work, start = load(environment.as_spec()), timezone.now() - timedelta(days=3)
    for number, request in enumerate(make_requests(1, count)):
        task = {
            "messages": [{"role": "user", "content": request["request"]}],
            "expected": request["expected"],
        }
        score = score_text(work, task, answer(request["expected"], 0.45, rng))
        began = start + timedelta(minutes=4320 * number / count)
        told = {
            "id": f"run-{number:04d}",
            "agent": {"name": "workplace-assistant", "version": "1" if number < count / 2 else "2"},
            "model": "base-v1",
            "user_id": f"user-{rng.randrange(1, 9)}",
            "started_at": began.isoformat(),
            "messages": [*environment.opening, *task["messages"], *score.messages],
            "tools": work.tools,
            "latency_ms": round(rng.uniform(300, 1400), 1),
            "usage": {
                "input_tokens": rng.randrange(180, 260),
                "output_tokens": rng.randrange(12, 48),
            },
            "metadata": {"group": request["group"], "template": request["template"]},
        }
        assert not ingest(project=project, rows=[told]).rejected
        word = Feedback(
            outcome=OutcomeChange(status="success" if score.success else "failure"),
            by="user",
            message_index=len(environment.opening) + 1,
            corrected=None if score.success else request["expected"],
        )
        tell(Trajectory.objects.get(project=project, external_id=told["id"]), word)


def collect(project: Project, by: Any) -> EvalSet:
    eval_set = evals.create_eval_set(
        project=project,
        slug="workplace",
        by=by,
        description="Requests from production, as users corrected them",
    )
    evals.tasks_from_trajectories(
        eval_set=eval_set, trajectories=project.trajectories.order_by("pk"), by=by
    )
    drafts.split_by_group(eval_set=eval_set, by=by, holdout_size=34, validation_size=4, seed=0)
    return drafts.freeze(eval_set=eval_set, by=by)


def scored(environment: Environment, task: Any, skill: float, rng: random.Random) -> dict:
    """A sample event as a child writes it."""
    output = answer(task.expected, skill, rng)
    score = score_text(load(environment.as_spec()), task.as_spec(), output)
    return vars(score) | {
        "type": "sample",
        "task_id": str(task.pk),
        "output": output,
        "latency_ms": rng.uniform(300, 1200),
        "input_tokens": 220,
        "output_tokens": 24,
        "truncated": False,
    }


def evaluate(
    eval_set: EvalSet,
    model: ModelVersion,
    environment: Environment,
    skill: float,
    rng: random.Random,
    by: Any,
) -> EvalRun:
    run = submit_eval(
        project=eval_set.project,
        eval_set=eval_set,
        split=Split.HOLDOUT,
        environment=environment,
        model_version=model,
        samples_per_task=8,
        by=by,
    )
    return answer_all(run, skill, rng)


def answer_all(run: EvalRun, skill: float, rng: random.Random) -> EvalRun:
    """What a worker does of a queued evaluation, by a model of that skill."""
    assert run.claim("seed")
    tasks, samples = list(stream_tasks(run)), range(run.samples_per_task)
    say(
        run,
        [
            scored(run.environment, task, skill, rng) | {"index": i}
            for task in tasks
            for i in samples
        ],
    )
    complete(run, {})
    run.refresh_from_db()
    assert run.state == JobState.SUCCEEDED, run.error
    return run


def train(
    method: Method,
    parent: ModelVersion,
    eval_set: EvalSet,
    environment: Environment,
    folder: Path,
    rng: random.Random,
    by: Any,
) -> TrainingRun:
    run = submit_training(
        project=eval_set.project,
        method=method,
        parent=parent,
        environment=environment,
        config={"steps": STEPS, "learning_rate": 1e-3}
        | ({"batch_size": 8} if method == Method.SFT else {}),
        dataset=freeze_dataset(eval_set=eval_set, by=by),
        by=by,
    )
    assert run.claim("seed")
    said = [
        {"type": "metric", "step": step, "values": numbers(method, step, rng)}
        for step in range(1, STEPS + 1)
    ]
    said.append(
        {"type": "log", "level": "info", "message": "Shared prefix: 181 of 203 prompt tokens"}
    )
    if method == Method.GRPO:
        tasks = list(eval_set.tasks.trainable()[:3])
        said += [
            scored(environment, task, 0.6, rng) | {"index": i, "step": step, "phase": "train"}
            for step in (1, 2, 3)
            for task in tasks
            for i in range(4)
        ]
    source = folder / f"adapter-{method}-{eval_set.project.slug}"
    source.mkdir(parents=True, exist_ok=True)
    (source / "adapter_config.json").write_text("{}")
    (source / "adapter_model.safetensors").write_bytes(adapter_weights(source.name))
    say(run, [*said, {"type": "checkpoint", "step": STEPS, "path": str(source)}])
    complete(run, {"adapter": str(source)})
    run.refresh_from_db()
    assert run.state == JobState.SUCCEEDED, run.error
    return run


def say(job: Job, events: list[dict]) -> None:
    """Stores events as the runner does when a child writes them."""
    ended = {"type": "progress", "done": job.total, "total": job.total, "label": "done"}
    store(job, [event | {"seq": seq} for seq, event in enumerate([*events, ended], 1)])


def numbers(method: Method, step: int, rng: random.Random) -> dict[str, float]:
    """Curves of the usual shapes."""
    fallen = math.exp(-step / 8)
    if method == Method.SFT:
        return {
            "train/loss": 2.4 * fallen + 0.2 + rng.uniform(-0.05, 0.05),
            "train/grad_norm": 3 * fallen + 0.4,
        }
    values = {
        "train/loss": rng.uniform(-0.02, 0.02),
        "train/reward_mean": 0.9 - 0.7 * fallen + rng.uniform(-0.06, 0.06),
        "train/success": 0.85 - 0.5 * fallen,
        "train/kl": 0.04 * (1 - fallen),
        "train/entropy": 0.3 + 0.5 * fallen,
        "train/grad_norm": 0.5 + rng.uniform(0, 0.2),
        "train/zero_std_share": 0.3 * (1 - fallen),
        "train/truncated_share": 0.05 * fallen,
        "train/completion_length": 24 + rng.uniform(-2, 2),
        "time/generate_s": 9 + rng.uniform(0, 1),
        "time/update_s": 14 + rng.uniform(0, 1),
    }
    if step % 6 == 0:
        values |= {
            "validation/reward": 0.85 - 0.6 * fallen,
            "validation/success": 0.8 - 0.4 * fallen,
        }
    return values
