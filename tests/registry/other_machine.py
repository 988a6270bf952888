"""A worker that runs one server, on a machine of its own: `python -m tests.registry.other_machine
RUN`, with its own FLYWHEEL_DATA_DIR.
"""

from __future__ import annotations

import os
import sys

import django


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")
    django.setup()
    from apps.core import runner
    from apps.registry.models import ServerRun

    runner.run(ServerRun.objects.get(pk=sys.argv[1]))


if __name__ == "__main__":
    main()
