"""How a version is called on a server: under which name, and whether an adapter has to be loaded
for it.
"""

from __future__ import annotations

from dataclasses import dataclass

from apps.core.outgoing_keys import key_hosts
from apps.promotion.deployment.models import Deployment
from apps.registry.engines import asked_as, choose, holders
from apps.registry.models import Dialect, ModelKind, ModelVersion, Server
from apps.registry.servers import may_be_private
from workers.lib.chat_client import ChatServer
from workers.lib.weights_proof import Asked

ANSWERS_S = 60.0


@dataclass(frozen=True)
class Plan:
    """`served_as` is its existing name there, "" if `adapter` has to be loaded on `base_served_as`
    first.
    """

    served_as: str
    base_served_as: str
    adapter: ModelVersion | None


def plan_of(server: Server, version: ModelVersion) -> Plan:
    """Raises ModelError with the reason if this version cannot be served there."""
    engine, model = choose(version, server.name), version.model
    if not engine.get("adapter"):
        base = "" if model.kind == ModelKind.BASE else _base_name(server, model)
        return Plan(engine["model"], base if base != engine["model"] else "", None)
    return Plan("", holders(model, server.name)[0].served_as, model)


def _base_name(server: Server, model: ModelVersion) -> str:
    """What the server lists as the base of a served adapter; "" if it is not one, or if that is
    unknown.
    """
    return next(
        (row.get("parent", "") for row in server.served if row.get("id") == model.served_as), ""
    )


def name_for(deployment: Deployment) -> str:
    """The adapter's name: new for each deployment, so that nothing is ever loaded in place; and not
    one that evaluations unload to make room (`adapters.to_unload`)."""
    return f"live-{deployment.channel.name}-{deployment.version.model}-{deployment.pk.hex[:8]}"[
        :120
    ]


def served_as(server: Server, plan: Plan, name: str) -> str:
    return plan.served_as or asked_as(server, plan.base_served_as, name)


def lora_name(served: str) -> str:
    """The name that a server loads and unloads, for the name under which it is called."""
    return served.rpartition(":")[2]


def asked(server: Server, plan: Plan, served: str) -> Asked:
    dialect = server.dialect
    return Asked(
        ChatServer(
            server.base_url.rstrip("/"),
            served,
            key_variable=server.key_variable,
            timeout_s=ANSWERS_S,
            tries=1,
            allow_private=may_be_private(server),
            key_hosts=key_hosts(),
            name=f"server {server.name}",
            protocol="responses" if dialect == Dialect.RESPONSES else "chat",
        ),
        server.kind,
        plan.base_served_as,
        lora_name(served) if plan.adapter else "",
    )
