"""A run's settings as YAML: export and import are inverse, the form says the same, and what is
wrong is said by its key.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from apps.core.yaml_text import YamlError, load_yaml, write_yaml
from apps.evals.models import EvalRun
from apps.training.alarms_field import as_inputs
from apps.training.child_spec import training_spec
from apps.training.config_yaml import ConfigError, Head, RunConfig, checked, read, write
from apps.training.models import TrainingRun
from tests.factories import admin_of, make_key
from tests.shared import copied, once
from tests.training.test_picks import PASSED, made_run, sent
from workers.lib.alarms import TABLE
from workers.lib.presets import PRESETS, preset_of
from workers.lib.specs.grpo import BOUNDS_OF_CORRECTION, GrpoConfig
from workers.lib.specs.methods import CONFIGS
from workers.lib.typed import convert, plain

MINIMAL = """\
model: base-v1
algorithm: grpo
training_data: support@1
environment: helpdesk@2
steps: 10
learning_rate: 1e-4
"""
SHARES, COUNTS = st.floats(0, 1), st.integers(0, 10_000)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=30
)
SETTINGS = st.fixed_dictionaries(
    {"steps": st.integers(1, 10_000), "learning_rate": st.floats(1e-8, 1)},
    optional={
        "loss_type": st.sampled_from(["dapo", "grpo", "dr_grpo", "rloo"]),
        "baseline": st.sampled_from(["mean", "leave_one_out"]),
        "clip_low": SHARES,
        "clip_high": st.floats(0, 100),
        "beta": st.floats(0, 100),
        "temperature": st.floats(0.01, 10),
        "generations": st.integers(2, 128),
        "eval_every": COUNTS,
        "dynamic_sampling": st.integers(0, 100),
        "curriculum": st.booleans(),
        "correction": st.sampled_from(["auto", "off", "tis", "mis", "icepop"]),
        "use_dora": st.booleans(),
        "replay_share": SHARES,
        "lora_alpha": st.none() | st.integers(1, 99),
        "target_modules": st.just("all-linear") | st.lists(NAMES, min_size=1, max_size=3),
    },
)


@given(SETTINGS, NAMES, NAMES, st.integers(0, 2**31 - 1))
def test_import_is_the_inverse_of_export(
    settings: dict, model: str, environment: str, seed: int
) -> None:
    try:
        config = checked(settings, "grpo")
    except ConfigError:
        return
    head = Head(
        model=model,
        algorithm="grpo",
        training_data="null",
        environment=environment,
        reward="off",
        seed=seed,
    )
    found = RunConfig(head=head, config=config)
    assert read(write(found)) == found
    assert write(read(write(found))) == write(found)


def test_it_reads_like_the_guides() -> None:
    found = read(
        MINIMAL + "adapter: lora\npreset: gspo\nnum_generations_per_prompt: 8\neval_interval:"
        " 10\ncorrection: off\n"
    )
    assert (
        found.config["generations"],
        found.config["eval_every"],
        found.config["correction"],
    ) == (8, 10, "off")
    assert (found.config["loss_type"], found.config["clip_low"], found.config["learning_rate"]) == (
        "gspo",
        3e-4,
        1e-4,
    )
    assert read(MINIMAL + "preset: gspo\nclip_low: 5e-4").config["clip_low"] == 5e-4
    assert (
        "num_generations_per_prompt: 8" in write(found)
        and "generations: 8" not in write(found).splitlines()
    )


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        (MINIMAL + "generation: 8", "generation", "did you mean “generations”"),
        (
            MINIMAL + "num_generation_per_prompt: 8",
            "num_generation_per_prompt",
            "did you mean “num_generations_per_prompt”",
        ),
        (MINIMAL + "num_generations_per_prompt: 1", "num_generations_per_prompt", "at least 2"),
        (
            MINIMAL + "generations: 4\nnum_generations_per_prompt: 4",
            "num_generations_per_prompt",
            "the same setting",
        ),
        (MINIMAL + "preset: dappo", "preset", "did you mean “dapo”"),
        (MINIMAL + "preset: [dapo]", "preset", "is not known"),
        (MINIMAL + "loss_type: gspo\nclip_high: 0.28", "clip_high", "whole sequence"),
        (MINIMAL + "use_dora: yes please", "use_dora", "true or false"),
        (MINIMAL + "beta: .nan", "beta", "finite number"),
        (MINIMAL + "steps: 5", "", "written twice"),
        (MINIMAL.replace("grpo", "gpro"), "algorithm", "sft"),
        (MINIMAL.replace("algorithm: grpo\n", ""), "algorithm", "is missing"),
        (MINIMAL + "warmup_steps: 11", "warmup_steps", "at most steps, which is 10"),
        (MINIMAL + "adapter: dora", "adapter", "use_dora: true"),
        (MINIMAL + "seed: -1", "seed", "at least 0"),
        ("- 1", "", "mapping of names"),
        ("1: 2", "", "mapping of names"),
        ("{", "", "Line"),
        ("", "", "mapping of names"),
        ("a: &x 1\nb: *x", "", "Aliases"),
        ("[" * 1000, "", "levels deep"),
        ("x" * 100_000, "", "at most 64,000"),
    ],
)
def test_what_is_wrong_is_said_by_its_key(text: str, field: str, says: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(text)
    assert error.value.field == field and says in str(error.value)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_with_a_sentence(text: str) -> None:
    try:
        load_yaml(text)
    except YamlError as error:
        assert str(error)
    with pytest.raises(ConfigError):
        read(text)


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\x00\x85\u2028\u2029"), max_size=40)
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.none()
)
def test_a_value_is_read_as_it_was_written(value: Any) -> None:
    assert load_yaml(write_yaml({"value": value})) == {"value": value}


def test_every_preset_can_be_trained_and_is_recognised() -> None:
    for name, preset in PRESETS.items():
        config = plain(convert({"steps": 1, "learning_rate": 1e-4} | preset.fields, GrpoConfig))
        assert preset_of(config) == name and preset.fields.items() <= config.items()
    assert BOUNDS_OF_CORRECTION["icepop"] == (0.5, 5.0)


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[EvalRun, Path]]:
    yield from once(request, made_run)


@pytest.fixture
def run(kept: tuple[EvalRun, Path], db: None, settings: Any, client: Client) -> EvalRun:
    made = copied(kept, settings)
    client.force_login(admin_of(made.project))
    return made


def start(client: Client, run: EvalRun, **changes: Any) -> TrainingRun:
    answer = client.post(reverse("training:new", args=[run.project.slug]), sent(run, **changes))
    assert answer.status_code == 302, answer.context["form"].errors
    return TrainingRun.objects.order_by("-created_at").first()


def exported(client: Client, made: TrainingRun) -> str:
    return client.get(
        reverse("training:config", args=[made.project.slug, made.pk])
    ).content.decode()


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    "changes",
    [
        {"preset": "gspo"},
        {
            "preset": "rloo",
            "beta": 0.1,
            "curriculum": "on",
            "replay_share": 0.25,
            "top_p": 0.9,
            "use_dora": "on",
        },
        {
            "preset": "dapo",
            "overlong_buffer": 4,
            "alarms-hacking-action": "warn",
            "alarms-kl-act": "3",
            "target_modules": "q_proj, v_proj",
        },
        {"more": "warmup_steps: 1\nkl_every: 3\ncorrection_max: 3.5"},
        {"method": "sft", "lora_dropout": "0.1", "use_rslora": "on", "more": "save_every: 2"},
    ],
)
def test_the_form_and_the_yaml_are_one_thing(
    client: Client, run: EvalRun, changes: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.training.actions.check_target_modules", lambda *_: None)
    made = start(client, run, **changes)
    text = exported(client, made)
    url = reverse("training:new_from_yaml", args=[run.project.slug])
    answer = client.post(url, {"yaml": text.replace("\n", "\r\n")})
    form = answer.context["form"]
    fields = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}
    fields |= as_inputs(fields.pop("alarms"))
    again = start(
        client, run, **{name: value for name, value in fields.items() if value not in (None, False)}
    )
    assert (
        again.pk != made.pk
        and again.spec["config"] == made.spec["config"]
        and exported(client, again) == text
    )
    assert again.spec["seed"] == made.spec["seed"] and again.parent == made.parent


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"alarms-kl-warn": "9", "alarms-kl-act": "1"}, "would act before it warns"),
        ({"alarms-truncated-action": "stop"}, "needs a threshold"),
        ({"alarms-kl-action": "halt"}, "must be one of ignore, warn, pause, stop"),
        ({"alarms-kl-over": "2.5"}, "not a whole number"),
        ({"alarms-kl-act": "<b>lots</b>"}, "“&lt;b&gt;lots&lt;/b&gt;” at “kl” is not a number"),
        ({"alarms-kl-act": "nan"}, "finite"),
    ],
)
def test_alarms_that_make_no_sense_are_refused_in_the_form(
    client: Client, run: EvalRun, inputs: dict[str, str], said: str
) -> None:
    answer = client.post(reverse("training:new", args=[run.project.slug]), sent(run, **inputs))
    assert answer.status_code == 200 and said in answer.content.decode()
    assert "Alarms" not in answer.context["form"].folded and not TrainingRun.objects.exists()


@pytest.mark.proof
def test_the_form_shows_the_defaults_and_keeps_what_was_changed(
    client: Client, run: EvalRun
) -> None:
    html = client.get(reverse("training:new", args=[run.project.slug])).content.decode()
    assert html.count("(default)") == len(TABLE) and 'name="alarms-kl-act" value=""' in html
    wrong = client.post(
        reverse("training:new", args=[run.project.slug]),
        sent(run, steps="-1", **{"alarms-kl-act": "3"}),
    )
    assert 'name="alarms-kl-act" value="3"' in wrong.content.decode()
    assert start(client, run, **{"alarms-kl-act": "3", "alarms-length-action": "ignore"}).spec[
        "config"
    ]["alarms"] == {
        "kl": {"act": 3.0},
        "length": {"action": "ignore"},
    }


@pytest.mark.proof
def test_a_wrong_file_keeps_its_text_and_says_the_key(client: Client, run: EvalRun) -> None:
    url = reverse("training:new_from_yaml", args=[run.project.slug])
    text = exported(client, start(client, run))
    for wrong, says in (
        (text + "learning_rat: 1\n", "did you mean “learning_rate”"),
        (text.replace("model: ", "model: x"), "“model”: x"),
        (text.replace("reward: ", "reward: other-"), "is scored by"),
        ("<script>alert(1)</script>: 1", "&lt;script&gt;"),
    ):
        answer = client.post(url, {"yaml": wrong})
        html = answer.content.decode()
        assert answer.status_code == 422 and says in html and "<script>alert(1)" not in html
    assert client.get(url).status_code == 200


@pytest.mark.proof
def test_what_only_all_settings_say_is_said_at_its_field(client: Client, run: EvalRun) -> None:
    for changes, field in (
        ({"preset": "gspo", "clip_high": 0.28}, "clip_high"),
        ({"overlong_buffer": 10**6}, "overlong_buffer"),
        ({"more": "warmup_step: 3"}, "more"),
        ({"more": "- 1"}, "more"),
        ({"more": "a: *b"}, "more"),
    ):
        answer = client.post(reverse("training:new", args=[run.project.slug]), sent(run, **changes))
        assert answer.context["form"].errors.keys() == {field}
        html = answer.content.decode()
        assert (
            html.count("<summary>") == 3
            and "<summary>LoRA adapter" in html
            and "<summary>Alarms" in html
        )  # and another engine; what is wrong is open
    assert not TrainingRun.objects.exists()


@pytest.mark.proof
def test_several_seeds_are_one_group(client: Client, run: EvalRun) -> None:
    answer = client.post(
        reverse("training:new", args=[run.project.slug]), sent(run, seeds=3, seed=5)
    )
    runs = list(TrainingRun.objects.order_by("name"))
    assert [made.spec["seed"] for made in runs] == [5, 6, 7] and len(
        {made.spec["group"] for made in runs}
    ) == 1
    html = client.get(reverse("training:list", args=[run.project.slug])).content.decode()
    assert html.count("data-row") == 1 and "3 seeds, compare" in html
    for at, made in enumerate(runs):
        made.metrics.create(name="train/reward_mean", step=1, value=0.5 + at / 10)
    html = client.get(answer.url).content.decode()
    # Mean 0.6, standard deviation 0.1, t(2) = 4.303: ± 0.248.
    assert "Across 3 seeds" in html and "0.352 to 0.848" in html
    alone = start(client, run)
    html = client.get(answer.url + f"&run={alone.pk}").content.decode()
    assert "Across" not in html


@pytest.mark.proof
def test_a_curriculum_begins_with_what_an_evaluation_measured(client: Client, run: EvalRun) -> None:
    made = start(client, run, curriculum="on")
    rates = training_spec(made).success_rates
    assert sorted(rates.values()) == sorted(passed / 4 for passed in PASSED)
    assert rates.keys() == {task["id"] for task in training_spec(made).tasks}
    assert not training_spec(start(client, run)).success_rates


def test_the_api_exports_and_starts(client: Client, run: EvalRun) -> None:
    made = start(client, run, preset="dr_grpo")
    headers = {"Authorization": f"Bearer {make_key(run.project)}"}
    text = client.get(reverse("training_api:run_config", args=[made.pk]), headers=headers).json()[
        "yaml"
    ]
    assert text == exported(client, made)
    url = reverse("training_api:runs")

    def post(body: Any) -> Any:
        return client.post(url, json.dumps(body), content_type="application/json", headers=headers)

    answer = post({"yaml": text, "seeds": 2})
    assert answer.status_code == 201, answer.content
    assert [row["config"] for row in answer.json()] == [made.spec["config"]] * 2
    wrong = post({"yaml": text + "bta: 1\n"})
    assert wrong.status_code == 400 and wrong.json()["path"] == "yaml.bta"
    assert post({"yaml": text, "seeds": 99}).status_code == 400


@pytest.mark.proof
def test_the_command_exports_checks_and_starts(
    client: Client, run: EvalRun, tmp_path: Path
) -> None:
    made, out, path = start(client, run), io.StringIO(), tmp_path / "run.yaml"
    call_command("training_config", "export", str(made.pk), stdout=out)
    assert out.getvalue() == exported(client, made)
    path.write_text(out.getvalue())
    call_command("training_config", "check", str(path), stdout=out)
    call_command(
        "training_config", "start", str(path), "--user", admin_of(run.project).username, stdout=out
    )
    assert TrainingRun.objects.count() == 2
    path.write_text(out.getvalue() + "x")
    for arguments in (
        ("check", str(path)),
        ("check", str(tmp_path / "none.yaml")),
        ("export", "9" * 40),
        ("start", str(path), "--user", "nobody"),
        ("check", str(path), "--project", "nobody"),
    ):
        with pytest.raises(CommandError) as error:
            call_command("training_config", *arguments)
        assert error.value.returncode == 2 and str(error.value)


@pytest.mark.parametrize(
    ("algorithm", "name", "most"),
    [
        ("grpo", "steps", 100_000),
        ("grpo", "prompts_per_step", 1024),
        ("grpo", "generations", 128),
        ("grpo", "eval_samples", 128),
        ("grpo", "dynamic_sampling", 100),
        ("grpo", "updates_per_batch", 100),
        ("grpo", "max_new_tokens", 2**20),
        ("sft", "batch_size", 1024),
        ("kto", "batch_size", 1024),
        ("reward_model", "max_length", 2**20),
        ("best_of_n", "samples", 128),
        ("on_policy", "prompts_per_step", 1024),
        ("on_policy", "generations", 128),
    ],
)
def test_a_step_has_a_size_that_an_estimate_can_hold(algorithm: str, name: str, most: int) -> None:
    """`prompts_per_step: 1000000000` once took all memory of the machine while a page estimated the
    run.
    """
    needed = {"steps": 3, "learning_rate": 1e-4} | (
        {} if algorithm in ("grpo", "on_policy") else {"batch_size": 4}
    )
    assert checked(needed | {name: most}, algorithm)[name] == most
    with pytest.raises(ConfigError, match=f"must be at most {most}"):
        checked(needed | {name: most + 1}, algorithm)


@pytest.mark.parametrize("algorithm", list(CONFIGS))
def test_which_methods_take_a_base_in_4_bits(algorithm: str) -> None:
    given = {"steps": 3, "learning_rate": 1e-4, "load_in_4bit": True}
    given |= {"batch_size": 4} if "batch_size" in CONFIGS[algorithm].__struct_fields__ else {}
    if algorithm not in ("best_of_n", "reward_model"):
        assert checked(given, algorithm)["load_in_4bit"]
    else:
        with pytest.raises(
            ConfigError, match=r"“load_in_4bit” must be false, since .*SFT, DPO, KTO and GRPO"
        ):
            checked(given, algorithm)


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("more", ["load_in_4bit: true", "processes: 2"])
def test_what_the_installation_cannot_do_has_no_field_and_is_refused(
    client: Client, run: EvalRun, more: str, settings: Any
) -> None:
    """Where it can, the form has the field."""
    name, value = more.split(": ")
    method, variable = (
        ("sft", "FLYWHEEL_LOAD_IN_4BIT")
        if name == "load_in_4bit"
        else ("grpo", "FLYWHEEL_TRAINING_PROCESSES")
    )
    settings.FLYWHEEL_LOAD_IN_4BIT, settings.FLYWHEEL_TRAINING_PROCESSES = False, 1
    answer = client.post(
        reverse("training:new", args=[run.project.slug]), sent(run, method=method, more=more)
    )
    form = answer.context["form"]
    assert name not in form.fields and variable in str(form.errors)
    settings.FLYWHEEL_LOAD_IN_4BIT, settings.FLYWHEEL_TRAINING_PROCESSES = True, 2
    assert start(client, run, method=method, **{name: value}).spec["config"][name] == load_yaml(
        value
    )
    if name == "processes":
        assert start(client, run, method="sft", processes="2").spec["config"]["processes"] == 2
    answer = client.post(
        reverse("training:new", args=[run.project.slug]), sent(run, method="grpo", processes="3")
    )
    assert "less than or equal to 2" in str(answer.context["form"].errors["processes"])


@pytest.mark.parametrize(
    ("algorithm", "given", "most", "refusal"),
    [
        ("grpo", {"prompts_per_step": 2}, 2, "must be at most prompts_per_step, which is 2"),
        ("sft", {"batch_size": 4}, 4, "must be at most batch_size, which is 4"),
        ("best_of_n", {"batch_size": 4}, 4, "must be at most batch_size, which is 4"),
        (
            "dpo",
            {"batch_size": 4, "micro_batch": 2},
            2,
            "“micro_batch” must divide batch_size ÷ processes, which is 1",
        ),
        ("dpo", {"batch_size": 6}, 3, "“processes” must divide batch_size, which is 6"),
        ("kto", {"batch_size": 4}, 2, "“processes” must divide batch_size, which is 4"),
        (
            "reward_model",
            {"batch_size": 2},
            2,
            "“processes” must be at most batch_size, which is 2",
        ),
    ],
)
def test_processes_are_bounded_by_what_they_share(
    algorithm: str, given: dict, most: int, refusal: str
) -> None:
    given = {"steps": 3, "learning_rate": 1e-4} | given
    assert checked(given | {"processes": most}, algorithm)["processes"] == most
    with pytest.raises(ConfigError, match=refusal):
        checked(given | {"processes": 4 if "÷" in refusal else most + 1}, algorithm)


@pytest.mark.parametrize(
    ("algorithm", "given", "refusal"),
    [
        ("sft", {}, "“shard” needs several processes"),
        ("sft", {"processes": 3}, "that divides batch_size, which is 4"),
        ("kto", {"processes": 2, "load_in_4bit": True}, "“shard” must be false with load_in_4bit"),
        ("dpo", {"processes": 2, "use_dora": True}, "“shard” must be false with use_dora"),
        ("best_of_n", {"processes": 2}, "“shard” must be false, since it samples"),
        ("grpo", {"processes": 2, "batch_size": None}, "“shard” is not known"),
    ],
)
def test_a_base_is_sharded_where_all_processes_run_its_layers_alike(
    algorithm: str, given: dict, refusal: str
) -> None:
    given = {"steps": 3, "learning_rate": 1e-4, "batch_size": 4, "shard": True} | given
    with pytest.raises(ConfigError, match=refusal):
        checked({name: value for name, value in given.items() if value is not None}, algorithm)
