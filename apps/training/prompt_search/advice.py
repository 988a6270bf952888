"""The cost of trying a better prompt for an evaluated model, for the advisor."""

from __future__ import annotations

from apps.core.models import JobState
from apps.evals.models import EvalRun, Split
from apps.registry.models import ModelKind, Server
from apps.registry.prices import price_at
from apps.training.models import PromptSearch
from apps.training.prompt_search.cost import Size, expected
from workers.lib.prices import Price, price_from_json


def was_tried(run: EvalRun) -> bool:
    """Whether the evaluated model has a prompt version, or a search for one has finished."""
    version = run.model_version
    if version.kind == ModelKind.PROMPT:
        return True
    return PromptSearch.objects.filter(
        version__in=[version, version.model], state=JobState.SUCCEEDED
    ).exists()


def cost_words(run: EvalRun) -> str:
    """A sentence; "" for an agent, whose prompt is part of its own code."""
    if run.model_version.kind == ModelKind.AGENT:
        return ""
    validation = run.eval_set.tasks.filter(split=Split.VALIDATION).count()
    if not validation:
        return (
            f"A search needs validation tasks: create a new version of {run.eval_set} with a"
            " validation split."
        )
    metrics, engine = run.result["metrics"], run.spec.get("engine") or {}
    price = price_from_json(engine.get("price")) if engine.get("kind") == "openai" else Price()
    tokens = (metrics.get("input_tokens") or 0.0, metrics.get("output_tokens") or 0.0)
    size = Size(validation)
    cost = expected(size, tokens=tokens, price=price, reflecting=_reflecting_price(run))
    usd = f", ${cost.usd:,.2f}" if cost.usd is not None else ""
    return (
        f"A search with {size.proposals} proposals on {validation:,} validation tasks takes at most"
        f" {cost.calls:,} answers of the agent: about {cost.tokens:,} tokens{usd}."
    )


def _reflecting_price(run: EvalRun) -> Price | None:
    """Of the model that wrote the last proposals, or else of a served model of the project; None if
    no price is known.
    """
    last = PromptSearch.objects.filter(project=run.project).first()
    if last and last.spec["reflecting"]["price"] is not None:
        return price_from_json(last.spec["reflecting"]["price"])
    for server in Server.objects.filter(project=run.project):
        names = [version.served_as for version in server.model_versions.all()[:20]]
        if found := next((price for name in names if (price := price_at(server, name))), None):
            return found
    return None
