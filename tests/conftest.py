"""The suite runs on the embedded PostgreSQL in a data folder of its own, and reaches no network but
this machine.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import warm

EXAMPLES = 15  # of a property, where its test names more; `make proof` tries as many as it names
# A slow machine is no failure. CI looks at the same examples each time: what it says is about the
# change it is given.
settings.register_profile("proof", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default", settings.get_profile("proof"), max_examples=EXAMPLES)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("default")
BRIDGED = "10.213."  # machines on this one (tests/flywheel/cluster.py)


def pytest_configure(config: pytest.Config) -> None:
    from django.conf import settings
    from django.db.backends.postgresql.creation import DatabaseCreation
    from django.test import TransactionTestCase
    from whitenoise.middleware import WhiteNoiseMiddleware

    from flywheel import embedded
    from tests import amounts
    from tests.database import create_test_db
    from tests.emptied import empty
    from tests.folded import fold_pages
    from tests.savepoints import send_with_the_next_statement

    embedded.ensure()
    fold_pages()
    send_with_the_next_statement()
    certificates_once()
    amounts.in_proof = config.getoption("--hypothesis-profile") == "proof"
    if not amounts.in_proof:
        forget_constants()
    # Django's advice for tests: by its usual hasher every user that a test makes costs 0.4 s.
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    # Nothing is collected for a test: files are served from where they lie. Where there is a folder
    # of collected files, each test client reads all of it: 10 ms.
    settings.STATIC_ROOT = None
    settings.STORAGES["staticfiles"] = {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
    }
    settings.WHITENOISE_USE_FINDERS = True
    WhiteNoiseMiddleware.add_files_from_finders = _found_once(
        WhiteNoiseMiddleware.add_files_from_finders
    )
    TransactionTestCase._fixture_teardown = lambda self: empty()
    DatabaseCreation.create_test_db = create_test_db
    log_in_by_one_row()


def log_in_by_one_row() -> None:
    """Django's `force_login` asks whether there is such a session, writes it twice, each time in a
    savepoint, and then when its user last logged in: nine statements.
    """
    from django.contrib import auth
    from django.contrib.sessions.backends.base import VALID_KEY_CHARS
    from django.contrib.sessions.backends.db import SessionStore
    from django.test import Client
    from django.utils.crypto import get_random_string

    def force_login(self: Client, user: Any, backend: str | None = None) -> None:
        session = SessionStore(get_random_string(32, VALID_KEY_CHARS))
        session._session_cache = {
            auth.SESSION_KEY: str(user.pk),
            auth.BACKEND_SESSION_KEY: backend or self._get_backend(),
            auth.HASH_SESSION_KEY: user.get_session_auth_hash(),
        }
        session.create_model_instance(session._session_cache).save(force_insert=True)
        self._set_login_cookies(SimpleNamespace(session=session))

    Client.force_login = force_login


def forget_constants() -> None:
    """Hypothesis mixes constants of the modules of ours that are loaded into what it makes: which
    are depends on the tests that ran before in this process. To read them takes seconds, too, and a
    few examples hardly use any."""
    from hypothesis.internal.conjecture import providers

    providers._get_local_constants = lambda: providers._local_constants


def certificates_once() -> None:
    """Each HTTP client that a test makes would read this machine's certificates, for 20 ms."""
    import httpcore2

    httpcore2.default_ssl_context = cache(httpcore2.default_ssl_context)  # type: ignore[assignment]


def _found_once(find: Callable[[Any], None]) -> Callable[[Any], None]:
    """Each test client has the middleware made anew, for which whitenoise looks at every static
    file.
    """
    files: dict[str, Any] = {}

    def add(middleware: Any) -> None:
        if not files:
            find(middleware)
            files.update(middleware.files)
        middleware.files.update(files)

    return add


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is imported and collected stays to the end: the garbage collector need not look through
    all of it again and again. Nor through what is made later, every 70,000 objects: that was an
    eighth of the suite's time."""
    gc.disable()
    try:
        collected = yield
        if session.config.option.processes:
            load_for_all()
        return collected
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 10, 30)
        gc.enable()
        warm.begin()
        reach_only_this_machine()
        messages_leave_at_once()


def load_for_all() -> None:
    """What each process of the suite would load by itself when first asked for."""
    import scipy.stats  # noqa: F401
    import sklearn  # noqa: F401
    from django.conf import settings
    from django.template.loader import get_template
    from django.urls import get_resolver

    if "torch" in sys.modules:
        from trl import SFTTrainer  # noqa: F401
    folder = Path(settings.BASE_DIR, "templates")
    for path in folder.rglob("*.html"):
        get_template(str(path.relative_to(folder)))
    len(get_resolver().reverse_dict)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Proofs only run when asked for."""
    from tests import amounts

    if "proof" not in (config.option.markexpr or ""):
        # a folder of that name is a keyword, too
        leave_out(config, items, {item for item in items if item.get_closest_marker("proof")})
    if not amounts.in_proof:
        keep_some_rows(config, items)
    for item in items:
        forgo_fixtures(item)
    if config.getoption("--hypothesis-profile") != "proof":
        for item in items:
            try_fewer_examples(item)


# Fixtures that pytest-django has for every test, and the mark without which they do nothing.
IDLE = {
    "_django_db_marker": "django_db",
    "_django_isolate_apps": "django_isolate_apps",
    "_django_set_urlconf": "urls",
    "_template_string_if_invalid_marker": "ignore_template_errors",
}


def keep_some_rows(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test marked `more(rows=3)` so many rows of its table, from all over it."""
    tables: dict[tuple[Any, ...], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("more")
        if mark and (rows := mark.kwargs.get("rows")):
            key = item.path, item.parent, getattr(item, "originalname", item.name), rows
            tables.setdefault(key, []).append(item)
    left_out = {
        item
        for (*_, rows), table in tables.items()
        for at, item in enumerate(table)
        if at * rows % len(table) >= rows
    }
    leave_out(config, items, left_out)


def leave_out(config: pytest.Config, items: list[pytest.Item], left_out: set[pytest.Item]) -> None:
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def forgo_fixtures(item: pytest.Item) -> None:
    """What does nothing for this test: to set it all up takes a millisecond."""
    marks = {mark.name for mark in item.iter_markers()}
    idle = {name for name, mark in IDLE.items() if mark not in marks}
    idle.add("_django_clear_site_cache")  # of an app that we do not have
    if not item.cls:
        idle.add("_django_setup_unittest")
    if "live_server" not in item.fixturenames:
        idle.add("_live_server_helper")
    item.fixturenames = [name for name in item.fixturenames if name not in idle]


def try_fewer_examples(item: pytest.Item) -> None:
    """Hypothesis' own plugin changes the settings of a collected test in this way, too."""
    named = "_hypothesis_internal_use_settings"
    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    asked = getattr(test, named, None)
    if asked and asked.max_examples > EXAMPLES:
        setattr(test, named, settings(asked, max_examples=EXAMPLES))


def reach_only_this_machine() -> None:
    """A connection to anywhere else is an error."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and isinstance(address, tuple):
            here = address[0] in ("127.0.0.1", "::1", "localhost")
            here = here or address[0].startswith(BRIDGED)
            assert here, f"a test wants to reach {address[0]}"
        return connect(self, address)

    socket.socket.connect = guarded  # type: ignore[method-assign]


def messages_leave_at_once() -> None:
    """What is posted to workers is with the broker when `post` returns."""
    from apps.core import outbox

    class Direct:
        def add(self, message: outbox.Message) -> None:
            with suppress(*outbox.BROKER_AWAY):
                outbox.deliver(message)

        def flush(self, patience_s: float) -> bool:
            return True

    def install() -> None:
        outbox._outbox = Direct()  # type: ignore[assignment]

    install()
    os.register_at_fork(after_in_child=install)  # where outbox begins anew


@pytest.fixture
def data_dir(settings: object, tmp_path: Path) -> Path:
    """A data folder for artifacts and jobs of this test alone."""
    settings.FLYWHEEL_DATA_DIR = tmp_path  # type: ignore[attr-defined]
    return tmp_path


@pytest.fixture
def project(db: None) -> Any:
    from tests.factories import make_project

    return make_project()


@pytest.fixture
def base(project: Any, data_dir: Path) -> Any:
    """A base model of the project."""
    from tests.factories import make_base

    return make_base(project, data_dir)


@pytest.fixture
def warm_jobs() -> Iterator[None]:
    """Programs of jobs begin with their imports done."""
    with warm.jobs():
        yield


@pytest.fixture(scope="module")
def kept_world(request: pytest.FixtureRequest) -> Iterator[Any]:
    """What `world` of test_access copies, for whichever file imports it."""
    from tests.shared import once
    from tests.test_access import make_world

    yield from once(request, make_world)


@pytest.fixture(autouse=True)
def partitions_known_before() -> Iterator[None]:
    """What a test makes is rolled back, partitions of earlier months among it."""
    from apps.trajectories import partitions

    before = set(partitions._known)
    yield
    partitions._known.intersection_update(before)
