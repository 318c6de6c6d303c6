"""From a bare checkout to an environment that runs: what the Makefile calls before an install.

    python -m tokenspeed.appliance.bootstrap check [--tests]   what this machine lacks
    python -m tokenspeed.appliance.bootstrap torch [--device]  install torch, a CPU build if offered
    python -m tokenspeed.appliance.bootstrap extra NAME        install an extra's requirements

Standard library only. Rule for torch: for CUDA, what pip picks. For the CPU, the newest version
marked +cpu that pip's own configuration offers for this interpreter and that satisfies
pyproject.toml; if none is offered, what pip picks, after its size was stated. For ROCm, the newest
one marked +rocm, or none.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tokenspeed.appliance import packages
from tokenspeed.appliance.download import Client
from tokenspeed.errors import CheckpointError, ExitCode, TokenspeedError, TryAgainError

ROOT = Path(__file__).resolve().parent.parent.parent
DRIVER = Path("/proc/driver/nvidia/version")
CANDIDATES = 5  # newest first; older ones are not worth a dry run each

CPU_BUILD_HINT = """\
To take a CPU build instead (a tenth of that), stop this with Ctrl-C, tell pip where to find one
and run the same command again:
    pip config set --user global.find-links /folder/with/a/torch+cpu/wheel
    pip config set --user global.extra-index-url <an index of CPU builds>"""

ROCM_BUILD_HINT = """\
pip's configuration offers no ROCm build of torch. Tell pip of an index of such builds and run the
same command again:
    pip config set --user global.extra-index-url <an index of ROCm builds>"""


@dataclass(frozen=True, slots=True)
class Missing:
    """Something a build needs, and the Debian package that brings it."""

    what: str
    package: str


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bootstrap", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="say what this machine lacks")
    check.add_argument("--tests", action="store_true", help="and what the tests need")
    check.add_argument("--cxx", default="c++", help="the C++ compiler")
    torch = commands.add_parser("torch", help="install torch")
    torch.add_argument(
        "--device",
        choices=("cpu", "cuda", "rocm"),
        default="cuda" if DRIVER.exists() else "cpu",
        help="for what (default: cuda with an NVIDIA driver, else cpu)",
    )
    extra = commands.add_parser("extra", help="install the requirements of an extra")
    extra.add_argument("name")
    options = parser.parse_args(arguments)
    try:
        if options.command == "check":
            return report(missing(options.cxx, tests=options.tests))
        if options.command == "torch":
            return install_torch(options.device)
        print(f"installing what `{options.name}` needs", flush=True)
        return pip_install("-qq", *requirements(options.name))
    except TokenspeedError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


# ---- what is missing


def missing(cxx: str, *, tests: bool) -> list[Missing]:
    """All at once, so that one apt-get mends it."""
    found = []
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
        found.append(Missing("the venv module of Python", f"python{version}-venv"))
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        found.append(Missing("the headers of Python", f"python{version}-dev"))
    compiler = next((name for name in (cxx, "c++", "g++", "clang++") if shutil.which(name)), None)
    if compiler is None or not compiles(compiler, "#include <concepts>\n#include <span>\n"):
        found.append(Missing("a compiler for C++20 (g++ 12 or later)", "g++"))
    elif tests and not compiles(compiler, "#include <gtest/gtest.h>\n"):
        found.append(Missing("GoogleTest, for the tests of the scheduler", "libgtest-dev"))
    if tests and shutil.which("cmake") is None:
        found.append(Missing("cmake, for the tests of the scheduler", "cmake"))
    return found


def compiles(compiler: str, source: str) -> bool:
    command = [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, input=source, text=True, capture_output=True, check=False)
    return done.returncode == 0


def report(found: list[Missing]) -> int:
    if not found:
        return ExitCode.OK
    print("This machine lacks:", file=sys.stderr)
    for item in found:
        print(f"  - {item.what}", file=sys.stderr)
    names = " ".join(item.package for item in found)
    print(f"On Debian or Ubuntu:\n    apt-get install -y {names}", file=sys.stderr)
    return ExitCode.UNAVAILABLE


# ---- torch


def install_torch(device: str) -> int:
    requirement = torch_requirement()
    if installed := _installed_torch():
        print(f"torch {installed} is installed")
        return ExitCode.OK
    if device == "cuda":
        print("for NVIDIA GPUs: installing torch as pip offers it")
        return pip_install(requirement)
    if device == "rocm":
        if (build := marked_build(requirement, "rocm")) is None:
            print(ROCM_BUILD_HINT, file=sys.stderr)
            return ExitCode.UNAVAILABLE
        print(f"for AMD GPUs: installing torch {build}, which pip's configuration offers")
        return pip_install(f"torch=={build}")
    if (build := marked_build(requirement, "cpu")) is not None:
        print(f"for the CPU: installing torch {build}, which pip's configuration offers")
        return pip_install(f"torch=={build}")
    print("pip's configuration offers no CPU build of torch; asking for the size of the default")
    print(f"the default torch, {size_of(packages.find(requirement, deps=True))}")
    print(CPU_BUILD_HINT, flush=True)
    return pip_install(requirement)


def torch_requirement() -> str:
    """As pyproject.toml has it, such as torch>=2.9."""
    (found,) = (text for text in requirements("worker") if re.match(r"torch\b", text))
    return found


def requirements(extra: str) -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: list[str] = project["optional-dependencies"][extra]
    return found


def marked_build(requirement: str, mark: str) -> str | None:
    """The version marked +cpu or +rocm to take, None when none is offered."""
    try:
        listing = packages.run("index", "versions", "torch")
    except (CheckpointError, TryAgainError):
        return None
    for version in marked_versions(listing, mark)[:CANDIDATES]:
        try:
            # pip decides whether it satisfies pyproject.toml and the user's own constraints.
            packages.find(f"torch=={version}", requirement)
        except (CheckpointError, TryAgainError):
            continue
        return version
    return None


def marked_versions(listing: str, mark: str) -> list[str]:
    """Versions marked +cpu, or +rocm with a number of its own, in what `pip index versions`
    prints, in its order: newest first."""
    line = re.search(r"^Available versions: (.*)$", listing, re.MULTILINE)
    versions = re.split(r",\s*", line[1].strip()) if line else []
    return [version for version in versions if re.search(rf"\+{mark}[\d.]*$", version)]


def size_of(wheels: list[packages.Wheel]) -> str:
    """`torch 2.15.0 and 20 packages it needs, is 2,600 MB to download`, as far as is known."""
    client = Client(packages.settings())
    with ThreadPoolExecutor(8) as pool:
        sizes = list(pool.map(lambda wheel: client.size(wheel.url), wheels))
    known = sum(size for size in sizes if size is not None)
    about = "" if None not in sizes else "at least "
    (version,) = (wheel.version for wheel in wheels if wheel.name == "torch")
    return (
        f"{version} with the {len(wheels) - 1} packages that it needs, "
        f"is {about}{known / 1e6:,.0f} MB to download"
    )


def _installed_torch() -> str | None:
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def pip_install(*arguments: str) -> int:
    """pip speaks for itself here: its progress bar and its errors go to the terminal."""
    command = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
