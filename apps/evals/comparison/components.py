"""The components of the reward, as measures."""

from __future__ import annotations

from collections import Counter

import numpy as np
from django.db.models import Avg, FloatField
from django.db.models.expressions import RawSQL

from apps.evals.comparison.measures import REWARD, Measure
from apps.evals.comparison.tables import Tables

MOST, ASKED = 12, 2_000  # components shown; samples of each evaluation whose components are named
NUMBER = "CASE jsonb_typeof(components -> %s) WHEN 'number' THEN (components -> %s)::double precision END"


def components_of(tables: Tables) -> list[Measure]:
    """The most frequent ones; a sample that lacks one says nothing of it."""
    names: Counter[str] = Counter()
    for run in tables.runs:
        asked = run.samples.filter(masked=False).order_by("task_key", "index")[:ASKED]
        for components in asked.values_list("components", flat=True):
            names.update(list(components))
    chosen = sorted(names, key=lambda name: (-names[name], name))[:MOST]
    values = np.full((len(chosen), len(tables.runs), len(tables)), np.nan)
    means = {f"c{n}": Avg(RawSQL(NUMBER, [name, name], FloatField())) for n, name in enumerate(chosen)}
    for at, run in enumerate(tables.runs if chosen else ()):
        table = list(run.samples.filter(masked=False).order_by().values_list("task_id").annotate(**means))
        if table:
            places = [tables.places[task] for task, *_ in table]
            values[:, at, places] = np.array([given for _, *given in table], dtype=float).T
    return [
        Measure(f"component:{name}", name, REWARD, 1, of)
        for name, of in zip(chosen, values, strict=True)
        if not np.isnan(of).all()
    ]
