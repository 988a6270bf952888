"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "automation",
    {
        "flow.saved": "saved version {version} of the flow {name@}",
        "flow.taken_over": "took over the flow {name@} (version {version})",
        "flow.renamed": "renamed the flow “{before}” to {name@}",
        "flow.deleted": "deleted the flow “{name}” with its {runs|run|runs}",
        "flow.secret_made": "created a webhook secret for the flow {name@}",
        "flow.started": "started {=a run@} of the flow {name} (version {version})[, by {cause}]",
        "flow.succeeded": "finished {=a run@} of the flow {name}",
        "flow.failed": "finished {=a run@} of the flow {name}: failed[: {error}]",
        "flow.cancelled": "finished {=a run@} of the flow {name}: cancelled",
    },
)
