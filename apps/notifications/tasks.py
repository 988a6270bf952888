from __future__ import annotations

from celery import shared_task

from apps.notifications import actions, mailing, sources


@shared_task(name="notifications.send_mail", expires=30)
def send_mail() -> int:
    return mailing.send_due()


@shared_task(name="notifications.warn_of_keys", expires=3600)
def warn_of_keys() -> int:
    return sources.warn_of_keys()


@shared_task(name="notifications.forget_old", expires=3600)
def forget_old() -> int:
    return actions.forget_old()
