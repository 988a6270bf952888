"""A version's files as a streamed tar archive: the PEFT folder or the merged model as stored, and
the model card.
"""

from __future__ import annotations

import tarfile
from itertools import chain

from django.http import StreamingHttpResponse

from apps.promotion.pulling.card import card_of
from apps.registry.artifacts import chunks_of
from apps.registry.models import Artifact, ModelVersion

END = b"\0" * 2 * tarfile.BLOCKSIZE


def answer_with(version: ModelVersion, artifact: Artifact) -> StreamingHttpResponse:
    """`artifact`: the version's own, or its merged model. Raises ArtifactError if the first file
    cannot be read. If a later one fails, the response ends before its announced length."""
    files = artifact.files
    merged = None if artifact == version.artifact else version.merged
    card = card_of(version, merged).markdown().encode()
    readme = (
        "MODEL_CARD.md" if any(entry["path"] == "README.md" for entry in files) else "README.md"
    )
    opened = chunks_of(artifact, files[0]["path"])
    first = next(opened)  # an unreachable store is reported before the response begins
    contents = [
        (readme, len(card), iter([card])),
        (files[0]["path"], files[0]["size"], chain([first], opened)),
    ]
    contents += [
        (entry["path"], entry["size"], chunks_of(artifact, entry["path"])) for entry in files[1:]
    ]
    heads = [header(version, name, size) for name, size, _ in contents]
    parts = chain.from_iterable(
        chain([head], chunks, [padding(size)])
        for head, (_, size, chunks) in zip(heads, contents, strict=True)
    )
    length = sum(
        len(head) + size + len(padding(size))
        for head, (_, size, _) in zip(heads, contents, strict=True)
    )
    response = StreamingHttpResponse(chain(parts, [END]), content_type="application/x-tar")
    response["Content-Length"] = str(length + len(END))
    response["Content-Disposition"] = (
        f'attachment; filename="{version}{"-merged" if merged else ""}.tar"'
    )
    return response


def header(version: ModelVersion, name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime = size, int(version.created_at.timestamp())
    return info.tobuf(tarfile.GNU_FORMAT)


def padding(size: int) -> bytes:
    return b"\0" * (-size % tarfile.BLOCKSIZE)
