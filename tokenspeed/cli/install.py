"""`tokenspeed install`: a recipe becomes a service of systemd."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tokenspeed import env
from tokenspeed.appliance import unit
from tokenspeed.appliance.generations import Generations
from tokenspeed.appliance.order import refuse_unmet
from tokenspeed.appliance.progress import say
from tokenspeed.checkpoint.source import parse
from tokenspeed.cli.planning import plan_recipe, recipe_arguments
from tokenspeed.cli.rolling import put
from tokenspeed.errors import ExitCode, OutputError, Problem, ResolveError, UnavailableError
from tokenspeed.files import write_whole
from tokenspeed.plan import Plan

HELP = (
    "install RECIPE as a systemd service that starts with the machine: units, user and folders, "
    "and the first generation. As root"
)
# What a service with ProtectHome= and PrivateTmp= does not see.
HIDDEN = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")


def arguments(parser: argparse.ArgumentParser) -> None:
    recipe_arguments(parser)
    parser.add_argument("--now", action="store_true", help="start it, and wait until it is ready")
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="only write the files, below DIR, for a package or an image",
    )


def run(args: argparse.Namespace) -> int:
    env.check_variables()
    planned = plan_recipe(args.recipe, tuple(args.overrides))
    plan = planned.resolution.plan
    refuse_unmet(plan)
    _require_fixed_port(plan)
    program = Path(sys.executable).parent / "tokenspeed"
    if args.root is None:
        _require_systemd()
        _require_visible(program, plan)
    files = unit.shared_files(str(program)) | unit.instance_files(plan)
    for name, text in files.items():
        _write((args.root or Path("/")) / name, text)
    if args.root is not None:
        say(f"{len(files)} files are in {args.root}; `tokenspeed apply` makes a generation")
        return int(ExitCode.OK)
    _command("systemd-sysusers")
    # Only our own file: the others' lines are not ours to run.
    _command("systemd-tmpfiles", "--create", f"/{unit.TMPFILES}")
    _command("systemctl", "daemon-reload")
    number = put(Generations(env.SYSTEM_STATE_ROOT / plan.name), planned, None)
    names = [f"tokenspeed@{plan.name}.socket", f"tokenspeed@{plan.name}.service"]
    _command("systemctl", "enable", "--quiet", "tokenspeed.target", *names)
    said = f"generation {number}" if number is not None else "its generation as it was"
    say(f"{plan.name} is installed: {said}")
    _require_credentials(plan)
    if not args.now:
        say(f"`systemctl start tokenspeed@{plan.name}` starts it")
        return int(ExitCode.OK)
    _command("systemctl", "restart", *names)
    say(f"{plan.name} is ready at port {plan.serve.port}; `systemctl status {names[1]}`")
    return int(ExitCode.OK)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text.encode())
        path.chmod(0o644)
    except OSError as error:
        raise OutputError(str(path), error) from error


def _command(*words: str) -> None:
    """Raises UnavailableError with what it said."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise UnavailableError(
            Problem(
                code="TS-S260",
                message=f"`{' '.join(words)}` ended with {done.returncode}: {said}",
                hint="fix that and install again; steps already done are repeated",
            )
        )


def _require_systemd() -> None:
    if os.geteuid() == 0 and Path("/run/systemd/system").is_dir() and shutil.which("systemctl"):
        return
    raise UnavailableError(
        Problem(
            code="TS-S261",
            message="this needs root, and a machine that systemd runs",
            hint="run it with sudo; --root DIR only writes the files; without systemd, "
            "`tokenspeed up --detach RECIPE`",
        )
    )


def _require_visible(program: Path, plan: Plan) -> None:
    """The service sees no home folders: what lies there would be gone when it starts."""
    needed = [(program, "tokenspeed itself"), (program.parent.resolve(), "tokenspeed itself")]
    needed += [(Path(sys.executable).resolve(), "its Python"), (Path(__file__), "its code")]
    source = parse(plan.model.source)
    if source.kind == "path":
        needed.append((source.directory(Path("/")), "the model"))
    problems = [
        Problem(
            code="TS-S262",
            message=f"{what} is at {path}, which a hardened service does not see",
            hint="install into /opt/tokenspeed, with a Python of the system, and keep models below "
            "/srv or /var/lib",
        )
        for path, what in needed
        if path.is_relative_to("/") and any(path.is_relative_to(hidden) for hidden in HIDDEN)
    ]
    if problems:
        raise UnavailableError(*problems)


def _require_fixed_port(plan: Plan) -> None:
    if plan.serve.port == 0:
        raise ResolveError(
            Problem(
                code="TS-S263",
                path="serve.port",
                message="an installed recipe needs a fixed port, not any free one",
                hint="--set serve.port=8000",
            )
        )


def _require_credentials(plan: Plan) -> None:
    """Raises UnavailableError naming every secret that is not in its place."""
    folder = Path(unit.CREDENTIALS) / plan.name
    missing = [name for name in unit.credential_names(plan) if not (folder / name).is_file()]
    if missing:
        raise UnavailableError(
            *(
                Problem(
                    code="TS-S264",
                    path="serve.api_keys",
                    message=f"the credential {name} is not there",
                    hint=f"put it into {folder / name}, readable for root alone, then `systemctl "
                    f"start tokenspeed@{plan.name}`",
                )
                for name in missing
            )
        )
