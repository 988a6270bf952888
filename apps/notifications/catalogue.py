"""Every event that people can be notified of: who may be, and the default settings.

What webhooks are sent is part of the same list (`webhooks.models.Event`): an event of both has one
name.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import models

from apps.core.scopes import Role
from apps.webhooks.models import Event


class Topic(models.TextChoices):
    MENTION = "comment.mention", "Someone mentions you in a comment"
    COMMENT = Event.COMMENT_ADDED, "Someone comments on your work, or where you have commented"
    ASSIGNED = "assignment.made", "A failure, a cluster or another piece of work is assigned to you"
    REVIEW_ASKED = "review.asked", "You are asked to judge a reward review"
    FLOW_WAITING = Event.FLOW_WAITING, "A flow is waiting for a decision or a review"
    FLOW_FAILED = "flow.failed", "A flow failed, or cannot be started"
    JOB_FAILED = "job.failed", "A job that you started failed"
    JOB_ENDED = "job.ended", "A job that you started finished"
    TRAINING_ALARM = "training.alarm", "A training run that you started raises an alarm"
    GATE_REPORT = Event.GATE_REPORT_MADE, "The gate has compared two evaluations"
    PROMOTED = Event.PROMOTION_MADE, "A channel was moved to another model version"
    ROLLED_BACK = Event.ROLLBACK_MADE, "A channel was rolled back to an earlier version"
    PROPOSED = Event.PROMOTION_PROPOSED, "A promotion needs a second person's approval"
    DEPLOYMENT_FAILED = (
        Event.DEPLOYMENT_FAILED,
        "A deployment failed; the previous version is still serving",
    )
    FROZEN = Event.CHANNEL_FROZEN, "A channel was frozen or unfrozen"
    ARCHIVED = Event.CHANNEL_ARCHIVED, "A channel was archived or unarchived"
    TRIAL_STARTED = (
        Event.TRIAL_STARTED,
        "A canary or shadow of a candidate has started in a channel",
    )
    TRIAL_ADVANCED = (
        Event.TRIAL_ADVANCED,
        "A canary advanced to its next share, or passed the last one",
    )
    TRIAL_ENDED = Event.TRIAL_ENDED, "A canary or shadow has ended"
    POLICY_PROPOSED = (
        Event.POLICY_PROPOSED,
        "Loosening a two-person rule needs a second person's approval",
    )
    OVERRIDE = (
        Event.OVERRIDE_USED,
        "An owner overrode the gate or a training lock, or waived a probe",
    )
    JOINED = "invitation.accepted", "Someone accepts your invitation"
    KEY_EXPIRES = "key.expiring", "An API key is about to expire"
    SERVER_DOWN = Event.SERVER_DOWN, "A model server stops answering"
    ALERT_FIRED = Event.ALERT_FIRED, "An alert over runs, steps or scores fires"
    ALERT_RECOVERED = Event.ALERT_RECOVERED, "An alert recovers"
    CLUSTER_REOPENED = "cluster.reopened", "A fixed cluster of failures fails again"
    ESTIMATES_OFF = "estimates.off", "The estimates of failures were switched off"
    ALERT_NO_DATA = Event.ALERT_NO_DATA, "An alert that fired has nothing more to measure"


@dataclass(frozen=True)
class Rule:
    """`role`: the least that is notified. `in_app`, `by_mail`: what holds for people who have
    chosen nothing.
    """

    group: str
    role: Role = Role.VIEWER
    in_app: bool = True
    by_mail: bool = False


RULES = {
    Topic.MENTION: Rule("Comments", by_mail=True),
    Topic.COMMENT: Rule("Comments", by_mail=True),
    Topic.ASSIGNED: Rule("Your work", Role.REVIEWER, by_mail=True),
    Topic.REVIEW_ASKED: Rule("Your work", Role.REVIEWER, by_mail=True),
    Topic.FLOW_WAITING: Rule("Your work", Role.REVIEWER, by_mail=True),
    Topic.FLOW_FAILED: Rule("Your work", Role.ENGINEER, by_mail=True),
    Topic.JOB_FAILED: Rule("Your work", by_mail=True),
    Topic.JOB_ENDED: Rule("Your work"),
    Topic.TRAINING_ALARM: Rule("Your work", by_mail=True),
    Topic.GATE_REPORT: Rule("Models", Role.ENGINEER),
    Topic.PROMOTED: Rule("Models"),
    Topic.ROLLED_BACK: Rule("Models", by_mail=True),
    Topic.PROPOSED: Rule("Models", Role.ENGINEER, by_mail=True),
    Topic.DEPLOYMENT_FAILED: Rule("Models", Role.ENGINEER, by_mail=True),
    Topic.FROZEN: Rule("Models", Role.ENGINEER),
    Topic.ARCHIVED: Rule("Models", Role.ENGINEER),
    Topic.TRIAL_STARTED: Rule("Models", Role.ENGINEER),
    Topic.TRIAL_ADVANCED: Rule("Models", Role.ENGINEER),
    Topic.TRIAL_ENDED: Rule("Models", Role.ENGINEER, by_mail=True),
    Topic.POLICY_PROPOSED: Rule("Administration", Role.REVIEWER, by_mail=True),
    Topic.OVERRIDE: Rule("Administration", Role.OWNER, by_mail=True),
    Topic.JOINED: Rule("Administration", Role.OWNER),
    Topic.KEY_EXPIRES: Rule("Administration", Role.OPERATOR, by_mail=True),
    Topic.SERVER_DOWN: Rule("Administration", Role.OPERATOR, by_mail=True),
    Topic.ALERT_FIRED: Rule("Production", Role.ENGINEER, by_mail=True),
    Topic.ALERT_RECOVERED: Rule("Production", Role.ENGINEER),
    Topic.ALERT_NO_DATA: Rule("Production", Role.ENGINEER, by_mail=True),
    Topic.CLUSTER_REOPENED: Rule("Production", Role.ENGINEER, by_mail=True),
    Topic.ESTIMATES_OFF: Rule("Production", Role.ENGINEER, by_mail=True),
}
