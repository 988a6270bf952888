"""What comes back of an exported run: what is registered, what is refused and why, by page, API and
command.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from safetensors.numpy import save

from apps.core.models import AuditEvent, JobState, Role
from apps.registry.actions import register_base
from apps.registry.models import ModelVersion
from apps.registry.trained_elsewhere import CONFIG, WEIGHTS, register_trained_adapter
from apps.training.actions import freeze_dataset, prepared_run
from apps.training.engines import returned
from apps.training.engines.exporting import export
from apps.training.engines.folder import MANIFEST
from apps.training.engines.returned import (
    METRICS,
    ResultError,
    from_files,
    from_folder,
    import_result,
)
from apps.training.models import Method, TrainingRun
from tests.factories import (
    admin_of,
    make_environment,
    make_eval_set,
    make_key,
    make_member,
    make_project,
    override,
)
from tests.shared import copied, once

pytestmark = pytest.mark.django_db
LAYER = "model.layers.0.self_attn.q_proj"
GOOD = {
    "peft_type": "LORA",
    "r": 2,
    "lora_alpha": 4,
    "target_modules": ["q_proj"],
    "base_model_name_or_path": "model",
}
LINES = (
    b'{"step": 1, "values": {"train/loss": 2.0}}\n\n{"step": 2, "reward": 0.5, "b\\ud83d\\u0000":'
    b' 3, "text": "x", "odd": NaN, "huge": 1e999}\n'
)


def lora(
    layer: str = LAYER, rank: int = 2, inner: int = 8, b: float = 1.0, dtype: Any = numpy.float32
) -> bytes:
    name = f"base_model.model.{layer}.lora_"
    return save(
        {
            f"{name}A.weight": numpy.ones((rank, inner), dtype),
            f"{name}B.weight": numpy.full((6, rank), b, dtype),
        }
    )


def made_run(folder: Path) -> TrainingRun:
    project = make_project()
    by = admin_of(project)
    home = folder / "base"
    home.mkdir()
    (home / "config.json").write_text("{}")
    (home / "model.safetensors").write_bytes(
        save({f"{LAYER}.weight": numpy.ones((6, 8), numpy.float32)})
    )
    environment = make_environment(project)
    override(environment)
    eval_set = make_eval_set(project)
    return prepared_run(
        project=project,
        method=Method.GRPO,
        parent=register_base(project=project, name="base", folder=home, by=by),
        dataset=freeze_dataset(eval_set=eval_set, by=by),
        environment=environment,
        by=by,
        config={"steps": 4, "learning_rate": 1e-5, "lora_rank": 2},
    )


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[TrainingRun, Path]]:
    yield from once(request, made_run)


@pytest.fixture
def run(kept: tuple[TrainingRun, Path], db: None, settings: Any, data_dir: Path) -> TrainingRun:
    run = copied(kept, settings)
    settings.FLYWHEEL_MODEL_FOLDERS = [str(data_dir)]
    return run


@pytest.fixture
def files(run: TrainingRun) -> dict[str, bytes]:
    """What a good result is."""
    return exported(run)


def exported(run: TrainingRun) -> dict[str, bytes]:
    with zipfile.ZipFile(
        io.BytesIO(export(run=run, engine="verl", by=run.created_by).content)
    ) as archive:
        manifest = next(
            archive.read(name) for name in archive.namelist() if name.endswith(MANIFEST)
        )
    return {MANIFEST: manifest, CONFIG: json.dumps(GOOD).encode(), WEIGHTS: lora(), METRICS: LINES}


def given(files: dict[str, bytes]) -> returned.Returned:
    return from_files([(name, io.BytesIO(content)) for name, content in files.items()])


def zipped(files: dict[str, bytes], **options: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content, **options)
    return buffer.getvalue()


def take(run: TrainingRun, files: dict[str, bytes]) -> TrainingRun:
    return import_result(project=run.project, returned=given(files), by=run.created_by)


def test_a_result_becomes_a_version_with_lineage_and_a_finished_run_with_curves(
    run: TrainingRun, files: dict
) -> None:
    made = take(run, files)
    assert (made.state, made.done, made.name) == (
        JobState.SUCCEEDED,
        2,
        "GRPO from base-v1 in veRL",
    )
    assert (made.dataset, made.environment, made.parent) == (
        run.dataset,
        run.environment,
        run.parent,
    )
    assert sorted(made.metrics.values_list("name", "step", "value")) == [
        ("b", 2, 3.0),
        ("reward", 2, 0.5),
        ("train/loss", 1, 2.0),
    ]
    version = made.model_version
    assert (
        version.parent == run.parent
        and version.lineage["engine"] == "verl"
        and version.lineage["rank"] == 2
    )
    assert version.lineage["eval_set_digest"] == run.dataset.eval_set.digest and version.lineage[
        "run"
    ] == str(made.pk)
    assert AuditEvent.objects.get(action="training.imported").detail["model_version"] == str(
        version
    )


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("weights", "like"),
    [
        (lora(b=0.3), "start-v1"),  # its start, as it was
        (lora(b=0.3, dtype=numpy.float16), "start-v1"),  # saved in half precision
        (lora(b=0.0), "base-v1"),
        (lora(b=0.3002, dtype=numpy.float32), ""),
        (lora(b=0.31, dtype=numpy.float16), ""),
    ],
    ids=["same", "rounded", "zero", "a little", "more"],
)
def test_a_result_that_is_its_start_is_a_failed_run_without_a_version(
    run: TrainingRun, weights: bytes, like: str
) -> None:
    run.parent = register_trained_adapter(
        project=run.project,
        name="start",
        parent=run.parent,
        by=run.created_by,
        config=io.BytesIO(json.dumps(GOOD).encode()),
        weights=io.BytesIO(lora(b=0.3)),
        confirm_base=True,
    )
    sent = exported(run) | {WEIGHTS: weights}
    versions = ModelVersion.objects.count()
    made = take(run, sent)
    assert made.metrics.count() == 3 and made.pk == take(run, sent).pk
    assert bool(made.model_version) == (not like)
    assert ModelVersion.objects.count() == versions + (not like)
    assert made.state == (JobState.FAILED if like else JobState.SUCCEEDED)
    assert (f"answers exactly like {like}, so there is no new version" in made.error) == bool(like)
    client = Client()
    client.force_login(make_member(run.project, Role.ENGINEER))
    page = client.get(reverse("training:detail", args=[run.project.slug, made.pk]))
    assert (f"answers exactly like {like}" in page.content.decode()) == bool(like)
    assert ("?model_version=" in page.content.decode()) == (not like)


def test_the_same_result_twice_is_one_run(run: TrainingRun, files: dict) -> None:
    assert take(run, files) == take(run, files)
    assert TrainingRun.objects.count() == 1 and ModelVersion.objects.count() == 2


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({MANIFEST: None}, "Missing: manifest.json"),
        (
            {WEIGHTS: None, CONFIG: None},
            "Missing: adapter_config.json, adapter_model.safetensors",
        ),
        ({MANIFEST: b"{}"}, "not written by this Flywheel"),
        ({MANIFEST: b"[" * 100_000}, "not written by this Flywheel"),
        ({MANIFEST: b'{"signature": 5}'}, "not written by this Flywheel"),
        ({MANIFEST: b'{"signature": "eyJhIjoxfQ:forged"}'}, "not written by this Flywheel"),
        ({MANIFEST: b" " * (5 * 2**20)}, "larger than 4 MiB"),
        (
            {CONFIG: json.dumps(GOOD | {"r": 4}).encode(), WEIGHTS: lora(rank=4)},
            "has rank 4, the exported plan rank 2",
        ),
        (
            {CONFIG: json.dumps(GOOD | {"lora_alpha": 0}).encode()},
            "no lora_alpha above 0.*Set the value",
        ),
        ({CONFIG: json.dumps(GOOD | {"lora_alpha": True}).encode()}, "no lora_alpha above 0"),
        (
            {CONFIG: json.dumps(GOOD | {"lora_alpha": 8}).encode()},
            "lora_alpha 8, the exported plan 4",
        ),
        ({CONFIG: b"{"}, "is not JSON"),
        ({WEIGHTS: pickle.dumps({"a": 1})}, "not a whole safetensors file"),
        ({WEIGHTS: lora()[:-4]}, "not a whole safetensors file"),
        ({WEIGHTS: lora(inner=9)}, "trained on another base"),
        ({WEIGHTS: lora("model.layers.9.self_attn.q_proj")}, "are not in base-v1"),
        ({METRICS: b"step 1"}, "metrics.jsonl, line 1"),
        ({METRICS: b'{"step": 1}\n[1]'}, "metrics.jsonl, line 2"),
        ({METRICS: b'{"step": -1, "a": 1}'}, "whole number"),
        ({METRICS: b'{"step": 1e3, "a": 1}'}, "whole number"),
        ({METRICS: b'{"step": 1, "values": 7}'}, "metrics.jsonl, line 1"),
    ],
)
def test_what_cannot_be_registered_is_refused_with_a_sentence(
    run: TrainingRun, files: dict, changes: dict, says: str
) -> None:
    changed = {name: content for name, content in (files | changes).items() if content is not None}
    with pytest.raises(ResultError, match=says):
        take(run, changed)
    assert ModelVersion.objects.get() == run.parent and not TrainingRun.objects.exists()


def test_a_manifest_whose_facts_were_edited_says_what_was_signed(
    run: TrainingRun, files: dict
) -> None:
    edited = json.loads(files[MANIFEST])
    edited["facts"]["eval_set"] = "another-v9"
    assert take(run, files | {MANIFEST: json.dumps(edited).encode()}).spec["eval_set"] == str(
        run.dataset.eval_set
    )


def test_a_folder_of_another_project_is_refused(run: TrainingRun, files: dict) -> None:
    with pytest.raises(ResultError, match="exported from another project"):
        import_result(project=make_project(), returned=given(files), by=None)


def test_what_was_deleted_meanwhile_is_named(run: TrainingRun, files: dict) -> None:
    run.dataset.rows.all().delete()
    run.dataset.delete()
    with pytest.raises(ResultError, match="Deleted here since the export: dataset"):
        take(run, files)


def test_an_archive_is_read_by_its_names_and_never_unpacked(
    run: TrainingRun, files: dict, tmp_path: Path
) -> None:
    hostile = {f"../../{tmp_path}/deep/{name}": content for name, content in files.items()} | {
        "/etc/x": b"",
        "../evil.py": b"x",
    }
    made = import_result(
        project=run.project, returned=from_files([("r.ZIP", io.BytesIO(zipped(hostile)))]), by=None
    )
    assert [file["path"] for file in made.model_version.artifact.files] == [CONFIG, WEIGHTS]
    assert not (tmp_path / "deep").exists()


@pytest.mark.parametrize(
    ("archive", "says"),
    [
        (b"PK\x03\x04 nothing", "cannot be read"),
        (zipped({"readme.txt": b"x"}), "Missing: manifest.json"),
        (zipped({f"{n}": b"" for n in range(10_001)}), "holds 10001 files"),
        (zipped({f"a/{CONFIG}": b"{}", f"b/{CONFIG}": b"{}"}), "two files adapter_config.json"),
    ],
)
def test_archives_that_are_no_result(run: TrainingRun, archive: bytes, says: str) -> None:
    with pytest.raises(ResultError, match=says):
        import_result(
            project=run.project, returned=from_files([("r.zip", io.BytesIO(archive))]), by=None
        )


@pytest.mark.proof
@pytest.mark.parametrize("name", [MANIFEST, CONFIG, WEIGHTS, METRICS])
def test_a_zip_bomb_is_cut_off(
    run: TrainingRun, files: dict, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(returned, "MAX_ADAPTER", 2**20)
    monkeypatch.setattr(returned, "MAX_METRICS", 2**20)
    monkeypatch.setattr(returned, "MAX_MANIFEST", 2**20)
    seen: list[int] = []
    read = zipfile.ZipExtFile.read

    def counted(self: Any, size: int = -1) -> bytes:
        seen.append(size)
        return read(self, size)

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    bomb = zipped(files | {name: b"0" * (64 * 2**20)})
    assert len(bomb) < 2**20
    with pytest.raises(ResultError, match="larger than"):
        import_result(
            project=run.project, returned=from_files([("r.zip", io.BytesIO(bomb))]), by=None
        )
    assert all(0 <= size <= 2**20 + 1 for size in seen), "nothing is read without a bound"


def test_a_broken_member_is_a_sentence(run: TrainingRun, files: dict) -> None:
    content = bytearray(zipped(files))
    at = content.find(WEIGHTS.encode()) + len(WEIGHTS) + 20
    content[at : at + 8] = b"\xff" * 8
    with pytest.raises(ResultError):
        import_result(
            project=run.project,
            returned=from_files([("r.zip", io.BytesIO(bytes(content)))]),
            by=None,
        )


def put(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_a_folder_on_the_server_and_no_links_in_it(
    run: TrainingRun, files: dict, data_dir: Path, tmp_path: Path
) -> None:
    outside = put(tmp_path / "outside", files)
    home = put(
        data_dir / "result", {name: content for name, content in files.items() if name != WEIGHTS}
    )
    (home / WEIGHTS).symlink_to(outside / WEIGHTS)
    with pytest.raises(ResultError, match="Missing: adapter_model"):
        import_result(project=run.project, returned=from_folder(home), by=None)
    (home / WEIGHTS).unlink()
    (home / WEIGHTS).write_bytes(files[WEIGHTS])
    assert import_result(project=run.project, returned=from_folder(home), by=None).model_version


# By page, API and command


@pytest.mark.proof
def test_the_page(run: TrainingRun, files: dict, data_dir: Path) -> None:
    client, url = Client(), reverse("training:import", args=[run.project.slug])
    client.force_login(make_member(run.project, Role.ENGINEER))
    assert "manifest.json" in client.get(url).content.decode()
    assert "Choose the files, or name a folder" in client.post(url).content.decode()
    assert "must be an existing folder" in client.post(url, {"folder": "/etc"}).content.decode()
    sent = [SimpleUploadedFile(name, content) for name, content in files.items()]
    page = client.post(url, {"files": sent}, follow=True).content.decode()
    assert "is registered" in page and "in veRL" in page
    again = client.post(url, {"files": [SimpleUploadedFile("r.zip", b"no")]}).content.decode()
    assert "cannot be read" in again


def test_the_api(run: TrainingRun, files: dict) -> None:
    client, url = (
        Client(headers={"Authorization": f"Bearer {make_key(run.project)}"}),
        reverse("training_api:run_import"),
    )
    parts = {which: SimpleUploadedFile(name, files[name]) for name, which in returned.NAMES.items()}
    made = client.post(url, parts)
    assert made.status_code == 201 and made.json()["model_version"]
    again = client.post(url, {"archive": SimpleUploadedFile("x", zipped(files))})
    assert (again.status_code, again.json()["id"]) == (200, made.json()["id"])
    assert client.post(url, {"weights": SimpleUploadedFile("a", b"x")}).status_code == 400
    assert client.post(url, {"other": SimpleUploadedFile("a", b"x")}).status_code == 400
    assert client.post(url).status_code == 400


@pytest.mark.proof
def test_a_run_is_exported_by_api(run: TrainingRun) -> None:
    run.save()
    client, url = (
        Client(headers={"Authorization": f"Bearer {make_key(run.project)}"}),
        reverse("training_api:run_export", args=[run.pk]),
    )
    made = client.post(url, {"engine": "trl"}, content_type="application/json")
    assert made.status_code == 200 and zipfile.ZipFile(io.BytesIO(made.content)).namelist()
    assert (
        client.post(url, {"engine": "axolotl"}, content_type="application/json").status_code == 400
    )
    run.environment.verifier.overrides.all().delete()
    assert client.post(url, {"engine": "trl"}, content_type="application/json").status_code == 409


@pytest.mark.proof
def test_the_page_of_exports(run: TrainingRun) -> None:
    run.save()
    client, url = Client(), reverse("training:export", args=[run.project.slug, run.pk])
    client.force_login(make_member(run.project, Role.ENGINEER))
    page = client.get(url).content.decode()
    assert "veRL" in page and "does not train GRPO in this export" in page
    made = client.post(url, {"engine": "verl"})
    assert (
        made["Content-Type"] == "application/zip"
        and "grpo-from-base-v1-verl.zip" in made["Content-Disposition"]
    )
    assert (
        "does not train GRPO"
        in client.post(url, {"engine": "nemo-automodel"}, follow=True).content.decode()
    )


def test_the_command(
    run: TrainingRun, files: dict, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "r.zip").write_bytes(zipped(files))
    call_command("import_training_result", str(tmp_path / "r.zip"), project=run.project.slug)
    assert "base-grpo-v1 from GRPO from base-v1 in veRL" in capsys.readouterr().out
    with pytest.raises(CommandError, match="Missing"):
        call_command(
            "import_training_result", str(put(tmp_path / "empty", {})), project=run.project.slug
        )
