"""Receiving, side by side in one run: Flywheel, MLflow's tracing server, Arize Phoenix. `python -m
bench.ingest --help`

The same OTLP/HTTP protobuf bodies by the same client to each server in turn; then Flywheel's REST
doors, the memory of its web processes, and a raw COPY of the same rows into tables of the same
shape. Writes var/bench/ingest.json.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import math
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from psycopg import sql

from bench.bodies import BODY_BYTES, TRACES, Body, Rows, endless_otlp_bodies, otlp_bodies
from bench.footprint import Process, processes
from bench.peers import (
    HOME,
    SERVERS,
    BenchError,
    Flywheel,
    Server,
    install,
    machine,
    stop_servers_on_sigterm,
)

WARM_UP_S = 5.0
IDLE_PROBES = 5
PATIENCE_S = 600.0
LEAST_BODIES = 100  # a second, however slow the warm-up was
PAUSE_AFTER_ERROR_S = 0.1
MOST_BYTES = 3 * 2**30
ROW_BYTES = 4000
BIG_ROWS, BIG_ROW_BYTES = 4950, 13_300
PROTOBUF = {"Content-Type": "application/x-protobuf"}
JSON, NDJSON = {"Content-Type": "application/json"}, {"Content-Type": "application/x-ndjson"}
COPY_ROWS = 100
MINUTE_S, LOOKED_AT_EVERY_S = 60.0, 5.0
STEADY_ROWS, STEADY_PER_SECOND = 100, "1500"
KEPT = ("trajectories_trajectory", "trajectories_content", "trajectories_trajectorykey")


@dataclass
class Load:
    """What a client saw: seconds and units (traces or rows) of the acknowledged requests."""

    latencies: list[float] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    started: float = 0.0
    ended: float = 0.0

    @property
    def per_second(self) -> float:
        return len(self.ids) / (self.ended - self.started) if self.ids else 0.0

    def summary(self) -> dict[str, Any]:
        points = (
            np.percentile(self.latencies, [50, 95, 99]) * 1000 if self.latencies else [math.nan] * 3
        )
        return {
            "per_second": round(self.per_second, 1),
            "requests": len(self.latencies),
            "acknowledged": len(self.ids),
            "seconds": round(self.ended - self.started, 2),
            "errors": dict(self.errors),
            **{
                name: round(float(ms), 1)
                for name, ms in zip(("p50_ms", "p95_ms", "p99_ms"), points, strict=True)
            },
        }


def send(
    server: Server,
    path: str,
    headers: dict[str, str],
    bodies: Iterable[Body],
    seconds: float,
    lines: int,
) -> Load:
    """Posts the bodies over `lines` connections until they or the seconds run out.

    A request under way at the end is waited for and counted, and the clock runs until the last
    acknowledgement.
    """
    load, shared, lock = Load(), iter(bodies), threading.Lock()
    load.started = load.ended = time.perf_counter()
    deadline = load.started + seconds

    def work() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        while time.perf_counter() < deadline:
            with lock:
                body = next(shared, None)
            if body is None:
                break
            at = time.perf_counter()
            try:
                connection.request("POST", path, body.data, headers | server.headers)
                answer = connection.getresponse()
                problem = refused(
                    answer.status, answer.getheader("Content-Type", ""), answer.read()
                )
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                problem = type(error).__name__
            done = time.perf_counter()
            with lock:
                if problem:
                    load.errors[problem] += 1
                else:
                    load.latencies.append(done - at)
                    load.ids.extend(body.ids)
                    load.ended = max(load.ended, done)
            if problem:
                time.sleep(
                    PAUSE_AFTER_ERROR_S
                )  # as an exporter would: no storm of refused requests on the same cores
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(lines)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return load


def refused(status: int, kind: str, text: bytes) -> str:
    """Why an answer is no acknowledgement of the whole body, or the empty string."""
    if not 200 <= status < 300:
        return f"HTTP {status}: {text[:80].decode(errors='replace')}"
    if "protobuf" in kind:
        lost = ExportTraceServiceResponse.FromString(text).partial_success.rejected_spans
        return f"{lost} spans rejected" if lost else ""
    with contextlib.suppress(ValueError, AttributeError):
        if (answer := json.loads(text or b"{}")).get("rejected"):
            return f"rows rejected: {str(answer['rejected'][0])[:80]}"
    return ""


def wait_until(true: Callable[[], bool], patience_s: float, every_s: float) -> float:
    """Seconds until it is so; NaN where it never is."""
    started = time.perf_counter()
    while not true():
        if time.perf_counter() - started > patience_s:
            return math.nan
        time.sleep(every_s)
    return time.perf_counter() - started


def enough(warm: Load, seconds: float, body_bytes: int, per_body: int) -> int:
    """How many bodies the measurement can need at most: three times the warm-up's speed, within the
    memory.
    """
    rate = max(3 * warm.per_second / per_body, LEAST_BODIES)
    return min(int(rate * seconds), MOST_BYTES // body_bytes)


# OTLP, all servers.


def measure_otlp(server: Server, seconds: float, lines: int) -> dict[str, Any]:
    warm = send(server, server.door, PROTOBUF, otlp_bodies(2000, 1), min(WARM_UP_S, seconds), lines)
    if not warm.ids:
        raise BenchError(f"{server.name} accepts no OTLP: {dict(warm.errors)}. Read {server.log}.")
    sent = len(warm.ids)
    wait_until(lambda: server.stored() >= sent, PATIENCE_S, 0.2)
    idle = [probe(server, body) for body in otlp_bodies(IDLE_PROBES, 2)]
    bodies = otlp_bodies(enough(warm, seconds, BODY_BYTES, TRACES), 3)
    load = send(server, server.door, PROTOBUF, bodies, seconds, lines)
    drained = load.ended + wait_until(lambda: server.visible(load.ids[-1]), PATIENCE_S, 0.02)
    sent += IDLE_PROBES * TRACES + len(load.ids)
    wait_until(lambda: server.stored() >= sent, PATIENCE_S, 0.2)
    settled, stored = time.perf_counter(), server.stored()
    return {
        "server": server.name,
        "version": server.version,
        "database": server.database,
        "processes": server.processes,
        "acknowledges": server.acknowledges,
        **load.summary(),
        "stored_per_second": round((len(load.ids) - (sent - stored)) / (settled - load.started), 1),
        "visible_idle_s": round(statistics.median(idle), 3),
        "visible_after_load_s": round(drained - load.ended, 3),
        "stored": stored,
        "sent": sent,
        "bodies_left": len(bodies) - len(load.latencies) - load.errors.total(),
    }


def probe(server: Server, body: Body) -> float:
    """Seconds from the acknowledgement of one body on an idle server until its last trace can be
    read.
    """
    load = send(server, server.door, PROTOBUF, [body], 30, 1)
    if not load.ids:
        return math.nan
    return wait_until(lambda: server.visible(body.ids[-1]), PATIENCE_S, 0.01)


# A minute of full load, Flywheel alone.


class Usage:
    """Processor seconds of all processes of a server by part, and the most memory that they had
    together (PSS, looked at every few seconds).
    """

    def __init__(self, server: Flywheel) -> None:
        self.folder, self.began, self.peak_mib = server.folder.resolve(), time.process_time(), 0.0
        self.spent = self._look()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _look(self) -> Counter[str]:
        found = processes(self.folder)
        self.peak_mib = max(self.peak_mib, sum(row.pss for row in found))
        spent: Counter[str] = Counter()
        for row in found:
            spent[_part(row)] += row.cpu_s
        return spent

    def _watch(self) -> None:
        while not self._ended.wait(LOOKED_AT_EVERY_S):
            self._look()

    def lap(self, units: int) -> dict[str, float]:
        """µs of a unit since the last lap, by part."""
        before, self.spent = self.spent, self._look()
        began, self.began = self.began, time.process_time()
        laps = {name: seconds - before[name] for name, seconds in self.spent.items()}
        laps["client"] = self.began - began
        return {name: round(lap * 1e6 / units, 1) for name, lap in sorted(laps.items())}

    def end(self) -> None:
        self._ended.set()
        self._thread.join()


def _part(row: Process) -> str:
    """A program by its title, a process of PostgreSQL by whose niceness it shares."""
    name = row.command.split()[0]
    if row.part != "PostgreSQL":
        return name
    return f"{row.part}, niceness {row.niceness}" if "[local]" in row.command else row.part


def measure_minute(server: Flywheel, seconds: float, lines: int) -> dict[str, Any]:
    """How long what follows a load takes: seconds from the last acknowledgement until all of it is
    stored, digested and classified.
    """
    bodies = endless_otlp_bodies(5)
    warm = send(server, server.door, PROTOBUF, bodies, WARM_UP_S, lines)
    wait_until(server.classified, PATIENCE_S, 0.5)
    sent, usage = len(warm.ids), Usage(server)
    try:
        load = send(server, server.door, PROTOBUF, bodies, seconds, lines)
        sent += len(load.ids)
        found: dict[str, Any] = load.summary()
        found["cpu_us_per_trace"] = {"acknowledged": usage.lap(len(load.ids))}
        for name, is_done in (
            ("stored", lambda: server.stored() >= sent),
            ("digested", server.digested),
            ("classified", server.classified),
        ):
            wait_until(is_done, PATIENCE_S, 0.5)
            found[f"{name}_after_s"] = round(time.perf_counter() - load.ended, 1)
            found["cpu_us_per_trace"][name] = usage.lap(len(load.ids))
    finally:
        usage.end()
    return found | {"peak_pss_mib": round(usage.peak_mib), "stored": server.stored(), "sent": sent}


# A steady load, Flywheel alone.


def measure_steady(server: Flywheel, per_second: float, seconds: float, lines: int) -> dict:
    """Whether the digest keeps up with so many rows a second: the lags that /healthz says every
    second while they come, and the seconds until all of it is digested and classified.
    """
    rows, path = Rows(ROW_BYTES, 3000, seed=4), "/api/v1/trajectories/batch/"
    every_s = STEADY_ROWS / per_second
    send(server, path, JSON, paced(rows, every_s, WARM_UP_S), WARM_UP_S, lines)
    wait_until(server.classified, PATIENCE_S, 0.5)
    usage, lags = Usage(server), Lags(server)
    try:
        load = send(server, path, JSON, paced(rows, every_s, seconds), seconds, lines)
        found = load.summary() | {"rate": per_second, "lag_s": lags.end()}
        found["cpu_us_per_row"] = {"acknowledged": usage.lap(len(load.ids))}
        for name, is_done in (("digested", server.digested), ("classified", server.classified)):
            wait_until(is_done, PATIENCE_S, 0.2)
            found[f"{name}_after_s"] = round(time.perf_counter() - load.ended, 1)
            found["cpu_us_per_row"][name] = usage.lap(len(load.ids))
    finally:
        usage.end()
    return found | {"load_average": os.getloadavg()[0]}


def paced(rows: Rows, every_s: float, seconds: float) -> Iterator[Body]:
    """A batch every so many seconds; what was late is not caught up with."""
    due = time.perf_counter()
    until = due + seconds
    while due < until:
        time.sleep(max(0.0, due - time.perf_counter()))
        due = max(due + every_s, time.perf_counter() - every_s)
        yield rows.array(STEADY_ROWS)


class Lags:
    """What /healthz says of the lags, every second: {name: (the mean, the most, the last)}."""

    def __init__(self, server: Server) -> None:
        self.server, self.seen = server, defaultdict[str, list[float]](list)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=10)
                connection.request("GET", "/healthz")
                said = json.loads(connection.getresponse().read()).get("lag_s", {})
                for name, lag in said.items():
                    self.seen[name].append(lag)

    def end(self) -> dict[str, tuple[float, float, float]]:
        self._ended.set()
        self._thread.join()
        return {
            name: (round(statistics.fmean(seen), 1), max(seen), seen[-1])
            for name, seen in self.seen.items()
        }


# Flywheel's REST doors.


def measure_rest(server: Flywheel, seconds: float, lines: int) -> dict[str, Any]:
    rows, path = Rows(ROW_BYTES, 3000, seed=1), "/api/v1/trajectories/"
    found: dict[str, Any] = {}
    for name, make, per_body, to in (
        ("one row", rows.one, 1, path),
        ("100 rows", lambda: rows.array(100), 100, path + "batch/"),
    ):
        warm = send(server, to, JSON, take(make), min(WARM_UP_S, seconds), lines)
        if not warm.ids:
            raise BenchError(f"Flywheel refuses {name}: {dict(warm.errors)}. Read {server.log}.")
        wait_until(server.digested, PATIENCE_S, 0.2)
        bodies = [make() for _ in range(enough(warm, seconds, ROW_BYTES * per_body, per_body))]
        load = send(server, to, JSON, bodies, seconds, lines)
        waited = wait_until(server.digested, PATIENCE_S, 0.1)
        found[name] = load.summary() | {
            "digested_after_s": round(waited, 1),
            "bodies_left": len(bodies) - len(load.latencies) - load.errors.total(),
        }
    return found


def take(make: Callable[[], Body]) -> Iterator[Body]:
    while True:
        yield make()


def measure_memory(server: Flywheel, batches: int, lines: int) -> dict[str, Any]:
    """Peak resident memory of the web processes while 64 MiB batches arrive over one and over all
    connections.
    """
    rows, path = Rows(BIG_ROW_BYTES, 300, seed=2), "/api/v1/trajectories/batch/"
    found: dict[str, Any] = {}
    for count in sorted({1, lines}):
        before = server.web_processes()
        for pid in before:
            reset_peak(pid)
        load = send(
            server, path, NDJSON, [rows.ndjson(BIG_ROWS) for _ in range(batches)], 600, count
        )
        after = server.web_processes()
        peaks = [peak_mib(pid) for pid in after]
        found[f"{count} connections"] = load.summary() | {
            "batch_mib": round(BIG_ROWS * (BIG_ROW_BYTES + 1) / 2**20, 1),
            "web_rss_peak_mib": max(peaks),
            "web_rss_peaks_mib": peaks,
            "web_processes_restarted": sorted(before) != sorted(after),
        }
    return found


def reset_peak(pid: int) -> None:
    """The kernel forgets the peak of a process' resident memory (proc(5): clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_mib(pid: int) -> float:
    """0 for a process that is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return round(int(line.split()[1]) / 1024, 1)
    return 0.0


# The raw COPY.


def measure_copy(server: Flywheel) -> dict[str, Any]:
    """The rows that REST stored, copied by one process into new tables of the same shape, indexes
    and constraints.

    Only what is written before the acknowledgement (KEPT), not the words and counts that follow in
    the background: the harder measure. Text format, made before the clock starts; a commit every
    100 rows, and one commit for all.
    """
    with server.connect() as connection:
        shapes = [
            (table, shape_of(connection, table), columns_of(connection, table)) for table in KEPT
        ]
        lines = {table: read_out(connection, table, columns) for table, _, columns in shapes}
        rows = len(lines[KEPT[0]])
        found: dict[str, Any] = {
            "rows": rows,
            "tables": {table: len(read) for table, read in lines.items()},
        }
        for name, per_commit in (("copy 100", COPY_ROWS), ("copy all", rows)):
            connection.execute("DROP SCHEMA IF EXISTS bench_raw CASCADE; CREATE SCHEMA bench_raw")
            for table, like, _ in shapes:
                made = sql.SQL("CREATE TABLE bench_raw.{} (LIKE public.{} INCLUDING ALL)")
                connection.execute(made.format(sql.Identifier(table), sql.Identifier(like)))
            connection.execute("CHECKPOINT")
            batches = list(cut(lines, math.ceil(rows / per_commit)))
            at = time.perf_counter()
            for batch in batches:
                with connection.transaction():
                    for table, _, columns in shapes:
                        write_in(connection, table, columns, batch[table])
            found[name] = round(rows / (time.perf_counter() - at), 1)
        connection.execute("DROP SCHEMA bench_raw CASCADE")
    return found


def shape_of(connection: psycopg.Connection, table: str) -> str:
    """The table, or its largest partition: storage and indexes are the partition's."""
    largest = connection.execute(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid WHERE inhparent ="
        " %s::regclass ORDER BY pg_total_relation_size(inhrelid) DESC LIMIT 1",
        [table],
    ).fetchone()
    return largest[0] if largest else table


def columns_of(connection: psycopg.Connection, table: str) -> sql.Composed:
    named = connection.execute(
        "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT"
        " attisdropped AND attgenerated = '' ORDER BY attnum",
        [table],
    ).fetchall()
    return sql.SQL(", ").join(sql.Identifier(name) for (name,) in named)


def read_out(connection: psycopg.Connection, table: str, columns: sql.Composed) -> list[bytes]:
    out = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(columns, sql.Identifier(table))
    with connection.cursor().copy(out) as copy:
        return [bytes(line) for line in copy]


def write_in(
    connection: psycopg.Connection, table: str, columns: sql.Composed, data: bytes
) -> None:
    with connection.cursor().copy(
        sql.SQL("COPY bench_raw.{} ({}) FROM STDIN").format(sql.Identifier(table), columns)
    ) as copy:
        for at in range(0, len(data), 2**20):
            copy.write(data[at : at + 2**20])


def cut(lines: dict[str, list[bytes]], parts: int) -> Iterator[dict[str, bytes]]:
    """The lines of all tables in so many even batches."""
    for part in range(parts):
        yield {
            table: b"".join(read[len(read) * part // parts : len(read) * (part + 1) // parts])
            for table, read in lines.items()
        }


# The report.


def ratios(report: dict[str, Any]) -> dict[str, float]:
    """Flywheel against the better peer of each number, and against the raw COPY."""
    found: dict[str, float] = {}
    ours = [row for row in report["otlp"] if row["server"] == "flywheel"]
    peers = [row for row in report["otlp"] if row["server"] != "flywheel"]
    if ours and peers:
        for what, name, goal in (
            ("per_second", "acknowledged", 10),
            ("stored_per_second", "stored", 6),
        ):
            better = max(row[what] for row in peers)
            found[f"{name} traces per second over the better peer (goal {goal})"] = (
                ours[0][what] / better
            )
        lowest = min(row["p99_ms"] for row in peers)
        found["p99 over the lowest of the peers (goal below 1)"] = ours[0]["p99_ms"] / lowest
    if "copy" in report:
        rest = report["rest"]["100 rows"]["per_second"]
        for name in ("copy 100", "copy all"):
            found[f"100 rows per request over {name} (goal 0.25)"] = rest / report["copy"][name]
    return {name: round(value, 3) for name, value in found.items()}


COLUMNS = {
    "server": "server",
    "version": "version",
    "database": "database",
    "processes": "processes",
    "acknowledged/s": "per_second",
    "stored/s": "stored_per_second",
    "p50 ms": "p50_ms",
    "p95 ms": "p95_ms",
    "p99 ms": "p99_ms",
    "visible idle s": "visible_idle_s",
    "visible after load s": "visible_after_load_s",
    "sent": "sent",
    "stored": "stored",
}


def show(report: dict[str, Any]) -> None:
    print(row_of([*COLUMNS, "errors"]))
    for row in sorted(report["otlp"], key=lambda row: -row["per_second"]):
        print(row_of([*(row[name] for name in COLUMNS.values()), row["errors"] or ""]))
    if minute := report.get("minute"):
        print(
            f"{minute['seconds']} s of load, {minute['per_second']} traces/s: stored"
            f" {minute['stored_after_s']} s after it, digested {minute['digested_after_s']} s,"
            f" classified {minute['classified_after_s']} s (goal 120); all processes at most"
            f" {minute['peak_pss_mib']} MiB (PSS); {minute['stored']} of {minute['sent']} stored"
        )
        for until, spent in minute["cpu_us_per_trace"].items():
            print(f"CPU, µs of a trace, until {until}: {sum(spent.values()):.0f} {spent}")
    for steady in report.get("steady", ()):
        print(
            f"{steady['rate']:g} rows/s asked, {steady['per_second']} acknowledged, p99"
            f" {steady['p99_ms']} ms, load average {steady['load_average']:.1f}: lag (mean, most,"
            f" last) {steady['lag_s']}; digested {steady['digested_after_s']} s and classified"
            f" {steady['classified_after_s']} s after it; {steady['errors'] or 'no errors'}"
        )
        for until, spent in steady["cpu_us_per_row"].items():
            print(f"CPU, µs of a row, until {until}: {sum(spent.values()):.0f} {spent}")
    for name, row in report.get("rest", {}).items():
        print(
            f"REST {name}: {row['per_second']} rows/s, p50 {row['p50_ms']} ms, p99 {row['p99_ms']}"
            f" ms, {row['errors']}"
        )
    for name, row in report.get("memory", {}).items():
        print(
            f"NDJSON {row['batch_mib']} MiB, {name}: {row['per_second']} rows/s, peak"
            f" {row['web_rss_peak_mib']} MiB"
        )
    if "copy" in report:
        print(f"Raw COPY, rows/s: {report['copy']}")
    for name, value in report.get("ratios", {}).items():
        print(f"{name}: {value}")


def row_of(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    print(f"{server.name} {server.version} on {server.database} …", flush=True)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each load is")
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--only", default="flywheel,phoenix,mlflow", help="servers, by commas")
    parser.add_argument("--databases", default="sqlite,postgresql", help="of the peers, by commas")
    parser.add_argument(
        "--batches", type=int, default=6, help="64 MiB batches per memory measurement; 0 for none"
    )
    parser.add_argument(
        "--parts",
        default="otlp,minute,rest",
        help="otlp, minute, steady, rest (with memory and COPY), and cpu (bench.ingest_cpu), by"
        " commas",
    )
    parser.add_argument(
        "--steady", default=STEADY_PER_SECOND, help="rows a second, each for a --minute, by commas"
    )
    parser.add_argument(
        "--minute", type=float, default=MINUTE_S, help="seconds of the load before `classified`"
    )
    chosen = parser.parse_args()
    stop_servers_on_sigterm()
    report: dict[str, Any] = {
        "machine": machine(),
        "settings": vars(chosen),
        "otlp": [],
        "failed": [],
    }
    names = chosen.only.split(",")
    if "cpu" in chosen.parts:
        subprocess.run([sys.executable, "-m", "bench.ingest_cpu"], check=True)
    if "otlp" in chosen.parts:
        for server in servers(names, chosen.databases.split(",")):
            try:
                with running(server):
                    report["otlp"].append(measure_otlp(server, chosen.seconds, chosen.connections))
            except BenchError as error:
                report["failed"].append(str(error))
                print(error, flush=True)
    if "flywheel" in names and "minute" in chosen.parts:
        with running(Flywheel("postgresql", HOME / "runs/flywheel-minute")) as server:
            assert isinstance(server, Flywheel)
            report["minute"] = measure_minute(server, chosen.minute, chosen.connections)
    if "flywheel" in names and "steady" in chosen.parts:
        with running(Flywheel("postgresql", HOME / "runs/flywheel-steady")) as server:
            assert isinstance(server, Flywheel)
            report["steady"] = [
                measure_steady(server, float(rate), chosen.minute, chosen.connections)
                for rate in chosen.steady.split(",")
            ]
    if "flywheel" in names and "rest" in chosen.parts:
        with running(Flywheel("postgresql", HOME / "runs/flywheel-rest")) as server:
            assert isinstance(server, Flywheel)
            report["rest"] = measure_rest(server, chosen.seconds, chosen.connections)
            report["copy"] = measure_copy(server)
            if chosen.batches:
                report["memory"] = measure_memory(server, chosen.batches, chosen.connections)
    report["ratios"] = ratios(report)
    show(report)
    (HOME / "ingest.json").write_text(json.dumps(report, indent=1))
    if report["failed"]:
        sys.exit(1)


def servers(names: list[str], databases: list[str]) -> Iterator[Server]:
    """In an order of chance: none always has the coldest or the fullest machine."""
    wanted = [
        (name, database)
        for name in names
        for database in (["postgresql"] if name == "flywheel" else databases)
    ]
    random.shuffle(wanted)
    for name, database in wanted:
        if name != "flywheel":
            install(name)
        yield SERVERS[name](database, HOME / f"runs/{name}-{database}")


if __name__ == "__main__":
    main()
