"""README and the documentation's site: their commands work against a real server, every page is in
the navigation, every link leads somewhere."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from apps.failures.actions.diagnose import classify_project
from apps.failures.models import Failure
from apps.trajectories import digest
from apps.trajectories.models import Trajectory
from tests.factories import admin_of, make_key, make_project
from tests.flywheel.machine import eventually, free_port
from tests.sending.snippets import BLOCK, User

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
PAGES = {path.relative_to(DOCS).as_posix(): path.read_text() for path in sorted(DOCS.rglob("*.md"))}
FIRST = "start/first-trajectory.md"
WRITTEN_FOR_THE_SITE = [
    name for name in PAGES if "/" in name or name in ("index.md", "glossary.md")
]
WITH_SNIPPETS = [name for name in WRITTEN_FOR_THE_SITE if "```" in PAGES[name]]
MOST_BYTES_OF_PICTURES = 1_500_000


def curl_to(path: str) -> str:
    return next(
        one
        for one in re.findall(r"```\n(curl .+?)```", README, re.DOTALL)
        if path in one.splitlines()[0]
    )


def test_snippets_say_what_they_send_and_no_page_names_a_port() -> None:
    """Pages know the address that they are served at; the documents name the default one."""
    templates = {path: path.read_text() for path in (ROOT / "templates").rglob("*.html")}
    for name, text in {"README": README, **PAGES, **templates}.items():
        for command in re.findall(r"curl (?:[^\n\\]|\\.|\\\n)+", text):
            if re.search(r"\s(?:-d|--data|--data-raw)\s", command):
                assert "content-type" in command.lower(), (name, command)
    for path, text in templates.items():
        assert not re.search(r"(?:localhost|127\.0\.0\.1):\d", text), path


def test_the_address_and_the_key_have_one_name_each() -> None:
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for folder, kinds in (("docs", "md"), ("templates", "html"), ("clients", "md"), (".", "md"))
        for path in (ROOT / folder).glob(f"{'' if folder == '.' else '**/'}*.{kinds}")
    }
    assert {"README.md", "docs/servers.md", "templates/trajectories/first.html"} <= texts.keys()
    variable = r"[\"']?\$\{?(\w+)\}?"
    keys, addresses = {"FLYWHEEL_API_KEY"}, {"FLYWHEEL_URL", "OTEL_EXPORTER_OTLP_ENDPOINT"}
    for name, text in texts.items():
        assert set(re.findall(rf"Bearer(?: |%20){variable}", text)) <= keys, name
        assert set(re.findall(rf"{variable}/(?:api|v1|env)/", text)) <= addresses, name


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_curl_snippet_stores_a_trajectory(live_server: Any) -> None:
    command = curl_to("/api/v1/trajectories/").replace("http://127.0.0.1:8000", live_server.url)
    env = os.environ | {"FLYWHEEL_API_KEY": make_key(make_project())}
    done = subprocess.run(
        ["sh", "-c", f"{command.strip()} --silent --fail"], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert Trajectory.objects.get().external_id == "run-1"


@pytest.mark.proof
def test_the_make_targets_exist() -> None:
    for target in set(re.findall(r"^make (\w+)", README, re.MULTILINE)) | {"setup", "proof"}:
        assert (
            subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True).returncode
            == 0
        ), target


def test_the_variables_it_names_are_read() -> None:
    code = "".join(
        path.read_text() for path in [*ROOT.glob("flywheel/*.py"), *ROOT.glob("apps/core/*.py")]
    )
    for name in re.findall(r"`([A-Z][A-Z_]{4,})`", README):
        assert name in code, name


def is_served(port: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


def answers(user: User, program: str) -> None:
    """A server of a page answers as a chat server does."""
    port = str(free_port())
    (user.home / "server.py").write_text(re.sub(r"\b9000\b", port, program), encoding="utf-8")
    with subprocess.Popen([sys.executable, user.home / "server.py"]) as server:
        try:
            asked = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
            url = f"http://127.0.0.1:{port}/v1/chat/completions"
            eventually(lambda: is_served(port))
            answer = httpx2.post(url, json=asked).json()
            assert answer["choices"][0]["message"]["content"] and answer["usage"]
        finally:
            server.kill()


def run_snippets(page: str, user: User) -> None:
    """Does what the page says, from top to bottom, in a terminal whose address and key are the
    user's.
    """
    blocks = BLOCK.findall(PAGES[page])
    assert 2 * len(blocks) == PAGES[page].count("```"), (
        "a block without its language is run by nobody"
    )
    for language, block in blocks:
        block = block.replace("http://127.0.0.1:8000", user.flywheel_url).replace("fw_…", user.key)
        if language == "text":
            continue  # shown, not typed
        if "serve_forever()" in block:
            answers(user, block)
        elif language == "python":
            (user.home / "program.py").write_text(block, encoding="utf-8")
            user.sh(f"{sys.executable} program.py")
        elif block.startswith("make "):
            user.sh(f"make --dry-run --directory {ROOT} {block.removeprefix('make ')}")
        else:
            assert language == "sh", language
            user.sh(block)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
@pytest.mark.parametrize("page", [name for name in WITH_SNIPPETS if name != FIRST])
def test_the_snippets_of_a_page_run(page: str, live_server: Any, tmp_path: Path) -> None:
    run_snippets(page, User(tmp_path, live_server.url, make_key(make_project())))


@pytest.mark.proof
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
def test_the_first_trajectory_ends_where_the_page_says(live_server: Any, tmp_path: Path) -> None:
    project = make_project()
    run_snippets(FIRST, User(tmp_path, live_server.url, make_key(project)))
    assert set(project.trajectories.values_list("external_id", "outcome_status")) == {
        ("ticket-12", "failure"),
        ("ticket-13", "success"),
    }
    digest.run()
    classify_project(project=project, by=admin_of(project))
    failure = Failure.objects.get(project=project)
    assert (failure.trajectory.external_id, failure.mode.name, failure.blamed_message) == (
        "ticket-12",
        "Wrong arguments",
        1,
    )


def leaves(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from leaves(part)


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(leaves(SITE["nav"])) == sorted(PAGES)


def anchors(text: str) -> set[str]:
    """As Python-Markdown makes them of headings."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    plain = [
        unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        for heading in headings
    ]
    return {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
        for heading in plain
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    broken = []
    for link in re.findall(
        r"\]\(([^)\s]+)\)",
        re.sub(r"^```.*?^```|`[^`\n]*`", "", PAGES[page], flags=re.MULTILINE | re.DOTALL),
    ):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (DOCS / page).parent / path if path else DOCS / page
        if not target.is_file() or (
            anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())
        ):
            broken.append(link)
    assert not broken


def test_pictures_are_used_described_and_small() -> None:
    pictures = list((DOCS / "img").iterdir())
    found = re.findall(r"!\[([^\]]*)\]\([^)]*img/([^)]+)\)", "".join(PAGES.values()))
    assert {name for _, name in found} == {path.name for path in pictures}
    assert all(alt for alt, _ in found)
    assert sum(path.stat().st_size for path in pictures) < MOST_BYTES_OF_PICTURES


def test_the_site_fetches_nothing_from_elsewhere() -> None:
    assert SITE["theme"]["font"] is False and {"search", "offline"} <= set(SITE["plugins"])
    assert all((DOCS / name).is_file() for name in SITE["extra"]["polyfills"]), (
        "the offline plugin would name a CDN's"
    )
    assets = [ROOT / "mkdocs.yml", DOCS / "site.css", *(DOCS / "img").glob("*.svg")]
    addresses = re.findall(r"https?://\S+|url\((?!#)", "".join(path.read_text() for path in assets))
    assert set(addresses) <= {'http://www.w3.org/2000/svg"'}
