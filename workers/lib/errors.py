"""Errors with a sentence for the page. Light: the standard library only."""

from __future__ import annotations

import errno

from workers.lib.memory import is_out_of_memory, out_of_memory_sentence

OURS = ("apps", "flywheel", "workers")


class SpecError(ValueError):
    """A spec that cannot be used; the message is a sentence that names the field."""


class JobError(Exception):
    """An error with a sentence for the page: a missing model folder, a full disk."""


def is_disk_full(error: BaseException) -> bool:
    """Whether it, or what it came from, says that no space is left."""
    chain: BaseException | None = error
    while chain is not None:
        full = isinstance(chain, OSError) and chain.errno in (errno.ENOSPC, errno.EDQUOT)
        # Errors of libraries such as safetensors say it in their text alone; our own may quote what
        # another machine said about its disk.
        is_ours = type(chain).__module__.split(".")[0] in OURS
        if full or (not is_ours and "No space left on device" in str(chain)):
            return True
        chain = chain.__cause__ or chain.__context__
    return False


def cause_of(error: BaseException) -> str:
    """What there was too little of: "memory", "disk", or "" for any other error."""
    if is_out_of_memory(error):
        return "memory"
    return "disk" if is_disk_full(error) else ""


def sentence(error: BaseException) -> str:
    """The text of an error for the page."""
    if is_out_of_memory(
        error
    ):  # comes first, since out of memory may have been mistaken for another error
        return out_of_memory_sentence(error)
    if isinstance(error, JobError | SpecError):
        return str(error)
    if is_disk_full(error):
        return (
            "The disk is full. Free some space and start the job again; its last checkpoint is"
            " kept."
        )
    return f"{type(error).__name__}: {error}"
