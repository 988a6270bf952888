"""The tools of a rollout, as MCP and as REST, and everything that clients send which they should
not.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from workers.lib.harness.tools import MAX_BYTES, Called, Refused, Reply, answer

MODERN, META = "2026-07-28", "io.modelcontextprotocol/"
OPEN = {f"{META}protocolVersion": MODERN, f"{META}clientCapabilities": {}}


def tool(name: str) -> dict:
    parameters = {"type": "object", "properties": {"id": {"type": "integer"}}}
    function = {"name": name, "description": "Closes.", "parameters": parameters}
    return {"type": "function", "function": function}


@dataclass
class Desk:
    """Closes tickets, but not number 0; more than two calls are too many."""

    ended: str = ""
    tools: list[dict] = field(default_factory=lambda: [tool("tickets.close"), tool("naïve")])
    called: list[tuple[str, dict]] = field(default_factory=list)

    async def call(self, name: str, args: dict) -> Called:
        if len(self.called) > 1:
            raise Refused(429, "Too many calls.")
        self.called.append((name, args))
        return Called("Error: no such ticket", True) if args == {"id": 0} else Called("Closed.")


def ask(
    body: Any = b"",
    *,
    method: str = "POST",
    path: str = "mcp",
    desk: Desk | None = None,
    **headers: str,
) -> Reply:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.run(answer(method, path, given, sent, desk or Desk()))


def said(reply: Reply) -> dict:
    return json.loads(reply.body)


def rpc(method: str, params: Any = None) -> dict:
    return {"jsonrpc": "2.0", "id": 7, "method": method} | ({"params": params} if params else {})


def modern(method: str, params: dict | None = None, **changes: str) -> Reply:
    """As the revision without sessions has it; `changes` of the headers."""
    headers = {"MCP_Protocol_Version": MODERN, "Mcp_Method": method}
    if params and "name" in params:
        headers["Mcp_Name"] = params["name"]
    return ask(rpc(method, {"_meta": OPEN} | (params or {})), **headers | changes)


def test_the_revision_without_sessions() -> None:
    found = said(modern("server/discover"))["result"]
    assert found["supportedVersions"][0] == MODERN and found["resultType"] == "complete"
    listed = said(modern("tools/list"))["result"]
    assert [item["name"] for item in listed["tools"]] == ["tickets.close", "naïve"]
    assert (listed["ttlMs"], listed["cacheScope"]) == (0, "private")
    done = said(modern("tools/call", {"name": "tickets.close", "arguments": {"id": 1}}))["result"]
    assert done["content"] == [{"type": "text", "text": "Closed."}] and done["isError"] is False
    named = modern("tools/call", {"name": "naïve"}, Mcp_Name="=?base64?bmHDr3Zl?=")
    assert said(named)["result"]["isError"] is False


@pytest.mark.parametrize("revision", ["2025-06-18", "2025-11-25"])
def test_the_revisions_that_begin_by_a_handshake(revision: str) -> None:
    begun = ask(rpc("initialize", {"protocolVersion": revision, "capabilities": {}}))
    found = said(begun)["result"]
    assert found["protocolVersion"] == revision and found["capabilities"] == {"tools": {}}
    assert "Mcp-Session-Id" not in begun.headers, "the address is the session"
    with_version = {"MCP_Protocol_Version": revision}
    noted = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert ask(noted, **with_version)[::2] == (202, b"")
    assert said(ask(rpc("ping"), path="/mcp/", **with_version))["result"] == {}
    listed = said(ask(rpc("tools/list"), **with_version))["result"]
    assert listed.keys() == {"tools"} and listed["tools"][0]["inputSchema"]["type"] == "object"
    desk = Desk()
    call = rpc("tools/call", {"name": "tickets.close", "arguments": {"id": 0}})
    done = said(ask(call, desk=desk, **with_version))["result"]
    assert done == {"content": [{"type": "text", "text": "Error: no such ticket"}], "isError": True}
    assert desk.called == [("tickets.close", {"id": 0})]
    for method in ("GET", "DELETE"):
        assert ask(method=method)[:2] == (405, {"Allow": "POST"})
    unknown = ask(rpc("initialize", {"protocolVersion": "2030-01-01", "capabilities": {}}))
    assert said(unknown)["result"]["protocolVersion"] == "2025-11-25"


def test_rest() -> None:
    listed = said(ask(method="GET", path="tools"))
    assert listed["tools"][0]["function"]["name"] == listed["flat"][0]["name"] == "tickets.close"
    assert listed["flat"][0]["type"] == "function" and "function" not in listed["flat"][0]
    done = ask({"id": 3}, path="tools/tickets.close")
    assert done.status == 200 and said(done) == {"output": "Closed.", "is_error": False}
    assert said(ask({"id": 0}, path="tools/tickets.close"))["is_error"] is True
    assert ask(path="tools/na%C3%AFve").status == 200, "no body: no arguments"


CLOSE = rpc("tools/call", {"name": "tickets.close", "arguments": {"id": 1}})
DEEP = b'{"a":' * 70 + b"1" + b"}" * 70
LARGE = b'{"a":"' + b"x" * MAX_BYTES + b'"}'
ON = {"path": "tools/tickets.close"}
M = {"MCP_Protocol_Version": MODERN}

# what is sent, and: the status, JSON-RPC's code (0: it is REST), words of the sentence
BAD: dict[str, tuple[dict, int, int, str]] = {
    "unknown tool": (
        {"body": {}, "path": "tools/rm"},
        404,
        0,
        "no tool “rm” in this rollout. It has: tickets.",
    ),
    "not JSON": ({"body": b"{", **ON}, 400, 0, "not JSON"),
    "not UTF-8": ({"body": b'{"a":"\xff"}', **ON}, 400, 0, "not JSON"),
    "NaN": ({"body": b'{"a": NaN}', **ON}, 400, 0, "not JSON"),
    "a list": ({"body": [1], **ON}, 422, 0, "must be a JSON object"),
    "too deep": ({"body": DEEP, **ON}, 400, 0, "The body is nested deeper than"),
    "too large": ({"body": LARGE, **ON}, 413, 0, "larger than 1 MiB"),
    "wrong method": ({"method": "GET", **ON}, 405, 0, "takes POST"),
    "put tools": ({"method": "PUT", "path": "tools"}, 405, 0, "takes GET"),
    "another path": ({"path": "state"}, 404, 0, "A rollout has mcp, tools"),
    "ended": ({"body": {}, "desk": Desk("It is over."), **ON}, 410, 0, "It is over."),
    "too many": (
        {"body": {}, "desk": Desk(called=[("a", {})] * 2), **ON},
        429,
        0,
        "Too many calls.",
    ),
    "mcp: unknown tool": ({"body": rpc("tools/call", {"name": "rm"})}, 200, -32602, "no tool “rm”"),
    "mcp: no name": ({"body": rpc("tools/call", {"a": 1})}, 200, -32602, "must be the name"),
    "mcp: arguments": (
        {"body": rpc("tools/call", {"name": "naïve", "arguments": [1]})},
        200,
        -32602,
        "an object",
    ),
    "mcp: not JSON": ({"body": b"{"}, 400, -32700, "not JSON"),
    "mcp: too deep": ({"body": DEEP}, 400, -32700, "The body is nested deeper than"),
    "mcp: too large": ({"body": LARGE}, 413, -32700, "larger than 1 MiB"),
    "mcp: a batch": ({"body": [CLOSE, CLOSE]}, 400, -32600, "batch"),
    "mcp: text": ({"body": "x"}, 400, -32600, "JSON-RPC 2.0"),
    "mcp: version 1": ({"body": {"id": 1, "method": "ping"}}, 400, -32600, "JSON-RPC 2.0"),
    "mcp: no method": ({"body": {"jsonrpc": "2.0", "id": 1}}, 400, -32600, "no “method”"),
    "mcp: null id": ({"body": CLOSE | {"id": None}}, 400, -32600, "“id”"),
    "mcp: params": ({"body": rpc("ping", [1])}, 400, -32600, "“params”"),
    "mcp: resources": ({"body": rpc("resources/list")}, 200, -32601, "resources/list"),
    "mcp: a page": ({"body": rpc("tools/list", {"cursor": "2"})}, 200, -32602, "no such page"),
    "mcp: accepts HTML": ({"body": CLOSE, "Accept": "text/html"}, 406, -32600, "application/json"),
    "mcp: ended": ({"body": CLOSE, "desk": Desk("It is over.")}, 410, -32000, "It is over."),
    "mcp: too many": (
        {"body": CLOSE, "desk": Desk(called=[("a", {})] * 2)},
        429,
        -32000,
        "Too many calls.",
    ),
    "mcp: other revision": (
        {"body": CLOSE, "MCP_Protocol_Version": "2031-01-01"},
        400,
        -32022,
        "Unsupported",
    ),
    "modern: no meta": ({"body": CLOSE, **M}, 400, -32602, "params._meta lacks"),
    "modern: handshake": (
        {"body": rpc("initialize", {"_meta": OPEN}), "Mcp_Method": "initialize", **M},
        404,
        -32601,
        "initialize",
    ),
    "modern: ping": (
        {"body": rpc("ping", {"_meta": OPEN}), "Mcp_Method": "ping", **M},
        404,
        -32601,
        "ping",
    ),
    "modern: method header": (
        {"body": rpc("tools/list", {"_meta": OPEN}), **M},
        400,
        -32020,
        "mcp-method",
    ),
    "modern: name header": (
        {
            "body": rpc("tools/call", {"_meta": OPEN, "name": "naïve"}),
            "Mcp_Method": "tools/call",
            "Mcp_Name": "tickets.close",
            **M,
        },
        400,
        -32020,
        "mcp-name",
    ),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_input_is_answered_with_a_sentence(case: str) -> None:
    sent, status, code, words = BAD[case]
    reply = ask(**sent)
    found = said(reply)
    error = found["error"] if code else {"code": 0, "message": found["detail"]}
    assert (reply.status, error["code"]) == (status, code) and words in error["message"]
