"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "evals",
    {
        "eval_set.created": "created the eval set {name@}",
        "eval_set.tasks_changed": "changed {tasks|task|tasks} of {name@}: {what}[ {value}]",
        "eval_set.tasks_added": "added {made|task|tasks} to {name@}[: {what}]",
        "task.created": "added {=a task@evals.evalset:set_id} to {set}",
        "task.edited": "edited {=a task@evals.evalset:set_id} in {set}",
        "task.removed": "removed the task “{key}” from {set}",
        "task.confirmed": "confirmed the task “{key}” of {set}",
        "variants.used": "accepted {used|synthetic variant|synthetic variants} for {name@}",
        "variants.discarded": (
            "discarded a batch of {size|synthetic variant|synthetic variants} of {name@}"
        ),
        "variants.asked_for": (
            "requested synthetic variants of {name@} from {model} ({asked|request|requests})"
        ),
        "variants.model_asked": (
            "generated synthetic variants of {name@} with {model}[: {calls|call|calls}][,"
            " {output_tokens|output token|output tokens}]"
        ),
        "meaning.asked_for": "started a semantic check of {name@}[ with {source}]",
        "meaning.decided": (
            "marked a pair of tasks of {name@} as “{verdict}”[; the task {key} was"
            " removed{?removed}]"
        ),
        "meaning.undone": "removed the mark “{verdict}” from a pair of tasks of {name@}",
        "evalrun.finished_early": (
            "finished the evaluation {name@} early, with {answers|answer|answers}"
        ),
        "evalrun.stopped": (
            "stopped the evaluation {name@} early, after {done} of {total|task|tasks}: the result"
            " was clear"
        ),
    },
    jobs={
        "evalrun": "the evaluation",
        "latencymeasurement": "",
        "taskimport": "the import",
        "variantjob": "",
        "meaningcheck": "",
        "stepsearch": "the step search",
        "proposaljob": "",
    },
)

declare(
    "holdout",
    {
        "holdout.evaluation": (
            "evaluated on {n|held-out task|held-out tasks}[ of {set@}][ ({where})]"
        ),
        "holdout.view": "viewed {n|held-out task|held-out tasks}[ of {set@}][ ({where})]",
        "holdout.score": (
            "scored answers to {n|held-out task|held-out tasks} by API[ of {set@}][ ({where})]"
        ),
        "holdout.membership": (
            "saw which tasks are held out: {n|task|tasks}[ of {set@}][ ({where})]"
        ),
    },
)
