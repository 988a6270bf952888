"""`python -m tests.release`, once for each release, on the commit that is tagged: writes the dump
of a filled database of this version, from which later ones are upgraded by a test, and locks its
migrations, whose files may not change from then on.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import tempfile
from pathlib import Path

FOLDER = tempfile.mkdtemp(prefix="flywheel-release-")
Path(FOLDER).chmod(0o755)  # PostgreSQL may run as another user
os.environ["FLYWHEEL_DATA_DIR"] = FOLDER
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "flywheel.settings")


def main() -> None:
    argparse.ArgumentParser(prog="python -m tests.release", description=__doc__).parse_args()
    import django
    from django.core.management import call_command

    from flywheel import embedded

    logging.disable(logging.WARNING)
    try:
        embedded.ensure()
        django.setup()
        call_command("migrate", verbosity=0)
        call_command("createcachetable", verbosity=0)
        from tests.release.making import write

        for path in write():
            print(f"{path} ({path.stat().st_size / 1024:.0f} KiB)")
    finally:
        from django.db import connection

        connection.close()
        embedded.stop_unused()
        shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
