"""What generates a model version's answers in a job: chosen at submission, stored in the job's
spec, checked again when it starts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from apps.core.models import Project
from apps.registry.actions import (
    ModelError,
    checked_address,
    refuse_reward_model,
)
from apps.registry.artifacts import ArtifactError, local_path, read_file
from apps.registry.bases import base_folder
from apps.registry.managed import is_up, served_name
from apps.registry.models import (
    Dialect,
    Engine,
    Health,
    ModelKind,
    ModelVersion,
    Protocol,
    Reach,
    Server,
    ServerKind,
)
from apps.registry.prices import price_at, prices_of
from apps.registry.profiles import template_of
from apps.registry.servers import A, address_spec, may_be_private
from workers.lib.prices import Price, price_as_json, price_from_json
from workers.lib.serving import ADAPTER_PREFIX
from workers.lib.specs import engines as specs


@dataclass(frozen=True)
class Holder:
    """A server that has the weights of a base, the model's name there, and how it is given
    tools.
    """

    server: Server
    served_as: str
    dialect: str


AUTO, IN_PROCESS = "auto", "transformers"
AGENT_TIMEOUT_S, LONGEST_AGENT_S = 300, 3600  # for one sample
AGENTS_AT_ONCE, MOST_AT_ONCE = 8, 256
LIMITS = ("most_tokens", "most_usd", "tokens_per_call", "usd_per_call")  # of a whole job
HOW_ASKED = {Dialect.TEXT: ", tools as text", Dialect.RESPONSES: ", by the Responses API"}
LOADING = (
    ServerKind.VLLM,
    ServerKind.SGLANG,
    ServerKind.TRANSFORMERS,
)  # kinds that can load an adapter at run time


def choices(project: Project) -> list[tuple[str, str]]:
    """(value, label) for a form; the values are arguments of `choose`."""
    servers = [
        (server.name, f"Server {server.name}") for server in Server.objects.filter(project=project)
    ]
    return [
        (AUTO, "Choose automatically"),
        (IN_PROCESS, "In this installation (transformers)"),
        *servers,
    ]


def choose(version: ModelVersion, wanted: str = AUTO, *, serving: bool = False) -> dict[str, Any]:
    """The engine of a job, as its spec stores it: {kind, asked} in process, and for a server also
    {server, server_name, base_url, model, dialect, adapter, price}. `wanted` is "auto",
    "transformers" or a server's name.

    The automatic choice is: a served model on its server; an adapter on a server that is known to
    have its base and can load it; a base on a managed server of it that is up; everything else in
    process. A managed transformers server is used only by name, because the job itself computes the
    same and should leave that server to its users (`serving`: the job is one of them). A prompt
    version is generated like the model that it is based on. Raises ModelError if `wanted` cannot
    generate this version.
    """
    version = version.model
    refuse_reward_model(version)
    if version.kind == ModelKind.AGENT:
        return _called(version, wanted)
    if version.kind == ModelKind.ENDPOINT:
        if wanted not in (AUTO, version.server.name):
            raise ModelError(
                f"{version} is what the server {version.server} has; nothing else can generate its"
                " answers."
            )
        return _on(
            Holder(version.server, version.served_as, version.dialect), version.served_as, wanted
        )
    if wanted == IN_PROCESS:
        return _in_process(wanted)
    known = holders(version, wanted)
    if wanted == AUTO and not serving:
        known = [holder for holder in known if holder.server.kind != ServerKind.TRANSFORMERS]
    if version.kind == ModelKind.ADAPTER:
        reasons = []
        for holder in known:
            if not (reason := why_not_loaded(holder.server, version)):
                name = asked_as(holder.server, holder.served_as, adapter_name(version))
                return _on(holder, name, wanted, adapter=version)
            reasons.append(reason)
        if wanted == AUTO:
            return _in_process(wanted)
        raise ModelError(" ".join(reasons) or _unknown_base(version, wanted))
    if wanted == AUTO:
        ready = [
            holder for holder in known if holder.server.is_managed and not why_not_up(holder.server)
        ]
        return _on(ready[0], ready[0].served_as, wanted) if ready else _in_process(wanted)
    if not known:
        raise ModelError(_unknown_base(version, wanted))
    if reason := why_not_up(known[0].server):
        raise ModelError(reason)
    return _on(known[0], known[0].served_as, wanted)


def _called(version: ModelVersion, wanted: str) -> dict[str, Any]:
    if version.reached_by != Reach.HTTP:
        raise ModelError(
            f"{version} is an agent that runs elsewhere; a job here cannot generate its answers."
        )
    if wanted != AUTO:
        raise ModelError(
            f"{version} is an agent at {version.base_url}; nothing else can generate its answers."
        )
    checked_address(version.base_url, version.key_variable)
    return {
        "kind": "agent",
        "asked": wanted,
        "base_url": version.base_url,
        "protocol": version.protocol,
        "timeout_s": AGENT_TIMEOUT_S,
        "at_once": AGENTS_AT_ONCE,
    }


def with_patience(
    engine: dict[str, Any], *, timeout_s: int = 0, at_once: int = 0
) -> dict[str, Any]:
    """The engine of an agent with its time per sample and its number of concurrent tasks; 0 leaves
    them unchanged. Raises ModelError for other engines."""
    given = {
        name: value for name, value in (("timeout_s", timeout_s), ("at_once", at_once)) if value
    }
    if given and engine["kind"] != "agent":
        raise ModelError("Timeout and concurrency only apply to agents called over HTTP.")
    return engine | given


def _unknown_base(version: ModelVersion, wanted: str) -> str:
    return (
        f"No model of the server “{wanted}” is known to have the weights of"
        f" {version.base_version()}. Register one of its models with “Same weights as”."
    )


def holders(version: ModelVersion, wanted: str) -> list[Holder]:
    """Servers known to have the version's base: managed servers of it, then served models; healthy
    servers first.
    """
    base = version.base_version()
    managed = Server.objects.filter(base=base)
    rows = ModelVersion.objects.filter(kind=ModelKind.ENDPOINT, parent=base).select_related(
        "server"
    )
    if wanted != AUTO:
        managed, rows = managed.filter(name=wanted), rows.filter(server__name=wanted)
    found = [
        Holder(server, served_name(server), server.dialect) for server in managed.order_by("pk")
    ]
    found += [Holder(row.server, row.served_as, row.dialect) for row in rows.order_by("pk")]
    return sorted(found, key=lambda holder: holder.server.health == Health.DOWN)


def why_not_up(server: Server) -> str:
    """Why a managed server cannot be used now; "" if it is up, or not managed."""
    return (
        f"{server} is not up. Start it on its page."
        if server.is_managed and not is_up(server)
        else ""
    )


def why_not_loaded(server: Server, adapter: ModelVersion) -> str:
    """Why an adapter cannot be loaded on a server; "" if it can."""
    if server.is_managed:
        return why_not_up(server) or _does_not_fit(server, adapter)
    if server.kind not in LOADING:
        return f"{server} is neither vLLM nor SGLang, so adapters cannot be loaded there."
    if not server.adapters_at:
        return f"Adapters cannot be loaded on {server}: its adapter path is not set."
    if server.can("runtime_lora") is not True:
        return f"Adapters cannot be loaded on {server} at run time, according to the last probe."
    return f"{server} is down." if server.health == Health.DOWN else ""


def _does_not_fit(server: Server, adapter: ModelVersion) -> str:
    if not server.serving["lora_slots"]:
        return f"{server} has no LoRA slots. Stop it and add some."
    most, rank = server.serving["max_lora_rank"], rank_of(adapter)
    return (
        f"{adapter} has rank {rank}; {server} supports ranks up to {most}." if rank > most else ""
    )


def rank_of(adapter: ModelVersion) -> int:
    """The adapter's LoRA rank; 0 if its files do not say."""
    try:
        found = json.loads(read_file(adapter.artifact, "adapter_config.json")).get("r")
    except (ArtifactError, ValueError, AttributeError):
        return 0
    return found if isinstance(found, int) else 0


def adapter_name(version: ModelVersion) -> str:
    """An adapter's name on a server: derived from its content, so that one name never refers to
    two.
    """
    return f"{ADAPTER_PREFIX}{version.digest[:24]}"


def asked_as(server: Server, base_served_as: str, name: str) -> str:
    """The `model` in requests for an adapter loaded as `name`: SGLang answers with the bare base if
    given the name alone.
    """
    return f"{base_served_as}:{name}" if server.kind == ServerKind.SGLANG else name


def with_limits(
    engine: dict[str, Any],
    *,
    most_tokens: int = 0,
    most_usd: float = 0.0,
    tokens_per_call: int = 0,
    usd_per_call: float = 0.0,
) -> dict[str, Any]:
    """The engine with limits for its whole job; 0 means no limit. For an agent, each limit needs
    the usage to assume for a call that reports none. Raises ModelError if a limit cannot be
    enforced.
    """
    if engine["kind"] == "agent":
        _check_limit("tokens", "most_tokens", most_tokens, "tokens_per_call", tokens_per_call)
        _check_limit("cost", "most_usd", most_usd, "usd_per_call", usd_per_call)
        given = {
            "most_tokens": most_tokens,
            "most_usd": most_usd,
            "tokens_per_call": tokens_per_call,
            "usd_per_call": usd_per_call,
        }
        return engine | {name: value for name, value in given.items() if value}
    if tokens_per_call or usd_per_call:
        raise ModelError("Tokens and cost per call are for agents that are called over HTTP.")
    if not most_tokens and not most_usd:
        return engine
    if engine["kind"] == "transformers":
        raise ModelError(
            "Token and cost limits only apply to servers; these answers are generated in this"
            " installation."
        )
    if most_usd and engine["price"] is None:
        raise ModelError(
            f"No price is known for {engine['model']} on {engine['server_name']}, so a cost limit"
            " cannot be enforced. Enter the price on the server's page."
        )
    return engine | {"most_tokens": most_tokens, "most_usd": most_usd}


def _check_limit(what: str, name: str, limit: float, name_per_call: str, per_call: float) -> None:
    """Raises ModelError."""
    if limit and not per_call:
        raise ModelError(
            f"A limit on the {what} of an agent holds only if every call counts: enter the {what}"
            f" of one call at most (`{name_per_call}`), which counts where the agent does not"
            " report it."
        )
    if per_call and not limit:
        raise ModelError(f"The {what} per call (`{name_per_call}`) goes with a limit (`{name}`).")


def _in_process(asked: str) -> dict[str, Any]:
    return {"kind": "transformers", "asked": asked}


def _on(
    holder: Holder, model: str, asked: str, adapter: ModelVersion | None = None
) -> dict[str, Any]:
    server = holder.server
    return {
        "kind": "openai",
        "asked": asked,
        "server": server.pk,
        "server_name": server.name,
        "server_kind": server.kind,
        "base_url": server.base_url,
        "model": model,
        "dialect": holder.dialect,
        "adapter": adapter.pk if adapter else None,
        "managed": server.is_managed,
        "priced_as": holder.served_as,
        "price": price_as_json(price_at(server, holder.served_as)),
    }


def identity(engine: dict[str, Any]) -> dict[str, Any]:
    """The part of an engine that determines its answers, without how it was requested, its price
    and its limits.
    """
    return {
        name: engine[name]
        for name in ("kind", "server", "base_url", "model", "dialect", "adapter")
        if name in engine
    }


def same_as(engine: dict[str, Any]) -> str:
    """The argument of `choose` that gives another job the same engine."""
    return AUTO if engine["kind"] == "agent" else engine.get("server_name", IN_PROCESS)


def in_words(engine: dict[str, Any], version: ModelVersion) -> str:
    """The engine for pages and reports."""
    if engine and engine["kind"] == "agent":
        shape = Protocol(engine["protocol"]).label.partition(" (")[0]
        return (
            f"the agent itself at {engine['base_url']} ({shape}), {engine['at_once']} at a time, at"
            f" most {engine['timeout_s']} s per sample{_limits_in_words(engine)}"
        )
    if version.kind == ModelKind.AGENT:
        return f"the agent itself ({version.get_reached_by_display().lower()})"
    if not engine or engine["kind"] == "transformers":
        return "in this installation (transformers)"
    how = ", adapter loaded at run time" if engine.get("adapter") else ""
    how += HOW_ASKED.get(engine.get("dialect", ""), "")
    how += _limits_in_words(engine)
    if engine.get("managed"):  # its address changes with every start
        kind = "transformers" if engine.get("server_kind") == ServerKind.TRANSFORMERS else "vLLM"
        return f"managed server {engine['server_name']} ({kind}), model {engine['model']}{how}"
    return f"server {engine['server_name']} ({engine['base_url']}), model {engine['model']}{how}"


def _limits_in_words(engine: dict[str, Any]) -> str:
    said = f", at most {engine['most_tokens']:,} tokens" if engine.get("most_tokens") else ""
    said += (
        f" ({engine['tokens_per_call']:,} for a call that reports none)"
        if engine.get("tokens_per_call")
        else ""
    )
    said += f", at most ${engine['most_usd']:g}" if engine.get("most_usd") else ""
    return said + (
        f" (${engine['usd_per_call']:g} for a call that reports none)"
        if engine.get("usd_per_call")
        else ""
    )


def default_engine(version: ModelVersion) -> dict[str, Any]:
    """The engine of jobs without a choice: a served model's server, otherwise this process."""
    version = version.model
    return choose(version, IN_PROCESS if version.engine == Engine.TRANSFORMERS else AUTO)


def model_spec(version: ModelVersion, engine: dict[str, Any] | None = None) -> specs.Model:
    """The `model` part of a job's spec. Raises ModelError or ArtifactError with a sentence."""
    version = version.model
    if version.engine != Engine.TRANSFORMERS or (engine and engine["kind"] == "openai"):
        return specs.Model(base=version.base)
    folder = str(base_folder(version))
    adapter = str(local_path(version.artifact)) if version.artifact else None
    return specs.Model(base=folder, adapter=adapter)


def in_process(batch_size: int) -> specs.InProcess:
    return specs.InProcess(dtype=settings.FLYWHEEL_DTYPE, batch_size=batch_size)


def engine_spec(version: ModelVersion, batch_size: int, engine: dict[str, Any]) -> specs.Engine:
    """The `engine` part of a job's spec, from the result of `choose`. Raises ModelError if it may
    no longer be called.
    """
    version = version.model
    if engine["kind"] == "transformers":
        return in_process(batch_size)
    if engine["kind"] == "agent":
        return _agent_spec(version, engine)
    return asked_at(
        specs.Server,
        server_of(engine),
        model=engine["model"],
        dialect=engine["dialect"],
        template=template_of(version) if engine["dialect"] == Dialect.TEXT else "",
        price=price_from_json(engine["price"]) or Price(),
        most_tokens=engine.get("most_tokens", 0),
        most_usd=engine.get("most_usd", 0.0),
    )


def agent_endpoint(version: ModelVersion) -> specs.AgentEndpoint:
    """An agent that is called over HTTP, with the usual patience. Raises ModelError, RefusedKey."""
    return _agent_spec(version, _called(version, AUTO))


def _agent_spec(version: ModelVersion, engine: dict[str, Any]) -> specs.AgentEndpoint:
    checked_address(version.base_url, version.key_variable)
    return specs.AgentEndpoint(
        base_url=version.base_url,
        name=version.name,
        version=version.agent_version,
        protocol=version.protocol,
        api_key_env=version.key_variable,
        timeout_s=engine["timeout_s"],
        concurrency=engine["at_once"],
        allow_private=settings.FLYWHEEL_ALLOW_PRIVATE_URLS,
        prices=prices_of(version.project).own if engine.get("most_usd") else {},
        **{name: engine[name] for name in LIMITS if name in engine},
    )


def server_of(engine: dict[str, Any]) -> Server:
    """The server that a spec names (`server`, `server_name`, `base_url`, `managed`), in its current
    state. Raises ModelError if it may no longer be called."""
    rows = Server.objects.filter(pk=engine["server"])
    server = (rows if engine.get("managed") else rows.filter(base_url=engine["base_url"])).first()
    if server is None:
        raise ModelError(
            f"The server {engine['server_name']} was removed or has another address. Start it"
            " again."
        )
    check_askable(server)
    return server


def check_askable(server: Server) -> None:
    """Raises ModelError if this installation may not call the server now: the settings may have
    changed since it was added.
    """
    if reason := why_not_up(server):
        raise ModelError(reason)
    if not server.is_managed:
        checked_address(server.base_url, server.key_variable)


def asked_at(form: type[A], server: Server, **more: Any) -> A:
    """A server of the project in a job's spec."""
    private = may_be_private(server)
    return address_spec(form, server.base_url, server.key_variable, allow_private=private, **more)
