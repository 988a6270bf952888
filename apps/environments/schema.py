"""What makes an environment: checked alike for the API and for pages."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from apps.environments.models import EnvironmentKind
from workers.lib.environments.packages.files import MAX_FILES
from workers.lib.typed import AnswerTokens, Temperature, Text, TopP

Kind = Literal[tuple(EnvironmentKind.values)]  # type: ignore[valid-type]


class NewHarness(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The agent's part and its limits. `tools` are for environments that run here."""

    system_prompt: Annotated[str, Meta(max_length=100_000)] = ""
    examples: list[dict[str, Any]] = []
    tools: list[dict[str, Any]] = []
    max_turns: Annotated[int, Meta(ge=1, le=200)] | None = None
    max_new_tokens: AnswerTokens = 512
    temperature: Temperature = 0.8
    top_p: TopP = 1.0


class NewEnvironment(Struct, forbid_unknown_fields=True, kw_only=True):
    """`verifier`: “name@version”; built-in environments come with one, a remote one scores itself.
    `builtin`: for kind “builtin”. `nearest`: a replay answers unknown arguments with the nearest
    recorded call; `user`: who answers the agent in tasks with a user, “script” (what is stored) or
    “llm” (the project's judge). `url`, `api_key_env` (the name of one of Flywheel's variables),
    `timeout_s`: for kinds “remote” and “mcp”, whose server is called first. `success_at`,
    `turn_rewards` (its answers to /verify have `step_rewards`): for kind “remote”. `package`: for
    kind “package”, the name of an installed one; with `files` ({path: text} below the package's
    folder) an uploaded one, which runs in the sandbox."""

    slug: Annotated[str, Meta(pattern=r"\A[-a-zA-Z0-9_]{1,80}\Z")]
    kind: Kind
    verifier: Text | None = None
    builtin: Text | None = None
    harness: NewHarness = NewHarness()
    nearest: bool = False
    user: Literal["script", "llm"] = "script"
    url: Annotated[str, Meta(min_length=1, max_length=500)] | None = None
    api_key_env: Annotated[str, Meta(max_length=80)] = ""
    timeout_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    success_at: Annotated[float, Meta(ge=-1e6, le=1e6)] = 1.0
    turn_rewards: bool = False
    package: Annotated[str, Meta(min_length=1, max_length=60)] | None = None
    files: Annotated[dict[str, str], Meta(min_length=1, max_length=MAX_FILES)] | None = None
