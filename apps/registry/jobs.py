"""The jobs of floor 2: finding out what an inference server can do, and running one."""

from __future__ import annotations

from apps.core.kinds import ChildProcess, register
from apps.registry import managed, servers
from apps.registry.models import ServerProbe, ServerRun

register(
    ServerProbe,
    ChildProcess(
        queue="default",
        program=lambda probe: "check_server",
        child_spec=servers.probe_spec,
        complete=servers.complete_probe,
        time_limit_s=servers.PROBE_S,
    ),
)
register(
    ServerRun,
    ChildProcess(
        queue=managed.QUEUE,
        program=lambda run: "serve",
        child_spec=managed.child_spec,
        store_events=managed.store_events,
        complete=lambda run, result: {},
        ended=managed.ended,
    ),
)
