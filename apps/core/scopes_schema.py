"""The scopes in the OpenAPI schema: each operation names the one it needs, as its view declares."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

from django.urls import Resolver404, ResolverMatch, resolve

from apps.core.scopes import Scope, in_words, needs

SAMPLES = ("1", "00000000-0000-0000-0000-000000000001")  # what a parameter of a path may be
METHODS = ("get", "post", "put", "patch", "delete")
ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
ABOUT = """Every request carries an API key of the project: `Authorization: Bearer fw_…`. The key \
decides the project. Operators and
owners make keys under Settings → API keys; each has one or more scopes and may have an expiry.

| scope | what it may do |
|---|---|
"""


def about() -> str:
    return ABOUT + "".join(f"| `{scope.value}` | {scope.about} |\n" for scope in Scope)


def add_scopes(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """drf-spectacular's postprocessing hook."""
    result["info"]["description"] = about()
    for path, methods in result["paths"].items():
        match = match_of(path)
        for method in methods.keys() & set(METHODS):
            _describe(methods[method], match, method.upper())
    return result


def _describe(operation: dict[str, Any], match: ResolverMatch, method: str) -> None:
    wanted, role, _ = needs(match, method)
    said = f"Needs the scope {in_words(wanted)}" + (
        f" of a key whose creator has the role “{role}”." if role else "."
    )
    operation["description"] = f"{operation.get('description', '')}\n\n{said}".strip()
    operation["security"] = [{"ApiKey": [scope.value]} for scope in wanted]
    operation["responses"].setdefault(
        "403",
        {
            "content": ERROR,
            "description": "The key does not have the scope, or its creator not the role.",
        },
    )


def match_of(path: str) -> ResolverMatch:
    """The route of a path of the schema. Raises Resolver404."""
    names = re.findall(r"{\w+}", path)
    for values in product(SAMPLES, repeat=len(names)):
        filled = path
        for name, value in zip(names, values, strict=True):
            filled = filled.replace(name, value)
        try:
            return resolve(filled)
        except Resolver404:
            continue
    raise Resolver404(path)
