"""SDKs that nobody wrote an adapter for: `python -m bench.sdks [NAME …] [--venvs FOLDER] [--show]`.

Each program of bench/sdk_programs is an agent with one tool, run with its SDK from PyPI (the first
line says what is installed, in a virtual environment of its own) against a scripted provider. What
it exports is assembled as at the server, and compared with what was said. It prints the table of
docs/sending.md.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from apps.trajectories.otlp import assemble, decode_logs, decode_traces
from apps.trajectories.schema import parse
from bench.sdk_provider import server

PROGRAMS = Path(__file__).parent / "sdk_programs"
WEATHER = "7 °C and rain"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names",
        nargs="*",
        default=sorted(path.stem.removesuffix("_agent") for path in PROGRAMS.glob("*.py")),
    )
    parser.add_argument("--venvs", type=Path, default=Path("var/sdks"))
    parser.add_argument(
        "--show", action="store_true", help="Print the trajectories and the spans' attributes"
    )
    given = parser.parse_args()
    print("| SDK | right | missing or wrong |\n|---|---|---|")
    for name in given.names:
        program = PROGRAMS / f"{name}_agent.py"
        python = installed(program, given.venvs)
        spans, logs, failed = run(program, python)
        rows = [one.row for one in assemble(spans, logs)]
        if given.show:
            show(rows, spans, logs)
        right, wrong = checked(rows)
        missing = wrong + failed
        print(
            f"| {version_of(program, python)} | {', '.join(right) if missing else 'everything'} |"
            f" {', '.join(missing) or '–'} |",
            flush=True,
        )


def packages_of(program: Path) -> list[str]:
    line = program.read_text().splitlines()[0].removeprefix("# pip install ")
    return [part.strip('"') for part in line.split()]


def installed(program: Path, venvs: Path) -> Path:
    folder = venvs / program.stem.removesuffix("_agent")
    python = folder / "bin" / "python"
    if not (folder / ".done").exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages_of(program)], check=True)
        (folder / ".done").touch()
    return python


def version_of(program: Path, python: Path) -> str:
    """The first package, and what instruments it."""
    wanted = [re.split(r"[\[<>=]", part)[0] for part in packages_of(program)]
    code = (
        "import sys; from importlib.metadata import version; print(*(f'{n} {version(n)}' for n in"
        " sys.argv[1:]), sep=', ')"
    )
    names = [wanted[0], *(name for name in wanted[1:] if "instrumentation" in name)]
    return subprocess.run(
        [python, "-c", code, *names], capture_output=True, text=True, check=True
    ).stdout.strip()


def run(program: Path, python: Path) -> tuple[list, list, list[str]]:
    """The spans and log records of two runs, one of which has a tool that raises; and that the
    program failed.
    """
    with server() as (url, received):
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ.get("HOME", "/tmp"),
            "OPENAI_BASE_URL": f"{url}/v1",
            "OPENAI_API_KEY": "none",
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_SERVICE_NAME": "helpdesk",
            "OTEL_EXPORTER_OTLP_HEADERS": "Authorization=Bearer%20fw_none",
            "OTEL_EXPORTER": "otlp_http",
            "OTEL_ENDPOINT": url,
            "OTEL_HEADERS": "Authorization=Bearer fw_none",
            "OTEL_RESOURCE_ATTRIBUTES": "service.version=3",
            "NO_PROXY": "*",
        }
        done = subprocess.run(
            [python, program, "Oslo", "Atlantis"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            cwd="/tmp",
        )
        bodies = [
            (kind, gzip.decompress(body) if encoding == "gzip" else body)
            for kind, encoding, body in received
        ]
    if done.returncode:
        print(done.stderr[-3000:], file=sys.stderr)
    spans = [
        span
        for kind, body in bodies
        if kind == "traces"
        for span in decode_traces(body, json=False).items
    ]
    logs = [
        record
        for kind, body in bodies
        if kind == "logs"
        for record in decode_logs(body, json=False).items
    ]
    return spans, logs, [f"the program ended with {done.returncode}"] if done.returncode else []


def checked(rows: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """What is as it was, and what is not, of two runs: one that went well, one whose tool
    raised.
    """
    found = {
        city: [row for row in rows if city in json.dumps(row["messages"])]
        for city in ("Oslo", "Atlantis")
    }
    oslo, atlantis = (found[city][0] if len(found[city]) == 1 else None for city in found)
    if oslo is None or atlantis is None or len(rows) != 2:
        return [], [f"{len(rows)} trajectories instead of 2"]
    results = {name: bool(test) for name, test in tests_of(oslo, atlantis).items()}
    return [name for name, good in results.items() if good], [
        name for name, good in results.items() if not good
    ]


def tests_of(row: dict[str, Any], failed: dict[str, Any]) -> dict[str, Any]:
    messages = row["messages"]
    roles = [message["role"] for message in messages]
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    weather = [call for call in calls if call["function"]["name"].endswith("get_weather")]
    ours = {call.get("id") for call in weather}
    replies = [
        message
        for message in messages
        if message["role"] == "tool" and message.get("tool_call_id") in ours
    ]
    given = weather[0]["function"]["arguments"] if weather else ""
    usage = row["usage"]
    parse(row)
    return {
        "order": (
            [role for role in roles if role != "system"][:3] == ["user", "assistant", "tool"]
            and roles[-1] in ("assistant", "tool")
        ),
        "question": any(
            message["role"] == "user" and "weather in Oslo?" in str(message["content"])
            for message in messages
        ),
        "answer": "In Oslo: " in json.dumps(messages[-2:]),
        "call": len(weather) == 1,
        "arguments": (
            json.loads(given) == {"city": "Oslo"}
            if isinstance(given, str) and given.startswith("{")
            else given == {"city": "Oslo"}
        ),
        "result": len(replies) == 1 and WEATHER in str(replies[0]["content"]),
        "tool's error": (
            "no such city" in json.dumps(failed["messages"])
            or "no such city" in json.dumps(failed["metadata"])
        ),
        "tool definitions": any(
            tool["function"]["name"].endswith("get_weather") and "city" in json.dumps(tool)
            for tool in row["tools"]
        ),
        "tokens": (
            (usage.get("input_tokens") or 0) >= 150 and (usage.get("output_tokens") or 0) >= 20
        ),
        "model": row["model"].startswith(("gpt-5-mini", "openai/gpt-5-mini", "claude")),
        "agent": row["agent"]["name"] == "helpdesk",
        "session": "session Oslo" in row["session_id"] or bool(row["session_id"]),
    }


def show(rows: list[dict], spans: list, logs: list) -> None:
    for row in rows:
        print(
            json.dumps(
                {key: value for key, value in row.items() if key != "metadata"},
                indent=1,
                ensure_ascii=False,
            ),
            file=sys.stderr,
        )
    for span in spans:
        print(
            "SPAN",
            span.scope.name,
            "|",
            span.name,
            span.span_id[-4:],
            span.parent_id[-4:],
            file=sys.stderr,
        )
        for key, value in span.attributes.items():
            print("    ", key, "=", str(value)[:400], file=sys.stderr)
        for event in span.events:
            print("     EVENT", event.name, str(event.attributes)[:500], file=sys.stderr)
    for record in logs:
        print("LOG", str(record)[:500], file=sys.stderr)


if __name__ == "__main__":
    main()
