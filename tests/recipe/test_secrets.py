"""What is secret is referred to; what was written all the same is never repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenspeed.cli import main
from tokenspeed.recipe.keys import key_paths
from tokenspeed.recipe.kinds import Secret
from tokenspeed.recipe.load import load_recipe
from tokenspeed.recipe.secrets import is_secret, masked_line

SECRET = "sk-live-0123456789abcdef"
LEAST = "version: 1\nname: demo\nmodel:\n  source: hf:Qwen/Qwen3-8B\n  load: dummy\n"

SPILLS = [
    f"serve: {{api_keys: [{SECRET}]}}\n",
    f"serve:\n  api_keys:\n    - {SECRET}\n",
    f"serve:\n  api_keys:\n  - env:GOOD\n  - {SECRET}\n",
    f"serve:\n  api_keys: {SECRET}\n",
    f"serve:\n  api_key: {SECRET}\n",
    f"api_keys: [{SECRET}]\n",
    f"serve:\n  api_keys: [{SECRET}\n",
    f"serve:\n  api_keys: &a {SECRET}\n  port: *b\n",
    f"serve:\n  api_keys: !!str {SECRET}\n",
    f"serve:\n  api_keys: {{a: {SECRET}}}\n",
    f"  token: {SECRET}\n",
    f'  token: "{SECRET}"\n  token: 5\n',
    f"observability:\n  password: {SECRET}\n",
    f"  toke: {SECRET}\n",
    f"limits: {{max_running: 2, tokens: {SECRET}}}\n",
    f"speculation: {{method: none}}\nserve: {{port: 1, tokens: {SECRET}}}\n",
    f"when:\n  - if: {{count: 1}}\n    then:\n      model:\n        token: {SECRET}\n",
    f"when:\n  - if: {{count: 1}}\n    then: {{serve: {{api_keys: [{SECRET}]}}}}\n",
    f"observability:\n  traces: https://me:{SECRET}@collector:4318\n",
]


@pytest.mark.parametrize("spill", SPILLS)
@pytest.mark.parametrize("output", ["text", "json"])
def test_no_message_repeats_a_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spill: str, output: str
) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(LEAST + spill)
    assert main(["check", str(path), "--output", output]) == 65
    streams = capsys.readouterr()
    said = streams.out + streams.err
    assert "TS-R0" in said
    assert SECRET not in said


@pytest.mark.parametrize(
    "override",
    [
        f"serve.api_keys=[{SECRET}]",
        f"model.token={SECRET}",
        f"serve.api_key={SECRET}",
        f"model.tokn={SECRET}",
        f"serve={{port: 8000, api_keys: [{SECRET}]}}",
        f"model={{token: {SECRET}}}",
        f"observability.traces=http://me:{SECRET}@collector",
    ],
)
def test_nor_does_one_about_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str
) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(LEAST)
    assert main(["plan", str(path), "--hardware", "nvidia-h200", "--set", override]) == 65
    streams = capsys.readouterr()
    assert SECRET not in streams.out + streams.err
    assert "***" in streams.err


@pytest.mark.parametrize("output", ["text", "json", "yaml"])
def test_a_plan_holds_references_only(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    output: str,
) -> None:
    """The secret is in the environment and in the file; planning reads neither."""
    monkeypatch.setenv("MY_KEY", SECRET)
    (tmp_path / "key").write_text(SECRET)
    path = tmp_path / "demo.yaml"
    path.write_text(
        f"{LEAST}  token: env:MY_KEY\nserve: {{api_keys: [file:{tmp_path}/key, credential:api]}}\n"
    )
    arguments = [str(path), "--hardware", "nvidia-h200", "--origin", "--output", output]
    assert main(["plan", *arguments]) == 0
    out = capsys.readouterr().out
    assert SECRET not in out
    assert "env:MY_KEY" in out
    assert "credential:api" in "".join(out.split())  # whichever way the page wraps


@pytest.mark.parametrize("reference", ["env:HF_TOKEN", "file:/run/key", "credential:api-key"])
def test_references(tmp_path: Path, reference: str) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(f"{LEAST}  token: {reference}\n")
    assert load_recipe(path).recipe.model.token == reference


@pytest.mark.parametrize("text", ["HF_TOKEN", "env:A B", "file:key", "vault:a", "env:1A"])
def test_what_is_no_reference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(f"{LEAST}  token: {text}\n")
    assert main(["check", str(path)]) == 65
    err = capsys.readouterr().err
    assert "error[TS-R026]: model.token: this is not a reference to a secret" in err
    assert text not in err.replace("env:NAME, file:/path", "")


def test_what_a_key_is_decides_what_is_secret() -> None:
    secret = {path for path in key_paths() if is_secret(path)}
    assert secret == {"model.token", "serve.api_keys", "serve.tls"}
    assert Secret().schema()["pattern"].startswith("^(?:env:")


@pytest.mark.parametrize("path", ["serve.tokens", "token", "x-my-key", "graphs.passwd", "tokn"])
def test_a_key_that_no_recipe_has_may_be_meant_as_one(path: str) -> None:
    assert is_secret(path)


HARMLESS = [
    "speculation:\n  tokens: sixteen",
    "graphs:\n  token_counts: [16, x]",
    "graphs:\n  token_counts:\n  - x",
    "graphs: {token_counts: [16, x]}",
    "serve:\n  api_keys: [env:A]\n  sampling:\n    max_tokens: many",
    "when:\n  - if: {count: 1}\n    then:\n      graphs:\n        token_counts: [x]",
    "model:\n  token: env:X  # why",
    "model:\n  source: hf:a/b",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_harmless_lines_are_shown(text: str) -> None:
    lines = text.split("\n")
    assert masked_line(lines, len(lines) - 1) == lines[-1]


def test_an_origin_shows_what_was_set(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(LEAST)
    override = "graphs.token_counts=[16, 32]"
    arguments = ["--hardware", "nvidia-h200", "--origin", "--output", "json", "--set", override]
    assert main(["plan", str(path), *arguments]) == 0
    out = capsys.readouterr().out
    assert "***" not in out
    assert f"--set {override}" in out


def test_a_list_of_wrong_items_is_not_called_empty_too(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(f"{LEAST}serve: {{api_keys: [a, b]}}\n")
    assert main(["check", str(path)]) == 65
    assert capsys.readouterr().err.count("error[") == 2
    path.write_text(f"{LEAST}serve: {{api_keys: []}}\n")
    assert main(["check", str(path)]) == 65
    assert "serve.api_keys: the list is empty" in capsys.readouterr().err
