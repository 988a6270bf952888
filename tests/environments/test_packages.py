"""Packages in a project: found, checked on their page, made versions of, uploaded, evaluated,
served and exported.
"""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from apps.core.models import Project, Role
from apps.environments import packages
from apps.environments.actions import save_environment
from apps.environments.clients import job_spec
from apps.environments.models import Environment, Package
from apps.environments.versions import changes
from apps.evals.exporting import export
from apps.evals.from_package import set_of_package
from apps.evals.models import Split, Task
from tests.factories import (
    PACKAGE,
    admin_of,
    key_headers,
    make_member,
    make_package,
    make_project,
    write_package,
)
from workers.lib.environments import load
from workers.lib.environments.packages import runners
from workers.lib.errors import SpecError
from workers.lib.messages import to_native

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def folder(settings: Any, tmp_path: Path) -> Iterator[Path]:
    settings.FLYWHEEL_ENVIRONMENTS_DIR = tmp_path / "environments"
    yield settings.FLYWHEEL_ENVIRONMENTS_DIR
    runners.close_all()
    packages._checked.clear()


def url(name: str, project: Project, *args: Any) -> str:
    return reverse(f"environments:{name}", args=[project.slug, *args])


def added(client: Client, project: Project, name: str = "counter", **changes: Any) -> Any:
    body = {"slug": name, "verifier": "", "max_new_tokens": 64, "temperature": 0.5} | changes
    return client.post(url("package_use", project, name), body, follow=True)


def zip_of(files: dict[str, str]) -> SimpleUploadedFile:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return SimpleUploadedFile("package.zip", buffer.getvalue())


def uploaded(client: Client, project: Project, files: dict[str, str]) -> Any:
    return client.post(url("package_upload", project), {"file": zip_of(files)}, follow=True)


# Pages


def test_a_package_is_listed_checked_and_added(
    project: Project, member: Client, folder: Path
) -> None:
    assert "No packages yet" in member.get(url("packages", project)).content.decode()
    write_package(folder)
    assert "not added" in member.get(url("packages", project)).content.decode()
    assert (
        "Adds." not in member.get(url("package", project, "counter")).content.decode()
    )  # the page runs nothing
    checked = member.get(url("package_check", project, "counter")).content.decode()
    assert (
        "Counter has 1 tool: add." in checked and "The expected calls of 1 task succeed." in checked
    )
    page = added(member, project).content.decode()
    made = project.environments.get()
    assert "counter@1 is saved." in page and (made.kind, made.version) == ("package", 1)
    assert made.verifier.spec == {
        "kind": "package",
        "package": "counter",
        "digest": made.config["digest"],
    }
    assert made.harness["max_new_tokens"] == 64 and made.config["trusted"]
    assert "this code" in member.get(url("packages", project)).content.decode()


def test_changed_code_is_the_next_version_without_a_restart(
    project: Project, member: Client, folder: Path
) -> None:
    write_package(folder)
    added(member, project)
    assert (
        added(member, project) and project.environments.count() == 1
    )  # the same code is the same version
    write_package(folder, code=PACKAGE.replace('"Adds."', '"Adds to the counter."'))
    assert "code has changed" in member.get(url("packages", project)).content.decode()
    assert (
        "The code has changed since"
        in member.get(url("package", project, "counter")).content.decode()
    )
    assert (
        "Adds to the counter."
        in member.get(url("package_check", project, "counter")).content.decode()
    )
    added(member, project)
    second, first = project.environments.order_by("-version")
    assert (first.version, second.version) == (1, 2) and first.verifier != second.verifier
    lines = [
        line for kind, line in changes(first, second) if kind in ("new", "add", "+", "ins")
    ] or list(changes(first, second))
    assert any("Adds to the counter." in str(line) for line in lines)
    assert load(first.as_spec()).tools[0]["function"]["description"] == "Adds."


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("def x(:\n", "line 1"),
        ("import no_such_library\n", "No module named"),
        (PACKAGE.replace("def verify", "def verified"), "has no verifier"),
        ("import os\nos._exit(1)\n", "ended the process"),
    ],
)
def test_a_broken_package_is_shown_with_its_error_and_breaks_no_other(
    project: Project, member: Client, folder: Path, code: str, said: str
) -> None:
    write_package(folder)
    write_package(folder, "broken", code)
    assert member.get(url("packages", project)).status_code == 200
    assert said in member.get(url("package_check", project, "broken")).content.decode().replace(
        "&#x27;", "'"
    )
    assert said in added(member, project, "broken").content.decode()
    assert not project.environments.exists() and not Package.objects.exists()
    assert "counter@1 is saved." in added(member, project).content.decode()


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (PACKAGE.replace('"amount": 2', '"amount": 3'), "its expected calls do not succeed"),
        (PACKAGE.replace('"tool": "add"', '"tool": "ad"'), "Did you mean add?"),
        (PACKAGE.replace("def tasks", "def taskz"), "tasks() gives no tasks"),
    ],
)
def test_a_package_whose_check_fails_is_saved_only_after_a_confirmation(
    project: Project, member: Client, folder: Path, code: str, said: str
) -> None:
    write_package(folder, code=code)
    question = "Save it although its check found errors"
    assert question not in member.get(url("package", project, "counter")).content.decode()
    page = added(member, project).content.decode()
    assert "The check of the package found errors" in page and said in page and question in page
    assert not project.environments.exists()
    assert "counter@1 is saved." in added(member, project, anyway="on").content.decode()


def test_a_check_is_kept_by_the_digest_until_asked_again(
    project: Project, member: Client, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package(folder)
    asked = []
    real = packages.check
    monkeypatch.setattr(packages, "check", lambda found: asked.append(found.digest) or real(found))
    for query in ("", "", "?again=1"):
        member.get(url("package_check", project, "counter") + query)
    assert len(asked) == 2


def test_a_viewer_sees_packages_and_runs_none(project: Project, folder: Path) -> None:
    write_package(folder)
    viewer = Client()
    viewer.force_login(make_member(project, Role.VIEWER))
    page = viewer.get(url("package", project, "counter"))
    assert page.status_code == 200 and "hx-trigger" not in page.content.decode().split("<main")[1]
    assert viewer.get(url("package_check", project, "counter")).status_code in (403, 404)
    assert added(viewer, project).status_code in (403, 404)


def test_a_new_package_can_be_downloaded_and_is_right(
    project: Project, member: Client, folder: Path
) -> None:
    response = member.post(url("package_download", project), {"name": "bug_tracker"})
    assert response["Content-Type"] == "application/zip"
    zipfile.ZipFile(io.BytesIO(response.content)).extractall(folder)
    assert packages.checked(packages.found_of("bug_tracker")).is_usable
    assert (
        "not a valid package name"
        in member.post(url("package_download", project), {"name": "a-b"}).content.decode()
    )


# Uploads


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("home", ["counter/", "project-1/counter/", "counter/counter/"])
def test_an_uploaded_package_is_untrusted_and_of_this_project_alone(
    project: Project, member: Client, home: str
) -> None:
    page = uploaded(
        member,
        project,
        {f"{home}__init__.py": PACKAGE, f"{home}__pycache__/x.pyc": "x", "README.md": "x"},
    )
    assert "It runs in the sandbox." in page.content.decode()
    made = project.environments.get()
    assert not made.config["trusted"] and list(made.package.files) == ["__init__.py"]
    assert not packages.listed(make_project())


@pytest.mark.more(rows=3)
@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a.txt": "x"}, "no __init__.py"),
        ({"a/__init__.py": "", "b/__init__.py": ""}, "several packages: a, b"),
        ({"A-b/__init__.py": ""}, "not a valid package name"),
        ({"json/__init__.py": ""}, "taken by Python&#x27;s standard library"),
        ({"a/__init__.py": "", "a/x/../../../etc/passwd": "x"}, "leads out of the package"),
        ({"a/__init__.py": "", "a/data.bin": "0" * (2**21 + 1)}, "more than 2 MB"),
        ({f"a/f{n}.txt": "" for n in range(501)} | {"a/__init__.py": ""}, "more than 500 files"),
        ({"counter/__init__.py": PACKAGE.replace("def verify", "def verified")}, "has no verifier"),
        ({"counter/__init__.py": "import numpy\n" + PACKAGE}, "An operator may install it"),
    ],
)
def test_what_is_wrong_with_an_upload_is_said(
    project: Project, member: Client, files: dict[str, str], said: str
) -> None:
    page = uploaded(member, project, files).content.decode()
    assert said in page and not project.environments.exists()


def test_what_is_no_zip_is_refused(project: Project, member: Client) -> None:
    body = {"file": SimpleUploadedFile("x.zip", b"PK\x03\x04 no zip")}
    assert (
        "zip file cannot be read"
        in member.post(url("package_upload", project), body).content.decode()
    )


# API


@pytest.mark.proof
def test_the_api_lists_checks_and_makes(project: Project, folder: Path) -> None:
    write_package(folder)
    write_package(folder, "broken", "def x(:\n")
    client, key = Client(), key_headers(project)
    listed = client.get(reverse("environments_api:packages"), **key).json()["results"]
    assert [one["name"] for one in listed] == ["broken", "counter"]
    found = client.get(reverse("environments_api:package", args=["broken"]), **key).json()
    assert not found["is_usable"] and found["findings"][0]["do"]
    assert (
        client.get(reverse("environments_api:package", args=["nothing"]), **key).status_code == 404
    )

    def post(**body: Any) -> Any:
        return client.post(
            reverse("environments_api:environments"),
            json.dumps(body),
            content_type="application/json",
            **key,
        )

    made = post(slug="bugs", kind="package", package="counter")
    assert (
        made.status_code == 201
        and made.json()["tools"] == ["add"]
        and "files" not in made.json()["config"]
    )
    assert post(slug="bugs", kind="package", package="counter").status_code == 200
    sent = post(slug="sent", kind="package", package="mine", files={"__init__.py": PACKAGE})
    assert sent.status_code == 201 and sent.json()["config"]["trusted"] is False
    for body, said in (
        ({"package": "broken"}, "line 1"),
        ({}, "is missing"),
        ({"package": "nothing"}, "There is no package"),
        ({"package": "mine", "files": {"../x": ""}}, "would not lie in the package"),
        ({"package": "counter", "harness": {"tools": [{"function": {"name": "x"}}]}}, "no tools"),
    ):
        refused = post(slug="x", kind="package", **body)
        assert refused.status_code == 400 and said in refused.content.decode(), refused.content


def test_nobody_says_of_an_upload_that_it_is_trusted(project: Project, folder: Path) -> None:
    made = make_package(project, folder)
    config = made.config | {"digest": "0" * 64}
    with pytest.raises(SpecError, match="of another version of the package"):
        save_environment(
            project=project,
            slug="x",
            kind="package",
            harness={},
            verifier=made.verifier,
            by=None,
            package=made.package,
            config=config,
        )


# Evaluated, served, exported


def play(environment: Environment, amount: int) -> Any:
    async def run() -> Any:
        episode = load(job_spec(environment)).open(
            {"id": "two", "messages": [{"role": "user", "content": "Two."}], "expected": {}}
        )
        await episode.step({"content": None, "tool_calls": [to_native("add", {"amount": amount})]})
        await episode.step({"content": "Done."})
        return await episode.score()

    return asyncio.run(run())


def test_a_job_carries_the_code_of_its_version(project: Project, folder: Path) -> None:
    environment = make_package(project, folder)
    write_package(folder, code="raise RuntimeError\n")  # edited while the evaluation waits
    assert play(environment, 2).success and not play(environment, 3).success


def test_its_tasks_become_an_eval_set_and_a_file(
    project: Project, member: Client, folder: Path
) -> None:
    environment = make_package(project, folder)
    page = member.post(
        reverse("evals:package_tasks", args=[project.slug, environment.pk]), follow=True
    )
    assert "1 tasks added" in page.content.decode()
    task = Task.objects.get(project=project)
    assert (task.key, task.split, task.expected) == (
        "two",
        "train",
        {"tool": "add", "args": {"amount": 2}},
    )
    assert task.get_origin_display() == f"Environment {environment}"
    assert f"Environment {environment}" in member.get(task.get_absolute_url()).content.decode()
    again, made = set_of_package(environment=environment, by=admin_of(project))
    assert again == task.eval_set and (made.made, made.duplicates) == (0, 1)
    (line,) = export(eval_set=task.eval_set, format="nemo-gym", split=Split.TRAIN, by=None).chunks
    row = json.loads(line)
    key = key_headers(project)
    client, address = Client(), f"/env/{environment}/"
    about = client.get(address, **key).json()
    assert [tool["name"] for tool in about["tools"]] == ["add"]

    def post(route: str, body: dict, **headers: str) -> Any:
        return client.post(
            address + route, json.dumps(body), content_type="application/json", **key, **headers
        )

    session = {"HTTP_X_FLYWHEEL_SESSION": post("seed_session", row)["X-Flywheel-Session"]}
    assert post("add", {"amount": 2}, **session).json() == {"output": "2"}
    assert "integer" in post("add", {"amount": "x"}, **session).json()["output"]
    scored = post("verify", row | {"response": {"id": "r", "output": []}}, **session).json()
    assert (scored["reward"], scored["mask_sample"]) == (1.0, False)


def test_a_row_without_what_a_package_starts_with_is_refused(
    project: Project, folder: Path
) -> None:
    reads = PACKAGE.replace('{"value": 0}', '{"value": task["metadata"]["value"]}')
    write_package(folder, "counter", reads)
    environment = packages.save_package(
        project=project,
        slug="reads",
        found=packages.found_of("counter"),
        by=admin_of(project),
    )
    row = {"responses_create_params": {"input": "Count to two."}}
    key = key_headers(project)
    answer = Client().post(
        f"/env/{environment}/seed_session", json.dumps(row), content_type="application/json", **key
    )
    assert answer.status_code == 422
    assert "KeyError" in answer.json()["detail"] and "as it was exported" in answer.json()["detail"]


def test_only_a_package_has_tasks_of_its_own(project: Project, folder: Path) -> None:
    environment = make_package(project, folder)
    key = key_headers(project)
    draft = set_of_package(environment=environment, by=admin_of(project))[0]
    address = reverse("evals_api:from_environment", args=[draft.pk])
    sent = Client().post(
        address,
        json.dumps({"environment": str(environment)}),
        content_type="application/json",
        **key,
    )
    assert sent.json()["duplicates"] == 1
    write_package(
        folder, "counter", PACKAGE.replace('"id": "two"', '"id": "two", "split": "holdout"')
    )
    found = packages.save_package(
        project=project, slug="held", found=packages.found_of("counter"), by=admin_of(project)
    )
    other, made = set_of_package(environment=found, by=admin_of(project))
    assert (made.made, made.left_out) == (
        0,
        1,
    ) and not other.tasks.exists()  # it trains in the first set


# Commands


@pytest.mark.proof
def test_the_commands_make_and_check(folder: Path, capsys: pytest.CaptureFixture) -> None:
    call_command("new_environment", "bug_tracker")
    assert (folder / "bug_tracker" / "bug_tracker" / "__init__.py").is_file()
    with pytest.raises(CommandError, match="exists"):
        call_command("new_environment", "bug_tracker")
    with pytest.raises(CommandError, match="not a valid package name"):
        call_command("new_environment", "a-b")
    call_command("check_environment", "bug_tracker", no_tests=True)
    assert "ERROR" not in capsys.readouterr().out
    tests = folder / "bug_tracker" / "tests" / "test_bug_tracker.py"
    tests.write_text(tests.read_text() + "\n\ndef test_no() -> None:\n    assert 1 == 2\n")
    with pytest.raises(CommandError, match="Not usable: bug_tracker"):
        call_command("check_environment")
    said = capsys.readouterr().out
    assert "Its tests failed: 1 failed, 4 passed" in said and "assert 1 == 2" in said
    with pytest.raises(CommandError, match="There is no package “other”"):
        call_command("check_environment", "other")
