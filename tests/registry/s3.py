"""An S3 server of this machine (moto's), and what goes wrong with one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from unittest import mock

import boto3
from botocore.loaders import JSONFileLoader
from moto.server import ThreadedMotoServer

from flywheel.settings import artifact_store

BUCKET = "flywheel-artifacts"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}

_read = cache(partial(JSONFileLoader.load_file, JSONFileLoader()))
# Each client would read the description of the whole service again: 1 MB of JSON.
JSONFileLoader.load_file = lambda self, path: _read(path)


@contextmanager
def s3_server() -> Iterator[str]:
    """The address of a server with an empty bucket."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


@cache
def client_of(address: str) -> Any:
    given = {
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
        "region_name": "us-east-1",
    }
    return boto3.client("s3", endpoint_url=address, **given)


def use_bucket(
    settings: Any, monkeypatch: Any, address: str, prefix: str = "team/artifacts"
) -> None:
    """This installation keeps its artifacts there."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    with mock.patch.dict(os.environ, {"FLYWHEEL_S3_ENDPOINT": address}):
        made = artifact_store(f"s3://{BUCKET}/{prefix}")
    settings.STORAGES = settings.STORAGES | {"artifacts": made}
