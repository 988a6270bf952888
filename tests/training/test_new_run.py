"""The form of a training run: it follows the advisor, checks only the chosen method's fields, and
keeps what was typed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.urls import reverse

from apps.environments.models import Environment
from apps.evals.models import EvalRun
from apps.registry.actions import register_base
from apps.registry.bases import base_digest
from apps.registry.models import ModelVersion
from apps.training.actions import TrainingError
from apps.training.config_yaml import ConfigError, config_of, read, write
from apps.training.forms import TrainingForm
from apps.training.models import Method, TrainingRun
from apps.training.starts import asked_from, fields_from, start_from
from tests.evals.evaluated import evaluated, frozen_set
from tests.factories import (
    admin_of,
    make_adapter,
    make_base_folder,
    make_endpoint,
    make_server,
    override,
)
from tests.shared import copied, once
from tests.training.test_picks import PASSED, sent
from workers.lib.specs.methods import CONFIGS
from workers.lib.typed import FormError, convert


def made_run(folder: Path) -> EvalRun:
    made = evaluated(frozen_set(demonstration="x"), PASSED, folder)
    override(made.environment)
    return made


@pytest.fixture(scope="module")
def kept(request: pytest.FixtureRequest) -> Iterator[tuple[EvalRun, Path]]:
    yield from once(request, made_run)


@pytest.fixture
def run(kept: tuple[EvalRun, Path], db: None, settings: Any, client: Client) -> EvalRun:
    run = copied(kept, settings)
    client.force_login(admin_of(run.project))
    return run


def page(client: Client, run: EvalRun, **query: Any) -> Any:
    return client.get(reverse("training:new", args=[run.project.slug]), query)


def post(client: Client, run: EvalRun, **changes: Any) -> Any:
    return client.post(reverse("training:new", args=[run.project.slug]), sent(run, **changes))


@pytest.mark.proof
def test_it_starts_with_what_the_advisor_says(client: Client, run: EvalRun) -> None:
    advised = [item.fix for item in page(client, run).context["advice"][1]]
    form = page(client, run).context["form"]
    assert form.initial["method"] == next(fix for fix in advised if fix in ("sft", "grpo"))
    assert (form.initial["parent"], form.initial["eval_set"]) == (
        run.model_version_id,
        run.eval_set_id,
    )
    assert page(client, run, method="sft").context["form"].initial["method"] == "sft"


@pytest.mark.proof
def test_fields_of_the_other_method_are_not_checked(client: Client, run: EvalRun) -> None:
    assert (
        post(client, run, method="grpo", batch_size="nonsense", lora_dropout="9").status_code == 302
    )
    assert post(client, run, method="sft", generations="1", beta="-1").status_code == 302
    refused = post(client, run, method="grpo", generations="1", steps="77")
    assert (
        refused.context["form"].errors.keys() == {"generations"}
        and 'value="77"' in refused.content.decode()
    )
    assert TrainingRun.objects.count() == 2


def test_lora_settings_reach_the_run(client: Client, run: EvalRun) -> None:
    given = {
        "lora_rank": 8,
        "lora_alpha": "",
        "lora_dropout": "0.1",
        "method": "sft",
        "target_modules": "",
    }
    assert post(client, run, **given).status_code == 302
    config = TrainingRun.objects.get().spec["config"]
    assert (config["lora_rank"], config["lora_alpha"], config["lora_dropout"]) == (8, 16, 0.1)
    assert config["target_modules"] == "all-linear"


OWN = {"r": 8, "lora_alpha": 24, "target_modules": ["q_proj", "v_proj"], "use_rslora": True}
SETTINGS = {
    "lora_rank": 8,
    "lora_alpha": 24,
    "target_modules": ["q_proj", "v_proj"],
    "use_rslora": True,
    "use_dora": False,
}


@pytest.fixture
def adapter(run: EvalRun, tmp_path: Path) -> ModelVersion:
    return make_adapter(run.project, run.model_version, tmp_path, "support", OWN)


def recorded() -> dict[str, Any]:
    config = TrainingRun.objects.order_by("-created_at")[0].spec["config"]
    return {name: config[name] for name in SETTINGS}


def test_a_run_that_continues_an_adapter_has_its_settings(
    client: Client, run: EvalRun, adapter: ModelVersion
) -> None:
    usual = {"lora_rank": "16", "lora_alpha": "", "target_modules": "all-linear"}
    given = usual | {"method": "sft", "lora_dropout": "0.1", "parent": adapter.pk}
    assert post(client, run, **given).status_code == 302
    made = TrainingRun.objects.get()
    assert recorded() == SETTINGS and made.spec["config"]["lora_dropout"] == 0.1
    again = write(config_of(made))
    [second] = start_from(read(again), project=run.project, by=admin_of(run.project))
    assert second.spec["config"] == made.spec["config"]
    assert fields_from(read(again), run.project)["more"].find("lora_") == -1
    without = "\n".join(
        line
        for line in again.splitlines()
        if not line.startswith((*SETTINGS, "- q_proj", "- v_proj", "  - "))
    )
    asked = asked_from(read(without), project=run.project)
    assert {name: asked.config[name] for name in SETTINGS} == SETTINGS
    start_from(read(without), project=run.project, by=admin_of(run.project))
    assert recorded() == SETTINGS


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("lora_rank", 16, "8"),
        ("lora_alpha", 16, "24"),
        ("target_modules", ["q_proj"], "q_proj, v_proj"),
        ("use_rslora", False, "true"),
        ("use_dora", True, "false"),
    ],
)
def test_other_settings_than_the_adapters_are_refused(
    client: Client, run: EvalRun, adapter: ModelVersion, name: str, value: Any, shown: str
) -> None:
    said = f"“{name}” must be {shown}, as in {adapter}"
    text = (
        f"model: {adapter}\nalgorithm: grpo\ntraining_data: {run.eval_set.slug}@1\n"
        f"environment: {run.environment.slug}@1\nsteps: 2\nlearning_rate: 1e-4\n"
        f"prompts_per_step: 1\ngenerations: 2\n{name}: {json.dumps(value)}"
    )
    with pytest.raises(TrainingError, match=said.replace("“", "“config.")):
        start_from(read(text), project=run.project, by=admin_of(run.project))
    with pytest.raises(ConfigError, match=said):
        asked_from(read(text), project=run.project)
    if name != "use_rslora" and value != 16:
        shape = {"lora_rank": "", "lora_alpha": "", "target_modules": ""}
        fields = shape | {name: "q_proj" if isinstance(value, list) else value}
        answer = post(client, run, method="sft", parent=adapter.pk, **fields)
        assert said in answer.context["form"].errors[name][0]
    assert not TrainingRun.objects.exists()


def style() -> str:
    """The style sheet in one line."""
    return " ".join((settings.BASE_DIR / "static/app.css").read_text().split())


@pytest.mark.proof
def test_the_form_hides_the_settings_of_a_new_adapter(
    client: Client, run: EvalRun, adapter: ModelVersion
) -> None:
    html = page(client, run).content.decode()
    assert f'<option value="{adapter.pk}" data-adapter' in html
    assert html.count("data-adapter") == 1
    [rule] = [
        rule for rule in style().split(", .form ") if "#id_parent option[data-adapter]" in rule
    ]
    assert all(f"#id_{name}" in rule for name in SETTINGS) and "lora_dropout" not in rule


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("field", "value"),
    [("lora_rank", "513"), ("lora_rank", "0"), ("lora_alpha", "0"), ("lora_dropout", "1")],
)
def test_bounds_of_lora_are_said_at_the_field(
    client: Client, run: EvalRun, field: str, value: str
) -> None:
    assert post(client, run, **{"method": "sft", field: value}).context["form"].errors.keys() == {
        field
    }
    assert not TrainingRun.objects.exists()


@pytest.mark.proof
def test_layers_that_the_base_does_not_have_are_refused_by_name(
    client: Client, run: EvalRun, monkeypatch: Any
) -> None:
    shapes = {
        "model.layers.0.self_attn.q_proj.weight": (4, 4),
        "model.embed_tokens.weight": (9, 4),
        "model.norm.weight": (4,),
    }
    monkeypatch.setattr("apps.registry.trained_elsewhere.shapes_of", lambda files: shapes)
    answer = post(client, run, target_modules="q_proj, k_projj embed_tokens")
    assert "has no layer k_projj, embed_tokens" in answer.context["form"].non_field_errors()[0]
    assert post(client, run, target_modules=" q_proj ,q_proj").status_code == 302
    assert TrainingRun.objects.get().spec["config"]["target_modules"] == ["q_proj"]


def test_only_weights_of_this_installation_are_offered(
    client: Client, run: EvalRun, data_dir: Path
) -> None:
    served = make_endpoint(run.project, make_server(run.project, "https://gpu.example.com/v1"))
    offered = page(client, run).context["form"].fields["parent"].queryset
    assert run.model_version in offered and served not in offered


@pytest.mark.proof
def test_advantages_per_turn_are_offered_where_an_environment_reports_them(
    client: Client, run: EvalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "advantages" not in page(client, run, method="grpo").context["form"].fields
    refused = post(client, run, method="grpo", advantages="turn", more="advantages: turn")
    assert "does not report rewards per turn" in refused.context["form"].errors["more"][0]
    monkeypatch.setattr(Environment, "has_turn_rewards", True)
    assert "advantages" in page(client, run, method="grpo").context["form"].fields
    refused = post(client, run, method="grpo", advantages="turn", preset="rloo")
    assert "episode with rloo" in refused.context["form"].errors["advantages"][0]
    assert post(client, run, method="grpo", advantages="turn", preset="dapo").status_code == 302
    assert TrainingRun.objects.get().spec["config"]["advantages"] == "turn"


def test_ppo_is_offered_and_its_settings_belong_to_it(client: Client, run: EvalRun) -> None:
    text = page(client, run, method="grpo").content.decode()
    assert "PPO: A critic learns what each token is worth" in text
    given = {"method": "grpo", "preset": "ppo", "generations": "1", "gae_lambda": "0.9"}
    refused = post(client, run, **given, kl_target="6")
    assert "set beta" in refused.context["form"].errors["kl_target"][0]
    refused = post(client, run, **given | {"preset": "dapo", "generations": "8"})
    assert "choose gae (PPO)" in refused.context["form"].errors["gae_lambda"][0]
    made = post(client, run, **given, kl_target="6", beta="0.1", minibatches="2")
    assert made.status_code == 302
    job = TrainingRun.objects.get()
    names = ("advantages", "gae_lambda", "kl_target", "minibatches", "updates_per_batch")
    assert [job.spec["config"][name] for name in names] == ["gae", 0.9, 6.0, 2, 4]
    fields = fields_from(read(write(config_of(job))), run.project)
    assert (fields["preset"], fields["gae_lambda"], fields["generations"]) == ("ppo", 0.9, 1)
    assert "advantages" not in fields["more"]


def test_a_finished_run_leads_to_its_evaluation_against_its_parent(
    client: Client, run: EvalRun, data_dir: Path
) -> None:
    adapter = make_adapter(run.project, run.model_version, data_dir)
    url = reverse("evals:new_run", args=[run.project.slug, run.eval_set_id])
    answer = client.get(url, {"model_version": adapter.pk})
    shown, initial = answer.context, answer.context["form"].initial
    assert shown["baseline"] == run and "To compare with" in answer.content.decode()
    assert (shown["version"], initial["samples_per_task"], initial["split"]) == (
        adapter,
        run.samples_per_task,
        run.split,
    )
    folder = make_base_folder(data_dir / "other")
    (folder / "config.json").write_text('{"other": 1}')
    unmeasured = register_base(
        project=run.project, name="other", folder=folder, by=admin_of(run.project)
    )
    other = make_adapter(run.project, unmeasured, data_dir)
    assert (
        "no baseline to compare with"
        in client.get(url, {"model_version": other.pk}).content.decode()
    )
    for nonsense in ("x", "9" * 30, "-1"):
        assert (
            client.get(
                url, {"model_version": nonsense, "split": nonsense, "environment": nonsense}
            ).status_code
            == 400
        )


def test_a_finished_evaluation_leads_to_its_comparison(
    client: Client, run: EvalRun, data_dir: Path
) -> None:
    slug, adapter = run.project.slug, make_adapter(run.project, run.model_version, data_dir)
    after = evaluated(run.eval_set, PASSED, data_dir)
    assert after.model_version == adapter
    html = client.get(reverse("evals:run", args=[slug, after.pk])).content.decode()
    assert f"{reverse('evals:compare', args=[slug])}?run={run.pk}&amp;run={after.pk}" in html


@pytest.mark.proof
def test_a_model_that_cannot_carry_tools_is_not_trained_where_they_are_needed(
    client: Client, run: EvalRun
) -> None:
    """The form says so before anything is queued; an environment without tools takes it."""
    problem = (
        "its chat template refuses a conversation with tool results (System role not supported)"
    )
    ModelVersion.objects.filter(pk=run.model_version_id).update(template={"problem": problem})
    assert f"{run.model_version} (no tools)" in page(client, run).content.decode()
    assert post(client, run, method="grpo").status_code == 302
    becomes(run, builtin="customer_service")
    answer = post(client, run, method="grpo")
    assert answer.context["form"].non_field_errors() == [
        f"The chat template of {run.model_version} does not support the tools that"
        f" {run.environment} needs: {problem}. Choose another model or environment."
    ]
    ModelVersion.objects.filter(pk=run.model_version_id).update(template={"tools": "text"})
    assert post(client, run, method="grpo").status_code == 302 and TrainingRun.objects.count() == 2


def test_several_turns_are_offered_and_queued(client: Client, run: EvalRun) -> None:
    becomes(run, kind="replay", builtin="")
    answer = post(client, run, method="grpo")
    assert answer.status_code == 302, answer.context["form"].errors


def becomes(run: EvalRun, **changes: str) -> None:
    Environment.objects.filter(pk=run.environment_id).update(**changes)
    run.environment.refresh_from_db()
    override(run.environment)


@pytest.mark.parametrize("method", Method.values)
def test_each_method_hides_the_fields_of_the_others(method: str) -> None:
    """Three methods once showed all fields of all: two learning rates, a teacher, generations."""
    assert (
        f'#id_method option[value="{method}"]:checked)'
        f' .field:has([data-methods]:not([data-methods~="{method}"]))' in style()
    )


def test_the_form_and_a_file_allow_the_same_sizes(run: EvalRun) -> None:
    form = TrainingForm(run.project)
    given = {"steps": 3, "learning_rate": 1e-4, "batch_size": 4}
    for name, kind in (
        ("steps", "sft"),
        ("batch_size", "sft"),
        ("prompts_per_step", "grpo"),
        ("generations", "grpo"),
        ("dynamic_sampling", "grpo"),
        ("updates_per_batch", "grpo"),
        ("samples", "best_of_n"),
    ):
        most, rest = (
            form.fields[name].max_value,
            given if kind != "grpo" else given | {"batch_size": None},
        )
        values = {key: value for key, value in rest.items() if value is not None}
        convert(values | {name: most}, CONFIGS[kind])
        with pytest.raises(FormError):
            convert(values | {name: most + 1}, CONFIGS[kind])


@pytest.mark.proof
def test_answers_have_to_leave_room_for_a_prompt(client: Client, run: EvalRun) -> None:
    folder = Path(run.model_version.base)
    (folder / "config.json").write_text('{"max_position_embeddings": 512}')
    ModelVersion.objects.update(digest=base_digest(folder))
    refused = post(client, run, method="grpo", more="max_new_tokens: 512")
    assert "reads at most 512 tokens, prompt and answer together" in refused.content.decode()
    assert post(client, run, method="grpo", more="max_new_tokens: 511").status_code == 302
