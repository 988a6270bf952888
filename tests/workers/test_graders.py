"""OpenAI's graders: each type by a table, values by hand or by NLTK 3.10.4 and rouge-score 0.1.2;
and the answer's shape.
"""

from __future__ import annotations

import json
import math
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.lib.graders import run, sample_of, templates, validate
from workers.lib.graders.errors import FLAGS, TEXTS, RunError
from workers.lib.graders.formula import FUNCTIONS, Formula, FormulaError
from workers.lib.graders.similarity import METRICS
from workers.lib.typed import FormError

TOOLS = [{"id": "1", "type": "function", "function": {"name": "find", "arguments": '{"id": 4}'}}]


def check(
    operation: str, text: str = "{{sample.output_text}}", reference: str = "{{item.answer}}"
) -> dict:
    return {
        "type": "string_check",
        "name": "c",
        "operation": operation,
        "input": text,
        "reference": reference,
    }


def chat(content: Any, **message: Any) -> Any:
    """A model that always says this."""
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return lambda body: {
        "model": body["model"] + "-1",
        "usage": usage,
        "choices": [{"message": {"content": content} | message}],
    }


SCORE = {
    "type": "score_model",
    "name": "s",
    "model": "judge",
    "range": [0, 10],
    "input": [{"role": "user", "content": "Rate {{sample.output_text}}"}],
    "sampling_params": {"max_completions_tokens": 64, "temperature": 0},
}
LABEL = {
    "type": "label_model",
    "name": "l",
    "model": "judge",
    "labels": ["good", "bad"],
    "passing_labels": ["good"],
    "input": [{"role": "user", "content": {"type": "input_text", "text": "{{item.answer}}"}}],
}


@pytest.mark.parametrize(
    ("operation", "output", "answer", "reward"),
    [
        ("eq", "Paris", "Paris", 1),
        ("eq", "Paris", "paris", 0),
        ("ne", "Paris", "Rome", 1),
        ("ne", "a", "a", 0),
        ("neq", "a", "b", 1),
        ("like", "in Paris.", "Paris", 1),
        ("like", "in paris.", "Paris", 0),
        ("like", "Paris", "in Paris", 0),
        ("ilike", "in PARIS.", "paris", 1),
        ("ilike", "Rome", "paris", 0),
        ("like", "100 %", "100 %", 1),
        ("eq", "", "", 1),
    ],
)
def test_string_check(operation: str, output: str, answer: str, reward: float) -> None:
    assert run(check(operation), {"answer": answer}, sample_of(output))["reward"] == reward


CAT = ("the cat sat on the mat .", "the cat is sitting on the mat .")


@pytest.mark.parametrize(
    ("metric", "texts", "value"),
    [
        ("bleu", CAT, 0.42383656282787796),
        ("gleu", CAT, 0.5),
        ("meteor", CAT, 0.7454289732770746),
        ("rouge_1", CAT, 10 / 13),
        ("rouge_2", CAT, 6 / 11),
        ("rouge_3", CAT, 2 / 9),
        ("rouge_4", CAT, 0.0),
        ("rouge_l", CAT, 10 / 13),
        ("bleu", (", cats quickly on Quick", "very a happily run ,"), 0.05372849659117709),
        ("meteor", ("running dogs on , happy it Quick run", "on"), 0.2941176470588236),
        ("meteor", ("the dogs ran", "the dog ran"), 0.9814814814814815),
        ("fuzzy_match", ("fuzzy wuzzy was a bear", "fuzzy wuzzy had no hair"), 0.7555555555555555),
        ("fuzzy_match", ("New York!", "new york"), 1.0),
        ("rouge_1", ("Hello, World", "hello world"), 1.0),
        ("rouge_5", ("a b c d e", "a b c d e"), 1.0),
        ("gleu", ("a b", "a b c d"), 0.3),
    ],
)
def test_text_similarity(metric: str, texts: tuple[str, str], value: float) -> None:
    grader = {
        "type": "text_similarity",
        "name": "t",
        "evaluation_metric": metric,
        "pass_threshold": 0.5,
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
    }
    assert run(grader, {"answer": texts[1]}, sample_of(texts[0]))["reward"] == pytest.approx(
        value, abs=1e-12
    )


@given(st.text(max_size=60), st.text(max_size=60))
def test_every_metric_is_between_0_and_1(one: str, two: str) -> None:
    for name, metric in METRICS.items():
        assert 0.0 <= metric(one, two) <= 1.0, name


@given(st.lists(st.sampled_from(["cat", "dog", "mat", "runs"]), min_size=6, max_size=12))
def test_equal_texts_are_wholly_alike(words: list[str]) -> None:
    text = " ".join(words)
    for name, metric in METRICS.items():
        assert metric(text, text) > 0.99, name


COSINE = {
    "type": "text_similarity",
    "name": "t",
    "evaluation_metric": "cosine",
    "input": "{{sample.output_text}}",
    "reference": "{{item.right}}",
}


def test_cosine_compares_the_embeddings_of_both_texts() -> None:
    asked: list[dict] = []

    def embed(body: dict) -> dict:
        asked.append(body)
        return {"data": [{"index": 1, "embedding": [3, 4]}, {"index": 0, "embedding": [3, 0]}]}

    result = run(COSINE | {"model": "e"}, {"right": "cat"}, sample_of("dog"), embed=embed)
    assert (result["reward"], asked) == (0.6, [{"model": "e", "input": ["dog", "cat"]}])
    assert validate(COSINE)["model"] == "text-embedding-3-large"
    assert run(COSINE, {"right": ""}, sample_of("dog"), embed=embed)["reward"] == 0


def test_cosine_without_embeddings_is_the_graders_error() -> None:
    result = run(COSINE, {"right": "cat"}, sample_of("dog"))
    assert result["metadata"]["errors"]["model_grader_server_error"]
    opposite = {"data": [{"index": 0, "embedding": [1]}, {"index": 1, "embedding": [-1]}]}
    assert run(COSINE, {"right": "cat"}, sample_of("dog"), embed=lambda _: opposite)["reward"] == 0


@pytest.mark.parametrize(
    ("content", "reward", "flag"),
    [
        ('{"steps": [], "result": 7}', 7.0, ""),
        ('{"result": 70}', 10.0, ""),
        ('{"result": -1}', 0.0, ""),
        ("4.5", 4.5, ""),
        ('{"result": "high"}', 0.0, "model_grader_parse_error"),
        ('{"result": true}', 0.0, "model_grader_parse_error"),
        ('{"result": NaN}', 0.0, "model_grader_parse_error"),
        ("seven", 0.0, "model_grader_parse_error"),
        (None, 0.0, "model_grader_parse_error"),
        ("[" * 100_000, 0.0, "model_grader_parse_error"),
    ],
)
def test_score_model(content: Any, reward: float, flag: str) -> None:
    result = run(SCORE, {}, sample_of("x"), ask=chat(content))
    assert result["reward"] == reward
    assert [name for name in FLAGS if result["metadata"]["errors"][name]] == (
        [flag] if flag else []
    )


@pytest.mark.parametrize(
    ("content", "reward"),
    [
        ('{"result": "good"}', 1.0),
        ('{"result": "bad"}', 0.0),
        ('{"result": "fine"}', 0.0),
        ('{"result": ["good"]}', 0.0),
    ],
)
def test_label_model(content: str, reward: float) -> None:
    result = run(LABEL, {"answer": "x"}, sample_of("x"), ask=chat(content))
    known = json.loads(content)["result"] in ("good", "bad")
    assert (
        result["reward"] == reward
        and result["metadata"]["errors"]["model_grader_parse_error"] is not known
    )


def test_what_a_model_is_asked() -> None:
    asked: list[dict] = []

    def ask(body: dict) -> dict:
        asked.append(body)
        return chat('{"result": 5}')(body)

    result = run(SCORE, {}, sample_of("{{item.x}}"), ask=ask)
    assert asked[0]["messages"] == [{"role": "user", "content": "Rate {{item.x}}"}]
    assert asked[0]["max_completion_tokens"] == 64 and asked[0]["temperature"] == 0
    schema = asked[0]["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["result"] == {"type": "number"} and schema["required"] == [
        "steps",
        "result",
    ]
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "cached_tokens": 0, "total_tokens": 15}
    assert (
        result["metadata"]["token_usage"]
        == usage
        == result["model_grader_token_usage_per_model"]["judge"]
    )
    assert result["metadata"]["sampled_model_name"] == "judge-1"


def test_a_model_that_fails_or_refuses_is_flagged() -> None:
    def broken(body: dict) -> dict:
        raise TimeoutError("no answer")

    errors = run(SCORE, {}, sample_of("x"), ask=broken)["metadata"]["errors"]
    assert (
        errors["model_grader_server_error"]
        and "no answer" in errors["model_grader_server_error_details"]
    )
    assert run(SCORE, {}, sample_of("x"))["metadata"]["errors"]["model_grader_server_error"]
    refused = run(SCORE, {}, sample_of("x"), ask=chat(None, refusal="I will not"))
    assert refused["metadata"]["errors"]["model_grader_refusal_error"]


def test_the_guide_s_python_form() -> None:
    source = (
        "def grade(sample, item):\n  return 0.5 * (sample['output_json']['n'] == item['n']) +"
        " len(sample['output_tools']) / 4"
    )
    result = run({"type": "python", "source": source}, {"n": 3}, sample_of('{"n": 3}', tools=TOOLS))
    assert result["reward"] == 0.75
    broken = run(
        {"type": "python", "source": "def grade(sample, item): return 1 / 0"}, {}, sample_of("")
    )
    errors = broken["metadata"]["errors"]
    assert broken["reward"] == 0.0 and errors["python_grader_runtime_error"]
    assert "ZeroDivisionError" in errors["python_grader_runtime_error_details"]


MULTI = {
    "type": "multi",
    "name": "m",
    "calculate_output": "0.5 * name + 0.5 * arguments",
    "graders": {
        "name": check("eq", "find", "{{sample.output_tools[0].function.name}}"),
        "arguments": check(
            "eq", '{"id": {{item.id}}}', "{{sample.output_tools[0].function.arguments}}"
        ),
    },
}


@pytest.mark.parametrize(("number", "reward"), [(4, 1.0), (5, 0.5)])
def test_multi(number: int, reward: float) -> None:
    result = run(MULTI, {"id": number}, sample_of("", tools=TOOLS))
    assert result["reward"] == reward
    assert (
        result["sub_rewards"]
        == {"name": 1.0, "arguments": float(number == 4)}
        == result["metadata"]["scores"]
    )


def test_a_multi_grader_with_a_failed_part_has_no_reward() -> None:
    result = run(MULTI, {"id": 4}, sample_of(""))
    assert result["reward"] == 0 and result["metadata"]["errors"]["invalid_variable_error"]
    divided = MULTI | {"calculate_output": "name / (arguments - 1)"}
    assert run(divided, {"id": 4}, sample_of("", tools=TOOLS))["metadata"]["errors"][
        "formula_parse_error"
    ]


def test_the_answer_has_the_hosted_shape() -> None:
    result = run(check("eq"), {"answer": "a"}, sample_of("a"))
    assert set(result) == {
        "reward",
        "metadata",
        "sub_rewards",
        "model_grader_token_usage_per_model",
    }
    wanted = {
        "name",
        "type",
        "errors",
        "execution_time",
        "scores",
        "token_usage",
        "sampled_model_name",
    }
    assert set(result["metadata"]) == wanted and set(result["metadata"]["errors"]) == {
        *FLAGS,
        *TEXTS,
    }
    json.dumps(result)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ([], "grader"),
        ({"type": "x"}, "grader.type"),
        (check("is"), "grader.operation"),
        (check("eq") | {"name": 3}, "grader.name"),
        (check("eq", "{{sample}} {{other.x}}"), "grader.input"),
        (check("eq", "{{item.a b}}"), "grader.input"),
        (check("eq", reference=4), "grader.reference"),  # type: ignore[arg-type]
        (
            {
                "type": "text_similarity",
                "input": "",
                "reference": "",
                "evaluation_metric": "rouge_6",
            },
            "grader.evaluation_metric",
        ),
        (SCORE | {"range": [1, 0]}, "grader.range"),
        (SCORE | {"range": [0, "x"]}, "grader.range[1]"),
        (SCORE | {"input": [{"role": "tool", "content": ""}]}, "grader.input[0].role"),
        (SCORE | {"input": [{"role": "user", "content": 4}]}, "grader.input[0].content"),
        (SCORE | {"model": ""}, "grader.model"),
        (SCORE | {"sampling_params": {"top": 1}}, "grader.sampling_params.top"),
        (LABEL | {"passing_labels": ["great"]}, "grader.passing_labels[0]"),
        (LABEL | {"labels": ["a", "a"]}, "grader.labels"),
        ({"type": "python", "source": "def"}, "grader.source"),
        ({"type": "python", "source": "def grade(x): pass"}, "grader.source"),
        ({"type": "python", "source": "#" * (257 << 10)}, "grader.source"),
        (MULTI | {"graders": {"a": MULTI}}, "grader.graders.a.type"),
        (MULTI | {"graders": {}}, "grader.graders"),
        (MULTI | {"graders": {"a b": check("eq")}}, "grader.graders.a b"),
        (MULTI | {"graders": {"name": check("is")}}, "grader.graders.name.operation"),
        (MULTI | {"calculate_output": "name + other"}, "grader.calculate_output"),
        (MULTI | {"calculate_output": "__import__('os')"}, "grader.calculate_output"),
    ],
)
def test_validation_names_the_path(spec: Any, path: str) -> None:
    with pytest.raises(FormError) as error:
        validate(spec)
    assert error.value.path == path


@pytest.mark.parametrize("spec", [check("eq"), SCORE, LABEL, MULTI], ids=lambda spec: spec["type"])
def test_a_valid_grader_stays_what_it_is(spec: dict) -> None:
    assert validate(validate(spec)) == validate(spec)


VALUES = {
    "item": {"a": {"b": [1, {"c d": "x"}]}, "t": "{{item.n}}", "n": None, "ü": 1.5},
    "sample": sample_of("no json"),
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        ("{{item.a.b[0]}}", "1"),
        ("{{ item.a.b[1]['c d'] }}!", "x!"),
        ('{{item["a"].b.0}}', "1"),
        ("{{item.t}}", "{{item.n}}"),
        ("{{item.n}}", "null"),
        ("{{item.ü}}", "1.5"),
        ("{{item.a}}", '{"b": [1, {"c d": "x"}]}'),
        ("{item.a} }} {{", "{item.a} }} {{"),
        ("{{sample.output_text}}", "no json"),
    ],
)
def test_templates(template: str, text: str) -> None:
    assert templates.render(template, VALUES) == text


@pytest.mark.parametrize(
    ("template", "flag"),
    [
        ("{{item.x}}", "invalid_variable_error"),
        ("{{item.a.b[2]}}", "invalid_variable_error"),
        ("{{item.n.x}}", "invalid_variable_error"),
        ("{{sample.x}}", "invalid_variable_error"),
        ("{{item.t[0].__class__}}", "invalid_variable_error"),
        ("{{item.a.__class__}}", "invalid_variable_error"),
        ("{{sample.output_json.x}}", "sample_parse_error"),
        ("{{sample.output_json}}", "sample_parse_error"),
    ],
)
def test_templates_that_lead_nowhere(template: str, flag: str) -> None:
    with pytest.raises(RunError) as error:
        templates.render(template, VALUES)
    assert error.value.flag == flag


NAME = st.text(string.ascii_letters + "_äß", min_size=1, max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAME, inner, max_size=3),
    max_leaves=12,
)


@given(st.data(), st.dictionaries(NAME, JSON, min_size=1, max_size=4))
def test_every_path_into_an_item_is_found(data: st.DataObject, item: dict) -> None:
    value, path = item, "item"
    for _ in range(4):
        if not isinstance(value, dict | list) or not value:
            break
        key = data.draw(
            st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value)))
        )
        value, path = value[key], path + (f".{key}" if isinstance(value, dict) else f"[{key}]")
    wanted = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    assert templates.render(f"<{{{{ {path} }}}}>", {"item": item, "sample": {}}) == f"<{wanted}>"


@given(st.text(max_size=40))
def test_what_is_put_in_is_not_looked_at_again(text: str) -> None:
    assert templates.render("{{item.x}}{{item.x}}", {"item": {"x": text}, "sample": {}}) == text * 2


@given(st.text(alphabet="{}[].'\"item sample_0", max_size=40))
def test_any_template_renders_or_names_what_is_wrong(template: str) -> None:
    try:
        templates.check(template)
        templates.render(template, {"item": {}, "sample": {}})
    except (ValueError, RunError) as error:
        assert str(error)


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("2 ^ 3 ^ 2", 512),
        ("-2 ^ 2", -4),
        ("2 ** -1", 0.5),
        ("8 / 4 / 2", 1),
        ("8 - 4 - 2", 2),
        ("- - 3", 3),
        ("min(3, 1, 2)", 1),
        ("max(a)", 0.25),
        ("max(a, b)", 0.5),
        ("abs(-a)", 0.25),
        ("floor(2.7)", 2),
        ("ceil(2.1)", 3),
        ("exp(0)", 1),
        ("sqrt(a)", 0.5),
        ("log(exp(1))", 1),
        (".5e1", 5),
        ("(a + b) / 2", 0.375),
    ],
)
def test_formulas(formula: str, value: float) -> None:
    assert Formula(formula)({"a": 0.25, "b": 0.5}) == pytest.approx(value)


@pytest.mark.parametrize(
    "formula",
    [
        "",
        "1 +",
        "(1",
        "1)",
        "a b",
        "a.b",
        "a[0]",
        "min()",
        "sqrt(1, 2)",
        "open(1)",
        "'x'",
        "1 if a else 2",
        "lambda: 1",
        "a := 1",
        "1_000",
        "((" * 200 + "1" + "))" * 200,
        "1" * 5000,
        "a @ b",
        "a // b",
    ],
)
def test_what_is_no_formula(formula: str) -> None:
    with pytest.raises(FormulaError):
        Formula(formula)


@pytest.mark.parametrize(
    "formula",
    ["1 / 0", "log(0)", "sqrt(0 - 1)", "10 ^ 400", "exp(1000)", "(0 - 1) ^ 0.5", "0 ^ -1", "x"],
)
def test_formulas_without_a_value(formula: str) -> None:
    with pytest.raises(FormulaError):
        Formula(formula)({})


NUMBER = st.floats(0.1, 9.9).map(lambda value: f"{value:.3f}")
TREE = st.recursive(
    NUMBER | st.sampled_from(["a", "b"]),
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(
            lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
        )
        | st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(
            lambda parts: f"{parts[0]}({parts[1]}, {parts[2]})"
        )
        | inner.map(lambda part: f"-{part}")
        | inner.map(lambda part: f"abs({part})")
    ),
    max_leaves=10,
)


@given(TREE)
def test_a_formula_means_what_python_means(text: str) -> None:
    """Generated here and free of names but a, b and three functions, so Python may be asked."""
    try:
        wanted = eval(
            text, {"__builtins__": {}}, {"a": 0.25, "b": 3.0, "min": min, "max": max, "abs": abs}
        )
    except ZeroDivisionError:
        wanted = math.inf
    if math.isfinite(wanted):
        assert Formula(text)({"a": 0.25, "b": 3.0}) == pytest.approx(wanted)
    else:
        with pytest.raises(FormulaError):
            Formula(text)({"a": 0.25, "b": 3.0})


@given(st.text(alphabet="0123456789.ab+-*/^(), minaxe", max_size=30))
def test_any_text_is_a_formula_or_an_error_of_its_own(text: str) -> None:
    try:
        value = Formula(text)({"a": 1.0, "b": 2.0})
    except FormulaError as error:
        assert str(error)
    else:
        assert math.isfinite(value)


def test_all_the_guide_s_functions_are_there() -> None:
    assert set(FUNCTIONS) == {"min", "max", "abs", "floor", "ceil", "exp", "sqrt", "log"}
