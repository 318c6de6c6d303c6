"""GGUF headers: equal to what the `gguf` package reads, and proved whole."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rigs.gguf_file import build_gguf
from tests.rigs.rand import FAMILIES, rand_config
from tokenspeed.checkpoint.config import model_config
from tokenspeed.checkpoint.gguf import (
    FORMATS,
    model_config_from_gguf,
    read_gguf,
    shortest_float,
)
from tokenspeed.errors import CheckpointError


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = build_gguf(tmp_path_factory.mktemp("gguf"), "llama").gguf
    (path,) = folder.glob("*.gguf")
    return path


@pytest.fixture(scope="module")
def metadata(file: Path) -> dict[str, Any]:
    return read_gguf(file).metadata


def test_equal_to_the_package(file: Path) -> None:
    ours, theirs = read_gguf(file), GGUFReader(file)
    fields = {k: f.contents() for k, f in theirs.fields.items() if not k.startswith("GGUF.")}
    assert ours.metadata == fields
    assert set(ours.tensors) == {tensor.name for tensor in theirs.tensors}
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        assert (mine.offset, mine.bytes) == (tensor.data_offset, tensor.n_bytes)


def test_the_block_sizes_are_those_of_the_package() -> None:
    floats = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64"}
    for kind, (block, size) in GGML_QUANT_SIZES.items():
        name = GGMLQuantizationType(kind).name.lower()
        assert FORMATS[int(kind)] == (floats.get(name, name), block, size)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_facts_as_the_config(tmp_path: Path, family: str) -> None:
    """A GGUF file and the config.json that it was made from describe one model."""
    (path,) = build_gguf(tmp_path, family).gguf.glob("*.gguf")
    read = read_gguf(path)
    config = model_config_from_gguf(read.metadata, read.tensors.keys())
    assert config == model_config(rand_config(family))


def test_any_truncation_is_refused(file: Path, tmp_path: Path) -> None:
    """At every length: in the header, in the padding, in the data."""
    whole = file.read_bytes()
    header = min(t.offset for t in read_gguf(file).tensors.values())
    lengths = {0, 3, 23, 24, 100, header // 2, header - 1, header, header + 1, len(whole) - 33}
    for length in sorted(lengths):
        path = tmp_path / "cut.gguf"
        path.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            read_gguf(path)


READ_AGAIN_AND_AGAIN = """
import sys
from pathlib import Path
from tokenspeed.checkpoint.gguf import read_gguf
from tokenspeed.errors import CheckpointError
refused = 0
while refused < 200:
    try:
        read_gguf(Path(sys.argv[1]))
    except CheckpointError:
        refused += 1
"""


def test_a_file_cut_off_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """A service plans its next generation beside the one that serves: a page that vanished from
    under a mapping would end both (SIGBUS)."""
    path = tmp_path / "moving.gguf"
    text = struct.pack("<Q", 4) + b"word"
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 1) + b"w"
    whole = head + struct.pack("<IIQ", 9, 8, 50_000) + text * 50_000
    path.write_bytes(whole)
    command = [sys.executable, "-c", READ_AGAIN_AND_AGAIN, str(path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as reader:
        assert reader.stderr is not None
        while reader.poll() is None:
            os.truncate(path, len(head))
            path.write_bytes(whole)
        assert (reader.returncode, reader.stderr.read()) == (0, "")


def test_a_longer_file_is_refused(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(file.read_bytes() + bytes(64))
    with pytest.raises(CheckpointError, match="expected"):
        read_gguf(path)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


def header(version: int = 3, tensors: int = 0, pairs: int = 0, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, pairs)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(magic=b"GGML"), "begins with"),
        (header(version=1), "version 1"),
        (header(version=3 << 24), "big-endian"),
        (header(pairs=2) + (text("k") + struct.pack("<IB", 0, 1)) * 2, "twice"),
        (header(pairs=1) + text("k") + struct.pack("<I", 99) + bytes(8), "unknown type 99"),
        (header(pairs=1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "array of arrays"),
        (header(pairs=1) + text("k") + struct.pack("<IIQ", 9, 8, 2**62), "does not end"),
        (
            header(pairs=1) + text("k") + struct.pack("<IIQ", 9, 0, 2**24 + 1) + bytes(2**24 + 1),
            "more than 16777216 values",
        ),
        (header(pairs=1) + struct.pack("<Q", 2**63) + bytes(8), "does not end"),
        (header(pairs=1) + struct.pack("<Q", 1) + b"\xff" + bytes(8), "UTF-8"),
        (header(tensors=1) + text("t") + struct.pack("<IQIQ", 1, 32, 77, 0), "unknown format"),
        (header(tensors=1) + text("t") + struct.pack("<IQIQ", 1, 31, 3, 0), "not whole"),
        (header(tensors=1) + text("t") + struct.pack("<IQIQ", 1, 32, 3, 5), "not whole"),
        (header(tensors=1) + text("t") + struct.pack("<I", 9), "9 dimensions"),
        (
            header(pairs=1) + text("general.alignment") + struct.pack("<II", 4, 24),
            "power of two",
        ),
    ],
)
def test_hostile_headers(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content.ljust(24, b"\0"))
    with pytest.raises(CheckpointError, match=message):
        read_gguf(path)


def test_overlapping_tensors(tmp_path: Path) -> None:
    info = b"".join(
        text(name) + struct.pack("<IQIQ", 1, 16, 0, offset)
        for name, offset in (("a", 0), ("b", 32))
    )
    path = tmp_path / "overlap.gguf"
    path.write_bytes(header(tensors=2) + info + bytes(512))
    with pytest.raises(CheckpointError, match="overlaps"):
        read_gguf(path)


@pytest.mark.parametrize(
    ("change", "tensors", "message"),
    [
        ({"general.architecture": "mamba"}, (), "mamba"),
        ({"llama.attention.sliding_window": 128}, (), "window"),
        ({}, ("rope_freqs.weight",), "rope_freqs"),
        ({"llama.rope.scaling.type": "longrope"}, (), "longrope"),
        ({"llama.attention.value_length": 8}, (), "different widths"),
        ({"llama.embedding_length": None}, (), "embedding_length"),
        ({"llama.block_count": 0}, (), "block_count"),
    ],
)
def test_what_is_not_computed_is_refused(
    file: Path, change: dict[str, object], tensors: tuple[str, ...], message: str
) -> None:
    metadata = {**read_gguf(file).metadata, **change}
    with pytest.raises(CheckpointError, match=message):
        model_config_from_gguf(metadata, tensors)


def test_yarn_in_a_gguf_file_is_applied_once(file: Path) -> None:
    metadata = read_gguf(file).metadata | {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 32,
        "llama.context_length": 128,
    }
    config = model_config_from_gguf(metadata, ())
    assert (config.max_position, config.rope.scaling) == (128, "yarn")


@pytest.mark.parametrize("value", [1e-5, 1e-6, 10_000.0, 5e5, 0.1])
def test_floats_are_read_as_they_were_written(value: float) -> None:
    (single,) = struct.unpack("<f", struct.pack("<f", value))
    assert shortest_float(single) == value


METADATA_KEYS = (
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length"),
    *("attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base"),
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"),
)
VALUES = (
    st.integers(-(2**40), 2**40)
    | st.floats()
    | st.booleans()
    | st.text(max_size=6)
    | st.lists(st.integers(0, 9), max_size=3)
)


@settings(deadline=None, max_examples=300)
@given(key=st.sampled_from(METADATA_KEYS), value=VALUES, scaling=st.sampled_from(["none", "yarn"]))
def test_any_metadata_is_read_or_refused(
    metadata: dict[str, Any], key: str, value: object, scaling: str
) -> None:
    changed = {"llama.rope.scaling.type": scaling, "llama.rope.scaling.factor": 2.0}
    try:
        model_config_from_gguf({**metadata, **changed, f"llama.{key}": value}, ())
    except CheckpointError as error:
        assert error.problems
