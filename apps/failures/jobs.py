"""The jobs of floor 4: classifying what is new, comparing the past with the rules of today, and learning from decisions."""

from __future__ import annotations

from apps.core.kinds import InProcess, register
from apps.failures import classify_job, reclassify
from apps.failures.models import Classification, OutcomeTraining, Reclassification
from apps.failures.outcomes import train_job

register(Classification, InProcess(queue="default", steps=classify_job.steps))
register(Reclassification, InProcess(queue="default", steps=reclassify.steps, ended=reclassify.ended))
register(OutcomeTraining, InProcess(queue="default", steps=train_job.steps))
