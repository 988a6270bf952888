"""`manage.py monitoring_files`: writes the alert rules, the dashboard and the list of metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand

from apps.core.watching.monitoring_files import FILES


class Command(BaseCommand):
    any_schema = True
    help = "Writes docker/prometheus/alerts.yaml, docker/grafana/flywheel.json and docs/metrics.md."

    def handle(self, **options: Any) -> None:
        for name, write in FILES.items():
            path = Path(settings.BASE_DIR, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(write())
