"""The sentences of the audit log for what this app records (`core.auditing.words`), besides those
of its operations.
"""

from apps.core.auditing.words import declare

declare(
    "people",
    {
        "login.failed": "failed to log in[ from {address}]",
        "login.locked": "failed to log in too often[ from {address}]; locked[ until {until}]",
        "login.unlocked": "unlocked the account {username}",
        "account.password_changed": "changed their password[ from {address}]",
        "account.password_set": "set a password[ from {address}]",
        "account.password_reset": "reset their password by email[ from {address}]",
        "account.email_changed": "changed their email address[ from {address}]",
        "account.second_factor_added": "added a second factor[ ({kind})][ from {address}]",
        "account.second_factor_removed": "removed a second factor[ ({kind})][ from {address}]",
        "account.recovery_codes_made": "created new recovery codes[ from {address}]",
        "account.sign_in_connected": "connected a sign-in provider[ from {address}]",
        "account.sign_in_removed": "disconnected a sign-in provider[ from {address}]",
        "api_key.created": (
            "created the API key {name@} with the {scopes||scope|scopes} {scopes}[, valid until"
            " {expires_at}][, with access to hold-outs{?may_see_holdout}]"
        ),
        "api_key.limited": (
            "limited the API key {name@} at the endpoint[ to {requests_per_minute} requests per"
            " minute][, {tokens_per_minute} tokens per minute][, {at_once} answers at a time]"
        ),
        "api_key.rotated": (
            "rotated the API key {name@}[; the old one works until {until}][; the old one stopped"
            " at once{!until}]"
        ),
        "api_key.revoked": "revoked the API key {name@}",
        "api_key.refused": (
            "was refused[ {refused|time|times}][ from {address}][; locked until {until}]"
        ),
        "invitation.created": "invited {email} as {role}",
        "invitation.accepted": (
            "accepted the invitation of {email}[ from {invited_by}] and joined as {role}"
        ),
        "invitation.revoked": "revoked the invitation of {email}",
        "member.set": "gave {user} the role {role}[ (was {was})]",
        "member.removed": "removed {user} from the project",
    },
)

declare(
    "project",
    {
        "project.created": "created the project[ {name}]",
        "project.renamed": "renamed the project “{before}” to “{name}”[ ({slug})]",
        "project.archived": "archived the project",
        "project.unarchived": "unarchived the project",
        "project.deletion_started": "started the deletion of the project",
        "project.deleted": "deleted the project {name} with {rows|row|rows}",
        "object.renamed": "renamed {noun} “{before}” to {name@}",
        "object.archived": "archived {noun} {name@}",
        "object.unarchived": "unarchived {noun} {name@}[ by moving the channel {channel} to it]",
        "object.deleted": "deleted {noun} {name}",
    },
    jobs={
        "projectdeletion": "the deletion of the project",
    },
)
