"""The curves of a training run. Pure: no Django, no torch."""

from __future__ import annotations

from apps.core.charts import lines

FIGURES = (
    ("loss", "Loss", {"loss": "train/loss"}),
    ("reward", "Reward", {"train": "train/reward_mean", "validation": "validation/reward"}),
    ("success", "Success", {"train": "train/success", "validation": "validation/success"}),
    ("kl", "KL to the start", {"kl": "train/kl"}),
    ("entropy", "Entropy", {"entropy": "train/entropy"}),
    ("grad", "Gradient norm", {"norm": "train/grad_norm"}),
    (
        "groups",
        "Groups without spread, truncated answers",
        {"zero spread": "train/zero_std_share", "truncated": "train/truncated_share"},
    ),
    (
        "watch",
        "Best-paid outputs of the step",
        {"wrong": "watch/best_wrong", "claims": "watch/best_claims", "copied prompt": "watch/best_copied_prompt"},
    ),
    ("length", "Completion length (tokens)", {"tokens": "train/completion_length"}),
    ("gap", "|Δ log p| sampler to trainer", {"mean": "train/logp_diff_mean", "max": "train/logp_diff_max"}),
    ("time", "Seconds per step", {"generate": "time/generate_s", "update": "time/update_s"}),
)


def curves(values: dict[str, list[tuple[int, float]]]) -> list[tuple[str, dict]]:
    """(id, figure) for each chart that has points; `values` is {metric: [(step, value)]}."""
    found = []
    for name, title, metrics in FIGURES:
        series = {
            label: ([step for step, _ in values[metric]], [value for _, value in values[metric]])
            for label, metric in metrics.items()
            if values.get(metric)
        }
        if series:
            found.append((f"chart-{name}", lines(series, title)))
    return found
