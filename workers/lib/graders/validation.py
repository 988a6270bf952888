"""OpenAI's graders as typed specs: checks that types cannot express, and defaults."""

from __future__ import annotations

import ast
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, structs

from workers.lib.graders import templates
from workers.lib.graders.formula import Formula, FormulaError
from workers.lib.typed import FormError, Number, Text, convert, plain

MAX_SOURCE = 256 << 10
EMBEDDING_MODEL = "text-embedding-3-large"


class Form(Struct, tag_field="type", kw_only=True):
    """The common part of all graders. Unknown fields are dropped, as in the hosted service."""

    name: Text | None = None


class StringCheck(Form, tag="string_check"):
    input: str
    reference: str
    operation: Literal["eq", "ne", "like", "ilike"]


class TextSimilarity(Form, tag="text_similarity", kw_only=True):
    """`cosine` asks `model` for embeddings; the hosted service named none, so the default is our
    addition.
    """

    input: str
    reference: str
    evaluation_metric: Literal[
        "bleu",
        "cosine",
        "fuzzy_match",
        "gleu",
        "meteor",
        "rouge_1",
        "rouge_2",
        "rouge_3",
        "rouge_4",
        "rouge_5",
        "rouge_l",
    ]
    pass_threshold: Number | None = None
    model: Text | None = None


class Message(Struct):
    """`content` may also be a text part or a list of them; it is stored as text."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | dict | list


class Sampling(Struct, forbid_unknown_fields=True):
    seed: int | None = None
    top_p: Number | None = None
    temperature: Number | None = None
    max_completions_tokens: int | None = (
        None  # the graders' spelling, which differs from chat completions
    )
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None


class ModelGrader(Form, kw_only=True):
    model: Text
    input: Annotated[list[Message], Meta(min_length=1)]
    sampling_params: Sampling | None = None


class ScoreModel(ModelGrader, tag="score_model", kw_only=True):
    range: Annotated[list[Number], Meta(min_length=2, max_length=2)] | None = None
    pass_threshold: Number | None = None


class LabelModel(ModelGrader, tag="label_model", kw_only=True):
    labels: Annotated[list[Text], Meta(min_length=1)]
    passing_labels: Annotated[list[Text], Meta(min_length=1)]


class PythonGrader(Form, tag="python", kw_only=True):
    source: str
    image_tag: str | None = None


Single = StringCheck | TextSimilarity | ScoreModel | LabelModel | PythonGrader


class Multi(Form, tag="multi", kw_only=True):
    graders: Annotated[dict[str, Single], Meta(min_length=1, max_length=32)]
    calculate_output: str


Grader = Single | Multi


def read(spec: Any, path: str = "grader") -> Grader:
    """The grader with its defaults. Raises FormError, which names the JSON path of the error."""
    grader = convert(_one_spelling(spec), Grader, path)
    if isinstance(grader, Multi):
        return _multi(grader, path)
    return _single(grader, path)


def validate(spec: Any, path: str = "grader") -> dict:
    """The same as JSON, with the API's own field names."""
    return _given(plain(read(spec, path)))


def _given(value: dict) -> dict:
    """Without null values, which are only defaults."""
    return {
        key: _given(item) if isinstance(item, dict) else item
        for key, item in value.items()
        if item is not None
    }


def _one_spelling(spec: Any) -> Any:
    """The hosted guide writes both “ne” and “neq”."""
    if isinstance(spec, dict) and spec.get("operation") == "neq":
        return spec | {"operation": "ne"}
    if isinstance(spec, dict) and isinstance(spec.get("graders"), dict):
        return spec | {
            "graders": {name: _one_spelling(part) for name, part in spec["graders"].items()}
        }
    return spec


def _single(grader: Single, path: str, name: str = "") -> Single:
    grader.name = grader.name or name or type(grader).__struct_config__.tag
    if isinstance(grader, StringCheck | TextSimilarity):
        for field in ("input", "reference"):
            _check_template(getattr(grader, field), f"{path}.{field}")
        if isinstance(grader, TextSimilarity):
            is_cosine = grader.evaluation_metric == "cosine"
            grader.model = (grader.model or EMBEDDING_MODEL) if is_cosine else None
    elif isinstance(grader, PythonGrader):
        _check_source(grader.source, f"{path}.source")
    else:
        grader.input = [
            _message(item, f"{path}.input[{at}]") for at, item in enumerate(grader.input)
        ]
        _check_limits(grader, path)
    return grader


def _check_template(text: str, path: str) -> None:
    try:
        templates.check(text)
    except ValueError as error:
        raise FormError(path, f"has a wrong placeholder: {error}") from error


def _message(message: Message, path: str) -> Message:
    content = message.content
    if not isinstance(content, str):  # {"type": "input_text", "text": …}, or a list of such parts
        parts = content if isinstance(content, list) else [content]
        texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
        if not all(isinstance(text, str) for text in texts):
            raise FormError(f"{path}.content", "must be a text or text parts")
        content = "".join(texts)
    _check_template(content, f"{path}.content")
    return structs.replace(message, content=content)


def _check_limits(grader: ScoreModel | LabelModel, path: str) -> None:
    if isinstance(grader, ScoreModel):
        grader.range = grader.range or [0, 1]
        if grader.range[0] >= grader.range[1]:
            raise FormError(f"{path}.range", "must begin below its end")
        return
    for field in ("labels", "passing_labels"):
        if len(set(getattr(grader, field))) < len(getattr(grader, field)):
            raise FormError(f"{path}.{field}", "has a label twice")
    for at, label in enumerate(grader.passing_labels):
        if label not in grader.labels:
            raise FormError(
                f"{path}.passing_labels[{at}]", f"must be one of {', '.join(grader.labels)}"
            )


def _check_source(source: str, path: str) -> None:
    if len(source.encode(errors="replace")) > MAX_SOURCE:
        raise FormError(path, f"must have at most {MAX_SOURCE} bytes")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise FormError(path, f"is not Python: {error}") from error
    functions = [
        node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "grade"
    ]
    if not functions or len(functions[-1].args.posonlyargs + functions[-1].args.args) != 2:
        raise FormError(path, "must define grade(sample, item)")


def _multi(grader: Multi, path: str) -> Multi:
    grader.name = grader.name or "multi"
    for name, part in grader.graders.items():
        if not name.isidentifier():
            raise FormError(
                f"{path}.graders.{name}",
                "has a name with more than letters, digits and underscores",
            )
        _single(part, f"{path}.graders.{name}", name)
    try:
        unknown = Formula(grader.calculate_output).names - grader.graders.keys()
    except FormulaError as error:
        raise FormError(f"{path}.calculate_output", f"is not a formula: {error}") from error
    if unknown:
        raise FormError(
            f"{path}.calculate_output", f"names a grader that does not exist: “{min(unknown)}”"
        )
    return grader
