"""Two clients that start the same evaluation, and send its answers, at the same moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from django.db import transaction

from apps.core.models import JobState
from apps.evals.answers import receive
from apps.evals.models import Answer, EvalRun
from tests.concurrent import Other
from tests.evals.test_answers import Agent, work
from tests.evals.test_runs_api import Api
from tests.factories import make_environment, make_eval_set, make_project


@pytest.mark.django_db(transaction=True)
def test_two_clients_at_the_same_moment_share_one_run_lose_nothing_and_ask_one_worker(
    data_dir: Path,
) -> None:
    project = make_project()
    api, eval_set, environment = Api(project), make_eval_set(project), make_environment(project)
    asked = {
        "eval_set": str(eval_set),
        "environment": str(environment),
        "samples_per_task": 2,
        "agent": {"name": "support-agent", "version": "1"},
    }
    with transaction.atomic():
        first = api.post("evals_api:runs", body=asked)
        other = Other(lambda: api.post("evals_api:runs", body=asked))
        other.wait_until_it_waits()
    assert (first.status_code, other.wait().status_code) == (201, 200)
    one = Agent(project, eval_set, environment, version="1")
    rows = one.rows()
    with transaction.atomic():
        kept = receive(
            run=one.run,
            agent_version="1",
            rows=[memoryview(json.dumps(row).encode()) for row in rows[:4]],
        )
        other = Other(lambda: one.send(rows).json())
        other.wait_until_it_waits()
    told = other.wait()
    assert (
        kept.accepted == 4 == told["duplicates"] and told["accepted"] == 2 and not told["rejected"]
    )
    assert EvalRun.objects.get().sends == 1 and Answer.objects.count() == 6
    assert work(one.run).state == JobState.SUCCEEDED
