"""Tasks a second of an evaluation on a server that answers after 50 ms: ours, inspect-ai's and
lm-evaluation-harness's.

`python -m bench.evaluation_speed [--tasks 1000] [--concurrency 64] [--think-ms 50] [--rounds 3]
[--only flywheel,inspect,lm_eval]` runs each in a process of its own, in turns, in an order of
chance, on the same tasks and the same server; `--memory` runs ours with `--sizes` tasks instead.
Ours is the whole job as a worker runs it: the child process, its verifier, the samples in
PostgreSQL, the metrics. Writes var/bench/evaluation_speed.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.peers import HOME, PINS, BenchError, install, machine, stop_servers_on_sigterm
from bench.scripted_server import Scripted, question, right, started

PLACE = HOME / "evaluation_speed"
OUT = HOME / "evaluation_speed.json"
MAX_TOKENS = 16
CHUNK = 2000
LONGEST_S = 1200.0
MEASURES = ("asked_per_s", "stored_s", "whole_s")
"""Questions a second between the first and the last answer; seconds from the first question until
all is scored and stored; seconds of the command, of ours from when the worker takes the job."""
INSPECT_TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import json_dataset
from inspect_ai.scorer import exact
from inspect_ai.solver import generate

@task
def sums():
    return Task(dataset=json_dataset("tasks.jsonl"), solver=generate(), scorer=exact())
"""
LM_EVAL_TASK = {
    "task": "sums",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "tasks.jsonl"}},
    "test_split": "test",
    "output_type": "generate_until",
    "doc_to_text": "{{input}}",
    "doc_to_target": "{{target}}",
    "generation_kwargs": {
        "until": [],
        "max_gen_toks": MAX_TOKENS,
        "temperature": 0.0,
        "do_sample": False,
    },
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}


# The contenders: a folder with tasks.jsonl in it → the command, and what it must know


def inspect(server: Scripted, concurrency: int) -> tuple[list[str], dict[str, str]]:
    (PLACE / "sums.py").write_text(INSPECT_TASK)
    limits = [
        "--max-connections",
        str(concurrency),
        "--max-samples",
        str(concurrency),
        "--max-tokens",
        str(MAX_TOKENS),
    ]
    model = [
        "--model",
        "openai-api/bench/scripted",
        "--temperature",
        "0",
        "--display",
        "plain",
        "--log-dir",
        "inspect",
    ]
    command = [str(HOME / "inspect/bin/inspect"), "eval", "sums.py", *model, *limits]
    return command, {"BENCH_API_KEY": "none", "BENCH_BASE_URL": server.url}


def lm_eval(server: Scripted, concurrency: int) -> tuple[list[str], dict[str, str]]:
    (PLACE / "sums.yaml").write_text(json.dumps(LM_EVAL_TASK))
    model = f"model=scripted,base_url={server.url}/chat/completions,num_concurrent={concurrency},tokenized_requests=False"  # noqa: E501
    command = [
        str(HOME / "lm_eval/bin/lm_eval"),
        "--model",
        "local-chat-completions",
        "--model_args",
        model,
    ]
    command += [
        "--tasks",
        "sums",
        "--include_path",
        ".",
        "--apply_chat_template",
        "--output_path",
        "lm_eval",
        "--log_samples",
    ]
    return command, {"OPENAI_API_KEY": "none", "HF_HUB_OFFLINE": "1", "HF_HOME": str(PLACE / "hf")}


def flywheel(server: Scripted, concurrency: int) -> tuple[list[str], dict[str, str]]:
    own = {
        "FLYWHEEL_DATA_DIR": str(PLACE / "data"),
        "FLYWHEEL_ALLOW_PRIVATE_URLS": "1",
        "PYTHONPATH": str(Path.cwd()),
    }
    own |= {"DJANGO_SETTINGS_MODULE": "flywheel.settings"}
    command = [sys.executable, "-m", "bench.evaluation_speed"]
    made = subprocess.run(
        [*command, "--prepare", server.url],
        cwd=PLACE,
        env=clean() | own,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return [*command, "--worker", made.stdout.split()[-1]], own


def clean() -> dict[str, str]:
    return {
        key: value for key, value in os.environ.items() if key not in ("DATABASE_URL", "BROKER_URL")
    }


CONTENDERS = {"flywheel": flywheel, "inspect": inspect, "lm_eval": lm_eval}


def measured(name: str, server: Scripted, concurrency: int, tasks: int) -> dict[str, Any]:
    """One evaluation. Raises BenchError where it did not ask everything once or did not find three
    of four right.
    """
    command, known = CONTENDERS[name](server, concurrency)
    server.counted()
    began = time.perf_counter()
    done = subprocess.run(
        command, cwd=PLACE, env=clean() | known, capture_output=True, text=True, timeout=LONGEST_S
    )
    ended, found = time.perf_counter(), asdict(server.counted())
    first = found.pop("began")
    found |= {"stored_s": ended - first, "whole_s": ended - began}
    (PLACE / f"{name}.log").write_text(done.stdout + done.stderr)
    found["asked_per_s"] = found["questions"] / found["seconds"] if found["seconds"] else 0.0
    if done.returncode or found["questions"] != tasks or not re.search(r"\b0?\.75", done.stdout):
        raise BenchError(
            f"{name}: {found}, exit status {done.returncode}. Read {PLACE / name}.log."
        )
    if name == "flywheel":
        found |= json.loads(done.stdout.splitlines()[-1])
        taken, ended = found.pop(
            "job"
        )  # a worker runs already, the set is in its database, and it goes on afterwards
        found |= {"stored_s": ended - first, "whole_s": ended - taken}
    return found


def write_tasks(count: int) -> None:
    PLACE.mkdir(parents=True, exist_ok=True)
    rows = ({"id": n, "input": question(n), "target": right(n)} for n in range(count))
    (PLACE / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


# Ours: what a worker does with a job


def work(pk: str) -> dict[str, Any]:
    """Runs the evaluation that is in the database of the data folder."""
    from bench.triage import set_up

    set_up()
    from apps.core import runner
    from apps.core.models import JobState
    from apps.evals.models import EvalRun

    run = EvalRun.objects.get(pk=pk)
    began = time.perf_counter()
    runner.run(run)
    ended = time.perf_counter()  # the same clock in all processes of a machine
    mb = {
        who: round(resource.getrusage(of).ru_maxrss / 1024)
        for who, of in (("worker_mb", resource.RUSAGE_SELF), ("child_mb", resource.RUSAGE_CHILDREN))
    }
    run.refresh_from_db()
    if run.state != JobState.SUCCEEDED:
        raise BenchError(f"The evaluation ended as {run.state}: {run.error}")
    stored = run.samples.count()
    return {
        "job": (began, ended),
        "stored": stored,
        "success": run.samples.filter(success=True).count() / stored,
    } | mb


def prepared(url: str) -> str:
    """Makes the set, the server and the environment, and submits the evaluation; its id."""
    from bench.triage import set_up

    set_up()
    return str(
        submitted(
            url, [json.loads(line) for line in Path("tasks.jsonl").read_text().splitlines()]
        ).pk
    )


def submitted(url: str, rows: list[dict]) -> Any:
    from django.contrib.auth import get_user_model
    from django.utils import timezone

    from apps.core.actions import create_project
    from apps.environments.actions import save_environment, save_verifier
    from apps.environments.models import EnvironmentKind
    from apps.evals.actions import create_eval_set
    from apps.evals.canonical import canonical_hash
    from apps.evals.models import EvalSet, EvalSetState, Split, Task
    from apps.evals.submission import submit_eval
    from apps.registry.actions import register_endpoint
    from apps.registry.servers import add_server

    name = f"bench-{time.time_ns()}"
    user = get_user_model().objects.create_user(name)
    project = create_project(slug=name, name=name, by=user)
    server = add_server(
        project=project, fields={"name": "scripted", "base_url": url}, by=user, admin=True
    )
    model = register_endpoint(
        server=server, project=project, name="scripted", served_as="scripted", by=user
    )
    verifier = save_verifier(project=project, name="sum", spec={"kind": "exact"}, by=user)
    harness = {"temperature": 0.0, "max_new_tokens": MAX_TOKENS}
    environment = save_environment(
        project=project,
        slug="sums",
        kind=EnvironmentKind.SINGLE_TURN,
        harness=harness,
        verifier=verifier,
        by=user,
    )
    eval_set = create_eval_set(project=project, slug="sums", by=user)
    for start in range(0, len(rows), CHUNK):
        Task.objects.bulk_create(
            Task(
                project=project,
                eval_set=eval_set,
                key=f"sum-{row['id']}",
                split=Split.TRAIN,
                group=f"sum-{row['id']}",
                group_key=f"sum-{row['id']}",
                messages=(messages := [{"role": "user", "content": row["input"]}]),
                canonical_hash=canonical_hash(messages),
                expected={"answer": row["target"]},
            )
            for row in rows[start : start + CHUNK]
        )
    frozen = {
        "state": EvalSetState.FROZEN,
        "digest": "0" * 64,
        "frozen_at": timezone.now(),
        "frozen_by": user,
    }
    EvalSet.objects.filter(pk=eval_set.pk).update(
        **frozen
    )  # without the search for leaks, which is another benchmark
    eval_set.refresh_from_db()
    return submit_eval(
        project=project,
        eval_set=eval_set,
        split=Split.TRAIN,
        environment=environment,
        model_version=model,
        by=user,
        samples_per_task=1,
    )


# The report


def compared(server: Scripted, given: argparse.Namespace) -> dict[str, Any]:
    names = given.only.split(",")
    rounds: dict[str, list[dict]] = {name: [] for name in names}
    for _ in range(given.rounds):
        for name in random.sample(names, len(names)):
            rounds[name].append(measured(name, server, given.concurrency, given.tasks))
            print(name, json.dumps(rounds[name][-1]), flush=True)
    ideal = given.concurrency / (given.think_ms / 1000)
    medians = {
        name: {what: statistics.median(row[what] for row in rows) for what in MEASURES}
        for name, rows in rounds.items()
    }
    ours = medians.get("flywheel")
    ratios = {
        name: {
            "asked_per_s": round(ours["asked_per_s"] / its["asked_per_s"], 2),
            "stored_s": round(its["stored_s"] / ours["stored_s"], 2),
            "whole_s": round(its["whole_s"] / ours["whole_s"], 2),
        }
        for name, its in medians.items()
        if ours and its is not ours
    }
    share = {name: round(its["asked_per_s"] / ideal, 3) for name, its in medians.items()}
    return {
        "ideal_per_s": ideal,
        "share_of_ideal": share,
        "medians": medians,
        "ours_over": ratios,
        "rounds": rounds,
    }


def remembered(server: Scripted, given: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for tasks in given.sizes:
        write_tasks(tasks)
        found[tasks] = measured("flywheel", server, given.concurrency, tasks)
        print(tasks, json.dumps(found[tasks]), flush=True)
    return {"memory": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--think-ms", type=float, default=50.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(CONTENDERS))
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--prepare", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--worker", metavar="RUN", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.prepare or given.worker:
        print(prepared(given.prepare) if given.prepare else json.dumps(work(given.worker)))
        return
    stop_servers_on_sigterm()
    for name in set(PINS) & set(given.only.split(",")) if not given.memory else ():
        install(name)
    write_tasks(given.tasks)
    with started(given.think_ms / 1000) as server:
        found = {"machine": machine()} | (remembered if given.memory else compared)(server, given)
    OUT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "rounds"}, indent=1))


if __name__ == "__main__":
    main()
