"""The curves of a training run. Pure: no Django, no torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from apps.core.charts import PALETTE, lines

FIGURES = (
    ("loss", "Loss", {"loss": "train/loss", "held back": "validation/loss"}),
    (
        "rewards",
        "Rewards relative to the start",
        {"chosen": "rewards/chosen", "rejected": "rewards/rejected"},
    ),
    (
        "margin",
        "Margin of the chosen answers",
        {"margin": "rewards/margin", "held back": "validation/margin"},
    ),
    (
        "scores",
        "Reward model’s scores",
        {"mean": "rewards/mean", "lowest": "rewards/min", "highest": "rewards/max"},
    ),
    ("reference", "KL of mismatched answers (nats per answer)", {"kl": "rewards/kl"}),
    (
        "accuracy",
        "Pairs ranked right",
        {"accuracy": "rewards/accuracy", "held back": "validation/accuracy"},
    ),
    (
        "logps",
        "Log-probability of the answers",
        {"chosen": "train/logp_chosen", "rejected": "train/logp_rejected"},
    ),
    ("teacher", "Reverse KL to the teacher (nats per token)", {"kl": "train/teacher_kl"}),
    ("teacher-tokens", "Tokens of the teacher’s server", {"tokens": "teacher/tokens"}),
    ("reward", "Reward", {"train": "train/reward_mean", "validation": "validation/reward"}),
    ("success", "Success", {"train": "train/success", "validation": "validation/success"}),
    ("kl", "KL to the start", {"kl": "train/kl"}),
    ("kl-coefficient", "Coefficient of the KL penalty", {"coefficient": "train/kl_coefficient"}),
    ("value-loss", "Value loss of the critic", {"loss": "train/value_loss"}),
    (
        "critic",
        "Explained variance of the critic’s values",
        {"explained": "train/explained_variance"},
    ),
    ("entropy", "Entropy", {"entropy": "train/entropy"}),
    ("grad", "Gradient norm", {"norm": "train/grad_norm"}),
    (
        "groups",
        "Groups without spread, truncated answers, masked rollouts",
        {
            "zero spread": "train/zero_std_share",
            "truncated": "train/truncated_share",
            "masked": "train/masked_share",
        },
    ),
    (
        "harness",
        "The agent’s calls and branches per rollout",
        {"calls": "harness/calls", "branches": "harness/branches"},
    ),
    (
        "bypasses",
        "Calls that begin a branch, rollouts that did without the model",
        {"branches": "harness/branch_share", "bypasses": "harness/bypasses"},
    ),
    (
        "watch",
        "Highest-reward outputs of the step",
        {
            "wrong": "watch/best_wrong",
            "claims": "watch/best_claims",
            "copied prompt": "watch/best_copied_prompt",
        },
    ),
    (
        "review",
        "Success on reviewed outputs",
        {"verifier": "review/verifier_success", "people": "review/people_success"},
    ),
    (
        "judge",
        "Success on outputs read by the LLM judge",
        {"verifier": "judge/verifier_success", "judge": "judge/success"},
    ),
    ("exploits", "Wrong but rewarded sampled outputs", {"share": "watch/exploits"}),
    ("length", "Completion length (tokens)", {"tokens": "train/completion_length"}),
    (
        "gap",
        "|Δ log p| sampler to trainer",
        {"mean": "train/logp_diff_mean", "max": "train/logp_diff_max"},
    ),
    (
        "time",
        "Seconds per step",
        {"generate": "time/generate_s", "update": "time/update_s", "teacher": "time/teacher_s"},
    ),
)

METRICS = [metric for _, _, metrics in FIGURES for metric in metrics.values()]

Marks = Callable[[set[str]], list[tuple[int, str, str]]]


def curves(
    values: dict[str, list[tuple[int, float]]], marks: Marks = lambda metrics: []
) -> list[tuple[str, dict]]:
    """(id, figure) for each chart with points. `values` is {metric: [(step, value)]}; `marks`
    returns (step, title, colour) of the alarms about any of the given metrics.
    """
    found = []
    for name, title, metrics in FIGURES:
        series = {
            label: ([step for step, _ in values[metric]], [value for _, value in values[metric]])
            for label, metric in metrics.items()
            if values.get(metric)
        }
        if series:
            found.append(
                (f"chart-{name}", marked(lines(series, title), marks(set(metrics.values()))))
            )
    return found


def marked(figure: dict, marks: Sequence[tuple[int, str, str]]) -> dict:
    """Add a dotted line at the step of each alarm, with a triangle whose tooltip names the
    alarm.
    """
    layout = figure["layout"]
    layout["shapes"] = [
        {
            "type": "line",
            "x0": step,
            "x1": step,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": colour, "width": 1.2, "dash": "dot"},
        }
        for step, _, colour in marks
    ]
    layout["annotations"] = [
        {
            "x": step,
            "yref": "paper",
            "y": 1,
            "text": "▼",
            "showarrow": False,
            "font": {"size": 10, "color": colour},
            "yanchor": "bottom",
            "hovertext": escape(f"{words}, step {step}"),
            "captureevents": True,
        }
        for step, words, colour in marks
    ]
    return figure


DASHES = ("solid", "dash", "dot")  # once all colours are used, they repeat with the next dash style


def colour_of(at: int) -> str:
    return PALETTE[at % len(PALETTE)]


def overlaid(
    series: Sequence[tuple[str, int, Sequence[float], Sequence[float]]],
    title: str,
    *,
    x: str,
    log: bool,
) -> dict:
    """Several runs in one chart, from (name, number of the run, xs, ys); numbers are rounded to
    five digits. On a logarithmic axis, values that are not positive are left out.
    """
    figure = lines(
        {name: (xs, [float(f"{y:.5g}") for y in ys]) for name, _, xs, ys in series},
        title,
        x=x,
        height=260,
    )
    for trace, (_, at, xs, _) in zip(figure["data"], series, strict=True):
        trace["line"] = {
            "color": colour_of(at),
            "width": 1.6,
            "dash": DASHES[at // len(PALETTE) % len(DASHES)],
        }
        trace["mode"] = "lines" if len(xs) > 40 else "lines+markers"
    figure["layout"] |= {"showlegend": False, "hovermode": "x unified"}
    figure["layout"]["margin"]["t"] = 30
    if log:
        figure["layout"]["yaxis"]["type"] = "log"
    return figure
