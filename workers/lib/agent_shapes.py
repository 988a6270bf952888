"""Formats of requests to an agent's endpoint and of its answers: chat completions, Responses, NeMo
Gym's `/run`. Pure.

Whatever the request format, an answer may be a chat completion, a Responses object (alone, or as
the `response` of a Gym run), {"messages": […]} with everything the agent said and did, or
{"output": "text", "tool_calls": […]}.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from workers.lib.environments.gym_rows import ASKED
from workers.lib.harness.addressed import Address
from workers.lib.messages import ItemError, Message, error_text, from_items, items_request
from workers.lib.prices import Price, list_price
from workers.lib.specs.engines import AgentEndpoint
from workers.lib.token_usage import Usage, parse
from workers.lib.transcripts import agent_turns, foreign_part, is_empty

PATHS = {"chat": "/chat/completions", "responses": "/responses", "gym": "/run"}
VERSION_HEADERS = ("x-agent-version", "agent-version")
MOST_USD = 1e6  # per call; larger values are not plausible costs


class AgentFault(Exception):
    """An answer that cannot be used, which is the agent's own failure. The message ends a sentence
    (“answered …”).
    """


class Silent(AgentFault):
    """The answer is whole, and says nothing."""


@dataclass(frozen=True)
class Reported:
    """The usage that an agent reports for a call: tokens (None unless both input and output are
    reported, and not both 0), USD, and its model.
    """

    tokens: Usage | None = None
    usd: float | None = None
    model: str = ""

    def cost(self, prices: Mapping[str, Price]) -> float | None:
        """In USD, as reported, or else by the price of its model; None if neither is known."""
        if self.usd is None and self.tokens:
            price = prices.get(self.model) or list_price(self.model)
            return price.of(self.tokens) if price else None
        return self.usd


@dataclass(frozen=True)
class Said:
    """The agent's messages in order, and the tokens that it reports; None if it reports none."""

    turns: list[Message]
    tokens: Usage | None = None


def url_of(agent: AgentEndpoint) -> str:
    """The URL to call: the address may already contain the shape's path."""
    base, path = agent.base_url.rstrip("/"), PATHS[agent.protocol]
    return base if base.endswith(path) else base + path


def request_of(
    agent: AgentEndpoint,
    messages: list[Message],
    tools: list[dict],
    seed: int,
    address: Address | None = None,
) -> dict[str, Any]:
    """The task as a request, without anything that says what is right. `metadata` has texts alone,
    as OpenAI's does.
    """
    more = {} if address is None else {"metadata": _metadata(address)}
    if agent.protocol == "chat":
        body = {"model": agent.name, "messages": messages, "seed": seed, "stream": False}
        return body | ({"tools": tools} if tools else {}) | more
    asked = items_request(messages, tools) | more
    if agent.protocol == "gym":
        return {ASKED: asked}
    if not tools:
        del asked["tools"]
    return {"model": agent.name, "stream": False} | asked


def _metadata(address: Address) -> dict[str, str]:
    model = {"flywheel_model_url": address.model} if address.model else {}
    return {"flywheel_mcp": address.mcp, "flywheel_tools": address.tools} | model


def version_of(data: Any, headers: dict[str, str]) -> str:
    """The version that an answer names, in a header or as `agent_version` (also in `metadata`); ""
    if it names none.
    """
    named = next((headers[name] for name in VERSION_HEADERS if headers.get(name)), "")
    for holder in (data, data.get("metadata")) if isinstance(data, dict) else ():
        value = holder.get("agent_version") if isinstance(holder, dict) else None
        named = named or (value if isinstance(value, str) else "")
    return named.strip()


def read_answer(data: Any, asked: list[Message]) -> Said:
    """Raises AgentFault for an answer that is empty or only reports a failure."""
    if not isinstance(data, dict):
        raise AgentFault("answered with something that is not a JSON object")
    inner = _inner(data)
    if error := data.get("error") or inner.get("error"):
        raise AgentFault(f"answered with an error: {error_text(error)}")
    messages = _messages(inner)
    if foreign := foreign_part(messages):
        raise AgentFault(f"answered in a form that is not read: {foreign}")
    turns = [turn for turn in agent_turns(messages, asked) if not is_empty(turn)]
    if not turns:
        raise Silent("answered without a message of its own")
    return Said(turns, reported_in(data).tokens)


def reported_in(data: Any) -> Reported:
    """The usage in any answer, including one that reports a failure."""
    if not isinstance(data, dict):
        return Reported()
    inner = _inner(data)
    used = parse(inner.get("usage"))
    is_counted = used.tokens and None not in (used.input_tokens, used.output_tokens)
    costs = (_usd(holder.get(name)) for holder in (inner, data) for name in ("cost", "cost_usd"))
    model = inner.get("model")
    return Reported(
        replace(used, cost_usd=None, unread={}) if is_counted else None,
        used.cost_usd
        if used.cost_usd is not None
        else next((usd for usd in costs if usd is not None), None),
        model if isinstance(model, str) else "",
    )


def _inner(data: dict) -> dict:
    """A Gym run contains the answer; anything else is the answer itself."""
    return data["response"] if isinstance(data.get("response"), dict) else data


def _messages(data: dict) -> list[Message]:
    if isinstance(data.get("messages"), list):
        return _objects(data["messages"], "messages")
    if isinstance(data.get("output"), list):
        if hosted := next((name for item in data["output"] if (name := _hosted(item))), ""):
            raise AgentFault(
                f"answered with an item of type “{hosted}”, a call that is not the environment's: "
                "let it return function_call items"
            )
        try:
            return from_items(data["output"])
        except ItemError as error:
            raise AgentFault(f"answered with items that cannot be read ({error})") from error
    if isinstance(data.get("choices"), list) and data["choices"]:
        choice = data["choices"][0]
        message = choice.get("message") if isinstance(choice, dict) else None
        if isinstance(message, dict):
            return [message | {"role": "assistant"}]
    if isinstance(data.get("output"), str) or isinstance(data.get("tool_calls"), list):
        output = data.get("output") if isinstance(data.get("output"), str) else None
        return [
            {
                "role": "assistant",
                "content": output,
                "tool_calls": _objects(data.get("tool_calls") or [], "tool_calls"),
            }
        ]
    raise AgentFault("answered with an object that has no choices, output or messages")


def _objects(items: Any, name: str) -> list[dict]:
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise AgentFault(f"answered with {name} that are not a list of objects")
    return items


def _hosted(item: Any) -> str:
    """The type of an item that calls a tool in another way than the environment's."""
    kind = item.get("type") if isinstance(item, dict) else None
    return kind if kind in ("mcp_call", "custom_tool_call") else ""


def _usd(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value <= MOST_USD else None
