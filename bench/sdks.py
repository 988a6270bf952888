"""SDKs against a scripted provider: `python -m bench.sdks [NAME …] [--scenarios …] [--show]`.

Each configuration of bench/sdk_configurations.py is a program of bench/sdk_programs, run with the
SDK from PyPI or npm through the scenarios of bench/sdk_scenarios.py. What it exports is assembled
as at the server and compared with what the provider was asked and said. It prints the table of
docs/sdks.md; NAMEs are parts of a row's first columns.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from apps.trajectories.otlp import LogRecord, Span, assemble, decode_logs, decode_traces
from bench.sdk_compare import NOT_SENT, Telemetry, differences
from bench.sdk_configurations import CONFIGURATIONS, Configuration
from bench.sdk_environments import command_of, ready, versions_of
from bench.sdk_provider import Played, running
from bench.sdk_scenarios import SCENARIOS

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 600
RIGHT, NONE = "✓", "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the rows' names; all without any")
    parser.add_argument("--venvs", type=Path, default=Path("var/sdks"))
    parser.add_argument("--scenarios", nargs="*", default=list(SCENARIOS))
    parser.add_argument("--show", action="store_true", help="print rows and spans to stderr")
    parser.add_argument("--keep", type=Path, help="a folder for what each program asked and sent")
    parser.add_argument("--replay", type=Path, help="such a folder, to compare without running")
    options = parser.parse_args()
    chosen = [one for one in CONFIGURATIONS if _is_chosen(one.name, options.names)]
    print(head(), flush=True)
    rows: list[list[str]] = []
    for configuration in chosen:
        names = [name for name in options.scenarios if name in configuration.can]
        if options.replay:
            record = Record.of(options.replay, configuration)
        else:
            record = recorded(configuration, names, ready(configuration.environment, options.venvs))
        if options.keep:
            record.keep(options.keep, configuration)
        if record is None:
            continue
        results = compared(record, options.show)
        cells = [
            NONE if name not in configuration.can else cell(results.get(name, record.failed))
            for name in options.scenarios
        ]
        print(row(configuration, record.versions, cells), flush=True)
        rows.append(cells)
    print(summary([list(column) for column in zip(*rows, strict=True)]), file=sys.stderr)


@dataclass
class Record:
    """What a program asked and sent, with the versions of its SDK and its recorder."""

    versions: tuple[str, str]
    played: list[Played]
    telemetry: list[tuple[str, bytes]]
    failed: list[str]

    @staticmethod
    def of(folder: Path, configuration: Configuration) -> Record | None:
        path = folder / f"{_file_name(configuration)}.pickle"
        return pickle.loads(path.read_bytes()) if path.exists() else None

    def keep(self, folder: Path, configuration: Configuration) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{_file_name(configuration)}.pickle").write_bytes(pickle.dumps(self))


def _file_name(configuration: Configuration) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in configuration.name)


def recorded(configuration: Configuration, names: list[str], environment: Path) -> Record:
    with running() as (url, provider):
        failed = run(configuration, names, url, environment)
    versions = versions_of(configuration, environment)
    return Record(versions, provider.played, provider.telemetry, failed)


def _is_chosen(name: str, parts: list[str]) -> bool:
    return not parts or any(part.lower() in name.lower() for part in parts)


def head() -> str:
    titles = ["SDK", "calls by", "recorded by", *(one.title for one in SCENARIOS.values())]
    return f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}"


def row(configuration: Configuration, versions: tuple[str, str], cells: list[str]) -> str:
    sdk, recorder = configuration.sdk, configuration.recorder
    names = [f"{sdk} {versions[0]}", configuration.mode, f"{recorder} {versions[1]}".strip()]
    return f"| {' | '.join([*names, *cells])} |"


def cell(different: list[str]) -> str:
    """What is stored otherwise than it was sent, then what the SDK does not send."""
    wrong = [one for one in different if not one.endswith(NOT_SENT)]
    unsent = [one.removesuffix(NOT_SENT) for one in different if one.endswith(NOT_SENT)]
    parts = [f"**wrong**: {', '.join(wrong)}"] if wrong else []
    parts += [f"not sent: {', '.join(unsent)}"] if unsent else []
    return "; ".join(parts) or RIGHT


def summary(columns: list[list[str]]) -> str:
    """How many cells of each scenario are right, wrong, or lack what was not sent."""
    lines = []
    for scenario, cells in zip(SCENARIOS.values(), columns, strict=True):
        played = [said for said in cells if said != NONE]
        right, wrong = played.count(RIGHT), sum("**wrong**" in said for said in played)
        rest = len(played) - right - wrong
        lines.append(f"{scenario.title}: {right} right, {rest} not sent whole, {wrong} wrong")
    return "\n".join(lines)


def run(configuration: Configuration, names: list[str], url: str, environment: Path) -> list[str]:
    """Plays the scenarios, and says why they did not all come to an end."""
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ.get("HOME", "/tmp"),
        "PYTHONPATH": str(ROOT),
        "PROVIDER_URL": url,
        "MODE": configuration.mode,
        "INSTRUMENTS": ",".join(configuration.instruments),
        "TRACEBACKS": os.environ.get("TRACEBACKS", ""),
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "none",
        "OTEL_EXPORTER_OTLP_ENDPOINT": url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_SERVICE_NAME": "helpdesk",
        "NO_PROXY": "*",
        **{name: value.replace("{url}", url) for name, value in configuration.variables.items()},
    }
    command = [*command_of(configuration, environment), *names]
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=LIMIT_S, cwd=environment
        )
    except subprocess.TimeoutExpired:
        return ["the program did not end"]
    if done.returncode or os.environ.get("TRACEBACKS"):
        print(done.stdout[-3000:], done.stderr[-6000:], file=sys.stderr, flush=True)
    return [f"the program ended with {done.returncode}"]


def compared(record: Record, is_shown: bool) -> dict[str, list[str]]:
    """By scenario what is not as it was."""
    spans, logs = received(record)
    results = {}
    for played, following in pairwise([*record.played, Played("", sys.maxsize)]):
        until = following.start_ns
        ours = [span for span in spans if played.start_ns <= span.start_ns < until]
        traces = {span.trace_id for span in ours}
        records = [
            log
            for log in logs
            if log.trace_id in traces
            or (not log.trace_id and played.start_ns <= log.time_ns < until)
        ]
        rows = [run.row for run in assemble(ours, records)]
        results[played.name] = differences(played, rows, Telemetry(ours, records))
        if is_shown:
            show(played, rows, ours, records)
    return results


def received(record: Record) -> tuple[list[Span], list[LogRecord]]:
    spans: list[Span] = []
    logs: list[LogRecord] = []
    for kind, body in record.telemetry:
        is_json = body[:1] == b"{"
        if kind == "traces":
            spans += decode_traces(body, json=is_json).items
        else:
            logs += decode_logs(body, json=is_json).items
    return spans, logs


def show(played: Played, rows: list[dict], spans: list[Span], logs: list[LogRecord]) -> None:
    def say(*words: object) -> None:
        print(*words, file=sys.stderr)

    say("=" * 20, played.name)
    for number, exchange in enumerate(played.exchanges):
        say("ASKED", number, [(m.role, m.text[:80]) for m in exchange.request.messages])
        say("SAID", number, exchange.answer)
    for stored in rows:
        shown = {key: value for key, value in stored.items() if key != "metadata"}
        say(json.dumps(shown, indent=1, ensure_ascii=False))
    for span in sorted(spans, key=lambda span: span.start_ns):
        say("SPAN", span.scope.name, "|", span.name, span.span_id[-4:], "in", span.parent_id[-4:])
        say("     STATUS", span.status_code, span.status_message[:200], span.trace_id[-4:])
        for key, value in span.attributes.items():
            say("    ", key, "=", str(value)[:700])
        for event in span.events:
            say("     EVENT", event.name, str(event.attributes)[:700])
    for record in logs:
        say("LOG", str(record)[:700])


if __name__ == "__main__":
    main()
