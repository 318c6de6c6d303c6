"""What is secret is referred to; what was written all the same is never repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenspeed.cli import main
from tokenspeed.recipe.kinds import Secret
from tokenspeed.recipe.load import key_paths, load_recipe
from tokenspeed.recipe.secrets import is_secret_key, masked_line

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
    "override", [f"serve.api_keys=[{SECRET}]", f"model.token={SECRET}", f"serve.api_key={SECRET}"]
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


def test_every_secret_key_sounds_like_one() -> None:
    """The names that are masked and the keys that are secret are the same."""
    secret = {path for path, field in key_paths().items() if "Secret" in repr(field)}
    assert secret == {"model.token", "serve.api_keys", "serve.tls"}
    assert all(is_secret_key(path) for path in secret)
    assert Secret().schema()["pattern"].startswith("^(?:env:")


@pytest.mark.parametrize(
    "line", ["  max_tokens: 512", "  tokens: 3", "  token: env:X  # why", "  source: hf:a/b"]
)
def test_harmless_lines_are_shown(line: str) -> None:
    assert masked_line(["model:", line], 1) == line
