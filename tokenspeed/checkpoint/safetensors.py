"""Headers of safetensors files, read and proved whole without torch.

A file is: 8 bytes little-endian header length, that many bytes of JSON, the data. Each file must
be exactly as long as its header says, and its tensors must tile the data without gap or overlap;
a truncated download fails here, before a weight is used.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tokenspeed.errors import CheckpointError, Problem, Where, some_of
from tokenspeed.files import read_regular

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
# The limit of the format's own library.
MAX_HEADER_BYTES = 100_000_000
_INDEX_LIMIT = 256 * 2**20  # bytes; that of 70,000 tensors takes 8 MB

DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1,
    "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4,
    "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its file (a name in the folder), dtype as the header spells it ("BF16"),
    shape, and the half-open byte range [begin, end) from the start of the file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class SafetensorsIndex:
    """Every tensor of a folder, and the size in bytes of each file that holds one."""

    tensors: dict[str, TensorEntry]
    file_bytes: dict[str, int]


def read_index(directory: Path) -> SafetensorsIndex:
    """Read the headers of all shards of `directory` and check them against each other.

    Raises CheckpointError listing every problem: missing or unnamed shards, files of the wrong
    length, tensors that two shards hold or that the index puts elsewhere.
    """
    problems: list[Problem] = []
    weight_map = _weight_map(directory)
    names = sorted(set(weight_map.values())) if weight_map is not None else [SINGLE_NAME]
    tensors: dict[str, TensorEntry] = {}
    file_bytes: dict[str, int] = {}
    for name in names:
        path = directory / name
        if not path.is_file():
            problems.append(_missing(path, weight_map))
            continue
        file_bytes[name] = path.stat().st_size
        try:
            header = read_header(path)
        except CheckpointError as error:
            problems.extend(error.problems)
            continue
        for tensor, entry in header.items():
            if tensor in tensors:
                other = tensors[tensor].file
                problems.append(_twice(path, tensor, other))
            tensors[tensor] = entry
    problems.extend(_unnamed_shards(directory, names))
    if not problems and weight_map is not None:
        problems.extend(_index_against_files(directory, weight_map, tensors))
    if problems:
        raise CheckpointError(*problems)
    return SafetensorsIndex(tensors=tensors, file_bytes=file_bytes)


def read_header(path: Path) -> dict[str, TensorEntry]:
    """The tensors of one file, after its length and byte ranges were proved.

    Raises CheckpointError naming the file, the expected and the actual bytes.
    """
    actual = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise _broken(path, f"{actual} bytes are too few for a safetensors file")
        (length,) = struct.unpack("<Q", prefix)
        if length < 2 or length > MAX_HEADER_BYTES or 8 + length > actual:
            raise _broken(
                path,
                f"a header of {length} bytes cannot be in a file of {actual} bytes",
            )
        raw = file.read(length)
    header = _parse_header(path, raw)
    data_begin = 8 + length
    entries = [_entry(path, name, value, data_begin) for name, value in header.items()]
    end = data_begin
    for name, entry in sorted(entries, key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != end:
            what = "overlaps the tensor before it" if entry.begin < end else "leaves a gap"
            raise _broken(
                path, f"tensor {name} begins at byte {entry.begin}, expected {end}: {what}"
            )
        end = entry.end
    if end != actual:
        raise _broken(path, f"expected {end} bytes, found {actual}")
    return dict(entries)


def _parse_header(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _broken(path, f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise _broken(path, "the header is not a JSON object")
    header.pop("__metadata__", None)
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} appears twice")
    return unique


def _entry(path: Path, name: str, value: Any, data_begin: int) -> tuple[str, TensorEntry]:
    """Check one header entry: known dtype, whole shape, byte range = dtype x shape."""
    try:
        dtype, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
        item = DTYPE_BYTES[dtype]
        whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(path, f"tensor {name} is not described as the format demands") from error
    if not whole:
        raise _broken(path, f"tensor {name} has a shape or byte range that is not whole numbers")
    expected = item * prod(shape)
    if end - begin != expected:
        raise _broken(
            path,
            f"tensor {name} ({dtype} {shape}) needs {expected} bytes, its range has {end - begin}",
        )
    entry = TensorEntry(path.name, dtype, tuple(shape), data_begin + begin, data_begin + end)
    return name, entry


def _weight_map(directory: Path) -> dict[str, str] | None:
    """tensor -> file name as the index file says; None without an index."""
    path = directory / INDEX_NAME
    if not path.is_file():
        return None
    try:
        raw = read_regular(path, _INDEX_LIMIT)
        weight_map = json.loads(raw, object_pairs_hook=_unique)["weight_map"]
        if not weight_map:
            raise ValueError("weight_map is empty")
        for name, file in weight_map.items():
            # A name with a folder in it could read anything on the machine.
            if not isinstance(file, str) or Path(file).name != file:
                raise ValueError(f"{name} is said to be in {file!r}, which is no file name")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _broken(path, f"not an index of safetensors shards: {error}") from error
    return dict(weight_map)


def _missing(path: Path, weight_map: dict[str, str] | None) -> Problem:
    if weight_map is None:
        message = f"neither {SINGLE_NAME} nor {INDEX_NAME} is there"
        return Problem(
            code="TS-W021",
            message=message,
            where=Where(str(path.parent)),
            hint="point model.source at the folder that holds the weights, or plan without them: "
            "load: dummy",
        )
    lost = sorted(name for name, file in weight_map.items() if file == path.name)
    return Problem(
        code="TS-W021",
        message=f"the index names {path.name}, which is missing; it should hold {some_of(lost)}",
        where=Where(str(path.parent / INDEX_NAME)),
        hint="download the file again, with the index of the same revision",
    )


def _twice(path: Path, tensor: str, other: str) -> Problem:
    return Problem(
        code="TS-W022",
        message=f"tensor {tensor} is in {other} and again in {path.name}",
        where=Where(str(path)),
        hint="each tensor belongs in one shard; fetch the checkpoint again",
    )


def _unnamed_shards(directory: Path, names: list[str]) -> Iterator[Problem]:
    """Shards beside the index that it does not name: half of another revision, most likely."""
    for path in sorted(directory.glob("model*.safetensors")):
        if path.name not in names:
            yield Problem(
                code="TS-W023",
                message=f"{path.name} is not in the index",
                where=Where(str(path)),
                hint=f"remove it, or fetch the {INDEX_NAME} that belongs to it",
            )


def _index_against_files(
    directory: Path, weight_map: dict[str, str], tensors: dict[str, TensorEntry]
) -> Iterator[Problem]:
    where = Where(str(directory / INDEX_NAME))
    hint = "index and shards are of different revisions; fetch both again"
    for name, file in sorted(weight_map.items()):
        entry = tensors.get(name)
        if entry is None or entry.file != file:
            found = f"it is in {entry.file}" if entry else "no file holds it"
            message = f"the index puts tensor {name} in {file}; {found}"
            yield Problem(code="TS-W024", message=message, where=where, hint=hint)
    unnamed = sorted(set(tensors) - set(weight_map))
    if unnamed:
        message = f"the shards hold tensors that the index does not name: {some_of(unnamed)}"
        yield Problem(code="TS-W024", message=message, where=where, hint=hint)


def _broken(path: Path, message: str) -> CheckpointError:
    return CheckpointError(
        Problem(
            code="TS-W020",
            message=f"{path.name}: {message}",
            where=Where(str(path)),
            hint="the file is damaged or its download stopped early; fetch it again",
        )
    )
