"""The jobs of floor 4: classifying what is new, and comparing the past with the rules of today."""

from __future__ import annotations

from apps.core.kinds import InProcess, register
from apps.failures import classify_job, reclassify
from apps.failures.models import Classification, Reclassification

register(Classification, InProcess(queue="default", steps=classify_job.steps))
register(Reclassification, InProcess(queue="default", steps=reclassify.steps, ended=reclassify.ended))
