"""A run as a job on a Ray cluster: submitted, followed, stopped, and what is said when the cluster,
the job or its log fails.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.conftest import Recorder
from tests.workers.fake_ray import FakeRay, contract, fake_ray
from workers import ray_job
from workers.lib.errors import JobError
from workers.lib.program import Stop, StopFlag
from workers.lib.ray_jobs import MAX_PACKAGE, ClusterError, RayApi
from workers.lib.ray_logs import Log, step_in
from workers.lib.serving import Address
from workers.lib.specs.job import checked
from workers.lib.specs.ray_job import RayJob
from workers.lib.watching import Alarmed

TOKEN = "token-that-nobody-may-read"


@pytest.fixture
def ray() -> Iterator[FakeRay]:
    with fake_ray() as fake:
        yield fake


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "POLL_S": 0.01,
        "SLICE_S": 0.005,
        "READ_SHARE": 0,
        "PATIENCE_S": 0.05,
    }.items():
        monkeypatch.setattr(ray_job, name, value)


@pytest.fixture
def spec(ray: FakeRay, tmp_path: Path) -> Any:
    (tmp_path / "package.zip").write_bytes(b"PK zip")
    secrets = {
        "submission": "flywheel-1",
        "env": {"FLYWHEEL_RUN_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"},
    }
    (tmp_path / "secrets.json").write_text(json.dumps(secrets))
    return checked(
        {
            "kind": "ray_job",
            "server": {"base_url": ray.base, "allow_private": True},
            "package": str(tmp_path / "package.zip"),
            "secrets": str(tmp_path / "secrets.json"),
            "name": "SFT",
            "method": "sft",
            "total": 3,
            "gpus": 1.0,
            "job_id": "run-1",
        },
        RayJob,
    )


def script(*states: tuple[str, str]) -> Callable[[dict], None]:
    """Each time that the state is asked: the next status, and what is written to the log."""
    left = list(states)

    def step(job: dict) -> None:
        if left:
            job["status"], added = left.pop(0)
            job["logs"] += added

    return step


def line(step: int, **values: float) -> str:
    return "FLYWHEEL " + json.dumps({"step": step, "total": 3, "values": values}) + "\n"


def test_a_job_is_submitted_followed_and_ends(ray: FakeRay, spec: Any, events: Recorder) -> None:
    ray.step = script(
        ("PENDING", ""),
        ("RUNNING", f"hello {TOKEN}\n" + line(1, **{"train/loss": 2.0}) + 'FLYWHEEL {"st'),
        ("RUNNING", 'ep": 2, "values": {"train/loss": 1.5}}\nodd\n'),
        ("SUCCEEDED", line(3, **{"train/loss": 1.0})),
    )
    ray_job.main(spec, events, StopFlag())
    body = ray.jobs["flywheel-1"]["body"]
    assert body["entrypoint"] == "python3 ray_runner.py" and body["entrypoint_num_gpus"] == 1
    assert body["runtime_env"]["env_vars"]["FLYWHEEL_RUN_TOKEN"] == TOKEN
    assert ray.packages[body["runtime_env"]["working_dir"].removeprefix("gcs://")] == b"PK zip"
    assert [(row["step"], row["values"]) for row in events.rows("metric")] == [
        (1, {"train/loss": 2.0}),
        (2, {"train/loss": 1.5}),
        (3, {"train/loss": 1.0}),
    ]
    said = [row["message"] for row in events.rows("log")]
    assert "hello [key]" in said and "odd" in said and TOKEN not in events.path.read_text()
    assert events.rows("progress")[-1]["done"] == 3 and events.rows("result")[0]["metrics"] == {
        "train/loss": 1.0
    }


def test_a_later_attempt_follows_the_job_that_is_there(
    ray: FakeRay, spec: Any, events: Recorder
) -> None:
    ray.jobs["flywheel-1"] = {
        "status": "RUNNING",
        "message": "",
        "logs": line(1, a=1.0),
        "body": {},
    }
    ray.step = script(("RUNNING", ""), ("SUCCEEDED", ""))
    ray_job.main(spec, events, StopFlag())
    assert not ray.packages and [row["step"] for row in events.rows("metric")] == [1]


@pytest.mark.parametrize(
    ("states", "says"),
    [
        (
            [("RUNNING", "boom: no GPU\n"), ("FAILED", "")],
            "failed on the cluster. Its last line: boom: no GPU",
        ),
        ([("STOPPED", "")], "was stopped on the cluster"),
    ],
)
def test_a_job_that_dies_says_why(
    states: list, says: str, ray: FakeRay, spec: Any, events: Recorder
) -> None:
    ray.step = script(("RUNNING", ""), *states)
    with pytest.raises(JobError, match=says):
        ray_job.main(spec, events, StopFlag())


def test_a_job_without_a_log_says_what_the_cluster_says(
    ray: FakeRay, spec: Any, events: Recorder
) -> None:
    def step(job: dict) -> None:
        job |= {"status": "FAILED", "message": "runtime_env setup failed: no space"}

    ray.step = step
    with pytest.raises(JobError, match="runtime_env setup failed: no space"):
        ray_job.main(spec, events, StopFlag())


def test_a_cluster_that_goes_away_for_good_fails_the_run(
    ray: FakeRay, spec: Any, events: Recorder
) -> None:
    def step(job: dict) -> None:
        ray.away = True

    ray.step = step
    with pytest.raises(JobError, match="flywheel-1 may still run there"):
        ray_job.main(spec, events, StopFlag())
    assert any("Trying again" in row["message"] for row in events.rows("log"))


def test_a_cluster_that_comes_back_is_followed_on(
    ray: FakeRay, spec: Any, events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_job, "PATIENCE_S", 60.0)
    looks = iter([None, "away", None])

    def step(job: dict) -> None:
        if next(looks, "end") == "away":
            ray.away = True
            threading.Timer(0.1, lambda: setattr(ray, "away", False)).start()
        elif len(ray.jobs) and not ray.away and next(looks, "end") == "end":
            job["status"] = "SUCCEEDED"

    ray.step = step
    ray_job.main(spec, events, StopFlag())
    assert events.rows("result")


def test_a_cluster_that_was_restarted_no_longer_knows_the_job(
    ray: FakeRay, spec: Any, events: Recorder
) -> None:
    ray.step = lambda job: ray.jobs.clear()
    with pytest.raises(JobError, match="no longer knows the job flywheel-1"):
        ray_job.main(spec, events, StopFlag())


def test_a_cancel_stops_the_job(ray: FakeRay, spec: Any, events: Recorder) -> None:
    flag = StopFlag()

    def step(job: dict) -> None:
        job["status"], flag.is_set = (
            job["status"] if job["status"] == "STOPPED" else "RUNNING",
            True,
        )

    ray.step = step
    with pytest.raises(Stop):
        ray_job.main(spec, events, flag)
    assert (
        ray.stopped == ["flywheel-1"]
        and events.rows("log")[-1]["message"] == "The job flywheel-1 was stopped."
    )


def test_a_cancel_while_the_cluster_is_away_ends_the_run_and_says_so(
    ray: FakeRay, spec: Any, events: Recorder
) -> None:
    flag = StopFlag()

    def step(job: dict) -> None:
        ray.away = flag.is_set = True

    ray.step = step
    with pytest.raises(Stop):
        ray_job.main(spec, events, flag)
    assert "could not be stopped" in events.rows("log")[-1]["message"]


def test_nan_raises_the_alarm_that_stops_the_job(ray: FakeRay, spec: Any, events: Recorder) -> None:
    ray.step = script(
        ("RUNNING", 'FLYWHEEL {"step": 1, "values": {"train/loss": NaN, "train/lr": 0.1}}\n')
    )
    with pytest.raises(Alarmed, match="NaN or infinity"):
        ray_job.main(spec, events, StopFlag())
    assert ray.stopped == ["flywheel-1"] and events.rows("metric")[0]["values"] == {"train/lr": 0.1}


def test_a_log_that_stops_is_said(
    ray: FakeRay, spec: Any, events: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_job, "SILENT_S", -1.0)
    ray.step = script(("RUNNING", ""), ("RUNNING", ""), ("SUCCEEDED", ""))
    ray_job.main(spec, events, StopFlag())
    said = [row["message"] for row in events.rows("log") if "has written nothing" in row["message"]]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda ray: setattr(ray, "key", "secret"),
            "refused the request .401.. Check its key variable",
        ),
        (
            lambda ray: setattr(ray, "asked", lambda *_: (200, b"<html>")),
            "not JSON. Is this the address of a Ray dashboard",
        ),
        (
            lambda ray: setattr(ray, "asked", lambda *_: (200, b"[]")),
            "something else than an object",
        ),
        (lambda ray: setattr(ray, "asked", lambda *_: (200, b"{}")), "sent no Ray version"),
        (lambda ray: setattr(ray, "asked", lambda *_: (302, b"")), "answered 302"),
        (lambda ray: setattr(ray, "away", True), "answered 503: no"),
        (lambda ray: setattr(ray, "asked", lambda *_: (200, b"[" * 100_000)), "not JSON"),
    ],
)
def test_what_is_no_cluster_is_said_in_a_sentence(
    change: Callable, says: str, ray: FakeRay
) -> None:
    change(ray)
    with RayApi(Address(ray.base, "", True)) as api, pytest.raises(ClusterError, match=says):
        api.version()


def test_a_private_address_is_refused_unless_it_is_allowed(ray: FakeRay) -> None:
    with pytest.raises(ClusterError, match="FLYWHEEL_ALLOW_PRIVATE_URLS"):
        RayApi(Address(ray.base, "", False))


def test_a_folder_that_is_too_large_is_not_sent(ray: FakeRay) -> None:
    with (
        RayApi(Address(ray.base, "", True)) as api,
        pytest.raises(ClusterError, match="takes 100 MiB"),
    ):
        api.upload(bytes(MAX_PACKAGE + 1))


def test_the_fake_keeps_the_contract(ray: FakeRay) -> None:
    contract(ray.base, b"PK")


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ('FLYWHEEL {"step": 2, "total": 9, "values": {"a": 1}}', (2, {"a": 1.0})),
        ('(pid=7) FLYWHEEL {"step": 2, "values": {"a": true, "b": "x", "c": 1}}', (2, {"c": 1.0})),
        (
            "(TaskRunner pid=12) step:3 - actor/pg_loss:0.5 - critic/score/mean:-1e-05 - x:None",
            (3, {"actor/pg_loss": 0.5, "critic/score/mean": -1e-05}),
        ),
        ("step:4 - a:np.float64(0.25)", (4, {"a": 0.25})),
        ("step:4 - nothing", None),
        ('FLYWHEEL {"step": -2, "values": {"a": 1}}', None),
        ('FLYWHEEL {"step": 1e9, "values": {"a": 1}}', None),
        ('FLYWHEEL {"step": 2, "values": [1]}', None),
        ("FLYWHEEL " + "{" * 100_000, None),
        ('FLYWHEEL {"step": 2, "values": {"a": 1' + "0" * 400 + "}}", (2, {})),
        ("steps: 4", None),
    ],
)
def test_metrics_in_a_line(text: str, step: tuple | None) -> None:
    found = step_in(text)
    assert (found and (found.number, found.values)) == step


@given(st.lists(st.text(max_size=30), max_size=8), st.lists(st.integers(0, 300), max_size=6))
def test_a_log_that_comes_in_parts_gives_each_line_once(lines: list[str], cuts: list[int]) -> None:
    text = "".join(f"{one}\n" for one in lines)
    whole, parts, found = Log(), Log(), []
    for cut in [*sorted(cuts), len(text)]:
        found += parts.new(text[:cut])[0]
    assert found == whole.new(text)[0] and parts.new(text) == ([], [])


def test_a_flood_is_cut_and_counted() -> None:
    lines, _ = Log().new("".join(f"{n}\x1b[31m\n" for n in range(1000)) + "x" * 5000 + "\n")
    assert (
        lines[0] == "… 961 lines left out …"
        and len(lines) == 41
        and len(lines[-1]) == 500
        and lines[1] == "961[31m"
    )
