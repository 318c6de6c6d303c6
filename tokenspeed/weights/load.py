"""Load weights: read tensor by tensor, bring each to its format, join, put on the device.

Every tensor that the model needs is read exactly once; a tensor of the files that it does not
need must be on the list of `checkpoint.tensors.is_ignored`. Both are checked before a byte of
weights is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from tokenspeed_kernels.weight import BLOCK_BYTES, RawWeight

from tokenspeed.checkpoint.scaled import FLOAT8
from tokenspeed.checkpoint.tensors import compare
from tokenspeed.errors import CheckpointError, Problem, Where
from tokenspeed.plan import ModelConfig, WeightFormat
from tokenspeed.weights.arrivals import FLOW, Arrivals, Flow
from tokenspeed.weights.formats import fp8, nibbles
from tokenspeed.weights.formats.floats import DTYPES, read_floats
from tokenspeed.weights.formats.gguf_blocks import RAW_FORMATS, dequantise, read_rows
from tokenspeed.weights.parameter import Matrix, Parameter, Part, Progress, Vector, Weights
from tokenspeed.weights.road import Road
from tokenspeed.weights.stored import Stored, stored_tensors

# What no other format is brought to.
_AS_STORED = RAW_FORMATS | nibbles.KEPT - {WeightFormat.NVFP4}


def load_weights(
    parameters: Sequence[Parameter],
    config: ModelConfig,
    model_dir: Path,
    container: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
    road: Road | None = None,
    flow: Flow = FLOW,
) -> Weights:
    """Read `parameters` from the folder. `dtype` is that of the vectors (the activations').

    With a `road` to the device a `flow` of tensors is on its way there, and what is done to
    them is done there; without one the host never holds more than one parameter besides what is
    kept. Raises CheckpointError listing every missing, unknown or misshapen tensor.
    """
    stored = stored_tensors(model_dir, container)
    check_tensors(parameters, config, stored, Where(str(model_dir)))
    tensors = [stored[part.tensor] for parameter in parameters for part in parameter.parts]
    if road is None:
        one_by_one = _OneByOne([one for tensor in tensors for one in _whole(tensor)], progress)
        return _loaded(parameters, _Reader(stored, one_by_one), device, dtype)
    order = [one for tensor in tensors for one in _whole(tensor) if not _stays(one, tensor)]
    with Arrivals(order, road, progress, flow) as arrivals:
        return _loaded(parameters, _Reader(stored, arrivals, lent=True), device, dtype)


def _whole(tensor: Stored) -> tuple[Stored, ...]:
    """With its scales, in the order in which they are taken."""
    found = (tensor, tensor.scales, tensor.global_scale)
    return tuple(one for one in found if one is not None)


def _stays(one: Stored, tensor: Stored) -> bool:
    """Whether `one`, the tensor itself or its scales, is wanted in host memory: scales of float8
    and of whole matrices, which are few and looked at one by one, and what is brought to floats
    nowhere else."""
    if one is not tensor:
        return tensor.format == FLOAT8 or one is tensor.global_scale
    return not (tensor.scales or tensor.format in DTYPES or tensor.format in BLOCK_BYTES)


def _loaded(
    parameters: Sequence[Parameter], reader: _Reader, device: torch.device, dtype: torch.dtype
) -> Weights:
    matrices: dict[str, RawWeight] = {}
    vectors: dict[str, torch.Tensor] = {}
    for parameter in parameters:
        if isinstance(parameter, Matrix):
            matrices[parameter.name] = reader.matrix(parameter, device)
        else:
            kept = torch.float32 if parameter.exact else dtype
            vectors[parameter.name] = reader.vector(parameter, device, kept)
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
            if kept in _AS_STORED and tensor.format != kept:
                yield Problem(
                    code="TS-W043",
                    message=f"tensor {part.tensor} is {tensor.format}, the plan keeps {kept}",
                    where=Where(str(tensor.path)),
                    hint="plan again: this is not the file that the plan was made for",
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


class _OneByOne:
    """Reads a tensor to host memory of its own when it is taken."""

    def __init__(self, order: Sequence[Stored], progress: Progress) -> None:
        self._progress = progress
        self._done = 0
        self._total = sum(tensor.bytes for tensor in order)

    def take(self, tensor: Stored) -> torch.Tensor:
        data = tensor.read()
        self._done += tensor.bytes
        self._progress(self._done, self._total)
        return data


class _Reader:
    """Brings the parts of parameters to their formats and joins them. `lent`: the memory of what
    `source` gives holds more than that."""

    def __init__(
        self, stored: Mapping[str, Stored], source: _OneByOne | Arrivals, *, lent: bool = False
    ) -> None:
        self._stored = stored
        self._source = source
        self._lent = lent

    def matrix(self, matrix: Matrix, device: torch.device) -> RawWeight:
        """The matrix in the format that it is kept in, on the device."""
        kept = matrix.format
        made: fp8.Scaled | nibbles.Nibbles
        if kept in nibbles.KEPT:
            made = nibbles.joined([self._nibbles(part, kept, device) for part in matrix.parts])
        elif kept in fp8.KEPT:
            made = self._float8(matrix, kept, device)
        else:
            data = self._joined(self._part(part, kept) for part in matrix.parts)
            return RawWeight(kept.value, matrix.shape, self._own(data, device))
        data, scales = self._own(made.data, device), self._own(made.scales, device)
        rows = made.row_scales if isinstance(made, nibbles.Nibbles) else None
        rows = None if rows is None else self._own(rows, device)
        return RawWeight(kept.value, matrix.shape, data, scales, rows)

    def vector(self, vector: Vector, device: torch.device, kept: torch.dtype) -> torch.Tensor:
        pieces = []
        for part in vector.parts:
            tensor = self._stored[part.tensor]
            floats = read_floats(self._take(tensor, tensor), tensor.format, part.shape)
            pieces.append(_in_halves(part, floats.flatten()))
        return self._own(self._joined(pieces).to(kept), device)

    def _float8(self, matrix: Matrix, kept: WeightFormat, device: torch.device) -> fp8.Scaled:
        """As it is stored where that can be, else rounded once more."""
        if all(self._stored[part.tensor].format == FLOAT8 for part in matrix.parts):
            pieces = [(part, self._scaled(part)) for part in matrix.parts]
            whole = [
                scaled.reordered(part.in_halves) if part.paired_heads else scaled
                for part, scaled in pieces
            ]
            if all(whole):
                return fp8.joined([piece for piece in whole if piece is not None], kept)
            floats = [_in_halves(part, scaled.floats().bfloat16()) for part, scaled in pieces]
        else:
            floats = [self._part(part, WeightFormat.BFLOAT16) for part in matrix.parts]
        # From what the device multiplies with, and there: it is faster.
        return fp8.quantised(self._joined(floats).to(device), kept)

    def _part(self, part: Part, kept: WeightFormat) -> torch.Tensor:
        """One part as raw rows, or as floats [out, in]."""
        stored = self._stored[part.tensor]
        dtype = DTYPES.get(kept.value)
        if stored.format == FLOAT8:
            rows = self._scaled(part).floats().to(dtype)
        elif stored.scales is not None:
            rows = self._nibbles_as_stored(part).floats().to(dtype)
        else:
            rows = _matrix(self._take(stored, stored), stored, part, kept)
        return _in_halves(part, rows)

    def _nibbles(self, part: Part, kept: WeightFormat, device: torch.device) -> nibbles.Nibbles:
        if self._stored[part.tensor].format != kept:
            # As with float8: from what the device multiplies with, and there.
            return nibbles.nvfp4(self._part(part, WeightFormat.BFLOAT16).to(device))
        read = self._nibbles_as_stored(part)
        return read.reordered(part.in_halves) if part.paired_heads else read

    def _nibbles_as_stored(self, part: Part) -> nibbles.Nibbles:
        tensor = self._stored[part.tensor]
        assert tensor.scales is not None, "check_tensors looked for it"
        data, scales = self._take(tensor, tensor), self._take(tensor.scales, tensor)
        with _scale_named(part, tensor):
            whole = self._global_scale(tensor)
            return nibbles.nibbles(tensor.format, part.shape, data, scales, whole)

    def _global_scale(self, tensor: Stored) -> float | None:
        """What the numbers of the whole matrix are multiplied with, as a float32 holds it."""
        if tensor.global_scale is None:
            return None
        read = self._take(tensor.global_scale, tensor)
        scale = read_floats(read, tensor.global_scale.format, (1,))
        return float(1.0 / scale if tensor.divides else scale)

    def _scaled(self, part: Part) -> fp8.Scaled:
        tensor = self._stored[part.tensor]
        scale = tensor.scales
        assert scale is not None, "check_tensors looked for it"
        data, read = self._take(tensor, tensor), self._take(scale, tensor)
        values = read_floats(read, scale.format, scale.shape)
        with _scale_named(part, tensor):
            return fp8.scaled(data, part.shape, values)

    def _take(self, one: Stored, tensor: Stored) -> torch.Tensor:
        """The bytes of `one`, the tensor itself or its scales."""
        return one.read() if self._lent and _stays(one, tensor) else self._source.take(one)

    @staticmethod
    def _joined(pieces: Iterable[torch.Tensor]) -> torch.Tensor:
        first, *others = pieces
        return torch.cat([first, *others]) if others else first.contiguous()

    def _own(self, data: torch.Tensor, device: torch.device) -> torch.Tensor:
        """In memory of its own on the device."""
        return data.to(device, copy=self._lent)


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


def _in_halves(part: Part, rows: torch.Tensor) -> torch.Tensor:
    return part.in_halves(rows) if part.paired_heads else rows


def _matrix(data: torch.Tensor, stored: Stored, part: Part, kept: WeightFormat) -> torch.Tensor:
    """One part in the format the plan keeps: raw block rows, or floats [out, in]."""
    if stored.format in DTYPES:
        floats = read_floats(data, stored.format, part.shape).to(DTYPES[kept.value])
        # A stack of matrices [n, in, out].
        return floats.transpose(1, 2).flatten(0, 1) if floats.ndim == 3 else floats
    rows = read_rows(data, part.shape[0])
    if kept in RAW_FORMATS:
        return rows
    return dequantise(rows, stored.format).to(DTYPES[kept.value])
