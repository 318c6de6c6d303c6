"""Rules about who may know what, beyond what import-linter can see."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

TORCH_FREE = (
    "tokenspeed.cli",
    "tokenspeed.recipe.load",
    "tokenspeed.hardware.probe",
    "tokenspeed.checkpoint.describe",
    "tokenspeed.resolve.resolve",
    "tokenspeed.appliance.up",
    "tokenspeed.server.app",
    "tokenspeed.engine.engine",
    "tokenspeed.tokenizer.text",
    "tokenspeed_kernels.registry",
)

BLOCKER = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "triton", "transformers"}:
            raise ImportError(f"{name} was imported on a path that must run without it")
sys.meta_path.insert(0, Block())
import importlib
importlib.import_module(sys.argv[1])
"""


@pytest.mark.parametrize("module", TORCH_FREE)
def test_runs_without_torch(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER, module], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _python(repo: Path, *folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((repo / folder).rglob("*.py"))]


def test_only_env_reads_the_environment(repo: Path) -> None:
    readers = [
        str(path.relative_to(repo))
        for path in _python(repo, "tokenspeed", "kernels/tokenspeed_kernels")
        if re.search(r"\bos\.(environ|getenv)\b", path.read_text())
    ]
    assert readers == ["tokenspeed/env.py"]


def test_no_model_names_outside_their_rooms(repo: Path) -> None:
    """Branch on a fact (`qk_norm`), not on who has it."""
    names = re.compile(r"llama|qwen|mistral|deepseek|smollm|gemma|kimi", re.IGNORECASE)
    rooms = ("tokenspeed/models/", "tokenspeed/checkpoint/", "tokenspeed/tokenizer/")
    found = []
    for path in _python(repo, "tokenspeed", "kernels/tokenspeed_kernels"):
        relative = str(path.relative_to(repo))
        if relative.startswith((*rooms, "tokenspeed/bench/", "tokenspeed/weights/formats/")):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Compare | ast.Match | ast.Dict):
                constants = [c for c in ast.walk(node) if isinstance(c, ast.Constant)]
                found += [
                    f"{relative}:{c.lineno} {c.value!r}"
                    for c in constants
                    if isinstance(c.value, str) and names.search(c.value)
                ]
    assert not found


def test_nothing_unpickles(repo: Path) -> None:
    found = [
        f"{path.relative_to(repo)}:{node.lineno}"
        for path in _python(repo, "tokenspeed", "kernels/tokenspeed_kernels")
        for node in ast.walk(ast.parse(path.read_text()))
        if (
            isinstance(node, ast.Import)
            and any(alias.name in {"pickle", "marshal", "shelve"} for alias in node.names)
        )
        or (isinstance(node, ast.ImportFrom) and node.module in {"pickle", "marshal", "shelve"})
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in {"eval", "exec"}
        )
    ]
    assert not found


def test_no_function_level_imports(repo: Path) -> None:
    """A local import could dodge a contract."""
    found = []
    for path in _python(repo, "tokenspeed", "kernels/tokenspeed_kernels"):
        relative = str(path.relative_to(repo))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found += [
                    f"{relative}:{inner.lineno}"
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Import | ast.ImportFrom)
                ]
    assert not found


def test_core_sees_no_python(repo: Path) -> None:
    """The C++ core is host logic: no Python, CUDA, clock, thread or I/O inside."""
    core = repo / "tokenspeed/scheduler/csrc"
    forbidden = re.compile(
        r"#include\s*<(pybind11|Python\.h|cuda|chrono|thread|mutex|iostream|fstream|ctime)"
    )
    sources = [path for path in core.rglob("*") if path.suffix in {".h", ".cc"}]
    assert len(sources) > 5
    offenders = [
        str(path.relative_to(repo))
        for path in sources
        if path.name != "bindings.cc" and forbidden.search(path.read_text())
    ]
    assert not offenders


def test_one_version(repo: Path) -> None:
    pattern = re.compile(r'__version__\s*=\s*"')
    places = [
        str(path.relative_to(repo))
        for path in _python(repo, "tokenspeed", "kernels/tokenspeed_kernels")
        if pattern.search(path.read_text())
    ]
    assert places == ["kernels/tokenspeed_kernels/_version.py"]
