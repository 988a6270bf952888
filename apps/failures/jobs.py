"""The jobs of the failures layer: classification, comparing the past with the current rules,
training on decisions, and measuring and improving the judge.
"""

from __future__ import annotations

from apps.core.kinds import InProcess, register
from apps.failures import classify_job, reclassify
from apps.failures.judge import measure_job, search_job
from apps.failures.models import (
    Classification,
    JudgeMeasurement,
    OutcomeTraining,
    Reclassification,
    RubricSearch,
)
from apps.failures.outcomes import train_job

register(Classification, InProcess(queue="default", steps=classify_job.steps))
register(
    Reclassification, InProcess(queue="default", steps=reclassify.steps, ended=reclassify.ended)
)
register(OutcomeTraining, InProcess(queue="default", steps=train_job.steps))
KEPT = "Answers so far are kept: it can be resumed without paying for them again."
register(JudgeMeasurement, InProcess(queue="eval", steps=measure_job.steps, if_lost=KEPT))
register(RubricSearch, InProcess(queue="eval", steps=search_job.steps, if_lost=KEPT))
