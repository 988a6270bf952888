"""`manage.py up`, without Django: its memory is that of a small program."""

from __future__ import annotations

import argparse
import sys

from flywheel.commit import described
from flywheel.progress import say
from flywheel.supervisor import ENDPOINT_PORTS, StackError, running_stack
from flywheel.version import VERSION

HELP = "Migrates the database and runs the web server, the endpoint, the workers and beat."


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="manage.py up", description=HELP)
    add_arguments(parser)
    given = parser.parse_args(arguments)
    try:
        run(given.host, given.port)
    except StackError as error:
        sys.exit(str(error))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="where to listen (default: 127.0.0.1, this machine)"
    )
    parser.add_argument(
        "--port",
        type=int,
        default=8000,
        help=f"of pages and API (default: 8000). The endpoint gets the next one, PORT + 1, or the"
        f" first free one of the {ENDPOINT_PORTS} after PORT; its address is printed",
    )


def run(host: str, port: int) -> None:
    """Raises StackError."""
    with running_stack(host, port) as stack:
        say(f"Flywheel is up at {stack.url} (version {described(VERSION)}; Ctrl-C stops it)")
        say(f"The endpoint answers OpenAI clients at {stack.endpoint_url}/v1")
        stack.serve_forever()
