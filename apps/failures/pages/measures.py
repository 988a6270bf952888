"""How well the layers agree with people, and how often each agent version fails."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from apps.core.access import project_view
from apps.core.charts import intervals, unlike
from apps.core.following import ASKED
from apps.core.models import Project, Role
from apps.failures import agent_versions, likelihood, measures, reliability
from apps.failures.models import Failure, OutcomeModel
from apps.failures.outcomes import alarms, checks, train_job
from apps.failures.outcomes.model import FALSE_ALARMS
from apps.failures.rates import short

TITLES = {"rules": "Rules", "judge": "Judge"}
ROW_HEIGHT = 26  # pixels per version in the chart


@project_view(query={"mode": None, "agent": None, "version": None} | ASKED)
def page(request: HttpRequest, project: Project) -> HttpResponse:
    modes = list(project.failure_modes.all())
    names = {mode.slug: mode.name for mode in modes}
    mode = request.GET.get("mode", "")
    rates = measures.by_version(project, mode)
    decisions = reliability.decisions(project)
    sure = reliability.by_confidence(decisions)
    versions, given = checks.by_version(project), request.GET
    chosen = agent_versions.chosen(project, given.get("agent", ""), given.get("version", ""))
    return render(
        request,
        "failures/measures.html",
        {
            "layers": [_layer(project, layer, names) for layer in measures.LAYERS],
            "bases": likelihood.confirmed(project),
            "decided": measures.decided(project).count(),
            "few": measures.FEW,
            "waiting": Failure.objects.filter(project=project).waiting().count(),
            "modes": modes,
            "mode": mode,
            "rates": rates,
            "most": measures.MOST_VERSIONS,
            "figure": chart(rates, names.get(mode, "")),
            "confidences": sure,
            "reliability": diagram(sure),
            "rules": reliability.by_rule(decisions),
            "overconfident": [right for right in sure if reliability.is_overconfident(right)],
            "goal": reliability.GOAL,
            "traffic": checks.traffic(project, of=chosen),
            "versions": versions,
            "version": str(chosen),
            "true_rates": true_rates(versions),
            **_estimates(project),
            "may_train": request.membership.may(Role.ENGINEER),
        },
    )


def _estimates(project: Project) -> dict[str, Any]:
    """The outcome model in use with its observed false alarms, or what is missing for one."""
    model, in_use = project.outcome_models.first(), OutcomeModel.in_use(project)
    newest = project.outcome_models.filter(is_better=True).first()
    return {
        "model": model,
        "in_use": in_use,
        "alarms": alarms.observed(project, in_use) if in_use else None,
        "limit": FALSE_ALARMS,
        "off": newest if newest and newest.off_at else None,
        "needed": "" if in_use else train_job.needed(project),
        "training": project.outcometrainings.order_by("-created_at").first(),
    }


def _layer(project: Project, layer: str, names: dict[str, str]) -> dict[str, Any]:
    pairs = measures.pairs_of(project, layer)
    table = measures.confusion(pairs)
    named = {slug for said, row in table.items() for slug in (said, *row)} - {measures.NONE}
    columns = [
        *(slug for slug in names if slug in named),
        *sorted(named - set(names)),
        measures.NONE,
    ]
    return {
        "key": layer,
        "title": TITLES[layer],
        "agreement": measures.agreement(pairs),
        "scores": [(names.get(score.mode, score.mode), score) for score in measures.scores(pairs)],
        "columns": [names.get(slug, slug) or "No failure" for slug in columns],
        "rows": [_row(slug, table[slug], columns, names) for slug in columns if slug in table],
    }


def _row(
    said: str, row: dict[str, int], columns: list[str], names: dict[str, str]
) -> dict[str, Any]:
    return {
        "name": names.get(said, said) or "No failure",
        "cells": [{"n": row.get(slug, 0), "same": slug == said} for slug in columns],
        "n": sum(row.values()),
    }


def diagram(sure: list[reliability.Right]) -> dict | None:
    """How often each confidence is right, with its interval; the most certain on top. None if
    nothing was decided.
    """
    known = [right for right in sure if right.share.n]
    if not known:
        return None
    lows, highs = zip(*(right.share.interval for right in known), strict=True)
    figure = intervals(
        [f"{right.confidence} (n = {right.share.n})" for right in known],
        [right.share.rate or 0.0 for right in known],
        lows,
        highs,
        "People agree with the rules, by confidence, with 95% intervals",
        height=90 + ROW_HEIGHT * 2 * len(known),
    )
    figure["layout"]["xaxis"] |= {"tickformat": ".0%", "range": [0, 1.02]}
    figure["layout"]["yaxis"] |= {"autorange": "reversed"}
    return figure


def true_rates(versions: list[checks.Version]) -> dict | None:
    """The true failure rate of each version that has enough checks; None if fewer than two have."""
    known = [one for one in versions if one.rate and one.rate.n >= measures.FEW]
    if len(known) < 2:
        return None
    figure = intervals(
        unlike(short(f"{one.name} (n = {one.rate.n})") for one in known),
        [one.rate.value for one in known],
        [one.rate.low for one in known],
        [one.rate.high for one in known],
        "True failure rate by agent version, with 95% intervals",
        height=90 + ROW_HEIGHT * len(known),
    )
    figure["layout"]["xaxis"] |= {"tickformat": ".0%", "rangemode": "tozero"}
    figure["layout"]["yaxis"] |= {"autorange": "reversed", "type": "category"}
    return figure


def chart(rates: list[measures.Rate], mode: str) -> dict | None:
    """The share of failed runs of each version with its interval, newest version on top."""
    if not rates:
        return None
    lows, highs = zip(*(rate.failed.interval for rate in rates), strict=True)
    figure = intervals(
        unlike(short(str(rate.of)) for rate in rates),
        [rate.failed.rate or 0.0 for rate in rates],
        lows,
        highs,
        f"Runs with {mode or 'a failure'}, open or confirmed, by agent version, with 95% intervals",
        height=90 + ROW_HEIGHT * len(rates),
    )
    figure["layout"]["xaxis"] |= {"tickformat": ".0%", "rangemode": "tozero"}
    return figure
