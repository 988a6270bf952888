"""Probes an inference server: its models and what they support. `python -m workers.check_server
spec.json` (docs/servers.md).
"""

from __future__ import annotations

from dataclasses import asdict

from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.keys import RefusedKey
from workers.lib.outgoing import RefusedAddress
from workers.lib.program import StopFlag, run_main
from workers.lib.serving import Address, probe
from workers.lib.specs.check_server import CheckServer


def main(spec: CheckServer, events: Emitter, stop: StopFlag) -> None:
    server = spec.server
    address = Address(server.base_url, server.api_key_env or "", server.allow_private)
    events.progress(0, 2, "asking for its models")
    try:
        listing, model, found = probe(
            address,
            spec.server_kind,
            spec.model,
            lambda said: events.progress(1, 2, said),
            spec.dialect,
            spec.registered,
        )
    except (RefusedAddress, RefusedKey) as error:
        raise JobError(str(error)) from error
    stop.check()
    events.progress(2, 2, "done")
    events.result(listing=asdict(listing), model=model, capabilities=found)


if __name__ == "__main__":
    run_main(CheckServer, main)
