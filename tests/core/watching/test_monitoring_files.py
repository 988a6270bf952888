"""The files for Prometheus and Grafana are those of the declarations, and name what exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from django.conf import settings
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from apps.core.watching import conditions, measures
from apps.core.watching.monitoring_files import DASHBOARD, FILES, RULES, TABLE
from flywheel import counters

ROOT = Path(settings.BASE_DIR)
NAME = re.compile(r"flywheel_[a-z_]+")


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text() == FILES[name](), "run manage.py monitoring_files"


def queries() -> list[str]:
    rules = yaml.safe_load((ROOT / RULES).read_text())["groups"][0]["rules"]
    panels = json.loads((ROOT / DASHBOARD).read_text())["panels"]
    return [rule["expr"] for rule in rules] + [
        target["expr"] for panel in panels for target in panel["targets"]
    ]


@pytest.mark.django_db
def test_each_metric_that_they_name_exists(client: Client) -> None:
    counters.REQUESTS.labels("api", "200").inc(0)
    counters.SECONDS.labels("api").observe(0.01)
    measures.Computed().compute_due()
    text = client.get("/metrics").content.decode()
    exist = {family.name for family in text_string_to_metric_families(text)}
    exist |= {f"{name}{end}" for name in exist for end in ("_total", "_bucket")}
    named = {name for query in queries() for name in NAME.findall(query)}
    assert len(named) > 20
    assert named <= exist


@pytest.mark.django_db
def test_each_metric_that_exists_is_documented(client: Client) -> None:
    counters.REQUESTS.labels("api", "200").inc(0)
    counters.ENDPOINT_OPEN.labels("production").inc(0)
    measures.Computed().compute_due()
    text = client.get("/metrics").content.decode()
    exist = {
        name if family.type != "counter" else f"{name}_total"
        for family in text_string_to_metric_families(text)
        if (name := family.name).startswith("flywheel_") and not name.endswith("_created")
    }
    documented = set(re.findall(r"^\| `(flywheel_\w+)`", (ROOT / TABLE).read_text(), re.MULTILINE))
    assert exist == documented


def test_each_condition_has_an_alert() -> None:
    named = {name for query in queries() for name in re.findall('condition="([a-z_]+)"', query)}
    assert named == {one.name for one in conditions.declared()}


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool is not installed")
def test_prometheus_reads_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", ROOT / RULES], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
