"""How every process writes its log: one line with time (UTC) and level. No query string and no
header stands in one.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Any

REQUEST = (  # granian's fields; the query is left out on purpose
    '%(addr)s "%(method)s %(path)s" %(status)d %(dt_ms).1f ms'
)
PROBES = ("/healthz", "/livez", "/readyz", "/metrics")


class Line(logging.Formatter):
    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class NotHealth(logging.Filter):
    """Whoever asks /healthz reads the answer; a line for each time says nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        return not any(f" {path}" in said for path in PROBES)


class NotChosen(logging.Filter):
    """granian warns of more threads than cores: here they wait for the database."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "Configuration allows spawning up to" not in record.getMessage()


RESET = re.compile(r"(?<=/password/reset/)\w+-[^/]+")


class Escaped(logging.Filter):
    """What a client put into a path stays on its line, and the key of a password's reset out of
    it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, dict):
            record.args = {
                name: _printable(_without_key(value)) for name, value in record.args.items()
            }
        return True


def _without_key(value: Any) -> Any:
    return RESET.sub("…", value) if isinstance(value, str) else value


def _printable(value: Any) -> Any:
    return (
        value.encode("unicode_escape").decode()
        if isinstance(value, str) and not value.isprintable()
        else value
    )
