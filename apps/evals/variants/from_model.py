"""Turns a model's output into a variant of the seed that it was asked about. Pure; input is
untrusted.

The model returns the new request and its correct calls. If it was asked to keep the calls, they
must be the seed's; if it was asked to change arguments, the tools, their order and the form of the
arguments must be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from apps.evals.formats.rows import Bad, check_storable, want
from apps.evals.variants.seeds import ARGUMENTS, EDGE, PARAPHRASE, Seed

WRITTEN = {PARAPHRASE: "Other words", ARGUMENTS: "Other arguments", EDGE: "Awkward requests"}
MAX_REQUEST = 20_000  # characters


def calls_of(seed: Seed) -> list[dict]:
    """The expected calls as NeMo Gym's {name, arguments}."""
    return [{"name": call["tool"], "arguments": call["args"]} for call in seed.calls]


def key_of(row: Any) -> str:
    """The seed that a row is about. Raises Bad."""
    about = want(want(row, dict, "row", "").get("verifier_metadata"), dict, "verifier_metadata", "")
    return want(about.get("key"), str, "verifier_metadata.key", "")


def variant(seed: Seed, row: dict) -> Seed:
    """The variant in a row of workers.write_variants. Raises Bad."""
    kind = want(
        want(row.get("verifier_metadata"), dict, "verifier_metadata", "").get("kind"),
        str,
        "kind",
        "",
    )
    if kind not in WRITTEN:
        raise Bad("kind", "is none that was asked for.")
    request, calls = (
        _request(row),
        want(row.get("ground_truth"), list, "ground_truth", "Give a list of calls."),
    )
    check_storable([request, calls], "row")
    before = calls_of(seed)
    if kind != ARGUMENTS and calls != before:
        raise Bad("ground_truth", "differs from the seed's calls.")
    if seed.request is None or request == seed.request:
        raise Bad("request", "is the seed's.")
    base = _with_arguments(seed, before, calls) if kind == ARGUMENTS else seed
    return replace(base.with_request(request), kind=kind)


def _with_arguments(seed: Seed, before: list[dict], calls: list[dict]) -> Seed:
    names = [
        want(call, dict, "ground_truth", "Give {“name”, “arguments”}.").get("name")
        for call in calls
    ]
    if names != [call["name"] for call in before]:
        raise Bad("ground_truth", "calls other tools than the seed, or in another order.")
    if calls == before:
        raise Bad("ground_truth", "changes no argument.")
    return seed.with_arguments([call.get("arguments") for call in calls])


def _request(row: dict) -> str:
    asked = want(row.get("responses_create_params"), dict, "responses_create_params", "")
    messages = want(asked.get("input"), list, "input", "")
    last = want(messages[-1] if messages else None, dict, "input", "")
    text = want(last.get("content"), str, "input.content", "Give text.").strip()
    if not text or len(text) > MAX_REQUEST:
        raise Bad("request", f"is empty or longer than {MAX_REQUEST:,} characters.")
    return text
