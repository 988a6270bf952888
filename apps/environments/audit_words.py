"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "rewards",
    {
        "environment.created": "created the environment {name@}",
        "verifier.created": "saved the verifier {name@}",
    },
)
