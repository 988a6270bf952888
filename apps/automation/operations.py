"""What is done with a run of a flow, and with a flow, by page and by the API."""

from __future__ import annotations

from typing import Any

from apps.automation import actions, engine
from apps.automation.api import RUN, run_json
from apps.automation.models import Flow, FlowRun
from apps.core.models import Role
from apps.core.openapi import sent
from apps.core.operations import Page, Rest, Written, operation

RUN_OF = Written(RUN, lambda request, run: run_json(run))


@operation(
    "flow_runs_cancel",
    rest=Rest("POST", "flow-runs/<uuid:pk>/cancel/", "cancel"),
    page=Page(
        "runs/<uuid:pk>/cancel/",
        "cancel",
        done=lambda target, returned: (
            "" if returned else "This run has finished or is already stopping."
        ),
    ),
    gives=RUN_OF,
    says={"flow.cancel_requested": "cancelled {=a run@} of the flow {name}"},
)
def cancel(*, run: FlowRun, by: Any) -> bool:
    """Stops the current step and cancels the run. No effect if the run has finished."""
    return engine.cancel(run=run, by=by)


@operation(
    "flow_runs_retry",
    rest=Rest("POST", "flow-runs/<uuid:pk>/retry/", "retry"),
    page=Page("runs/<uuid:pk>/retry/", "retry"),
    gives=RUN_OF,
    says={"flow.continued": "continued {=a run@} of the flow {name}"},
)
def retry(*, run: FlowRun, by: Any) -> None:
    """Resumes a failed or cancelled run at the step where it stopped."""
    engine.retry(run=run, by=by)


@operation(
    "flow_runs_answer",
    rest=Rest("POST", "flow-runs/<uuid:pk>/answer/", "answer"),
    page=Page("runs/<uuid:pk>/answer/", "answer"),
    gives=RUN_OF,
    examples=(sent("Go on", {"yes": True}),),
    says={
        "flow.answered": "answered the step “{step}” of {=a run@} of the flow {name}: {answer}",
    },
)
def answer(*, run: FlowRun, by: Any, yes: bool) -> None:
    """Answers the question that a run is waiting for."""
    engine.answer(run=run, yes=yes, by=by)


@operation(
    "flows_switch",
    page=Page("<uuid:pk>/switch/", "switch"),
    role=Role.OPERATOR,
    says={
        "flow.switched_on": "enabled the flow {name@}",
        "flow.switched_off": "disabled the flow {name@}",
    },
)
def switch(*, flow: Flow, by: Any, on: bool) -> None:
    """Enables or disables a flow. The API does so with `enabled` of the flow."""
    actions.switch(flow=flow, on=on, by=by)
