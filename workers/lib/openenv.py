"""A client of OpenEnv servers (github.com/meta-pytorch/OpenEnv): descriptions over HTTP, episodes
over a WebSocket. Light: no torch.

Over HTTP each /reset and /step creates a new environment, so an episode is one connection to /ws,
on which messages {"type", "data"} are answered one after the other: reset and step with {"type":
"observation", "data": {observation, reward, done}}.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import httpx2
from httpx2.websockets import HTTPXWSException

from workers.lib.addresses import PrivateNetworks
from workers.lib.keys import bearer, hidden, key_in
from workers.lib.outgoing import Bounds, RefusedAddress, TooMuch, async_client
from workers.lib.storable import storable

STEP, OBSERVE = "step", "observe"
MAX_BYTES = 4 * 1024 * 1024  # per answer
MAX_TOOLS, MAX_NAME = 500, 128
LOST = (RefusedAddress, httpx2.HTTPError, HTTPXWSException, TimeoutError, OSError)
AGENTS_FAULT = ("VALIDATION_ERROR", "EXECUTION_ERROR", "INVALID_JSON")
OBSERVED = {
    "type": "function",
    "function": {
        "name": OBSERVE,
        "description": "Gives the first observation of the episode. Call it first.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}


class OpenEnvError(Exception):
    """What the server did wrong, as a sentence. `code` is the server's own error code, if it gave
    one.
    """

    def __init__(self, text: str, code: str = "") -> None:
        super().__init__(text)
        self.code = code


def http_client(config: dict, *, allow_private: PrivateNetworks) -> httpx2.AsyncClient:
    """Raises RefusedKey."""
    timeout_s = float(config.get("timeout_s", 60))
    headers = bearer(key_in(config.get("api_key_env", "")))
    return async_client(
        allow_private=allow_private,
        base_url=config["url"].rstrip("/"),
        headers=headers,
        timeout=httpx2.Timeout(timeout_s, connect=10.0),
        bounds=Bounds(MAX_BYTES, timeout_s),
    )


async def tools_of(client: httpx2.AsyncClient) -> tuple[list[dict], bool]:
    """(tools in the format of chat completions, whether they are the server's own). A server
    without MCP tools gets the tools “step”, whose arguments are its action, and “observe”. Raises
    OpenEnvError, and errors of the client.
    """
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    answer = await _json(await client.post("mcp", json=asked))
    result = answer.get("result")
    if isinstance(result, dict) and isinstance(result.get("tools"), list):
        return [_tool(tool) for tool in result["tools"][:MAX_TOOLS]], True
    schema = (await _json(await client.get("schema"))).get("action")
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        raise OpenEnvError("its /schema names no action")
    properties = {name: value for name, value in schema["properties"].items() if name != "metadata"}
    parameters = {
        name: value
        for name, value in schema.items()
        if name not in ("title", "description", "properties")
    }
    about = str(schema.get("description") or "")
    step = {
        "name": STEP,
        "description": about.split("\n\n")[0] or "Takes an action.",
        "parameters": parameters | {"properties": properties},
    }
    return [OBSERVED, {"type": "function", "function": step}], False


def _tool(tool: Any) -> dict:
    """Raises OpenEnvError."""
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise OpenEnvError("it lists a tool without a usable name")
    schema = tool.get("inputSchema") or tool.get("input_schema")
    function = {"name": name, "description": str(tool.get("description") or "")}
    return {
        "type": "function",
        "function": function | {"parameters": schema if isinstance(schema, dict) else {}},
    }


async def _json(response: httpx2.Response) -> dict:
    if response.status_code != 200:
        raise OpenEnvError(f"{response.request.url.path} answered HTTP {response.status_code}")
    try:
        found = json.loads(response.content)
    except (ValueError, RecursionError) as error:
        raise OpenEnvError(
            f"{response.request.url.path} answered with something that is not JSON"
        ) from error
    if not isinstance(found, dict):
        raise OpenEnvError(
            f"{response.request.url.path} answered with something that is not an object"
        )
    return found


class Session:
    """One episode. The connection lives in a separate task, since it must be closed where it was
    opened.
    """

    def __init__(self, config: dict, *, allow_private: PrivateNetworks) -> None:
        """Raises RefusedKey."""
        self.http = http_client(config, allow_private=allow_private)
        self.timeout_s, self.key = (
            float(config.get("timeout_s", 60)),
            key_in(config.get("api_key_env", "")),
        )
        url = httpx2.URL(config["url"].rstrip("/") + "/ws")
        self.url = str(url.copy_with(scheme="wss" if url.scheme == "https" else "ws"))
        self._asked: asyncio.Queue[tuple[dict, asyncio.Future] | None] = asyncio.Queue()
        self._task: asyncio.Task | None = None

    async def ask(self, kind: str, data: dict) -> dict:
        """{"observation", "reward", "done"}. Raises OpenEnvError, and the errors in LOST."""
        if self._task is None:
            self._task = asyncio.create_task(self._talk())
        future: asyncio.Future = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(({"type": kind, "data": data}, future))
        async with asyncio.timeout(self.timeout_s):
            await asyncio.wait({future, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if not future.done():
            error = self._task.exception()
            raise (
                error
                if isinstance(error, (*LOST, OpenEnvError))
                else OpenEnvError("it ended the connection")
            )
        return _observed(future.result(), self.key)

    async def _talk(self) -> None:
        async with self.http.websocket(self.url, max_message_size_bytes=MAX_BYTES) as socket:
            while (item := await self._asked.get()) is not None:
                message, future = item
                await socket.send_text(json.dumps(message))
                text = await socket.receive_text(timeout=self.timeout_s)
                if not future.done():
                    future.set_result(text)
            with suppress(*LOST):
                await socket.send_text(json.dumps({"type": "close"}))

    async def aclose(self) -> None:
        """Never raises for what the server does."""
        if self._task is not None:
            self._asked.put_nowait(None)
            with suppress(Exception):
                async with asyncio.timeout(5.0):
                    await asyncio.wait({self._task})
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.http.aclose()


def _observed(text: str, key: str) -> dict:
    """Raises OpenEnvError."""
    try:
        answer = json.loads(hidden(text, key))
    except (ValueError, RecursionError) as error:
        raise OpenEnvError("it answered with something that is not JSON") from error
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict):
        raise OpenEnvError("its answer has no data")
    if answer.get("type") == "error":
        raise OpenEnvError(storable(str(data.get("message")))[:500], str(data.get("code")))
    if not isinstance(data.get("observation"), dict):
        raise OpenEnvError("its answer has no observation")
    return {
        "observation": data["observation"],
        "reward": data.get("reward"),
        "done": bool(data.get("done")),
    }


def error_text(error: BaseException) -> str:
    """The text of an error for agents and people."""
    return (
        storable(str(error))
        if isinstance(error, OpenEnvError | RefusedAddress | TooMuch)
        else type(error).__name__
    )
