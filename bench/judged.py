"""What the product finds with a judge of stated accuracy, on families of traffic with planted
failures. `python -m bench.judged [--data families-dev,families-sealed] [--seeds 20] [--rates 50,10]
[--projects 1]`

A scripted OpenAI-compatible server knows the truth and is right about a run with the stated
probability, whatever the run. So this measures what the product makes of a judge, and no judge.
Each answer that it can give about a run is asked for once, by the product's own questions over
HTTP, and combined with the rules as the product combines them. Forms of tool replies are counted in
each family; with a judge, those whose replies planted failures gave up on are read and confirmed.
`--projects` of each cell at the last rate are lived in full: runs arrive over the API, the
classification job and the judge's job run, people (who are always right) confirm forms of replies
and answer the random checks over the API, and the API says the failure rate; what these projects
find must be what was combined. Only figures are printed, never a run.
The database is made anew in var/bench/judged; writes var/bench/judged.json.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from apps.failures.classify import classify
from apps.failures.judge import reply_question
from apps.failures.judge.answer import Verdict
from apps.failures.judge.asking import Answered
from apps.failures.judge.client import Server
from apps.failures.judge.precedence import Label, choose
from apps.failures.judge.prompt import Mode, body_of, cut
from apps.failures.judge.strategies import WHOLE, Question
from apps.failures.rules.reading import read
from apps.failures.rules.reply_forms import Forms
from bench.families import DATA, families, share
from bench.good_runs import counted_of
from bench.peers import HOME, machine, wait_released
from bench.triage import on_folder
from tests.failures.judge_server import Reply, running, says
from workers.lib.prices import Price
from workers.lib.storable import storable

FOLDER = HOME / "judged"
ACCURACIES, SHARES = (0.7, 0.8, 0.9), (0.1, 0.3, 1.0)
GAVE_UP = "tool_error_unrecovered"
FINE, STEP, ELSEWHERE = "fine", "failed at the true step", "failed at another step"
RIGHT_STEP = 0.6  # of the failures that the judge sees
SURE = {True: (0.6, 1.0), False: (0.5, 0.9)}  # as it says; higher for a right one in 72% of pairs
FIRST = 20  # cases of the inbox
PRICE = Price(1.0, 4.0)  # USD per million tokens
BYTES_PER_TOKEN = 4
CHECKED = 0.15  # share of the runs that people check; five times that of what the rules flag
MODEL = "scripted"
MODES = {
    "wrong_entity": "wrong_arguments",
    "policy_broken": "policy_violation",
    "constraint_ignored": "wrong_arguments",
    "misread": "misread_tool_result",
    "privacy_leak": "policy_violation",
    "destructive_action": "unsafe_action",
    "wrong_format": "format_error",
    "broken_call": "wrong_arguments",
    "loop": "bad_planning",
}
QUOTED = re.compile(r"<run (\w+)>\n(.*)\n</run \1>", re.DOTALL)
Truth = dict[str, Any]
Runs = list[tuple[dict, Truth]]
Bodies = tuple[str, ...]
UNKNOWN = {"outcome_status": "unknown", "outcome_reason": ""}


# The judge


@dataclass
class Judge:
    """Gives the chosen answers about runs that it knows by their messages."""

    truths: dict[Bodies, Truth]
    chosen: Callable[[Truth], str]
    seed: int = 0
    failing: frozenset[str] = frozenset()

    def answer(self, body: dict[str, Any]) -> Reply:
        asked = "".join(message["content"] for message in body["messages"])
        if body["messages"][0]["content"] == reply_question.FRAME:
            return Reply(self.forms(asked))
        nonce, quoted = QUOTED.findall(asked)[-1]
        _, *parts = re.split(rf"^\[{nonce} #\d+ ([^\]]*)\]\n", quoted, flags=re.MULTILINE)
        roles, bodies = parts[::2], as_quoted(parts[1::2])
        if bodies not in self.truths:
            return Reply("This run is unknown.", 400)
        text = self.verdict(self.truths[bodies], roles, bodies)
        tokens = {
            "prompt_tokens": len(asked.encode()) // BYTES_PER_TOKEN,
            "completion_tokens": len(text.encode()) // BYTES_PER_TOKEN,
        }
        return Reply(text, usage=tokens | {"total_tokens": sum(tokens.values())})

    def forms(self, asked: str) -> str:
        """Of which forms all examples are replies to calls that failed for good."""
        found = []
        for number, part in enumerate(re.split(r"^Form \d+$", asked, flags=re.MULTILINE)[1:], 1):
            part = part.partition("\n</replies ")[0]
            replies = [line.partition(" → ")[2] for line in re.split(r"^- ", part, flags=re.M)[1:]]
            if all(reply.strip() in self.failing for reply in replies):
                found.append({"form": number, "quote": replies[0].strip()})
        return json.dumps({"failing": found})

    def verdict(self, truth: Truth, roles: list[str], bodies: Bodies) -> str:
        answer = self.chosen(truth)
        sure = random.Random(f"sure {self.seed} {truth['id']}").uniform(
            *SURE[truth["failed"] == (answer != FINE)]
        )
        if answer == FINE:
            return says(failed=False, confidence=sure, reason="It did what was asked.")
        steps = [index for index, role in enumerate(roles) if role.startswith("assistant")]
        true = truth["first_wrong_step"]
        seen = truth["cause"] or self.chance(truth).choice(self.causes)
        others = [index for index in steps if index != true] or steps
        at = true if answer == STEP and true in steps else self.chance(truth).choice(others)
        return says(
            failed=True,
            confidence=sure,
            mode=MODES.get(seen, "incomplete_execution"),
            message_index=at,
            quote=" ".join(bodies[at].split()[:8]),
            reason=f"Here it went wrong: {seen}.",
        )

    @cached_property
    def causes(self) -> list[str]:
        """As often as they are true: a judge that errs names any of them."""
        return [truth["cause"] for truth in self.truths.values() if truth["failed"]]

    @staticmethod
    def chance(truth: Truth) -> random.Random:
        return random.Random(truth["id"])


def as_quoted(bodies: Iterable[str]) -> Bodies:
    return tuple(body.strip() for body in bodies)


def answer_about(truth: Truth, accuracy: float, seed: int) -> str:
    """A better judge errs on some of the runs on which a worse one errs, and on no others."""
    chance = random.Random(f"{seed} {truth['id']}")
    is_right, sees_step = chance.random() < accuracy, chance.random() < RIGHT_STEP
    if truth["failed"] != is_right:
        return FINE
    return STEP if sees_step and truth["failed"] else ELSEWHERE


def failing_replies(items: Iterable[tuple[dict, Truth]]) -> frozenset[str]:
    """What the judge sees of replies on which a planted failure gave up, in its question."""
    found, fine = set(), set()
    for run, truth in items:
        calls = read({"messages": [], "tools": []} | run).calls
        replies = [as_asked(call.reply) for call in calls if call.reply]
        if truth["cause"] == GAVE_UP:
            before = [call for call in calls if call.index < (truth["first_wrong_step"] or 0)]
            found |= {as_asked(call.reply) for call in before[-1:] if call.reply}
        elif not truth["failed"]:
            fine.update(replies)
    return frozenset(found - fine)


def as_asked(reply: str) -> str:
    return storable(cut(reply, reply_question.LONGEST_REPLY)).strip()


# Cells: a judge, its share of the traffic, and how many of the runs fail


@dataclass(frozen=True)
class Cell:
    """`accuracy` 0: no judge."""

    rate: float
    accuracy: float = 0.0
    share: float = 0.0

    def __str__(self) -> str:
        return f"{self.accuracy:.0%} right, {self.share:.0%}" if self.accuracy else "facts alone"


def cells(rates: Iterable[float]) -> list[Cell]:
    judges = [(0.0, 0.0), *product(ACCURACIES, SHARES)]
    return [Cell(rate, *judge) for rate, judge in product(rates, judges)]


def traffic(by_family: Mapping[str, Runs], rate: float, seed: int) -> dict[str, Runs]:
    """All runs that went well, and so many of the failed ones."""
    chosen = {}
    for name, runs in by_family.items():
        fine = [item for item in runs if not item[1]["failed"]]
        failed = [item for item in runs if item[1]["failed"]]
        count = min(len(failed), round(len(fine) * rate / (1 - rate)))
        chosen[name] = fine + random.Random(f"{name} {seed}").sample(failed, count)
    return chosen


# Combined: what the rules and each possible answer make of each run


@dataclass(frozen=True)
class Known:
    """Of a run: the rules' diagnosis with the forms of replies counted, and with those confirmed
    that tell of a failed call; each answer of the judge with its cost in USD.
    """

    alone: Label
    rules: Label
    answers: dict[str, tuple[Verdict, float]]

    def after(self, answer: str | None) -> Label:
        return choose(self.rules, self.answers[answer][0]) if answer else self.rules

    @property
    def without_a_judge(self) -> Known:
        return replace(self, rules=self.alone)


def label_of(given: dict[str, Any], forms: Forms) -> Label:
    if (diagnosis := classify(given | {"forms": forms})) is None:
        return Label()
    evidence = [vars(item) for item in diagnosis.evidence]
    return Label(diagnosis.mode, diagnosis.blamed_message, evidence)


def confirmed(runs: Iterable[dict], judge: Judge) -> Forms:
    """What people, who are always right, confirm of what the judge reads."""
    counted = counted_of(runs)
    failing = [
        item.form
        for item in counted
        if all(as_asked(each.call.reply or "") in judge.failing for each in item.examples())
    ]
    return Forms(counted, failing)


def known_of(items: Sequence[tuple[dict, Truth]], judge: Judge, server: Server) -> dict[str, Known]:
    """Of the runs of one family, which is a project."""
    from apps.failures.actions.modes import DEFAULT_MODES
    from apps.failures.judge.rubrics import DEFAULT_TEXT

    modes = [Mode(slug, name, definition) for slug, name, _, _, definition in DEFAULT_MODES]
    known, runs = {}, [{"messages": [], "tools": []} | run for run, _ in items]
    counted, with_people = Forms(counted_of(runs)), confirmed(runs, judge)
    for run, truth in items:
        given = {name: run.get(name) or [] for name in ("messages", "tools", "interventions")}
        given |= UNKNOWN | {"metadata": run.get("metadata") or {}}
        question = Question.of(WHOLE, DEFAULT_TEXT, modes, given)
        answers = {}
        for answer in (FINE, STEP, ELSEWHERE) if truth["failed"] else (FINE, ELSEWHERE):
            judge.chosen = lambda _, answer=answer: answer
            answers[answer] = judged(question.ask(server), server)
        labels = [label_of(given, forms) for forms in (counted, with_people)]
        known[truth["id"]] = Known(*labels, answers)
    return known


def judged(found: Answered, server: Server) -> tuple[Verdict, float]:
    assert found.answer, found.error
    return found.answer, server.cost(found.usage)


def is_drawn(known: Known, cell: Cell, seed: int, run: str) -> bool:
    """All that the rules flag, as long as nobody sets another share."""
    return bool(known.rules.mode) or random.Random(f"draw {seed} {run}").random() < cell.share


def found_by(
    truths: Iterable[Truth],
    known: Mapping[str, Known],
    cell: Cell,
    seed: int,
    drawn: Collection[str],
) -> tuple[dict[str, int | None], float]:
    """{run: the blamed message} of what is in the inbox, and what the judge cost in USD."""
    found, usd = {}, 0.0
    for truth in truths:
        run, answer = truth["id"], None
        if run in drawn:
            answer = answer_about(truth, cell.accuracy, seed)
            usd += known[run].answers[answer][1]
        if (label := known[run].after(answer)).mode:
            found[run] = label.blamed
    return found, usd


def counted(chosen: Mapping[str, Runs], found: Mapping[str, int | None]) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for name, runs in chosen.items():
        count = counts.setdefault(name, Counter())
        for _, truth in runs:
            failed, is_found = truth["failed"], truth["id"] in found
            is_step = is_found and found[truth["id"]] == truth["first_wrong_step"]
            count += Counter(
                failed=failed,
                fine=not failed,
                found=failed and is_found,
                false=is_found and not failed,
                step=failed and is_step,
            )
        counts[name] = count
    return counts


def combined(
    by_family: Mapping[str, Runs], known: Mapping[str, Known], cell: Cell, seeds: int
) -> dict[str, Any]:
    families: dict[str, Counter[str]] = defaultdict(Counter)
    usd, runs = 0.0, 0
    if not cell.accuracy:
        known = {run: each.without_a_judge for run, each in known.items()}
    for seed in range(seeds):
        chosen = traffic(by_family, cell.rate, seed)
        truths = [truth for of_family in chosen.values() for _, truth in of_family]
        ids = [truth["id"] for truth in truths] if cell.accuracy else []
        drawn = {run for run in ids if is_drawn(known[run], cell, seed, run)}
        found, cost = found_by(truths, known, cell, seed, drawn)
        usd, runs = usd + cost, runs + len(truths)
        for name, count in counted(chosen, found).items():
            families[name] += count
    total = sum(families.values(), Counter())
    return {"families": families, "all": total, "usd": usd, "runs": runs}


# Lived: the same through the product


class World:
    """A project with this traffic."""

    def __init__(self, chosen: Mapping[str, Runs]) -> None:
        from django.contrib.auth import get_user_model
        from django.test import Client

        from apps.core.actions import create_api_key, create_project
        from apps.failures.outcomes import checks

        self.by = get_user_model().objects.get(username="admin")
        name = f"judged-{time.time_ns()}"
        self.project = create_project(slug=name, name=name, by=self.by)
        _, key = create_api_key(project=self.project, name="bench", by=self.by)
        self.client = Client(headers={"host": "localhost", "authorization": f"Bearer {key}"})
        self.truth = {truth["id"]: truth for runs in chosen.values() for _, truth in runs}
        checks.set_share(project=self.project, share=CHECKED, by=self.by)
        self.post("trajectories/batch", [run for runs in chosen.values() for run, _ in runs])

    def post(self, path: str, body: Any) -> Any:
        answer = self.client.post(f"/api/v1/{path}/", json.dumps(body), "application/json")
        assert answer.status_code in (200, 201, 202), answer.content[:500]
        return answer.json()

    def get(self, path: str) -> Any:
        return self.client.get(f"/api/v1/{path}/").json()

    def classify(self) -> None:
        from apps.core import runner
        from apps.failures import classify_job
        from apps.trajectories import digest

        digest.run()
        runner.run(classify_job.start(project=self.project, by=None))

    def truths(self) -> dict[Bodies, Truth]:
        """By the messages as they are stored: some came with what is kept apart."""
        from apps.trajectories.models import with_content

        rows = with_content(list(self.project.trajectories.order_by("pk")))
        return {
            as_quoted(map(body_of, row.content["messages"])): self.truth[row.external_id]
            for row in rows
        }

    def read_replies(self) -> Forms:
        """Recent replies are read, by the judge if there is one, and people confirm what is right;
        what classification knows then.
        """
        from apps.failures.judge import reply_reading
        from apps.failures.replies import forms_of

        report = reply_reading.look(self.project)
        assert not report.errors, report
        if proposed := self.project.reply_forms.filter(state="proposed"):
            forms = [row.pk for row in proposed]
            self.post("reply-forms/decide", {"forms": forms, "state": "confirmed"})
        self.classify()
        return forms_of(self.project)

    def switch_on(self, url: str) -> None:
        from apps.failures.judge import rubrics

        self.post("model-prices", {"model": MODEL, "input": PRICE.input, "output": PRICE.output})
        fields = {
            "text": rubrics.DEFAULT_TEXT,
            "base_url": url,
            "model": MODEL,
            "key_variable": "",
            "usd_per_day": 1e6,
        }
        rubrics.save_version(project=self.project, fields=fields, by=self.by)
        rubrics.switch(project=self.project, version=1, by=self.by)

    def judge(self, share_of_traffic: float) -> float:
        """What it cost, in USD."""
        from apps.failures.judge import judging, rubrics, share

        before = rubrics.account_of(self.project).usd
        given = share.SharesChange(unflagged=share_of_traffic, first=0)
        share.set_shares(project=self.project, by=self.by, given=given)
        while (report := judging.judge_new(self.project)).asked:
            assert not report.errors, report
        return rubrics.account_of(self.project).usd - before

    def known(self, known: Mapping[str, Known], forms: Forms) -> dict[str, Known]:
        """With what the rules say in this project, whose forms are those of all families."""
        from apps.failures.actions.diagnose import as_input
        from apps.trajectories.models import with_content

        rows = with_content(list(self.project.trajectories.order_by("pk")))
        labels = {row.external_id: label_of(as_input(row) | UNKNOWN, forms) for row in rows}
        return {run: replace(known[run], alone=it, rules=it) for run, it in labels.items()}

    def drawn(self) -> set[str]:
        from apps.failures.models import JudgeVerdict

        rows = JudgeVerdict.objects.filter(rubric__project=self.project)
        return set(rows.values_list("trajectory__external_id", flat=True))

    def found(self) -> dict[str, int | None]:
        rows = self.project.failures.standing()
        return dict(rows.values_list("trajectory__external_id", "blamed_message"))

    def first(self, sort: str) -> int:
        """How many of the first open cases are failures."""
        from apps.failures.triage_queue import TriageQueue

        queue, place, right = TriageQueue(self.project, self.by, {"sort": sort}), None, 0
        for _ in range(min(FIRST, queue.rows().count())):
            case = self.case(queue.next(place))
            place = queue.position_of(case)
            right += self.truth[case.trajectory.external_id]["failed"]
        return right

    def case(self, pk: int | None) -> Any:
        return self.project.failures.select_related("mode", "trajectory").get(pk=pk)

    def triage(self, count: int) -> None:
        """People decide on the first cases in the usual order."""
        from apps.failures.actions.decisions import decide
        from apps.failures.models import FailureState
        from apps.failures.triage_queue import TriageQueue

        for _ in range(count):
            if (pk := TriageQueue(self.project, self.by, {}).next()) is None:
                return
            case = self.case(pk)
            failed = self.truth[case.trajectory.external_id]["failed"]
            state = FailureState.CONFIRMED if failed else FailureState.DISMISSED
            decide(failure=case, by=self.by, state=state)

    def checked(self) -> dict[str, Any]:
        """The failure rate that the API says after people have answered all checks."""
        after = self.get("outcomes/checks")
        while after["trajectory"] and after["random"]:
            run = after["trajectory"]
            answer = "failed" if self.truth[run]["failed"] else "fine"
            after = self.post("outcomes/checks", {"trajectory": run, "answer": answer})
        return self.get("outcomes")["failure_rate"]


def lived(
    by_family: Mapping[str, Runs],
    known: Mapping[str, Known],
    cell: Cell,
    seed: int,
    judge: Judge,
    url: str,
) -> dict[str, Any]:
    world = World(traffic(by_family, cell.rate, seed))
    world.classify()
    judge.truths |= world.truths()
    judge.chosen, judge.seed = (lambda truth: answer_about(truth, cell.accuracy, seed)), seed
    if cell.accuracy:
        world.switch_on(url)
    known = world.known(known, world.read_replies())
    usd = world.judge(cell.share) if cell.accuracy else 0.0
    found, cost = found_by(world.truth.values(), known, cell, seed, world.drawn())
    assert world.found() == found, f"{cell}: the product found something else than was combined"
    assert abs(usd - cost) <= cost / 50, f"{cell}: the product paid ${usd}, not ${cost}"
    truth = sum(truth["failed"] for truth in world.truth.values()) / len(world.truth)
    first = [world.first(sort) for sort in ("", "likeliest")]
    world.triage(FIRST)
    first += [world.first(sort) for sort in ("", "likeliest")]
    rate = world.checked()
    return {
        "cell": vars(cell),
        "inbox": len(found),
        "first": first,
        "truth": truth,
        "rate": rate,
        "covered": rate["low"] <= truth <= rate["high"],
    }


# The report


def of(count: Mapping[str, int], hits: str, n: str) -> str:
    return share(count.get(hits, 0), count.get(n, 0))


def percent(count: Mapping[str, int], hits: str, n: str) -> str:
    return f"{count.get(hits, 0) / count[n]:.0%}" if count.get(n) else "–"


def show(console: Console, rate: float, results: Mapping[Cell, dict[str, Any]]) -> None:
    alone = results[Cell(rate)]["all"]["found"]
    columns = ("judge", "recall", "false alarms", "of the found are failures", "step")
    table = Table(
        *columns,
        "$ per 1,000 runs",
        "$ per failure added",
        title=f"{rate:.0%} of the runs failed",
    )
    for cell, row in results.items():
        count, more = row["all"], row["all"]["found"] - alone
        table.add_row(
            str(cell),
            of(count, "found", "failed"),
            of(count, "false", "fine"),
            share(count["found"], count["found"] + count["false"]),
            of(count, "step", "found"),
            f"{1000 * row['usd'] / row['runs']:.2f}",
            f"{row['usd'] / more:.4f}" if more else "–",
        )
    console.print(table)
    pairs = (("found", "failed"), ("false", "fine"), ("step", "found"))
    table = Table("family", *map(str, results), title="recall · false alarms · step")
    for name in (*results[Cell(rate)]["families"], "all"):
        counts = [row["families"].get(name) or row["all"] for row in results.values()]
        table.add_row(
            name, *(" · ".join(percent(count, *pair) for pair in pairs) for count in counts)
        )
    console.print(table)


def show_projects(console: Console, projects: Iterable[dict[str, Any]]) -> None:
    columns = ("judge", "failed", "the API says", "checks", "covered", "inbox")
    orders = ("severe first", "likeliest first", "severe, then", "likeliest, then")
    title = f"Projects; failures among the first {FIRST} cases, before and after {FIRST} decisions"
    table = Table(*columns, *orders, title=title)
    for row in projects:
        rate = row["rate"]
        interval = f"{rate['value']:.1%} [{rate['low']:.1%}, {rate['high']:.1%}]"
        covered = "yes" if row["covered"] else "no"
        numbers = map(str, (row["inbox"], *row["first"]))
        cell, truth = Cell(**row["cell"]), f"{row['truth']:.1%}"
        table.add_row(str(cell), truth, interval, str(rate["n"]), covered, *numbers)
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="families-dev,families-sealed")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rates", default="50,10", help="percent of the runs that failed")
    parser.add_argument("--projects", type=int, default=1, help="of each cell at the last rate")
    given = parser.parse_args()
    wait_released(FOLDER)
    shutil.rmtree(FOLDER, ignore_errors=True)
    on_folder(FOLDER)
    by_family = {
        name: runs
        for file in given.data.split(",")
        for name, runs in families(DATA / f"{file}.tar.xz")
    }
    rates = [float(rate) / 100 for rate in given.rates.split(",")]
    items = [item for runs in by_family.values() for item in runs]
    truths = {as_quoted(map(body_of, run["messages"])): truth for run, truth in items}
    judge = Judge(truths, lambda truth: FINE, failing=failing_replies(items))
    console, projects = Console(width=230), list[dict[str, Any]]()
    with running() as http:
        http.answer = judge.answer
        server = Server(http.url, MODEL, "", allow_private=True, price=PRICE)
        known: dict[str, Known] = {}
        for runs in track(by_family.values(), "Asking the judge", console=console):
            known |= known_of(runs, judge, server)
        results = {cell: combined(by_family, known, cell, given.seeds) for cell in cells(rates)}
        for rate in rates:
            show(console, rate, {cell: row for cell, row in results.items() if cell.rate == rate})
        for seed, cell in product(range(given.projects), cells(rates[-1:])):
            projects.append(lived(by_family, known, cell, seed, judge, http.url))
            console.print(f"{cell}: the project found the same")
    show_projects(console, projects)
    rows = [vars(cell) | row for cell, row in results.items()]
    report = {"machine": machine(), "data": given.data, "seeds": given.seeds, "cells": rows}
    (HOME / "judged.json").write_text(json.dumps(report | {"projects": projects}, indent=1))


if __name__ == "__main__":
    main()
