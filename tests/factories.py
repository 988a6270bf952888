"""Plain functions that make rows through the real actions."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy
from django.contrib.auth import get_user_model
from django.db import transaction
from django.test import override_settings
from django.utils import timezone
from safetensors.numpy import save

from apps.core import actions as core
from apps.core.models import JobState, Membership, Project, Role
from apps.demo.recipes import HARNESS, VERIFIER
from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import Environment
from apps.environments.packages import save_package
from apps.evals import actions as evals
from apps.evals import drafts, latency
from apps.evals.latency import submit_measurement
from apps.evals.meaning import check as meaning
from apps.evals.models import (
    EvalRun,
    EvalSet,
    LatencyMeasurement,
    MeaningCheck,
    Sample,
    Split,
    StepSearch,
    Task,
    TaskProposal,
)
from apps.evals.stats import summarise
from apps.failures.models import Failure, FailureCluster, PolicyRule, ReplyForm
from apps.failures.rules.reply_forms import Form
from apps.registry.actions import register_adapter, register_base, register_endpoint
from apps.registry.artifacts import store_folder
from apps.registry.models import Health, ModelVersion, Phase, Server, ServerRun
from apps.registry.servers import add_server
from apps.reviews.actions import override_lock
from apps.training.models import PromptSearch, Rollout, TrainingRun
from apps.training.prompt_search.actions import submit_search
from apps.trajectories import media_store
from apps.trajectories.actions import feedback
from apps.trajectories.actions.store import find, ingest
from apps.trajectories.models import Medium, Trajectory
from apps.trajectories.schema import Feedback, OutcomeChange
from workers.lib.environments.packages.discovery import discover
from workers.lib.environments.workplace import TOOLS
from workers.lib.messages import to_native

_numbers = itertools.count(1)
GENERAL_TICKETS = {1341, 1930, 4384}  # that tasks of the built-in general set close
TICKETS_OF_TESTS = {1234, 4321, 4711, 4712, 4713}  # that single tests close
TAKEN = GENERAL_TICKETS | TICKETS_OF_TESTS  # a made task of such a number would be the same task


def tool_message(call: dict, call_id: str = "call_1") -> dict:
    """The call as an OpenAI assistant message."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [to_native(call["tool"], call["args"], call_id)],
    }


def make_user(name: str = "") -> Any:
    return get_user_model().objects.create_user(
        name or f"user{next(_numbers):06}", password="secret"
    )


def make_project(admin: Any = None) -> Project:
    number = next(_numbers)
    return core.create_project(
        slug=f"project-{number}", name=f"Project {number}", by=admin or make_user()
    )


def admin_of(project: Project) -> Any:
    """Of this object of the project the same person each time: most of what is made asks."""
    if not (known := vars(project).get("admin_in_tests")):
        owners = project.memberships.filter(role=Role.OWNER).select_related("user")
        known = vars(project)["admin_in_tests"] = owners.first().user
    return copy(known)


def make_member(project: Project, role: Role = Role.ENGINEER) -> Any:
    user = make_user()
    Membership.objects.create(project=project, user=user, role=role)
    return user


def make_key(project: Project, may_see_holdout: bool = False) -> str:
    by = admin_of(project)
    return core.create_api_key(
        project=project, name="test", by=by, may_see_holdout=may_see_holdout
    )[1]


def key_headers(project: Project, may_see_holdout: bool = False) -> dict[str, str]:
    """Of a request of the test client with a new key of the project."""
    return {"HTTP_AUTHORIZATION": f"Bearer {make_key(project, may_see_holdout)}"}


def make_medium(trajectory: Trajectory) -> Medium:
    """A file of a run, as if it had been embedded in one of its messages."""
    data = b"%PDF-1.7 of " + str(trajectory.pk).encode()
    digest = hashlib.sha256(data).hexdigest()
    with transaction.atomic():
        (pk,) = media_store.keep(trajectory.project, {digest: data}).values()
        media_store.use([(trajectory.pk, pk)])
    return Medium.objects.get(pk=pk)


def row(
    name: str = "", request: str = "Close ticket 1234.", call: dict | None = None, **changes: Any
) -> dict:
    """A trajectory as an agent sends it; `call` is {"tool", "args"}, or None for an answer in
    words.
    """
    turns = (
        [tool_message(call), {"role": "tool", "tool_call_id": "call_1", "content": "Done."}]
        if call
        else [{"role": "assistant", "content": "I closed it."}]
    )
    return {
        "id": name or f"run-{next(_numbers)}",
        "agent": {"name": "assistant", "version": "1"},
        "messages": [{"role": "user", "content": request}, *turns],
        "tools": TOOLS,
        "latency_ms": 120.5,
        "usage": {"input_tokens": 100, "output_tokens": 20},
        **changes,
    }


def make_trajectory(project: Project, **given: Any) -> Trajectory:
    sent = row(**given)
    done = ingest(project=project, rows=[sent])
    assert not done.rejected, done.rejected
    found = find(project, sent["id"])
    assert found
    return found


def tell(trajectory: Trajectory, news: Feedback) -> Trajectory:
    """The trajectory after feedback from the API."""
    said = feedback.receive(
        project=trajectory.project, external_id=trajectory.external_id, news=news
    )
    assert said
    return said


def make_failed(project: Project, expected: dict | None = None, **given: Any) -> Trajectory:
    """A failed run whose user has said what would have been right: by default to close the ticket
    that the request names.
    """
    trajectory = make_trajectory(project, **given)
    number = re.search(r"\d+", given.get("request") or "")
    return tell(
        trajectory,
        Feedback(
            outcome=OutcomeChange(status="failure"),
            by="user",
            message_index=1,
            corrected=expected
            or {"tool": "tickets.close", "args": {"id": int(number[0]) if number else 1234}},
        ),
    )


def make_proposal(failure: Failure, **given: Any) -> TaskProposal:
    """A task proposed from a failure, as if the log had said what should result."""
    run = failure.trajectory
    usual = {
        "kind": "episode",
        "source": "ground truth in the log",
        "reason": "The changes that should result are known.",
        "cut": 1,
        "canonical_hash": hashlib.sha256(str(run.pk).encode()).hexdigest(),
        "messages": run.messages[:1],
        "tools": run.tools,
        "expected": {"calls": [{"tool": "tickets.close", "args": {"id": 1234}}], "lookups": []},
        "group": f"trajectory:{run.external_id}",
    }
    return TaskProposal.objects.create(
        project=run.project, trajectory=run, failure=failure, **usual | given
    )


def make_cluster(failure: Failure) -> FailureCluster:
    """A cluster of one failure, as a run of the clustering would store it."""
    began = failure.trajectory.started_at
    cluster = FailureCluster.objects.create(
        project=failure.project,
        name="similar failures",
        mode=failure.mode,
        size=1,
        first_seen=began,
        last_seen=began,
        signature={
            "columns": [1],
            "weights": [1.0],
            "radius": 0.5,
            "mode": "",
            "name": "similar failures",
            "facts": [],
            "causes": [],
        },
    )
    Failure.objects.filter(pk=failure.pk).update(cluster=cluster)
    return cluster


def make_policy_rule(
    trajectory: Trajectory, sentence: str = "Closed tickets cannot be closed."
) -> PolicyRule:
    """A rule that the judge read in a prompt, and that the run breaks."""
    project = trajectory.project
    prompt = project.system_prompts.create(
        digest=sentence[:32],
        opening=sentence,
        length=len(sentence),
        read_at=timezone.now(),
        read_by="judge-model",
        trajectory=trajectory,
    )
    check = {"when": {"tools": ["tickets.close"]}, "must": "never"}
    rule = prompt.rules.create(
        project=project, sentence=sentence, quote=sentence, parts=["x"], check_spec=check, tried=1
    )
    rule.examples.create(trajectory=trajectory, message_index=1, text="tickets.close changed 1234.")
    return rule


def make_reply_form(trajectory: Trajectory) -> ReplyForm:
    """A form that, according to the judge, says that a call failed."""
    form = Form("tickets.close", "record", "koodi\ntila", (("tila", ("HYLATTY",), True),))
    return trajectory.project.reply_forms.create(
        tool=form.tool,
        digest=form.digest,
        kind=form.kind,
        structure=form.structure,
        values=form.values,
        good=3,
        runs=3,
        trajectory=trajectory,
        reply_index=len(trajectory.content["messages"]) - 1,
        state=ReplyForm.State.PROPOSED,
        quote="HYLATTY",
        read_at=timezone.now(),
        read_by="judge-model",
    )


def make_environment(project: Project) -> Environment:
    by = admin_of(project)
    verifier = save_verifier(project=project, name="tool-call", spec=VERIFIER, by=by)
    return save_environment(
        project=project,
        slug="workplace",
        builtin="workplace",
        harness=HARNESS,
        verifier=verifier,
        by=by,
    )


PACKAGE = """
from flywheel_sdk import Environment, tool

class Counter(Environment):
    "Counts."
    def start(self, task):
        return {"value": 0}
    @tool
    def add(self, amount: int) -> int:
        "Adds."
        self.state["value"] += amount
        return self.state["value"]
    def tasks(self):
        return [{"id": "two", "prompt": "Count to two.", "expected": {"tool": "add", "args": \
{"amount": 2}}}]
    def verify(self, attempt):
        return attempt.state["value"] == 2
"""


def write_package(folder: Path, name: str = "counter", code: str = PACKAGE) -> Path:
    """A package in a folder of environments."""
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    (home / "__init__.py").write_text(code)
    return home


def make_package(project: Project, folder: Path, slug: str = "zcounter") -> Environment:
    """An environment of the package that `write_package` writes."""
    write_package(folder)
    found = next(one for one in discover(folder) if one.name == "counter")
    return save_package(project=project, slug=slug, found=found, by=admin_of(project))


def override(environment: Environment, reason: str = "test") -> None:
    """Opens the lock by a second owner, so that whoever wrote the verifier may start the
    training.
    """
    override_lock(
        verifier=environment.verifier,
        reason=reason,
        by=make_member(environment.project, Role.OWNER),
    )


def make_base_folder(folder: Path) -> Path:
    """A folder of the form of a base model; the weights mean nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def make_base(project: Project, folder: Path) -> ModelVersion:
    return register_base(
        project=project, name="base", folder=make_base_folder(folder / "base"), by=admin_of(project)
    )


def adapter_weights(name: str) -> bytes:
    """A safetensors file of one number, different for different names."""
    number = (
        numpy.frombuffer(hashlib.sha256(name.encode()).digest()[:2], numpy.uint16)
        .astype(numpy.float32)
        .reshape(1, 1)
        + 1
    )
    return save({"model.layers.0.self_attn.q_proj.lora_B.weight": number})


def make_checkpoint(run: Any, step: int) -> Any:
    """Of an attempt that ran on this machine, which died before the checkpoint was kept."""
    from apps.core.job_files import job_folder

    made = run.checkpoints.create(step=step, attempt=1)
    folder = job_folder(run) / made.folder
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(f'{{"step": {step}}}')
    return made


def make_adapter(
    project: Project,
    parent: ModelVersion,
    folder: Path,
    name: str = "adapter",
    config: dict[str, Any] | None = None,
) -> ModelVersion:
    source = folder / f"adapter-{next(_numbers)}"
    source.mkdir()
    (source / "adapter_config.json").write_text(json.dumps(config or {}))
    (source / "adapter_model.safetensors").write_bytes(adapter_weights(source.name))
    return register_adapter(
        project=project,
        name=name,
        parent=parent,
        artifact=store_folder(source),
        lineage={},
        by=admin_of(project),
    )


def make_server(
    project: Project, base_url: str = "http://127.0.0.1:8123/v1", **fields: Any
) -> Server:
    """Needs FLYWHEEL_ALLOW_PRIVATE_URLS."""
    name = fields.pop("name", f"server-{next(_numbers)}")
    fields = {"name": name, "base_url": base_url, **fields}
    return add_server(project=project, fields=fields, by=admin_of(project), operator=True)


def make_managed(base: ModelVersion, base_url: str) -> Server:
    """A managed server of a base that is up, with two LoRA slots."""
    server = Server.objects.create(
        project=base.project,
        name="gpu",
        kind="vllm",
        base=base,
        dialect="text",
        health=Health.HEALTHY,
        base_url=base_url,
        serving={
            "dtype": "auto",
            "context": 0,
            "lora_slots": 2,
            "max_lora_rank": 16,
            "options": {},
        },
    )
    ServerRun.objects.create(
        project=base.project, name="gpu", server=server, state=JobState.RUNNING, phase=Phase.UP
    )
    return server


def make_endpoint(
    project: Project, server: Server | None = None, served_as: str = "m", **fields: Any
) -> ModelVersion:
    given = {
        "project": project,
        "name": "m",
        "served_as": served_as,
        "by": admin_of(project),
        **fields,
    }
    return register_endpoint(server=server or make_server(project), **given)


def make_rollouts(
    run: TrainingRun,
    rewards: list[float | None],
    step: int = 1,
    task: int = 0,
    phase: str = "train",
) -> list[Rollout]:
    """The group of one training task in one step; None is masked."""
    chosen = run.dataset.tasks()[task]
    return Rollout.objects.bulk_create(
        Rollout(
            run=run,
            task=chosen,
            phase=phase,
            step=step,
            index=index,
            output="x",
            reward=reward,
            masked=reward is None,
            mask_reason="The judge did not answer." if reward is None else "",
            success=reward == 1,
            valid=True,
            components={} if reward is None else {"tool": reward},
            details=["wrong tool: mail"] if reward == 0 else [],
        )
        for index, reward in enumerate(rewards)
    )


def make_eval_set(
    project: Project,
    train: int = 3,
    holdout: int = 3,
    frozen: bool = True,
    validation: int = 0,
    regression: int = 0,
) -> EvalSet:
    by = admin_of(project)
    eval_set = evals.create_eval_set(project=project, slug=f"set-{next(_numbers)}", by=by)
    splits = [Split.TRAIN] * train + [Split.VALIDATION] * validation + [Split.HOLDOUT] * holdout
    splits += [Split.REGRESSION] * regression
    numbers = (ticket for count in _numbers if (ticket := 1000 + count % 4000) not in TAKEN)
    tasks = [
        evals.written_task(
            eval_set,
            key=f"task-{number}",
            request=f"Close ticket {number}.",
            split=split,
            by=by,
            expected={"tool": "tickets.close", "args": {"id": number}},
        )
        for split, number in zip(splits, numbers, strict=False)
    ]
    with unsearched():
        made = evals.store_tasks(eval_set=eval_set, tasks=tasks, by=by, what="made").made
        assert made == len(tasks)
        return freeze_set(eval_set, by) if frozen else eval_set


@transaction.atomic
def task_from_trajectory(
    *, eval_set: EvalSet, trajectory: Trajectory, split: Split, by: Any
) -> Task:
    """A task of one run, in a draft. Raises EvalSetError that says why it cannot be added."""
    task = evals.build_task(evals.locked_draft(eval_set), trajectory, split)
    return evals.store_task(task, by)


@contextmanager
def unsearched() -> Iterator[None]:
    """Tasks of a made set differ by their ticket: to look for leaks among them was three quarters
    of what a set takes.
    """
    with patch("apps.evals.holdout.leaks.near", return_value=[]):
        yield


def freeze_set(eval_set: EvalSet, by: Any = None) -> EvalSet:
    """Frozen, whether it holds tasks out or not."""
    without = not eval_set.tasks.holdout().exists()
    return drafts.freeze(eval_set=eval_set, by=by, without_holdout=without)


def make_eval_run(
    eval_set: EvalSet,
    model: ModelVersion,
    environment: Environment,
    success: float = 0.5,
    samples: int = 4,
    unsafe: int = 0,
) -> EvalRun:
    """A finished evaluation whose first `success` share of each task's samples succeed."""
    from apps.evals.jobs import rows_of

    run = EvalRun.objects.create(
        project=eval_set.project,
        name=f"{model} on {eval_set}",
        eval_set=eval_set,
        split=Split.HOLDOUT,
        environment=environment,
        model_version=model,
        samples_per_task=samples,
        spec={"seed": 0, "batch_size": 8},
        created_by=admin_of(eval_set.project),
    )
    rows = []
    for task in eval_set.tasks.holdout():
        for index in range(samples):
            good = index < round(success * samples)
            rows.append(
                Sample(
                    run=run,
                    task=task,
                    index=index,
                    output=task.demonstration if good else "no",
                    reward=1.0 if good else -1.0,
                    success=good,
                    valid=good,
                    tool_ok=good,
                    args_score=float(good),
                    executed=good,
                    unsafe=index < unsafe,
                    components={"tool": 0.4} if good else {"invalid": -1.0},
                    latency_ms=100.0,
                    input_tokens=50,
                    output_tokens=20,
                )
            )
    Sample.objects.bulk_create(rows)
    run.claim("test")
    run.finish(JobState.SUCCEEDED, result={"metrics": summarise(rows_of(run.samples.all()))})
    run.refresh_from_db()
    return run


def make_step_search(
    failure: Failure, environment: Environment, version: ModelVersion
) -> StepSearch:
    """As it is while it runs, with two continuations from the agent's first step, one of which has
    succeeded.
    """
    forecast = {"steps": 1, "continuations": 16, "input_tokens": 90, "output_tokens": 9}
    search = StepSearch.objects.create(
        project=failure.project,
        failure=failure,
        environment=environment,
        model_version=version,
        name="Step of a run",
        total=16,
        spec={
            "seed": 0,
            "each": 8,
            "every": False,
            "temperature": 1.0,
            "most_tokens": 0,
            "engine": {"kind": "transformers", "asked": "auto"},
            "prompt": {},
            "places": [1],
            "steps": [1],
            "content": failure.trajectory.content_digest,
            "scored_by": "a task",
            "forecast": forecast | {"usd": None, "seconds": None},
        },
    )
    for index in range(2):
        search.continuations.create(
            step=1,
            index=index,
            output="Better.",
            messages=[{"role": "assistant", "content": "Better."}],
            reward=float(index),
            success=bool(index),
        )
    return search


def make_meaning_check(eval_set: EvalSet, version: ModelVersion) -> MeaningCheck:
    """A finished semantic check of a draft, with one pair."""
    job = meaning.submit(
        eval_set=eval_set, source=meaning.Source(version=version.pk), by=admin_of(eval_set.project)
    )
    job.claim("test")
    spec = meaning.comparison_spec(job)
    pair = {
        "held": spec.held[0].id,
        "other": spec.others[0].id,
        "text": 0,
        "score": 0.5,
    }
    job.finish(
        JobState.SUCCEEDED, result=meaning.complete(job, {"pairs": [pair], "texts": 6, "known": 0})
    )
    job.refresh_from_db()
    return job


def make_measurement(runs: list[EvalRun], took: list[float], failed: int = 0) -> LatencyMeasurement:
    """A finished measurement: each run's model took so many milliseconds; its last `failed` answers
    failed.
    """
    measurement = submit_measurement(runs=runs, by=admin_of(runs[0].project), rounds=2)
    measurement.claim("test")
    tasks = measurement.spec["tasks"]
    events = [
        {
            "type": "sample",
            "version": str(run.pk),
            "task_id": task,
            "round": number,
            "turn": turn,
            "input_tokens": 50,
            "output_tokens": 20,
            "latency_ms": (
                None
                if turn and at >= len(tasks) - failed
                else ms * (1 + 0.01 * (at * (turn + 2) % 7))
            ),
        }
        for number in range(2)
        for at, task in enumerate(tasks)
        for turn, (run, ms) in enumerate(zip(runs, took, strict=True))
    ]
    latency.store_events(measurement, events)
    measurement.finish(
        JobState.SUCCEEDED, result=latency.complete(measurement, {"metrics": {"rounds": 2}})
    )
    measurement.refresh_from_db()
    return measurement


def make_search(
    version: ModelVersion, eval_set: EvalSet, environment: Environment, **given: Any
) -> PromptSearch:
    """A queued prompt search. Needs validation tasks and an open lock."""
    project = eval_set.project
    server = (
        given.pop("server", None)
        or Server.objects.filter(project=project).first()
        or make_server(project)
    )
    config = {"most_calls": 100} | given.pop("config", {})
    with override_settings(FLYWHEEL_GEPA_PYTHON=sys.executable):
        return submit_search(
            project=project,
            version=version,
            eval_set=eval_set,
            environment=environment,
            server=server,
            model="writer",
            config=config,
            by=given.pop("by", admin_of(project)),
            **given,
        )


def candidate_event(number: int, state: str, prompt: str, **more: Any) -> dict:
    """What a search reports of a proposal."""
    parent = 0 if number else None
    given = {
        "number": number,
        "state": state,
        "prompt": prompt,
        "parent": parent,
        "calls": 10 * (number + 1),
        "usd": 0.01,
    }
    return {"type": "candidate"} | given | more
