"""Random weights of the right shapes, for running an architecture without its checkpoint."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from tokenspeed_kernels.dequantise import E2M1, E8M0_BIAS
from tokenspeed_kernels.weight import BLOCK, BLOCK_BYTES, NIBBLE_GROUPS, RawWeight

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
    if matrix.format in NIBBLE_GROUPS:
        return _nibbles(matrix, scale, generator)
    if matrix.format in BLOCK_BYTES:
        data = _blocks(matrix.format, rows, columns // BLOCK, scale, generator)
    else:
        data = torch.empty(
            rows, columns, dtype=DTYPES[matrix.format.value], device=generator.device
        ).normal_(0.0, scale, generator=generator)
    return RawWeight(matrix.format.value, (rows, columns), data)


def _nibbles(matrix: Matrix, scale: float, generator: torch.Generator) -> RawWeight:
    """Every value of four bits as often as the next, under scales that make the variance
    scale^2."""
    rows, columns = matrix.shape
    device, kept = generator.device, matrix.format
    groups = (rows, columns // NIBBLE_GROUPS[kept])
    # -7 to 7 as integers, whose squares have a mean of 56 / 3; -8 would move the mean.
    floats = kept in (WeightFormat.MXFP4, WeightFormat.NVFP4)
    low = 0 if floats else 1
    halves = torch.randint(
        low, 16, (2, rows, columns // 2), dtype=torch.uint8, device=device, generator=generator
    )
    data = halves[0] | halves[1] << 4
    if not floats:
        unit = scale / (56 / 3) ** 0.5
        scales = torch.full(groups, unit, dtype=torch.bfloat16, device=device)
        return RawWeight(kept.value, matrix.shape, data, scales)
    unit = scale / (sum(value * value for value in E2M1) / len(E2M1)) ** 0.5
    if kept == WeightFormat.NVFP4:
        # Twice as large as one another, so that squares have a mean of 1.
        codes = torch.randint(0, 2, groups, device=device, generator=generator)
        pair = torch.tensor((1.0, 2.0), device=device).to(torch.float8_e4m3fn).view(torch.uint8)
        row_scales = torch.full((rows,), unit / 2.5**0.5, device=device)
        return RawWeight(kept.value, matrix.shape, data, pair[codes], row_scales)
    power = math.floor(math.log2(unit))
    # Of powers of two so many are the larger neighbour that squares have the wanted mean.
    share = ((unit / 2.0**power) ** 2 - 1) / 3
    larger = torch.rand(groups, device=device, generator=generator) < share
    scales = (larger.int() + (power + E8M0_BIAS)).to(torch.uint8)
    return RawWeight(kept.value, matrix.shape, data, scales)


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
