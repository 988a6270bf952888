"""A client for a Ray cluster's Jobs REST API (2.9 and later), as served by the dashboard: uploads,
submits, follows and stops a folder.

It uses plain HTTP, so that this installation needs no Ray. Addresses and keys are checked like
everywhere else (`outgoing`, `keys`). Light.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, NoReturn

import httpx2
import msgspec

from workers.lib.errors import JobError
from workers.lib.keys import RefusedKey, bearer, checked_key, hidden
from workers.lib.outgoing import Bounds, RefusedAddress, TooMuch, check_url, client
from workers.lib.serving import Address

TIMEOUT_S, UPLOAD_S = 20.0, 600.0
MAX_ANSWER, MAX_LOG = 2 * 2**20, 64 * 2**20  # bytes
MAX_PACKAGE = 100 * 2**20  # the dashboard's limit
SAID = 300  # characters shown of an answer
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


class ClusterError(JobError):
    """The cluster refused something, or what answers is not a Ray cluster; a sentence for the
    page.
    """


class ClusterAway(ClusterError):
    """The cluster does not answer, but may do so later."""


class JobUnknown(ClusterError):
    """The cluster does not know the job."""


@dataclass(frozen=True)
class JobState:
    """`status` is Ray's: PENDING, RUNNING, or one of ENDED."""

    status: str
    message: str = ""

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class RayApi:
    """Use it as a context manager. Raises ClusterError if the cluster may not be called."""

    def __init__(self, address: Address) -> None:
        try:
            url = check_url(address.base_url, allow_private=address.allow_private)
            self.key = checked_key(address.key_variable, url.host, address.key_hosts)
        except (RefusedAddress, RefusedKey) as error:
            raise ClusterError(str(error)) from error
        self.base = str(url).rstrip("/")
        self.where = f"The Ray cluster at {self.base}"
        self.http = client(
            allow_private=address.allow_private,
            bounds=Bounds(MAX_LOG, UPLOAD_S),
            headers=bearer(self.key),
            timeout=TIMEOUT_S,
        )

    def __enter__(self) -> RayApi:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def version(self) -> str:
        found = self._json(self._ask("GET", "/api/version"))
        version = found.get("ray_version")
        if not isinstance(version, str):
            self._strange("no Ray version")
        return version[:40]

    def upload(self, package: bytes) -> str:
        """The URI of a zip archive, which is uploaded unless the cluster already has it."""
        if len(package) > MAX_PACKAGE:
            raise ClusterError(
                f"The exported folder has {len(package) / 2**20:.0f} MiB; a Ray cluster takes"
                f" {MAX_PACKAGE / 2**20:.0f} MiB. Download it, and train it by hand."
            )
        name = f"_ray_pkg_{hashlib.sha256(package).hexdigest()[:32]}.zip"
        path = f"/api/packages/gcs/{name}"
        if self._ask("GET", path, known=(404,)).status_code == 404:
            self._ask("PUT", path, content=package, timeout=UPLOAD_S)
        return f"gcs://{name}"

    def submit(
        self,
        *,
        submission: str,
        package: str,
        entrypoint: str,
        env: dict[str, str],
        gpus: float,
        metadata: dict[str, str],
    ) -> None:
        body: dict[str, Any] = {
            "submission_id": submission,
            "entrypoint": entrypoint,
            "metadata": metadata,
            "runtime_env": {"working_dir": package, "env_vars": env},
        }
        if gpus:
            body["entrypoint_num_gpus"] = gpus
        self._ask("POST", "/api/jobs/", json=body, secrets=list(env.values()), timeout=UPLOAD_S)

    def state(self, submission: str) -> JobState:
        """Raises JobUnknown, ClusterAway."""
        found = self._json(self._ask("GET", f"/api/jobs/{submission}"))
        if not isinstance(found.get("status"), str):
            self._strange("a job without a status")
        return JobState(found["status"], str(found.get("message") or "")[:2000])

    def log(self, submission: str) -> str:
        """The whole log so far."""
        found = self._json(self._ask("GET", f"/api/jobs/{submission}/logs"))
        return found["logs"] if isinstance(found.get("logs"), str) else ""

    def stop(self, submission: str) -> None:
        self._ask("POST", f"/api/jobs/{submission}/stop")

    def _ask(
        self,
        method: str,
        path: str,
        known: tuple[int, ...] = (),
        secrets: list[str] | None = None,
        **options: Any,
    ) -> httpx2.Response:
        """An answer with a 2xx status or one of `known`."""
        try:
            answer = self.http.request(method, self.base + path, **options)
        except RefusedAddress as error:
            raise ClusterError(str(error)) from error
        except TooMuch as error:
            raise ClusterError(f"{self.where} sent {error}.") from error
        except (httpx2.HTTPError, OSError) as error:
            raise ClusterAway(
                f"{self.where} does not answer: {str(error) or type(error).__name__}."
            ) from error
        if answer.is_success or answer.status_code in known:
            return answer
        if answer.status_code in (401, 403):
            raise ClusterError(
                f"{self.where} refused the request ({answer.status_code}). Check its key variable."
            )
        if answer.status_code == 404 and path.startswith("/api/jobs/"):
            raise JobUnknown(f"{self.where} does not know the job.")
        said = hidden(answer.text, self.key)
        for secret in secrets or []:
            said = hidden(said, secret)
        last = said.strip().splitlines()[-1][:SAID] if said.strip() else "no reason"
        kind = ClusterAway if answer.status_code >= 500 else ClusterError
        raise kind(f"{self.where} answered {answer.status_code}: {last}")

    def _json(self, answer: httpx2.Response) -> dict[str, Any]:
        try:
            found = msgspec.json.decode(answer.content)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._strange("something that is not JSON")
        if not isinstance(found, dict):
            self._strange("something else than an object")
        return found

    def _strange(self, what: str) -> NoReturn:
        raise ClusterError(
            f"{self.where} sent {what}. Is this the address of a Ray dashboard, such as"
            " http://head:8265?"
        )
