"""What a channel asks of a candidate, and who may promote it. Pure; stored as versions by
`apps.promotion.policies`.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from workers.lib.typed import FormError, Share, convert, plain

LARGEST_FILE = 64 * 1024  # bytes; ours have 2,000

Ratio = Annotated[float, Meta(ge=1, le=10)]


class Policy(Struct, forbid_unknown_fields=True, frozen=True):
    """Rates and shares are in [0, 1]; errors are probabilities over all comparisons. See FIELDS for
    what each one means.
    """

    promoters: Literal["engineer", "operator", "owner"] = "engineer"
    two_people: bool = False
    approvers: Literal["engineer", "operator", "owner"] = "engineer"
    api_keys: bool = False
    rollback_needs_reason: bool = False
    proof: Literal["any", "weights"] = "any"
    eval_set: Annotated[str, Meta(max_length=80, pattern=r"^[-a-zA-Z0-9_]*$")] = ""
    min_tasks: Annotated[int, Meta(ge=10, le=1_000_000)] = 30
    alpha: Annotated[float, Meta(ge=0.0001, le=0.2)] = 0.02
    sequential: bool = False
    max_unsafe_increase: Share = 0.01
    max_regressed_share: Share = 0.1
    max_token_ratio: Ratio = 1.25
    max_latency_ratio: Ratio = 1.25
    max_masked_share: Share = 0.05
    max_regression_drop: Share = 0.05
    max_general_drop: Share = 0.05


@dataclass(frozen=True)
class Field:
    label: str
    unit: str
    help: str


FIELDS = {
    "promoters": Field(
        "Who may promote",
        "role",
        "This role or higher. Only an owner can override the gate or promote to an empty channel.",
    ),
    "two_people": Field(
        "Two people promote",
        "yes or no",
        "A second person must approve each promotion on the report's page, including overrides."
        " So does a change that loosens who may promote. Rollbacks need only one person.",
    ),
    "approvers": Field(
        "Role of one of the two",
        "role",
        "With two people, at least one must have this role or higher.",
    ),
    "api_keys": Field(
        "API keys may promote, roll back and change this policy",
        "yes or no",
        "With the permissions of the key's creator, and never overriding the gate. Leave this off"
        " if agents have a key.",
    ),
    "rollback_needs_reason": Field(
        "A rollback needs a reason", "yes or no", "Promotions always need one."
    ),
    "proof": Field(
        "Required verification of deployments",
        "level",
        "“weights”: every target must reproduce the log-probabilities of the version's own weights"
        " on a fixed text. “any”: an answer, or a webhook's acknowledgement, is enough where"
        " nothing more is available. Wrong weights are rejected either way.",
    ),
    "eval_set": Field(
        "Eval set that decides",
        "name",
        "Only reports on the newest hold-out of this set can promote. If empty, the set of the"
        " channel's last promotion is used, and any other set requires an owner.",
    ),
    "min_tasks": Field(
        "Minimum tasks", "tasks", "With fewer held-out tasks, the verdict is always inconclusive."
    ),
    "alpha": Field(
        "Error over all candidates",
        "probability",
        "The probability of promoting any model that is not better, over all candidates evaluated"
        " on the same tasks. Smaller values need more tasks: 0.005 needs about 1.3 times as many as"
        " 0.02.",
    ),
    "sequential": Field(
        "Sequential",
        "yes or no",
        "Lets you compare at any time and stop an evaluation as soon as the gate decides. Needs"
        " more tasks: two to three times as many for small improvements.",
    ),
    "max_unsafe_increase": Field(
        "Unsafe actions: allowed increase",
        "share of samples",
        "A larger increase must be ruled out. Without any unsafe action, 0.01 takes about 300"
        " tasks; with fewer tasks the candidate must not be less safe than the baseline at all, and"
        " the report says what the tasks cannot rule out. A new kind of unsafe action is never"
        " allowed until someone has reviewed each such output.",
    ),
    "max_regressed_share": Field(
        "Regressed tasks: allowed share",
        "share of tasks",
        "Tasks that went from mostly passing to mostly failing, beyond chance. Use at least 4"
        " samples per task: with one, most changes are chance.",
    ),
    "max_token_ratio": Field(
        "Tokens: allowed ratio", "times the baseline's", "Mean tokens per answer, input and output."
    ),
    "max_latency_ratio": Field(
        "Latency: allowed ratio",
        "times the baseline's",
        "Median and p95. Judged only if a single job measured both models in alternation.",
    ),
    "max_masked_share": Field(
        "Masked samples: allowed share",
        "share of samples",
        "Samples that could not be scored, for either model. Success and safety assume the worst"
        " case for them.",
    ),
    "max_regression_drop": Field(
        "Regression tasks: allowed drop",
        "success rate",
        "The gate must be able to rule out a larger drop, if the eval set has regression tasks."
        " With no change at all, 0.05 needs 60 tasks.",
    ),
    "max_general_drop": Field(
        "General capability: allowed drop",
        "success rate",
        "The gate must be able to rule out a larger drop, if the eval set has general tasks. With"
        " no change at all, 0.05 needs 60 tasks; if one task in ten changes, about 200.",
    ),
}


def as_toml(policy: Policy) -> str:
    """The policy as a file that people can edit; `from_toml` reads it back."""
    lines = []
    for name, value in plain(policy).items():
        field = FIELDS[name]
        lines += [
            f"# {field.label} ({field.unit}). {field.help}",
            f"{name} = {json.dumps(value)}",
            "",
        ]
    return "\n".join(lines)


def from_toml(text: str) -> Policy:
    """Raises FormError: what is wrong, and where. What a file leaves out has its default."""
    if len(text.encode()) > LARGEST_FILE:
        raise FormError("", f"is larger than {LARGEST_FILE // 1024} KB; a policy file has 2 KB")
    try:
        values = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, and a number of more digits than Python reads
        raise FormError("", f"is not TOML: {error}") from error
    except RecursionError as error:
        raise FormError(
            "", "is nested too deeply; a policy is a flat list of names and values"
        ) from error
    return from_values(values)


def from_values(values: Any) -> Policy:
    """From JSON or TOML values. Raises FormError with the field's name."""
    if not isinstance(values, dict):
        raise FormError("", "must be an object with the policy's fields")
    return convert(values, Policy)
