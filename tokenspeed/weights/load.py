"""Load weights: read tensor by tensor, bring each to its format, join, put on the device.

Every tensor that the model needs is read exactly once; a tensor of the files that it does not
need must be on the list of `checkpoint.tensors.is_ignored`. Both are checked before a byte of
weights is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from tokenspeed_kernels.weight import RawWeight

from tokenspeed.checkpoint.tensors import compare
from tokenspeed.errors import CheckpointError, Problem, Where
from tokenspeed.plan import ModelConfig, WeightFormat
from tokenspeed.weights.formats import fp8
from tokenspeed.weights.formats.floats import DTYPES, read_floats
from tokenspeed.weights.formats.gguf_blocks import RAW_FORMATS, dequantise, read_rows
from tokenspeed.weights.parameter import Matrix, Parameter, Part, Progress, Vector, Weights
from tokenspeed.weights.stored import Stored, stored_tensors


def load_weights(
    parameters: Sequence[Parameter],
    config: ModelConfig,
    model_dir: Path,
    container: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
) -> Weights:
    """Read `parameters` from the folder. `dtype` is that of the vectors (the activations').

    Memory on the host never holds more than one parameter besides what is kept. Raises
    CheckpointError listing every missing, unknown or misshapen tensor.
    """
    stored = stored_tensors(model_dir, container)
    check_tensors(parameters, config, stored, Where(str(model_dir)))
    reader = _Reader(stored, progress)
    matrices: dict[str, RawWeight] = {}
    vectors: dict[str, torch.Tensor] = {}
    for parameter in parameters:
        if isinstance(parameter, Matrix):
            matrices[parameter.name] = reader.matrix(parameter, device)
        else:
            data = reader.joined(parameter, _vector)
            kept = torch.float32 if parameter.exact else dtype
            vectors[parameter.name] = data.to(device=device, dtype=kept)
    return Weights(matrices, vectors)


def check_tensors(
    parameters: Sequence[Parameter],
    config: ModelConfig,
    stored: Mapping[str, Stored],
    where: Where,
) -> None:
    """Raises CheckpointError unless the files hold exactly what the parameters need, in formats
    that can be brought to the ones the plan keeps."""
    parts = [part for parameter in parameters for part in parameter.parts]
    needed = {part.tensor: part.shape for part in parts}
    assert len(needed) == len(parts), "a tensor of the files belongs to one parameter"
    scales = fp8.companions(stored)
    found = {name: tensor.shape for name, tensor in stored.items() if name not in scales}
    problems = compare(needed, found, config, where)
    if not problems:
        problems = list(_format_problems(parameters, stored))
    if problems:
        raise CheckpointError(*problems)


def _format_problems(
    parameters: Sequence[Parameter], stored: Mapping[str, Stored]
) -> Iterator[Problem]:
    for parameter in parameters:
        kept = parameter.format if isinstance(parameter, Matrix) else WeightFormat.FLOAT32
        for part in parameter.parts:
            tensor = stored[part.tensor]
            if kept in RAW_FORMATS and tensor.format != kept:
                yield Problem(
                    code="TS-W043",
                    message=f"tensor {part.tensor} is {tensor.format}, the plan keeps {kept}",
                    where=Where(str(tensor.path)),
                    hint="make the plan again: the file is not the one it was made for",
                )
            elif tensor.format == fp8.STORED and fp8.scale_of(part.tensor, stored) is None:
                yield Problem(
                    code="TS-W045",
                    message=f"tensor {part.tensor} is {tensor.format} and has no scale beside it",
                    where=Where(str(tensor.path)),
                )
            elif isinstance(parameter, Vector) and tensor.format not in DTYPES:
                yield Problem(
                    code="TS-W044",
                    message=f"tensor {part.tensor} is {tensor.format}; vectors must be floats",
                    where=Where(str(tensor.path)),
                )


class _Reader:
    """Reads and joins the parts of parameters, and counts the bytes for the progress."""

    def __init__(self, stored: Mapping[str, Stored], progress: Progress) -> None:
        self._stored = stored
        self._progress = progress
        self._done = 0
        self._total = sum(tensor.bytes for tensor in stored.values())

    def matrix(self, matrix: Matrix, device: torch.device) -> RawWeight:
        """The matrix in the format that it is kept in, on the device."""
        kept = matrix.format
        if kept not in fp8.KEPT:
            data = self.joined(matrix, lambda stored, part: self._part(stored, part, kept))
            return RawWeight(kept.value, matrix.shape, data.to(device))
        formats = {self._stored[part.tensor].format for part in matrix.parts}
        if formats == {fp8.STORED} and not any(part.paired_heads for part in matrix.parts):
            scaled = fp8.joined([self._scaled(part) for part in matrix.parts], kept)
        else:
            # Rounded once more from what the device multiplies with, and there: it is faster.
            floats = self.joined(
                matrix, lambda stored, part: self._part(stored, part, WeightFormat.BFLOAT16)
            )
            scaled = fp8.quantised(floats.to(device), kept)
        return RawWeight(kept.value, matrix.shape, scaled.data.to(device), scaled.scales.to(device))

    def _part(self, stored: Stored, part: Part, kept: WeightFormat) -> torch.Tensor:
        if stored.format != fp8.STORED:
            return _matrix(stored, part, kept)
        return self._scaled(part, count=False).floats().to(DTYPES[kept.value])

    def _scaled(self, part: Part, count: bool = True) -> fp8.Scaled:
        tensor = self._stored[part.tensor]
        scale = fp8.scale_of(part.tensor, self._stored)
        assert scale is not None, "check_tensors looked for it"
        values = read_floats(scale.read(), scale.format, scale.shape)
        try:
            scaled = fp8.scaled(tensor.read(), part.shape, values)
        except ValueError as error:
            problem = Problem(
                code="TS-W046",
                message=f"tensor {part.tensor} has {error}",
                where=Where(str(tensor.path)),
            )
            raise CheckpointError(problem) from error
        if count:
            self._count(tensor)
        return scaled

    def _count(self, tensor: Stored) -> None:
        self._done += tensor.bytes
        self._progress(self._done, self._total)

    def joined(
        self, parameter: Parameter, convert: Callable[[Stored, Part], torch.Tensor]
    ) -> torch.Tensor:
        pieces = []
        for part in parameter.parts:
            tensor = self._stored[part.tensor]
            piece = convert(tensor, part)
            if part.paired_heads:
                piece = half_split_rows(piece, part.paired_heads, part.paired_rows)
            pieces.append(piece)
            self._count(tensor)
        return pieces[0].contiguous() if len(pieces) == 1 else torch.cat(pieces)


def half_split_rows(rows: torch.Tensor, heads: int, last: int = 0) -> torch.Tensor:
    """Rows [heads * d, ...] from the order of adjacent pairs (0, d/2, 1, d/2 + 1, ...) to that of
    halves, head by head; with `last`, only the last so many rows of each head. Works on raw block
    rows as well as on floats."""
    whole = rows.view(heads, rows.shape[0] // heads, *rows.shape[1:])
    last = last or whole.shape[1]
    kept, paired = whole[:, :-last], whole[:, -last:]
    halves = paired.reshape(heads, last // 2, 2, *rows.shape[1:]).transpose(1, 2).flatten(1, 2)
    return torch.cat((kept, halves), dim=1).reshape(rows.shape)


def _matrix(stored: Stored, part: Part, kept: WeightFormat) -> torch.Tensor:
    """One part in the format the plan keeps: raw block rows, or floats [out, in]."""
    data = stored.read()
    if stored.format in DTYPES:
        floats = read_floats(data, stored.format, part.shape).to(DTYPES[kept.value])
        # A stack of matrices [n, in, out].
        return floats.transpose(1, 2).flatten(0, 1) if floats.ndim == 3 else floats
    rows = read_rows(data, part.shape[0])
    if kept in RAW_FORMATS:
        return rows
    return dequantise(rows, stored.format).to(DTYPES[kept.value])


def _vector(stored: Stored, part: Part) -> torch.Tensor:
    return read_floats(stored.read(), stored.format, part.shape).flatten()
