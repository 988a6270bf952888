"""One person, from a project with nothing in it to a promoted model: by pages alone, with real jobs
on a tiny model, in under 60 clicks.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from apps.core.actions import create_project
from apps.core.models import AuditEvent, Project
from apps.evals.models import EvalRun
from apps.promotion.models import GateReport, Promotion
from apps.reviews.models import LockOverride, ReviewPolicy
from apps.training.models import TrainingRun
from apps.trajectories import digest
from apps.trajectories.models import Upload
from tests.e2e.conftest import PASSWORD
from tests.e2e.workers import worker
from tests.workers.conftest import make_tiny_model
from workers.lib.environments.requests import make_requests

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]
MOST_CLICKS = 60
JOB_MS = 900_000  # a slow machine is no failure
RUNS, HELD_OUT = 110, 60


@pytest.fixture
def project(
    user: Any, data_dir: Path, settings: Any, tmp_path_factory: pytest.TempPathFactory
) -> Project:
    """As after the first start, with a downloaded model in the folder that the page names."""
    settings.FLYWHEEL_MODEL_FOLDERS = [str(data_dir / "models")]
    shutil.copytree(
        make_tiny_model(tmp_path_factory.mktemp("download") / "tiny"), data_dir / "models" / "tiny"
    )
    return create_project(slug="my-agent", name="My agent", by=user)


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    """What an agent logged: it never knew what to say, and its users wrote what would have been
    right.
    """
    rows = [
        {
            "id": f"run-{number}",
            "agent": {"name": "helpdesk", "version": "1"},
            "session_id": made["group"],
            "messages": [
                {"role": "user", "content": made["request"]},
                {"role": "assistant", "content": "No idea."},
            ],
            "outcome": {"status": "failure"},
            "interventions": [{"kind": "edit", "message_index": 1, "after": "ok"}],
        }
        for number, made in enumerate(make_requests(3, RUNS))
    ]
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


class Person:
    """Somebody with a mouse: every click, choice, typed field and chosen file counts as one."""

    def __init__(self, page: Any) -> None:
        self.page, self.clicks = page, 0

    def click(self, role: str, name: str | re.Pattern[str], **more: Any) -> None:
        self.clicks += 1
        self.page.get_by_role(role, name=name, **more).first.click()

    def fill(self, label: str, value: str) -> None:
        self.clicks += 1
        self.page.get_by_label(label).first.fill(value)

    def choose(self, label: str, option: str) -> None:
        self.clicks += 1
        self.page.get_by_label(label, exact=True).first.select_option(label=option)

    def sees(self, text: str | re.Pattern[str], **more: Any) -> None:
        expect(self.page.locator("main").get_by_text(text).first).to_be_visible(**more)


@pytest.fixture
def jobs_run(project: Project) -> Iterator[None]:
    with worker(Upload, EvalRun, TrainingRun):
        yield


@pytest.mark.proof
def test_from_nothing_to_a_promoted_model(
    page: Any, project: Project, log_file: Path, jobs_run: None
) -> None:
    person = Person(page)
    log_in(person)
    send_runs(person, log_file)
    make_a_set(person)
    register_the_base(person)
    create_an_environment(person)
    evaluate(person, first=True)
    train(person)
    evaluate(person, first=False)
    promote(person)
    assert person.clicks < MOST_CLICKS
    said = "No reward was used, so none was reviewed."
    assert TrainingRun.objects.get().spec["oversight"] == said
    report = GateReport.objects.get()
    assert report.verdict == "promote" and report.inputs["oversight"][0]["oversight"] == said
    assert (
        not LockOverride.objects.exists() and not ReviewPolicy.objects.exists()
    )  # nothing was got round
    assert AuditEvent.objects.filter(
        action="trainingrun.submitted", detail__oversight=said
    ).exists()


def log_in(person: Person) -> None:
    person.page.goto("/")
    person.fill("Username", "ada")
    person.fill("Password", PASSWORD)
    person.click("button", "Log in")
    person.sees("Get started")


def send_runs(person: Person, log_file: Path) -> None:
    person.click("link", "Send the first trajectory")
    person.click("link", "Import a file")
    person.clicks += 1
    person.page.set_input_files("input[type=file]", str(log_file))
    person.click("button", "Preview")
    person.click("button", f"Import {RUNS}")
    person.sees(f"{RUNS} of {RUNS} rows", timeout=JOB_MS)
    digest.run()  # which beat does every few seconds


def make_a_set(person: Person) -> None:
    person.click("link", "Eval sets")
    person.clicks += 1
    person.page.get_by_text("New eval set").first.click()
    person.clicks += 1
    person.page.locator("#id_slug").fill("helpdesk")
    person.click("button", "Create", exact=True)
    person.click("button", "Add tasks from production")
    person.fill("Hold-out size", str(HELD_OUT))
    person.fill("Validation size", "4")
    person.click("button", "Split")
    person.sees("Split by group")
    person.click("button", "Freeze")
    person.click("link", re.compile("Evaluate a"))


def register_the_base(person: Person) -> None:
    """The page that needs a model leads to its form, in which the folder's only model is filled
    in.
    """
    person.sees("No model to evaluate")
    person.click("link", "Register a model")
    person.click("button", "Register")
    person.sees("tiny-v1")


def create_an_environment(person: Person) -> None:
    person.click("link", "Environments")
    person.click("link", "Create an environment")
    person.fill("Name", "helpdesk")
    person.fill("Max new tokens", "4")
    person.click("button", re.compile("Create"))
    expect(person.page.get_by_role("heading", level=1)).to_contain_text("helpdesk@1")


def evaluate(person: Person, *, first: bool) -> None:
    if first:
        person.click("link", "Eval sets")
        person.click("link", "helpdesk@1")
        person.click("link", re.compile("Evaluate a"))
    else:
        person.click("link", "Evaluate", exact=True)
    person.click("button", re.compile("valuat"))
    person.page.wait_for_url(re.compile(r"/evals/runs/[0-9a-f-]{36}/$"))
    expect(person.page.locator("#status .badge").first).to_have_text("succeeded", timeout=JOB_MS)


def train(person: Person) -> None:
    """SFT on the users' corrections: nobody has reviewed a reward, and none is needed."""
    person.click("link", "Training")
    person.click("link", re.compile("New run"))
    person.sees("needs no reward review")
    person.choose("Method", "GRPO")
    person.sees("Locked.")
    expect(person.page.get_by_role("button", name="Start training")).to_be_disabled()
    person.choose("Method", "SFT")
    person.sees("needs no reward review")
    person.fill("Steps", "30")
    person.fill("Learning rate", "0.01")
    person.click("button", "Start training")
    person.page.wait_for_url(re.compile(r"/training/[0-9a-f-]{36}/$"))
    expect(person.page.locator("#status .badge").first).to_have_text("succeeded", timeout=JOB_MS)
    person.sees("No reward was used, so none was reviewed.")


def promote(person: Person) -> None:
    person.click("link", "Gate")
    person.click("button", re.compile("run the gate"))
    person.sees("No reward was used, so none was reviewed.")
    person.fill("Reason", "it knows what to say")
    person.click("button", re.compile("romote"))
    person.sees("is now live in production.")
    assert Promotion.objects.get().to_version.name.startswith("tiny-sft")
