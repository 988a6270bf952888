"""`manage.py environment_tasks NAME`: the tasks that a built-in environment generates, as a file
that `import_tasks` and the page read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser

from workers.lib.environments.customer_service import tasks as customer_service
from workers.lib.environments.workplace_assistant import tasks as workplace_assistant

MADE: dict[str, tuple[Callable[[int], list[dict]], int]] = {
    "workplace_assistant": (
        lambda each: workplace_assistant.make_tasks(per_template=each),
        workplace_assistant.PER_TEMPLATE,
    ),
    "customer_service": (customer_service.make_tasks, customer_service.PER_KIND),
}


class Command(BaseCommand):
    help = (
        "Writes a built-in environment's tasks as JSON lines, with the calls that are right and a"
        " gold episode, for import into an eval set."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", choices=MADE, metavar="NAME", help=" or ".join(MADE))
        parser.add_argument("--each", type=int, metavar="N", help="How many of each kind of task")

    def handle(self, *, name: str, each: int | None, **options: Any) -> None:
        make, own = MADE[name]
        try:
            tasks = make(own if each is None else each)
        except ValueError as error:
            raise CommandError(str(error)) from error
        for task in tasks:
            self.stdout.write(json.dumps({"key": task.pop("id"), **task}, ensure_ascii=False))
