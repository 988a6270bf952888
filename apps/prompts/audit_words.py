"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "models",
    jobs={
        "playground": "the playground",
    },
)
