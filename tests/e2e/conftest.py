"""A headless Chromium, a seeded project, and a page that remembers what went wrong on it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from tests.e2e.kept import Kept
from tests.e2e.seed import World, fill

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
FLAGS = ["--no-sandbox", "--disable-background-networking", "--disable-dev-shm-usage"]
PASSWORD = "a long enough password"
PATIENCE_MS = 90_000  # a slow machine is no failure; where all is well nothing waits
sync_api.expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="Chromium is not installed (apt-get install chromium)"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Gone with its module: while Playwright is open its event loop runs here, and no other test could `asyncio.run`."""
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def user(transactional_db: None) -> Any:
    return get_user_model().objects.create_user("ada", password=PASSWORD)


@pytest.fixture(scope="session")
def kept_worlds() -> list[Kept]:
    """At most one: the world that the first test of this process made."""
    return []


@pytest.fixture
def world(user: Any, data_dir: Path, tmp_path_factory: pytest.TempPathFactory, kept_worlds: list[Kept]) -> World:
    """Made once; each further test gets its rows and files again as they were."""
    if not kept_worlds:
        made = fill(tmp_path_factory.mktemp("sources"), user)
        kept_worlds.append(Kept.of(made, user, data_dir, tmp_path_factory.mktemp("kept")))
        return made
    return kept_worlds[0].put_back(user, data_dir)


@pytest.fixture
def page(browser: Any, live_server: Any, user: Any) -> Iterator[Any]:
    """A page of a person who is not logged in yet. A script error, or a message of the console, fails the test."""
    context = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 800})
    context.set_default_timeout(PATIENCE_MS)
    opened, wrong = context.new_page(), []
    opened.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: wrong.append(error.stack or str(error)))
    opened.on(
        "response", lambda answer: wrong.append(f"{answer.status} {answer.url}") if answer.status >= 500 else None
    )
    opened.on("dialog", lambda dialog: dialog.accept())
    yield opened
    context.close()
    assert not wrong, wrong


def log_in(page: Any) -> None:
    page.goto("/login/")
    page.get_by_label("User name").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/p/**")


@pytest.fixture
def logged_in(page: Any) -> Any:
    log_in(page)
    return page
