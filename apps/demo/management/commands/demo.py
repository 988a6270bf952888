"""`manage.py demo`: runs the whole cycle once with a real model, then serves the pages."""

from __future__ import annotations

import os
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError, CommandParser

from apps.demo.recipes import FAST, FULL
from apps.demo.wheel import Demo, DemoError, start_preparing
from flywheel import up
from flywheel.supervisor import StackError, running_stack
from workers.lib.shares import MOST
from workers.lib.warm import Warm

PROCESSES = "FLYWHEEL_TRAINING_PROCESSES"


def allow_processes() -> None:
    """On a machine without a GPU, two may divide a training step, here and in the stack."""
    os.environ.setdefault(PROCESSES, str(MOST))
    settings.FLYWHEEL_TRAINING_PROCESSES = int(os.environ[PROCESSES])


class Command(BaseCommand):
    any_schema = True
    help = (
        "Runs the whole flywheel once on a real model (production, failures, evals, SFT, GRPO,"
        " gate), then serves the UI."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        up.add_arguments(parser)
        parser.add_argument("--fast", action="store_true", help="fewer requests, samples and steps")
        parser.add_argument("--exit", action="store_true", help="do not serve the UI afterwards")
        parser.add_argument("--seed", type=int, default=1)

    def handle(self, *, host: str, port: int, fast: bool, seed: int, **options: Any) -> None:
        allow_processes()
        try:
            warm = Warm(os.environ)
            preparing = start_preparing(warm.popen)
            with preparing as model, running_stack(host, port, quiet=True) as stack:
                self.stdout.write(
                    f"Flywheel is running at {stack.url}; you can watch the demo there."
                )
                recipe, endpoint = FAST if fast else FULL, stack.endpoint_url
                Demo(
                    stack.url, recipe, seed, endpoint=endpoint, model=model, popen=warm.popen
                ).run()
                if not options["exit"]:
                    self.stdout.write(
                        self.style.SUCCESS(f"Flywheel is running at {stack.url} (Ctrl-C to stop)")
                    )
                    stack.serve_forever()
        except (DemoError, StackError) as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")
