"""`manage.py move_artifacts --from data-folder`: copies all artifacts into the store that
FLYWHEEL_ARTIFACTS names.
"""

from __future__ import annotations

from typing import Any

from django.core.files.storage import storages
from django.core.management.base import BaseCommand, CommandError, CommandParser

from apps.core.stores import store
from apps.registry.moving import move_all
from flywheel.settings import artifact_store

HERE = "data-folder"


class Command(BaseCommand):
    help = (
        "Copies all artifacts from another store into the one that FLYWHEEL_ARTIFACTS names now,"
        " verifies each file there, and continues where an earlier try ended."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--from", dest="source", required=True, help=f"{HERE}, or s3://BUCKET[/PREFIX]"
        )
        parser.add_argument(
            "--remove",
            action="store_true",
            help="remove each artifact from there once it is whole here",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        address = options["source"]
        if address != HERE and not address.startswith("s3://"):
            raise CommandError(f"--from must be {HERE} or s3://BUCKET[/PREFIX].")
        source, target = (
            storages.create_storage(artifact_store("" if address == HERE else address)),
            store(),
        )
        if place_of(source) == place_of(target):
            raise CommandError(
                f"{address} is where artifacts are kept already. Set FLYWHEEL_ARTIFACTS to the new"
                " store first."
            )
        found = move_all(source, target, remove=options["remove"], said=self.stdout.write)
        self.stdout.write(
            f"{found.copied} copied, {found.there} there already, {len(found.failed)} failed."
        )
        if found.failed:
            raise CommandError(
                "Not everything was copied; run the command again. " + " ".join(found.failed[:3])
            )


def place_of(store: Any) -> tuple[str, ...]:
    """A value that is equal for two stores in the same place."""
    if store.is_here:
        return ("here",)
    return str(store.endpoint_url), store.bucket_name, str(store.location).strip("/")
