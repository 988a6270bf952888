"""How long the same server or agent took in earlier evaluations, compared with the limit of the
next one before it starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from django.db.models import Q

from apps.core.models import Project
from apps.environments.models import Environment
from apps.evals.models import EvalRun, Sample
from apps.evals.notes import REQUEST_S, Pace
from apps.registry import engines
from apps.registry.models import Engine, ModelVersion, Server
from workers.lib.chat_client import NOT_IN_TIME, NOTHING_IN_TIME
from workers.lib.rollouts import HUNG
from workers.lib.serving import ANSWER_S, NO_TEST_ANSWER, TEST_TOKENS
from workers.lib.specs.environment import Harness

CONSIDERED = 20  # earlier evaluations
MOST_SAMPLES = 5_000
FEWEST = 5  # samples, fewer of which say nothing about the next ones
LATE = Q(stop_reason="time") | Q(
    Q(mask_reason__contains=NOT_IN_TIME) | Q(mask_reason__contains=HUNG), stop_reason="policy error"
)


def pace_of(
    version: ModelVersion, environment: Environment, engine: dict[str, Any] | None
) -> Pace | None:
    """From the newest evaluation of the same server and model, or else of the same base on that
    server, or of the same agent at that address; one in the same environment comes first. None
    where nothing is known, and for answers that are generated here, whose waiting does not count.
    """
    if not engine or engine["kind"] not in ("openai", "agent"):
        return None
    limit_s = limit_of(environment, engine)
    runs = list(_earlier(version.project, version, engine)) if limit_s else []
    for run in sorted(runs, key=lambda run: run.environment_id != environment.pk):
        if pace := _measured(run, limit_s):
            return pace
    return _probed(engine, limit_s) if limit_s and engine["kind"] == "openai" else None


def _probed(engine: dict[str, Any], limit_s: float) -> Pace | None:
    """A server whose last test call alone took longer than a sample may."""
    asked = (engine["model"], "")  # none where no model answered
    server = Server.objects.filter(pk=engine["server"], probed_model__in=asked).first()
    row = server.capabilities.get("answer_ms", {}) if server else {}
    late = row.get("how") == NO_TEST_ANSWER
    seconds = [row["value"] / 1000] if row.get("value") else []
    if not any(took > limit_s for took in seconds) and not (late and limit_s <= ANSWER_S):
        return None
    where = f"{engine['model']} on {server}"
    pace = Pace.of(seconds, int(late), ANSWER_S, limit_s, where)
    return replace(pace, probe_tokens=TEST_TOKENS)


def limit_of(environment: Environment, engine: dict[str, Any]) -> float:
    """Seconds for one sample; 0 without a limit."""
    if engine["kind"] == "agent":
        return engine["timeout_s"]
    several_answers = environment.needs_tools
    return max_seconds(environment) or (0 if several_answers else REQUEST_S)


def max_seconds(environment: Environment) -> float:
    return environment.harness.get("max_seconds", Harness().max_seconds)


def _earlier(project: Project, version: ModelVersion, engine: dict[str, Any]) -> Iterator[EvalRun]:
    rows = EvalRun.objects.filter(project=project, spec__engine__kind=engine["kind"])
    if engine["kind"] == "agent":
        rows = rows.filter(
            spec__engine__base_url=engine["base_url"], model_version__name=version.name
        )
    else:
        rows = rows.filter(spec__engine__server=engine["server"])
        if not engine["managed"]:  # whose address changes with every start
            rows = rows.filter(spec__engine__base_url=engine["base_url"])
    newest = rows.select_related("model_version", "environment").order_by("-created_at")
    base = version.model.base_version()
    for run in newest[:CONSIDERED]:
        if (
            engine["kind"] == "agent"
            or run.spec["engine"]["model"] == engine["model"]
            or run.model_version.model.base_version() == base
        ):
            yield run


def _measured(run: EvalRun, limit_s: float) -> Pace | None:
    had_s = limit_of(run.environment, run.spec["engine"]) or REQUEST_S
    newest = Sample.objects.filter(run=run).order_by("-pk")[:MOST_SAMPLES]
    samples = Sample.objects.filter(pk__in=newest.values("pk"))
    late = samples.filter(LATE).count()
    took = samples.exclude(LATE).exclude(latency_ms=None).values_list("latency_ms", flat=True)
    seconds = [ms / 1000 for ms in took]
    hopeless = NOTHING_IN_TIME in run.error
    if len(seconds) + late < FEWEST and not hopeless:
        return None
    engine = run.spec["engine"]
    at = f" on {engine['server_name']}" if engine["kind"] == "openai" else ""
    where = f"{run.model_version}{at} in {run.environment}, {run.created_at:%Y-%m-%d}"
    return Pace.of(seconds, late, had_s, limit_s, where, agent=engine["kind"] == "agent")


def pace_before(
    version: ModelVersion | None, environment: Environment | None, engine: str, timeout_s: int
) -> Pace | None:
    """The same for what a form has selected so far."""
    if version is None or environment is None:
        return None
    if version.engine == Engine.AGENT and not version.base_url:
        return None
    try:
        chosen = engines.choose(version, engine or engines.AUTO)
        return pace_of(version, environment, engines.with_patience(chosen, timeout_s=timeout_s))
    except engines.ModelError:  # the form says it when it is sent
        return None
