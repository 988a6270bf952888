"""A training run as a job on a real Ray, started here from `.venv-engines` (`make engines`): TRL
trains on the CPU, its adapter comes back.
"""

from __future__ import annotations

import io
import os
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.core import runner
from apps.core.models import JobState
from apps.registry.actions import register_base
from apps.registry.ray_clusters import NewCluster, add_cluster, refresh_health
from apps.training.actions import freeze_dataset, prepared_run
from apps.training.engines import ray
from apps.training.models import Method, TrainingRun
from tests.factories import admin_of, make_environment, make_eval_set, make_project, override
from tests.workers.conftest import make_tiny_model
from tests.workers.fake_ray import contract

ROOT = Path(__file__).resolve().parent.parent
RAY = ROOT / ".venv-engines" / "bin" / "ray"
DASHBOARD, GCS, AGENTS = 8288, 6488, range(6489, 6493)
STARTS = 3  # tries: its agents have 15 s to start, which a busy machine may not give them
pytestmark = [
    pytest.mark.proof,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not RAY.exists(), reason="no .venv-engines: run `make engines`"),
]
HELLO = "import os, time\nprint(os.environ['WORD'], flush=True)\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("ray-home")
    env = os.environ | {
        "PATH": f"{RAY.parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    grpc, runtime, metrics, listen = AGENTS
    words = (
        f"start --head --port {GCS} --dashboard-port {DASHBOARD} --dashboard-host 127.0.0.1"
        " --num-cpus 2 --include-dashboard true --disable-usage-stats --object-store-memory"
        f" 100000000 --dashboard-agent-grpc-port {grpc} --runtime-env-agent-port {runtime}"
        f" --metrics-export-port {metrics} --dashboard-agent-listen-port {listen} --temp-dir"
        f" /tmp/ray-{os.getpid()}"
    )
    try:
        for _ in range(STARTS):
            done = subprocess.run(
                [RAY, *words.split()], env=env, capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                break
            subprocess.run([RAY, "stop", "--force"], env=env, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        yield f"http://127.0.0.1:{DASHBOARD}"
    finally:
        subprocess.run([RAY, "stop", "--force"], env=env, capture_output=True, check=False)


def test_the_real_one_keeps_the_contract_of_the_fake(dashboard: str) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("hello.py", HELLO)
    contract(dashboard, made.getvalue())


def test_a_run_trains_on_the_cluster_and_its_adapter_is_registered(
    dashboard: str, data_dir: Path, live_server: Any, settings: Any, tmp_path: Path
) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    project = make_project()
    by, environment = admin_of(project), make_environment(project)
    override(environment)
    base = register_base(
        project=project, name="tiny", folder=make_tiny_model(data_dir / "tiny"), by=by
    )
    fields = {"name": "real", "base_url": dashboard, "gpus": 0.0, "flywheel_url": live_server.url}
    cluster = add_cluster(project=project, given=NewCluster(**fields), by=by)
    refresh_health(cluster)
    cluster.refresh_from_db()
    assert (cluster.health, cluster.ray_version.split(".")[0]) == ("healthy", "2")
    eval_set = make_eval_set(project)
    prepared = prepared_run(
        project=project,
        method=Method.SFT,
        parent=base,
        dataset=freeze_dataset(eval_set=eval_set, by=by),
        environment=environment,
        config={
            "steps": 3,
            "learning_rate": 1e-3,
            "batch_size": 1,
            "lora_rank": 2,
            "max_length": 1024,
        },
        by=by,
    )
    run = ray.submit(run=prepared, engine="trl", cluster=cluster, by=by)

    runner.run(run)
    run = TrainingRun.objects.get(pk=run.pk)
    assert run.state == JobState.SUCCEEDED, run.error
    assert run.model_version.lineage["cluster"]["name"] == "real" and run.done == 3
    losses = dict(run.metrics.filter(name="train/loss").values_list("step", "value"))
    assert losses.keys() == {1, 2, 3} and all(value > 0 for value in losses.values())
    assert not project.api_keys.live().exists()
