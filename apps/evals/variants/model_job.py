"""Variants that a model writes: a job of an eval set, run by NeMo Data Designer in a process and environment of its own.

What is known of the job lies in a folder of the set below the data folder, the last one only. It is done once: a job
that was lost halfway has cost money already, so that a person decides whether to begin again. What comes back goes the
same way as the templates' variants: `batches.store_batch`. Before the start it is estimated what the answers cost in
tokens; more than a limit are never used, and what was used is told however the job ends.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from celery import current_app
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import close_old_connections, connection, transaction
from kombu.exceptions import OperationalError

from apps.core.actions import audit
from apps.core.child import PASSED_ENV, Child
from apps.core.models import Project, Role
from apps.core.outgoing_keys import key_of
from apps.environments.clients import judge_of
from apps.evals import actions
from apps.evals.formats.rows import Bad
from apps.evals.models import EvalSet, Task
from apps.evals.variants import batches, from_model
from apps.evals.variants.templates import ARGUMENTS, Seed
from workers.lib.keys import RefusedKey
from workers.lib.outgoing import RefusedAddress, check_url
from workers.lib.variants.requests import Cost, expected

log = logging.getLogger(__name__)
TASK = "evals.write_variants"
QUEUE = "eval"
MOST_ASKED = 2_000  # answers of one job
TIMEOUT_S = 60  # for one answer
LONGEST_S = 3 * 3600.0
BEAT_S, LOST_AFTER_S, RESENT_AFTER_S = 2.0, 180.0, 20.0
ACTIVE = ("queued", "running")
ABSENT = "NeMo Data Designer is not installed here. Whoever runs this Flywheel can add it with “make designer”."
LOST = "The worker was lost on the way. Nothing was stored; start it again."


@dataclass(frozen=True)
class Wanted:
    """Whom to ask, and for what."""

    base_url: str
    model: str
    key_variable: str
    kinds: list[str]
    each: int
    tokens: int = 0  # at most; 0: Cost.most_tokens


def is_installed() -> bool:
    return shutil.which(settings.FLYWHEEL_DESIGNER_PYTHON) is not None


def judge_server(project: Project) -> dict[str, str] | None:
    """Where the judge of the project is, if it is switched on."""
    server = judge_of(project)
    return server and {"base_url": server.base_url, "model": server.model, "key_variable": server.key_variable}


# Starting


@transaction.atomic
def submit(*, eval_set: EvalSet, wanted: Wanted, by: Any) -> None:
    """Leaves the job to a worker. Raises EvalSetError for all that can be known before the first question."""
    if not is_installed():
        raise actions.EvalSetError(ABSENT)
    _check_server(eval_set.project, wanted, by)
    eval_set = actions.locked_draft(eval_set)
    cost = cost_of(batches.usable_seeds(eval_set), wanted)
    limit = wanted.tokens or cost.most_tokens
    if limit < cost.dearest:
        raise actions.EvalSetError(f"One question may need up to {cost.dearest:,} tokens. Allow at least so many.")
    if is_active(state_of(eval_set.pk)):
        raise actions.EvalSetError("A model writes variants for this set already. Wait for it, or stop it.")
    job = {"id": uuid.uuid4().hex, "state": "queued", "set": str(eval_set.pk), "by": by.pk if by else None,
           "wanted": asdict(wanted) | {"tokens": limit}, "done": 0, "total": cost.questions, "expected": cost.tokens,
           "prices": prices_of(eval_set.project, wanted)}  # fmt: skip
    shutil.rmtree(home_of(eval_set.pk), ignore_errors=True)
    home_of(eval_set.pk).mkdir(parents=True)
    _write(job)
    audit("variants.asked_for", project=eval_set.project, by=by, target=eval_set, name=str(eval_set),
          asked=cost.questions, server=wanted.base_url, model=wanted.model, kinds=wanted.kinds, most_tokens=limit)  # fmt: skip
    transaction.on_commit(lambda: _send(job))


def _check_server(project: Project, wanted: Wanted, by: Any) -> None:
    """Whether the address may be called and the key go there. Raises EvalSetError. The judge's server is an admin's choice."""
    judge = judge_server(project) or {}
    is_judges = (wanted.base_url, wanted.key_variable) == (judge.get("base_url"), judge.get("key_variable"))
    is_admins = is_judges or project.memberships.filter(user=by, role=Role.ADMIN).exists()
    try:
        host = check_url(wanted.base_url, allow_private=settings.FLYWHEEL_ALLOW_PRIVATE_URLS).host
        key_of(wanted.key_variable, host, admin=is_admins)
    except (RefusedAddress, RefusedKey) as error:
        raise actions.EvalSetError(str(error)) from error


def cost_of(seeds: list[Task], wanted: Wanted) -> Cost:
    """What is to be expected. Raises EvalSetError where nothing, or too much, would be asked."""
    _count(seeds, wanted)
    return expected(spec_of(seeds, wanted))


def prices_of(project: Project, wanted: Wanted) -> list[float]:
    """US dollars for a million tokens in and out, where they are known: of the judge's server and model. Else none."""
    judge = judge_of(project)
    if judge is None or (judge.base_url, judge.model) != (wanted.base_url, wanted.model):
        return []
    prices = [judge.usd_per_million_input, judge.usd_per_million_output]
    return prices if any(prices) else []


def _count(seeds: list[Task], wanted: Wanted) -> int:
    asked = wanted.each * sum(len(_kinds(task, wanted)) for task in seeds)
    if not asked:
        raise actions.EvalSetError("No confirmed task ends with a request in plain text that could be said otherwise.")
    if asked > MOST_ASKED:
        raise actions.EvalSetError(f"The model would be asked {asked:,} times; at most {MOST_ASKED:,}. Choose fewer.")
    return asked


def _kinds(task: Task, wanted: Wanted) -> list[str]:
    if not from_model.may_be_asked_about(batches.seed_of(task)):
        return []
    has_calls = bool(from_model.calls_of(task.expected))
    return [kind for kind in wanted.kinds if has_calls or kind != ARGUMENTS]


def _send(job: dict) -> None:
    try:
        current_app.send_task(TASK, args=[job["set"], job["id"]], queue=QUEUE, retry=False)
    except (OperationalError, OSError) as error:
        log.warning("The variants of %s wait for the broker: %s", job["set"], error)


# What is known of it


def home_of(set_id: Any) -> Path:
    return Path(settings.FLYWHEEL_DATA_DIR) / "variant_jobs" / uuid.UUID(str(set_id)).hex


def state_of(set_id: Any) -> dict | None:
    """{id, state, set, wanted, done, total, expected, prices, used?, result?, error?} of the set's last job; None where there was none."""
    try:
        return json.loads((home_of(set_id) / "job.json").read_text())
    except (OSError, ValueError):
        return None


def is_active(job: dict | None) -> bool:
    return job is not None and job["state"] in ACTIVE


def is_stopping(job: dict) -> bool:
    """Whether a person asked it to stop, and it still waits for what is under way."""
    return is_active(job) and _stop_file(job).exists()


def _stop_file(job: dict) -> Path:
    return home_of(job["set"]) / f"stop-{job['id']}"


def _write(job: dict) -> None:
    """Whole or not at all."""
    home = home_of(job["set"])
    part = home / f"job.{uuid.uuid4().hex}"
    part.write_text(json.dumps(job | {"at": time.time()}))
    part.replace(home / "job.json")


def settle_lost() -> int:
    """Sends a job again that nobody has begun; ends one whose worker is gone. Returns how many."""
    folder = Path(settings.FLYWHEEL_DATA_DIR) / "variant_jobs"
    homes = [home for home in folder.iterdir() if home.is_dir()] if folder.is_dir() else []
    return sum(settle(job) for home in homes if (job := state_of(home.name)))


def settle(job: dict) -> bool:
    """The same for one job; says whether it did something."""
    age = time.time() - job["at"]
    if job["state"] == "queued" and age > RESENT_AFTER_S:
        _write(job)
        _send(job)
        return True
    if job["state"] == "running" and age > LOST_AFTER_S:
        _write(job | {"state": "failed", "error": LOST})
        return True
    return False


def stop(*, eval_set: EvalSet, by: Any) -> None:
    """Asks the job to stop; nothing of it is stored. Raises EvalSetError where none goes on."""
    job = state_of(eval_set.pk)
    if job is None or job["state"] not in ACTIVE:
        raise actions.EvalSetError("No model writes variants for this set now.")
    _stop_file(job).touch()
    if job["state"] == "queued" and _claim(job):
        _write(job | {"state": "cancelled"})
    audit("variants.stopped", project=eval_set.project, by=by, target=eval_set, name=str(eval_set))


# Doing it


def run(set_id: str, job_id: str) -> None:
    """The body of the task: once for each job."""
    job = state_of(set_id)
    if job is None or job["id"] != job_id or job["state"] != "queued" or not _claim(job):
        return
    _write(job := job | {"state": "running"})
    try:
        ending = _design(job)
    except actions.EvalSetError as error:
        ending = {"state": "failed", "error": str(error)}
    except EvalSet.DoesNotExist:
        ending = {"state": "failed", "error": "The eval set was deleted meanwhile."}
    except Exception:  # the job's boundary
        log.exception("The variants of %s could not be made", set_id)
        ending = {"state": "failed", "error": "Something went wrong in the worker; its log says what."}
    if _is_current(job):
        _write(job | ending)
        _tidy(home_of(set_id))


def _tidy(home: Path) -> None:
    """What was asked and answered is in the tasks now, or was not wanted."""
    (home / "spec.json").unlink(missing_ok=True)
    shutil.rmtree(home / "out", ignore_errors=True)


def _is_current(job: dict) -> bool:
    """Whether no other job took this one's place, as it may after LOST_AFTER_S."""
    now = state_of(job["set"])
    return now is not None and now["id"] == job["id"]


def _claim(job: dict) -> bool:
    """Whether this process is the first to take the job."""
    try:
        (home_of(job["set"]) / f"claim-{job['id']}").open("x").close()
    except FileExistsError:
        return False
    return True


def _design(job: dict) -> dict:
    """{state, result?, done?}. Raises EvalSetError."""
    eval_set = EvalSet.objects.select_related("project").get(pk=job["set"])
    wanted = Wanted(**job["wanted"])
    seeds = batches.usable_seeds(eval_set)
    try:
        told = ask(job, spec_of(seeds, wanted))
    finally:
        if not connection.in_atomic_block:
            close_old_connections()  # that was long, and nothing was asked of the database meanwhile
        _note_use(eval_set, job)
    if told is None:
        return {"state": "cancelled"}
    with transaction.atomic():
        by = get_user_model().objects.filter(pk=job["by"]).first()
        result = store(eval_set=eval_set, rows=_rows(home_of(job["set"]) / "out" / "rows.jsonl"), wanted=wanted, by=by)
    told = {name: told.get(name) for name in ("asked", "failed", "stopped")}
    return {"state": "succeeded", "result": result | told, "done": told["asked"]}


def _note_use(eval_set: EvalSet, job: dict) -> None:
    """For ever, however the job ends: the next one takes the place of what is known of this one."""
    by = get_user_model().objects.filter(pk=job["by"]).first()
    used = job.get("used") or dict.fromkeys(("calls", "input_tokens", "output_tokens", "estimated"), 0)
    audit("variants.model_asked", project=eval_set.project, by=by, target=eval_set, name=str(eval_set),
          model=job["wanted"]["model"], **used)  # fmt: skip


def spec_of(seeds: list[Task], wanted: Wanted) -> dict:
    """What the child is told (workers.write_variants)."""
    server = {
        "base_url": wanted.base_url, "model": wanted.model, "api_key_env": wanted.key_variable,
        "allow_private": settings.FLYWHEEL_ALLOW_PRIVATE_URLS, "timeout_s": TIMEOUT_S,
    }  # fmt: skip
    asked = [task for task in seeds if _kinds(task, wanted)]
    told = [
        {
            "key": str(task.pk),
            "messages": task.messages,
            "calls": from_model.calls_of(task.expected),
            "tools": task.tools,
        }
        for task in asked
    ]
    return {"server": server, "seeds": told, "kinds": wanted.kinds, "each": wanted.each, "most_tokens": wanted.tokens}


def _rows(path: Path) -> Iterator[Any]:
    with path.open() as file:
        for line in file:
            yield json.loads(line)


def store(*, eval_set: EvalSet, rows: Iterator[Any], wanted: Wanted, by: Any) -> dict:
    """The rows as a batch that waits: {batch, made, faulty, alike, guarded, problem}. Raises EvalSetError."""
    eval_set = actions.locked_draft(eval_set)
    seeds = {str(task.pk): task for task in batches.usable_seeds(eval_set)}
    found: list[tuple[Task, Seed]] = []
    problems: list[str] = []
    for row in rows:
        try:
            task = seeds.get(from_model.key_of(row))
            if task is None:
                raise Bad("verifier_metadata.key", "names no seed of now.")
            found.append((task, from_model.variant(batches.seed_of(task), row)))
        except Bad as error:
            problems.append(str(error))
    source = {"by": batches.MODEL, "model": wanted.model}
    made = batches.store_batch(eval_set=eval_set, found=found, source=source, by=by)
    counts = asdict(made) | {"faulty": made.faulty + len(problems), "problem": problems[0] if problems else ""}
    if not made.made:
        raise actions.EvalSetError(f"{batches.NONE} {left_out(counts)}")
    return counts


def left_out(counts: dict) -> str:
    """What became of the rest, in words."""
    return (
        f"Left out: {counts['faulty']:,} faulty, {counts['alike']:,} like another, {counts['guarded']:,} too near to a "
        "hold-out."
    )


# The child


def ask(job: dict, spec: dict) -> dict | None:
    """Runs the child to its end: its result, or None where it was stopped. Raises EvalSetError with its words."""
    home = home_of(job["set"])
    child = _start(home, spec | {"out_dir": str(home / "out")})
    stopped = False
    try:
        stopped = _follow(child, job, _stop_file(job))
    finally:
        status = child.close()
    if stopped:
        return None
    if status == 0 and child.result is not None:
        return child.result
    words = (child.error or {}).get(
        "message"
    ) or f"It ended with status {status}. {child.last_line_of_stderr()}".strip()
    raise actions.EvalSetError(str(words))


def _start(home: Path, spec: dict) -> Child:
    spec_path, stderr_path = home / "spec.json", home / "stderr.log"
    spec_path.write_text(json.dumps(spec))
    read_fd, write_fd = os.pipe()
    names = (*PASSED_ENV, spec["server"]["api_key_env"])
    env = {name: os.environ[name] for name in names if name in os.environ and name != "VIRTUAL_ENV"}
    env |= {"FLYWHEEL_EVENTS_FD": str(write_fd), "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(settings.BASE_DIR)}
    command = [settings.FLYWHEEL_DESIGNER_PYTHON, "-m", "workers.write_variants", str(spec_path)]
    try:
        with stderr_path.open("wb") as stderr:
            process = subprocess.Popen(
                command, cwd=settings.BASE_DIR, env=env, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
                pass_fds=[write_fd], start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        os.close(read_fd)
        raise actions.EvalSetError(ABSENT) from error
    finally:
        os.close(write_fd)
    return Child(process, read_fd, stderr_path)


def _follow(child: Child, job: dict, stop_file: Path) -> bool:
    """Until the child closes its pipe. Keeps its progress; says whether it was stopped by a person or another job."""
    ends, ended, stopped = time.monotonic() + LONGEST_S, False, False
    while not ended:
        events, ended = child.read(timeout=BEAT_S)
        for event in events:
            _hear(child, job, event)
        stopped = stopped or stop_file.exists() or not _is_current(job)
        if stopped or time.monotonic() > ends:
            child.ask_to_stop()
        if not stopped:
            _write(job)
    return stopped


def _hear(child: Child, job: dict, event: dict) -> None:
    if event["type"] == "progress":
        job |= {"done": int(event["done"]), "total": int(event["total"])}
    elif event["type"] == "metric":
        job["used"] = {name: int(value) for name, value in event["values"].items()}
    elif event["type"] == "result":
        child.result = event
    elif event["type"] == "error":
        child.error = event
