"""Every method of training on the demo's project, by one person in one browser: nothing is done
that a page does not offer.

Each run is watched while it trains, what it made is evaluated on the held-out tasks, and its page
leads back to where it came from. FLYWHEEL_PROOF_DEMO names the data folder of a demo that has
ended, and is changed; without it a demo is run first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from apps.demo.wheel import PROJECT
from tests.e2e.conftest import ABORTED, CHROMIUM, FLAGS, PASSWORD
from tests.flywheel.machine import Machine, free_port, up
from tests.test_proof_flow import finished_demo

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
expect = sync_api.expect

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]
PAGE_MS, JOB_MS = 120_000, 3_600_000  # waiting costs nothing where nothing is wrong
BASE, TEACHER = "smollm2-135m-v1", "smollm2-135m-sft-v1"  # which a demo leaves behind
ADMIN = """
from django.contrib.auth import get_user_model
user = get_user_model().objects.filter(is_superuser=True).order_by("pk").first()
user.set_password({password!r})
user.save()
print(user.get_username())
"""


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Walk]:
    machine = Machine(finished_demo(tmp_path_factory.mktemp("demo") / "data"))
    try:
        port = free_port()
        up(machine, port)
        name = machine.python(ADMIN.format(password=PASSWORD)).splitlines()[-1]
        with browser(f"http://127.0.0.1:{port}") as page:
            log_in(page, name)
            yield Walk(page, BASE)
    finally:
        machine.kill_everything()


def test_the_advice_is_taken(walk: Walk) -> None:
    """The base is evaluated, the advisor reads that, and the run that it advises trains."""
    page = walk.page
    walk.open_set()
    page.get_by_role("link", name="Evaluate a model").click()
    walk.evaluate(walk.base, "Validation")
    walk.open("Training")
    advisor = walk.panel("Advisor")
    expect(advisor.get_by_role("link", name=f"{walk.base} on ")).to_be_visible()
    advisor.get_by_role("link", name="Use SFT").click()
    expect(page.get_by_label("Method")).to_have_value("sft")
    expect(walk.chosen("Start from")).to_have_text(walk.base)
    expect(walk.examples()).to_contain_text(re.compile(r"\d+ demonstrations"))
    walk.sft = walk.train("Loss", "Gradient norm", steps=16, batch_size=8)
    walk.evaluate_held_out(walk.sft, walk.base)


def test_grpo_goes_on_from_the_page_of_a_model(walk: Walk) -> None:
    page = walk.page
    walk.open("Models")
    page.locator("main").get_by_role("link", name=walk.sft, exact=True).first.click()
    page.get_by_role("link", name="Train", exact=True).click()
    page.get_by_label("Method").select_option("grpo")
    expect(walk.chosen("Start from")).to_have_text(walk.sft)
    expect(walk.examples()).to_contain_text(re.compile(r"\d+ training tasks"))
    made = walk.train("Loss", "Reward", "Entropy", steps=2, prompts_per_step=2, generations=4)
    expect(page.locator("#rollouts tr[data-row]").first).to_be_visible()
    walk.evaluate_held_out(made, walk.sft)


def test_dpo_learns_from_a_correction_on_the_page_of_a_run(walk: Walk) -> None:
    page = walk.page
    walk.open_set()
    page.get_by_role("link", name=re.compile("^Train ")).click()
    page.locator("main tr[data-row] a").first.click()
    page.locator("dd", has=page.get_by_role("link", name=re.compile("^demo-"))).get_by_role(
        "link"
    ).click()
    page.get_by_text("Add feedback").click()
    page.get_by_label("Expected answer").fill(
        '{"tool": "reminders.set", "args": {"text": "corrected by hand", "time": "07:00"}}'
    )
    page.get_by_role("button", name="Submit feedback").click()
    expect(page.get_by_text("corrected by hand").first).to_be_visible()
    walk.new_run("dpo", walk.sft)
    walk.only_corrections()
    expect(walk.examples()).to_contain_text(re.compile(r"\d+ pairs"))
    made = walk.train("Loss", "Rewards relative to the start", steps=2, batch_size=2)
    walk.evaluate_held_out(made, walk.sft)
    page.get_by_role("link", name=re.compile(r"^\d+ pairs$")).click()
    expect(page.get_by_text("corrected by hand").first).to_be_visible()


def test_the_base_is_distilled_from_an_evaluation_of_a_teacher(walk: Walk) -> None:
    page = walk.page
    walk.new_run("distill", walk.base)
    page.get_by_role("link", name="Evaluate the train split").click()
    teacher = walk.evaluate(TEACHER, "Train")
    walk.new_run("distill", walk.base)
    page.get_by_label("Evaluation", exact=True).select_option(label=teacher)
    expect(walk.examples()).to_contain_text(re.compile(r"\d+ good answers"))
    made = walk.train("Loss", steps=2, batch_size=2)
    expect(page.get_by_role("link", name=TEACHER)).to_be_visible()
    walk.evaluate_held_out(made, walk.base)


def test_a_reward_model_is_a_verifier_that_a_person_reviews(walk: Walk) -> None:
    """Trained on the corrections, reviewed blind, unlocked by an owner's reason, and then GRPO's
    reward; the hold-out is scored by the rules as before."""
    page = walk.page
    walk.new_run("reward_model", walk.base)
    walk.only_corrections()
    expect(walk.examples()).to_contain_text(re.compile(r"\d+ pairs"))
    made = walk.train("Loss", "Pairs ranked right", steps=20, batch_size=8, learning_rate=0.001)
    page.get_by_role("link", name=f"Open {made}").click()
    expect(page.locator("dd", has_text=re.compile(r"\d+ of \d+, 95%")).first).to_be_visible()
    page.get_by_role("link", name="Use as a verifier").click()
    page.get_by_role("button", name="Save").click()
    verifier = page.get_by_role("heading", level=1).inner_text().split()[0]
    expect(page.get_by_role("heading", level=1)).to_contain_text("locked")
    page.get_by_role("link", name="copy of workplace@1").click()
    page.get_by_label("Name").fill("learned")
    expect(walk.chosen("Verifier")).to_have_text(verifier)
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("learned@")
    environment = page.get_by_role("heading", level=1).inner_text().split()[0]
    review(walk, verifier, environment)
    unlock(walk, verifier)
    walk.new_run("grpo", walk.sft)
    page.get_by_label("Environment").select_option(label=environment)
    policy = walk.train("Loss", "Reward", steps=2, prompts_per_step=2, generations=4)
    walk.evaluate_held_out(policy, walk.sft, "workplace@1")


def review(walk: Walk, verifier: str, environment: str) -> None:
    """It scores what a model answers to training tasks, and a person judges the first of these
    answers blind.
    """
    page = walk.page
    walk.open_set()
    page.get_by_role("link", name="Evaluate a model").click()
    page.get_by_label("Environment").select_option(label=environment)
    walk.evaluate(walk.sft, "Train")
    walk.open("Reward review")
    page.locator("main").get_by_role("link", name=verifier).first.click()
    page.get_by_role("link", name="Open a review").click()
    page.locator("#open input[type=checkbox]").first.check()
    page.get_by_role("button", name="Open the review").click()
    page.get_by_role("link", name=re.compile("^Judge")).first.click()
    page.get_by_role("button", name=re.compile("^Failure")).click()
    expect(page.get_by_text("The verifier gave")).to_be_visible()


def unlock(walk: Walk, verifier: str) -> None:
    """What is left to judge is overridden by the owner, who has to say why."""
    page = walk.page
    walk.open("Reward review")
    row = page.locator("[data-row]", has=page.get_by_role("link", name=verifier, exact=True))
    row.get_by_text("Override the lock").click()
    row.get_by_label("Reason").fill("A walk through the pages; one person judged a sample")
    row.get_by_role("button", name="Override").click()
    expect(row).to_contain_text("A walk through the pages")


@contextmanager
def browser(url: str) -> Iterator[Any]:
    """A page; what its console complains of in the meantime fails the test."""
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = chromium.new_context(
            base_url=url, viewport={"width": 1280, "height": 900}
        ).new_page()
        wrong: list[str] = []
        page.on(
            "console",
            lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: dialog.accept())
        page.set_default_timeout(PAGE_MS)
        expect.set_options(timeout=PAGE_MS)
        try:
            yield page
        finally:
            expect.set_options(timeout=None)
            chromium.close()
        assert not (said := [text for text in wrong if not ABORTED.match(text)]), said


def log_in(page: Any, name: str) -> None:
    page.goto("/")
    page.get_by_label("Username").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("link", name=PROJECT[1]).first.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(PROJECT[1])


@dataclass
class Walk:
    """What a person does at every stop. `base` is what learns, `sft` what the advised run made of
    it.
    """

    page: Any
    base: str
    sft: str = ""

    def open(self, station: str) -> None:
        self.page.locator(".side").get_by_role("link", name=station).click()
        expect(self.page.get_by_role("heading", level=1)).to_have_text(station)

    def open_set(self) -> None:
        self.open("Eval sets")
        self.page.locator("main").get_by_role(
            "link", name=re.compile(r"^workplace-1-\d+@1")
        ).first.click()

    def new_run(self, method: str, parent: str) -> None:
        self.open("Training")
        self.page.get_by_role("link", name="New run").click()
        self.page.get_by_label("Method").select_option(method)
        self.page.get_by_label("Start from").select_option(label=parent)

    def only_corrections(self) -> None:
        for source in ("Feedback on production runs", "Reward reviews", "An evaluation’s samples"):
            self.page.get_by_label(source).uncheck()

    def panel(self, title: str) -> Any:
        return self.page.locator("section.panel", has=self.page.get_by_role("heading", name=title))

    def chosen(self, label: str) -> Any:
        return self.page.get_by_label(label).locator("option:checked")

    def examples(self) -> Any:
        return self.page.locator("#examples:not(.htmx-request)")

    def train(self, *charts: str, **settings: float) -> str:
        """Starts what the form says and watches it; returns the name of what it made."""
        page = self.page
        for name, value in settings.items():
            page.locator(f"#id_{name}").fill(str(value))
        page.get_by_role("button", name="Start training").click()
        page.wait_for_url(re.compile(r"/training/[0-9a-f-]{36}/$"))
        state = page.locator("#status .badge").first
        for chart in charts:  # the first points come while it trains, without a reload
            expect(self.points(chart).first).to_be_visible(timeout=JOB_MS)
        assert state.inner_text() in ("running", "succeeded")
        expect(state).to_have_text(re.compile("succeeded|failed|cancelled"), timeout=JOB_MS)
        assert state.inner_text() == "succeeded", page.locator("#status").inner_text()
        made: str = (
            page.get_by_role("link", name=re.compile("^Open ")).inner_text().removeprefix("Open ")
        )
        for chart in charts:
            expect(self.points(chart)).to_have_count(settings["steps"])
        return made

    def points(self, chart: str) -> Any:
        """Of the first curve of the chart with this title."""
        title = self.page.locator(".gtitle", has_text=re.compile(f"^{re.escape(chart)}$"))
        return (
            self.page.locator(".figure", has=title)
            .first.locator(".scatterlayer .trace")
            .first.locator(".point")
        )

    def evaluate_held_out(self, made: str, parent: str, environment: str = "") -> None:
        """By the button of the run's page, and back to the run by the lineage of what it made."""
        page = self.page
        expect(self.panel("Held-out evaluation")).to_contain_text(f"{made} is not evaluated yet")
        page.get_by_role("link", name="Evaluate", exact=True).first.click()
        expect(self.chosen("Model version")).to_have_text(made)
        expect(self.chosen("Split")).to_contain_text("Hold-out")
        if environment:
            page.get_by_label("Environment").select_option(label=environment)
        self.evaluate(made, "Hold-out")
        page.get_by_role("definition").get_by_role("link", name=made).click()
        lineage = self.panel("Lineage")
        expect(lineage.get_by_role("link", name=parent, exact=True)).to_be_visible()
        lineage.locator(".bucket").first.get_by_role(
            "link", name=re.compile(" from ")
        ).first.click()
        expect(self.panel("Held-out evaluation").get_by_role("link", name=made)).to_contain_text(
            INTERVAL
        )

    def evaluate(self, model: str, split: str, samples: int = 1) -> str:
        """Sends the form, waits for the result and reads its interval; returns what it is
        called.
        """
        page = self.page
        page.get_by_label("Model version").select_option(label=model)
        page.get_by_label("Split").select_option(
            label=page.get_by_label("Split").locator("option", has_text=split).inner_text()
        )
        page.get_by_label("Samples per task").fill(str(samples))
        page.get_by_role("button", name="Evaluate").click()
        page.wait_for_url(re.compile(r"/evals/runs/[0-9a-f-]{36}/$"))
        expect(page.locator("#status .badge").first).to_have_text("succeeded", timeout=JOB_MS)
        expect(page.get_by_role("row", name=re.compile("^Success")).first).to_contain_text(INTERVAL)
        name: str = page.get_by_role("heading", level=1).inner_text()
        return name


INTERVAL = re.compile(r"\[\d+(\.\d+)?%, \d+(\.\d+)?%\]")
