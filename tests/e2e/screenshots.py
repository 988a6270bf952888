"""`make screenshots`: the pictures of the documentation, taken from the seeded project into
docs/img/.

python -m tests.e2e.screenshots [NAME …] python -m tests.e2e.screenshots --every FOLDER [PART …]
every page (or those with PART in their name), full and empty, light and dark,
                                                       1280 and 390 px wide, to look at
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "docs" / "img"
SIZE = {"width": 1280, "height": 800}
# A test run at the same time keeps its own database.
os.environ.setdefault("FLYWHEEL_TEST_DATA_DIR", str(ROOT / "var" / "screenshots"))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")


def shots(world: Any, by: Any) -> dict[str, str]:
    """{name of the picture: address of the page}."""
    from django.urls import reverse

    from apps.automation.actions import run_now
    from apps.failures.models import Failure
    from apps.reviews.actions import open_review

    def address(route: str, *args: object) -> str:
        return reverse(route, args=[world.project.slug, *args])

    failure = Failure.objects.filter(project=world.project).order_by("pk").first()
    review = open_review(runs=[world.sft, world.grpo], by=by)
    flow = world.project.flows.get(name__contains="eekly improvement")
    run_now(flow=flow, by=by)
    return {
        "overview": address("dashboard:home"),
        "trajectory": address("trajectories:detail", failure.trajectory_id),
        "triage": address("failures:triage"),
        "eval-set": address("evals:detail", world.eval_set.pk),
        "review": address("reviews:item", review.items.order_by("position").first().pk),
        "training": address("training:detail", world.training.pk),
        "gate": address("promotion:report", world.report.pk),
        "flow": address("automation:flow", flow.pk),
    }


def first_failure(url: str, home: Path, by: Any) -> str:
    """Where the page of the first trajectory leads: its snippets are sent to the server."""
    from django.urls import reverse

    from apps.core.actions import create_api_key, create_project
    from apps.failures.actions.diagnose import classify_project
    from apps.trajectories import digest
    from tests.sending.snippets import User
    from tests.test_readme import FIRST, run_snippets

    project = create_project(slug="my-agent", name="My agent", by=by)
    run_snippets(FIRST, User(home, url, create_api_key(project=project, name="agent", by=by)[1]))
    digest.run()
    classify_project(project=project, by=by)
    return reverse("failures:triage", args=[project.slug])


def take(page: Any, addresses: dict[str, str]) -> None:
    for name, address in addresses.items():
        page.goto(address)
        page.wait_for_load_state("networkidle")
        page.screenshot(
            path=FOLDER / f"{name}.webp", type="webp", quality=80, animations="disabled"
        )
        print(f"{name}: {(FOLDER / f'{name}.webp').stat().st_size // 1024} KiB")


def album(page: Any, folder: Path, addresses: dict[str, str]) -> None:
    """NAME-WIDTH-THEME.png of each page, whole."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, address in addresses.items():
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 844})
            page.goto(address)
            page.wait_for_load_state("networkidle")
            for _ in range(2):
                page.locator("#theme").dispatch_event("click")  # on a phone it is in the menu
                theme = page.evaluate("document.documentElement.dataset.theme")
                path = folder / f"{name.replace(':', '-')}-{width}-{theme}.png"
                page.screenshot(path=path, full_page=True, animations="disabled")
        print(name)


def every(world: Any, by: Any) -> dict[str, str]:
    """{name of the picture: address}: full pages, those of an empty project, one's own."""
    from django.urls import reverse

    from apps.core.actions import create_project
    from tests.e2e.addresses import FORMS, STATIONS, pages_of
    from tests.e2e.test_operator import fill as fill_operators
    from tests.e2e.test_pages import OWN_PAGES

    by.is_superuser = True
    by.save()
    fill_operators(by)
    empty = create_project(slug="empty", name="Empty", by=by)
    return (
        {f"full-{name}": address for name, address in pages_of(world, by).items()}
        | {f"empty-{name}": reverse(name, args=[empty.slug]) for name in (*STATIONS, *FORMS)}
        | {f"own-{name}": reverse(name) for name in (*OWN_PAGES, "operator:home")}
    )


def main(wanted: list[str]) -> None:
    import django
    from django.conf import settings
    from django.test.utils import setup_databases, setup_test_environment
    from playwright.sync_api import sync_playwright
    from pytest_django.live_server_helper import LiveServer

    import tests.services  # noqa: F401  sets the data folder, before Django reads its settings
    from flywheel import embedded

    embedded.ensure()
    django.setup()
    setup_test_environment()
    settings.WHITENOISE_USE_FINDERS = True
    settings.STORAGES["staticfiles"] = {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
    }
    setup_databases(verbosity=0, interactive=False)  # the next run replaces it
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        settings.FLYWHEEL_DATA_DIR = Path(folder)
        server = LiveServer("localhost")
        try:
            photograph(playwright, server.url, Path(folder), wanted)
        finally:
            server.stop()


def photograph(playwright: Any, url: str, folder: Path, wanted: list[str]) -> None:
    from django.contrib.auth import get_user_model

    from tests.e2e.conftest import CHROMIUM, FLAGS, PASSWORD, log_in
    from tests.e2e.seed import fill

    user = get_user_model().objects.create_user("ada", password=PASSWORD)
    world = fill(folder / "sources", user)
    chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    try:
        page = chromium.new_page(
            base_url=url, viewport=SIZE, color_scheme="light", timezone_id="UTC"
        )
        log_in(page)
        if wanted[:1] == ["--every"]:
            pages = every(world, user)
            parts = wanted[2:] or [""]
            return album(
                page,
                Path(wanted[1]),
                {name: pages[name] for name in pages if any(part in name for part in parts)},
            )
        addresses = shots(world, user)
        addresses["first-failure"] = first_failure(url, folder, user)
        return take(
            page, {name: at for name, at in addresses.items() if not wanted or name in wanted}
        )
    finally:
        chromium.close()


if __name__ == "__main__":
    main(sys.argv[1:])
