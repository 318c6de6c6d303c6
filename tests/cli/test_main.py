"""The command line as a whole: help, usage, exit codes, and what is imported."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.run import REPO, tokenspeed
from tokenspeed.cli import VERBS, Verb, main

SMOL = "recipes/smollm2-135m-cpu.yaml"
VERB_NAMES = [verb.name for verb in VERBS]


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "tokenspeed plan recipes/" in out
    for verb in VERBS:
        assert f"  {verb.name}" in out
        assert verb.summary in out


def test_the_recipe_in_the_help_is_valid(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    start = lines.index("  version: 1")
    path = tmp_path / "demo.yaml"
    path.write_text("\n".join(line[2:] for line in lines[start : start + 4]))
    assert main(["check", str(path)]) == 0


def test_without_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 64
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "recipes:" in streams.err


def test_an_unknown_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pln"]) == 64
    assert "did you mean plan?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan"],
        ["plan", "a.yaml", "--nothing"],
        ["plan", "a.yaml", "--output", "xml"],
        ["plan", "a.yaml", "--hard", "cpu"],  # options are not abbreviated
        ["schema", "nothing"],
        ["check"],
    ],
)
def test_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 64
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("error[TS-C001]: ")
    assert "help: usage: tokenspeed" in streams.err


@pytest.mark.parametrize("verb", VERBS, ids=VERB_NAMES)
def test_every_verb_is_a_module_with_its_three_parts(
    verb: Verb, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(verb.module)
    assert module.HELP
    assert callable(module.run)
    assert main([verb.name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: tokenspeed {verb.name} ")


def test_a_bug_is_ours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(args: object) -> int:
        raise RuntimeError("a fault")

    monkeypatch.setattr("tokenspeed.cli.version.run", broken)
    assert main(["version"]) == 70
    assert "this is a bug in tokenspeed" in capsys.readouterr().err


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("tokenspeed.cli.version.run", interrupted)
    assert main(["version"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_verb_asked_for_is_the_only_one_imported() -> None:
    """`version` needs none of what the other verbs import."""
    outcome = tokenspeed("version", blocked=("rich", "pydantic", "yaml", "torch", "numpy"))
    assert outcome.code == 0, outcome.err


def test_a_closed_pipe_is_no_bug() -> None:
    script = f"{sys.executable} -m tokenspeed schema | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert "Traceback" not in done.stderr
    assert done.stdout.splitlines()[0] == "{"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments",
    [["plan", SMOL], ["plan", SMOL, "--output", "json"], ["schema"], ["version"], ["-h"]],
)
def test_output_that_cannot_be_written_is_no_bug(arguments: list[str], unbuffered: str) -> None:
    done = into("/dev/full", arguments, PYTHONUNBUFFERED=unbuffered)
    assert done.returncode == 74
    assert done.stderr.startswith(
        "error[TS-C004]: the output cannot be written: No space left on device\n  help: "
    )
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_errors_that_cannot_be_written_are_still_exit_codes() -> None:
    command = ["sh", "-c", 'exec "$0" -m tokenspeed pln 2>/dev/full', sys.executable]
    assert subprocess.run(command, check=False).returncode == 64


@pytest.mark.parametrize(
    "encoding",
    [
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "ascii:strict"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_an_encoding_without_our_letters_gets_others(encoding: dict[str, str]) -> None:
    plan = ["plan", "recipes/qwen3-8b-h200x1-latency.yaml", "--hardware", "nvidia-h200"]
    done = into("/dev/stdout", plan, **encoding)
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert re.search(r"^  weights +\S+iB +#+ +\d+\.\d %", done.stdout, re.MULTILINE)
    whole = into("/dev/stdout", plan, PYTHONIOENCODING="utf-8").stdout
    assert re.sub("[█▉▊▋▌▍▎▏]", "#", whole).replace("…", "~") == done.stdout


def into(path: str, arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """`tokenspeed ARGUMENTS >PATH` in the repository."""
    return subprocess.run(
        ["sh", "-c", 'exec "$@" >"$0"', path, sys.executable, "-m", "tokenspeed", *arguments],
        cwd=REPO,
        env=os.environ | {"PYTHONUTF8": "0"} | environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )


@pytest.mark.parametrize(
    "words", [["rollback"], ["confirm"], ["generations"], ["up", "--installed"]]
)
@pytest.mark.parametrize("name", ["../x", "/", "A", "a" * 41])
def test_a_path_is_no_name_of_a_recipe(
    words: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, name]) == 64
    assert f"{name!r} is not the name of a recipe" in capsys.readouterr().err


def test_a_bundle_that_cannot_be_written_is_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = str(REPO / SMOL)
    for file, why in ((tmp_path / "none" / "x", "No such file"), (tmp_path, "Is a directory")):
        assert main(["bundle", recipe, "--offline", "-o", str(file)]) == 74
        err = capsys.readouterr().err
        assert f"{file} cannot be written: {why}" in err
        assert "an existing folder" in err
    assert not list(tmp_path.iterdir())


def without(package: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The verb in a process that has not got the package."""
    code = "import sys; sys.modules[sys.argv[1]] = None; from tokenspeed.cli import main; "
    code += "sys.exit(main(sys.argv[2:]))"
    command = [sys.executable, "-P", "-c", code, package, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=REPO, check=False)


@pytest.mark.parametrize(("package", "extra"), [("httpx", "bench"), ("torch", "worker")])
def test_a_verb_says_what_is_not_installed(package: str, extra: str) -> None:
    """`make up` brings what serves, not what measures."""
    done = without(package, "bench", "agentic", "--url", "http://127.0.0.1:9", "--model", "m")
    assert done.returncode == 69, done.stderr
    assert f"error[TS-C014]: tokenspeed bench needs {package}, which is not" in done.stderr
    assert f"tokenspeed-appliance[{extra}]" in done.stderr
    assert "Traceback" not in done.stderr
    assert without(package, "bench", "agentic", "--help").returncode == 0


def test_a_bench_misses_what_is_not_installed_before_it_measures() -> None:
    done = without("httpx", "bench")
    assert (done.returncode, done.stdout) == (69, ""), done.stderr
    assert "error[TS-C014]: tokenspeed bench needs httpx, which is not" in done.stderr


def test_other_missing_modules_are_our_mistakes() -> None:
    done = without("rich.table", "bench", "--help")
    assert done.returncode == 70
    assert "this is a bug in tokenspeed" in done.stderr
