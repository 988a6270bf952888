"""What granian serves: Django, in workers that die with their master, so that a new one finds the
port free.
"""

from __future__ import annotations

import signal
from typing import Any

from workers.lib.guard import end_with_parent


def application() -> Any:
    """Called once in each worker."""
    end_with_parent(signal.SIGKILL)
    from flywheel.receiving import receivers
    from flywheel.wsgi import application

    receivers.join()
    return application
