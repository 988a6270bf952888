"""A deployment, step by step: load on all targets, verify on all, ask the webhooks, and only then
move the channel.

Threads that do not use the database call the servers; meanwhile the worker's own thread stores the
progress of each target and checks whether the deployment was stopped. What is loaded was written
down before (`Placement`), so a worker that dies leaves nothing unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.utils import timezone

from apps.core.kinds import Progress
from apps.core.models import JobState
from apps.promotion.announcing import announce_failed_deployment, announce_restored
from apps.promotion.deployment import fingerprints, outcomes, webhook_targets
from apps.promotion.deployment.models import Deployment, FingerprintJob, Placement, Target
from apps.promotion.deployment.outcomes import Outcomes
from apps.promotion.deployment.places import Plan, asked, lora_name, name_for, plan_of, served_as
from apps.promotion.deployment.unloading import StillAsked, leave, make_room, unload_soon
from apps.promotion.freezing import require_not_frozen
from apps.promotion.listeners import notify_listeners
from apps.promotion.models import Promotion
from apps.promotion.moves import locked, move, restored
from apps.promotion.policies import policy_of
from apps.promotion.trials import ending, starting
from apps.registry import copies
from apps.registry.actions import ModelError
from apps.registry.adapters import path_of
from apps.registry.artifacts import ArtifactError
from apps.registry.models import Server, ServerRun
from apps.registry.servers import address_of
from workers.lib.errors import JobError
from workers.lib.serving import Adapters, list_models
from workers.lib.weights_proof import Finding, Measured, judge, measure

LOOK_EVERY_S = 0.1
NOT_PROVED = (
    "The channel's policy requires verification of the weights (proof: weights), which is missing."
)
NOT_PROVABLE = (
    f"{NOT_PROVED} A webhook only acknowledges: remove this target, or change the policy."
)
FINGERPRINT_S = 300.0  # for which a promotion waits for the fingerprint of its version
NEW = (
    Deployment.Kind.PROMOTE,
    Deployment.Kind.TRIAL,
)  # must be verified on every server: nobody depends on it yet
MOVES = (Deployment.Kind.PROMOTE, Deployment.Kind.ROLLBACK)


@dataclass
class Place:
    """One server of a deployment. `load`: whether the adapter still has to be loaded, from `path`.
    `far`: the run of a server whose machine has to fetch it first."""

    target: Target
    server: Server
    plan: Plan
    placement: Placement
    load: bool
    path: str = ""
    far: ServerRun | None = None
    measured: Measured | None = None
    finding: Finding | None = None


Task = Callable[[Place], Any]


class Run:
    """One attempt at a deployment; `steps` is the interface of `core.runner`."""

    def __init__(self, job: Deployment) -> None:
        self.job, self.channel, self.version = job, job.channel, job.version
        self.kind = Deployment.Kind(job.kind)
        undoing = self.kind in (
            Deployment.Kind.ROLLBACK,
            Deployment.Kind.RESTORE,
        )  # what is in trouble waits for no proof
        self.needs_weights = not undoing and policy_of(self.channel)[0].proof == "weights"
        self.outcomes = Outcomes(job)
        self.places: list[Place] = []
        self.pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="deployment")

    def steps(self) -> Iterator[Progress]:
        try:
            yield from self._prepare()
            yield from self._on_all(
                self._loaded, outcomes.LOADING, outcomes.LOADED, [p for p in self.places if p.load]
            )
            yield from self._await_fingerprint()
            yield from self._prove()
            yield from self._acknowledged()
            if not any(row["state"] == outcomes.PROVED for row in self.outcomes.rows):
                raise JobError("None of the targets is reachable.")
            self._finish()
        finally:
            self.pool.shutdown(wait=False, cancel_futures=True)

    def _progress(self, label: str) -> Progress:
        self.outcomes.store()
        return Progress(self.outcomes.done, len(self.outcomes.rows), label, {"prepared": True})

    def _fail(self, place_id: int, sentence: str) -> Iterator[Progress]:
        """Stored before it is raised: what a step raises undoes what it wrote."""
        self.outcomes.set(place_id, outcomes.FAILED, sentence)
        yield self._progress("Failed")
        raise JobError(f"{self._name_of(place_id)}: {sentence}")

    def _name_of(self, target: int) -> str:
        return next(row["name"] for row in self.outcomes.rows if row["target"] == target)

    # What goes where

    def _prepare(self) -> Iterator[Progress]:
        targets = list(self.channel.targets.current().select_related("server", "webhook"))
        if self.kind not in MOVES:
            targets = [target for target in targets if target.server_id]
        if not self.job.cursor.get("prepared"):
            self.outcomes.start(targets)
        if self.needs_weights and (
            hook := next((target for target in targets if target.webhook), None)
        ):
            yield from self._fail(hook.pk, NOT_PROVABLE)
        for target in (target for target in targets if target.server):
            try:
                self.places.append(self._place(target))
            except (ModelError, ArtifactError) as error:
                if not self._may_be_left_out(target):
                    yield from self._fail(target.pk, str(error))
                self.outcomes.set(target.pk, outcomes.UNREACHABLE, str(error))
        if self.kind == Deployment.Kind.RESTORE:  # of a promotion it was asked for when that began
            fingerprints.ask_for(self.version, by=self.job.created_by)
        yield self._progress("Preparing")
        yield from self._find_lost()
        yield from self._fetched()
        for place in [place for place in self.places if place.load]:
            try:
                yield from self._make_room(place)
            except JobError as error:
                yield from self._lost(place, str(error))
                continue
            yield self._progress(f"Making room on {place.server}")

    def _make_room(self, place: Place) -> Iterator[Progress]:
        """Raises JobError."""
        while True:
            try:
                name, hurries = (
                    lora_name(place.placement.served_as),
                    self.kind == Deployment.Kind.ROLLBACK,
                )
                return make_room(place.server, name, at_once=hurries)
            except StillAsked as error:
                yield self._progress(str(error))
                time.sleep(LOOK_EVERY_S)

    def _place(self, target: Target) -> Place:
        """What was placed by an earlier attempt or deployment is used again. Raises ModelError,
        ArtifactError.
        """
        server = target.server
        assert server is not None
        plan = plan_of(server, self.version)
        far = copies.elsewhere(server) if plan.adapter else None
        path = path_of(server, plan.adapter) if plan.adapter and not far else ""
        own = Placement.objects.filter(target=target, deployment=self.job, version=self.version)
        if found := own.exclude(state=Placement.State.LEAVING).first():
            return Place(
                target,
                server,
                plan,
                found,
                found.loaded and found.state == Placement.State.LOADING,
                path,
                far,
            )
        ready = Placement.objects.ready().filter(target=target)
        if found := ready.filter(version=self.version).first():
            return Place(target, server, plan, found, False, path, far)
        same = [
            row
            for row in ready.select_related("version")
            if row.version.model == self.version.model
        ]
        if same:  # another prompt for a model that is there
            placement = self._placement(target, same[0].served_as, loaded=same[0].loaded)
            return Place(target, server, plan, placement, False, path, far)
        name = served_as(server, plan, name_for(self.job))
        placement = self._placement(target, name, loaded=plan.adapter is not None)
        return Place(target, server, plan, placement, plan.adapter is not None, path, far)

    def _placement(self, target: Target, name: str, *, loaded: bool) -> Placement:
        return Placement.objects.create(
            target=target, version=self.version, deployment=self.job, served_as=name, loaded=loaded
        )

    def _find_lost(self) -> Iterator[Progress]:
        """A server that was restarted has lost what it had loaded: there it is loaded again, under
        another name.
        """
        looking = [place for place in self.places if place.placement.loaded and not place.load]
        for place, result in (yield from self._gather(_names, looking, "Looking")):
            if isinstance(result, Exception):
                yield from self._lost(place, str(result))
            elif lora_name(place.placement.served_as) not in result:
                Placement.objects.filter(pk=place.placement.pk).delete()
                name = served_as(place.server, place.plan, name_for(self.job))
                place.placement = self._placement(place.target, name, loaded=True)
                place.load = True
        if looking:
            yield self._progress("Looking")

    def _fetched(self) -> Iterator[Progress]:
        """A machine with a data folder of its own has the adapter before a server there is told to
        load it.
        """
        waiting = [place for place in self.places if place.load and place.far]
        for place in waiting:
            copies.ask(place.far, place.plan.adapter)
        while waiting:
            yield self._progress(
                f"Bringing {self.version.model} to the machine of {waiting[0].server}"
            )
            for place in list(waiting):
                try:
                    place.path = copies.path_there(place.far, place.plan.adapter)
                except ArtifactError as error:
                    yield from self._lost(place, str(error))
                if place.path or place not in self.places:
                    waiting.remove(place)
            if waiting:
                time.sleep(LOOK_EVERY_S)

    # Loading and proving

    def _gather(self, task: Task, places: list[Place], label: str) -> Any:
        """Runs `task` for each place in threads; returns [(place, what came or was raised)]. Ends
        at the first failure that counts.
        """
        futures: dict[Future, Place] = {self.pool.submit(task, place): place for place in places}
        found: list[tuple[Place, Any]] = []
        while futures:
            done, _ = wait(futures, timeout=LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            for future in done:
                place = futures.pop(future)
                error = future.exception()
                if error is not None and not isinstance(error, JobError | OSError):
                    raise error
                found.append((place, error or future.result()))
                if error is not None and not self._may_be_left_out(place.target):
                    return found
            if futures:
                yield self._progress(label)
        return found

    def _on_all(
        self, task: Task, doing: str, after: str, places: list[Place]
    ) -> Iterator[Progress]:
        for place in places:
            self.outcomes.set(place.target.pk, doing, served_as=place.placement.served_as)
        if places:
            yield self._progress(
                f"{doing.capitalize()} on {len(places)} target{'s' if len(places) > 1 else ''}"
            )
        for place, result in (yield from self._gather(task, places, doing.capitalize())):
            if isinstance(result, Exception):
                yield from self._lost(place, str(result))
            else:
                place.load = False
                self.outcomes.set(place.target.pk, after)

    @staticmethod
    def _loaded(place: Place) -> None:
        there = Adapters(address_of(place.server), place.server.kind)
        there.load(lora_name(place.placement.served_as), place.path)

    def _await_fingerprint(self) -> Iterator[Progress]:
        """A rollback waits for nothing."""
        until = time.monotonic() + FINGERPRINT_S
        waiting = FingerprintJob.objects.active().filter(version=self.version.model)
        while self.kind in NEW and self.places and waiting.exists() and time.monotonic() < until:
            yield self._progress(f"Computing what {self.version.model} gives a fixed text")
            time.sleep(LOOK_EVERY_S)

    def _prove(self) -> Iterator[Progress]:
        reference = fingerprints.reference_of(self.version)
        ids = reference.ids if reference else None

        def ask(place: Place) -> Measured:
            return measure(asked(place.server, place.plan, place.placement.served_as), ids)

        for place in self.places:
            self.outcomes.set(
                place.target.pk, outcomes.PROVING, served_as=place.placement.served_as
            )
        yield self._progress("Proving")
        others = fingerprints.others_than(self.version)
        is_adapter = any(place.plan.adapter for place in self.places)
        for place, result in (yield from self._gather(ask, list(self.places), "Proving")):
            if isinstance(result, Exception):
                yield from self._lost(place, str(result))
                continue
            try:
                found = judge(
                    str(self.version.model), result, reference, others, is_adapter=is_adapter
                )
            except JobError as error:
                yield from self._fail(place.target.pk, str(error))
                raise
            if self.needs_weights and found.level != "weights":
                yield from self._fail(place.target.pk, f"{NOT_PROVED} {found.sentence}")
            if reference is None and result.logprobs:
                fingerprints.record_served(
                    self.version, result
                )  # the next target is compared with the first
                reference = fingerprints.reference_of(self.version)
            place.measured, place.finding = result, found
            self.outcomes.set(
                place.target.pk, outcomes.PROVED, found.sentence, proof=found.as_dict()
            )
        yield self._progress("Proved")

    def _acknowledged(self) -> Iterator[Progress]:
        """Webhooks are asked last: what they bring live is not undone as easily."""
        if self.kind not in MOVES:
            return
        for target in (
            self.channel.targets.current().filter(webhook__isnull=False).select_related("webhook")
        ):
            self.outcomes.set(target.pk, outcomes.LOADING, "Waiting for its acknowledgement.")
            delivery = webhook_targets.request(self.job, target)
            yield self._progress(f"Waiting for {target.webhook}")
            while (answer := webhook_targets.answer_of(delivery)) is None:
                yield self._progress(f"Waiting for {target.webhook}")
                time.sleep(LOOK_EVERY_S)
            if answer:
                yield from self._fail(target.pk, answer)
            said = "It acknowledged (HTTP 2xx). What it serves was not checked."
            self.outcomes.set(
                target.pk, outcomes.PROVED, said, proof={"level": "acknowledged", "sentence": said}
            )
            yield self._progress("Acknowledged")

    # Failing

    def _may_be_left_out(self, target: Target) -> bool:
        """A server that does not answer serves nobody, neither what is rolled back: it may not hold
        up the others.
        """
        if self.kind in NEW or target.server is None:
            return False
        return not target.server.base_url or list_models(address_of(target.server)).health == "down"

    def _lost(self, place: Place, sentence: str) -> Iterator[Progress]:
        if not self._may_be_left_out(place.target):
            yield from self._fail(place.target.pk, sentence)
        self.places.remove(place)
        self.outcomes.set(place.target.pk, outcomes.UNREACHABLE, sentence)
        yield self._progress(f"{place.server} does not answer")

    # The end

    def _finish(self) -> None:
        """In one transaction with the end of the job. Raises JobError if the channel is not what it
        was.
        """
        channel = locked(self.channel)
        if self.kind != Deployment.Kind.RESTORE and channel.current_id != self.job.from_version_id:
            raise JobError(f"{channel} has been moved to {channel.current} in the meantime.")
        if self.kind == Deployment.Kind.PROMOTE:
            require_not_frozen(channel)
        for place in self.places:
            assert place.finding is not None
            placement = place.placement
            before = (
                Placement.objects.ready()
                .filter(target=place.target, version=self.version)
                .exclude(pk=placement.pk)
            )
            leave(before)
            Placement.objects.filter(pk=placement.pk).update(
                state=Placement.State.READY,
                proof=place.finding.as_dict(),
                problem="",
                at=timezone.now(),
                checked_at=timezone.now(),
            )
        for row in self.outcomes.rows:
            if row["state"] == outcomes.PROVED:
                row["state"] = outcomes.LIVE
        self.outcomes.store()
        self.job.outcomes = self.outcomes.rows
        if self.kind == Deployment.Kind.RESTORE:
            announce_restored(self.job)
            restored(channel, self.job.created_by, self.job.spec.get("actor_label", ""))
            notify_listeners(channel)
            return
        if self.kind == Deployment.Kind.TRIAL:
            starting.start(self.job)
            return
        asked_for = self.job.spec
        move(
            channel,
            self.version,
            Promotion.Kind(self.kind),
            self.job.created_by,
            reason=self.job.reason,
            gate_report=self.job.gate_report,
            deployment=self.job,
            overridden=bool(asked_for.get("overridden")),
            actor_label=asked_for.get("actor_label", ""),
        )


def _names(place: Place) -> list[str]:
    return Adapters(address_of(place.server), place.server.kind).names()


def steps(job: Deployment) -> Iterator[Progress]:
    yield from Run(job).steps()


def ended(job: Deployment) -> None:
    """In the transaction that ends it, however: what it placed and does not serve leaves, and who
    has to know is told.
    """
    Placement.objects.filter(deployment=job, state=Placement.State.LOADING).update(
        state=Placement.State.LEAVING, at=timezone.now()
    )
    transaction.on_commit(unload_soon)
    if job.state == JobState.SUCCEEDED:
        return
    ending.deployment_ended(job)
    for row in job.outcomes:
        if row["state"] not in (outcomes.FAILED, outcomes.UNREACHABLE):
            row["state"] = outcomes.UNDONE
    Deployment.objects.filter(pk=job.pk).update(outcomes=job.outcomes)
    webhook_targets.withdraw(job)
    if job.state == JobState.FAILED:
        announce_failed_deployment(job)
