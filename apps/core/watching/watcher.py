"""A thread of the web processes that looks every few seconds what is wrong, keeps it, and alerts
operators: of one process of a machine, and where the database answers, of one machine. It needs
neither the broker nor a worker.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from datetime import datetime, timedelta
from fcntl import LOCK_EX, LOCK_NB
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, InterfaceError, close_old_connections, connection
from django.utils import timezone

from apps.core.models import Incident
from apps.core.watching import incidents
from apps.core.watching.alerts import Alert, send
from apps.core.watching.conditions import Checked, check_all, keep_connection, named
from apps.core.watching.incidents import Memory, Wrong
from apps.core.watching.measures import Computed
from apps.core.watching.told import Told
from flywheel.embedded import lock

log = logging.getLogger(__name__)
EVERY_S = 10.0
START_S = 30.0  # until all that is started together is there


class Watcher:
    def __init__(self, told: Told | None = None) -> None:
        self.memory = Memory()
        self.computed = Computed()
        self.told = told or Told()

    def look(self) -> None:
        """One round."""
        now = timezone.now()
        checked = check_all()
        wrongs = self.memory.see(checked, now)
        try:
            self._keep(checked, wrongs, now)
            self.computed.compute_due()
        except (DatabaseError, InterfaceError) as error:
            log.warning("What is wrong cannot be stored: %s", error)
            connection.close()
            self._alert_alone(wrongs, now)

    def _keep(self, checked: list[Checked], wrongs: list[Wrong], now: datetime) -> None:
        over = incidents.store(checked, wrongs, now)
        alerts = [_alert(row, now) for row in over if row.alerted_at]
        due = [row for row in incidents.to_alert(now) if row.key not in self.told]
        alerts += [_alert(row) for row in due]
        known = {one.condition.name for one in checked if not one.unknown}
        ended = self.told.take_over(known, {wrong.key for wrong in wrongs})
        alerts += [_ended(wrong, now) for wrong in ended]
        if send([alert for alert in alerts if alert is not None]):
            self.told.add(incidents.as_wrong(due), is_alone=False)
        else:
            Incident.objects.filter(pk__in=[row.pk for row in due]).update(alerted_at=None)
        self.told.replace_stored(incidents.as_wrong(incidents.quiet_rows(now)))

    def _alert_alone(self, wrongs: list[Wrong], now: datetime) -> None:
        due = [
            wrong
            for wrong in wrongs
            if wrong.since <= now - timedelta(seconds=wrong.condition.wait_s)
        ]
        new = self.told.claim(due)
        if new and send([_of(wrong) for wrong in new]):
            self.told.add(new, is_alone=True)


def _alert(row: Incident, ended_at: datetime | None = None) -> Alert | None:
    one = named(row.condition)
    return one and Alert(one, row.about, row.says, row.since, row.page, ended_at)


def _of(wrong: Wrong) -> Alert:
    return Alert(wrong.condition, wrong.about, wrong.says, wrong.since, wrong.page)


def _ended(wrong: Wrong, now: datetime) -> Alert:
    return Alert(wrong.condition, wrong.about, wrong.says, wrong.since, wrong.page, now)


def begin() -> None:
    """For a web process."""
    threading.Thread(target=_watch, name="watcher", daemon=True).start()


def _watch() -> None:
    _become_watcher(Path(settings.FLYWHEEL_DATA_DIR) / "watcher.lock")
    watcher = Watcher(Told(Path(settings.FLYWHEEL_DATA_DIR) / "told.json"))
    time.sleep(START_S)
    while True:
        time.sleep(EVERY_S)
        try:
            close_old_connections()
            with suppress(DatabaseError, InterfaceError):
                keep_connection()
            watcher.look()
        except Exception:  # it must not end
            log.exception("A round of the watcher failed")
            connection.close()


def _become_watcher(path: Path) -> None:
    """The lock goes with the process."""
    while True:
        with suppress(OSError):
            held = lock(path, LOCK_EX | LOCK_NB)
            os.ftruncate(held, 0)
            os.write(held, str(os.getpid()).encode())
            return
        time.sleep(EVERY_S)
