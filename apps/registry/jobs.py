"""The jobs of the registry layer: probing an inference server, running one, and merging an adapter
into its base.
"""

from __future__ import annotations

from apps.core.kinds import ChildProcess, Needs, register
from apps.registry import managed, merging, servers
from apps.registry.bases import needed_base
from apps.registry.fetching import Fetcher
from apps.registry.models import MergeJob, ServerProbe, ServerRun
from apps.registry.server_states import QUEUE

register(
    ServerProbe,
    ChildProcess(
        queue="default",
        child_spec=servers.probe_spec,
        complete=servers.complete_probe,
        time_limit_s=servers.PROBE_S,
    ),
)
register(
    ServerRun,
    ChildProcess(
        queue=QUEUE,
        child_spec=managed.serve_spec,
        needs=lambda run: Needs(things=needed_base(run.server.base)),
        store_events=managed.store_events,
        complete=lambda run, result: {},
        ended=managed.ended,
        beside=Fetcher,
    ),
)
register(
    MergeJob,
    ChildProcess(
        queue="eval",
        child_spec=merging.job_spec,
        needs=lambda job: Needs(things=needed_base(job.version)),
        complete=merging.complete,
        ended=merging.ended,
        time_limit_s=3600.0,
    ),
)
