"""Prompts as Langfuse and LangSmith (LangChain) export them, as ours. Pure."""

from __future__ import annotations

import re
from typing import Any

from workers.lib.messages import PROMPT_ROLES, content_text
from workers.lib.typed import FormError

VARIABLE = re.compile(r"\{\{\s*([A-Za-z_][\w.]*)\s*\}\}")  # Langfuse's, and mustache
IN_BRACES = re.compile(r"(?<!\{)\{([A-Za-z_]\w*)\}(?!\})")  # LangChain's usual ones
SAMPLING = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
}
ROLES = {"Human": "user", "AI": "assistant", "System": "system"}


def prompt_of(given: Any) -> Any:
    """An exported prompt in our form; anything else unchanged.

    The last message of a user with variables is where the request goes. Raises FormError for
    variables elsewhere, which nothing would fill in here.
    """
    if not isinstance(given, dict):
        return given
    if given.get("type") in ("chat", "text") and "prompt" in given:
        return _built(_langfuse(given["prompt"]), _dict(given.get("config")))
    if given.get("lc") == 1 and str((_list(given.get("id")) or [""])[-1]).endswith(
        "PromptTemplate"
    ):
        return _built(_langchain(given), {})
    return given


def _langfuse(prompt: Any) -> list[tuple[str, str]]:
    if isinstance(prompt, str):
        return [("system", prompt)]
    return [
        (str(one.get("role")), content_text(one.get("content")))
        for one in map(_dict, _list(prompt))
        if one.get("type") != "placeholder"
    ]


def _class(given: dict) -> str:
    """The name of a class that LangChain serialised."""
    return str((_list(given.get("id")) or [""])[-1])


def _langchain(given: dict) -> list[tuple[str, str]]:
    inner = _dict(given.get("kwargs"))
    if isinstance(inner.get("template"), str):
        return [("system", _mustache(inner))]
    found = []
    for one in map(_dict, _list(inner.get("messages"))):
        kind = _class(one)
        role = next((role for name, role in ROLES.items() if kind.startswith(name)), None)
        template = _dict(_dict(one.get("kwargs")).get("prompt"))
        if role and isinstance(_dict(template.get("kwargs")).get("template"), str):
            found.append((role, _mustache(template["kwargs"])))
    return found


def _mustache(template: dict) -> str:
    """The text with variables in two braces; where one brace marks them, two stand for one."""
    words = template["template"]
    if template.get("template_format", "f-string") != "f-string":
        return words
    parts = IN_BRACES.split(words)
    plain = [part.replace("{{", "{").replace("}}", "}") for part in parts[::2]]
    named = [f"{{{{{name}}}}}" for name in parts[1::2]]
    return "".join(part for pair in zip(plain, [*named, ""], strict=True) for part in pair)


def _built(messages: list[tuple[str, str]], config: dict) -> dict[str, Any]:
    if messages and messages[-1][0] == "user" and VARIABLE.search(messages[-1][1]):
        messages = messages[:-1]
    for _, words in messages:
        if variable := VARIABLE.search(words):
            raise FormError(
                "prompt",
                f"has the variable “{variable[1]}”, which nothing fills in here: write its text",
            )
    system = "\n\n".join(words for role, words in messages if role in PROMPT_ROLES)
    examples = [
        {"role": role, "content": words} for role, words in messages if role not in PROMPT_ROLES
    ]
    found: dict[str, Any] = {"system_prompt": system} if system else {}
    found |= {"examples": examples} if examples else {}
    found |= {ours: config[name] for name, ours in SAMPLING.items() if config.get(name) is not None}
    return found | ({"tools": config["tools"]} if _list(config.get("tools")) else {})


def _dict(value: Any) -> dict:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list:
    return value if isinstance(value, list) else []
