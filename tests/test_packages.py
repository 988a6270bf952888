"""What an installation is made of: a list of packages that others can read (`make sbom`), hashes
that are checked where it is installed, and known weaknesses (`make audit`).
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.test_requirements import LOCKS, ROOT, name_of, pins

TOOLS = ROOT / ".venv-audit" / "bin"
with_tools = pytest.mark.skipif(
    not (TOOLS / "pip-audit").exists(), reason="no .venv-audit: run `make audit-tools`"
)


def made(lock: str, out: Path) -> dict[str, Any]:
    options = "--mc-type application --sv 1.6 --output-reproducible --validate"
    command = [TOOLS / "cyclonedx-py", "requirements", f"requirements/{lock}.txt"]
    project = ["--pyproject", "pyproject.toml", "-o", out]
    done = subprocess.run(
        [*command, *project, *options.split()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text())


@pytest.mark.proof
@with_tools
@pytest.mark.parametrize("lock", sorted(LOCKS))
def test_a_bill_of_materials_names_all_that_its_lock_does(lock: str, tmp_path: Path) -> None:
    bill = made(lock, tmp_path / "one.json")
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["name"] == "flywheel"
    listed = {
        name_of(one["name"]): (
            one["version"],
            one["purl"],
            {
                each["content"]
                for reference in one["externalReferences"]
                for each in reference["hashes"]
            },
        )
        for one in bill["components"]
    }
    locked = {}
    for name, line in pins(lock).items():
        version = re.match(r"[^=]+==([^ ;\\]+)", line)
        assert version
        hashes = set(re.findall(r"--hash=sha256:(\w+)", line))
        locked[name] = (version[1], f"pkg:pypi/{name}@{version[1]}", hashes)
    assert listed == locked
    assert made(lock, tmp_path / "other.json") == bill


WHEEL = {
    "METADATA": "Metadata-Version: 2.1\nName: nothing-here\nVersion: 1.0\n",
    "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}


def a_wheel(folder: Path) -> str:
    """The hash of a package that holds nothing."""
    path = folder / "nothing_here-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in WHEEL.items():
            wheel.writestr(f"nothing_here-1.0.dist-info/{name}", text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def installs(folder: Path, lock: str) -> str:
    """What pip says, as the Dockerfile calls it; "" where it installs."""
    (folder / "lock.txt").write_text(lock)
    options = ["--quiet", "--no-index", "--find-links", folder, "--target", folder / "out"]
    given = ["--require-hashes", "-r", folder / "lock.txt"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, *given], capture_output=True, text=True
    )
    return done.stderr if done.returncode else ""


def test_a_package_that_was_exchanged_is_not_installed(tmp_path: Path) -> None:
    digest = a_wheel(tmp_path)
    assert installs(tmp_path, f"nothing-here==1.0 --hash=sha256:{digest}\n") == ""
    assert "DO NOT MATCH THE HASHES" in installs(
        tmp_path, f"nothing-here==1.0 --hash=sha256:{'0' * 64}\n"
    )
    assert "Hashes are required" in installs(tmp_path, "nothing-here==1.0\n")


@pytest.mark.parametrize("path", ["docker/Dockerfile", "Makefile"])
def test_whatever_is_installed_from_a_lock_is_checked(path: str) -> None:
    """pip checks where one line of a file has a hash; uv what has one. torch has none; the engines
    and vLLM need it, and come by pip's or uv's own rule.
    """
    text = (ROOT / path).read_text()
    assert "no-verify-hashes" not in text
    installed = re.findall(r"(\S+) -r (\$\(VENV\)/half-\d|requirements\S*?)\.txt", text)
    unchecked = {name for before, name in installed if not before.endswith("--require-hashes")}
    apart = {f"requirements/{name}" for name in ("torch", "engines", "gym")}
    assert unchecked <= apart and len(installed) > 4


@pytest.fixture
def advisories() -> Iterator[tuple[str, dict[str, list]]]:
    """(address, {package: its weaknesses}) of a place that answers as osv.dev does."""
    known: dict[str, list] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            query = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found = known.get(query["package"]["name"], [])
            body = json.dumps({"vulns": found} if found else {}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1/query", known
        server.shutdown()


def audited(url: str, lock: str = "web") -> subprocess.CompletedProcess[str]:
    options = ["--disable-pip", "--no-deps", "-s", "osv", "--osv-url", url, "-f", "json"]
    return subprocess.run(
        [TOOLS / "pip-audit", *options, "-r", f"requirements/{lock}.txt"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.mark.proof
@with_tools
def test_a_known_weakness_of_a_locked_package_is_found(
    advisories: tuple[str, dict[str, list]],
) -> None:
    url, known = advisories
    assert audited(url).returncode == 0
    affected = [{"package": {"name": "celery", "ecosystem": "PyPI"}, "versions": ["5.7.0"]}]
    known["celery"] = [
        {"id": "PYSEC-2026-1", "summary": "Made up", "aliases": [], "affected": affected}
    ]
    done = audited(url)
    assert done.returncode == 1
    weak = {
        one["name"]: [each["id"] for each in one["vulns"]]
        for one in json.loads(done.stdout)["dependencies"]
        if one.get("vulns")
    }
    assert weak == {"celery": ["PYSEC-2026-1"]}
    asked = {one["name"] for one in json.loads(done.stdout)["dependencies"]}
    assert asked == {name for name, line in pins("web").items() if applies(line)}


def applies(line: str) -> bool:
    """Whether a pin is for this Python and machine."""
    from packaging.requirements import Requirement

    marker = Requirement(line.partition(" --hash")[0].strip(" \\")).marker
    return marker is None or marker.evaluate()
