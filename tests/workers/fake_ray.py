"""What a Ray dashboard answers to its Jobs REST API, in the shapes of 2.60 (`contract` is also
asked of a real one by `make proof`).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from workers.lib.ray_jobs import RayApi
from workers.lib.serving import Address


class FakeRay:
    """`jobs`: {submission: {status, message, logs, body}}. `step` is called with a job each time
    that its state is asked, and changes it. `away`: every answer is 503. `key`: the token that is
    wanted."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.packages: dict[str, bytes] = {}
        self.step: Callable[[dict[str, Any]], None] = lambda job: None
        self.away, self.key, self.stopped = False, "", list[str]()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}"

    def handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if fake.key and self.headers.get("Authorization") != f"Bearer {fake.key}":
                    status, said = 401, b"Unauthorized: Missing authentication token"
                elif fake.away:
                    status, said = 503, b"no"
                else:
                    status, said = fake.asked(self.command, self.path, body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            do_GET = do_POST = do_PUT = answer

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def asked(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/api/version":
            return (
                200,
                json.dumps(
                    {
                        "version": "4",
                        "ray_version": "2.60.0",
                        "ray_commit": "b",
                        "session_name": "s",
                    }
                ).encode(),
            )
        if path.startswith("/api/packages/gcs/"):
            name = path.rpartition("/")[2]
            if method == "PUT":
                self.packages[name] = body
            return (200, b"") if name in self.packages else (404, b"Package does not exist")
        if (method, path) == ("POST", "/api/jobs/"):
            given = json.loads(body)
            name = given["submission_id"]
            if name in self.jobs:
                return 500, b"Traceback\nValueError: Job with submission_id already exists."
            self.jobs[name] = {"status": "PENDING", "message": "", "logs": "", "body": given}
            return 200, json.dumps({"job_id": name, "submission_id": name}).encode()
        name, _, what = path.removeprefix("/api/jobs/").partition("/")
        if (job := self.jobs.get(name)) is None:
            return 404, f"Job {name} does not exist".encode()
        if what == "stop":
            self.stopped.append(name)
            job["status"] = "STOPPED"
            return 200, b'{"stopped": true}'
        if what == "logs":
            return 200, json.dumps({"logs": job["logs"]}).encode()
        self.step(job)
        shown = {name: job[name] for name in ("status", "message")}
        return (
            200,
            json.dumps(
                shown | {"type": "SUBMISSION", "submission_id": name, "driver_exit_code": None}
            ).encode(),
        )


@contextmanager
def fake_ray() -> Iterator[FakeRay]:
    fake = FakeRay()
    threading.Thread(target=fake.server.serve_forever, daemon=True).start()
    try:
        yield fake
    finally:
        fake.server.shutdown()
        fake.server.server_close()


def contract(base: str, package: bytes) -> None:
    """What `RayApi` relies on: of the fake here, of a real cluster in the proof. `package`: a zip
    archive with a file `hello.py` that prints the variable WORD and then waits."""
    with RayApi(Address(base, "", True)) as api:
        assert api.version().startswith("2.")
        uri = api.upload(package)
        assert uri == api.upload(package) and uri.startswith("gcs://_ray_pkg_")
        api.submit(
            submission="contract-1",
            package=uri,
            entrypoint="python3 hello.py",
            env={"WORD": "hello"},
            gpus=0,
            metadata={"a": "b"},
        )
        assert not api.state("contract-1").ended
        assert isinstance(api.log("contract-1"), str)
        api.stop("contract-1")
