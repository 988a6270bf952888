"""Training runs that are jobs on a Ray cluster: how they are submitted, what their jobs may ask,
and how they end.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from apps.core import jobs
from apps.core.kinds import Incomplete, kind_of
from apps.core.models import JobState, Role
from apps.registry.models import ModelVersion, RayCluster
from apps.registry.ray_clusters import NewCluster, add_cluster, edit_cluster, refresh_health
from apps.registry.servers import ServerError
from apps.training.actions import TrainingError
from apps.training.engines import ray
from apps.training.models import TrainingRun
from tests.factories import admin_of, make_key, make_member, make_project
from tests.forms import as_read
from tests.training.test_engine_results import GOOD, lora, made_run
from tests.workers.fake_ray import fake_ray
from workers.lib.typed import plain

pytestmark = pytest.mark.django_db


@pytest.fixture
def prepared(data_dir: Path, settings: Any) -> TrainingRun:
    settings.FLYWHEEL_MODEL_FOLDERS = [str(data_dir)]
    return made_run(data_dir)


@pytest.fixture
def cluster(prepared: TrainingRun, settings: Any) -> RayCluster:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    fields = {
        "name": "gpus",
        "base_url": "http://127.0.0.1:8265/",
        "gpus": 2.0,
        "flywheel_url": "http://here:8000/",
    }
    return add_cluster(project=prepared.project, given=NewCluster(**fields), by=prepared.created_by)


@pytest.fixture
def run(prepared: TrainingRun, cluster: RayCluster) -> TrainingRun:
    """Submitted, and claimed by a worker."""
    by = prepared.created_by
    made = ray.submit(run=prepared, engine="trl", cluster=cluster, by=by)
    assert made.claim("w")
    made.refresh_from_db()
    return made


@pytest.fixture
def secrets(run: TrainingRun) -> dict[str, Any]:
    """What its job is given."""
    spec = kind_of(run).child_spec(run)
    as_read(spec)
    run.refresh_from_db()
    return json.loads(Path(spec.secrets).read_text())


def job(secrets: dict[str, Any]) -> Client:
    return Client(headers={"Authorization": f"Bearer {secrets['env']['FLYWHEEL_RUN_TOKEN']}"})


def adapter(**changes: Any) -> dict[str, SimpleUploadedFile]:
    files = {"config": json.dumps(GOOD).encode(), "weights": lora()} | changes
    return {name: SimpleUploadedFile(name, content) for name, content in files.items()}


def result_url(run: TrainingRun) -> str:
    return reverse("training_api:run_result", args=[run.pk])


def test_a_run_becomes_a_job_with_its_folder_and_keys_that_end_with_it(
    run: TrainingRun, secrets: dict
) -> None:
    assert (
        run.name.endswith(" on gpus")
        and run.spec["cluster"]["name"] == "gpus"
        and run.spec["engine"] == "trl"
    )
    spec = kind_of(run).child_spec(run)
    assert (
        spec.program() == "ray_job"
        and spec.gpus == 2.0
        and spec.server.base_url == "http://127.0.0.1:8265"
        and TOKEN_IN not in json.dumps(plain(spec))
    )
    assert Path(spec.secrets).stat().st_mode & 0o777 == 0o600
    env = secrets["env"]
    assert (
        env["FLYWHEEL_URL"] == "http://here:8000"
        and secrets["submission"] == run.cursor["submission"]
    )
    with zipfile.ZipFile(spec.package) as archive:
        names = set(archive.namelist())
        base = json.loads(archive.read("base.json"))
        everything = b"".join(archive.read(name) for name in names)
    assert {
        "launch.sh",
        "train.py",
        "ray_runner.py",
        "send_result.py",
        "base.json",
        "manifest.json",
    } <= names
    assert [file["path"] for file in base["files"]] == ["config.json", "model.safetensors"]
    assert (
        env["FLYWHEEL_RUN_TOKEN"].encode() not in everything
        and env["FLYWHEEL_API_KEY"].encode() not in everything
    )
    (key,) = run.project.api_keys.live()
    assert key.scopes == ["evaluate"] and key.expires_at
    assert jobs.end(run, JobState.FAILED, error="x") and not run.project.api_keys.live().exists()


TOKEN_IN = "FLYWHEEL_RUN_TOKEN"


@pytest.mark.proof
def test_a_later_attempt_has_the_same_job_and_key(run: TrainingRun, secrets: dict) -> None:
    assert json.loads(Path(kind_of(run).child_spec(run).secrets).read_text()) == secrets
    assert run.project.api_keys.count() == 1


def test_the_adapter_comes_back_once_and_becomes_a_version(run: TrainingRun, secrets: dict) -> None:
    client = job(secrets)
    with pytest.raises(Incomplete, match="no adapter was received"):
        ray.complete(run, {})
    assert client.post(result_url(run), adapter()).status_code == 201
    again = client.post(result_url(run), adapter())
    assert again.status_code == 409 and "already has its adapter" in again.json()["detail"]
    result = ray.complete(run, {"metrics": {"train/loss": 1.0}})
    run.refresh_from_db()
    assert (
        result["metrics"] == {"train/loss": 1.0}
        and str(run.model_version) == result["model_version"]
    )
    lineage = run.model_version.lineage
    assert (lineage["engine"], lineage["rank"], lineage["cluster"]["name"], lineage["run"]) == (
        "trl",
        2,
        "gpus",
        str(run.pk),
    )


@pytest.mark.proof
def test_an_adapter_that_changes_nothing_is_no_version(run: TrainingRun, secrets: dict) -> None:
    assert job(secrets).post(result_url(run), adapter(weights=lora(b=0.0))).status_code == 201
    with pytest.raises(Incomplete, match="answers exactly like base-v1, so there is no new") as end:
        ray.complete(run, {"metrics": {"train/loss": 1.0}})
    assert end.value.result["metrics"] == {"train/loss": 1.0}
    run.refresh_from_db()
    assert run.model_version is None


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"config": b"{"}, "is not JSON"),
        ({"weights": lora()[:-4]}, "not a whole safetensors file"),
        ({"weights": lora(inner=9)}, "trained on another base"),
        ({"weights": lora("model.layers.9.self_attn.q_proj")}, "are not in base-v1"),
        ({"config": json.dumps(GOOD | {"lora_alpha": 0}).encode()}, "no lora_alpha above 0"),
        (
            {"config": json.dumps(GOOD | {"r": 4}).encode(), "weights": lora(rank=4)},
            "the exported plan rank 2",
        ),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_and_another_may_come(
    run: TrainingRun, secrets: dict, files: dict, says: str
) -> None:
    answer = job(secrets).post(result_url(run), adapter(**files))
    assert answer.status_code == 400 and says in answer.json()["detail"]
    assert ModelVersion.objects.count() == 1
    assert job(secrets).post(result_url(run), adapter()).status_code == 201


def test_no_token_a_wrong_one_and_one_of_another_run(run: TrainingRun, secrets: dict) -> None:
    other = TrainingRun.objects.get(pk=run.pk)
    other.pk, other.cursor = None, {"submission": "x"}
    other.save(force_insert=True)
    assert Client().post(result_url(run), adapter()).status_code == 401
    assert (
        job({"env": {TOKEN_IN: "eyJ:forged:x"}}).post(result_url(run), adapter()).status_code == 401
    )
    assert job(secrets).post(result_url(other), adapter()).status_code == 401
    key = Client(headers={"Authorization": f"Bearer {secrets['env']['FLYWHEEL_API_KEY']}"})
    assert key.post(result_url(run), adapter()).status_code == 401
    assert job(secrets).get(result_url(run)).status_code == 405
    assert job(secrets).post(result_url(run)).status_code == 400


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("end", ["cancel", "end"])
def test_a_token_ends_with_its_run(run: TrainingRun, secrets: dict, end: str) -> None:
    jobs.cancel(run, by=None) if end == "cancel" else jobs.end(run, JobState.FAILED, error="x")
    answer = job(secrets).post(result_url(run), adapter())
    assert answer.status_code == 401 and "has ended" in answer.json()["detail"]


def test_a_job_downloads_its_base_model_and_nothing_else(
    run: TrainingRun, secrets: dict, data_dir: Path
) -> None:
    (data_dir / "base" / "secret.env").write_text("x")
    (data_dir / "outside.json").write_text("{}")
    (data_dir / "base" / "link.json").symlink_to(data_dir / "outside.json")

    def status(name: str, client: Client) -> int:
        return client.get(reverse("training_api:run_base", args=[run.pk, name])).status_code

    client = job(secrets)
    got = client.get(reverse("training_api:run_base", args=[run.pk, "model.safetensors"]))
    assert b"".join(got.streaming_content) == (data_dir / "base" / "model.safetensors").read_bytes()
    for name in ("secret.env", "link.json", "../outside.json", "/etc/passwd", "none.json"):
        assert status(name, client) == 404, name
    assert status("config.json", Client()) == 401


@pytest.mark.proof
def test_what_cannot_be_submitted(prepared: TrainingRun, cluster: RayCluster) -> None:
    by = prepared.created_by
    for engine, says in (
        ("none", "no engine"),
        ("openrlhf", "trains all weights"),
        ("nemo-automodel", "does not train GRPO"),
    ):
        with pytest.raises(TrainingError, match=says):
            ray.submit(run=prepared, engine=engine, cluster=cluster, by=by)
    with pytest.raises(TrainingError, match="Start it as a user"):
        ray.submit(run=prepared, engine="trl", cluster=cluster, by=None)
    prepared.spec["rollouts"] = {"servers": []}
    with pytest.raises(TrainingError, match="Do not choose a server to sample on"):
        ray.submit(run=prepared, engine="trl", cluster=cluster, by=by)
    assert not TrainingRun.objects.exists()


def test_a_cluster_that_was_removed_meanwhile(run: TrainingRun, cluster: RayCluster) -> None:
    cluster.delete()
    with pytest.raises(TrainingError, match="“gpus” was removed"):
        ray.ray_spec(run)


@pytest.mark.proof
def test_by_page_and_api(prepared: TrainingRun, cluster: RayCluster) -> None:
    prepared.save()
    project = prepared.project
    client = Client()
    client.force_login(make_member(project, Role.ENGINEER))
    page = client.get(reverse("training:export", args=[project.slug, prepared.pk])).content.decode()
    assert "Submit to gpus" in page
    url = reverse("training:submit", args=[project.slug, prepared.pk])
    made = client.post(url, {"cluster": "gpus", "engine": "trl"}, follow=True)
    assert "Ray cluster" in made.content.decode() and TrainingRun.objects.count() == 2
    assert client.post(url, {"cluster": "none", "engine": "trl"}).status_code == 404
    assert (
        "trains all weights"
        in client.post(url, {"cluster": "gpus", "engine": "openrlhf"}, follow=True).content.decode()
    )
    by_key = Client(headers={"Authorization": f"Bearer {make_key(project)}"})
    api = reverse("training_api:run_submit", args=[prepared.pk])
    sent = {"cluster": "gpus", "engine": "verl"}
    made = by_key.post(api, sent, content_type="application/json")
    assert (
        made.status_code == 201
        and TrainingRun.objects.get(pk=made.json()["id"]).spec["engine"] == "verl"
    )
    assert (
        by_key.post(api, sent | {"cluster": "x"}, content_type="application/json").status_code
        == 404
    )
    assert (
        by_key.post(api, sent | {"engine": "x"}, content_type="application/json").status_code == 400
    )
    prepared.environment.verifier.overrides.all().delete()
    assert by_key.post(api, sent, content_type="application/json").status_code == 409


# Clusters


@pytest.mark.proof
def test_clusters_by_page(prepared: TrainingRun, settings: Any) -> None:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = False
    project, client = prepared.project, Client()
    client.force_login(admin_of(project))
    new = reverse("registry:ray_cluster_new", args=[project.slug])
    sent = {"name": "gpus", "base_url": "https://ray.example.com/", "gpus": "1"}
    assert (
        "inside this machine or network"
        in client.post(new, sent | {"base_url": "http://10.0.0.1:8265"}).content.decode()
    )
    assert (
        "may not be read"
        in client.post(new, sent | {"key_variable": "DATABASE_URL"}).content.decode()
    )
    assert "name a host" in client.post(new, sent | {"flywheel_url": "ftp://x"}).content.decode()
    page = client.post(new, sent, follow=True).content.decode()
    assert "https://ray.example.com" in page and "Not checked yet" in page
    assert "A cluster named “gpus” already exists" in client.post(new, sent).content.decode()
    edit = reverse("registry:ray_cluster_edit", args=[project.slug, "gpus"])
    client.post(edit, sent | {"bases_at": "/models"})
    assert RayCluster.objects.get().bases_at == "/models"
    client.post(reverse("registry:ray_cluster_remove", args=[project.slug, "gpus"]))
    assert not RayCluster.objects.exists()
    assert (
        "No Ray clusters yet"
        in client.get(reverse("registry:ray_clusters", args=[project.slug])).content.decode()
    )


@pytest.mark.proof
def test_clusters_by_api(prepared: TrainingRun) -> None:
    client = Client(headers={"Authorization": f"Bearer {make_key(prepared.project)}"})
    url = reverse("registry_api:ray_clusters")

    def ask(method: str, where: str, body: dict | None = None) -> Any:
        return getattr(client, method)(where, body, content_type="application/json")

    assert (
        ask("post", url, {"name": "a b", "base_url": "https://ray.example.com"}).status_code == 400
    )
    made = ask("post", url, {"name": "gpus", "base_url": "https://ray.example.com"})
    assert made.status_code == 201 and made.json()["health"] == "unchecked"
    item = reverse("registry_api:ray_cluster", args=["gpus"])
    assert (
        ask("patch", item, {"gpus": 4}).json()["gpus"] == 4
        and ask("patch", item, {"gpu": 4}).status_code == 400
    )
    assert [row["name"] for row in ask("get", url).json()["results"]] == ["gpus"]
    other = Client(headers={"Authorization": f"Bearer {make_key(make_project())}"})
    assert other.get(item).status_code == 404
    assert ask("delete", item).status_code == 204 and ask("get", item).status_code == 404


def test_health_and_what_was_found_out_about_another_address_is_dropped(
    cluster: RayCluster,
) -> None:
    refresh_health(cluster)
    cluster.refresh_from_db()
    assert cluster.health == "down" and "does not answer" in cluster.health_detail
    with fake_ray() as fake:
        edited = edit_cluster(
            cluster=cluster, given=NewCluster(name="gpus", base_url=fake.base), by=None
        )
        assert edited.health == "unchecked"
        refresh_health(edited)
        refresh_health(cluster)  # of the old address
    edited.refresh_from_db()
    assert (edited.health, edited.ray_version) == ("healthy", "2.60.0")
    with pytest.raises(ServerError, match="metadata service"):
        edit_cluster(
            cluster=edited,
            given=NewCluster(name="gpus", base_url="http://169.254.169.254"),
            by=None,
        )
