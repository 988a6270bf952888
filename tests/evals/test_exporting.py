"""Files of tasks: what goes out comes in again, a hold-out goes alone and counted, nothing
unreviewed goes at all.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from apps.core.models import Role
from apps.evals import actions, exporting, importing
from apps.evals.capability.add import add_general
from apps.evals.capability.generate import general_tasks
from apps.evals.formats import read
from apps.evals.models import EvalSet, Origin, Split, Task
from tests.factories import (
    GENERAL_TICKETS,
    admin_of,
    make_eval_set,
    make_member,
    make_project,
    unsearched,
)

pytestmark = pytest.mark.django_db
FIELDS = ("key", "messages", "expected", "tools", "demonstration", "group", "split")


def exported(eval_set: EvalSet, format: str, split: Split) -> bytes:
    return b"".join(exporting.export(eval_set=eval_set, format=format, split=split, by=None).chunks)


def synthetic(eval_set: EvalSet, state: str) -> Task:
    seed = eval_set.tasks.trainable().first()
    return Task.objects.create(
        project=eval_set.project,
        eval_set=eval_set,
        key=f"v-{state}",
        split=Split.TRAIN,
        group=seed.group,
        canonical_hash=f"hash {state}",
        messages=[{"role": "user", "content": f"Variant {state}."}],
        expected=seed.expected,
        origin=Origin.SYNTHETIC,
        variant_of=seed,
        metadata={"variant": {"batch": "b", "kind": "edge", "state": state}},
    )


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("format", ["flywheel", "nemo-gym", "csv"])
def test_what_goes_out_comes_in_as_it_was(format: str, tmp_path: Path) -> None:
    eval_set = make_eval_set(make_project(), frozen=False)
    synthetic(eval_set, "used")
    file = tmp_path / "tasks.jsonl"
    file.write_bytes(exported(eval_set, format, Split.TRAIN))
    other = actions.create_eval_set(project=make_project(), slug="copy", by=None)
    importing.import_file(
        eval_set=other, path=file, name="tasks.jsonl", choice=importing.Choice(format), by=None
    )
    before = {
        task.key: [getattr(task, name) for name in FIELDS] for task in eval_set.tasks.trainable()
    }
    assert {
        task.key: [getattr(task, name) for name in FIELDS] for task in other.tasks.all()
    } == before
    assert other.tasks.get(key="v-used").origin == Origin.SYNTHETIC


def test_a_holdout_is_in_no_file_but_its_own() -> None:
    eval_set = make_eval_set(make_project())
    add_to = make_eval_set(eval_set.project, frozen=False)
    with unsearched():
        add_general(eval_set=add_to, by=None)
    for one in (eval_set, add_to):
        held = [json.dumps(task.messages[0]["content"]).encode() for task in one.tasks.holdout()]
        splits = {Split(value) for value in one.tasks.values_list("split", flat=True)}
        for split, format in product(splits - {Split.HOLDOUT}, exporting.FORMATS):
            data = exported(one, format, split)
            if format == "verifiers":
                archive = zipfile.ZipFile(io.BytesIO(data))
                data = b"".join(archive.read(name) for name in archive.namelist())
            assert held and not any(text in data for text in held), format
        assert one.holdout_views.count() == 0


def test_made_tasks_are_none_of_the_general_set() -> None:
    closed = re.findall(
        r"Close ticket (\d+)", json.dumps([row.messages for row in general_tasks()])
    )
    assert {int(number) for number in closed if 1000 <= int(number) < 5000} == GENERAL_TICKETS


def test_what_waits_to_be_looked_through_does_not_go_out() -> None:
    eval_set = make_eval_set(make_project(), frozen=False)
    synthetic(eval_set, "waiting")
    assert b"Variant waiting" not in exported(eval_set, "flywheel", Split.TRAIN)
    assert not eval_set.tasks.trainable().filter(key="v-waiting").exists()


def test_the_verifiers_package_carries_recorded_results() -> None:
    eval_set = make_eval_set(make_project(), frozen=False)
    task = eval_set.tasks.trainable().first()
    task.metadata = {"recorded_results": [{"tool": "a", "args": {}, "content": "recorded reply"}]}
    task.save(update_fields=["metadata"])
    archive = zipfile.ZipFile(io.BytesIO(exported(eval_set, "verifiers", Split.TRAIN)))
    tasks = next(name for name in archive.namelist() if name.endswith("tasks.jsonl"))
    rows = list(read("flywheel", archive.read(tasks).splitlines()))
    assert len(rows) == 3 and any(row.metadata.get("recorded_results") for row in rows)
    assert exported(eval_set, "verifiers", Split.TRAIN) == exported(
        eval_set, "verifiers", Split.TRAIN
    )


def page(eval_set: EvalSet, name: str = "export") -> str:
    return reverse(f"evals:{name}", args=[eval_set.project.slug, eval_set.pk])


def body_of(response: Any) -> bytes:
    return b"".join(response.streaming_content)


def test_the_page_gives_files_and_a_holdout_only_when_confirmed(client: Client) -> None:
    eval_set = make_eval_set(make_project())
    client.force_login(admin_of(eval_set.project))
    response = client.get(page(eval_set), {"split": "train", "format": "nemo-gym"})
    assert "attachment" in response["Content-Disposition"] and body_of(response).count(b"\n") == 3
    held = client.get(page(eval_set), {"split": "holdout"})
    assert held["Content-Type"].startswith("text/html") and eval_set.holdout_views.count() == 0
    refused = client.post(page(eval_set, "export_holdout"), {"format": "flywheel"})
    assert refused.status_code == 302 and eval_set.holdout_views.count() == 0
    given = client.post(page(eval_set, "export_holdout"), {"format": "flywheel", "confirmed": "on"})
    assert body_of(given).count(b'"split": "holdout"') == 3
    assert eval_set.holdout_views.get().by == admin_of(eval_set.project)


def test_a_viewer_cannot_take_the_holdout(client: Client) -> None:
    eval_set = make_eval_set(make_project())
    client.force_login(make_member(eval_set.project, Role.VIEWER))
    assert client.post(page(eval_set, "export_holdout"), {"confirmed": "on"}).status_code == 403
    assert client.get(page(eval_set), {"split": "train"}).status_code == 200


@pytest.mark.parametrize(
    ("query", "status"),
    [({"split": "validation"}, 302), ({"split": "train", "format": "xml"}, 400)],
)
def test_an_empty_split_and_an_unknown_format_are_told(
    client: Client, query: dict, status: int
) -> None:
    eval_set = make_eval_set(make_project())
    client.force_login(admin_of(eval_set.project))
    assert client.get(page(eval_set), query).status_code == status
