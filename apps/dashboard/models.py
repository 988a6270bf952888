"""Dashboards: charts that people arrange themselves."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.http import QueryDict
from django.utils import timezone

from apps.core.models import Project


class Dashboard(models.Model):
    """Charts in an order, for everybody in the project; its address is its link."""

    project = models.ForeignKey(Project, models.CASCADE, related_name="dashboards")
    name = models.CharField(max_length=80)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ("name", "id")
        constraints = [
            models.UniqueConstraint(fields=["project", "name"], name="one_dashboard_per_name")
        ]

    def __str__(self) -> str:
        return self.name


class Chart(models.Model):
    """What one chart asks for: `query` are the filters of the list of trajectories, its time range
    included.
    """

    dashboard = models.ForeignKey(Dashboard, models.CASCADE, related_name="charts")
    position = models.PositiveIntegerField()
    title = models.CharField(max_length=80, blank=True)
    measure = models.CharField(max_length=20)
    by = models.CharField(max_length=20, blank=True)
    kind = models.CharField(max_length=10, default="auto")
    bucket = models.CharField(max_length=4, blank=True)
    query = models.TextField(blank=True)

    class Meta:
        ordering = ("position", "id")
        constraints = [
            models.UniqueConstraint(
                fields=["dashboard", "position"],
                name="one_chart_per_position",
                deferrable=models.Deferrable.DEFERRED,
            )
        ]

    def __str__(self) -> str:
        return self.title or f"{self.measure} {self.by}".strip()

    @property
    def parameters(self) -> str:
        """The query of the page that draws and changes it."""
        given = QueryDict(self.query, mutable=True)
        for name in ("title", "measure", "by", "kind", "bucket"):
            if value := getattr(self, name):
                given[name] = value
        return given.urlencode()
