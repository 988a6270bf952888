"""Errors of graders, and the flags with which the hosted API reports them."""

from __future__ import annotations


class RunError(Exception):
    """A run failed in the way named by `flag`; `details` go into the flag's own text field, if it
    has one.
    """

    def __init__(self, flag: str, details: str = "", kind: str = "") -> None:
        super().__init__(details or flag)
        self.flag, self.details, self.kind = flag, details, kind


FLAGS = (
    "formula_parse_error",
    "invalid_variable_error",
    "model_grader_parse_error",
    "model_grader_refusal_error",
    "model_grader_server_error",
    "other_error",
    "python_grader_runtime_error",
    "python_grader_server_error",
    "sample_parse_error",
    "truncated_observation_error",
    "unresponsive_reward_error",
)
TEXTS = (
    "model_grader_server_error_details",
    "python_grader_runtime_error_details",
    "python_grader_server_error_type",
)


def no_errors() -> dict[str, bool | str | None]:
    return dict.fromkeys(FLAGS, False) | dict.fromkeys(TEXTS)


def flagged(error: RunError) -> dict[str, bool | str | None]:
    """The API's error object with only this error set."""
    errors = no_errors() | {error.flag: True}
    if error.flag == "python_grader_server_error":
        errors["python_grader_server_error_type"] = error.kind or "sandbox_error"
    elif f"{error.flag}_details" in errors:
        errors[f"{error.flag}_details"] = error.details
    return errors
