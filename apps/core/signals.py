"""Signals about people and jobs for higher layers, sent in the same transaction."""

from django.dispatch import Signal

member_changed = Signal()  # project, user, role (None: removed), by
invitation_accepted = Signal()  # invitation, by
job_ended = Signal()  # job, by (who cancelled it; None if it ended by itself)
