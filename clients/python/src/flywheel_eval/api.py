"""Flywheel's REST API, as far as an evaluation needs it. Every request may be repeated, and is
where that can help.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx

TRIES = 7  # with waits of about 0.5, 1, 2, 4, 8 and 16 seconds between them
LONGEST_WAIT_S = 60.0
BUSY = (408, 425, 429, 500, 502, 503, 504)
MOST_BYTES = 2**20  # of one answer


class FlywheelError(Exception):
    """What went wrong, as a sentence that says what to do. `status` is that of the response, if
    there was one.
    """

    def __init__(self, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status


class Api:
    """An asynchronous context: `async with Api(url, key) as api`."""

    def __init__(
        self, url: str, api_key: str, *, timeout_s: float = 60.0, transport: Any = None
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise FlywheelError(
                f"“{url}” is not the address of a Flywheel server. Set FLYWHEEL_URL, for instance"
                " to https://flywheel.example."
            )
        if not api_key or not api_key.isascii() or not api_key.isprintable():
            raise FlywheelError(
                "No API key. Set FLYWHEEL_API_KEY; an operator makes one under Settings → API keys."
            )
        self._client = httpx.AsyncClient(
            base_url=f"{url.rstrip('/')}/api/v1/",
            headers={"Authorization": f"Bearer {api_key}", "User-Agent": "flywheel-eval"},
            timeout=timeout_s,
            transport=transport,
        )

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._client.aclose()

    async def start(self, asked: dict[str, Any]) -> dict[str, Any]:
        """A new evaluation, or the same one where it is under way."""
        return await self.request("POST", "eval-runs/", json=asked)

    async def run(self, pk: str) -> dict[str, Any]:
        return await self.request("GET", f"eval-runs/{pk}/")

    async def tasks(self, pk: str) -> AsyncIterator[dict[str, Any]]:
        """Those that lack an answer, a page at a time."""
        async for row in self._pages(f"eval-runs/{pk}/tasks/", {"missing": "1"}):
            yield row

    async def samples(self, pk: str) -> AsyncIterator[dict[str, Any]]:
        """Outputs and scores. Of a hold-out this is a look that is counted."""
        async for row in self._pages(f"eval-runs/{pk}/samples/", {}):
            yield row

    async def answer(self, pk: str, version: str, lines: Sequence[bytes]) -> dict[str, Any]:
        """Sends encoded answers; in halves where together they are too large. `rejected` has their
        places in `lines`.
        """
        try:
            return await self.request(
                "POST",
                f"eval-runs/{pk}/samples/",
                params={"agent_version": version},
                content=b"\n".join(lines),
                headers={"Content-Type": "application/x-ndjson"},
            )
        except FlywheelError as error:
            if error.status != 413 or len(lines) < 2:
                raise
        half = len(lines) // 2
        first = await self.answer(pk, version, lines[:half])
        second = await self.answer(pk, version, lines[half:])
        moved = [row | {"index": row["index"] + half} for row in second["rejected"]]
        return second | {
            "accepted": first["accepted"] + second["accepted"],
            "duplicates": first["duplicates"] + second["duplicates"],
            "rejected": first["rejected"] + moved,
        }

    async def finish(self, pk: str) -> dict[str, Any]:
        return await self.request("POST", f"eval-runs/{pk}/finish/")

    async def gate(self, candidate: str, channel: str) -> dict[str, Any]:
        """The gate's report on an evaluation against what is live in a channel. Without a verdict
        if they cannot be compared.
        """
        try:
            return await self.request(
                "POST", "gate-reports/", json={"candidate": candidate, "channel": channel}
            )
        except FlywheelError as error:
            if error.status != 409:
                raise
            return {"verdict": None, "summary": str(error), "checks": [], "channel": channel}

    async def _pages(self, path: str, query: dict[str, str]) -> AsyncIterator[dict[str, Any]]:
        cursor: str | None = "0"
        while cursor is not None:
            page = await self.request(
                "GET", path, params={**query, "cursor": cursor, "limit": "50"}
            )
            for row in page["results"]:
                yield row
            cursor = page["next"]

    async def request(self, method: str, path: str, **given: Any) -> dict[str, Any]:
        """The JSON of a good response. Waits and asks again where the server is away or busy.
        Raises FlywheelError.
        """
        problem, wait = "", 0.0
        for number in range(TRIES):
            if number:
                await asyncio.sleep(wait)
            wait = 0.5 * 2**number * random.uniform(0.75, 1.25)
            try:
                response = await self._client.request(method, path, **given)
            except httpx.TransportError as error:
                problem = (
                    f"{self._client.base_url} does not answer ({type(error).__name__}: {error})."
                )
                continue
            if response.status_code < 400:
                return _json(response)
            problem = _sentence(response)
            if response.status_code not in BUSY:
                raise FlywheelError(problem, response.status_code)
            wait = max(wait, _retry_after(response))
        raise FlywheelError(f"{problem} It was tried {TRIES} times.")


def _json(response: httpx.Response) -> dict[str, Any]:
    try:
        found = response.json()
    except ValueError as error:
        raise FlywheelError(
            f"{response.url} did not answer with JSON. Is it a Flywheel server?"
        ) from error
    if not isinstance(found, dict):
        raise FlywheelError(
            f"{response.url} did not answer with an object. Is it a Flywheel server?"
        )
    return found


def _sentence(response: httpx.Response) -> str:
    try:
        said = response.json()
    except ValueError:
        said = {}
    said = said if isinstance(said, dict) else {}
    detail = said.get("detail") or " ".join(
        str(said[name]) for name in ("path", "error") if said.get(name)
    )
    return (
        str(detail)
        if detail
        else (
            f"{response.request.method} {response.url.path} was answered with"
            f" {response.status_code}."
        )
    )


def _retry_after(response: httpx.Response) -> float:
    try:
        return min(LONGEST_WAIT_S, float(response.headers.get("Retry-After", "0")))
    except ValueError:  # a date
        return 0.0
