"""What all API schemas share: the content types, the error, and a page of results."""

from __future__ import annotations

from typing import Any, Literal

from drf_spectacular.utils import OpenApiExample

JSON, LINES = "application/json", "application/x-ndjson"
REFERENCE = "#/components/schemas/"
# A pattern of one line: no control characters, which PostgreSQL and headers do not take, and no
# lone surrogates.
TEXT = r"\A[^\x00\ud800-\udfff]*\Z"  # of several lines
LINE = r"\A[^\x00-\x1f\x7f-\x9f\ud800-\udfff]*\Z"
NUMBER = {"type": ["number", "null"]}


SUMMARY = 110  # characters


def group_operations(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """drf-spectacular's postprocessing hook: an operation is listed under the resource of its path,
    with the first sentence of what it does."""
    for path, methods in result["paths"].items():
        resource = (
            path.removeprefix("/api/v1/").split("/")[0]
            if path.startswith("/api/v1/")
            else "graders"
        )
        for operation in methods.values():
            operation["tags"] = [resource.replace("-", " ").replace("_", " ").capitalize()]
            first = operation.get("description", "").split("\n\n")[0].split(". ")[0].rstrip(".")
            if first:
                operation.setdefault(
                    "summary",
                    first if len(first) <= SUMMARY else f"{first[:SUMMARY].rsplit(' ', 1)[0]} …",
                )
    return result


def add_refusals(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """drf-spectacular's postprocessing hook: the errors of no view in particular. Any text may be
    one that cannot be stored (400), a body too large (413) or of the wrong content type (415), and
    an address that has sent too many wrong keys has to wait (429).
    """
    refused = {"description": "", "content": {JSON: {"schema": reference("Error")}}}
    for methods in result["paths"].values():
        for operation in methods.values():
            for status in ("400", "413", "415") if "requestBody" in operation else ("400",):
                operation["responses"].setdefault(status, refused)
            if "401" in operation["responses"]:
                operation["responses"].setdefault("429", refused)
    return result


def reference(name: str) -> dict[str, str]:
    return {"$ref": f"{REFERENCE}{name}"}


def described(good: dict[int, dict[str, Any]], *bad: int) -> dict[Any, Any]:
    """For `extend_schema(responses=…)`: the schema of each good status, and the statuses of errors;
    401 is always one.
    """
    answers = {(status, JSON): schema for status, schema in good.items()}
    return answers | {(status, JSON): reference("Error") for status in (401, *bad)}


def results(item: dict[str, Any]) -> dict[str, Any]:
    """A list that is answered whole."""
    return {
        "type": "object",
        "required": ["results"],
        "properties": {"results": {"type": "array", "items": item}},
    }


def page(
    item: dict[str, Any], following: Literal["string", "integer"] = "string"
) -> dict[str, Any]:
    """A page of a list. `next` is a cursor, or with "integer" the offset of the next page; null on
    the last one.
    """
    properties = results(item)["properties"] | {"next": {"type": [following, "null"]}}
    return {"type": "object", "required": ["results", "next"], "properties": properties}


def sent(name: str, value: Any) -> OpenApiExample:
    """An example of what is sent."""
    return OpenApiExample(name, value, request_only=True)


def told(name: str, value: Any, status: str = "200") -> OpenApiExample:
    """An example of the response with this status."""
    return OpenApiExample(name, value, response_only=True, status_codes=[status])
