"""A headless Chromium, a seeded project, and a page that remembers what went wrong on it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import pickle
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.test import Client

from tests.e2e.kept import Kept, count_on
from tests.e2e.seed import World, fill

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

CHROMIUM = next(  # the shell has no windows to draw: a quarter less work
    (
        path
        for name in ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
        if (path := shutil.which(name))
    ),
    None,
)
FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--in-process-gpu",
    "--js-flags=--no-maglev,--no-turbofan",  # a page is gone before optimised code would pay
]
PASSWORD = "a long enough password"
PATIENCE_MS = 300_000  # a slow machine is no failure; where all is well nothing waits
ABORTED = re.compile(
    "htmx:(afterRequest|sendAbort),"
)  # a newer request took its place (hx-sync), or the page was left
WHEN_READ = """new Promise((done) => document.readyState === "complete"
    ? setTimeout(done) : addEventListener("load", () => setTimeout(done)))"""
sync_api.expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if CHROMIUM is None:
                item.add_marker(
                    pytest.mark.skip(
                        reason="Chromium is not installed (apt-get install chromium-headless-shell)"
                    )
                )


@pytest.fixture(scope="session")
def chromium() -> Iterator[tuple[Any, asyncio.AbstractEventLoop]]:
    """One for all browser tests of this process, and the event loop of Playwright, hidden from all
    other tests.
    """
    with sync_api.sync_playwright() as playwright:
        launched, loop = (
            playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS),
            asyncio.get_running_loop(),
        )
        asyncio._set_running_loop(None)
        yield launched, loop
        asyncio._set_running_loop(loop)
        launched.close()


@pytest.fixture(scope="module")
def browser(chromium: tuple[Any, asyncio.AbstractEventLoop]) -> Iterator[Any]:
    """While Playwright's event loop counts as running, no other test in this thread could call
    `asyncio.run`.
    """
    launched, loop = chromium
    asyncio._set_running_loop(loop)
    yield launched
    asyncio._set_running_loop(None)


@pytest.fixture
def user(transactional_db: None) -> Any:
    return get_user_model().objects.create_user("ada", password=PASSWORD)


@pytest.fixture(scope="session")
def kept_worlds() -> list[Kept]:
    """At most one: the world that this process made or found."""
    return []


@pytest.fixture
def world(
    user: Any,
    data_dir: Path,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kept_worlds: list[Kept],
) -> World:
    """Made once for all processes; each further test gets its rows and files again as they were."""
    if kept_worlds:
        return kept_worlds[0].put_back(user, data_dir)
    folder = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        folder = folder.parent
    with (folder / "world.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = folder / "world.pickle"
        if kept.exists():
            kept_worlds.append(pickle.loads(kept.read_bytes()))
            found = kept_worlds[0].put_back(user, data_dir)
            count_on()
            return found
        made = fill(tmp_path_factory.mktemp("sources"), user)
        kept_worlds.append(Kept.of(made, user, data_dir, tmp_path_factory.mktemp("kept")))
        kept.write_bytes(pickle.dumps(kept_worlds[0]))
        return made


@pytest.fixture(scope="session")
def static_files_are_kept() -> Iterator[None]:
    """As in production: a browser asks for each once."""
    serve = StaticFilesHandler.serve

    def kept(self: StaticFilesHandler, request: HttpRequest) -> HttpResponseBase:
        response = serve(self, request)
        response["Cache-Control"] = "max-age=31536000, immutable"
        return response

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StaticFilesHandler, "serve", kept)
        yield


@pytest.fixture(scope="module")
def context(browser: Any, live_server: Any, static_files_are_kept: None) -> Iterator[Any]:
    """The tests of a module share what was downloaded and compiled: our scripts, Plotly, the
    editor.
    """
    made = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 800})
    made.set_default_timeout(PATIENCE_MS)
    made.new_page()  # the opener
    yield made
    made.close()


def opened(context: Any) -> Any:
    """A page in a window of its own, by the context's first page. A headless Chromium draws its
    windows, too: a tab has a wheel that turns while a page is loading, of which each second costs
    as much as loading a page; what a script opens as a popup has none.
    """
    opener = context.pages[0] if context.pages else context.new_page()
    with opener.expect_popup() as popup:
        opener.evaluate("void open('about:blank', '_blank', 'popup, noopener')")
    hear_keys(popup.value)
    return popup.value


def hear_keys(page: Any) -> None:
    """From now on a key is pressed once the page is read: what is typed before that decides
    nothing, and on a busy machine the words of a page are there before.
    """
    press = page.keyboard.press

    def press_when_read(key: str, **options: Any) -> None:
        while not page.is_closed():
            with contextlib.suppress(sync_api.Error):  # another page came meanwhile
                page.evaluate(WHEN_READ)
                break
        press(key, **options)

    page.keyboard.press = press_when_read


@pytest.fixture
def page(context: Any, live_server: Any, user: Any) -> Iterator[Any]:
    """A page of a person who is not logged in yet. A script error, or a message of the console,
    fails the test.
    """
    made, wrong = opened(context), []

    def heard(message: Any) -> None:
        if message.type in ("error", "warning") and not ABORTED.match(message.text):
            wrong.append(message.text)

    made.on("console", heard)
    made.on("pageerror", lambda error: wrong.append(error.stack or str(error)))
    made.on(
        "response",
        lambda answer: (
            wrong.append(f"{answer.status} {answer.url}") if answer.status >= 500 else None
        ),
    )
    made.on("dialog", lambda dialog: dialog.accept())
    yield made
    forgotten = {"origin": live_server.url, "storageTypes": "cookies,local_storage"}
    context.new_cdp_session(made).send("Storage.clearDataForOrigin", forgotten)
    context.clear_cookies()
    for one in context.pages[1:]:
        one.close()
    assert not wrong, wrong


def go(page: Any, keys: str, station: str) -> None:
    """By the keyboard, until the page of that station is there. On a busy machine the second key
    may come when nobody waits for it any more.
    """
    for patience_ms in (10_000, 30_000, PATIENCE_MS):
        for key in keys:
            page.keyboard.press(key)
        with contextlib.suppress(sync_api.TimeoutError):
            page.wait_for_url(f"**/{station}/", timeout=patience_ms)
            return
    raise AssertionError(f"{keys} did not lead to {station}")


def log_in(page: Any, name: str = "ada") -> None:
    """Without a page: test_wheel and test_people_by_pages log in by the form."""
    client = Client()
    client.force_login(get_user_model().objects.get(username=name))
    cookie = client.cookies[settings.SESSION_COOKIE_NAME]
    page.context.add_cookies(
        [{"name": cookie.key, "value": cookie.value, "domain": "localhost", "path": "/"}]
    )


def log_in_by_form(page: Any) -> None:
    page.goto("/login/")
    page.get_by_label("Username").fill("ada")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/p/**")


@pytest.fixture
def logged_in(page: Any) -> Any:
    log_in(page)
    return page
