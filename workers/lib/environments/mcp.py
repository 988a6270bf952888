"""Tools of an MCP server (Model Context Protocol); our verifiers score what the agent did with
them. Light: no torch.

The tools are part of the spec, as the server listed them when it was connected, so that a hash
identifies a set of tools. Each episode has its own session with the server.
"""

from __future__ import annotations

import httpx2

from workers.lib.environments import EnvironmentFailed
from workers.lib.environments.episodes import ToolEnvironment, ToolEpisode, judged, tool_names
from workers.lib.environments.users import user_model
from workers.lib.errors import SpecError
from workers.lib.keys import key_in
from workers.lib.mcp import McpClient, McpError, error_text, observed
from workers.lib.outgoing import RefusedAddress
from workers.lib.specs.environment import Environment as EnvironmentSpec
from workers.lib.verifiers import Clients, Execution, Score, build

OPTIONS = {"url": str, "api_key_env": str, "timeout_s": (int, float), "tools": list, "user": str}


class Mcp(ToolEnvironment):
    """`config`: url, tools (as `McpClient.tools` lists them), and optionally timeout_s (60),
    api_key_env and user (“llm”: a model plays the users of tasks that have one).
    """

    def __init__(self, spec: EnvironmentSpec, *, clients: Clients | None = None) -> None:
        """Raises SpecError."""
        super().__init__(spec)
        self.config = spec.config
        for name, value in self.config.items():
            if name not in OPTIONS or not isinstance(value, OPTIONS[name]):
                raise SpecError(f"“environment.config.{name}” is unknown or of the wrong type.")
        url = httpx2.URL(self.config.get("url", ""))
        if url.scheme not in ("http", "https") or not url.host:
            raise SpecError("“environment.config.url” must begin with http:// or https://.")
        self.tools = self.config.get("tools") or []
        if not self.tools:
            raise SpecError("“environment.config.tools” is empty: the server has no tools.")
        key_in(self.config.get("api_key_env", ""))
        self.ask = user_model(spec, clients)
        self.allow_private, self.verifier = (
            spec.allow_private,
            build(spec.verifier, clients=clients),
        )

    def open(self, task: dict, state: dict | None = None) -> McpEpisode:
        return McpEpisode(self, task, state)


class McpEpisode(ToolEpisode):
    """The server's session is the state."""

    def __init__(self, environment: Mcp, task: dict, state: dict | None) -> None:
        super().__init__(environment, task, state)
        self.verifier = environment.verifier
        kept = {name: (state or {}).get(name, "") for name in ("session", "revision")}
        self.server = McpClient(environment.config, allow_private=environment.allow_private, **kept)
        self.client = self.server.http  # closed between the calls of the REST protocol

    def world(self) -> dict:
        return {"session": self.server.session, "revision": self.server.revision}

    async def run(self, tool: str, args: dict) -> Execution:
        if tool not in tool_names(self.tools):
            return self.refusal(tool, args, f"There is no tool {tool[:80]}.")
        try:
            result = await self.server.request("tools/call", {"name": tool, "arguments": args})
        except McpError as error:
            return self.refusal(tool, args, f"The tool did not answer ({error_text(error)}).")
        except (RefusedAddress, httpx2.HTTPError, TimeoutError) as error:
            if not await self.responds():
                raise EnvironmentFailed(
                    f"the MCP server does not answer ({error_text(error)})"
                ) from error
            return self.refusal(tool, args, f"The tool did not answer ({error_text(error)}).")
        text = observed(result)
        if result.get("isError"):
            return self.refusal(tool, args, text or "The tool failed.")
        return Execution(True, False, text, name=tool, args=args)

    async def responds(self) -> bool:
        return await self.server.responds()

    async def score(self) -> Score:
        return await judged(self.verifier, self.rollout())

    async def close(self) -> None:
        await self.server.end()
