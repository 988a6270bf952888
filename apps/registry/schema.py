"""Request and response bodies of the API for servers and model versions: used for validation, for
the OpenAPI schema and for responses.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from apps.core.models import Project
from apps.core.openapi import LINE
from apps.core.operations import Name
from apps.registry.models import (
    Dialect,
    Health,
    ModelKind,
    ModelVersion,
    Protocol,
    Reach,
    Server,
    ServerKind,
)
from apps.registry.prices import LARGEST, MOST_PRICES
from apps.registry.prompt_exports import prompt_of
from apps.registry.server_states import STATES, state_of
from workers.lib.prompts import Prompt
from workers.lib.template_check import TemplateCheck
from workers.lib.typed import FormError, convert, json_schema, plain
from workers.lib.vllm import DTYPES, RANKS

Line = Annotated[str, Meta(max_length=500, pattern=LINE)]
Short = Annotated[str, Meta(max_length=200, min_length=1, pattern=LINE)]
Folder = Annotated[str, Meta(max_length=500, min_length=1, pattern=LINE)]
Dollars = Annotated[float, Meta(ge=0, le=LARGEST)]
Prices = Annotated[
    dict[
        Annotated[str, Meta(max_length=200, min_length=1, pattern=LINE)],
        Annotated[list[Dollars | None], Meta(min_length=2, max_length=4)],
    ],
    Meta(
        max_length=MOST_PRICES,
        description=(
            "USD per million tokens: {model: [input, output]}, with the prices of tokens read from"
            " a cache and written to one behind them if they have their own; “*” is all other"
            " models"
        ),
    ),
]
Variable = Annotated[str, Meta(max_length=80, pattern=LINE)]
Kind = Literal["vllm", "sglang", "openai"]
Started = Literal["vllm", "transformers"]  # the kinds of managed servers
Style = Literal["native", "text", "responses"]


Value = bool | int | float | Annotated[str, Meta(max_length=40)]


class Managed(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a managed server serves. `base`: the id of a base model. `engine`: vLLM, or
    transformers, which needs no GPU. `context` 0: as the model has; `lora_slots` 0: no adapters.
    """

    base: int
    engine: Started = "vllm"
    dtype: Literal[DTYPES] = "auto"  # type: ignore[valid-type]
    context: int = 0
    lora_slots: int = 4
    max_lora_rank: Literal[RANKS] = 16  # type: ignore[valid-type]
    options: dict[str, Value] = {}


class ManagedChanges(Struct, forbid_unknown_fields=True, kw_only=True):
    base: int | UnsetType = UNSET
    engine: Started | UnsetType = UNSET
    dtype: Literal[DTYPES] | UnsetType = UNSET  # type: ignore[valid-type]
    context: int | UnsetType = UNSET
    lora_slots: int | UnsetType = UNSET
    max_lora_rank: Literal[RANKS] | UnsetType = UNSET  # type: ignore[valid-type]
    options: dict[str, Value] | UnsetType = UNSET


class NewServer(Struct, forbid_unknown_fields=True, kw_only=True):
    """`base_url` of one that somebody else runs, or `managed` for one that a worker starts."""

    name: Name
    base_url: Line = ""
    managed: Managed | None = None
    kind: Kind = "openai"
    key_variable: Variable = ""
    dialect: Style = "native"
    adapters_at: Line = ""
    prices: Prices = {}


class ServerChanges(Struct, forbid_unknown_fields=True, kw_only=True):
    name: Name | UnsetType = UNSET
    managed: ManagedChanges | UnsetType = UNSET
    base_url: Line | UnsetType = UNSET
    kind: Kind | UnsetType = UNSET
    key_variable: Variable | UnsetType = UNSET
    dialect: Style | UnsetType = UNSET
    adapters_at: Line | UnsetType = UNSET
    prices: Prices | UnsetType = UNSET


class Endpoint(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="endpoint"):
    """A model that a server has. `parent`: the id of the base model whose weights it has."""

    name: Name
    server: Name
    served_as: Short
    dialect: Style | Literal[""] = ""
    parent: int | None = None


class Agent(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="agent"):
    """A whole agent whose loop runs elsewhere. `base_url`, `key_variable` and `protocol` (of what
    it is sent; chat completions where it is empty) only where it is called over HTTP."""

    name: Name
    agent_version: Short
    reached_by: Literal["http", "ci", "traces", "pull"] = "ci"
    base_url: Line = ""
    key_variable: Variable = ""
    protocol: Literal["", "chat", "responses", "gym"] = ""


class Base(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="base"):
    """A transformers folder on the server, under one of FLYWHEEL_MODEL_FOLDERS."""

    name: Name
    folder: Folder


class Adapter(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="adapter"):
    """A PEFT folder on the server, under one of FLYWHEEL_MODEL_FOLDERS. `parent`: the id of its
    base model. `confirm_base`: it was trained on this base, although its configuration names
    another."""

    name: Name
    folder: Folder
    parent: int
    confirm_base: bool = False


class NewPrompt(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="kind", tag="prompt"):
    """A prompt version: what `prompt` says stands in place of the environment's own system prompt,
    examples, tool descriptions and sampling; what it leaves out stays. It may also be a prompt as
    Langfuse or LangSmith export it. `on`: the id of a model version, or of the prompt version that
    this one changes.
    """

    name: Name
    on: int
    prompt: Prompt
    notes: Annotated[str, Meta(max_length=2000, pattern=r"\A[^\x00\ud800-\udfff]*\Z")] = ""


NewVersion = Endpoint | Agent | Base | Adapter | NewPrompt
FORMS = (Endpoint, Agent, Base, Adapter, NewPrompt)


def registration(data: Any, project: Project) -> tuple[str, dict[str, Any]]:
    """(kind, arguments of its action). Raises FormError."""
    if isinstance(data, dict) and data.get("kind") == "prompt" and "prompt" in data:
        data = data | {"prompt": prompt_of(data["prompt"])}
    fields = plain(convert(data, NewVersion))
    kind = fields.pop("kind")
    if "server" in fields:
        server = Server.objects.filter(project=project, name=fields["server"]).first()
        if server is None:
            raise FormError("server", "must be the name of a server of this project")
        fields["server"] = server
    if fields.get("parent") is not None:
        fields["parent"] = _base(project, fields["parent"], "parent")
    if "on" in fields:
        fields["on"] = _version(project, fields["on"])
    return kind, fields


def _version(project: Project, given: int) -> ModelVersion:
    found = (
        ModelVersion.objects.filter(project=project, pk=given).first()
        if 0 < given < 2**63
        else None
    )
    if found is None:
        raise FormError("on", "must be the id of a model version of this project")
    return found


ONLY_OTHERS = ("base_url", "kind", "key_variable", "adapters_at")
OF_MANAGED = "is not known of a managed server"


def managed_fields(data: Any, given: dict[str, Any], project: Project) -> dict[str, Any]:
    """The submitted fields for `managed.add_managed` and `edit_managed`. Raises FormError."""
    for name in ONLY_OTHERS:
        if name in data:
            raise FormError(name, OF_MANAGED)
    serving = given.pop("managed", None) or {}
    fields = {name: value for name, value in given.items() if name not in ONLY_OTHERS} | serving
    if "engine" in serving:
        fields["kind"] = fields.pop("engine")
    if "base" in serving:
        fields["base"] = _base(project, serving["base"], "managed.base")
    return fields


def _base(project: Project, pk: int, path: str) -> ModelVersion:
    among = ModelVersion.objects.filter(project=project, kind=ModelKind.BASE)
    found = among.filter(pk=pk).first() if 0 < pk < 2**63 else None
    if found is None:
        raise FormError(path, "must be the id of a base model of this project")
    return found


def managed_json(server: Server, *, log: bool) -> dict[str, Any] | None:
    if not server.is_managed:
        return None
    run = server.runs.first()
    state = state_of(run)
    return (
        {"base": server.base_id, "engine": server.kind, **server.serving}
        | {
            "state": state.name,
            "detail": state.sentence,
            "restarts": run.restarts if run else 0,
            "up_since": run.up_at if run and state.name == "up" else None,
        }
        | ({"log": run.tail if run else []} if log else {})
    )


def server_json(server: Server, *, log: bool = True) -> dict[str, Any]:
    """`log`: include the last lines of a managed server's log; lists leave them out."""
    return {
        "name": server.name,
        "kind": server.kind,
        "base_url": server.base_url,
        "managed": managed_json(server, log=log),
        "key_variable": server.key_variable,
        "dialect": server.dialect,
        "adapters_at": server.adapters_at,
        "prices": server.prices,
        "health": server.health,
        "health_detail": server.health_detail,
        "checked_at": server.checked_at,
        "models": server.served,
        "capabilities": server.capabilities,
        "probed_model": server.probed_model,
        "probed_at": server.probed_at,
        "versions": [version.pk for version in server.model_versions.order_by("pk")],
    }


def version_json(version: ModelVersion) -> dict[str, Any]:
    return {
        "id": version.pk,
        "model": str(version),
        "name": version.name,
        "version": version.version,
        "kind": version.kind,
        "digest": version.digest,
        "base": version.base,
        "parent": version.parent_id,
        "server": version.server.name if version.server else None,
        "served_as": version.served_as,
        "dialect": version.dialect,
        "agent_version": version.agent_version,
        "reached_by": version.reached_by,
        "protocol": version.protocol,
        "base_url": version.base_url,
        "artifact": version.artifact_id,
        "prompt": version.prompt,
        "chat_template": template_json(version.chat_template),
        "notes": version.notes,
        "lineage": version.lineage,
        "created_at": version.created_at,
    }


def template_json(template: TemplateCheck | None) -> dict[str, Any] | None:
    if template is None:
        return None
    return {
        "tools": template.tools,
        "problem": template.problem,
        "turns": template.turns,
        "bridges": template.bridges,
        "separate_rows": template.breaks,
    }


# OpenAPI

STRING, TIME = {"type": "string"}, {"type": ["string", "null"], "format": "date-time"}
SERVER = {
    "type": "object",
    "required": ["name", "kind", "base_url", "health", "models", "capabilities"],
    "properties": {
        "name": STRING,
        "kind": {"enum": ServerKind.values},
        "base_url": STRING,
        "managed": {
            "type": ["object", "null"],
            "description": (
                "Of a server that a worker runs: what it serves, its state, and the last lines of"
                " its log"
            ),
            "properties": {
                **json_schema(Managed)["properties"],
                "state": {"enum": STATES},
                "detail": STRING,
                "restarts": {"type": "integer"},
                "up_since": TIME,
                "log": {"type": "array", "items": STRING},
            },
        },
        "key_variable": STRING,
        "dialect": {"enum": Dialect.values},
        "adapters_at": STRING,
        "prices": {
            "type": "object",
            "additionalProperties": {"type": "array", "items": {"type": ["number", "null"]}},
        },
        "health": {"enum": Health.values},
        "health_detail": STRING,
        "checked_at": TIME,
        "models": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": STRING,
                    "context": {"type": ["integer", "null"]},
                    "parent": STRING,
                },
            },
        },
        "capabilities": {
            "type": "object",
            "description": (
                "chat, tools, responses (the Responses API), logprobs, token_ids, runtime_lora,"
                " lora_slots, context, answer_ms (of a test call): what the last probe found out;"
                " `value` is null where it stays unknown, `how` says why"
            ),
            "additionalProperties": {
                "type": "object",
                "properties": {"value": {"type": ["boolean", "integer", "null"]}, "how": STRING},
            },
        },
        "probed_model": STRING,
        "probed_at": TIME,
        "versions": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "Model versions that use it",
        },
    },
}
VERSION = {
    "type": "object",
    "required": ["id", "model", "name", "version", "kind", "digest"],
    "properties": {
        "id": {"type": "integer"},
        "model": {"type": "string", "description": "What pages call it"},
        "name": STRING,
        "version": {"type": "integer"},
        "kind": {"enum": ModelKind.values},
        "digest": STRING,
        "base": STRING,
        "parent": {"type": ["integer", "null"]},
        "server": {"type": ["string", "null"]},
        "served_as": STRING,
        "dialect": {"enum": [*Dialect.values, ""]},
        "agent_version": STRING,
        "reached_by": {"enum": [*Reach.values, ""]},
        "protocol": {"enum": [*Protocol.values, ""]},
        "base_url": STRING,
        "artifact": {"type": ["string", "null"]},
        "prompt": json_schema(Prompt) | {"description": "Of a prompt version; {} of all others"},
        "chat_template": {
            "type": ["object", "null"],
            "description": (
                "Of the base model, found out when it was registered: how tools are written for it"
                " (native, text; empty: not at all, see problem), and in words how its episodes of"
                " several turns are trained. Where turns are bridged (by flywheel, or by a renderer"
                " of the package renderers) or become separate rows (with the reason) instead of"
                " being joined by prefix: tools, user, thinking_tools, thinking_user, after what"
                " they come. Null where unknown"
            ),
            "properties": {
                "tools": {"enum": ["native", "text", ""]},
                "problem": STRING,
                "turns": STRING,
                "bridges": {"type": "object", "additionalProperties": STRING},
                "separate_rows": {"type": "object", "additionalProperties": STRING},
            },
        },
        "notes": STRING,
        "changes": {
            "type": "array",
            "description": (
                "Of one prompt version: how it differs from what it was made from, line by line"
            ),
            "items": {
                "type": "object",
                "properties": {"kind": {"enum": ["same", "gone", "new", "skip"]}, "line": STRING},
            },
        },
        "lineage": {"type": "object"},
        "created_at": {"type": "string", "format": "date-time"},
    },
}
NEW_SERVER = json_schema(NewServer)
NEW_VERSION = {"oneOf": [json_schema(form) for form in FORMS]}
EXAMPLE_MANAGED = {
    "name": "local",
    "dialect": "text",
    "managed": {"base": 12, "engine": "transformers", "lora_slots": 4, "max_lora_rank": 16},
}
EXAMPLE_SERVER = {"name": "gpu-1", "kind": "vllm", "base_url": "http://gpu-1:8000/v1"}
EXAMPLE_VERSIONS = {
    "A served model": {
        "kind": "endpoint",
        "name": "qwen3-8b",
        "server": "gpu-1",
        "served_as": "Qwen/Qwen3-8B",
    },
    "An adapter trained elsewhere": {
        "kind": "adapter",
        "name": "support-lora",
        "parent": 12,
        "folder": "/var/lib/flywheel/models/support-lora",
    },
    "A prompt version": {
        "kind": "prompt",
        "name": "support-prompt",
        "on": 12,
        "prompt": {
            "system_prompt": "Close a ticket only when the customer says so.",
            "temperature": 0.2,
        },
    },
    "An agent in CI": {"kind": "agent", "name": "support-agent", "agent_version": "3f2a9c1"},
    "An agent that waits for work": {
        "kind": "agent",
        "name": "support-agent",
        "agent_version": "3f2a9c1",
        "reached_by": "pull",
    },
    "An agent that is called": {
        "kind": "agent",
        "name": "support-agent",
        "agent_version": "3f2a9c1",
        "reached_by": "http",
        "base_url": "https://agent.example.com/v1",
        "protocol": "chat",
    },
}
