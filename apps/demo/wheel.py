"""One full cycle of the flywheel: the steps of `manage.py demo`, through the same actions and API
that everyone uses.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import OperationalError, connection
from rich.console import Console

from apps.core.actions import create_api_key, create_project
from apps.core.models import Job, JobState, Project
from apps.core.scopes import Scope
from apps.demo.pace import Pace, in_words
from apps.demo.recipes import (
    AT_ONCE,
    FIRST,
    HARNESS,
    LAST,
    MODEL,
    NEXT,
    PRODUCTION,
    REVIEWED,
    SECOND,
    SYSTEM_PROMPT,
    TRY,
    VERIFIER,
    Recipe,
)
from apps.demo.screen import bars, table_of
from apps.environments.actions import save_environment, save_verifier
from apps.environments.models import Environment
from apps.evals import actions as evals
from apps.evals import drafts
from apps.evals.latency import latencies, submit_measurement
from apps.evals.models import EvalRun, EvalSet, EvalSetState, Split, Task
from apps.evals.submission import submit_eval
from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Failure
from apps.promotion import actions as promotion
from apps.promotion.deployment import actions as deployments
from apps.promotion.deployment import fingerprints
from apps.promotion.models import GateReport, Verdict
from apps.registry import managed
from apps.registry.actions import register_base
from apps.registry.engines import in_process, model_spec
from apps.registry.models import Dialect, ModelVersion, Server, ServerKind
from apps.reviews.actions import judge, lock_of, open_review, override_lock
from apps.reviews.lock import Lock
from apps.reviews.models import ProbeRun
from apps.reviews.rescoring import submit_probe
from apps.training.actions import freeze_dataset, submit_training
from apps.training.advice import advice_of
from apps.training.models import Method, TrainingRun
from apps.trajectories.models import Outcome, Trajectory, with_content
from workers.lib.environments.requests import make_requests
from workers.lib.latency import typical_ratio
from workers.lib.shares import room
from workers.lib.specs.demo_agent import AgentName, Api, DemoAgent, Request
from workers.lib.typed import plain

JUDGED_BY_SCRIPT = (
    "Judged by the demo, which knows what each request was written from. In your project, people"
    " judge."
)
OVERRIDE_REASON = "The demo runs unattended, and the outputs that it judged do not suffice."
TRAINING_GIB = 4  # that a process of a training run may take
PROJECT = ("workplace-assistant", "Workplace assistant")
SERVER, ARRIVE_S, TRIES, POLL_S = "production", 120.0, 3, 0.2


class DemoError(Exception):
    """A step that failed; the message says why."""


@dataclass(eq=False)
class Station:
    """A job of the demo and what its step is called."""

    title: str
    job: Any
    show: Callable[[Station], None] = lambda _: None  # once it has succeeded


@dataclass
class Demo:
    """One cycle against a running stack at `url`."""

    url: str
    recipe: Recipe
    seed: int
    console: Console = field(default_factory=Console)
    seconds: dict[str, float] = field(default_factory=dict)
    endpoint: str = ""  # where the endpoint listens; "" leaves production's own traffic out
    model: subprocess.Popen[str] | None = None  # what prepares its folder, if it was started before
    popen: Callable[..., subprocess.Popen] = subprocess.Popen  # of what loads a model

    def run(self) -> dict:
        """All steps; returns the report, which is also written to var/demo/report.json. Raises
        DemoError.
        """
        began, self.pace = time.monotonic(), Pace(self.recipe.stages)
        self.user = get_user_model().objects.filter(is_superuser=True).order_by("pk").first()
        slug, name = PROJECT
        found = Project.objects.filter(slug=slug).first()
        self.project = found or create_project(slug=slug, name=name, by=self.user)
        with self.stage(PRODUCTION):
            self.prepare()
            trajectories = self.produce()
            fingerprints.ask_for(self.base, by=self.user)  # the server's promotion compares with it
            self.classify()
            self.collect(trajectories)
        # What does not need each other runs at the same time: one process leaves half of two cores
        # idle. Evaluations have one queue, training another.
        with self.stage(FIRST):
            baseline = self.evaluation(self.base, "4 · Baseline")
            probe = self.probe()
            sft_run = self.training(Method.SFT, self.base, self.recipe.sft, "6 · SFT")
            self.wait(baseline, probe, sft_run)
            sft = sft_run.job.model_version
        with self.stage(SECOND):
            samples = self.samples_to_review(sft)
            sft_eval = self.evaluation(sft, "6 · SFT evaluated")
            fingerprints.ask_for(sft, by=self.user)  # beside GRPO; the gate would ask for it later
            server = self.start_server() if self.endpoint else None
            self.review(samples)
            grpo_run = self.training(Method.GRPO, sft, self.recipe.grpo, "7 · GRPO")
            if server:
                self.serve(server)
            self.wait(sft_eval, grpo_run)
        with self.stage(LAST):
            grpo_eval = self.evaluation(grpo_run.job.model_version, "7 · GRPO evaluated")
            self.wait(grpo_eval)
            self.settle(*self.channel.deployments.active())
            report = self.decide([baseline.job, sft_eval.job, grpo_eval.job])
            report["probes"] = _probe_report(probe.job)
            if self.endpoint:
                report["next_day"] = self.next_day(trajectories)
        report["seconds"] = self.seconds | {"total": time.monotonic() - began}
        return self.write(report)

    # 0

    def prepare(self) -> None:
        with self.timed("prepare"):
            self.finished(self.model or start_preparing(self.popen))
            self.base = register_base(
                project=self.project, name="smollm2-135m", folder=model_folder(), by=self.user
            )
            verifier = save_verifier(
                project=self.project, name="tool-call", spec=VERIFIER, by=self.user
            )
            self.environment: Environment = save_environment(
                project=self.project,
                slug="workplace",
                builtin="workplace",
                harness=HARNESS,
                verifier=verifier,
                by=self.user,
            )
            self.channel = promotion.channel_of(self.project)
            if self.channel.current is None:
                promotion.set_initial(channel=self.channel, version=self.base, by=self.user)
            self.back_to_base()
        self.found("0 · Ready", f"production runs {self.base}")

    def back_to_base(self) -> None:
        """Rolls the channel back to the base. Its targets are removed first, so it moves
        immediately, whatever the state of an earlier demo's server.
        """
        for target in self.channel.targets.current():
            deployments.remove_target(target=target, by=self.user)
        self.channel.refresh_from_db()
        while self.channel.current != self.base:
            promotion.rollback(
                channel=self.channel,
                by=self.user,
                reason="the demo starts again from the base model",
            )
            self.channel.refresh_from_db()

    def finished(self, program: subprocess.Popen[str]) -> None:
        _, said = program.communicate()
        if program.returncode:
            raise DemoError(said.strip().splitlines()[-1] if said.strip() else "A program failed.")

    # 1

    def produce(self) -> list[Trajectory]:
        """The production agent answers requests and logs them through the public API."""
        with self.timed("produce"):
            prefix = f"demo-{self.seed}-{self.recipe.requests}"
            requests = make_requests(self.seed, self.recipe.requests)
            self.run_agent("1 · Production", requests, model_name=str(self.base), id_prefix=prefix)
        rows = list(
            Trajectory.objects.filter(
                project=self.project, external_id__startswith=f"{prefix}-"
            ).order_by("external_id")  # two processes send them
        )
        if len(rows) != self.recipe.requests:
            raise DemoError(f"Only {len(rows)} of {self.recipe.requests} trajectories arrived.")
        outcomes = Counter(row.outcome_status for row in rows)
        self.found(
            "1 · Production",
            f"{len(rows)} trajectories logged through the API, {outcomes['failure']} failed",
        )
        return with_content(rows)

    def run_agent(
        self,
        title: str,
        requests: list[dict],
        *,
        model_name: str,
        id_prefix: str = "",
        endpoint: str = "",
    ) -> dict:
        """Returns the agent's final report. Raises DemoError."""
        name = f"demo agent, seed {self.seed}"
        _, key = create_api_key(
            project=self.project, name=name, by=self.user, scopes=[Scope.INGEST, Scope.GENERATE]
        )
        folder = Path(settings.FLYWHEEL_DATA_DIR) / "demo"
        folder.mkdir(exist_ok=True)
        path = folder / "agent.json"
        path.touch(mode=0o600)
        spec = DemoAgent(
            model=model_spec(self.base),
            engine=in_process(AT_ONCE),
            environment=self.environment.as_spec(),
            requests=[Request(**request) for request in requests],
            api=Api(url=self.url, key=key),
            endpoint=Api(url=endpoint, key=key) if endpoint else None,
            agent=AgentName(name="workplace-assistant", version="1"),
            seed=self.seed,
            model_name=model_name,
            id_prefix=id_prefix,
        )
        path.write_text(json.dumps(plain(spec)))
        try:
            popen = subprocess.Popen if endpoint else self.popen
            return self.follow_agent(path, title, popen)
        finally:
            path.unlink()
            connection.close()  # minutes old: the database may have been away meanwhile

    def follow_agent(self, path: Path, title: str, popen: Callable[..., subprocess.Popen]) -> dict:
        log, result = Path(settings.FLYWHEEL_DATA_DIR) / "logs" / "demo-agent.log", {}
        with log.open("a") as stderr, bars(self.console) as add:
            advance = add(title)
            process = popen(
                [sys.executable, "-m", "workers.demo_agent", str(path)],
                cwd=settings.BASE_DIR,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
            assert process.stdout is not None
            for line in process.stdout:
                event = json.loads(line)
                if event["type"] == "progress":
                    advance(event["done"], event["total"], event["label"])
                elif event["type"] == "error":
                    raise DemoError(f"The agent failed: {event['message']}")
                elif event["type"] == "result":
                    result = event
        if process.wait():
            raise DemoError(f"The agent exited with status {process.returncode}. See {log}.")
        return result

    # 2

    def classify(self) -> None:
        with self.timed("classify"):
            classify_project(project=self.project, by=self.user)
        buckets = Counter(
            Failure.objects.filter(project=self.project)
            .standing()
            .values_list("mode__name", flat=True)
        )
        self.found(
            "2 · Failures", ", ".join(f"{name} {count}" for name, count in buckets.most_common())
        )

    # 3

    def collect(self, trajectories: list[Trajectory]) -> None:
        """Turns failures and successes into tasks; whole groups go to a hold-out, and the set is
        frozen.
        """
        with self.timed("collect"):
            slug = f"workplace-{self.seed}-{self.recipe.requests}"
            known = EvalSet.objects.filter(
                project=self.project, slug=slug, state=EvalSetState.FROZEN
            ).last()
            self.eval_set = known or self.new_eval_set(slug, trajectories)
        sizes = Counter(self.eval_set.tasks.values_list("split", flat=True))
        split_sizes = ", ".join(f"{n} {name}" for name, n in sizes.items())
        self.found(
            "3 · Eval set",
            f"{self.eval_set} {'of an earlier run' if known else 'frozen'}: {split_sizes}",
        )

    def new_eval_set(self, slug: str, trajectories: list[Trajectory]) -> EvalSet:
        eval_set = evals.create_eval_set(
            project=self.project, slug=slug, by=self.user, description=f"Demo, seed {self.seed}"
        )
        evals.tasks_from_trajectories(eval_set=eval_set, trajectories=trajectories, by=self.user)
        try:
            drafts.split_by_group(
                eval_set=eval_set,
                holdout_size=self.recipe.holdout,
                validation_size=self.recipe.validation,
                seed=self.seed,
                by=self.user,
            )
        except evals.EvalSetError as error:
            eval_set.delete()
            raise DemoError(
                f"{error} Most requests of this seed are already used for training or held out. Try"
                " another seed."
            ) from error
        return drafts.freeze(eval_set=eval_set, by=self.user)

    # 4, 6, 7

    def evaluation(self, model: ModelVersion, title: str) -> Station:
        run = submit_eval(
            project=self.project,
            eval_set=self.eval_set,
            split=Split.HOLDOUT,
            environment=self.environment,
            model_version=model,
            samples_per_task=self.recipe.samples_per_task,
            batch_size=AT_ONCE,
            seed=self.seed,
            by=self.user,
        )
        return Station(title, run, self.show_evaluation)

    def show_evaluation(self, station: Station) -> None:
        metrics = station.job.result["metrics"]
        success, passes = metrics["success"], metrics["pass_at_k"]
        k = max(passes, key=int)
        self.found(
            station.title,
            f"success {success['mean']:.1%} [{success['low']:.1%}, {success['high']:.1%}] on"
            f" {success['n']} held-out tasks, pass@{k} {passes[k]:.1%}, reward"
            f" {metrics['reward']['mean']:+.2f}",
        )
        for advice in advice_of(station.job):
            self.found("5 · Advisor", f"{advice.title}. {advice.why}")

    def training(self, method: Method, parent: ModelVersion, config: dict, title: str) -> Station:
        run = submit_training(
            project=self.project,
            method=method,
            parent=parent,
            dataset=freeze_dataset(eval_set=self.eval_set, by=self.user),
            environment=self.environment,
            config=divided(config),
            seed=self.seed,
            by=self.user,
        )
        return Station(title, run, self.show_training)

    def show_training(self, station: Station) -> None:
        run, steps = station.job, station.job.spec["config"]["steps"]
        seconds = run.seconds or 0
        self.found(station.title, f"{run.model_version} after {steps} steps in {seconds:.0f} s")
        self.seconds[f"{run.method}_per_step"] = seconds / steps

    # 5

    def probe(self) -> Station:
        """Attacks the reward before it is used for training."""
        run = submit_probe(environment=self.environment, eval_set=self.eval_set, by=self.user)
        return Station("5 · Probes", run, self.show_probe)

    def show_probe(self, station: Station) -> None:
        run = station.job
        holes = f"{run.failed} holes" if run.failed else "no holes"
        number = run.result["attacks"]["n"]
        self.found(station.title, f"{number} attacks on {run.verifier} found {holes}")

    def lock(self) -> Lock:
        return lock_of(environment=self.environment, tasks=self.training_tasks(), by=self.user)

    def samples_to_review(self, model: ModelVersion) -> Station | None:
        """None if the lock is open. SFT did not need it, since no verifier decides what it
        learns."""
        if not self.lock().locked:
            return None
        run = submit_eval(
            project=self.project,
            eval_set=self.eval_set,
            split=Split.TRAIN,
            environment=self.environment,
            model_version=model,
            subset=REVIEWED,
            samples_per_task=-(-REVIEWED // len(self.training_tasks())),
            seed=self.seed,
            by=self.user,
        )
        return Station("7 · Samples to review", run)

    def review(self, samples: Station | None) -> None:
        """Opens the lock as a person does: outputs on training tasks are judged blind, by what each
        request was written from.
        """
        if samples is None:
            return
        self.wait(samples)
        review = open_review(runs=[samples.job], by=self.user, seed=self.seed)
        items = review.items.select_related("sample__task")
        for item in items:
            right = is_right(item.sample.output, item.sample.task.expected)
            judge(item=item, success=right, by=self.user, note=JUDGED_BY_SCRIPT)
        lock = self.lock()
        if lock.locked:  # too few failures or successes among the outputs
            override_lock(
                verifier=self.environment.verifier,
                reason=f"{OVERRIDE_REASON} {lock.why}",
                by=self.user,
            )
        said = lock.why if lock.locked else f"{lock.why} {JUDGED_BY_SCRIPT}"
        self.found("7 · Review", said)

    def training_tasks(self) -> list[Task]:
        return list(self.eval_set.tasks.trainable())

    # 8

    def measure(self, runs: list[EvalRun]) -> None:
        """Latency of all three models in turns, so that a busy machine slows each of them down
        equally.
        """
        job = submit_measurement(
            runs=runs,
            by=self.user,
            tasks=self.recipe.timed_tasks,
            rounds=self.recipe.timed_rounds,
            seed=self.seed,
        )
        self.wait(Station("8 · Latency", job))
        first, *others = runs
        times = {run: latencies(job, run) for run in runs}
        tasks = [task for task in times[first] if all(task in found for found in times.values())]
        medians = [job.result["runs"][str(run.pk)]["p50"] for run in runs]
        shown = [f"{first.model_version} {medians[0]:.0f} ms"]
        for run, median in zip(others, medians[1:], strict=True):
            sides = ([times[side][task] for task in tasks] for side in (first, run))
            ratio = typical_ratio(*sides, error=0.025)
            shown.append(
                f"{run.model_version} {median:.0f} ms, {ratio.value:.2f} times as long"
                f" [{ratio.low:.2f}, {ratio.high:.2f}]"
            )
        self.found("8 · Latency", f"in turns on {len(tasks)} tasks: {'; '.join(shown)}")

    def start_server(self) -> tuple[Server, Job]:
        server = self.project.servers.filter(name=SERVER).first()
        if server is None:
            fields = {
                "name": SERVER,
                "base": self.base,
                "kind": ServerKind.TRANSFORMERS,
                "dialect": Dialect.NATIVE,
            }
            server = managed.add_managed(project=self.project, fields=fields, by=self.user)
        return server, managed.start(server=server, by=self.user)

    def serve(self, started: tuple[Server, Job]) -> None:
        """Makes the server with the base a target of the channel, so that a promotion loads the
        winner there.
        """
        server, run = started
        with self.timed("8 · Server"):
            while not managed.is_up(server):
                run.refresh_from_db()
                if not run.is_active:
                    raise DemoError(f"8 · Server: {run.error}")
                time.sleep(POLL_S)
                server.refresh_from_db()
            if not self.channel.targets.current().filter(server=server).exists():
                deployments.add_target(channel=self.channel, server=server, by=self.user)
        self.found(
            "8 · Server",
            f"server {server} is up (transformers); {self.base} answers at {self.endpoint}",
        )

    def settle(self, *deployments: Job) -> bool:
        """Waits for the deployments; whether all succeeded. On a busy machine a server may not
        answer in time.
        """
        for deployment in deployments:
            while deployment.is_active:
                time.sleep(POLL_S)
                deployment.refresh_from_db()
        return all(deployment.state == JobState.SUCCEEDED for deployment in deployments)

    def promote(self, winner: GateReport, reason: str) -> None:
        """Promotes the winner: the channel moves once the server serves the verified version.
        Raises DemoError if it does not.
        """
        for _ in range(TRIES):
            moved = promotion.promote(
                channel=self.channel, report=winner, by=self.user, reason=reason
            )
            if not isinstance(moved, Job) or self.settle(moved):
                return self.channel.refresh_from_db()
        raise DemoError(f"8 · Promotion: {moved.error}")

    def decide(self, runs: list[EvalRun]) -> dict:
        """Runs the gate on every pair; promotes the best model that passes against the baseline."""
        self.measure(runs)
        baseline, sft, grpo = runs
        reports = {
            name: promotion.make_gate_report(baseline=before, candidate=after, by=self.user)
            for name, before, after in (
                ("baseline→sft", baseline, sft),
                ("baseline→grpo", baseline, grpo),
                ("sft→grpo", sft, grpo),
            )
        }
        passed = [
            reports[name]
            for name in ("baseline→sft", "baseline→grpo")
            if reports[name].verdict == Verdict.PROMOTE
        ]
        winner = max(passed, key=_quality, default=None)
        if winner:
            why = _why(winner)
            with self.timed("8 · Promotion"):
                self.promote(winner, f"The demo's winner. {why}")
            self.found(
                "8 · Gate", f"{winner.candidate.model_version} was promoted to production. {why}"
            )
        else:
            self.found("8 · Gate", "no model passed the gate; production keeps the baseline")
        self.show(runs, reports)
        return {
            "seed": self.seed,
            "recipe": asdict(self.recipe),
            "eval_set": str(self.eval_set),
            "eval_set_digest": self.eval_set.digest,
            "environment": self.environment.hash,
            "models": {
                name: _model_report(run)
                for name, run in zip(("baseline", "sft", "grpo"), runs, strict=True)
            },
            "gate": {
                name: report.report | {"id": str(report.pk)} for name, report in reports.items()
            },
            "promoted": str(winner.candidate.model_version) if winner else None,
            "failures": dict(
                Counter(
                    Failure.objects.filter(project=self.project).values_list(
                        "mode__slug", flat=True
                    )
                )
            ),
            "runs": {
                run.method: str(run.pk)
                for run in TrainingRun.objects.filter(dataset__eval_set=self.eval_set)
            },
            "versions": {
                name: version(name) for name in ("torch", "transformers", "peft", "trl", "Django")
            },
        }

    # 9

    def next_day(self, before: list[Trajectory]) -> dict:
        """The agent calls the endpoint, where the promoted version answers; users report outcomes
        and failures are classified.
        """
        with self.timed("9 · Next day"):
            requests = make_requests(self.seed + 1000, self.recipe.next_day)
            given = {"endpoint": self.endpoint, "model_name": self.channel.name}
            names = self.run_agent("9 · Next day", requests, **given)["trajectories"]
            rows = self.arrived(names)
            classify_project(project=self.project, by=self.user)
        shares = {"before": _failed(before), "after": _failed(rows)}
        self.found(
            "9 · Next day",
            f"{len(rows)} requests through the endpoint to {self.channel.current}:"
            f" {shares['after']:.0%} failed, {shares['before']:.0%} before. Failures by mode before"
            f" and after: {self.url}/p/{self.project.slug}/",
        )
        return {"requests": len(rows), "version": str(self.channel.current)} | shares

    def arrived(self, names: list[str]) -> list[Trajectory]:
        """The endpoint's trajectories, once all are stored with their users' feedback. Raises
        DemoError.
        """
        until = time.monotonic() + ARRIVE_S
        while True:
            rows = list(
                Trajectory.objects.filter(project=self.project, external_id__in=names).exclude(
                    outcome_status=Outcome.UNKNOWN
                )
            )
            if len(rows) == len(names):
                return rows
            if time.monotonic() > until:
                raise DemoError(
                    f"Only {len(rows)} of the endpoint's {len(names)} trajectories arrived within"
                    f" {ARRIVE_S} s."
                )
            time.sleep(POLL_S)

    def write_key(self) -> Path:
        """A key for trying the endpoint, readable by whoever runs the demo."""
        path = Path(settings.FLYWHEEL_DATA_DIR) / "demo" / "key"
        _, key = create_api_key(
            project=self.project, name="README", by=self.user, scopes=[Scope.GENERATE]
        )
        path.touch(mode=0o600)
        path.write_text(key)
        return path

    def show(self, runs: list[EvalRun], reports: dict[str, GateReport]) -> None:
        self.console.print(table_of(runs, self.recipe.samples_per_task))
        for name, report in reports.items():
            self.console.print(f"[bold]{name}[/]: {report.verdict} – {report.report['summary']}")

    def write(self, report: dict) -> dict:
        path = Path(settings.FLYWHEEL_DATA_DIR) / "demo" / "report.json"
        path.write_text(json.dumps(report, indent=1, default=str))
        self.console.print(f"Report: {path} ({report['seconds']['total']:.0f} s in total)")
        self.console.print("\n[bold]What to try next[/]")
        if self.endpoint:
            command = curl_command(self.endpoint, self.write_key())
            self.console.print(f"  {command}", soft_wrap=True, highlight=False, markup=False)
            self.console.print("    Talk to production", style="dim", highlight=False)
        for page, text in NEXT:
            self.console.print(
                f"  {self.url}/p/{self.project.slug}/{page}", soft_wrap=True, highlight=False
            )
            self.console.print(f"    {text}", style="dim", highlight=False)
        return report

    # How a step is shown.

    def found(self, title: str, text: str) -> None:
        self.console.print(f"[bold green]✓[/] [bold]{title:<22}[/] {text}", highlight=False)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Says how long it, its stations and all that follows will take, by what the stages before
        it took.
        """
        own, left = map(in_words, self.pace.left(name))
        stations = self.pace.stations(name).items()
        each = ", ".join(f"{title} {in_words(seconds)}" for title, seconds in stations)
        self.console.print(
            f"  [dim]{name}: about {own} ({each}); until the end: about {left}[/]", highlight=False
        )
        began = time.monotonic()
        yield
        self.pace.taken[name] = time.monotonic() - began

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds[name] = time.monotonic() - began

    def wait(self, *stations: Station) -> None:
        """Shows the progress of jobs until all have ended. Raises DemoError if one failed."""
        began = time.monotonic()
        with bars(self.console) as add:
            going = {station: add(station.title) for station in stations}
            while going:
                for station, advance in list(going.items()):
                    job = station.job
                    if not self.refresh(job):
                        continue
                    advance(job.done, job.total, job.label or job.state)
                    if not job.is_active:
                        del going[station]
                        self.seconds[station.title] = time.monotonic() - began
                        if job.state != JobState.SUCCEEDED:
                            raise DemoError(f"{station.title}: job {job.state}. {job.error}")
                        station.show(station)
                time.sleep(POLL_S)

    @staticmethod
    def refresh(job: Job) -> bool:
        """False while the database is away: it comes back, and the job with it."""
        try:
            job.refresh_from_db()
        except OperationalError:
            connection.close()
            return False
        return True


def model_folder() -> Path:
    return Path(settings.FLYWHEEL_DATA_DIR) / "models" / MODEL


def start_preparing(popen: Callable[..., subprocess.Popen]) -> subprocess.Popen[str]:
    """Makes the model's folder, which takes as long as the stack takes to start."""
    return popen(
        [sys.executable, "-m", "workers.prepare_demo_model", str(model_folder())],
        cwd=settings.BASE_DIR,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def divided(config: dict[str, Any]) -> dict[str, Any]:
    """A training step in processes of one thread, which two cores do faster than one process of two
    threads. It is that of one process, up to the order in which numbers are added.
    """
    processes = min(room(TRAINING_GIB), settings.FLYWHEEL_TRAINING_PROCESSES)
    return config | ({"processes": processes} if processes > 1 else {})


def is_right(output: str, expected: dict[str, Any]) -> bool:
    """Whether an output is the expected call, decided without the verifier that is under review."""
    try:
        said = json.loads(output)
    except ValueError:
        return False
    return isinstance(said, dict) and all(
        said.get(name) == expected.get(name) for name in ("tool", "args")
    )


def _failed(rows: list[Trajectory]) -> float:
    return sum(row.outcome_status == Outcome.FAILURE for row in rows) / max(1, len(rows))


def curl_command(endpoint: str, key: Path) -> str:
    """Asks production, from a shell."""
    body = json.dumps(
        {
            "model": "production",
            "temperature": 0,
            "messages": [
                {"role": "system", "content": SYSTEM_PROMPT},
                {"role": "user", "content": TRY},
            ],
        }
    )
    return (
        f"curl {endpoint}/v1/chat/completions "
        f'-H "Authorization: Bearer $(cat {shlex.quote(str(key))})" '
        f'-H "Content-Type: application/json" -d {shlex.quote(body)}'
    )


def _quality(report: GateReport) -> tuple[float, float]:
    metrics = report.candidate.result["metrics"]
    return metrics["success"]["mean"], metrics["reward"]["mean"]


def _why(report: GateReport) -> str:
    """The gate's sentences on success and latency."""
    found = {check["name"]: check for check in report.report["checks"]}
    return f"{found['success']['sentence']} Latency: {found['latency']['sentence']}"


def _probe_report(run: ProbeRun) -> dict:
    attacks = run.result["attacks"]
    return {"attacks": attacks["n"], "failed": run.failed, "highest_reward": attacks["high"]}


def _model_report(run: EvalRun) -> dict:
    return {
        "model": str(run.model_version),
        "digest": run.model_version.digest,
        "eval_run": str(run.pk),
        "metrics": run.result["metrics"],
    }
