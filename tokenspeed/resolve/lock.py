"""The lock of a recipe: everything that it came to on one machine, to review, keep and hold to.

Two digests. `identity` covers what decides the content of cached blocks: the weights and the
layout of the cache; it names the folder of a disk tier. `full` covers everything in the lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from tokenspeed.checkpoint.hashes import known_sha256, note_sha256
from tokenspeed.errors import Problem, ResolveError, Where
from tokenspeed.files import read_bounded
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import ModelFile, Plan
from tokenspeed.recipe.load import LoadedRecipe
from tokenspeed.resolve.ledger import Decision
from tokenspeed.resolve.resolve import Resolution

LOCK_VERSION = 1
SUFFIX = ".lock"
HEADER = """\
# Written by `tokenspeed lock`. Review it and keep it beside the recipe; do not edit it.
# `tokenspeed up --locked` refuses to start when anything in here has moved.
"""

# Said for people, or learnt from measurements: no part of what the machine is.
_BESIDE_THE_MACHINE = ("notes", "ceilings")
# libyaml where it is there: a lock has a thousand lines.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """SHA-256, hex."""

    identity: str
    full: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """`recipe` is the digest of the composed recipe's values, `wishes` those values by dotted key.
    `versions` are those of the programs that the results hang on; `hardware` is the machine without
    names and notes; `why` says for each decided field of the plan who decided and why."""

    version: int
    name: str
    digests: Digests
    recipe: str
    wishes: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, Any]
    files: tuple[ModelFile, ...]
    why: dict[str, str]
    plan: Plan

    def to_yaml(self) -> str:
        body = yaml.dump(
            msgspec.to_builtins(self),
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=True,
            width=100,
        )
        return HEADER + str(body)


def make_lock(
    loaded: LoadedRecipe,
    resolution: Resolution,
    hardware: Hardware,
    versions: Mapping[str, str],
    files: tuple[ModelFile, ...],
) -> Lock:
    """`files` are the plan's with their hashes, as far as the files are there to be hashed."""
    plan = resolution.plan
    parts: dict[str, Any] = {
        "version": LOCK_VERSION,
        "name": plan.name,
        "recipe": _digest(wishes_of(loaded)),
        "wishes": wishes_of(loaded),
        "versions": dict(versions),
        "hardware": fingerprint(hardware),
        "files": files,
        "why": {decision.field: _why(decision) for decision in resolution.decisions},
        "plan": plan,
    }
    digests = Digests(identity=_digest(identity(plan, files)), full=_digest(parts))
    return Lock(digests=digests, **parts)


def identity(plan: Plan, files: tuple[ModelFile, ...]) -> dict[str, Any]:
    """What the content of a cached block hangs on; blocks of another identity are not ours."""
    model, cache = plan.model, plan.cache
    own = {
        name: getattr(model, name)
        for name in ("source", "load", "container", "config", "linear_format", "embedding_format")
    }
    layout = {
        name: getattr(cache, name)
        for name in type(cache).__dataclass_fields__
        if name not in ("num_blocks", "prefix_cache", "tiers")
    }
    return {
        "model": own,
        "files": files,
        "activations": plan.device.activations,
        "cache": layout,
        "parallel": plan.parallel,
    }


def fingerprint(hardware: Hardware) -> dict[str, Any]:
    """The machine as far as a plan hangs on it: no names, notes, serial numbers or figures."""

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: kept(v) for k, v in value.items() if k not in _BESIDE_THE_MACHINE}
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return " ".join(value)
        return [kept(item) for item in value] if isinstance(value, list) else value

    facts = kept(plain(hardware))
    assert isinstance(facts, dict)
    del facts["name"]
    return facts


def hash_files(
    folder: Path, files: tuple[ModelFile, ...], report: Callable[[str], None], known: Path
) -> tuple[ModelFile, ...]:
    """`files` with the sha256 of what lies in `folder` (or is the file itself). What was hashed
    before is noted in the folder `known`, and read again only once it changed. Raises ResolveError
    when one cannot be read: weights may be taken away at any time."""
    hashed = []
    for file in files:
        path = folder / file.name if folder.is_dir() else folder
        try:
            digest = known_sha256(path, known)
            if digest is None:
                report(file.name)
                digest = note_sha256(path, known)
        except OSError as error:
            raise ResolveError(
                Problem(
                    code="TS-W002",
                    message=f"{path} cannot be read: {error.strerror or error}",
                    hint="put the file back, or point model.source at the folder that it is in",
                )
            ) from error
        hashed.append(ModelFile(name=file.name, bytes=file.bytes, sha256=digest))
    return tuple(hashed)


def read_lock(path: Path) -> Lock:
    """Raises ResolveError when there is none, or it is not one of this version."""
    try:
        data = yaml.load(read_bounded(path), Loader=_Loader)
        if not isinstance(data, dict) or data.get("version") != LOCK_VERSION:
            raise _unreadable(path, f"it is not a lock of version {LOCK_VERSION}")
        return msgspec.convert(data, Lock)
    except OSError as error:
        raise ResolveError(
            Problem(
                code="TS-L001",
                message=f"there is no lock: {error.strerror or error}",
                where=Where(str(path)),
                hint="write it with `tokenspeed lock RECIPE`, review it, keep it with the recipe",
            )
        ) from error
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise _unreadable(path, " ".join(str(error).split())) from error


def _unreadable(path: Path, why: str) -> ResolveError:
    return ResolveError(
        Problem(
            code="TS-L002",
            message=f"the lock cannot be read: {why}",
            where=Where(str(path)),
            hint="write it again with `tokenspeed lock RECIPE`, and review the difference",
        )
    )


def lock_path(recipe: Path) -> Path:
    """demo.yaml -> demo.lock, beside it."""
    return recipe.with_suffix(SUFFIX)


def wishes_of(loaded: LoadedRecipe) -> dict[str, Any]:
    """The composed recipe's values by dotted key: comments, order and files make no difference."""
    values: dict[str, Any] = {}

    def walk(node: Any, path: str) -> None:
        for key, value in node.items():
            inner = f"{path}.{key}" if path else key
            if isinstance(value, dict) and inner != "kernels.overrides":
                walk(value, inner)
            elif value is not None:
                values[inner] = list(value) if isinstance(value, tuple) else value

    walk(loaded.recipe.model_dump(), "")
    return dict(sorted(values.items()))


def _why(decision: Decision) -> str:
    return f"{decision.source}: {decision.reason}"


def plain(value: Any) -> Any:
    """Dicts, lists and scalars, as JSON has them."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()
