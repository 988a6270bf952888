"""Outcome inference on tau-bench with the outcomes taken away: recall, false alarms, calibration,
what comparing runs of the same request adds, which contradictions the runs show, how many decisions
are needed, and what an estimate costs. Recall is also given at several shares of false alarms, with
intervals that redraw whole tasks. `python -m bench.outcomes [--odd] [--file PATH]`

“Policy rules confirmed”: as if a person had confirmed every rule that was read from the system
prompt.

The runs are halved by the SHA-256 of the task id, so that all trials of a task are on one side.
Signs, weights and the threshold were chosen on the even half alone; without --odd the other is not
read. Writes var/bench/outcomes.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from apps.core.intervals import wilson
from apps.failures.classify import classify
from apps.failures.outcomes.features import Facts, Features, Usual, features, sizes
from apps.failures.outcomes.model import PRIOR, logistic
from apps.failures.outcomes.peers import NOBODY, Comparison, Peers, Sketch
from apps.failures.outcomes.prior import FROM_FEW
from apps.failures.outcomes.signals import signals
from apps.failures.outcomes.training import Example, TooFew, measures, train
from apps.failures.rules import conditions
from apps.failures.rules.reading import Run, read, system_of
from apps.failures.rules.violations import violations
from apps.trajectories.importers.tau_bench import rows
from bench.failures import ROOT, given, tau_inputs
from bench.peers import machine

FALSE_ALARMS, GOAL_RECALL = 0.10, 0.60
DECISIONS, DRAWS = (0, 20, 50, 75), 20
SHARES, REDRAWN = (0.05, 0.10, 0.15, 0.20, 0.30), 500
ALONE, BY_WORDS, BY_TASK = "each run alone", "same request by its words", "same request by its task"
console = Console(width=150)


def half_of(run: dict) -> str:
    digest = hashlib.sha256(str(run["metadata"]["task_id"]).encode()).hexdigest()
    return "odd" if int(digest, 16) % 2 else "even"


def runs_of(path: str) -> list[dict]:
    """The runs of a file that tau-bench wrote; the messages of another role than OpenAI's four are
    left out.
    """
    records = json.loads(Path(path).read_text())
    for record in records:
        record["traj"] = [
            item
            for item in record["traj"]
            if item["role"] in ("system", "user", "assistant", "tool")
        ]
    return [given(row) for _, row in rows(enumerate(records), "tau-bench")]


def without_truth(run: dict) -> dict:
    return run | {"outcome_status": "unknown", "outcome_reason": "", "metadata": {}}


def confirmed(run: dict) -> dict:
    """A run of a project in which a person has confirmed all rules of its system prompt."""
    rules = conditions.rules_of(system_of(run["messages"]))
    return run | {"rule_states": {conditions.key_of(rule): conditions.CONFIRMED for rule in rules}}


def examples_of(runs: list[dict], same: str = BY_WORDS) -> list[Example]:
    """Sizes are compared within the runs given, as within a project; so are those of the same
    request.
    """
    read_runs = [read(without_truth(run)) for run in runs]
    usual = Usual.of(sizes(item, Facts()) for item in read_runs)
    return [
        Example(
            features(item, Facts(), usual, words=True, compared=compared),
            run["outcome_status"] == "failure",
            run["metadata"]["task_id"],
        )
        for item, compared, run in zip(
            read_runs, comparisons(read_runs, runs, same), runs, strict=True
        )
    ]


def comparisons(read_runs: list[Run], runs: list[dict], same: str) -> list[Comparison]:
    """Of each run with the others of its request, as `same` says how these are found."""
    if same == ALONE:
        return [NOBODY] * len(runs)
    tasks = [str(run["metadata"]["task_id"]) if same == BY_TASK else "" for run in runs]
    sketches = [Sketch.of(item, task) for item, task in zip(read_runs, tasks, strict=True)]
    peers = Peers(range(len(sketches)), sketches)
    return [peers.compare(at, sketch) for at, sketch in enumerate(sketches)]


def report(runs: list[dict], same: str) -> dict[str, Any]:
    examples = examples_of(runs, same)
    failed = np.array([example.failed for example in examples], dtype=float)
    shipped = np.array([PRIOR.log_odds(example.run) for example in examples])
    groups = [example.group for example in examples]
    rules = np.array([classify(without_truth(run)) is not None for run in runs])
    policies = np.array([classify(confirmed(without_truth(run))) is not None for run in runs])
    flagged = np.array([logistic(score) for score in shipped]) >= PRIOR.threshold
    found: dict[str, Any] = {
        "rules alone": _shares(rules, failed),
        "rules alone, policy rules confirmed": _shares(policies, failed),
        "no decisions: shipped weights and threshold": (
            measured(shipped, failed, PRIOR.threshold)
            | (curve(shipped, failed, groups) if same == BY_WORDS else {})
        ),
        "no decisions, policy rules confirmed": _shares(flagged | policies, failed),
    }
    try:
        trained = train(examples)
    except TooFew as error:
        found["all decisions, cross-validated"] = str(error)
        return found
    out = np.log(trained.out_of_fold / (1 - trained.out_of_fold))
    found["all decisions, cross-validated"] = (
        measured(out, failed, trained.weights.threshold)
        | (curve(out, failed, groups) if same == BY_WORDS else {})
        | {name: trained.measured[name] for name in ("learned", "brier_fitted", "brier_shipped")}
    )
    flagged = trained.out_of_fold >= trained.weights.threshold
    found["all decisions, policy rules confirmed"] = _shares(flagged | policies, failed)
    return found


def measured(scores: np.ndarray, failed: np.ndarray, threshold: float) -> dict[str, Any]:
    given = measures(scores, failed, threshold)
    p = np.array([logistic(score) for score in scores])
    return (
        {name: given[name] for name in ("auc", "brier", "bins")}
        | _shares(p >= threshold, failed)
        | {"threshold": round(threshold, 3)}
    )


def curve(
    scores: np.ndarray, failed: np.ndarray, groups: Sequence[str], seed: int = 0
) -> dict[str, Any]:
    """Recall at SHARES of false alarms, and 95% intervals of the AUC and of the recall at
    FALSE_ALARMS, by redrawing tasks.
    """
    names, at = np.unique(groups, return_inverse=True)
    members = [np.flatnonzero(at == number) for number in range(len(names))]
    draw = np.random.default_rng(seed)
    aucs, recalls = [], []
    for _ in range(REDRAWN):
        rows = np.concatenate(
            [members[number] for number in draw.integers(len(names), size=len(names))]
        )
        if 0 < failed[rows].sum() < len(rows):
            aucs.append(_auc(scores[rows], failed[rows]))
            recalls.append(_recall(scores[rows], failed[rows], FALSE_ALARMS))
    return {
        "recall_at": {f"{share:.0%}": round(_recall(scores, failed, share), 3) for share in SHARES},
        "auc_interval": [round(float(edge), 3) for edge in np.quantile(aucs, (0.025, 0.975))],
        "recall_interval": [round(float(edge), 3) for edge in np.quantile(recalls, (0.025, 0.975))],
    }


def _auc(scores: np.ndarray, failed: np.ndarray) -> float:
    above = scores[failed == 1][:, None] - scores[failed == 0]
    return float((above > 0).mean() + (above == 0).mean() / 2)


def _recall(scores: np.ndarray, failed: np.ndarray, share: float) -> float:
    """The share of failures above the score that lets in at most a share of the runs that went
    well.
    """
    fine = np.sort(scores[failed == 0])[::-1]
    return float((scores[failed == 1] > fine[int(share * len(fine))]).mean())


def _shares(above: np.ndarray, failed: np.ndarray) -> dict[str, Any]:
    hits, alarms = int((above & (failed == 1)).sum()), int((above & (failed == 0)).sum())
    bad, fine = int(failed.sum()), int((failed == 0).sum())
    return {"recall": _share(hits, bad), "false alarms": _share(alarms, fine)}


def _share(hits: int, n: int) -> str:
    low, high = wilson(hits, n)
    return f"{hits} of {n} = {hits / max(n, 1):.0%} ({low:.0%} to {high:.0%})"


def contradictions_shown(runs: list[dict]) -> dict[str, list[int]]:
    """Sign → [failed runs that show it, runs that went well that do]; the last two rows are any of
    them, and the number of runs.
    """
    counts = {name: [0, 0] for name in (*sorted(FROM_FEW), "any of them", "runs")}
    for run in runs:
        found = {sign.name for sign in signals(read(without_truth(run)))} & counts.keys()
        for name in found | {"runs"} | ({"any of them"} if found else set()):
            counts[name][run["outcome_status"] != "failure"] += 1
    return counts


def rules_broken(runs: list[dict]) -> dict[str, list[int]]:
    """Rule of a system prompt, as it was understood → [failed runs that break it, runs that went
    well that do].
    """
    counts: dict[str, list[int]] = {}
    for run in runs:
        for rule in conditions.rules_of(system_of(run["messages"])):
            counts.setdefault(conditions.in_words(conditions.understood(rule)), [0, 0])
        for found in violations(read(without_truth(run))):
            counts[conditions.in_words(conditions.understood(found.rule))][
                run["outcome_status"] != "failure"
            ] += 1
    return counts


def learning_curve(runs: list[dict], seed: int) -> list[dict[str, Any]]:
    """Decisions on so many runs of some tasks, measured on the runs of the other tasks; mean of
    DRAWS draws of the tasks.
    """
    examples = examples_of(runs)
    tasks = sorted({example.group for example in examples})
    rows = []
    for n in DECISIONS:
        aucs, recalls = [], []
        for draw in range(DRAWS):
            order = random.Random(seed * 1000 + draw).sample(tasks, len(tasks))
            held = set(order[: max(6, len(order) // 4)])
            known = [
                example
                for task in order
                for example in examples
                if task == example.group and task not in held
            ][:n]
            asked = [example for example in examples if example.group in held]
            if len(known) < n:
                continue
            try:
                weights = train(known).weights
            except TooFew:
                weights = PRIOR
            scores = np.array([weights.probability(example.run) for example in asked])
            failed = np.array([example.failed for example in asked])
            if failed.all() or not failed.any():
                continue
            from sklearn.metrics import roc_auc_score

            aucs.append(roc_auc_score(failed, scores))
            edge = np.quantile(scores[~failed], 1 - FALSE_ALARMS, method="higher")
            recalls.append(float((scores[failed] > edge).mean()))
        if aucs:
            rows.append(
                {
                    "decisions": n,
                    "draws": len(aucs),
                    "auc": statistics.fmean(aucs),
                    "recall": statistics.fmean(recalls),
                }
            )
    return rows


def cost(runs: list[dict], rounds: int = 5) -> dict[str, float]:
    """CPU seconds a run, the best round: the rules alone, the estimate's share beside them, and the
    ratio.
    """
    blind = [without_truth(run) for run in runs]
    sketches = [Sketch.of(read(run), "") for run in blind]
    usual, peers = Usual({}), Peers(range(len(sketches)), sketches)

    def rules() -> None:
        for run in blind:
            classify(run)

    def both() -> None:
        for run in blind:
            classify(run)
            _estimated(read(run), usual, peers)

    one, two = _best(rules, rounds) / len(runs), _best(both, rounds) / len(runs)
    return {
        "rules_ms": one * 1e3,
        "both_ms": two * 1e3,
        "ratio": two / one,
        "runs_per_second": 1 / two,
    }


def _estimated(run: Run, usual: Usual, peers: Peers) -> Features:
    """As the product does it before there is a model of the team's own: no hashed words."""
    found = features(
        run, Facts(), usual, words=False, compared=peers.compare(None, Sketch.of(run, ""))
    )
    PRIOR.probability(found)
    return found


def _best(act: Any, rounds: int) -> float:
    times = []
    for _ in range(rounds):
        before = time.process_time()
        act()
        times.append(time.process_time() - before)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--odd", action="store_true", help="also the half that was held back, and all together"
    )
    parser.add_argument(
        "--file", help="other trajectories of tau-bench in place of those in shared/data"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    runs = runs_of(options.file) if options.file else tau_inputs()
    halves = {"even": [run for run in runs if half_of(run) == "even"]}
    if options.odd:
        halves |= {"odd": [run for run in runs if half_of(run) == "odd"], "all": runs}
    found = {
        f"{name}, {same}": report(half, same)
        for name, half in halves.items()
        for same in (ALONE, BY_WORDS, BY_TASK)
    }
    shown = {name: contradictions_shown(half) for name, half in halves.items()}
    broken = rules_broken(runs if options.odd else halves["even"])
    curve = learning_curve(runs if options.odd else halves["even"], options.seed)
    table = Table(
        "half, runs compared",
        "model",
        "AUC",
        "Brier",
        "recall",
        "false alarms",
        title=f"Goal: recall {GOAL_RECALL:.0%} at false alarms {FALSE_ALARMS:.0%}",
    )
    for name, models in found.items():
        for model, row in models.items():
            if isinstance(row, dict):
                table.add_row(
                    name,
                    model,
                    str(row.get("auc", "")),
                    str(row.get("brier", "")),
                    row["recall"],
                    row["false alarms"],
                )
    console.print(table)
    curves = Table(
        "half, runs compared",
        "model",
        "AUC",
        *(f"recall at {share:.0%}" for share in SHARES),
        "95% at 10%",
    )
    for name, model, row in (
        (name, model, row) for name, models in found.items() for model, row in models.items()
    ):
        if isinstance(row, dict) and "recall_at" in row:
            low, high = row["auc_interval"]
            recalls = (f"{recall:.0%}" for recall in row["recall_at"].values())
            interval = "{:.0%} to {:.0%}".format(*row["recall_interval"])
            curves.add_row(
                name, model, f"{row['auc']:.2f} ({low:.2f} to {high:.2f})", *recalls, interval
            )
    console.print(curves)
    signs = Table("contradiction", *(f"{name}: failed, went well" for name in shown))
    for sign in next(iter(shown.values())):
        signs.add_row(sign, *(f"{counts[sign][0]}, {counts[sign][1]}" for counts in shown.values()))
    console.print(signs)
    policies = Table("rule of the system prompt", "broken in: failed, went well")
    for rule, counts in broken.items():
        policies.add_row(rule, f"{counts[0]}, {counts[1]}")
    console.print(policies)
    for row in curve:
        console.print(
            f"{row['decisions']} decisions: AUC {row['auc']:.2f}, recall at 10% false alarms"
            f" {row['recall']:.0%} ({row['draws']} draws)"
        )
    speed = cost(halves["even"])
    console.print(
        f"rules {speed['rules_ms']:.2f} ms, with the estimate {speed['both_ms']:.2f} ms a run:"
        f" {speed['ratio']:.1f} times"
    )
    out = ROOT / "var" / "bench" / "outcomes.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps(
            {
                "machine": machine(),
                "halves": found,
                "contradictions": shown,
                "rules_broken": broken,
                "learning_curve": curve,
                "cost": speed,
            },
            indent=1,
        )
    )
    console.print(f"All of it: {out}")


if __name__ == "__main__":
    main()
