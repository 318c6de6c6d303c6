"""Load weights: read tensor by tensor, bring each to its format, join, put on the device.

Every tensor that the model needs is read exactly once; a tensor of the files that it does not
need must be on the list of `checkpoint.tensors.is_ignored`. Both are checked before a byte of
weights is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from tokenspeed_kernels.weight import RawWeight

from tokenspeed.checkpoint.scaled import FLOAT8
from tokenspeed.checkpoint.tensors import compare
from tokenspeed.errors import CheckpointError, Problem, Where
from tokenspeed.plan import ModelConfig, WeightFormat
from tokenspeed.weights.formats import fp8, nibbles
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
    found = {name: tensor.shape for name, tensor in stored.items()}
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
            if kept in (RAW_FORMATS | nibbles.KEPT) and tensor.format != kept:
                yield Problem(
                    code="TS-W043",
                    message=f"tensor {part.tensor} is {tensor.format}, the plan keeps {kept}",
                    where=Where(str(tensor.path)),
                    hint="make the plan again: the file is not the one it was made for",
                )
            elif tensor.fault:
                yield Problem(
                    code="TS-W045" if tensor.scales is None else "TS-W046",
                    message=f"tensor {part.tensor} is {tensor.format} and has {tensor.fault}",
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
        self._total = sum(tensor.all_bytes for tensor in stored.values())

    def matrix(self, matrix: Matrix, device: torch.device) -> RawWeight:
        """The matrix in the format that it is kept in, on the device."""
        kept = matrix.format
        made: fp8.Scaled | nibbles.Nibbles
        if kept in nibbles.KEPT:
            made = nibbles.joined([self._nibbles(part) for part in matrix.parts])
        elif kept in fp8.KEPT:
            made = self._float8(matrix, kept, device)
        else:
            data = self.joined(matrix, lambda stored, part: self._part(stored, part, kept))
            return RawWeight(kept.value, matrix.shape, data.to(device))
        return RawWeight(kept.value, matrix.shape, made.data.to(device), made.scales.to(device))

    def _float8(self, matrix: Matrix, kept: WeightFormat, device: torch.device) -> fp8.Scaled:
        """As it is stored where that can be, else rounded once more."""
        if all(self._stored[part.tensor].format == FLOAT8 for part in matrix.parts):
            pieces = [self._in_order(self._scaled(part), part) for part in matrix.parts]
            whole = [piece for piece in pieces if piece is not None]
            if len(whole) == len(pieces):
                for part in matrix.parts:
                    self._count(self._stored[part.tensor])
                return fp8.joined(whole, kept)
        # From what the device multiplies with, and there: it is faster.
        floats = self.joined(
            matrix, lambda stored, part: self._part(stored, part, WeightFormat.BFLOAT16)
        )
        return fp8.quantised(floats.to(device), kept)

    @staticmethod
    def _in_order(scaled: fp8.Scaled, part: Part) -> fp8.Scaled | None:
        if not part.paired_heads:
            return scaled
        return scaled.reordered(part.in_halves)

    def _part(self, stored: Stored, part: Part, kept: WeightFormat) -> torch.Tensor:
        if stored.format == FLOAT8:
            return self._scaled(part).floats().to(DTYPES[kept.value])
        if stored.scales is not None:
            return self._read_nibbles(part).floats().to(DTYPES[kept.value])
        return _matrix(stored, part, kept)

    def _nibbles(self, part: Part) -> nibbles.Nibbles:
        read = self._read_nibbles(part)
        self._count(self._stored[part.tensor])
        if not part.paired_heads:
            return read
        return read.reordered(part.in_halves)

    def _read_nibbles(self, part: Part) -> nibbles.Nibbles:
        tensor = self._stored[part.tensor]
        assert tensor.scales is not None, "check_tensors looked for it"
        scales = tensor.scales.read()
        with _scale_named(part, tensor):
            return nibbles.nibbles(tensor.format, part.shape, tensor.read(), scales)

    def _scaled(self, part: Part) -> fp8.Scaled:
        tensor = self._stored[part.tensor]
        scale = tensor.scales
        assert scale is not None, "check_tensors looked for it"
        values = read_floats(scale.read(), scale.format, scale.shape)
        with _scale_named(part, tensor):
            return fp8.scaled(tensor.read(), part.shape, values)

    def _count(self, tensor: Stored) -> None:
        self._done += tensor.all_bytes
        self._progress(self._done, self._total)

    def joined(
        self, parameter: Parameter, convert: Callable[[Stored, Part], torch.Tensor]
    ) -> torch.Tensor:
        pieces = []
        for part in parameter.parts:
            tensor = self._stored[part.tensor]
            piece = convert(tensor, part)
            if part.paired_heads:
                piece = part.in_halves(piece)
            pieces.append(piece)
            self._count(tensor)
        return pieces[0].contiguous() if len(pieces) == 1 else torch.cat(pieces)


@contextmanager
def _scale_named(part: Part, tensor: Stored) -> Iterator[None]:
    """Says of which tensor a scale is wrong."""
    try:
        yield
    except ValueError as error:
        problem = Problem(
            code="TS-W046",
            message=f"tensor {part.tensor} has {error}",
            where=Where(str(tensor.path)),
        )
        raise CheckpointError(problem) from error


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
