"""The house: an app imports only floors below it, and the web process loads no ML library."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.apps import apps

from tests.amounts import amount

ROOT = Path(__file__).resolve().parent.parent
FLOORS = (
    "core",
    "webhooks",
    "notifications",
    "teamwork",
    "registry",
    "trajectories",
    "failures",
    "environments",
    "evals",
    "prompts",
    "reviews",
    "training",
    "promotion",
    "serving",
    "automation",
    "dashboard",
    "demo",
)
LIGHT = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "workers" / "lib").rglob("*.py")
    if "inside" not in path.parts
)
HEAVY = ("torch", "transformers", "peft", "trl", "vllm", "accelerate", "datasets", "openai")
# Whoever may speak HTTP to others: both look at the address that they connect to.
GUARDED = ("workers/lib/outgoing.py", "workers/lib/posts.py")
HTTP_LIBRARIES = (
    "httpx",
    "httpx2",
    "requests",
    "urllib3",
    "aiohttp",
    "openai",
    "urllib.request",
    "http.client",
)
OPENS = (
    "Client",
    "AsyncClient",
    "HTTPTransport",
    "AsyncHTTPTransport",
    "OpenAI",
    "AsyncOpenAI",
    "ClientSession",
    "Session",
    "HTTPConnection",
    "HTTPSConnection",
    "PoolManager",
    "urlopen",
    "urlretrieve",
    "request",
    "stream",
    "get",
    "post",
    "put",
    "patch",
    "delete",
    "head",
    "options",
)
DIALS = (
    "create_connection",
    "open_connection",
    "start_tls",
)  # of a socket, a loop or a library, whatever they are called
OWN_MACHINE = {
    "flywheel/tracing.py": "sends its own traces where the operator's environment says (OTEL_*)",
    "apps/training/engines/carried/flywheel_environment.py": (
        "runs in an exported folder, never here"
    ),
    "apps/training/engines/carried/send_result.py": "runs in an exported folder, never here",
    "apps/training/engines/carried/ray_runner.py": "runs in a job on a Ray cluster, never here",
    "flywheel/processes.py": "asks the server of its own container whether it works",
    "flywheel/supervisor.py": "asks our own web process whether it is well",
    "workers/demo_agent.py": "logs its runs with our own API",
    "workers/lib/variants/usage.py": (
        "counts what NeMo Data Designer sends, which finds one checked host only (`keep_to`)"
    ),
}


MARKS = ("declare", "on", "operation", "register")  # what a module declares, by decorator or call


@dataclass
class Source:
    """What the tests here ask of a file of ours."""

    imports: list[str]  # every imported module, those inside functions too
    named: list[tuple[int, re.Match[str]]]  # with the line
    opened: list[str]
    declares: bool
    modules: dict[str, str]  # {name: what of `apps` it may be}
    used: list[tuple[str, str, int]]  # names and their attributes, with the line


@cache
def source(path: Path) -> Source:
    """Read and walked once for all tests: they are seconds of it."""
    tree = ast.parse(path.read_text())
    by_kind = kinds(tree)
    stored = {node.id for node in by_kind[ast.Name] if isinstance(node.ctx, ast.Store)}
    stored |= {node.arg for node in by_kind[ast.arg]}
    return Source(
        imports=list(_imports(by_kind, path)),
        named=[
            (node.lineno, named)
            for node in by_kind[ast.Constant]
            if isinstance(node.value, str) and (named := NAMED.fullmatch(node.value))
        ],
        opened=list(opened(by_kind)),
        declares=_declares(tree),
        modules={
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in by_kind[ast.ImportFrom]
            if (node.module or "").startswith("apps")
            for alias in node.names
            if (alias.asname or alias.name) not in stored
        },
        used=[
            (node.value.id, node.attr, node.lineno)
            for node in by_kind[ast.Attribute]
            if isinstance(node.value, ast.Name)
        ],
    )


def kinds(tree: ast.AST) -> dict[type, list[Any]]:
    """{class: its nodes}. `ast.walk` takes four times as long."""
    found, left = defaultdict(list), [tree]
    while left:
        node = left.pop()
        found[type(node)].append(node)
        for value in vars(node).values():
            if isinstance(value, ast.AST):
                left.append(value)
            elif isinstance(value, list):
                left += [one for one in value if isinstance(one, ast.AST)]
    return found


def _imports(by_kind: dict[type, list[Any]], path: Path) -> Iterator[str]:
    for node in by_kind[ast.Import]:
        yield from (name.name for name in node.names)
    for node in by_kind[ast.ImportFrom]:
        assert node.level == 0, (
            f"{path} imports relatively; say the whole name, so that its floor is seen"
        )
        yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("floor", FLOORS)
def test_an_app_imports_only_floors_below(floor: str) -> None:
    allowed = FLOORS[: FLOORS.index(floor) + 1]
    for path in (ROOT / "apps" / floor).rglob("*.py"):
        if "migrations" in path.parts:
            continue
        for module in source(path).imports:
            parts = module.split(".")
            if parts[0] == "apps" and len(parts) > 1:
                assert parts[1] in allowed, f"{path} imports {module}, a floor above it"


NAMES_OTHERS = {
    "apps/core/auditing/api.py": "examples of an answer",
    "apps/core/models.py": "the page of a project is the overview",
    "apps/failures/pages/case.py": "a link to the form that makes a task, if there is one",
}
NAMED = re.compile(r"(\w+?)(?:_api)?(?::[\w-]+|\.(\w+))")  # a route, or a model


@pytest.mark.parametrize("floor", FLOORS)
def test_an_app_names_no_route_or_model_of_a_floor_above(floor: str) -> None:
    above = FLOORS[FLOORS.index(floor) + 1 :]
    for path in (ROOT / "apps" / floor).rglob("*.py"):
        if "migrations" in path.parts or str(path.relative_to(ROOT)) in NAMES_OTHERS:
            continue
        for line, named in source(path).named:
            if named[1] in above:
                model = named[2]
                known = model is None or model in apps.get_app_config(named[1]).models
                assert not known, f"{path}:{line} names {named[0]}, a floor above it"


def opened(by_kind: dict[type, list[Any]]) -> Iterator[str]:
    """What a module opens a connection with: calls of an HTTP library, or names of it that could be
    called.
    """
    modules: dict[str, str] = {}
    for node in by_kind[ast.Import]:
        names = {name.asname or name.name.split(".")[0]: name.name for name in node.names}
        modules |= {alias: name for alias, name in names.items() if name.split(".")[0] in ROOTS}
    for node in by_kind[ast.ImportFrom]:
        if (node.module or "").split(".")[0] not in ROOTS:
            continue
        full = {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
        yield from (
            name
            for name in full.values()
            if name.rsplit(".", 1)[1] in OPENS and name.startswith(HTTP_LIBRARIES)
        )
        modules |= full
    for node in by_kind[ast.Call]:
        if getattr(node.func, "attr", getattr(node.func, "id", "")) in DIALS:
            yield ast.unparse(node.func)
        elif isinstance(node.func, ast.Attribute) and node.func.attr in OPENS:
            holder = ast.unparse(node.func.value)
            name = modules.get(holder.split(".")[0], "") + "".join(
                f".{part}" for part in holder.split(".")[1:]
            )
            if name.startswith(HTTP_LIBRARIES):
                yield f"{holder}.{node.func.attr}"


ROOTS = {name.split(".")[0] for name in HTTP_LIBRARIES}


def test_every_connection_to_others_goes_through_the_guarded_transport() -> None:
    for folder in ("apps", "workers", "flywheel"):
        for path in (ROOT / folder).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            if name in GUARDED or name in OWN_MACHINE:
                continue
            found = source(path).opened
            assert not found, (
                f"{name} opens {found}: use workers.lib.outgoing or workers.lib.chat_client"
            )


@pytest.mark.parametrize(
    "source",
    [
        "import httpx\nhttpx.post('http://x')",
        "def f():\n    import httpx2 as http\n    return http.Client()",
        "from httpx2 import AsyncClient",
        "import urllib.request\nurllib.request.urlopen('http://x')",
        "from urllib import request\nrequest.urlopen('http://x')",
        "from urllib.request import urlopen",
        "import requests\nrequests.Session()",
        "import openai\nopenai.OpenAI()",
        "import aiohttp\naiohttp.ClientSession()",
        "import http.client\nhttp.client.HTTPConnection('x')",
        "import asyncio\nasyncio.open_connection('x', 80)",
        "loop.create_connection(P, 'x', 80)",
        "from socket import create_connection\ncreate_connection(('x', 80))",
    ],
)
def test_a_connection_past_the_guard_is_seen(source: str) -> None:
    assert list(opened(kinds(ast.parse(source))))


def test_what_is_no_connection_is_not_one() -> None:
    text = "import httpx2\nhttpx2.URL('x')\nrequest.headers.get('x')\nclient.post('x')"
    assert not list(opened(kinds(ast.parse(text))))


def test_every_app_has_a_floor() -> None:
    found = {path.name for path in (ROOT / "apps").iterdir() if (path / "apps.py").exists()}
    assert found == set(FLOORS)


def test_apps_import_only_the_library_of_workers() -> None:
    for path in (ROOT / "apps").rglob("*.py"):
        for module in source(path).imports:
            parts = module.split(".")
            if parts[0] == "workers":
                assert parts[1:2] == ["lib"], f"{path} imports {module}"


def test_the_library_of_workers_imports_neither_its_programs_nor_what_needs_torch() -> None:
    for path in (ROOT / "workers" / "lib").rglob("*.py"):
        for module in source(path).imports:
            parts = module.split(".")
            if parts[0] == "workers":
                assert parts[1:2] == ["lib"], f"{path} imports {module}"


def test_workers_know_nothing_of_django() -> None:
    for path in (ROOT / "workers").rglob("*.py"):
        for module in source(path).imports:
            assert module.split(".")[0] not in (
                "django",
                "apps",
                "flywheel",
            ), f"{path} imports {module}"


def test_the_library_of_workers_loads_no_ml_library() -> None:
    program = (
        "import sys\n"
        "from importlib import import_module\n"
        f"for name in {LIGHT!r}: import_module(name)\n"
        f"loaded = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "sys.exit(f'loaded {loaded}' if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


SLOW_TO_IMPORT = (
    "scipy.cluster",
    "scipy.optimize",
    "scipy.stats",
    "sklearn",
    "pandas",
    "plotly",
    "pyarrow",
    "botocore",
    "rich",
    "spacy",
)


STARTED = """
import sys, json, django
django.setup()
ready = list(sys.modules)
import flywheel.urls
from apps.core import tasks
print(json.dumps([ready, list(sys.modules)]))
"""


@cache
def loaded() -> tuple[list[str], list[str]]:
    """The modules of a process in which Django is ready, and of one that serves the pages."""
    kept = {"PATH", "PYTHONDONTWRITEBYTECODE", "FLYWHEEL_DATA_DIR"} & os.environ.keys()
    env = {name: os.environ[name] for name in kept}
    done = subprocess.run(
        [sys.executable, "-c", STARTED],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=env | {"DJANGO_SETTINGS_MODULE": "flywheel.settings"},
    )
    assert done.returncode == 0, done.stderr
    ready, serves = json.loads(done.stdout)
    return ready, serves


def test_the_web_process_loads_no_ml_library() -> None:
    assert not {*HEAVY, *SLOW_TO_IMPORT} & {*loaded()[1]}


def test_the_supervisor_of_up_is_a_small_program() -> None:
    program = (
        "import sys, flywheel.up\n"
        "large = ('django', 'celery', 'psycopg', 'redis', 'httpx2')\n"
        "sys.exit(str([name for name in large if name in sys.modules] or '') or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def _declares(tree: ast.Module) -> bool:
    """Whether a module marks a listener or an operation, or registers a kind of something."""
    ours = {
        name.asname or name.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("apps")
        for name in node.names
        if name.name in MARKS
    }
    marks = [mark for node in tree.body for mark in getattr(node, "decorator_list", ())] + [
        node.value for node in tree.body if isinstance(node, ast.Expr)
    ]
    return any(
        isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id in ours
        for mark in marks
    )


def test_every_declaration_is_loaded_when_django_is_ready() -> None:
    """Otherwise a listener is missing in a process that happens not to import its module: a task of
    a hold-out could be trained on.
    """
    declaring = sorted(
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "apps").rglob("*.py")
        if source(path).declares
    )
    assert len(declaring) > 30
    missing = {*declaring} - {*loaded()[0]}
    assert not missing, f"Name these in `declares` of their AppConfig: {missing}"


def test_what_an_app_does_when_django_is_ready_is_no_rule() -> None:
    """A rule stands in the module that knows it, as a listener (`core.bus`)."""
    for path in (ROOT / "apps").glob("*/apps.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        own = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.Lambda)]
        if path.parent.name != "core":
            assert not own, f"{path} has code of its own"
            continue
        assert [getattr(node, "name", "") for node in own] == ["__init__", "ready"], path
        done = sum(isinstance(node, ast.stmt) for node in ast.walk(own[1]))
        assert done <= 12, f"{path} does more than Django needs"


def _module(name: str) -> ModuleType | None:
    """The module of ours of that name; of a package, it may be what the package has."""
    package, _, own = name.rpartition(".")
    made = getattr(import_module(package), own, None)
    return made if isinstance(made, ModuleType) else None


@pytest.mark.more
@pytest.mark.parametrize("folder", amount(["apps"], ["apps", "tests"]))
def test_what_is_used_of_our_modules_is_there(folder: str) -> None:
    """A function that has moved leaves its old name behind in files that no linter connects. Of
    tests, those that the suite runs fail themselves.
    """
    missing = []
    for path in (ROOT / folder).rglob("*.py"):
        read = source(path)
        modules = {alias: _module(name) for alias, name in read.modules.items()}
        for name, attribute, line in read.used:
            module = modules.get(name)
            if module is not None and not hasattr(module, attribute):
                missing.append(f"{path}:{line}: {name}.{attribute}")
    assert not missing, "\n".join(missing)


def test_nothing_that_is_made_here_is_part_of_the_project() -> None:
    """A link to somebody's environment, once committed, breaks every other checkout."""

    def git(*args: str) -> list[str]:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"git: {done.stderr.strip()}")
        return done.stdout.splitlines()

    assert not git("ls-files", "--cached", "--ignored", "--exclude-standard")
    assert not [line for line in git("ls-files", "--stage") if line.startswith("120000")]
