"""The table of the clients' ids, as one table and partitioned by hash:
`python -m bench.key_table [--keys 3000000] [--parts 0,8,16,32] [--folder F]`

The same keys are put into each table of a database of its own, which the statements of the product
then work on: batches and single rows that are new, rows that are there, 1,000 ids looked up, a
tenth deleted, the vacuum after that, and a reindex. Counted are the processor time of the
connection's process and the pages that it touched, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg

from bench.peers import HOME, stop_servers_on_sigterm

PROJECTS, BATCH, ASKED = 50, 500, 1000
BATCHES, SINGLES, LOOKUPS = 60, 1000, 20
CLAIM = (
    "INSERT INTO {table} (project_id, external_id, trajectory_id, digest) SELECT %s::bigint, name,"
    " id, digest FROM unnest(%s::text[], %s::uuid[], %s::text[]) AS given(name, id, digest) ON"
    " CONFLICT DO NOTHING RETURNING external_id"
)
# Half of the runs are of the first project.
SOURCE = (
    "CREATE UNLOGGED TABLE key_source AS SELECT CASE WHEN n %% 2 = 0 THEN 1 ELSE 2 + n %% %s END"
    " AS project_id, name, name::uuid AS id, name AS digest"
    " FROM generate_series(0, %s - 1) AS n, LATERAL (SELECT md5(n::text) AS name OFFSET 0) AS made"
)
TABLE = (
    "CREATE TABLE {table} (project_id bigint NOT NULL, external_id varchar(200) NOT NULL,"
    " trajectory_id uuid NOT NULL, digest varchar(32) NOT NULL)"
)


class Keys:
    """One of the tables, and what each statement on it cost."""

    def __init__(self, connection: psycopg.Connection, parts: int) -> None:
        self.connection, self.table = connection, f"keys_{parts}"
        self.parts = [f"{self.table}_{n}" for n in range(parts)] or [self.table]
        self.found: dict[str, dict[str, float]] = {}
        self.process = Path(f"/proc/{connection.info.backend_pid}/schedstat")

    def make(self) -> None:
        """Filled, and then its index built: so all tables have equally dense ones."""
        if len(self.parts) == 1:
            self._execute(TABLE)
        else:
            self._execute(TABLE + " PARTITION BY HASH (project_id, external_id)")
            for n, part in enumerate(self.parts):
                self._execute(
                    f"CREATE TABLE {part} PARTITION OF {{table}} FOR VALUES WITH"
                    f" (MODULUS {len(self.parts)}, REMAINDER {n})"
                )
        fill = "INSERT INTO {table} SELECT * FROM key_source"
        self._count("fill, all", 1, lambda: self._execute(fill))
        key = "ALTER TABLE {table} ADD PRIMARY KEY (project_id, external_id)"
        self._count("build the index, all", 1, lambda: self._execute(key))
        self._execute("VACUUM ANALYZE {table}")

    def measure(self, keys: int) -> None:
        rng = random.Random(1)
        known = [self._some(rng, keys) for _ in range(LOOKUPS)]
        self._sizes("when filled")
        self._count("claim 500 new", BATCH, *self._claims(rng, BATCH, BATCHES))
        self._count("claim 1 new", 1, *self._claims(rng, 1, SINGLES))
        again = [self._claim(1, names) for names in known]
        self._count("claim 1,000 that are there", ASKED, *again)
        asked = "SELECT external_id, trajectory_id FROM {table} WHERE project_id = %s AND"
        self._count(
            "look up 1,000",
            ASKED,
            *(self._asks(asked + " external_id = ANY (%s)", names) for names in known),
        )
        self._count(
            "look up 1",
            1,
            *(self._asks(asked + " external_id = ANY (%s)", [names[0]]) for names in known * 20),
        )
        self._plan(asked + " external_id = ANY (%s)", [1, known[0]])
        step = "DELETE FROM {table} WHERE project_id = 1 AND external_id = ANY (%s)"
        gone = self._names(keys, 10)
        some = [gone[at : at + BATCH] for at in range(0, len(gone), BATCH)]
        deletes = [lambda names=names: self._execute(step, [names]) for names in some]
        self._count("delete 500", BATCH, *deletes)
        self._count("vacuum after it, all", 1, lambda: self._execute("VACUUM {table}"))
        self._sizes("after the vacuum")
        self._count("reindex, all", 1, lambda: self._execute("REINDEX TABLE {table}"))
        self._sizes("after the reindex")

    def _names(self, keys: int, every: int) -> list[str]:
        rows = self.connection.execute(
            f"SELECT external_id FROM {self.table} TABLESAMPLE SYSTEM (%s) WHERE project_id = 1",
            [100 / every * 2],
        )
        return [name for (name,) in rows][: keys // every]

    def _some(self, rng: random.Random, keys: int) -> list[str]:
        """Ids of the first project; half of those asked for are there."""
        chosen = (rng.randrange(keys) for _ in range(ASKED))
        return sorted(hashlib.md5(str(n).encode()).hexdigest() for n in chosen)

    def _claims(self, rng: random.Random, size: int, times: int) -> Iterator[Callable[[], None]]:
        for _ in range(times):
            yield self._claim(1, sorted(f"{rng.getrandbits(128):032x}" for _ in range(size)))

    def _claim(self, project: int, names: list[str]) -> Callable[[], None]:
        ids = [UUID(name) for name in names]
        return lambda: self._execute(CLAIM, [project, names, ids, names])

    def _asks(self, sql: str, names: list[str]) -> Callable[[], None]:
        return lambda: self._execute(sql, [1, names])

    def _execute(self, sql: str, values: list[Any] | None = None) -> None:
        self.connection.execute(sql.format(table=self.table), values, prepare=bool(values))

    def _plan(self, sql: str, values: list[Any]) -> None:
        rows = self.connection.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql.format(table=self.table)}", values
        )
        plan = rows.fetchone()[0][0]
        root = plan["Plan"]
        self.found["plan of look up 1,000"] = {
            "buffers": root["Shared Hit Blocks"] + root["Shared Read Blocks"],
            "planning_buffers": plan.get("Planning", {}).get("Shared Hit Blocks", 0),
            "scans": json.dumps(root).count('"Index Name"'),
        }

    def _count(self, name: str, units: int, *steps: Callable[[], None]) -> None:
        """The mean of all steps but the first tenth (plans and caches), µs of a unit."""
        costs = []
        for step in steps:
            before = self._cpu_s()
            step()
            costs.append(self._cpu_s() - before)
        counted = costs[len(costs) // 10 :]
        self.found[name] = {"cpu_us": statistics.mean(counted) / units * 1e6}

    def _cpu_s(self) -> float:
        return int(self.process.read_text().split()[0]) / 1e9

    def _sizes(self, when: str) -> None:
        sums = ", ".join(f"sum({name}(part))" for name in ("pg_table_size", "pg_indexes_size"))
        row = self.connection.execute(
            f"SELECT {sums} FROM unnest(%s::regclass[]) AS part", [self.parts]
        ).fetchone()
        self.found[f"MB, {when}"] = {"table": int(row[0]) / 1e6, "index": int(row[1]) / 1e6}


def show(found: dict[int, dict[str, dict[str, float]]]) -> None:
    print(f"| | {' | '.join(f'{parts} parts' if parts else 'one table' for parts in found)} |")
    for name in next(iter(found.values())):
        cells = (
            ", ".join(f"{value:,.1f}" for value in each[name].values()) for each in found.values()
        )
        print(f"| {name} ({', '.join(next(iter(found.values()))[name])}) | {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=3_000_000)
    parser.add_argument("--parts", default="0,8,16,32", help="0: one table")
    parser.add_argument("--folder", type=Path, default=HOME / "keys")
    chosen = parser.parse_args()
    stop_servers_on_sigterm()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for name in ("DATABASE_URL", "BROKER_URL"):
        os.environ.pop(name, None)
    os.environ |= {"FLYWHEEL_DATA_DIR": str(chosen.folder)}
    from flywheel import embedded

    embedded.ensure()
    found = {}
    with psycopg.connect(embedded.database_url(), autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute("SET max_parallel_maintenance_workers = 0")
        connection.execute("DROP TABLE IF EXISTS key_source")
        connection.execute(SOURCE % (PROJECTS - 1, chosen.keys))
        for parts in map(int, chosen.parts.split(",")):
            keys = Keys(connection, parts)
            keys.make()
            keys.measure(chosen.keys)
            found[parts] = keys.found
            print(parts, json.dumps(keys.found), flush=True)
            connection.execute(f"DROP TABLE {keys.table}")
        connection.execute("DROP TABLE key_source")
    show(found)


if __name__ == "__main__":
    main()
