"""The invariants of `make chaos` find what they are there for, and a seed is a plan. Some rounds
themselves are a proof.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from apps.core.actions import audit
from apps.core.models import JobState, Project
from apps.failures.models import Classification
from apps.promotion import actions
from apps.promotion.models import Channel, Promotion
from apps.promotion.policies import channel_of
from apps.trajectories import digest
from tests.chaos.__main__ import ROOT, drawn
from tests.chaos.invariants import Settled
from tests.chaos.world import Acknowledged
from tests.factories import (
    admin_of,
    make_endpoint,
    make_environment,
    make_eval_run,
    make_eval_set,
    make_server,
    make_trajectory,
)
from tests.flywheel.machine import Machine


def test_a_seed_draws_each_kind_equally_often() -> None:
    kinds = list("abcd")
    assert drawn(kinds, 10, 7) == drawn(kinds, 10, 7) != drawn(kinds, 10, 8)
    assert set(Counter(drawn(kinds, 12, 7)).values()) == {3}
    assert drawn(kinds, 12, 7)[:10] == drawn(kinds, 10, 7)


@pytest.fixture
def settled(tmp_path: Path) -> Settled:
    world = SimpleNamespace(
        machine=Machine(tmp_path), acknowledged=Acknowledged([], [], []), problems=[]
    )
    return Settled(world)  # type: ignore[arg-type]


def wrong(check: Any) -> str:
    return "; ".join(check())


@pytest.mark.django_db
def test_a_run_that_is_missing_or_not_counted_is_found(settled: Settled, project: Project) -> None:
    for name in ("one", "two"):
        make_trajectory(project, name=name)
    digest.run()
    settled.world.acknowledged.runs.extend(["one", "two"])
    assert wrong(settled.runs) == ""
    settled.world.acknowledged.runs.append("three")
    assert "1 acknowledged runs are missing: ['three']" in wrong(settled.runs)


@pytest.mark.django_db
def test_a_job_that_failed_or_was_done_by_halves_is_found(
    settled: Settled, project: Project
) -> None:
    eval_set = make_eval_set(project)
    run = make_eval_run(eval_set, make_endpoint(project), make_environment(project))
    settled.world.acknowledged.evaluations.extend([str(run.pk), str(uuid4())])
    assert "has 12 samples" in wrong(settled.evaluations)
    assert "was acknowledged and is not there" in wrong(settled.evaluations)
    assert wrong(settled.jobs) == ""
    job = Classification.objects.create(project=project, name="c")
    job.claim("w")
    job.finish(JobState.FAILED, error="out of memory")
    assert "out of memory" in wrong(settled.jobs)


@pytest.mark.django_db
def test_a_channel_whose_moves_do_not_lead_to_what_is_live_is_found(
    settled: Settled, project: Project
) -> None:
    by, channel = admin_of(project), channel_of(project)
    server = make_server(project)
    one, two = (make_endpoint(project, server, name, name=name) for name in ("one", "two"))
    actions.set_initial(channel=channel, version=one, by=by)
    assert wrong(settled.channel) == ""
    settled.world.acknowledged.moves.append("rollback")
    assert "1 moves were acknowledged as rollback, 0 are there" in wrong(settled.channel)
    Channel.objects.update(current=two)
    assert "two-v1 is live, and the last move led to one-v1" in wrong(settled.channel)
    Promotion.objects.create(
        channel=channel, kind="rollback", from_version=two, from_name="two-v1", to_version=one
    )
    found = wrong(settled.channel)
    assert "began at two-v1, which was not live" in found
    assert "1 moves (rollback), 0 lines in the audit log" in found


@pytest.mark.django_db
def test_an_audit_log_that_lost_a_line_is_found(settled: Settled, project: Project) -> None:
    audit("x.y", project=project, by=admin_of(project), target=project)
    assert wrong(settled.audit_log) == ""
    audit("x.z", project=project, by=admin_of(project), target=project)
    assert wrong(settled.audit_log) == ""
    count, digest_, last = settled.audit
    settled.audit = (count + 1, digest_, last)
    assert f"{count + 1} lines were {count} later" in wrong(settled.audit_log)


@pytest.mark.django_db
def test_what_is_left_behind_is_found(settled: Settled, tmp_path: Path) -> None:
    assert wrong(settled.leftovers) == ""
    (tmp_path / "jobs" / "evalrun" / "00000000-0000-4000-8000-000000000000").mkdir(parents=True)
    (tmp_path / "artifacts" / "incoming-1").mkdir(parents=True)
    assert "1 folders of jobs that are not there" in wrong(settled.leftovers)
    assert "incoming-1" in wrong(settled.leftovers)


@pytest.mark.proof
def test_some_rounds_leave_nothing_wrong() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--rounds", "4", "--seed", "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
