"""A training run as a job on a Ray cluster: submits its folder, follows its log and state, stops
it. `python -m workers.ray_job spec.json`.

The job itself sends its adapter to Flywheel (apps.training.engines.ray) before it ends. If an
earlier attempt has already submitted the job, it is followed again; events that are emitted twice
are stored once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from workers.lib.alarms import Watchman
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.program import Stop, StopFlag, run_main
from workers.lib.ray_jobs import ClusterAway, ClusterError, JobState, JobUnknown, RayApi
from workers.lib.ray_logs import Log
from workers.lib.serving import Address
from workers.lib.specs.ray_job import RayJob
from workers.lib.watching import Alarmed, Paused, report

POLL_S, SLICE_S = 2.0, 0.2
PATIENCE_S = 600.0  # how long the cluster may be unreachable before the run fails
SILENT_S = 1800.0  # without a log line, after which the page says so
STOP_S = 15.0  # time for a stopped job to end; a cancelled run is killed after 30 s
# the log is read from the start each time: at most 1/READ_SHARE of the time is spent on that
READ_SHARE = 10


class Following:
    """One job on the cluster, from submission to end."""

    def __init__(self, spec: RayJob, cluster: RayApi, events: Emitter, stop: StopFlag) -> None:
        self.spec, self.cluster, self.events, self.stop = spec, cluster, events, stop
        self.secrets = json.loads(Path(spec.secrets).read_text())
        self.log = Log([value for value in self.secrets["env"].values() if len(value) > 15])
        self.watchman = Watchman(spec.alarms, spec.method)
        self.away_since: float | None = None
        self.heard_at = time.monotonic()
        self.said_silent = False

    @property
    def id(self) -> str:
        return self.secrets["submission"]

    def submit(self) -> None:
        """Submit the job, unless an earlier attempt did: then follow that one."""
        try:
            found = self.cluster.state(self.id)
            self.events.log(
                "info",
                f"Following the job {self.id}, which an earlier attempt submitted"
                f" ({found.status}).",
            )
            return
        except JobUnknown:
            pass
        package = self.cluster.upload(Path(self.spec.package).read_bytes())
        self.stop.check()
        self.cluster.submit(
            submission=self.id,
            package=package,
            entrypoint="python3 ray_runner.py",
            env=self.secrets["env"],
            gpus=self.spec.gpus,
            metadata={"flywheel_run": self.spec.job_id, "job_name": self.spec.name},
        )
        self.events.log("info", f"Submitted to {self.cluster.base} as {self.id}.")

    def follow(self) -> JobState:
        """Follow the job until it ends. Raises Stop, JobError."""
        while True:
            began = time.monotonic()
            state = self._poll()
            if state is not None and state.ended:
                return state
            self._wait(max(POLL_S, READ_SHARE * (time.monotonic() - began)))

    def _poll(self) -> JobState | None:
        """Read the state first, so that the log of a finished job is complete. None if the cluster
        is unreachable.
        """
        try:
            state = self.cluster.state(self.id)
            self.read(self.cluster.log(self.id))
        except JobUnknown as error:
            raise JobError(
                f"{self.cluster.where} no longer knows the job {self.id}: it was restarted, or the"
                " job was deleted. Start the run again."
            ) from error
        except ClusterAway as error:
            now = time.monotonic()
            if self.away_since is None:
                self.away_since = now
                self.events.log(
                    "warning", f"{error} Trying again for {PATIENCE_S / 60:.0f} minutes."
                )
            if now - self.away_since > PATIENCE_S:
                raise JobError(
                    f"{error} It has been away for {PATIENCE_S / 60:.0f} minutes; the job {self.id}"
                    " may still run there."
                ) from error
            return None
        self.away_since = None
        if not state.ended and not self.log.steps:
            self.events.progress(
                0,
                self.spec.total,
                "waiting for the cluster" if state.status == "PENDING" else "starting",
            )
        self._notice_silence(state)
        return state

    def read(self, text: str) -> None:
        """Emit the new part of the log. Raises Alarmed, Paused."""
        lines, steps = self.log.new(text)
        if lines or steps:
            self.heard_at, self.said_silent = time.monotonic(), False
        for line in lines:
            self.events.log("info", line)
        for step in steps:
            self.events.metric(step.number, step.finite)
            self.events.progress(
                min(step.number, step.total or self.spec.total),
                step.total or self.spec.total,
                "training",
            )
            report(self.events, self.watchman.look(step.number, step.values))

    def _notice_silence(self, state: JobState) -> None:
        if not state.ended and not self.said_silent and time.monotonic() - self.heard_at > SILENT_S:
            self.said_silent = True
            self.events.log(
                "warning",
                f"The job has written nothing for {SILENT_S / 60:.0f} minutes. It is {state.status}"
                " by the cluster.",
            )

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.stop.check()
            time.sleep(SLICE_S)

    def end_there(self) -> None:
        """Stop the job on the cluster. If the cluster is unreachable, only warn."""
        try:
            self.cluster.stop(self.id)
            until = time.monotonic() + STOP_S
            while not self.cluster.state(self.id).ended and time.monotonic() < until:
                time.sleep(SLICE_S)
            self.events.log("info", f"The job {self.id} was stopped.")
        except JobUnknown:
            pass
        except ClusterError as error:
            self.events.log("warning", f"The job {self.id} could not be stopped: {error}")


def main(spec: RayJob, events: Emitter, stop: StopFlag) -> None:
    server = spec.server
    with RayApi(
        Address(server.base_url, server.api_key_env or "", server.allow_private)
    ) as cluster:
        job = Following(spec, cluster, events, stop)
        events.progress(0, spec.total, "submitting")
        try:
            job.submit()
            state = job.follow()
        except (Stop, Alarmed, Paused):
            job.end_there()
            raise
        if state.status != "SUCCEEDED":
            raise JobError(" ".join(ending(state, job.log)))
        events.result(metrics=job.log.last)


def ending(state: JobState, log: Log) -> Iterator[str]:
    """Why the job did not succeed, as sentences."""
    yield (
        "The job was stopped on the cluster."
        if state.status == "STOPPED"
        else "The job failed on the cluster."
    )
    if log.tail:
        yield f"Its last line: {log.tail[-1]}"
    elif state.message:
        yield state.message[-500:]


if __name__ == "__main__":
    run_main(RayJob, main)
