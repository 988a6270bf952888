"""Base models and adapters from outside: by page and API, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse
from safetensors.numpy import save

from apps.core.models import Role
from apps.registry import trained_elsewhere
from apps.registry.actions import ModelError
from apps.registry.models import ModelVersion
from apps.registry.trained_elsewhere import (
    CONFIG,
    WEIGHTS,
    register_base_folder,
    register_trained_adapter,
)
from tests.factories import key_headers, make_endpoint, make_key, make_member, make_project

pytestmark = pytest.mark.django_db
LAYER = "model.layers.0.self_attn.q_proj"
GOOD = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"]}


def tensors(**shapes: tuple[int, ...]) -> bytes:
    return save({name: numpy.ones(shape, numpy.float32) for name, shape in shapes.items()})


def lora(
    layer: str = LAYER, rank: int = 2, inner: int = 8, outer: int = 6, **more: tuple[int, ...]
) -> bytes:
    name = f"base_model.model.{layer}.lora_"
    return tensors(**{f"{name}A.weight": (rank, inner), f"{name}B.weight": (outer, rank)} | more)


def whole_numbers() -> bytes:
    name = f"base_model.model.{LAYER}.lora_"
    return save(
        {
            f"{name}A.weight": numpy.ones((2, 8), numpy.int64),
            f"{name}B.weight": numpy.ones((6, 2), numpy.int64),
        }
    )


@pytest.fixture
def models(data_dir: Path, settings: Any) -> Path:
    settings.FLYWHEEL_MODEL_FOLDERS = [str(data_dir / "models")]
    settings.FLYWHEEL_ALLOW_PRIVATE_URLS = True
    folder = data_dir / "models" / "base"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(
        tensors(**{f"{LAYER}.weight": (6, 8), "model.norm.weight": (8,)})
    )
    return data_dir / "models"


@pytest.fixture
def base(models: Path) -> ModelVersion:
    return register_base_folder(
        project=make_project(), name="base", folder=str(models / "base"), by=None
    )


def adapter(folder: Path, config: Any = GOOD, weights: bytes = b"") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / CONFIG).write_bytes(
        config if isinstance(config, bytes) else json.dumps(config).encode()
    )
    (folder / WEIGHTS).write_bytes(weights or lora())
    return folder


def register(base: ModelVersion, folder: Path, **given: Any) -> ModelVersion:
    fields = {
        "project": base.project,
        "name": "lora",
        "parent": base,
        "folder": str(folder),
        "by": None,
    } | given
    return register_trained_adapter(**fields)


def test_an_adapter_that_fits_is_stored_and_only_its_two_files(
    models: Path, base: ModelVersion
) -> None:
    folder = adapter(models / "a")
    (folder / "optimizer.pt").write_bytes(pickle.dumps({"a": 1}))
    made = register(base, folder)
    assert (made.parent, made.lineage) == (
        base,
        {"trained": "elsewhere", "rank": 2, "declared_base": ""},
    )
    assert [file["path"] for file in made.artifact.files] == [CONFIG, WEIGHTS]
    assert register(base, folder, name="again") == made, "the same content twice is one version"


def numbers(dtype: str, a: list[int], b: list[int]) -> bytes:
    """A whole file with these bits as lora_A [2, 8] and lora_B [6, 2], the rest 0."""
    size = {"F32": 4, "F16": 2, "BF16": 2}[dtype]
    head, data = {}, b""
    for part, shape, given in (("A", (2, 8), a), ("B", (6, 2), b)):
        bits = b"".join(value.to_bytes(size, "little") for value in given).ljust(
            size * shape[0] * shape[1], b"\0"
        )
        name = f"base_model.model.{LAYER}.lora_{part}.weight"
        head[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": (len(data), len(data) + len(bits)),
        }
        data += bits
    written = json.dumps(head).encode()
    return len(written).to_bytes(8, "little") + written + data


@pytest.mark.more(rows=4)
@pytest.mark.parametrize(
    ("dtype", "one", "bad"),
    [
        ("F32", 0x3F800000, 0x7FC00000),
        ("F32", 0x3F800000, 0xFF800000),
        ("F16", 0x3C00, 0x7E00),
        ("F16", 0x3C00, 0xFC00),
        ("BF16", 0x3F80, 0x7FC0),
        ("BF16", 0x3F80, 0xFF80),
    ],
)
@pytest.mark.parametrize("part", ["A", "B"])
def test_weights_that_hold_nan_are_refused_with_the_tensors_name(
    models: Path, base: ModelVersion, dtype: str, one: int, bad: int, part: str
) -> None:
    given = {"A": [one], "B": [one]}
    assert (
        register(base, adapter(models / "good", weights=numbers(dtype, *given.values()))).lineage[
            "rank"
        ]
        == 2
    )
    given[part] = [one, one, bad]
    with pytest.raises(ModelError, match=f"{LAYER}.lora_{part}.weight holds NaN"):
        register(base, adapter(models / "bad", weights=numbers(dtype, *given.values())))


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(("dtype", "zero"), [("F32", 0x80000000), ("F16", 0x8000), ("BF16", 0)])
def test_an_adapter_that_changes_nothing_says_so_on_its_page(
    models: Path, base: ModelVersion, dtype: str, zero: int
) -> None:
    made = register(base, adapter(models / "a", weights=numbers(dtype, [1], [zero])))
    assert made.lineage == {
        "trained": "elsewhere",
        "rank": 2,
        "changes_nothing": True,
        "answers_like": str(base),
        "declared_base": "",
    }
    small = register(base, adapter(models / "b", weights=numbers(dtype, [1], [zero, 1])))
    assert "changes_nothing" not in small.lineage
    client = Client()
    client.force_login(make_member(base.project, Role.VIEWER))
    pages = [
        client.get(reverse("promotion:model", args=[base.project.slug, one.pk])).content.decode()
        for one in (made, small)
    ]
    assert ["This adapter has no effect" in page for page in pages] == [True, False]


@pytest.mark.more(rows=7)
@pytest.mark.parametrize(
    ("config", "weights", "says"),
    [
        (b"{", b"", "is not JSON"),
        (b"[" * 10_000, b"", "is not JSON"),
        (b"[]", b"", "peft_type"),
        ({"peft_type": "PREFIX_TUNING"}, b"", "only LoRA"),
        (GOOD | {"r": 0}, b"", "from 1 to 512"),
        (GOOD | {"r": True}, b"", "from 1 to 512"),
        (GOOD | {"r": "8"}, b"", "from 1 to 512"),
        (GOOD | {"auto_mapping": {"parent_library": "os"}}, b"", "auto_mapping"),
        (GOOD | {"lora_alpha": 0}, b"", "lora_alpha above 0"),
        (GOOD | {"lora_alpha": -1}, b"", "lora_alpha above 0"),
        (GOOD | {"lora_alpha": "16"}, b"", "lora_alpha above 0"),
        (GOOD | {"lora_alpha": 10**400}, b"", "lora_alpha above 0"),
        (GOOD | {"lora_alpha": 1e-300}, b"", "lora_alpha above 0"),
        (GOOD | {"alpha_pattern": {"q_proj": 0}}, b"", "lora_alpha above 0"),
        (GOOD | {"alpha_pattern": [0]}, b"", "must be an object"),
        (
            GOOD | {"rank_pattern": {"q_proj": 64}},
            b"",
            "says rank 64, and model.layers.0.self_attn.q_proj has rank 2",
        ),
        (GOOD | {"rank_pattern": {"(?=q)": 2}}, b"", "cannot be checked"),
        (GOOD | {"target_modules": "(a+)+$"}, b"", "none of the “target_modules”"),
        (GOOD | {"exclude_modules": ["q_proj"]}, b"", "none of the “target_modules”"),
        (GOOD | {"exclude_modules": {"q_proj": 1}}, b"", "must be a list"),
        (GOOD | {"layers_to_transform": [1]}, b"", "none of the “target_modules”"),
        (GOOD | {"use_dora": True}, b"", "no lora_magnitude_vector of 6 numbers"),
        (
            GOOD | {"megatron_config": {"a": 1}, "megatron_core": "os"},
            b"",
            "“megatron_config”: that is more",
        ),
        (GOOD | {"modules_to_save": ["lm_head"]}, b"", "“modules_to_save”: that is more"),
        (GOOD | {"init_lora_weights": "pissa_niter_4"}, b"", "changes the base when it is loaded"),
        (GOOD | {"task_type": "SEQ_CLS"}, b"", "are CAUSAL_LM"),
        (GOOD | {"bias": "all"}, b"", "only “none” is served"),
        (b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), b"", "is not JSON"),
        (
            b'{"peft_type": "LORA", "r": 2, "target_modules": ["q_proj"], "lora_alpha": NaN}',
            b"",
            "lora_alpha above 0",
        ),
        (GOOD | {"target_modules": []}, b"", "target_modules"),
        (GOOD | {"target_modules": None}, b"", "target_modules"),
        (GOOD | {"target_modules": [1]}, b"", "target_modules"),
        (GOOD | {"target_modules": ["k_proj"]}, b"", "none of the “target_modules”"),
        (GOOD | {"r": 4}, b"", "says rank 4, and model.layers.0.self_attn.q_proj has rank 2"),
        (GOOD, whole_numbers(), "type I64"),
        (GOOD | {"x": "y" * 70_000}, b"", "larger than 0.0625 MiB"),
        (GOOD, pickle.dumps({"a": 1}), "not a whole safetensors file"),
        (GOOD, b"PK\x03\x04" + b"\x00" * 100, "not a whole safetensors file"),
        (GOOD, lora()[:-4], "not a whole safetensors file"),
        (GOOD, b"\xff" * 8 + b"{}", "not a whole safetensors file"),
        (GOOD, tensors(weight=(2, 2)), "not part of a PEFT adapter"),
        (
            GOOD,
            tensors(**{"base_model.model.score.weight": (2, 2)}),
            "score.weight, which is not LoRA",
        ),
        *(
            (GOOD, lora(**{f"base_model.model.{name}": (6, 8)}), says)
            for name, says in (
                ("model.embed_tokens.weight", "holds model.embed_tokens.weight, which is not LoRA"),
                ("lm_head.weight", "lm_head.weight, which is not LoRA"),
                ("model.norm.weight", "model.norm.weight, which is not LoRA"),
                (f"{LAYER}.weight", "q_proj.weight, which is not LoRA"),
                (f"{LAYER}.base_layer.weight", "base_layer.weight, which is not LoRA"),
                (f"{LAYER}.lora_A.default.weight", "lora_A.default.weight, which is not LoRA"),
                (f"{LAYER}.lora_B.bias", "lora_B.bias, which is not LoRA"),
                (f"{LAYER}.bias", "q_proj.bias, which is not LoRA"),
                ("lm_head.modules_to_save.weight", "which is not LoRA"),
                ("model.embed_tokens.lora_embedding_A", "LoRA on embeddings is not served"),
                (f"{LAYER}.lora_magnitude_vector", "disagree about DoRA"),
                ("model.layers.0.mlp.up_proj.lora_B.weight", "up_proj needs a lora_A and a lora_B"),
            )
        ),
        (
            GOOD | {"use_dora": True},
            lora(**{f"base_model.model.{LAYER}.lora_magnitude_vector": (8,)}),
            "no lora_magnitude_vector of 6 numbers",
        ),
        (GOOD, lora("model.layers.7.self_attn.q_proj"), "1 of its 1 layers are not in base-v1"),
        (GOOD, lora(inner=9), "another base"),
        (GOOD, lora(outer=7), "another base"),
        (
            GOOD,
            tensors(**{f"base_model.model.{LAYER}.lora_A.weight": (2, 8)}),
            "needs a lora_A and a lora_B",
        ),
    ],
)
def test_what_is_no_adapter_of_the_base_is_refused(
    models: Path, base: ModelVersion, config: Any, weights: bytes, says: str
) -> None:
    with pytest.raises(ModelError, match=says):
        register(base, adapter(models / "a", config, weights))
    assert ModelVersion.objects.get() == base


@pytest.mark.parametrize(
    "more",
    [
        {"target_modules": "all-linear"},
        {"lora_alpha": 0.5},
        {"r": 4, "rank_pattern": {"q_proj": 2}},
        {"target_modules": r"model\.layers\.\d+\.self_attn\.(q|v)_proj"},
        {"layers_to_transform": 0},
        {
            "exclude_modules": ["v_proj"],
            "bias": "none",
            "task_type": "CAUSAL_LM",
            "init_lora_weights": "gaussian",
        },
    ],
)
def test_what_peft_writes_besides_is_taken(models: Path, base: ModelVersion, more: dict) -> None:
    assert register(base, adapter(models / "a", GOOD | more)).is_new


def test_dora_and_rslora_are_taken_as_they_were_trained(models: Path, base: ModelVersion) -> None:
    magnitude = {f"base_model.model.{LAYER}.lora_magnitude_vector": (6,)}
    assert register(
        base, adapter(models / "a", GOOD | {"use_dora": True}, lora(**magnitude))
    ).is_new
    assert register(base, adapter(models / "b", GOOD | {"use_rslora": True})).is_new


def declaring(name: object) -> dict:
    return GOOD | {"base_model_name_or_path": name}


@pytest.mark.parametrize(
    "name",
    [
        "acme/Base",
        "base",
        "/home/me/models/base/",
        "BASE",
        "/root/.cache/huggingface/hub/models--acme--base/snapshots/0a1b2c",
    ],
)
def test_an_adapter_that_names_its_base_as_it_is_called_here_needs_no_more(
    models: Path, base: ModelVersion, name: str
) -> None:
    made = register(base, adapter(models / "a", declaring(name)))
    assert "declared_base" not in made.lineage


@pytest.mark.more(rows=1)
@pytest.mark.parametrize("name", ["acme/Base-Instruct", "/srv/other-7b", "unsloth/base-bnb-4bit"])
def test_an_adapter_of_another_base_with_the_same_shapes_needs_a_choice(
    models: Path, base: ModelVersion, name: str, client: Client
) -> None:
    folder = adapter(models / "a", declaring(name))
    with pytest.raises(ModelError, match="has another name") as refused:
        register(base, folder)
    assert refused.value.field == "confirm_base" and name in str(refused.value)
    body = {"kind": "adapter", "name": "x", "parent": base.pk, "folder": str(folder)}
    headers = {
        "HTTP_AUTHORIZATION": f"Bearer {make_key(base.project)}",
        "content_type": "application/json",
    }
    answer = client.post("/api/v1/model-versions/", body, **headers)
    assert (answer.status_code, answer.json()["path"]) == (400, "confirm_base")
    client.force_login(make_member(base.project, Role.ENGINEER))
    page = f"{reverse('registry:register', args=[base.project.slug])}?kind=adapter"
    assert "has another name" in client.post(page, body).content.decode()
    assert not base.project.model_versions.exclude(pk=base.pk).exists()
    shown = client.post(page, body | {"confirm_base": "on"}, follow=True).content.decode()
    assert f"was trained on “{name}”" in shown
    assert (
        client.post("/api/v1/model-versions/", body | {"confirm_base": True}, **headers).status_code
        == 200
    )


def test_files_that_a_run_made_here_are_not_registered_on_another_base(
    models: Path, base: ModelVersion
) -> None:
    made = register(base, adapter(models / "a"))
    made.lineage |= {"run": "6d0e"}
    made.save()
    (models / "twin").mkdir()
    (models / "twin" / "config.json").write_text('{"other": 1}')
    (models / "twin" / "model.safetensors").write_bytes(
        (models / "base" / "model.safetensors").read_bytes()
    )
    twin = register_base_folder(
        project=base.project, name="twin", folder=str(models / "twin"), by=None
    )
    with pytest.raises(
        ModelError, match="lora-v1, which was trained here on base-v1, not on twin-v1"
    ):
        register(twin, models / "a", confirm_base=True)


def test_a_folder_elsewhere_is_not_told_from_one_that_is_missing(
    models: Path, base: ModelVersion, tmp_path: Path
) -> None:
    outside = adapter(tmp_path / "outside")
    (models / "link").symlink_to(outside)
    sentences = set()
    for folder in (
        str(outside),
        str(models / ".." / "outside"),
        str(models / "link"),
        str(models / "none"),
        "/etc/passwd",
        "/",
        "a",
        "",
        "a\x00b",
        str(models / ("x" * 300)),
        str(models / "base" / "config.json"),
    ):
        with pytest.raises(ModelError) as refused:
            trained_elsewhere.allowed_folder(folder)
        sentences.add(str(refused.value))
    assert len(sentences) == 1 and "FLYWHEEL_MODEL_FOLDERS" in sentences.pop()
    folder = adapter(models / "a")
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).symlink_to(outside / WEIGHTS)
    with pytest.raises(ModelError, match="holds no file adapter_model"):
        register(base, folder)


def test_limits_of_size(models: Path, base: ModelVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trained_elsewhere, "MAX_ADAPTER", 10)
    with pytest.raises(ModelError, match="larger than"):
        register(base, adapter(models / "a"))
    monkeypatch.setattr(trained_elsewhere, "MAX_BASE", 10)
    with pytest.raises(ModelError, match="register_model"):
        register_base_folder(project=base.project, name="b", folder=str(models / "base"), by=None)


def test_a_base_whose_weights_are_broken_or_links_is_refused(models: Path) -> None:
    project, folder = make_project(), models / "base"
    (folder / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(ModelError, match="not a whole safetensors"):
        register_base_folder(project=project, name="b", folder=str(folder), by=None)
    (folder / "model.safetensors").rename(models / "w.safetensors")
    (folder / "model.safetensors").symlink_to(models / "w.safetensors")
    with pytest.raises(ModelError, match="holds links"):
        register_base_folder(project=project, name="b", folder=str(folder), by=None)


@pytest.mark.parametrize("named", ["another", "base", None])
def test_a_base_whose_folder_holds_an_adapter_is_refused(models: Path, named: str | None) -> None:
    """Transformers would load the base that the adapter names, wherever that lies."""
    (models / "base" / CONFIG).write_text(json.dumps(declaring(named)))
    with pytest.raises(ModelError, match=f"holds {CONFIG}"):
        register_base_folder(project=make_project(), name="b", folder=str(models / "base"), by=None)


def test_an_adapter_needs_a_base_here(models: Path, base: ModelVersion) -> None:
    with pytest.raises(ModelError, match="not a base model in a folder"):
        register(base, adapter(models / "a"), parent=make_endpoint(base.project))


@pytest.mark.proof
def test_both_by_page_and_by_api(models: Path) -> None:
    project, client = make_project(), Client()
    client.force_login(make_member(project, Role.ENGINEER))
    page = reverse("registry:register", args=[project.slug])
    assert str(models) in client.get(f"{page}?kind=base").content.decode()
    refused = client.post(f"{page}?kind=base", {"name": "base", "folder": "/etc"}).content.decode()
    assert "FLYWHEEL_MODEL_FOLDERS" in refused and 'value="/etc"' in refused
    made = client.post(
        f"{page}?kind=base", {"name": "base", "folder": str(models / "base")}, follow=True
    )
    assert "base-v1 is registered" in made.content.decode()
    base = project.model_versions.get()
    folder = adapter(models / "a")

    def files(weights: bytes) -> dict[str, Any]:
        config = SimpleUploadedFile("c.json", (folder / CONFIG).read_bytes())
        return {
            "name": "up",
            "parent": base.pk,
            "config": config,
            "weights": SimpleUploadedFile("w", weights),
        }

    assert (
        "Give a folder, or both"
        in client.post(f"{page}?kind=adapter", {"name": "a", "parent": base.pk}).content.decode()
    )
    assert (
        "not a whole"
        in client.post(f"{page}?kind=adapter", files(pickle.dumps(1))).content.decode()
    )
    assert (
        "up-v1 is registered"
        in client.post(f"{page}?kind=adapter", files(lora()), follow=True).content.decode()
    )
    headers = {
        "HTTP_AUTHORIZATION": f"Bearer {make_key(project)}",
        "content_type": "application/json",
    }
    body = {"kind": "adapter", "name": "x", "parent": base.pk, "folder": str(folder)}
    same = client.post("/api/v1/model-versions/", body, **headers)
    assert same.status_code == 200 and same.json()["model"] == "up-v1", (
        "what was uploaded is what lies in the folder"
    )
    for change, path in (
        ({"parent": same.json()["id"]}, "parent"),
        ({"folder": "/etc"}, ""),
        ({"folder": ""}, "folder"),
    ):
        refused = client.post("/api/v1/model-versions/", body | change, **headers)
        assert refused.status_code == 400 and refused.json()["path"] == path, refused.json()
    again = client.post(
        "/api/v1/model-versions/",
        {"kind": "base", "name": "b", "folder": str(models / "base")},
        **headers,
    )
    assert again.status_code == 200 and again.json()["id"] == base.pk


@pytest.mark.more(rows=1)
@pytest.mark.parametrize(
    ("template", "tools", "says"),
    [
        (
            (
                "{% for m in messages %}{{ m.role }}{{ m.content }}<|im_end|>{% endfor %}{% if"
                " add_generation_prompt %}assistant{% endif %}"
            ),
            "text",
            "Turns are joined by prefix.",
        ),
        (
            "{{ raise_exception('No <b>tools</b>') }}",
            "",
            "refuses a conversation with tool results (No &lt;b&gt;tools&lt;/b&gt;)",
        ),
    ],
)
def test_a_base_models_chat_template_is_checked_and_shown(
    template: str, tools: str, says: str, models: Path, client: Client
) -> None:
    settings = {"eos_token": "<|im_end|>", "chat_template": template}
    (models / "base" / "tokenizer_config.json").write_text(json.dumps(settings))
    made = register_base_folder(
        project=make_project(), name="base", folder=str(models / "base"), by=None
    )
    assert made.template["tools"] == tools
    client.force_login(make_member(made.project, Role.VIEWER))
    assert (
        says
        in client.get(
            reverse("promotion:model", args=[made.project.slug, made.pk])
        ).content.decode()
    )
    answer = client.get(f"/api/v1/model-versions/{made.pk}/", **key_headers(made.project)).json()
    assert answer["chat_template"]["tools"] == tools and answer["chat_template"]["turns"]


def test_a_folder_without_a_tokenizer_says_nothing_of_turns(
    base: ModelVersion, client: Client
) -> None:
    client.force_login(make_member(base.project, Role.VIEWER))
    page = client.get(
        reverse("promotion:model", args=[base.project.slug, base.pk])
    ).content.decode()
    assert base.template == {} and base.chat_template is None and "<dt>Episodes</dt>" not in page
