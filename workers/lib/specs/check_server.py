"""The spec of `workers.check_server`."""

from __future__ import annotations

from typing import Literal

from workers.lib.specs.engines import ServerAddress
from workers.lib.specs.job import Job


class CheckServer(Job, kw_only=True, tag="check_server"):
    """`model`: the only one to ask; by default the first one that answers, of the `registered` ones
    and then of those that the server lists. `dialect`: the API used to ask it.
    """

    server: ServerAddress
    server_kind: Literal["vllm", "sglang", "openai", "transformers"]
    model: str = ""
    registered: list[str] = []
    dialect: Literal["native", "text", "responses"] = "native"
