"""Whether there is a server of the right kind at an address, before anything depends on it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import httpx2
from django.conf import settings

from apps.core import outgoing_keys
from apps.environments.models import Environment, EnvironmentKind
from workers.lib.addresses import PrivateNetworks
from workers.lib.environments.gym_tools import described_tools
from workers.lib.keys import RefusedKey, bearer
from workers.lib.mcp import McpClient, McpError
from workers.lib.openenv import OpenEnvError, http_client, tools_of
from workers.lib.outgoing import Bounds, RefusedAddress, check_base_url, check_url, client

TIMEOUT_S = 10.0
UNKNOWN = "unknown"
SHOWN = 20  # names of tools
MAX_BYTES = 256 * 1024
QUESTION = {"verify_responses": []}


@dataclass(frozen=True)
class Found:
    """`ok`, and a sentence for a person either way; `field` is the affected one. `tools` are those
    that the server names.
    """

    ok: bool
    sentence: str
    field: str = "url"
    tools: tuple[dict, ...] = ()
    by_mcp: bool = False  # of an OpenEnv server: whether the tools are its own


def test(
    url: str,
    *,
    allow_private: PrivateNetworks,
    api_key_env: str = "",
    operator: bool = True,
    kind: str = EnvironmentKind.REMOTE,
) -> Found:
    """Asks a resources server for the metrics of no rollouts, an MCP server for its tools: both
    without side effects.

    Never raises because of the server. `operator`: whether an operator asks (outgoing_keys.key_of).
    """
    try:
        check = check_url if kind == EnvironmentKind.MCP else check_base_url
        base = check(url, allow_private=allow_private)
        key = outgoing_keys.key_of(api_key_env, base.host, operator=operator)
        if kind == EnvironmentKind.MCP:
            config = {"url": str(base), "api_key_env": api_key_env, "timeout_s": TIMEOUT_S}
            return _listed(asyncio.run(_tools(config, allow_private)))
        if kind == EnvironmentKind.OPENENV:
            return asyncio.run(
                _openenv(
                    {"url": str(base), "api_key_env": api_key_env, "timeout_s": TIMEOUT_S},
                    allow_private,
                )
            )
        bounds = Bounds(MAX_BYTES, TIMEOUT_S)
        with client(
            allow_private=allow_private, bounds=bounds, headers=bearer(key), timeout=TIMEOUT_S
        ) as asked:
            response = asked.post(f"{str(base).rstrip('/')}/aggregate_metrics", json=QUESTION)
            found = _read(response.status_code, response.content, bool(key))
            return (
                replace(found, **_with_tools(asked, str(base).rstrip("/"), found.sentence))
                if found.ok
                else found
            )
    except OpenEnvError as error:
        return Found(False, f"This is not a usable OpenEnv server: {error}.")
    except RefusedKey as error:
        return Found(False, str(error), "api_key_env")
    except RefusedAddress as error:
        return Found(False, str(error))
    except McpError as error:
        return Found(False, f"This is not a usable MCP server: {error}.")
    except (httpx2.TimeoutException, TimeoutError):
        return Found(
            False,
            f"No answer within {TIMEOUT_S:g} s. Is the server running, and may this machine"
            " reach it?",
        )
    except (httpx2.HTTPError, UnicodeError) as error:
        return Found(False, f"No connection: {str(error) or type(error).__name__}.")


def reported_by(environment: Environment) -> str:
    """The version reported by its server, and a hash of its tools or routes. “unknown” if it
    reports none or does not answer: then two answers cannot be distinguished. Never raises because
    of the server."""
    config, allow_private = environment.config, settings.FLYWHEEL_ALLOW_PRIVATE_URLS
    try:
        if environment.kind == EnvironmentKind.MCP:
            return asyncio.run(_mcp_version(config, allow_private))
        base = check_url(config["url"], allow_private=allow_private)
        key = outgoing_keys.key_of(config.get("api_key_env", ""), base.host)
        bounds = Bounds(MAX_BYTES, TIMEOUT_S)
        with client(
            allow_private=allow_private, bounds=bounds, headers=bearer(key), timeout=TIMEOUT_S
        ) as asked:
            response = asked.get(f"{str(base).rstrip('/')}/openapi.json")
            about = _json(response.content) if response.status_code == 200 else None
        return (
            _version(about.get("info"), about.get("paths")) if isinstance(about, dict) else UNKNOWN
        )
    except (
        RefusedKey,
        RefusedAddress,
        McpError,
        httpx2.HTTPError,
        TimeoutError,
        UnicodeError,
        OSError,
    ):
        return UNKNOWN


async def _mcp_version(config: dict, allow_private: PrivateNetworks) -> str:
    server = McpClient(config | {"timeout_s": TIMEOUT_S}, allow_private=allow_private)
    try:
        tools = await server.tools()
        return _version(server.about, tools)
    finally:
        await server.end()


def _version(about: Any, interface: Any) -> str:
    said = about if isinstance(about, dict) else {}
    name = " ".join(str(said[part])[:40] for part in ("name", "title", "version") if said.get(part))
    digest = hashlib.sha256(json.dumps(interface, sort_keys=True).encode()).hexdigest()[:12]
    return f"{name} ({digest})".strip()


async def _tools(config: dict, allow_private: PrivateNetworks) -> list[dict]:
    server = McpClient(config, allow_private=allow_private)
    try:
        return await server.tools()
    finally:
        await server.end()


async def _openenv(config: dict, allow_private: PrivateNetworks) -> Found:
    async with http_client(config, allow_private=allow_private) as http:
        tools, by_mcp = await tools_of(http)
    if not tools:
        return Found(False, "An OpenEnv server answers there, but it has no tools.")
    return Found(
        True, f"An OpenEnv server answers there. {_names(tools)}", tools=tuple(tools), by_mcp=by_mcp
    )


def _with_tools(asked: httpx2.Client, base: str, sentence: str) -> dict[str, Any]:
    """The tools that a resources server names, by itself (as Flywheel does) or by its routes; tasks
    then need not name them.
    """
    try:
        about = [_json(asked.get(f"{base}{path}").content) for path in ("/", "/openapi.json")]
    except (httpx2.HTTPError, TimeoutError):
        return {}
    tools = described_tools(*about)
    return {"tools": tuple(tools), "sentence": f"{sentence} {_names(tools)}"} if tools else {}


def _names(tools: list[dict]) -> str:
    names = ", ".join(tool["function"]["name"] for tool in tools[:SHOWN]) + (
        ", …" if len(tools) > SHOWN else ""
    )
    return f"Tools ({len(tools)}): {names}"


def _listed(tools: list[dict]) -> Found:
    if not tools:
        return Found(False, "An MCP server answers there, but it has no tools.")
    return Found(True, f"An MCP server answers there. {_names(tools)}", tools=tuple(tools))


def _read(status: int, body: bytes, with_key: bool) -> Found:
    if status in (401, 403):
        said = "refused the key" if with_key else "requires a key; enter the variable that holds it"
        return Found(False, f"The server {said} (HTTP {status}).", "api_key_env")
    if 300 <= status < 400:
        return Found(
            False, f"The server redirects elsewhere (HTTP {status}). Give the final address."
        )
    if status in (404, 405):
        return Found(
            False,
            f"Something answers there, but it has no /aggregate_metrics (HTTP {status}): no"
            " resources server.",
        )
    if status != 200:
        return Found(False, f"The server answered HTTP {status} to /aggregate_metrics.")
    if not isinstance(_json(body), dict):
        return Found(False, "The response is not a JSON object, so this is not a resources server.")
    return Found(True, "A resources server answers there.")


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None
