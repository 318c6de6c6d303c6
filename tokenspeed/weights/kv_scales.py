"""Reads the scales of a float8 cache from a checkpoint. A layer without them has 1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenspeed.checkpoint.kv_scales import KEYS, VALUES, kv_scale_of
from tokenspeed.errors import CheckpointError, Problem, Where
from tokenspeed.plan import LatentAttention, ModelConfig
from tokenspeed.weights.formats.floats import DTYPES, read_floats
from tokenspeed.weights.stored import Stored, stored_tensors

Pair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class KvScales:
    """For each layer the scales of its keys and of its values; `loaded` of all `wanted` were in the
    files. Latents have one scale, that of their keys."""

    layers: tuple[Pair, ...]
    loaded: int
    wanted: int


def read_kv_scales(config: ModelConfig, model_dir: Path, container: str) -> KvScales:
    """Raises CheckpointError naming every scale that is not one finite, positive number, and every
    layer that has one side's alone."""
    found: dict[tuple[int, str], tuple[str, Stored]] = {}
    for name, tensor in stored_tensors(model_dir, container).items():
        place = kv_scale_of(name)
        if place is not None and place[0] < config.num_layers:
            found[place] = name, tensor
    problems = [problem for name, tensor in found.values() for problem in _faults(name, tensor)]
    sides = [
        (KEYS,) if isinstance(layer.mixer, LatentAttention) else (KEYS, VALUES)
        for layer in config.sequence()
    ]
    for layer, wanted in enumerate(sides):
        there = [found[layer, side] for side in wanted if (layer, side) in found]
        if len(there) == 1 < len(wanted):
            name, tensor = there[0]
            message = f"tensor {name} scales one side of layer {layer}, nothing the other"
            problems.append(_problem(message, tensor))
    if problems:
        raise CheckpointError(*problems)
    values = {place: _value(tensor) for place, (_, tensor) in found.items()}
    places = [(layer, side) for layer, wanted in enumerate(sides) for side in wanted]
    return KvScales(
        layers=tuple(
            (values.get((layer, KEYS), 1.0), values.get((layer, VALUES), 1.0))
            for layer in range(config.num_layers)
        ),
        loaded=sum(place in values for place in places),
        wanted=len(places),
    )


def _faults(name: str, tensor: Stored) -> Iterator[Problem]:
    if tensor.format not in DTYPES or math.prod(tensor.shape) != 1:
        message = f"tensor {name} is {tensor.format} {list(tensor.shape)}, not one float"
        yield _problem(message, tensor)
    elif not 0 < (value := _value(tensor)) < math.inf:
        yield _problem(f"tensor {name} is {value}, which scales nothing", tensor)


def _value(tensor: Stored) -> float:
    return float(read_floats(tensor.read(), tensor.format, tensor.shape))


def _problem(message: str, tensor: Stored) -> Problem:
    return Problem(
        code="TS-W047",
        message=message,
        where=Where(str(tensor.path)),
        hint="fetch the checkpoint again, or write kv.dtype: bfloat16, which needs no scales",
    )
