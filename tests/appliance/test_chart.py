"""A chart comes to the same objects as the export for Kubernetes, as Helm itself renders it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.run import REPO
from tokenspeed.cli import main

SMOL = REPO / "recipes/smollm2-135m-cpu.yaml"
GPU = REPO / "recipes/qwen3-8b-h200x1-latency.yaml"


def exported(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The chart in `folder`, and the objects of the plain export by kind."""
    assert main(["export", "helm", *arguments, "-o", str(folder)]) == 0, capsys.readouterr().err
    assert f"helm install {Path(arguments[0]).stem} {folder}" in capsys.readouterr().out
    assert main(["export", "kubernetes", *arguments]) == 0
    return {one["kind"]: one for one in yaml.safe_load_all(capsys.readouterr().out)}


def render(helm: Any, folder: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Objects by kind. Helm's own linter has nothing to say against the chart."""
    report = helm.lint(str(folder), values, strict=True)
    # An icon is all that it misses.
    assert [m for m in report["messages"] if "icon" not in m["error"]] == []
    with helm.Chart.load(str(folder)) as chart:
        files = chart.render(values, name="demo", namespace="default").values()
    found = [yaml.safe_load(text) for text in files if text.strip()]
    return {one["kind"]: one for one in found}


def test_values_say_what_may_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exported(tmp_path, capsys, str(GPU), "--hardware", "nvidia-h200")
    values = yaml.safe_load((tmp_path / "values.yaml").read_text())
    assert values["image"] == "tokenspeed:cuda"
    assert values["resources"] == {"limits": {"nvidia.com/gpu": 1}}
    assert set(values) == {"image", "resources", "storage", "nodeSelector", "tolerations"}
    assert (tmp_path / "recipes" / GPU.name).read_text() == GPU.read_text()
    assert main(["export", "compose", str(SMOL), "-o", "x"]) == 64


@pytest.mark.parametrize(("recipe", "hardware"), [(SMOL, "cpu"), (GPU, "nvidia-h200")])
def test_helm_renders_what_the_other_export_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recipe: Path, hardware: str
) -> None:
    helm = pytest.importorskip("helm_python", reason="the extra `charts` is not installed")
    odd = ("--set", "serve.chat_template=null", "--image", "registry.example/{{x}}:1")
    plain = exported(tmp_path, capsys, str(recipe), "--hardware", hardware, *odd)
    rendered = render(helm, tmp_path, {})
    for kind, wanted in plain.items():
        if kind == "Deployment":
            pod = wanted["spec"]["template"]["spec"]
            pod |= {"nodeSelector": {}, "tolerations": []}
        assert rendered[kind] == wanted
    changed = render(helm, tmp_path, {"nodeSelector": {"pool": "gpu"}, "image": "mine:2"})
    pod = changed["Deployment"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "gpu"}
    assert pod["containers"][0]["image"] == "mine:2"
