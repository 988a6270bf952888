"""A channel with targets."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import permutations
from pathlib import Path
from typing import Any

from django.test import TestCase

from apps.core import runner
from apps.core.models import Project
from apps.evals.models import EvalRun
from apps.promotion import actions
from apps.promotion.deployment import actions as deployments
from apps.promotion.models import Channel, Deployment, GateReport, Placement
from apps.promotion.policies import policy_of
from apps.registry.models import ModelVersion, Server
from tests.factories import (
    admin_of,
    make_adapter,
    make_base,
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_project,
    make_server,
)
from tests.promotion.serving_peer import Peer, fingerprint, peer_serving

RUNTIME_LORA = {
    "runtime_lora": {"value": True, "how": ""},
    "lora_slots": {"value": 3, "how": "", "most": 3},
}


class Scene:
    """A channel that runs the base, `old` and `new` adapters with a report for each, and servers to
    be targets.
    """

    def __init__(
        self, project: Project, base: ModelVersion, folder: Path, stack: ExitStack
    ) -> None:
        self.project, self.base, self.folder, self.stack, self.by = (
            project,
            base,
            folder,
            stack,
            admin_of(project),
        )
        self.channel = actions.channel_of(project)
        actions.set_initial(channel=self.channel, version=base, by=self.by)
        self.old, self.new = (make_adapter(project, base, folder) for _ in range(2))
        for version in (self.base, self.old, self.new):
            fingerprint(version)
        self.eval_set, self.environment = (
            make_eval_set(project, holdout=32),
            make_environment(project),
        )
        self.runs: dict[tuple[int, float], EvalRun] = {}
        self.reports: dict[tuple[int, int, int], GateReport] = {}

    @classmethod
    def alone(cls, folder: Path) -> Scene:
        """In a project of its own, to be made once."""
        project = make_project()
        made = cls(project, make_base(project, folder), folder, ExitStack())
        for before, after in permutations((made.base, made.old, made.new), 2):
            made.compare(before, after)
        return made

    def target(self, peer: Peer | None = None, **fields: Any) -> Peer:
        """A server with the base that is a target."""
        peer, http = self.stack.enter_context(peer_serving(peer or Peer()))
        name = fields.pop("name", f"gpu-{self.project.servers.count() + 1}")
        server = make_server(
            self.project,
            http.base,
            name=name,
            kind=peer.kind,
            adapters_at=str(self.folder / "artifacts"),
        )
        Server.objects.filter(pk=server.pk).update(capabilities=RUNTIME_LORA, health="healthy")
        make_endpoint(self.project, server, served_as="base", parent=self.base, name=f"{name}-base")
        self.channel.refresh_from_db()
        deployments.add_target(
            channel=self.channel, server=Server.objects.get(pk=server.pk), by=self.by
        )
        finish(self.channel)
        return peer

    def evaluation(self, version: ModelVersion, success: float) -> EvalRun:
        key = version.pk, success
        if key not in self.runs:
            self.runs[key] = make_eval_run(
                self.eval_set, version, self.environment, success, samples=1
            )
        return self.runs[key]

    def compare(self, before: ModelVersion, after: ModelVersion) -> GateReport:
        key = before.pk, after.pk, policy_of(self.channel)[1]
        if key not in self.reports:
            self.reports[key] = actions.make_gate_report(
                baseline=self.evaluation(before, 0.0),
                candidate=self.evaluation(after, 1.0),
                by=self.by,
                channel=self.channel,
            )
        return self.reports[key]

    def report(self, version: ModelVersion) -> GateReport:
        self.channel.refresh_from_db()
        return self.compare(self.channel.current, version)

    def promote(self, version: ModelVersion) -> Deployment:
        made = actions.promote(
            channel=self.channel, report=self.report(version), by=self.by, reason="better"
        )
        assert isinstance(made, Deployment) and made.state == "queued"
        return made

    def bring(self, version: ModelVersion) -> Deployment:
        return run(self.promote(version))

    @property
    def live(self) -> ModelVersion:
        return Channel.objects.get(pk=self.channel.pk).current

    def names(self, version: ModelVersion) -> list[str]:
        return [row.served_as for row in Placement.objects.ready().filter(version=version)]


def run(job: Any) -> Any:
    """What is to follow its commit does."""
    with TestCase.captureOnCommitCallbacks(execute=True):
        runner.run(job)
    job.refresh_from_db()
    return job


def finish(channel: Channel) -> None:
    for job in channel.deployments.active():
        assert run(job).state == "succeeded", job.error
