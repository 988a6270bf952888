"""The jobs of the failures layer: classification, comparing the past with the current rules, and
training on decisions.
"""

from __future__ import annotations

from apps.core.kinds import InProcess, register
from apps.failures import classify_job, reclassify
from apps.failures.models import Classification, OutcomeTraining, Reclassification
from apps.failures.outcomes import train_job

register(Classification, InProcess(queue="default", steps=classify_job.steps))
register(
    Reclassification, InProcess(queue="default", steps=reclassify.steps, ended=reclassify.ended)
)
register(OutcomeTraining, InProcess(queue="default", steps=train_job.steps))
