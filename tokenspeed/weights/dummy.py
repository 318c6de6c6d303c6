"""Random weights of the right shapes, for running an architecture without its checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenspeed_kernels.weight import BLOCK, BLOCK_BYTES, RawWeight

from tokenspeed.plan import WeightFormat
from tokenspeed.weights.formats import fp8
from tokenspeed.weights.formats.floats import DTYPES
from tokenspeed.weights.parameter import Matrix, Parameter, Progress, Vector, Weights

SEED = 0


def dummy_weights(
    parameters: Sequence[Parameter],
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
) -> Weights:
    """Seeded weights, drawn on the device itself: matrices of variance 1 / in, norms of 1,
    biases of 0, so that activations keep their size through any number of layers."""
    generator = torch.Generator(device).manual_seed(SEED)
    matrices: dict[str, RawWeight] = {}
    vectors: dict[str, torch.Tensor] = {}
    for done, parameter in enumerate(parameters, start=1):
        if isinstance(parameter, Matrix):
            matrices[parameter.name] = _matrix(parameter, generator)
        else:
            vectors[parameter.name] = _vector(parameter, device, dtype)
        progress(done, len(parameters))
    return Weights(matrices, vectors)


def _vector(vector: Vector, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    fill = 0.0 if vector.name.endswith("bias") else 1.0
    kept = torch.float32 if vector.exact else dtype
    return torch.full((vector.size,), fill, device=device, dtype=kept)


def _matrix(matrix: Matrix, generator: torch.Generator) -> RawWeight:
    rows, columns = matrix.shape
    scale = columns**-0.5
    if matrix.format in fp8.KEPT:
        floats = torch.empty(rows, columns, dtype=torch.bfloat16, device=generator.device)
        scaled = fp8.quantised(floats.normal_(0.0, scale, generator=generator), matrix.format)
        return RawWeight(matrix.format.value, (rows, columns), scaled.data, scaled.scales)
    if matrix.format in BLOCK_BYTES:
        data = _blocks(matrix.format, rows, columns // BLOCK, scale, generator)
    else:
        data = torch.empty(
            rows, columns, dtype=DTYPES[matrix.format.value], device=generator.device
        ).normal_(0.0, scale, generator=generator)
    return RawWeight(matrix.format.value, (rows, columns), data)


def _blocks(
    kept: WeightFormat, rows: int, blocks: int, scale: float, generator: torch.Generator
) -> torch.Tensor:
    """Blocks whose weights are spread evenly over +-sqrt(3) * scale: variance scale^2."""
    widest = 3**0.5 * scale
    data = torch.randint(
        0, 256, (rows, blocks, BLOCK_BYTES[kept]), dtype=torch.uint8,
        device=generator.device, generator=generator,
    )  # fmt: skip
    if kept == WeightFormat.Q8_0:
        header = [widest / 127.5]
    else:
        header = [2 * widest / 15, -widest]
    numbers = torch.tensor(header, dtype=torch.float16, device=generator.device)
    data[:, :, : 2 * len(header)] = numbers.view(torch.uint8)
    return data.flatten(1)
