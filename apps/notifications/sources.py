"""What the layers below reports: jobs that have ended, invitations that were accepted, keys that
expire soon.
"""

from __future__ import annotations

from django.urls import reverse

from apps.core.actions import InvitationAccepted
from apps.core.bus import on
from apps.core.jobs import JobEnded
from apps.core.models import ApiKey, JobState, Role
from apps.core.nouns import noun
from apps.notifications.actions import notify
from apps.notifications.catalogue import Topic

ENDS = {
    JobState.SUCCEEDED: (Topic.JOB_ENDED, "finished"),
    JobState.FAILED: (Topic.JOB_FAILED, "failed"),
}


@on(JobEnded)
def notify_of_job(event: JobEnded) -> None:
    """Notifies whoever started it, if its kind has a page. Without the error's text, which may
    quote a held-out task.
    """
    job = event.job
    page = getattr(job, "get_absolute_url", None)
    if page is None or job.created_by is None or job.state not in ENDS:
        return
    topic, did = ENDS[JobState(job.state)]
    kind = noun(type(job)).capitalize()
    notify(
        topic=topic,
        project=job.project,
        to=[job.created_by],
        subject=f"{kind} “{job.name}” {did}",
        page=page(),
        key=f"job:{job.pk}:{job.attempt}:{job.state}",
    )


@on(InvitationAccepted)
def notify_of_invitation(event: InvitationAccepted) -> None:
    invitation, by = event.invitation, event.by
    role = Role(invitation.role).label
    notify(
        topic=Topic.JOINED,
        project=invitation.project,
        to=[invitation.created_by],
        by=by,
        subject=f"{by} joined {invitation.project} as {role.lower()}",
        page=reverse("core:settings", args=[invitation.project.slug]),
        key=f"invitation:{invitation.pk}",
    )


def warn_of_keys() -> int:
    """Notifies the creator of a key that expires within 14 days; if they have left or may not
    replace it, the owners. Once per key.
    """
    told = 0
    for key in ApiKey.objects.expiring().select_related("project", "created_by"):
        able = key.maker_is(Role.OPERATOR)
        owners = [
            row.user
            for row in key.project.memberships.filter(role=Role.OWNER).select_related("user")
        ]
        told += notify(
            topic=Topic.KEY_EXPIRES,
            project=key.project,
            to=[key.created_by] if able else owners,
            subject=(
                f"The API key “{key.name}” ({key.prefix}…) expires on {key.expires_at:%-d %B %Y}"
            ),
            page=reverse("core:keys", args=[key.project.slug]),
            key=f"key:{key.pk}:{key.expires_at:%F}",
        )
    return told
