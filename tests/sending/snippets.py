"""The snippets of docs/sending.md, by heading, and how a user runs them: the variables, the lines,
then a program.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.flywheel.machine import ROOT

PROGRAMS = Path(__file__).parent / "programs"
SDKS = ROOT / ".venv-sdks" / "bin" / "python"
OTEL = "OpenTelemetry: once for every SDK"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def sections() -> dict[str, dict[str, list[str]]]:
    """The blocks by heading and language."""
    found: dict[str, dict[str, list[str]]] = {}
    for part in (ROOT / "docs" / "sending.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        heading, _, body = part.partition("\n")
        found[heading] = {"sh": [], "python": []}
        for language, block in BLOCK.findall(body):
            found[heading].setdefault(language, []).append(block)
    return found


@dataclass
class User:
    """Someone with a terminal in an empty folder, an address and a key."""

    home: Path
    flywheel_url: str
    key: str
    openai_url: str = ""

    def env(self) -> dict[str, str]:
        foreign = ("OTEL_", "OPENAI_", "LANG", "OPENINFERENCE_", "FLYWHEEL_", "PYTHON", "DJANGO_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        ours = {"FLYWHEEL_URL": self.flywheel_url, "FLYWHEEL_API_KEY": self.key, "PYTHONUTF8": "1"}
        provider = {"OPENAI_BASE_URL": self.openai_url, "OPENAI_API_KEY": "sk-none"}
        nowhere = {
            "https_proxy": "http://127.0.0.1:9",
            "HTTPS_PROXY": "http://127.0.0.1:9",
        }  # only this machine
        return kept | ours | provider | nowhere

    def sh(self, script: str, *arguments: str, **environment: str) -> str:
        """What the script prints. Fails the test where a command of it fails."""
        done = subprocess.run(
            ["bash", "-eu", "-c", script, "sh", *arguments],
            cwd=self.home,
            env=self.env() | environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def paste(self, heading: str, program: str = "", *arguments: str, **environment: str) -> str:
        """The section's variables, then its lines above the program, run with the SDKs' Python."""
        found = sections()
        variables = found[OTEL]["sh"] + found[heading]["sh"]
        source = found[heading]["python"][0] + (
            (PROGRAMS / program).read_text(encoding="utf-8") if program else ""
        )
        (self.home / "program.py").write_text(source, encoding="utf-8")
        return self.sh(
            "\n".join([*variables, f'exec {SDKS} program.py "$@"']), *arguments, **environment
        )
