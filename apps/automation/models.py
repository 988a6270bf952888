"""Floor 10: what turns the wheel without a person, up to the point where a person decides."""

from __future__ import annotations

from typing import Self

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from apps.core.models import Project


class Step(models.TextChoices):
    CLASSIFY = "classify", "Classify new trajectories"


class ScheduleQuerySet(models.QuerySet["Schedule"]):
    def due(self) -> Self:
        return self.filter(enabled=True, next_run_at__lte=timezone.now())


class Schedule(models.Model):
    """One step of the wheel, run every `every_minutes` minutes."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="schedules")
    step = models.CharField(max_length=20, choices=Step)
    every_minutes = models.PositiveIntegerField(default=60)
    enabled = models.BooleanField(default=True)
    next_run_at = models.DateTimeField(default=timezone.now)
    last_run_at = models.DateTimeField(null=True)
    last_result = models.TextField(blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")

    objects = ScheduleQuerySet.as_manager()

    class Meta:
        ordering = ("step",)
        constraints = [
            models.UniqueConstraint(fields=["project", "step"], name="one_schedule_per_step"),
            models.CheckConstraint(name="schedule_interval_positive", condition=Q(every_minutes__gte=1)),
        ]

    def __str__(self) -> str:
        return f"{self.get_step_display()} every {self.every_minutes} min"
