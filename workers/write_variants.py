"""Has a model write variants of tasks with NeMo Data Designer. `python -m workers.write_variants
spec.json` (docs/evals.md).

It runs in its own virtual environment (`make designer`). The spec: `server` {base_url, model,
api_key_env, allow_private, timeout_s}, `seeds` [{key, messages, calls: [{name, arguments}],
tools}], `kinds`, `each`, `most_tokens`, `out_dir`. Every usable answer is written to
out_dir/rows.jsonl as a NeMo Gym row: {responses_create_params: {input: [{role, content}]},
ground_truth: [{name, arguments}], verifier_metadata: {key, kind}}. A metric event after every call
reports the usage so far: `calls`, `input_tokens`, `output_tokens`, and `estimated`, the number of
calls whose tokens the server did not report. The result event has the numbers `asked`, `made` and
`failed`, and why it `stopped` early, if it did: a question that could exceed `most_tokens` is not
asked.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import re
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from workers.lib.addresses import PrivateNetworks
from workers.lib.errors import JobError
from workers.lib.events import Emitter
from workers.lib.keys import hidden
from workers.lib.outgoing import RefusedAddress, allowed, check_url
from workers.lib.program import StopFlag, run_main
from workers.lib.specs.engines import ModelServer
from workers.lib.specs.write_variants import WriteVariants
from workers.lib.typed import plain
from workers.lib.variants.requests import MAX_TOKENS, PARALLEL, Wish, fitting, wishes
from workers.lib.variants.usage import Meter, install

TEMPERATURE = 0.9
CHUNK = 16  # records per run of the library: progress and stops are handled between chunks
BARREN = 2  # chunks in a row without a usable answer, after which the job ends
PR_SET_PDEATHSIG = 1
# As text, like the arguments in OpenAI's own calls: inside an object the library would turn the
# text "12" into the number 12.
ARGUMENTS = {
    "type": ["string", "object"],
    "additionalProperties": True,
    "description": "A JSON object, written as a text, as in the calls above",
}
SCHEMA = {
    "type": "object",
    "required": ["request", "calls"],
    "properties": {
        "request": {"type": "string", "minLength": 1, "description": "What the user writes"},
        "calls": {
            "type": "array",
            "description": "The tool calls that are right for the request, in their order",
            "items": {
                "type": "object",
                "required": ["name", "arguments"],
                "properties": {
                    "name": {"type": "string"},
                    "arguments": ARGUMENTS,
                },
            },
        },
    },
}
# How the library's Jinja2 templates render a row; a list becomes JSON text.
ROW = {
    "responses_create_params": {"input": [{"role": "user", "content": "{{ variant.request }}"}]},
    "ground_truth": "{{ variant.calls }}",
    "verifier_metadata": {"number": "{{ number }}"},
}
# Errors that would affect other questions too, by the library's exception, and their messages.
FINAL = {
    "ModelAuthenticationError": "refused the key",
    "ModelPermissionDeniedError": "refused the key",
    "ModelNotFoundError": "has no model “{model}”, or the address is not its /v1",
    "ModelAPIConnectionError": "cannot be reached",
    "ModelQuotaExceededError": "says that credits or quota are used up",
}
PASSING = {
    "ModelTimeoutError": "gave no answer within {timeout_s} s",
    "ModelRateLimitError": "is asked too often (HTTP 429)",
    "ModelInternalServerError": "has an error of its own (HTTP 5xx)",
    "ModelGenerationValidationFailureError": (
        "gave no answer in the form asked for (JSON by a schema)"
    ),
    "ModelBadRequestError": "refused the request",
    "ModelRequestRejectedError": "refused the request",
    "ModelUnsupportedParamsError": "refused the request",
    "ModelAPIError": "answered with something that is no chat completion",
}
# Parts of the library's own messages.
UNREADABLE, AT_FIRST = (
    "could not be parsed into the requested format",
    "while running health checks",
)


class LastWarnings(logging.Handler):
    """The library's last warnings, the only place where it says why it dropped single answers."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines = [*self.lines[-19:], record.getMessage()]


class Failed(Exception):
    """A chunk without a usable answer; `final` if another one would fail the same way."""

    def __init__(self, sentence: str, final: bool) -> None:
        super().__init__(sentence)
        self.final = final


# Asking the model


def keep_to(host: str, allow_private: PrivateNetworks) -> None:
    """From now on this process can only reach that host, and only at an address that may be
    called.
    """
    look_up = socket.getaddrinfo

    def guarded(name: Any, *args: Any, **options: Any) -> list[tuple]:
        text = name.decode() if isinstance(name, bytes) else name
        if text != host:
            raise socket.gaierror(socket.EAI_NONAME, "not the model's server")
        found = look_up(name, *args, **options)
        try:
            allowed(found, host, allow_private)
        except RefusedAddress as error:
            raise socket.gaierror(socket.EAI_NONAME, str(error)) from error
        return found

    socket.getaddrinfo = guarded  # type: ignore[assignment]


def quiet(out: Path) -> None:
    """Configure the library before it is imported: no telemetry, and no files in the home
    folder.
    """
    os.environ |= {
        "NEMO_TELEMETRY_ENABLED": "false",
        "DATA_DESIGNER_HOME": str(out / "home"),
        "DATA_DESIGNER_MANAGED_ASSETS_PATH": str(out / "home" / "assets"),
    }


class Designer:
    """The library, set up for one server. The first instance triggers its heavy imports."""

    def __init__(self, server: ModelServer, out: Path) -> None:
        from data_designer.config.models import ModelProvider
        from data_designer.config.run_config import RunConfig
        from data_designer.interface.data_designer import DataDesigner

        self.server, self.out, self.warnings, self.tried = server, out, LastWarnings(), False
        key = (
            server.api_key_env or None
        )  # the library takes the name of an environment variable and reads it itself
        provider = ModelProvider(name="endpoint", endpoint=server.base_url, api_key=key)
        self.designer = DataDesigner(
            out / "designer", model_providers=[provider], auto_configure_logging=False
        )
        self.designer.set_run_config(
            RunConfig(
                disable_early_shutdown=True,
                otel_metrics_port=None,
                max_conversation_restarts=1,
                preserve_dropped_columns=False,
            )
        )
        logging.getLogger("data_designer").addHandler(self.warnings)

    def ask(self, chunk: list[Wish]) -> list[dict]:
        """A row for every usable answer. Raises Failed if there is none."""
        self.warnings.lines.clear()
        try:
            made = self.designer.create(
                self._builder(chunk), num_records=len(chunk), dataset_name="variants"
            )
            table = made.load_processor_dataset("gym")
        except Exception as error:  # the library passes on many kinds of errors
            traceback.print_exc()
            raise self._failed(error) from error
        self.tried = True
        rows = json.loads(table.to_json(orient="records"))
        return [_named(row, chunk) for row in rows]

    def _builder(self, chunk: list[Wish]) -> Any:
        import pandas
        from data_designer.config.column_configs import LLMStructuredColumnConfig
        from data_designer.config.config_builder import DataDesignerConfigBuilder
        from data_designer.config.processors import SchemaTransformProcessorConfig
        from data_designer.config.seed_source_dataframe import DataFrameSeedSource

        table = pandas.DataFrame(
            [{"number": at, "question": wish.prompt} for at, wish in enumerate(chunk)]
        )
        builder = DataDesignerConfigBuilder(model_configs=[self._model()])
        builder.with_seed_dataset(DataFrameSeedSource(df=table))
        builder.add_column(
            LLMStructuredColumnConfig(
                name="variant",
                prompt="{{ question }}",
                model_alias="writer",
                output_format=SCHEMA,
                drop=True,
            )
        )
        builder.add_processor(SchemaTransformProcessorConfig(name="gym", template=ROW))
        return builder

    def _model(self) -> Any:
        """The model is checked with one question before the first chunk, and not again."""
        from data_designer.config.models import ChatCompletionInferenceParams, ModelConfig

        parameters = ChatCompletionInferenceParams(
            temperature=TEMPERATURE,
            max_tokens=MAX_TOKENS,
            max_parallel_requests=PARALLEL,
            timeout=int(self.server.timeout_s),
        )
        return ModelConfig(
            alias="writer",
            model=self.server.model,
            provider="endpoint",
            inference_parameters=parameters,
            skip_health_check=self.tried,
        )

    def _failed(self, error: Exception) -> Failed:
        chain = list(_chain(error))
        names = {type(link).__name__ for link in chain}
        log = " ".join([*map(str, chain), *self.warnings.lines])
        at_first = AT_FIRST in log  # the check before all other questions
        self.tried = self.tried or not at_first
        sentence = (
            f"The model's server at {self.where}"
            f" {reason(names, log, plain(self.server))}.{_provider(log)}"
        )
        return Failed(self._hidden(sentence), at_first or not names.isdisjoint(FINAL))

    @property
    def where(self) -> str:
        return check_url(
            self.server.base_url, allow_private=self.server.allow_private
        ).netloc.decode()

    def _hidden(self, text: str) -> str:
        """The text without our API key, in case the server repeats it."""
        key = os.environ.get(self.server.api_key_env or "", "")
        return hidden(text, key)


def reason(names: set[str], log: str, server: dict) -> str:
    """Why there was no answer: from the library's exceptions, otherwise from its messages."""
    for name, words in (FINAL | PASSING).items():
        if name in names:
            return words.format_map(server)
    if UNREADABLE in log:
        return PASSING["ModelGenerationValidationFailureError"]
    found = re.search(r"Cause: ([^\n|]{1,300})", log)
    return f"gave no answer of use ({(found[1] if found else log[:300]).strip().rstrip('.')})"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _provider(log: str) -> str:
    found = re.search(r"Provider message: ([^\n|]{1,200})", log)
    return f" It says: {found[1].strip()}" if found else ""


def _named(row: dict, chunk: list[Wish]) -> dict:
    """The library's row with its calls as a list, and with the seed and kind that it was requested
    for.
    """
    wish = chunk[int(row["verifier_metadata"]["number"])]
    calls = json.loads(row["ground_truth"])
    return row | {"ground_truth": calls, "verifier_metadata": {"key": wish.key, "kind": wish.kind}}


# The job


def design(
    asked: list[Wish],
    ask: Callable[[list[Wish]], list[dict]],
    write: Callable[[list[dict]], None],
    progress: Callable[[int, int], None],
    fits: Callable[[list[Wish]], int] = len,
    limit: str = "",
) -> dict:
    """Ask for all variants, chunk by chunk: {asked, made, failed, stopped}. Raises JobError if
    there was no answer at all.

    `fits` says how many of a chunk may be asked; if none, the job ends, with `limit` as the reason.
    """
    done = made = barren = 0
    problem, ends = "", False
    while done < len(asked) and not ends:
        chunk = asked[done : done + CHUNK]
        chunk = chunk[: fits(chunk)]
        if not chunk:
            problem, ends = f"{limit} {problem}".strip(), True
            break
        try:
            rows, barren, problem = ask(chunk), 0, ""
        except Failed as error:
            rows, barren, problem = [], barren + 1, str(error)
            ends = error.final or barren >= BARREN
        done, made = done + len(chunk), made + len(rows)
        write(rows)
        progress(done, len(asked))
    if not made:
        raise JobError(problem or "There is nothing to ask for.")
    return {"asked": done, "made": made, "failed": done - made, "stopped": problem if ends else ""}


def main(spec: WriteVariants, events: Emitter, stop: StopFlag) -> None:
    ctypes.CDLL(None).prctl(
        PR_SET_PDEATHSIG, signal.SIGKILL
    )  # whoever started this process may be killed
    server, out = spec.server, Path(spec.out_dir)
    out.mkdir(parents=True, exist_ok=True)
    try:
        url = check_url(server.base_url, allow_private=server.allow_private)
    except RefusedAddress as error:
        raise JobError(str(error)) from error
    quiet(out)
    keep_to(url.raw_host.decode(), server.allow_private)
    asked = wishes(spec)
    events.progress(0, len(asked), "starting")
    meter = Meter(spec.most_tokens, MAX_TOKENS, lambda used: events.metric(used["calls"], used))
    install(meter)
    designer = Designer(server, out)

    def progress(done: int, total: int) -> None:
        stop.check()
        events.progress(done, total, f"{done} of {total} asked for")

    with (out / "rows.jsonl").open("w") as file:

        def write(rows: list[dict]) -> None:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            file.flush()

        limit = f"The limit of {spec.most_tokens:,} tokens allows no further question."
        events.result(
            **design(
                asked, designer.ask, write, progress, lambda chunk: fitting(chunk, meter), limit
            )
        )


if __name__ == "__main__":
    run_main(WriteVariants, main)
