"""Artifacts in a bucket of S3 or a compatible server. Imported only if the settings name a
bucket.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from django.core.files import File
from storages.backends.s3 import S3Storage
from urllib3.exceptions import HTTPError

from apps.core.stores import CHUNK, NoAnswer, StoreError

FAILS = (BotoCoreError, ClientError, HTTPClientError, HTTPError, RecursionError)
# At most 10,000 parts of a file: 640 GB, of which one part is in memory.
PARTS = TransferConfig(multipart_chunksize=64 * 2**20, use_threads=False)
REFUSED = (
    "403",
    "401",
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "NoCredentialsError",
)
ELSEWHERE = (
    "301",
    "302",
    "307",
    "308",
    "PermanentRedirect",
    "RecursionError",
)  # botocore follows a redirect to itself without end


def said(call: Callable) -> Callable:
    @wraps(call)
    def wrapper(self: Bucket, name: str, *given: Any) -> Any:
        try:
            return call(self, name, *given)
        except FAILS as error:
            raise self.failure(error, name) from error

    return wrapper


class Stream:
    """What boto3 reads of a file that it sends."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self.chunks, self.left = chunks, bytearray()

    def read(self, size: int = sys.maxsize) -> bytes:
        while len(self.left) < size and (data := next(self.chunks, None)) is not None:
            self.left += data
        given = bytes(self.left[:size])
        del self.left[:size]
        return given


class Bucket(S3Storage):
    is_here = False

    def failure(self, error: Exception, name: str) -> NoAnswer:
        code = (
            error.response.get("Error", {}).get("Code", "")
            if isinstance(error, ClientError)
            else ""
        )
        code, bucket = code or type(error).__name__, self.bucket_name
        if code in ("404", "NoSuchKey"):
            return NoAnswer(f"the bucket {bucket} has no {name}")
        if code == "NoSuchBucket":
            return NoAnswer(f"there is no bucket {bucket}")
        if code in REFUSED:
            return NoAnswer(f"the bucket {bucket} refuses these credentials ({code})")
        if code in ELSEWHERE:
            return NoAnswer(
                f"the bucket {bucket} is elsewhere: FLYWHEEL_S3_ENDPOINT or FLYWHEEL_S3_REGION is"
                " wrong"
            )
        return NoAnswer(f"the bucket {bucket} does not answer ({code})")

    @said
    def put(self, name: str, path: Path) -> None:
        """Large files are sent in parts; a part that fails is sent again."""
        with path.open("rb") as file:
            self.save(name, File(file))

    def adopt(self, name: str, path: Path) -> None:
        self.put(name, path)

    @said
    def has(self, name: str, size: int) -> bool:
        return self.exists(name) and self.size(name) == size

    def chunks(self, name: str) -> Iterator[bytes]:
        """Stream a file: nothing of it is kept in memory or on disk. Raises StoreError."""
        try:
            body = self.bucket.Object(self._normalize_name(name)).get()["Body"]
        except FAILS as error:
            raise self.failure(error, name) from error
        try:
            yield from body.iter_chunks(CHUNK)
        except FAILS as error:
            raise StoreError(
                f"the bucket {self.bucket_name} broke {name} off ({type(error).__name__})"
            ) from error

    @said
    def put_chunks(self, name: str, chunks: Iterable[bytes]) -> None:
        """Store what is not a file yet, in parts, of which few are in memory."""
        target = self.bucket.Object(self._normalize_name(name))
        target.upload_fileobj(Stream(iter(chunks)), Config=PARTS)

    def names(self) -> Iterator[str]:
        """Of everything under this prefix. Raises StoreError."""
        prefix = f"{self.location}/" if self.location else ""
        try:
            for found in self.bucket.objects.filter(Prefix=prefix):
                yield found.key.removeprefix(prefix)
        except FAILS as error:
            raise self.failure(error, prefix) from error

    @said
    def remove(self, name: str) -> None:
        self.delete(name)

    @said
    def remove_folder(self, name: str, files: list[str]) -> None:
        for file in files:
            self.delete(f"{name}/{file}")
