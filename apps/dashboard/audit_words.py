"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "project",
    {
        "dashboard.created": "created the dashboard {name@}",
        "dashboard.renamed": "renamed the dashboard “{before}” to {name@}",
        "dashboard.deleted": "deleted the dashboard “{name}”",
        "chart.added": "added the chart “{chart}” to the dashboard {dashboard@}",
        "chart.changed": "changed the chart “{chart}” of the dashboard {dashboard@}",
        "chart.moved": "moved the chart “{chart}” of the dashboard {dashboard@}",
        "chart.deleted": "deleted the chart “{chart}” of the dashboard {dashboard@}",
    },
)

declare(
    "project",
    {
        "operator.mended": "pressed “{label}” on the operator's page[ for {of}]",
        "operator.muted": "muted alerts for a day: {says}",
        "operator.drained": "drained the worker {worker}",
        "operator.resumed": "let the worker {worker} take tasks again",
    },
)
