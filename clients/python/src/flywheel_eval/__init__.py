"""Evaluate an agent where it runs: tasks come from a Flywheel server, which scores the answers and
asks the gate.

from flywheel_eval import evaluate

result = evaluate(my_agent, eval_set="support@3", environment="helpdesk@1", agent="support-agent",
samples=4) print(result.verdict, result.metrics["success"])
"""

from flywheel_eval.api import Api, FlywheelError
from flywheel_eval.evaluating import evaluate, evaluate_async
from flywheel_eval.types import Agent, Answer, Result, Task

__all__ = [
    "Agent",
    "Answer",
    "Api",
    "FlywheelError",
    "Result",
    "Task",
    "evaluate",
    "evaluate_async",
]
