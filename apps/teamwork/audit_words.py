"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "teamwork",
    {
        "comment.added": "commented on {what@}",
        "comment.edited": "edited a comment on {what@}",
        "comment.deleted": "deleted a comment on {what@}",
        "assignment.made": "assigned {what@} to {user}",
        "assignment.ended": "unassigned {user} from {what@}",
        "assignments.ended": "removed {n|assignment|assignments} of {user}",
    },
)
