"""Prints the rows of a Parquet file as lines of JSON: `python -m workers.read_parquet FILE
MEMORY_MIB`.

It runs as a separate process with bounded memory, because a small file can unpack to any size and a
damaged one can crash the reader. The first line is the list of column names, then rows are lists.
If reading fails, the last line is `{"error": "…"}`.
"""

from __future__ import annotations

import base64
import json
import math
import os
import resource
import sys
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

ROWS_AT_ONCE = 64


def main(path: str, memory_mib: int) -> int:
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
    resource.setrlimit(resource.RLIMIT_AS, (memory_mib * 2**20,) * 2)
    from pyarrow import parquet

    write = sys.stdout.write
    try:
        file = parquet.ParquetFile(path)
        write(json.dumps(file.schema_arrow.names) + "\n")
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, use_threads=False):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                write(json.dumps([plain(value) for value in row]) + "\n")
    except MemoryError:
        write(json.dumps({"error": f"its rows need more than {memory_mib} MiB of memory"}) + "\n")
    except BrokenPipeError:
        return 0
    except Exception as error:  # damaged files raise all kinds of errors
        problem = (
            "its rows need too much memory"
            if "malloc" in str(error)
            else str(error) or type(error).__name__
        )
        write(json.dumps({"error": problem[:500]}) + "\n")
    return 0


def plain(value: Any) -> Any:
    """As JSON: times in ISO 8601, bytes as text or base64, NaN as null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return plain(float(value))
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    return value if value is None or isinstance(value, str | int) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
