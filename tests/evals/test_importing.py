"""Files of tasks: looked at first, stored with where they come from, at once or by a worker, never
half.
"""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from apps.core import jobs, runner
from apps.core.actions import create_api_key
from apps.core.models import KeptFile, Project, Role
from apps.core.scopes import Scope
from apps.evals import actions, importing
from apps.evals.importing import Choice, ImportProblem
from apps.evals.models import EvalSet, HoldoutView, Origin, Split, TaskImport
from tests.factories import admin_of, freeze_set, make_eval_set, make_member, make_project

pytestmark = pytest.mark.django_db


def rows(count: int, **changes: Any) -> bytes:
    made = [
        {
            "key": f"k{number}",
            "messages": [{"role": "user", "content": f"Close ticket {number + 100}."}],
            "expected": {"tool": "close", "args": {"id": number + 100}},
            **changes,
        }
        for number in range(count)
    ]
    return b"".join(json.dumps(row).encode() + b"\n" for row in made)


@pytest.fixture
def draft(data_dir: Path) -> EvalSet:
    return actions.create_eval_set(project=make_project(), slug="files", by=None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


def stored(draft: EvalSet, file: Path, data: bytes, **choice: Any) -> importing.Imported:
    file.write_bytes(data)
    format = importing.format_of(file, file.name, "auto")
    return importing.import_file(
        eval_set=draft, path=file, name=file.name, choice=Choice(format, **choice), by=None
    )


def test_rows_become_tasks_that_say_where_they_are_from(draft: EvalSet, file: Path) -> None:
    done = stored(draft, file, rows(2) + b"{}\n" + rows(3)[-100:])
    assert done.made >= 2 and done.bad >= 1 and "Line 3" in done.problems[0]
    task = draft.tasks.get(key="k1")
    assert task.origin == Origin.IMPORTED and task.metadata["imported"] == {
        "file": "tasks.jsonl",
        "line": 2,
    }
    assert task.split == Split.TRAIN and task.confirmed_by is None


def test_the_same_file_twice_adds_nothing(draft: EvalSet, file: Path) -> None:
    stored(draft, file, rows(5))
    again = stored(draft, file, rows(5))
    assert (again.made, again.duplicates, draft.tasks.count()) == (0, 5, 5)


def test_a_key_that_is_taken_by_another_request_gets_a_number(draft: EvalSet, file: Path) -> None:
    stored(draft, file, rows(1))
    stored(draft, file, rows(1, messages=[{"role": "user", "content": "Something else entirely."}]))
    assert set(draft.tasks.values_list("key", flat=True)) == {"k0", "k0-2"}


def test_split_and_group_by_choice(draft: EvalSet, file: Path) -> None:
    data = rows(1, split="validation", metadata={"customer": "acme"})
    stored(draft, file, data, split="regression", always=True, group="metadata.customer")
    task = draft.tasks.get()
    assert (task.split, task.group) == ("regression", "customer:acme")


def test_what_is_synthetic_stays_synthetic_and_is_never_held_out(
    draft: EvalSet, file: Path
) -> None:
    data = rows(1, metadata={"flywheel": {"origin": "synthetic"}})
    done = stored(draft, file, data, split="holdout", always=True)
    assert done.bad == 1 and "never be held out" in done.problems[0] and not draft.tasks.exists()
    stored(draft, file, data)
    assert draft.tasks.get().origin == Origin.SYNTHETIC


def test_what_is_near_a_holdout_is_left_out(file: Path) -> None:
    project = make_project()
    held = make_eval_set(project).tasks.holdout().first()
    draft = make_eval_set(project, frozen=False)
    near = {
        "messages": [
            {"role": "user", "content": f"Please {held.messages[0]['content'].lower()} thanks"}
        ]
    }
    done = stored(draft, file, rows(1, **near, expected=held.expected))
    assert done.made == 0 and done.guarded + done.leaking == 1


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.jsonl", b"", "empty"),
        ("a.jsonl", b"hello\n", "was not recognised"),
        ("a.jsonl", b"\x00\xff\xfe", "was not recognised"),
    ],
)
def test_a_file_of_no_format_is_told(
    draft: EvalSet, file: Path, name: str, data: bytes, words: str
) -> None:
    file.write_bytes(data)
    with pytest.raises(ImportProblem, match=words):
        importing.preview(file, name)


def test_a_csv_with_wrong_columns_says_which_there_are(file: Path) -> None:
    file.write_bytes(b"prompt,answre\nhi,there\n")
    seen = importing.preview(file, "a.csv")
    assert (
        seen.good == 0
        and seen.problems[0].field == "answre"
        and "Columns are" in seen.problems[0].message
    )


def test_too_many_rows_are_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importing, "MAX_ROWS", 3)
    file.write_bytes(rows(4))
    with pytest.raises(ImportProblem, match="Split the file"):
        importing.preview(file, "a.jsonl")


# The pages


@pytest.fixture
def member(client: Client, draft: EvalSet, data_dir: Path) -> Client:
    client.force_login(admin_of(draft.project))
    return client


def url(draft: EvalSet, name: str = "import", *more: Any) -> str:
    return reverse(f"evals:{name}", args=[draft.project.slug, draft.pk, *more])


def looked_at(
    member: Client, draft: EvalSet, data: bytes, name: str = "a.jsonl", **more: Any
) -> Any:
    body = {"file": SimpleUploadedFile(name, data), "format": "auto", **more}
    return member.post(url(draft), body)


def test_it_is_shown_before_it_is_stored(member: Client, draft: EvalSet) -> None:
    response = looked_at(member, draft, rows(25) + b"[]\n")
    page = response.content.decode()
    assert "25 valid" in page and "1 invalid" in page and "Close ticket 119." in page
    assert "Close ticket 120." not in page and not draft.tasks.exists()
    token = response.context["token"]
    done = member.post(
        url(draft, "import_start"), {"token": token, "split": "train", "group": "file"}
    )
    assert done.status_code == 200 and draft.tasks.count() == 25
    member.post(url(draft, "import_start"), {"token": token, "split": "train", "group": "file"})
    assert draft.tasks.count() == 25


def test_bfcl_is_joined_with_its_answers(member: Client, draft: EvalSet) -> None:
    function = {
        "name": "area",
        "description": "",
        "parameters": {"type": "dict", "properties": {"side": {"type": "integer"}}},
    }
    question = {
        "id": "simple_0",
        "question": [[{"role": "user", "content": "Area of a square of 3?"}]],
        "function": [function],
    }
    answer = {"id": "simple_0", "ground_truth": [{"area": {"side": [3]}}]}
    data, answers = json.dumps(question).encode(), json.dumps(answer).encode()
    response = looked_at(member, draft, data, answers=SimpleUploadedFile("possible.jsonl", answers))
    member.post(
        url(draft, "import_start"),
        {"token": response.context["token"], "split": "validation", "group": "request"},
    )
    assert draft.tasks.get().expected["tool"] == "area"


def test_a_token_of_another_person_or_set_is_nothing(member: Client, draft: EvalSet) -> None:
    token = looked_at(member, draft, rows(1)).context["token"]
    other = actions.create_eval_set(project=draft.project, slug="other", by=None)
    member.post(url(other, "import_start"), {"token": token, "split": "train", "group": "file"})
    assert not other.tasks.exists()
    for bad in ("", "x", token[:-2]):
        assert member.post(url(draft, "import_start"), {"token": bad}).status_code == 302
    assert not draft.tasks.exists()


@pytest.mark.parametrize("data", [b"", b"nonsense", b"{"])
def test_a_bad_file_is_told_on_the_page(member: Client, draft: EvalSet, data: bytes) -> None:
    assert looked_at(member, draft, data).status_code == 400


def done(job: TaskImport) -> TaskImport:
    runner.run(job)
    job.refresh_from_db()
    return job


def test_many_rows_are_left_to_a_worker(
    member: Client,
    draft: EvalSet,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    monkeypatch.setattr(importing, "AT_ONCE", 3)
    token = looked_at(member, draft, rows(5)).context["token"]
    given = {"token": token, "split": "train", "group": "file"}
    response = member.post(url(draft, "import_start"), given)
    assert (
        not draft.tasks.exists() and "queued" in member.get(response["Location"]).content.decode()
    )
    again = member.post(url(draft, "import_start"), given, follow=True).content.decode()
    assert "already imported" in again
    job = TaskImport.objects.get()
    with django_capture_on_commit_callbacks(execute=True):
        assert done(job).state == "succeeded", job.error
    assert done(job).attempt == 1 and draft.tasks.count() == 5 and not waiting(str(job.pk))
    page = member.get(response["Location"], headers={"HX-Request": "true"}).content.decode()
    assert "succeeded" in page and "hx-get" not in page


def waiting(identity: str) -> bool:
    return KeptFile.objects.filter(folder=importing.folder_of(identity)).exists()


def submitted(draft: EvalSet, n: int) -> TaskImport:
    identity = importing.keep([rows(n)])
    return importing.submit(
        identity=identity, eval_set=draft, name="a", choice=Choice("flywheel"), by=None
    )


def test_an_import_whose_worker_died_is_done_once(
    draft: EvalSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submitted(draft, 2)
    assert job.claim("a worker that died")
    TaskImport.objects.update(heartbeat_at=timezone.now() - timedelta(minutes=5))
    assert jobs.reap()["requeued"] == 1
    assert done(job).state == "succeeded" and job.attempt == 2 and draft.tasks.count() == 2


def test_a_set_that_was_frozen_meanwhile_takes_none(draft: EvalSet) -> None:
    assert done(submitted(draft, 2)).state == "succeeded"
    late = submitted(draft, 3)
    freeze_set(draft)
    assert done(late).state == "failed" and "frozen" in late.error
    assert draft.tasks.count() == 2


def test_a_file_that_is_awaited_is_not_tidied_away(draft: EvalSet) -> None:
    job, left = submitted(draft, 2), importing.keep([rows(1)])
    KeptFile.objects.update(kept_at=timezone.now() - timedelta(days=3))
    importing.keep([rows(1)])
    assert waiting(str(job.pk)) and not waiting(left)


# The API


BFCL = {
    "id": "simple_0",
    "question": [[{"role": "user", "content": "Area of a square of 3?"}]],
    "function": [
        {
            "name": "area",
            "description": "",
            "parameters": {"type": "dict", "properties": {"side": {"type": "integer"}}},
        }
    ],
}
CSV = b'prompt,tool,args\nClose ticket 77.,close,"{""id"": 77}"\n'


def key_of(
    project: Project, role: Role = Role.ENGINEER, scopes: Any = Scope.values
) -> dict[str, str]:
    secret = create_api_key(
        project=project, name="ci", by=make_member(project, role), scopes=scopes
    )[1]
    return {"HTTP_AUTHORIZATION": f"Bearer {secret}"}


def by_api(draft: EvalSet, data: bytes, name: str = "a.jsonl", key: Any = None, **more: Any) -> Any:
    address = reverse("evals_api:imports", args=[draft.pk])
    body = {"file": SimpleUploadedFile(name, data)} | more
    return Client().post(address, body, **(key_of(draft.project) if key is None else key))


def test_a_file_is_imported_by_api_in_any_format(draft: EvalSet) -> None:
    made = by_api(draft, CSV, "refunds.csv", split="validation")
    assert made.status_code == 201, made.content
    assert made.json()["state"] == "succeeded" and made.json()["result"]["made"] == 1
    task = draft.tasks.get()
    assert task.split == Split.VALIDATION and task.metadata["imported"]["file"] == "refunds.csv"
    answers = json.dumps({"id": "simple_0", "ground_truth": [{"area": {"side": [3]}}]}).encode()
    joined = by_api(
        draft, json.dumps(BFCL).encode(), answers=SimpleUploadedFile("possible.jsonl", answers)
    )
    assert (
        joined.json()["result"]["made"] == 1 and draft.tasks.filter(expected__tool="area").exists()
    )
    good_and_bad = by_api(draft, rows(2) + b"{}\n").json()["result"]
    assert (good_and_bad["made"], good_and_bad["bad"]) == (2, 1) and "Line 3" in good_and_bad[
        "problems"
    ][0]
    assert not KeptFile.objects.exists()


def test_a_preview_by_api_stores_nothing(draft: EvalSet) -> None:
    seen = by_api(draft, rows(3, metadata={"ticket": "a"}) + b"[]\n", preview="1")
    assert seen.status_code == 200 and (seen.json()["good"], seen.json()["bad"]) == (3, 1)
    assert (
        seen.json()["groups"] == ["file", "request", "metadata.ticket"] and not draft.tasks.exists()
    )
    assert not KeptFile.objects.exists()


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("data", "more", "path"),
    [
        (b"nonsense", {}, "file"),
        (b"", {}, "file"),
        (b"x", {"format": "xls"}, "format"),
        (rows(1), {"split": "x"}, "split"),
        (rows(1), {"group": "metadata.nothing"}, "group"),
        (rows(1), {"perview": "1"}, "perview"),
        (rows(1), {"preview": "maybe"}, "preview"),
        (rows(1), {"always": "x"}, "always"),
        (rows(1), {"answers": [SimpleUploadedFile(name, b"{}") for name in "ab"]}, "answers"),
    ],
)
def test_a_file_that_cannot_be_imported_says_why(
    draft: EvalSet, data: bytes, more: dict, path: str
) -> None:
    answer = by_api(draft, data, **more)
    assert answer.status_code == 400 and answer.json()["path"] == path, answer.content
    assert not draft.tasks.exists() and not KeptFile.objects.exists()


def test_many_rows_by_api_are_followed_and_cancelled(
    draft: EvalSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "AT_ONCE", 3)
    first, second = by_api(draft, rows(5)), by_api(draft, rows(6))
    assert (
        first.status_code == 202 and first.json()["state"] == "queued" and not draft.tasks.exists()
    )
    key, at = (
        key_of(draft.project),
        [reverse("evals_api:import", args=[draft.pk, one.json()["id"]]) for one in (first, second)],
    )
    assert Client().post(f"{at[1]}cancel/", **key).json()["state"] == "cancelled"
    assert Client().post(f"{at[1]}cancel/", **key).status_code == 409
    done(TaskImport.objects.get(pk=first.json()["id"]))
    read = Client().get(at[0], **key).json()
    assert read["state"] == "succeeded" and read["result"]["made"] == 5
    listing = reverse("evals_api:imports", args=[draft.pk])
    assert len(Client().get(listing, **key).json()["results"]) == 2
    one = Client().get(listing, {"limit": 1}, **key).json()
    other = Client().get(listing, {"limit": 1, "cursor": one["next"]}, **key).json()
    assert len(one["results"]) == len(other["results"]) == 1 and one["results"] != other["results"]
    assert (
        other["next"] is None
        and Client().get(listing, {"cursor": "x"}, **key).json()["path"] == "cursor"
    )


def test_who_may_import_by_api(draft: EvalSet) -> None:
    project = draft.project
    for key, status in (
        ({}, 401),
        (key_of(make_project()), 404),
        (key_of(project, Role.VIEWER), 403),
        (key_of(project, scopes=[Scope.READ, Scope.EVALUATE]), 403),
    ):
        assert by_api(draft, rows(1), key=key).status_code == status
    assert not draft.tasks.exists()
    frozen = make_eval_set(project)
    refused = by_api(frozen, rows(1))
    assert refused.status_code == 409 and "frozen" in refused.json()["detail"]


def test_what_is_left_out_of_an_import_by_api_is_a_look_of_the_key(data_dir: Path) -> None:
    held = make_eval_set(make_project(), train=0, holdout=1)
    same = held.tasks.holdout().get()
    draft = actions.create_eval_set(project=held.project, slug="files", by=None)
    line = json.dumps({"key": "a", "messages": same.messages, "expected": same.expected}).encode()
    answer = by_api(draft, line)
    assert answer.json()["result"]["left_out"] == 1 and same.key not in answer.content.decode()
    assert HoldoutView.objects.get().api_key.name == "ci"


def test_the_command(draft: EvalSet, file: Path, capsys: pytest.CaptureFixture) -> None:
    file.write_bytes(rows(3))
    call_command("import_tasks", "files", str(file), "--split", "validation")
    assert (
        "3 new" in capsys.readouterr().out and draft.tasks.filter(split="validation").count() == 3
    )
    with pytest.raises(CommandError, match="no draft"):
        call_command("import_tasks", "nothing", str(file))
    with pytest.raises(CommandError, match="no file"):
        call_command("import_tasks", "files", "gone.jsonl")
