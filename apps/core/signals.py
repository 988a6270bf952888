"""What the layers above are told of people and jobs, in the transaction in which it happens."""

from django.dispatch import Signal

member_changed = Signal()  # project, user, role (None: removed), by
invitation_accepted = Signal()  # invitation, by
job_ended = Signal()  # job, by (who cancelled it; None if it ended by itself)
