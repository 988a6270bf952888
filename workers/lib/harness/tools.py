"""The environment's tools on the state of one rollout, for any agent: by the Model Context Protocol
and by REST. Pure; light: no torch.

- `mcp`: MCP over streamable HTTP, in the revision without sessions (2026-07-28) and in the two
  before it, which begin by a handshake. A rollout's address is its session, so no other is opened.
- `tools`: GET lists them; `tools/NAME`: POST calls one with the arguments as JSON.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

from workers.lib.messages import MAX_DEPTH, TooDeep, flat_tool, read_json
from workers.lib.storable import storable_json

MiB = 2**20
MAX_BYTES = MiB  # of a request
MOST_CALLS = 1_000  # of tools in one rollout
TOO_MANY = f"This rollout has made the {MOST_CALLS:,} calls that it may."
REVISION = "2026-07-28"
HANDSHAKES = ("2025-06-18", "2025-11-25")  # revisions that begin by `initialize`
SERVER = {"name": "flywheel", "version": "1"}
META = "io.modelcontextprotocol/"
UNKNOWN_TOOL = "There is no tool “{}” in this rollout. It has: {}."
# JSON-RPC's codes, and those of MCP
NOT_JSON, INVALID, NO_METHOD, BAD_PARAMS = -32700, -32600, -32601, -32602
REFUSED, HEADERS_DIFFER, OTHER_REVISION = -32000, -32020, -32022
STATUS = {NO_METHOD: HTTPStatus.NOT_FOUND}  # in the revision without sessions; else 400


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Called(NamedTuple):
    """What a tool answered, and whether that is an error of it or of the call."""

    observation: str
    is_error: bool = False


class Refused(Exception):
    """The rollout does not run this call: an HTTP status and a sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


class Host(Protocol):
    """A rollout. `tools` are in the form of chat completions; `ended` says why it takes no more
    calls, "" while it does.
    """

    tools: Sequence[dict]
    ended: str

    async def call(self, name: str, args: dict) -> Called:
        """Runs one tool. Raises Refused."""


@dataclass(frozen=True)
class Asked:
    """A valid request to call a tool, and how its outcome is said."""

    name: str
    args: dict
    answered: Callable[[Called], Reply]
    refused: Callable[[int, str], Reply]


async def answer(
    method: str, path_rest: str, headers: Mapping[str, str], body: bytes, host: Host
) -> Reply:
    """The answer to any request below a rollout's address; `path_rest` is what follows it, such as
    “mcp” or “tools/NAME”.
    """
    read = asked(method, path_rest, headers, body, host.tools, host.ended)
    if isinstance(read, Reply):
        return read
    try:
        return read.answered(await host.call(read.name, read.args))
    except Refused as refusal:
        return read.refused(refusal.status, refusal.sentence)


def asked(
    method: str,
    path_rest: str,
    headers: Mapping[str, str],
    body: bytes,
    tools: Sequence[dict],
    ended: str = "",
) -> Asked | Reply:
    """The first half of `answer`, for those that call tools in their own way: the call that is
    asked for, or the whole answer.
    """
    path = path_rest.strip("/")
    if path == "mcp":
        sent = {name.lower(): value for name, value in headers.items()}
        return _mcp(method, sent, body, tools, ended)
    door, _, name = path.partition("/")
    if door != "tools":
        return _detail(404, "Not found. A rollout has mcp, tools and tools/NAME.")
    return _rest(method, unquote(name), body, tools, ended)


def names_of(tools: Sequence[dict]) -> list[str]:
    return [tool["function"]["name"] for tool in tools]


def _no_tool(name: str, tools: Sequence[dict]) -> str:
    return UNKNOWN_TOOL.format(name[:80], ", ".join(names_of(tools))[:2000] or "none")


# REST


def _rest(method: str, name: str, body: bytes, tools: Sequence[dict], ended: str) -> Asked | Reply:
    takes = "POST" if name else "GET"
    if method != takes:
        return _detail(405, f"This route takes {takes}.", {"Allow": takes})
    if ended:
        return _detail(410, ended)
    if not name:
        return _json(200, {"tools": list(tools), "flat": [flat_tool(tool) for tool in tools]})
    if name not in names_of(tools):
        return _detail(404, _no_tool(name, tools))
    try:
        args = _read(body) if body.strip() else {}
    except Refused as refusal:
        return _detail(refusal.status, refusal.sentence)
    if not isinstance(args, dict):
        return _detail(422, "The arguments must be a JSON object.")
    return Asked(
        name,
        args,
        lambda done: _json(200, {"output": done.observation, "is_error": done.is_error}),
        _detail,
    )


def _detail(status: int, sentence: str, headers: dict[str, str] | None = None) -> Reply:
    return _json(status, {"detail": sentence}, headers)


def _json(status: int, value: Any, headers: dict[str, str] | None = None) -> Reply:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Reply(status, {"Content-Type": "application/json"} | (headers or {}), text.encode())


def _read(body: bytes) -> Any:
    """Raises Refused."""
    if len(body) > MAX_BYTES:
        raise Refused(413, f"The body is larger than {MAX_BYTES // MiB} MiB.")
    try:
        return storable_json(read_json(body.decode()))
    except TooDeep:
        raise Refused(400, f"The body is nested deeper than {MAX_DEPTH} levels.") from None
    except ValueError as error:
        raise Refused(400, f"The body is not JSON: {error}.") from error


# MCP


class _Problem(Exception):
    """An error that the protocol has a code for. `status`: if it has one of its own."""

    def __init__(self, code: int, sentence: str, *, data: Any = None, status: int = 0) -> None:
        super().__init__(sentence)
        self.code, self.sentence, self.data, self.status = code, sentence, data, status


@dataclass(frozen=True)
class _Message:
    """One JSON-RPC request; `is_modern`: of the revision without sessions."""

    number: Any
    method: str
    params: dict
    is_modern: bool

    def result(self, value: dict) -> Reply:
        if self.is_modern:
            value = {"resultType": "complete", "_meta": {f"{META}serverInfo": SERVER}} | value
        return _json(200, {"jsonrpc": "2.0", "id": self.number, "result": value})

    def error(self, problem: _Problem) -> Reply:
        status = STATUS.get(problem.code, HTTPStatus.BAD_REQUEST) if self.is_modern else 200
        return _error(problem, problem.status or status, self.number)


def _error(problem: _Problem, status: int, number: Any = None) -> Reply:
    error = {"code": problem.code, "message": problem.sentence}
    error |= {"data": problem.data} if problem.data is not None else {}
    return _json(status, {"jsonrpc": "2.0", "id": number, "error": error})


def _mcp(
    method: str, headers: Mapping[str, str], body: bytes, tools: Sequence[dict], ended: str
) -> Asked | Reply:
    """No stream is opened (GET) and no session ended (DELETE): there are none."""
    if method != "POST":
        return Reply(405, {"Allow": "POST"}, b"")
    if not _takes_json(headers.get("accept", "")):
        return _error(_Problem(INVALID, "Accept must include application/json."), 406)
    try:
        found = _envelope(body)
    except _Problem as problem:
        return _error(problem, problem.status or 400)
    number = found.get("id")
    if ended:
        return _error(_Problem(REFUSED, ended), 410, number)
    try:
        is_modern = _revision(headers, found) == REVISION
    except _Problem as problem:
        return _error(problem, 400, number)
    if "method" not in found or "id" not in found:  # an answer, or a notification
        return Reply(202, {}, b"")
    message = _Message(number, found["method"], found.get("params") or {}, is_modern)
    try:
        if is_modern:
            _check_modern(message, headers)
        return _dispatch(message, tools)
    except _Problem as problem:
        return message.error(problem)


def _takes_json(accept: str) -> bool:
    kinds = {part.partition(";")[0].strip().lower() for part in accept.split(",")}
    return not accept or bool(kinds & {"application/json", "application/*", "*/*"})


def _envelope(body: bytes) -> dict:
    """One JSON-RPC message. Raises _Problem."""
    try:
        found = _read(body)
    except Refused as refusal:
        raise _Problem(NOT_JSON, refusal.sentence, status=refusal.status) from refusal
    if isinstance(found, list):
        raise _Problem(INVALID, "A batch is not taken: send each request by itself.")
    if not isinstance(found, dict) or found.get("jsonrpc") != "2.0":
        raise _Problem(INVALID, "The body must be one JSON-RPC 2.0 message, an object.")
    number, named = found.get("id", 0), found.get("method", "")
    if isinstance(number, bool) or not isinstance(number, str | int):
        raise _Problem(INVALID, "“id” must be text or a whole number.")
    if not isinstance(named, str) or not isinstance(found.get("params") or {}, dict):
        raise _Problem(INVALID, "“method” must be text, and “params” an object.")
    if "method" not in found and not {"result", "error"} & found.keys():
        raise _Problem(INVALID, "The message has no “method”.")
    return found


def _revision(headers: Mapping[str, str], found: dict) -> str:
    """What the request says that it is of; a header is required from 2025-06-18 on, but for the
    handshake, and those who send none are taken at their word. Raises _Problem.
    """
    said = headers.get("mcp-protocol-version", "").strip() or HANDSHAKES[0]
    if said not in (REVISION, *HANDSHAKES) and found.get("method") != "initialize":
        supported = [REVISION, *reversed(HANDSHAKES)]
        raise _Problem(
            OTHER_REVISION,
            f"Unsupported protocol version {said[:40]}. Supported: {', '.join(supported)}.",
            data={"supported": supported, "requested": said[:80]},
        )
    return said


def _check_modern(message: _Message, headers: Mapping[str, str]) -> None:
    """A request without a session says in itself what a handshake would have agreed on, and its
    headers repeat what balancers look at. Raises _Problem.
    """
    meta = message.params.get("_meta")
    wanted = [f"{META}protocolVersion", f"{META}clientCapabilities"]
    missing = [name for name in wanted if not isinstance(meta, dict) or name not in meta]
    if missing:
        raise _Problem(BAD_PARAMS, f"params._meta lacks {', '.join(missing)}.")
    said = {
        "mcp-protocol-version": meta[wanted[0]],
        "mcp-method": message.method,
    }
    if message.method == "tools/call" and "name" in message.params:
        said["mcp-name"] = message.params["name"]
    for name, value in said.items():
        if _decoded(headers.get(name)) != value:
            raise _Problem(HEADERS_DIFFER, f"The header {name} is not what the body says.")


def _decoded(value: str | None) -> str | None:
    """A header's text, which is in base64 if a header cannot hold it as it is."""
    if value is None or not (value.startswith("=?base64?") and value.endswith("?=")):
        return value
    try:
        return b64decode(value[9:-2], validate=True).decode()
    except ValueError:
        return None


def _dispatch(message: _Message, tools: Sequence[dict]) -> Asked | Reply:
    """Raises _Problem."""
    if message.method == "tools/list":
        return message.result(_listed(message, tools))
    if message.method == "tools/call":
        return _called(message, tools)
    if message.method == "server/discover" and message.is_modern:
        versions = [REVISION, *reversed(HANDSHAKES)]
        return message.result(
            {"supportedVersions": versions, "capabilities": {"tools": {}}} | _UNCACHED
        )
    if message.method == "initialize" and not message.is_modern:
        wanted = message.params.get("protocolVersion")
        agreed = wanted if wanted in HANDSHAKES else HANDSHAKES[-1]
        return message.result(
            {"protocolVersion": agreed, "capabilities": {"tools": {}}, "serverInfo": SERVER}
        )
    if message.method == "ping" and not message.is_modern:
        return message.result({})
    raise _Problem(NO_METHOD, f"There is no method “{message.method[:80]}” here.")


_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}


def _listed(message: _Message, tools: Sequence[dict]) -> dict:
    if message.params.get("cursor") is not None:
        raise _Problem(BAD_PARAMS, "There is no such page: all tools are on the first.")
    return {"tools": [_mcp_tool(tool["function"]) for tool in tools]} | (
        _UNCACHED if message.is_modern else {}
    )


def _mcp_tool(function: dict) -> dict:
    schema = function.get("parameters") or {}
    return {
        "name": function["name"],
        "description": function.get("description") or "",
        "inputSchema": {"type": "object"} | schema,
    }


def _called(message: _Message, tools: Sequence[dict]) -> Asked:
    """Raises _Problem."""
    name, args = message.params.get("name"), message.params.get("arguments")
    if not isinstance(name, str):
        raise _Problem(BAD_PARAMS, "params.name must be the name of a tool.")
    if name not in names_of(tools):
        raise _Problem(BAD_PARAMS, _no_tool(name, tools))
    if not isinstance(args, dict | None):
        raise _Problem(BAD_PARAMS, "params.arguments must be an object.")
    return Asked(
        name,
        args or {},
        lambda done: message.result(
            {
                "content": [{"type": "text", "text": done.observation}],
                "isError": done.is_error,
            }
        ),
        lambda status, sentence: message.error(_Problem(REFUSED, sentence, status=status)),
    )
