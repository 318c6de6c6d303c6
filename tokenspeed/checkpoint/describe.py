"""Describe the model in a folder, proving it whole on the way."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenspeed.checkpoint import tensors
from tokenspeed.checkpoint.config import model_config
from tokenspeed.checkpoint.gguf import SUFFIX, GgufFile, model_config_from_gguf, read_gguf
from tokenspeed.checkpoint.quantization import float_format, group_formats, refuse_unread
from tokenspeed.checkpoint.safetensors import read_index
from tokenspeed.checkpoint.scaled import gather
from tokenspeed.errors import CheckpointError, Problem, Where
from tokenspeed.files import read_regular
from tokenspeed.plan import ModelConfig, ModelFile

# Where ModelOpt says how it quantised, before config.json said it too.
_MODELOPT = "hf_quant_config.json"


@dataclass(frozen=True, slots=True)
class Described:
    """A model folder in facts.

    `container` is "gguf" or "safetensors". `files` are the weight files (their sha256 is not
    computed: None). `linear_formats` are the formats of the layers' matrices and of an untied
    output matrix, sorted; more than one when they are mixed. Formats are dtype names
    ("bfloat16") or GGUF block formats ("q4_1"). `group_formats` says which groups of a quantised
    checkpoint are not floats.
    """

    container: str
    config: ModelConfig
    files: tuple[ModelFile, ...]
    linear_formats: tuple[str, ...]
    embedding_format: str
    group_formats: dict[str, str] = field(default_factory=dict)


def describe(model_dir: Path) -> Described:
    """Read the headers in `model_dir`: one .gguf file, or config.json with model*.safetensors.

    Every tensor that the model needs must be there once, with the shape that the config gives
    it. Raises CheckpointError listing all problems, also where files are taken away meanwhile.
    """
    try:
        return _describe(model_dir)
    except OSError as error:
        raise _unreadable(model_dir, error) from error


def _describe(model_dir: Path) -> Described:
    ggufs = sorted(model_dir.glob(f"*{SUFFIX}")) if model_dir.is_dir() else []
    if model_dir.is_file() and model_dir.suffix == SUFFIX:
        ggufs = [model_dir]
    if len(ggufs) > 1:
        names = ", ".join(path.name for path in ggufs)
        raise _not_a_model(model_dir, f"it holds several GGUF files: {names}", "keep one")
    if ggufs:
        return _describe_gguf(ggufs[0])
    if model_dir.is_file():
        hint = f"write the folder that it is in: path:{model_dir.parent}"
        raise _not_a_model(model_dir, "a lone file has to be a .gguf", hint)
    if not model_dir.is_dir():
        raise _not_a_model(model_dir, "there is no such folder", "check model.source")
    if not (model_dir / "config.json").is_file():
        hint = "a model folder holds one .gguf file, or config.json and model*.safetensors"
        raise _not_a_model(model_dir, "it holds neither a .gguf file nor config.json", hint)
    return _describe_folder(model_dir)


def _describe_gguf(path: Path) -> Described:
    file = read_gguf(path)
    config = model_config_from_gguf(file.metadata, file.tensors.keys(), str(path))
    found = {name: tensor.shape for name, tensor in file.tensors.items()}
    _require_match(tensors.gguf_tensors(config), found, config, Where(str(path)))
    return Described(
        container="gguf",
        config=config,
        files=(ModelFile(name=path.name, bytes=path.stat().st_size, sha256=None),),
        linear_formats=_linear_formats(_gguf_formats(file), "token_embd.weight"),
        embedding_format=file.tensors["token_embd.weight"].format,
    )


def _gguf_formats(file: GgufFile) -> dict[str, str]:
    return {name: tensor.format for name, tensor in file.tensors.items() if len(tensor.shape) == 2}


def without_files(model_dir: Path) -> Described:
    """What config.json alone says. Raises CheckpointError."""
    written, said_in = _quantisation(model_dir)
    floats = float_format(written)
    return Described(
        container="safetensors",
        config=read_config(model_dir),
        files=(),
        linear_formats=(floats,),
        embedding_format=floats,
        group_formats=group_formats(written, str(said_in)),
    )


def _quantisation(model_dir: Path) -> tuple[dict[str, Any], Path]:
    """config.json with its `quantization_config`, and the file that has that."""
    config, beside = model_dir / "config.json", model_dir / _MODELOPT
    written = _json(config)
    if written.get("quantization_config") or not beside.is_file():
        return written, config
    found = _json(beside).get("quantization")
    if not isinstance(found, Mapping):
        message = f"quantization is {found!r}, not a mapping"
        raise _not_a_model(beside, message, "fetch the file again")
    if found.get("quant_algo") is None:
        return written, config
    return written | {"quantization_config": {"quant_method": "modelopt"} | dict(found)}, beside


def _describe_folder(model_dir: Path) -> Described:
    config = read_config(model_dir)
    index = read_index(model_dir)
    files = tuple(
        ModelFile(name=name, bytes=size, sha256=None)
        for name, size in sorted(index.file_bytes.items())
    )
    described = without_files(model_dir)
    refuse_unread(_json(model_dir / "config.json"), str(model_dir / "config.json"))
    if not tensors.has_known_names(config):
        return dataclasses.replace(described, files=files)
    needed = tensors.hf_tensors(config)
    found = gather({name: (entry.dtype, entry.shape) for name, entry in index.tensors.items()})
    shapes = {name: one.shape for name, one in found.items()}
    _require_match(needed, shapes, config, Where(str(model_dir)))
    if described.group_formats:
        return dataclasses.replace(described, files=files)
    formats = {name: found[name].format.lower() for name in needed}
    matrices = {name: formats[name] for name, shape in needed.items() if len(shape) == 2}
    return Described(
        container="safetensors",
        config=config,
        files=files,
        linear_formats=_linear_formats(matrices, "model.embed_tokens.weight"),
        embedding_format=formats["model.embed_tokens.weight"],
    )


def read_config(model_dir: Path) -> ModelConfig:
    """ModelConfig of a folder with config.json. The end tokens of generation_config.json, which
    chat models extend there, count as well. Raises CheckpointError."""
    config = model_config(_json(model_dir / "config.json"), str(model_dir / "config.json"))
    generation = model_dir / "generation_config.json"
    if not generation.is_file():
        return config
    value = _json(generation).get("eos_token_id")
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if any(type(item) is not int for item in ids):
        raise _not_a_model(generation, f"eos_token_id is {value!r}, not token ids", "mend the file")
    merged = tuple(dict.fromkeys((*config.eos_token_ids, *ids)))
    return dataclasses.replace(config, eos_token_ids=merged)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_regular(path))
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise _not_a_model(path, f"it is not JSON: {error}", "fetch the file again") from error
    if not isinstance(value, dict):
        raise _not_a_model(path, "it is not a JSON object", "fetch the file again")
    return value


def _linear_formats(matrices: Mapping[str, str], embedding: str) -> tuple[str, ...]:
    formats: Iterable[str] = (fmt for name, fmt in matrices.items() if name != embedding)
    return tuple(sorted(set(formats)))


def _require_match(
    needed: Mapping[str, tuple[int, ...]],
    found: Mapping[str, tuple[int, ...]],
    config: ModelConfig,
    where: Where,
) -> None:
    problems = tensors.compare(needed, found, config, where)
    if problems:
        raise CheckpointError(*problems)


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    name = Path(error.filename) if isinstance(error.filename, str) else path
    message = f"it cannot be read: {error.strerror or error}"
    return _not_a_model(name, message, "put the file back, or check model.source")


def _not_a_model(path: Path, message: str, hint: str) -> CheckpointError:
    return CheckpointError(
        Problem(code="TS-W002", message=message, where=Where(str(path)), hint=hint)
    )
