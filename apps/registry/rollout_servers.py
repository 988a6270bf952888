"""Servers that a training run can sample from: those with its base and LoRA slots, and how its spec
names them.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.conf import settings

from apps.core.models import Project
from apps.registry.actions import ModelError
from apps.registry.adapters import artifacts_at, slots_of
from apps.registry.copies import elsewhere
from apps.registry.engines import AUTO, Holder, asked_at, holders, server_of, why_not_up
from apps.registry.models import Health, ModelVersion, Server, ServerKind
from workers.lib.specs.rollouts import Rollouts, RolloutServer

# Kinds that accept and return token ids.
EXACT = (ServerKind.VLLM, ServerKind.SGLANG, ServerKind.TRANSFORMERS)


def offered(project: Project) -> list[Server]:
    """Servers of a project that can serve the adapters of some training run."""
    rows = Server.objects.filter(project=project, kind__in=EXACT).select_related("base")
    return [server for server in rows if not why_not(server)]


def why_not(server: Server, rank: int = 0, steps_ahead: int = 0, top_p: float = 1.0) -> str:
    """Why a run with adapters of this rank cannot sample there; "" if it can."""
    slots, needed = slots_of(server), 1 + steps_ahead
    if server.kind not in EXACT:
        return f"{server} is neither vLLM nor SGLang, which return exact tokens."
    if server.kind == ServerKind.SGLANG and top_p < 1:
        return (
            f"{server} is SGLang, which reports log-probabilities before top_p. Set top_p to 1, or"
            " sample on vLLM."
        )
    if server.is_managed:
        most = server.serving["max_lora_rank"]
        if not slots:
            return f"{server} has no LoRA slots. Stop it and add some."
        if rank > most:
            return f"The run's LoRA rank is {rank}; {server} supports ranks up to {most}."
        if reason := why_not_up(server):
            return reason
        if elsewhere(server):
            return (
                f"{server} runs on a machine with its own data folder, where it cannot read the"
                " adapters that a training run writes at each step. Sample in the run's own"
                " process, or let that machine share this data folder."
            )
    elif not server.adapters_at:
        return f"Adapters cannot be loaded on {server}: its adapter path is not set."
    elif server.can("runtime_lora") is not True:
        return f"Adapters cannot be loaded on {server} at run time, according to the last probe."
    elif server.health == Health.DOWN:
        return f"{server} is down."
    if slots and slots < needed:
        return f"{server} has {slots} LoRA slot; sampling one step ahead needs {needed}."
    return ""


def choose_servers(
    parent: ModelVersion, names: list[str], rank: int, steps_ahead: int, top_p: float
) -> dict[str, Any]:
    """`rollouts` of a run's spec: {servers: [{server, server_name, base_url, managed, model}],
    steps_ahead}. Raises ModelError.
    """
    chosen = []
    for name in dict.fromkeys(names):
        known = holders(parent, name) if name != AUTO else []
        if not known:
            raise ModelError(
                f"No model of the server “{name}” is known to have the weights of"
                f" {parent.base_version()}. Choose another server, or none."
            )
        if reason := why_not(known[0].server, rank, steps_ahead, top_p):
            raise ModelError(reason)
        chosen.append(_named(known[0]))
    return {"servers": chosen, "steps_ahead": steps_ahead}


def _named(holder: Holder) -> dict[str, Any]:
    server = holder.server
    return {
        "server": server.pk,
        "server_name": server.name,
        "base_url": server.base_url,
        "managed": server.is_managed,
        "model": holder.served_as,
    }


def rollouts_spec(job: UUID, rollouts: dict[str, Any]) -> Rollouts:
    """For a job, with the servers' current state. Adapters are written next to the artifacts, where
    the servers can read them. Raises ModelError if a server may no longer be called.
    """
    name = f"rollouts/{job}"
    ours = f"{settings.FLYWHEEL_DATA_DIR}/artifacts"
    found = []
    for given in rollouts["servers"]:
        server = server_of(given)
        if elsewhere(server):
            raise ModelError(why_not(server))
        there = artifacts_at(server)
        found.append(
            asked_at(
                RolloutServer,
                server,
                kind="sglang" if server.kind == ServerKind.SGLANG else "vllm",
                model=given["model"],
                folder="" if there in ("", ours) else f"{there}/{name}",
                lora_slots=slots_of(server) or 0,
            )
        )
    return Rollouts(servers=found, folder=f"{ours}/{name}", steps_ahead=rollouts["steps_ahead"])
