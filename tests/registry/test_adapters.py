"""The adapter that a job needs is loaded under its digest's name; the least recently used one that
no job needs leaves for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from apps.core.models import JobState
from apps.evals.jobs import evaluation_spec
from apps.evals.models import EvalRun, Split
from apps.evals.submission import submit_eval
from apps.registry import adapters
from apps.registry.actions import ModelError, register_adapter
from apps.registry.adapters import load_for, to_unload
from apps.registry.artifacts import store_folder
from apps.registry.engines import adapter_name, choose
from apps.registry.lora_numbers import changes_something
from apps.registry.models import AdapterSlots, ModelVersion, Phase, Server, ServerRun
from tests.factories import make_base, make_environment, make_eval_set, make_managed, make_project
from tests.registry.stand_in_vllm import Handler
from workers.lib.errors import JobError
from workers.lib.serving import Adapters

pytestmark = pytest.mark.django_db


class World:
    """A managed server that is up (vLLM's contract, in this process) with two slots, and adapters
    on its base.
    """

    def __init__(self, folder: Path) -> None:
        self.handler = type("Own", (Handler,), {"name": "base", "adapters": {}})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self.handler)
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.project = make_project()
        self.base = make_base(self.project, folder)
        self.folder, self.environment = folder, make_environment(self.project)
        self.server = make_managed(self.base, f"http://127.0.0.1:{self.http.server_address[1]}/v1")
        self.run = self.server.runs.get()

    @property
    def loaded(self) -> list[str]:
        return list(self.handler.adapters)

    def adapter(self, name: str) -> ModelVersion:
        """Of rank 8."""
        source = self.folder / name
        source.mkdir()
        (source / "adapter_config.json").write_text('{"r": 8}')
        (source / "adapter_model.safetensors").write_bytes(name.encode())
        artifact = store_folder(source)
        version = register_adapter(
            project=self.project,
            name=name,
            parent=self.base,
            artifact=artifact,
            lineage={},
            by=None,
        )
        return ModelVersion.objects.get(pk=version.pk)

    def submit(self, version: ModelVersion) -> EvalRun:
        return submit_eval(
            project=self.project,
            model_version=version,
            eval_set=make_eval_set(self.project),
            split=Split.TRAIN,
            environment=self.environment,
            by=None,
        )

    def begin(self, version: ModelVersion) -> EvalRun:
        """A job that a worker has begun."""
        run = self.submit(version)
        assert run.claim("w")
        evaluation_spec(run)
        return run


@pytest.fixture
def world(data_dir: Path, settings: Any) -> Iterator[World]:
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = False
    made = World(data_dir)
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_it_is_loaded_under_its_digests_name_once(world: World) -> None:
    version = world.adapter("one")
    run = world.submit(version)
    assert run.spec["engine"]["managed"] and run.spec["engine"]["model"] == adapter_name(version)
    spec = evaluation_spec(run)
    assert spec.engine.model == adapter_name(version) and spec.engine.allow_private
    assert world.loaded == [adapter_name(version)] and version.digest[:24] in world.loaded[0]
    evaluation_spec(run)
    (row,) = AdapterSlots.objects.all()
    assert row.adapters[adapter_name(version)]["jobs"] == [["evals.EvalRun", str(run.pk)]]
    assert world.loaded == [adapter_name(version)]


@pytest.mark.proof
def test_the_least_recently_used_one_leaves_and_one_in_use_stays(world: World) -> None:
    one, two, three, four = (world.adapter(name) for name in ("one", "two", "three", "four"))
    first, second = world.begin(one), world.begin(two)
    second.finish(JobState.SUCCEEDED)
    third = world.begin(three)
    assert set(world.loaded) == {
        adapter_name(one),
        adapter_name(three),
    }, "two was used later, but no job needs it"
    world.begin(four)
    assert len(world.loaded) == 3, "all are in use: nothing is taken from a running job"
    for run in (first, third):
        run.finish(JobState.SUCCEEDED)
    world.begin(two)
    assert set(world.loaded) == {adapter_name(four), adapter_name(two)}


def test_what_others_loaded_is_never_unloaded(world: World) -> None:
    world.handler.adapters.update({"theirs": "/x", "mine-too": "/y"})
    world.begin(world.adapter("one"))
    assert {"theirs", "mine-too"} <= set(world.loaded) and len(world.loaded) == 3


def test_a_server_that_was_started_again_is_loaded_again(world: World) -> None:
    version = world.adapter("one")
    world.begin(version)
    world.handler.adapters.clear()
    world.begin(version)
    assert world.loaded == [adapter_name(version)]


@pytest.mark.django_db(transaction=True)
def test_two_jobs_at_once_never_take_each_others_adapter(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one job unloads “two” for its own, another one that needs “two” waits, and then has it
    loaded again.
    """
    Server.objects.update(serving={**world.server.serving, "lora_slots": 1})
    one, two = world.adapter("one"), world.adapter("two")
    world.begin(two).finish(JobState.SUCCEEDED)
    unloading, go_on = threading.Event(), threading.Event()
    real = Adapters.unload

    def slowly(self: Adapters, name: str) -> bool:
        unloading.set()
        assert go_on.wait(300)
        return real(self, name)

    monkeypatch.setattr(Adapters, "unload", slowly)
    order: list[str] = []

    def job(run: EvalRun, name: str) -> threading.Thread:
        def go() -> None:
            try:
                load_for(run, run.model_version, run.spec["engine"])
                order.append(name)
            finally:
                connection.close()

        thread = threading.Thread(target=go)
        thread.start()
        return thread

    runs = [world.submit(version) for version in (one, two)]
    assert all(run.claim("w") for run in runs)
    threads = [job(runs[0], "one")]
    assert unloading.wait(300)
    threads.append(job(runs[1], "two"))
    waits_for_the_row()
    go_on.set()
    for thread in threads:
        thread.join()
    assert order == ["one", "two"] and set(world.loaded) == {adapter_name(one), adapter_name(two)}


def waits_for_the_row() -> None:
    """Until another connection waits for a lock."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname ="
        " current_database()"
    )
    while True:
        with connection.cursor() as cursor:
            cursor.execute(waiting)
            if cursor.fetchone()[0]:
                return


@pytest.mark.parametrize(
    ("loaded", "uses", "slots", "leaves"),
    [
        (["flywheel-a"], {}, 2, []),
        (["flywheel-a"], {}, 1, ["flywheel-a"]),
        (["flywheel-a"], {}, None, []),
        (["flywheel-a", "theirs"], {}, 2, ["flywheel-a"]),
        (["theirs"], {}, 1, []),
        (["flywheel-a"], {"flywheel-a": {"used": "1", "jobs": [["x", "1"]]}}, 1, []),
        (
            ["flywheel-a", "flywheel-b"],
            {"flywheel-a": {"used": "2", "jobs": []}, "flywheel-b": {"used": "1", "jobs": []}},
            2,
            ["flywheel-b"],
        ),
        (
            ["flywheel-a", "flywheel-b"],
            {"flywheel-a": {"used": "2", "jobs": []}},
            2,
            ["flywheel-b"],
        ),
    ],
)
def test_what_leaves(loaded: list[str], uses: dict, slots: int | None, leaves: list[str]) -> None:
    assert to_unload(loaded, uses, slots) == leaves


# What is chosen


def test_a_managed_server_that_is_up_generates_its_base_and_adapters_on_it(world: World) -> None:
    version = world.adapter("one")
    for what, wanted in (
        (version, "auto"),
        (version, "gpu"),
        (world.base, "auto"),
        (world.base, "gpu"),
    ):
        assert choose(ModelVersion.objects.get(pk=what.pk), wanted)["server_name"] == "gpu"
    assert choose(version, "transformers")["kind"] == "transformers"
    ServerRun.objects.update(phase=Phase.STARTING)
    for what in (version, world.base):
        assert choose(ModelVersion.objects.get(pk=what.pk))["kind"] == "transformers"
        with pytest.raises(ModelError, match="not up"):
            choose(ModelVersion.objects.get(pk=what.pk), "gpu")


@pytest.mark.parametrize(
    ("serving", "says"),
    [({"lora_slots": 0}, "no LoRA slots"), ({"max_lora_rank": 1}, "supports ranks up to 1")],
)
def test_an_adapter_that_does_not_fit_is_generated_in_process(
    world: World, serving: dict, says: str
) -> None:
    Server.objects.update(serving=world.server.serving | serving)
    version = world.adapter("one")
    assert choose(version)["kind"] == "transformers"
    with pytest.raises(ModelError, match=says):
        choose(version, "gpu")


def test_a_server_that_went_away_ends_the_job_with_the_reason(world: World) -> None:
    run = world.submit(world.adapter("one"))
    ServerRun.objects.update(phase=Phase.WAITING)
    with pytest.raises(ModelError, match="not up"):
        evaluation_spec(run)
    ServerRun.objects.update(phase=Phase.UP)
    Server.objects.update(base_url="http://127.0.0.1:9/v1")
    with pytest.raises(JobError, match="is down"):
        evaluation_spec(run)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("status", [404, 400])
def test_an_adapter_that_is_not_loaded_ends_the_job_with_the_reason(
    world: World, status: int
) -> None:
    run = world.submit(world.adapter("one"))
    world.handler.load = lambda self, body: (status, {"error": {"message": "max_lora_rank"}})
    with pytest.raises(
        JobError, match=f"did not load the adapter .*HTTP {status}: .*max_lora_rank"
    ):
        evaluation_spec(run)
    world.handler.load = lambda self, body: (400, {"error": {"message": "has already been loaded"}})
    evaluation_spec(run)  # by a job of another installation, meanwhile


def test_an_outside_server_is_told_the_path_as_it_sees_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = world.adapter("one")
    server = Server(
        project=world.project, name="o", adapters_at="/mnt/artifacts/", base_url="http://x/v1"
    )
    assert adapters.path_of(server, version) == f"/mnt/artifacts/{version.artifact_id}"
    assert adapters.slots_of(server) is None
    server.capabilities = {"lora_slots": {"value": 1, "most": 4}}
    assert adapters.slots_of(server) == 4


@pytest.mark.parametrize("data", [b"", b"weights", b"\2\0\0\0\0\0\0\0[]", b"\xff" * 16])
def test_what_is_no_safetensors_file_is_said(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(data)
    with pytest.raises(ModelError, match="not a safetensors file"):
        changes_something(tmp_path / "adapter_model.safetensors")
