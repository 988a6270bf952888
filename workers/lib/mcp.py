"""A client of the Model Context Protocol over streamable HTTP: sessions, listing tools, calling
them. Light: no torch.

A request is a POST with one JSON-RPC message; its answer is JSON, or an event in a stream of
server-sent events. (Model Context Protocol, revision 2025-06-18, “Transports” and “Tools”.)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from workers.lib.addresses import PrivateNetworks
from workers.lib.keys import bearer, hidden, key_in, refusal
from workers.lib.outgoing import Bounds, RefusedAddress, TooMuch, async_client
from workers.lib.storable import storable

REVISION = "2025-06-18"
ACCEPTED = {"Accept": "application/json, text/event-stream"}
SESSION = "Mcp-Session-Id"
RESPONDS_S = 10.0  # to a ping
MAX_BYTES = 4 * 1024 * 1024  # per answer
MAX_TOOLS, MAX_PAGES, MAX_NAME = 500, 50, 128


class McpError(Exception):
    """An error of the server, or an error of the caller that it reports, as a sentence."""


class McpClient:
    """One session with a server. Its state is `session` and `revision`, both "" before the first
    request.
    """

    def __init__(
        self, config: dict, *, allow_private: PrivateNetworks, session: str = "", revision: str = ""
    ) -> None:
        """Raises RefusedKey."""
        self.url, self.timeout_s = config["url"], float(config.get("timeout_s", 60))
        self.session, self.revision, self.number = session, revision, 0
        self.about: dict = {}  # the server's name and version, once the session has begun
        self.key = key_in(config.get("api_key_env", ""))
        timeout = httpx2.Timeout(self.timeout_s, connect=min(10.0, self.timeout_s))
        headers, bounds = ACCEPTED | bearer(self.key), Bounds(MAX_BYTES, self.timeout_s)
        self.http = async_client(
            allow_private=allow_private, bounds=bounds, headers=headers, timeout=timeout
        )

    async def tools(self) -> list[dict]:
        """All tools in the format of chat completions. Raises McpError, RefusedAddress,
        httpx2.HTTPError, TimeoutError.
        """
        found: list[dict] = []
        cursor: Any = None
        for _ in range(MAX_PAGES):
            page = await self.request("tools/list", {"cursor": cursor} if cursor else {})
            given = page.get("tools")
            found += [_chat_tool(tool) for tool in given] if isinstance(given, list) else []
            cursor = page.get("nextCursor")
            if not cursor or len(found) > MAX_TOOLS:
                break
        if len(found) > MAX_TOOLS:
            raise McpError(f"it has more than {MAX_TOOLS} tools")
        return found

    async def request(self, method: str, params: dict) -> dict:
        """The result of a request; the session is begun before the first one. Raises like
        `tools`.
        """
        if not self.revision:
            about = {"name": "flywheel", "version": "1"}
            asked = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": about}
            said = await self._ask("initialize", asked)
            self.revision, self.about = (
                str(said.get("protocolVersion") or REVISION),
                said.get("serverInfo") or {},
            )
            await self._send({"method": "notifications/initialized"})
        return await self._ask(method, params)

    async def _ask(self, method: str, params: dict) -> dict:
        self.number += 1
        answer = await self._send({"id": self.number, "method": method, "params": params})
        error, result = answer.get("error"), answer.get("result")
        if error is not None:
            said = error.get("message") if isinstance(error, dict) else error
            raise McpError(f"{method}: {str(said)[:300]}")
        if not isinstance(result, dict):
            raise McpError(f"{method} gave no result")
        return result

    async def _send(self, message: dict) -> dict:
        """The answer to a request; {} for a notification."""
        headers = {SESSION: self.session} if self.session else {}
        headers |= {"MCP-Protocol-Version": self.revision} if self.revision else {}
        async with (
            asyncio.timeout(self.timeout_s),
            self.http.stream(
                "POST", self.url, json={"jsonrpc": "2.0"} | message, headers=headers
            ) as response,
        ):
            if not response.is_success:
                raise McpError(_refusal(response.status_code, self.key))
            self.session = response.headers.get(SESSION, self.session)
            if "id" not in message:
                return {}
            try:
                async for text in _messages(response):
                    for found in _objects(hidden(text, self.key)):
                        if found.get("id") == message["id"] and "method" not in found:
                            return found
            except TooMuch as error:
                raise McpError(f"it answered with {error}") from error
        raise McpError("it ended without an answer")

    async def responds(self) -> bool:
        """Whether the server currently answers a ping in this session, even with an error."""
        try:
            async with asyncio.timeout(RESPONDS_S):
                await self.request("ping", {})
        except McpError:
            return True
        except (RefusedAddress, httpx2.HTTPError, TimeoutError):
            return False
        return True

    async def end(self) -> None:
        """End the session, if the server has sessions. Never raises for what the server does."""
        try:
            if self.session:
                async with asyncio.timeout(self.timeout_s):
                    await self.http.delete(self.url, headers={SESSION: self.session})
        except (RefusedAddress, httpx2.HTTPError, TimeoutError):
            pass  # an unused session expires
        finally:
            await self.http.aclose()


async def _messages(response: httpx2.Response) -> AsyncIterator[str]:
    """The whole body, or the data of each event as it arrives. Raises TooMuch."""
    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
        yield (await response.aread()).decode(errors="replace")
        return
    async for event in httpx2.EventSource(response, max_event_size=MAX_BYTES):
        if event.data:  # an event without data only opens the stream
            yield event.data


def _objects(text: str) -> list[dict]:
    """The JSON-RPC messages in a text: one, or a batch. Raises McpError."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise McpError("it answered with something that is not JSON") from error
    return [
        item for item in (found if isinstance(found, list) else [found]) if isinstance(item, dict)
    ]


def _refusal(status: int, key: str) -> str:
    if status in (401, 403):
        return f"it {refusal(key)} (HTTP {status})"
    return f"it answered HTTP {status}" + (
        ": the session is over, or no MCP server is there" if status == 404 else ""
    )


def _chat_tool(tool: Any) -> dict:
    """Raises McpError."""
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        raise McpError("it lists a tool without a usable name")
    schema = tool.get("inputSchema")
    function = {"name": name, "description": str(tool.get("description") or "")}
    return {
        "type": "function",
        "function": function | {"parameters": schema if isinstance(schema, dict) else {}},
    }


def observed(result: dict) -> str:
    """The part of a tool's result that an agent sees: its texts, a note about other content, or its
    structured content.
    """
    content = result.get("content")
    parts = (
        [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    )
    texts = [
        (
            str(part.get("text", ""))
            if part.get("type") == "text"
            else f"[{str(part.get('type'))[:40]}]"
        )
        for part in parts
    ]
    if not texts and "structuredContent" in result:
        texts = [json.dumps(result["structuredContent"], ensure_ascii=False)]
    return storable("\n".join(texts))


def error_text(error: Exception) -> str:
    """The text of a request's error for agents and people."""
    return (
        storable(str(error))
        if isinstance(error, McpError | RefusedAddress)
        else type(error).__name__
    )
