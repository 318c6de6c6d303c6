"""Headers prove the files whole before a weight is used (cases C06 and C07)."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.rigs.rand import build_rand
from tokenspeed.checkpoint.safetensors import INDEX_NAME, TensorEntry, read_header, read_index
from tokenspeed.errors import CheckpointError


def pack(header: Any, data: bytes, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


TWO = {"a": entry("F32", [2, 3], 0, 24), "b": entry("BF16", [4], 24, 32)}
WHOLE = pack(TWO, bytes(32))


def refusal(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_header(path)
    return str(caught.value)


def test_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(WHOLE)
    begin = len(WHOLE) - 32
    assert read_header(path) == {
        "a": TensorEntry("model.safetensors", "F32", (2, 3), begin, begin + 24),
        "b": TensorEntry("model.safetensors", "BF16", (4,), begin + 24, begin + 32),
    }


def test_the_format_s_own_writer(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    written = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "y": np.zeros((0, 4), np.int8)}
    save_file(written, path, metadata={"format": "pt"})
    header = read_header(path)
    raw = path.read_bytes()[header["x"].begin : header["x"].end]
    assert np.array_equal(np.frombuffer(raw, np.float32).reshape(2, 3), written["x"])
    assert header["y"].shape == (0, 4)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut", WHOLE[:-8], f"expected {len(WHOLE)} bytes, found {len(WHOLE) - 8}"),
        ("longer", WHOLE + bytes(8), f"expected {len(WHOLE)} bytes, found {len(WHOLE) + 8}"),
        ("no header", pack(b"", bytes(32)), "header of 0 bytes"),
        ("header past the end", pack(TWO, bytes(32), length=10_000), "header of 10000 bytes"),
        ("header of zeros", pack(bytes(64), bytes(32)), "not JSON"),
        ("header of 2^63", pack(TWO, bytes(32), length=2**63), f"header of {2**63} bytes"),
        ("empty", b"", "too few"),
        ("five bytes", b"12345", "too few"),
    ],
)
def test_truncated_and_grown_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    """C06: refused with the file, the expected and the actual bytes."""
    path = tmp_path / "model-00001-of-00002.safetensors"
    path.write_bytes(content)
    text = refusal(path)
    assert "model-00001-of-00002.safetensors" in text
    assert message in text


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [2], 4, 12)}, "overlaps"),
        ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 12, 16)}, "gap"),
        ({"a": entry("F32", [2], 8, 16)}, "gap"),
        ({"a": entry("F32", [3], 0, 8)}, "needs 12 bytes, its range has 8"),
        ({"a": entry("F32", [2], 8, 0)}, "needs 8 bytes"),
        ({"a": entry("F3", [2], 0, 8)}, "not described"),
        ({"a": entry("F32", [-2], 0, 8)}, "whole numbers"),
        ({"a": entry("F32", [2.0], 0, 8)}, "whole numbers"),  # type: ignore[list-item]
        ({"a": {"dtype": "F32"}}, "not described"),
        ({"a": 5}, "not described"),
        ([1, 2], "not a JSON object"),
        (b'{"a": {}, "a": {}}', "twice"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_ranges_tile_the_data(tmp_path: Path, header: Any, message: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(pack(header, bytes(16)))
    assert message in refusal(path)


def rename_shard(folder: Path) -> None:
    (folder / "model-00002-of-00003.safetensors").rename(folder / "model-b.safetensors")


def edit_index(folder: Path, change: Callable[[dict[str, str]], None]) -> None:
    path = folder / INDEX_NAME
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


def point_elsewhere(folder: Path) -> None:
    def change(weight_map: dict[str, str]) -> None:
        name = next(n for n, file in weight_map.items() if "00001" in file)
        weight_map[name] = "model-00003-of-00003.safetensors"

    edit_index(folder, change)


def add_name(folder: Path) -> None:
    edit_index(folder, lambda names: names.update(ghost="model-00001-of-00003.safetensors"))


def forget_name(folder: Path) -> None:
    edit_index(folder, lambda names: names.pop("model.norm.weight") and None)


def repeat_tensor(folder: Path) -> None:
    path = folder / "model-00001-of-00003.safetensors"
    save_file({**load_file(path), "model.norm.weight": np.ones(64, np.float32)}, path)


@pytest.mark.parametrize(
    ("breakage", "code", "message"),
    [
        (
            lambda folder: (folder / "model-00002-of-00003.safetensors").unlink(),
            "TS-W021",
            "model-00002-of-00003.safetensors, which is missing",
        ),
        (point_elsewhere, "TS-W024", "it is in model-00001"),
        (add_name, "TS-W024", "no file holds it"),
        (forget_name, "TS-W024", "does not name: model.norm.weight"),
        (repeat_tensor, "TS-W022", "model.norm.weight"),
        (rename_shard, "TS-W021", "which is missing"),
        (rename_shard, "TS-W023", "model-b.safetensors is not in the index"),
        (lambda folder: (folder / INDEX_NAME).unlink(), "TS-W021", "neither"),
        (lambda folder: (folder / INDEX_NAME).write_text("{"), "TS-W020", "not an index"),
        (
            lambda folder: (folder / INDEX_NAME).write_text('{"weight_map": {"a": "../x"}}'),
            "TS-W020",
            "no file name",
        ),
    ],
)
def test_index_and_shards_agree(
    tmp_path: Path, breakage: Callable[[Path], None], code: str, message: str
) -> None:
    """C07 a, b, c, e."""
    folder = build_rand(tmp_path / "model", shards=3)
    assert len(read_index(folder).file_bytes) == 3
    breakage(folder)
    with pytest.raises(CheckpointError) as caught:
        read_index(folder)
    found = [p for p in caught.value.problems if p.code == code]
    assert any(message in problem.message for problem in found), caught.value
