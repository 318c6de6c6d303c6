"""Headers of GGUF files: metadata, and where each tensor lies.

Read here rather than with the `gguf` package, whose reader makes several numpy arrays for each of
a tokenizer's 100,000 strings (3.5 s for a 98 MB file, 0.1 s here), answers a truncated file with
an IndexError, and would bring numpy onto the planning path. Tests hold both readers equal.

Layout: "GGUF", u32 version, u64 tensors, u64 pairs; the pairs; the tensor infos; padding to
`general.alignment`; the data. Little-endian throughout.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from tokenspeed.checkpoint.rope import RopeError, rope_config
from tokenspeed.errors import CheckpointError, Problem, Where
from tokenspeed.plan import Attention, Dense, Layer, LayerRun, ModelConfig

SUFFIX = ".gguf"
# The ones whose files are read: dense, grouped-query attention.
ARCHITECTURES = ("llama", "qwen2", "qwen3")
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_HEADER_LIMIT = 1 << 30  # bytes; a million tokens take 30 MB
_VALUES_LIMIT = 1 << 24  # of all arrays together; each takes tens of bytes once it is read
_PIECE = 1 << 20
_STRING, _ARRAY = 8, 9
_FLOAT32_END = 3.4e38
# Metadata value type -> struct layout.
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
# Tensor type -> name, elements of a block, bytes of a block. Blocks lie along the input axis.
FORMATS = {
    0: ("float32", 1, 4), 1: ("float16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20),
    6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 40),
    10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144),
    13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210), 15: ("q8_k", 256, 292),
    16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98),
    19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110),
    22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136), 24: ("i8", 1, 1), 25: ("i16", 1, 2),
    26: ("i32", 1, 4), 27: ("i64", 1, 8), 28: ("float64", 1, 8), 29: ("iq1_m", 256, 56),
    30: ("bfloat16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66),
    39: ("mxfp4", 32, 17), 40: ("nvfp4", 64, 36), 41: ("q1_0", 128, 18),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """`shape` is (out, in) for a matrix, (n,) for a vector. `format` is a dtype name
    ("float32") or the block format in lower case ("q4_1"). `offset` counts from the start of
    the file; `bytes` is the exact length."""

    shape: tuple[int, ...]
    format: str
    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """`metadata` holds plain values: int, float, bool, str or a list of them."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Read the header and prove that the file is as long as it says.

    Raises CheckpointError naming the file, and expected and actual bytes where it is too short.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size < 24:
            raise _broken(path, f"{size} bytes are too few for a GGUF file")
        try:
            return _read(path, _Cursor(file, min(size, _HEADER_LIMIT)), size)
        except EOFError as error:
            raise _broken(path, f"the header does not end within {size} bytes") from error
        except UnicodeDecodeError as error:
            raise _broken(path, f"a text in the header is not UTF-8: {error}") from error


def _read(path: Path, cursor: _Cursor, size: int) -> GgufFile:
    magic, version, num_tensors, num_pairs = cursor.unpack("<4sIQQ")
    if magic != b"GGUF":
        raise _broken(path, f"it begins with {magic!r}, not b'GGUF'")
    if version not in (2, 3):
        raise _broken(path, f"GGUF version {version} (or big-endian); known are 2 and 3")
    metadata: dict[str, Any] = {}
    for _ in range(num_pairs):
        key = cursor.text()
        if key in metadata:
            raise _broken(path, f"metadata key {key} appears twice")
        metadata[key] = cursor.value(cursor.kind(path), path)
    infos: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(num_tensors):
        name = cursor.text()
        (rank,) = cursor.unpack("<I")
        if name in infos or not 1 <= rank <= _MAX_DIMENSIONS:
            raise _broken(path, f"tensor {name} appears twice or has {rank} dimensions")
        dims = cursor.unpack(f"<{rank}Q")
        infos[name] = (dims, *cursor.unpack("<IQ"))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise _broken(path, f"general.alignment is {alignment!r}, not a power of two")
    data_begin = -(-cursor.position // alignment) * alignment
    tensors = {
        name: _tensor(path, name, dims, raw_format, data_begin + offset, alignment)
        for name, (dims, raw_format, offset) in infos.items()
    }
    _prove_extent(path, tensors, data_begin, size, alignment)
    return GgufFile(path=path, metadata=metadata, tensors=tensors)


def _tensor(
    path: Path, name: str, dims: tuple[int, ...], raw_format: int, offset: int, alignment: int
) -> GgufTensor:
    if raw_format not in FORMATS:
        raise _broken(path, f"tensor {name} has the unknown format {raw_format}")
    kind, block, block_bytes = FORMATS[raw_format]
    # The file names the fastest axis first; a row never shares a block with the next one.
    if dims[0] % block or offset % alignment or min(dims) < 1:
        raise _broken(path, f"tensor {name}: {dims} in {kind} at byte {offset} is not whole")
    return GgufTensor(
        shape=tuple(reversed(dims)),
        format=kind,
        offset=offset,
        bytes=prod(dims) // block * block_bytes,
    )


def _prove_extent(
    path: Path, tensors: Mapping[str, GgufTensor], begin: int, size: int, alignment: int
) -> None:
    end = begin
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].offset):
        if tensor.offset < end:
            raise _broken(path, f"tensor {name} overlaps the tensor before it")
        end = tensor.offset + tensor.bytes
    # Some writers pad the last tensor.
    if not end <= size < end + alignment:
        raise _broken(path, f"expected {end} bytes, found {size}")


class _Cursor:
    """Reads little-endian values front to back, `size` bytes at most. Raises EOFError beyond.

    The file is read, not mapped: a file cut off under a mapping ends the process, and this one may
    be serving while it plans what comes next.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._data = bytearray()
        self.position = 0
        self.size = size
        self.values = 0

    def _advance(self, count: int) -> int:
        """Where the next `count` bytes begin in the data; they are there, and passed."""
        begin = self.position
        end = begin + count
        if end > self.size:
            raise EOFError
        while end > len(self._data):
            piece = self._file.read(max(_PIECE, end - len(self._data)))
            if not piece:
                raise EOFError
            self._data += piece
        self.position = end
        return begin

    def unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack_from(layout, self._data, self._advance(struct.calcsize(layout)))

    def text(self) -> str:
        (length,) = self.unpack("<Q")
        begin = self._advance(length)
        return self._data[begin : self.position].decode()

    def kind(self, path: Path) -> int:
        (raw,) = self.unpack("<I")
        if raw not in _SCALARS and raw not in (_STRING, _ARRAY):
            raise _broken(path, f"metadata value of the unknown type {raw}")
        return int(raw)

    def value(self, kind: int, path: Path) -> Any:
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY:
            return self.unpack("<" + _SCALARS[kind])[0]
        item = self.kind(path)
        (count,) = self.unpack("<Q")
        if count > self.size:  # each item takes a byte at least
            raise EOFError
        self.values += count
        if self.values > _VALUES_LIMIT:
            raise _broken(path, f"more than {_VALUES_LIMIT} values in its arrays")
        if item == _STRING:
            return [self.text() for _ in range(count)]
        if item == _ARRAY:
            raise _broken(path, "metadata with an array of arrays")
        return list(self.unpack(f"<{count}{_SCALARS[item]}"))


def model_config_from_gguf(
    metadata: Mapping[str, Any], tensors: Collection[str], file: str = "the GGUF file"
) -> ModelConfig:
    """The facts of the model. `tensors` are the names of the file's tensors: only they say
    whether the output matrix is tied to the embedding and whether products have a bias.

    Raises CheckpointError for an architecture or a rope that this build does not compute.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise _unknown(file, f"architecture {architecture!r}; known are {known}")
    read = _Metadata(metadata, architecture, file)
    if read.any("attention.sliding_window"):
        raise _unknown(file, "sliding window attention; this build computes full attention only")
    if "rope_freqs.weight" in tensors:
        raise _unknown(file, "rope factors stored as a tensor (rope_freqs.weight)")
    heads, hidden = read.count("attention.head_count"), read.count("embedding_length")
    kv_heads = read.count("attention.head_count_kv", heads)
    rotary = read.count("rope.dimension_count", max(1, hidden // heads))
    head_dim = read.count("attention.key_length", rotary)
    if heads % kv_heads:
        raise _unknown(file, f"{heads} query heads do not share {kv_heads} kv heads evenly")
    if read.count("attention.value_length", head_dim) != head_dim:
        raise _unknown(file, "keys and values of different widths")
    max_position = read.count("context_length")
    scaling = read.any("rope.scaling.type")
    parameters = {
        "rope_type": "default" if scaling in (None, "none") else scaling,
        "factor": read.any("rope.scaling.factor"),
        "original_max_position_embeddings": read.any("rope.scaling.original_context_length"),
        "attention_factor": read.any("rope.scaling.attn_factor"),
        "partial_rotary_factor": rotary / head_dim,
    }
    theta = read.number("rope.freq_base", 10_000.0)
    try:
        rope, usable = rope_config(
            parameters, theta=theta, head_dim=head_dim, max_position=max_position
        )
    except RopeError as error:
        raise _unknown(file, str(error)) from error
    bos, eos = (token_id(metadata, kind, file) for kind in ("bos", "eos"))
    layer = Layer(
        mixer=Attention(
            num_heads=heads,
            num_kv_heads=kv_heads,
            head_dim=head_dim,
            qk_norm="head" if "blk.0.attn_q_norm.weight" in tensors else "none",
            qkv_bias="blk.0.attn_q.bias" in tensors,
            o_bias="blk.0.attn_output.bias" in tensors,
        ),
        feed_forward=Dense(
            inner=read.count("feed_forward_length"), bias="blk.0.ffn_up.bias" in tensors
        ),
    )
    return ModelConfig(
        family=architecture,
        vocab_size=vocab_size(metadata, architecture, file),
        hidden_size=hidden,
        layers=(LayerRun(repeat=read.count("block_count"), layers=(layer,)),),
        norm_eps=read.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        max_position=usable,
        tie_embeddings="output.weight" not in tensors,
        bos_token_id=bos,
        eos_token_ids=() if eos is None else (eos,),
    )


def vocab_size(metadata: Mapping[str, Any], architecture: str, file: str) -> int:
    """Rows of the embedding: as stated, else as many as the tokenizer has tokens."""
    stated = metadata.get(f"{architecture}.vocab_size")
    tokens = metadata.get("tokenizer.ggml.tokens")
    size = len(tokens) if stated is None and isinstance(tokens, list) else stated
    if type(size) is not int or size < 1:
        raise _unknown(file, f"a vocabulary of {size!r} tokens")
    return size


def token_id(metadata: Mapping[str, Any], kind: str, file: str) -> int | None:
    """The tokenizer's id of "bos" or "eos", None where it has none."""
    value = metadata.get(f"tokenizer.ggml.{kind}_token_id")
    if value is not None and (type(value) is not int or value < 0):
        raise _unknown(file, f"the {kind} token is {value!r}, not a token id")
    return value


def shortest_float(value: float) -> float:
    """The shortest decimal that is the same float32: 9.99999975e-06 was written as 1e-05."""
    single = struct.pack("<f", value)
    for digits in range(1, 9):
        candidate = float(f"{value:.{digits}g}")
        if struct.pack("<f", candidate) == single:
            return candidate
    return value


class _Metadata:
    """The metadata of one architecture, by key without its prefix."""

    def __init__(self, values: Mapping[str, Any], architecture: str, file: str) -> None:
        self._values = values
        self._prefix = architecture
        self._file = file

    def any(self, key: str) -> Any:
        """The value as it is, None where the key is absent."""
        return self._values.get(f"{self._prefix}.{key}")

    def count(self, key: str, default: int | None = None) -> int:
        value = self._present(key, default)
        if type(value) is not int or value < 1:
            raise self._wrong(key, "a positive count")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive number, as it was before it became a float32."""
        value = self._present(key, default)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < _FLOAT32_END:
            raise self._wrong(key, "a positive number")
        return shortest_float(float(value))

    def _present(self, key: str, default: Any) -> Any:
        value = self.any(key)
        if value is None and default is None:
            raise _unknown(self._file, f"metadata without {self._prefix}.{key}")
        return default if value is None else value

    def _wrong(self, key: str, wanted: str) -> CheckpointError:
        message = f"{self._prefix}.{key} is {self.any(key)!r}, not {wanted}"
        return _unknown(self._file, message)


def _unknown(file: str, message: str) -> CheckpointError:
    return CheckpointError(Problem(code="TS-W010", message=message, where=Where(file)))


def _broken(path: Path, message: str) -> CheckpointError:
    return CheckpointError(
        Problem(
            code="TS-W030",
            message=f"{path.name}: {message}",
            where=Where(str(path)),
            hint="the file is damaged or its download stopped early; fetch it again",
        )
    )
