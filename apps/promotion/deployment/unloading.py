"""Taking off servers what no channel needs there any more: after a deployment that was undone, for
room, and of removed targets.
"""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.utils import timezone

from apps.core import outbox
from apps.promotion.deployment.models import Placement, Target
from apps.promotion.deployment.places import lora_name
from apps.promotion.models import Promotion, Trial
from apps.registry.adapters import sampled_from, slots_of, to_unload, without_ended
from apps.registry.models import AdapterSlots, Server
from apps.registry.servers import address_of
from workers.lib.errors import JobError
from workers.lib.serving import LOAD_S, Adapters

UNLOAD = "promotion.unload"
# A load that was running when its deployment was stopped may still complete.
ARRIVES = timedelta(seconds=LOAD_S + 30)
# What production was asked for a moment ago stays: requests that began on it may not have reached
# the server yet, and an endpoint that lost its connection to the database hears of a move some
# seconds late. Answers that have begun go on: vLLM and SGLang let them end.
GRACE = timedelta(seconds=10)


class StillAsked(JobError):
    """There will be room once `GRACE` has passed."""


def unload_soon() -> None:
    """Has a worker unload what is leaving. Beat does it, too."""
    outbox.post(UNLOAD, expires_s=60)


def leave(rows: object) -> None:
    """`rows`: placements to remove. In the caller's transaction."""
    if rows.update(state=Placement.State.LEAVING, at=timezone.now()):  # type: ignore[attr-defined]
        transaction.on_commit(unload_soon)


def unload_leaving() -> int:
    """Returns how many were unloaded. What does not respond is retried in the next round."""
    gone = 0
    for row in (
        Placement.objects.filter(state=Placement.State.LEAVING)
        .select_related("target__server")
        .order_by("at")
    ):
        try:
            gone += _unload(row)
        except JobError as error:
            Placement.objects.filter(pk=row.pk).update(
                problem=str(error)[:500], checked_at=timezone.now()
            )
    Target.objects.filter(removed_at__isnull=False, placements=None).delete()
    return gone


def _unload(row: Placement) -> int:
    server = row.target.server
    if row.proof and row.at > timezone.now() - GRACE:
        return 0
    if row.loaded and row.served_as and server and server.base_url and not _shared(row, server):
        there, name = Adapters(address_of(server), server.kind), lora_name(row.served_as)
        if name in there.names():
            if not there.unload(name):
                raise JobError(f"{server} did not unload {name}.")
        elif not row.proof and row.at > timezone.now() - ARRIVES:
            return 0
    return Placement.objects.filter(pk=row.pk, state=Placement.State.LEAVING).delete()[0]


def _shared(row: Placement, server: Server) -> bool:
    others = Placement.objects.exclude(state=Placement.State.LEAVING).exclude(pk=row.pk)
    return others.filter(target__server__base_url=server.base_url, served_as=row.served_as).exists()


def make_room(server: Server, name: str, *, at_once: bool = False) -> None:
    """Frees a LoRA slot for one more adapter: idle ones of evaluations leave first, then versions
    that channels ran before, oldest first. A live version never leaves, and a recent one only if
    room is needed `at_once`. Raises StillAsked until then, JobError if there is no room.

    In a transaction: the row of the address is locked, so that no evaluation's adapter leaves that
    was just found there.
    """
    slots = slots_of(server)
    AdapterSlots.objects.get_or_create(base_url=server.base_url)
    row = AdapterSlots.objects.select_for_update().get(base_url=server.base_url)
    there = Adapters(address_of(server), server.kind)
    loaded = there.names()
    if not slots or name in loaded:
        return
    uses = without_ended(row.adapters) | sampled_from(loaded)
    leaving = to_unload(loaded, uses, slots)
    kept = _previous_versions(server)
    waiting = [] if at_once else [row for row in kept if _left_just_now(row)]
    for old in kept:
        if old in waiting:
            continue
        if len(loaded) - len(leaving) < slots:
            break
        if (held := lora_name(old.served_as)) in loaded and held not in leaving:
            leaving.append(held)
            old.delete()
    if len(loaded) - len(leaving) >= slots:
        if waiting:
            raise StillAsked(
                f"Waiting for requests that {waiting[0].version} still answers on {server}"
            )
        raise JobError(
            f"{server} has no LoRA slot left: {len(loaded)} of {slots} are in use. The version that"
            " is live and its successor need one each. Give the server another slot, or free one"
            " used by another channel or job."
        )
    for other in leaving:
        if not there.unload(other):
            raise JobError(f"{server} did not unload {other}, so its slot could not be freed.")


def _previous_versions(server: Server) -> list[Placement]:
    """What channels ran before and is still loaded there, oldest first; without the candidates of
    trials.
    """
    rows = Placement.objects.ready().filter(target__server__base_url=server.base_url, loaded=True)
    rows = rows.select_related("target__channel", "version").order_by("at")
    trials = set(Trial.objects.active().values_list("channel", "version"))
    live = {
        row.served_as
        for row in rows
        if row.version_id == row.target.channel.current_id
        or (row.target.channel_id, row.version_id) in trials
    }
    return [row for row in rows if row.served_as not in live]


def _left_just_now(row: Placement) -> bool:
    moves = Promotion.objects.filter(channel=row.target.channel_id, from_version=row.version_id)
    return moves.filter(at__gt=timezone.now() - GRACE).exists()
