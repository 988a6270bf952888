"""Kind `expected`: judges each task by the form of its `expected`, for sets that mix calls and
answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from workers.lib.typed import FormError, unknown
from workers.lib.verifiers.base import Guarded, Options, Unavailable, Unscorable, options
from workers.lib.verifiers.types import Clients, Rollout, Score, Verifier

FORMS = (
    ("grader", "openai_grader"),
    ("state", "state"),
    ("any_call", "calls"),
    ("ground_truth", "calls"),
    ("calls", "calls"),
    ("tool", "calls"),
    ("constraint", "constraints"),
    ("constraints", "constraints"),
    ("tests", "unit_tests"),
    ("schema", "json"),
    ("pattern", "regex"),
    ("answer", "exact"),
)
"""What stands in `expected` → the kind that judges it; the first that is there."""
RUBRIC = "rubric"  # comes last: a judge is only asked if the verifier names one
NO_JUDGE = (
    'The task has only a rubric, and the verifier names no judge: {"verifiers": {"rubric": {"kind":'
    ' "judge", "rubric": "…"}}}.'
)


class ByTaskOptions(Options):
    verifiers: dict[str, dict] = {}


class ByTask(Guarded):
    """`verifiers` may override how a form is judged: {"answer": {"kind": "number", "relative":
    0.01}}.
    """

    def __init__(self, verifiers: Mapping[str, Verifier]) -> None:
        self.verifiers = verifiers

    def judge(self, rollout: Rollout) -> Score:
        form = form_of(rollout.expected)
        if form is None:
            raise Unscorable(
                f"The task's “expected” has none of {', '.join(name for name, _ in FORMS)}."
            )
        if form not in self.verifiers:
            raise Unavailable(NO_JUDGE)
        return self.verifiers[form].score(rollout)


def form_of(expected: dict) -> str | None:
    """The field of `expected` that determines how it is judged; None if it has none."""
    return next((name for name in (*dict(FORMS), RUBRIC) if name in expected), None)


def from_spec(spec: dict, clients: Clients, path: str) -> ByTask:
    from workers.lib.verifiers import build

    given = options(spec, path, ByTaskOptions).verifiers
    forms = dict(FORMS) | {RUBRIC: "judge"}
    if strange := given.keys() - forms.keys():
        raise FormError(f"{path}.verifiers.{min(strange)}", unknown(min(strange), list(forms)))
    specs = {form: {"kind": kind} for form, kind in FORMS} | given
    return ByTask(
        {
            form: build(item, clients=clients, path=f"{path}.verifiers.{form}")
            for form, item in specs.items()
        }
    )
