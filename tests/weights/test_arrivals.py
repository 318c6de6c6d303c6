"""Tensors on their way to a device: the right bytes in the right order, bounded, and stopped by
whatever goes wrong on either side."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
import torch

from tests.rigs.late_road import LateRoad
from tokenspeed.errors import CheckpointError
from tokenspeed.weights.arrivals import Arrivals, Flow
from tokenspeed.weights.stored import Stored

LITTLE = Flow(readers=3, slots_each=2, slot_bytes=512, parcel_bytes=1024, ahead_bytes=4096)


def scatter(folder: Path, sizes: list[int], files: int = 3) -> list[Stored]:
    """Tensors of those sizes in random order in files of random bytes."""
    drawn = random.Random(len(sizes))
    ends = [8] * files
    order = []
    for size in sizes:
        file = drawn.randrange(files)
        order.append(Stored(folder / f"{file}.bin", "uint8", (size,), ends[file], size))
        ends[file] += size
    for file, end in enumerate(ends):
        (folder / f"{file}.bin").write_bytes(drawn.randbytes(end))
    drawn.shuffle(order)
    return order


def nobody(done: int, total: int) -> None:
    pass


@pytest.mark.parametrize(
    "sizes",
    [
        [],
        [1],
        [513, 512, 511, 1, 1024, 1025, 3],
        [20_000, 5, 20_000],  # larger than all that may be ahead
        [7] * 700,
    ],
)
def test_every_tensor_arrives_whole_and_in_turn(sizes: list[int], tmp_path: Path) -> None:
    order = scatter(tmp_path, sizes)
    seen: list[tuple[int, int]] = []
    road = LateRoad()
    with Arrivals(order, road, lambda done, total: seen.append((done, total)), LITTLE) as arrivals:
        for tensor in order:
            assert torch.equal(arrivals.take(tensor), tensor.read())
    assert road.closed and road.slot_bytes <= 6 * 512
    assert road.most_allocated <= max(4096, *sizes, 0)
    assert seen == sorted(seen) and set(seen[-1:]) <= {(sum(sizes), sum(sizes))}
    assert bool(seen) == bool(sizes)


def test_nothing_is_read_further_ahead_than_allowed(tmp_path: Path) -> None:
    order = scatter(tmp_path, [1000] * 50)
    road = LateRoad()
    with Arrivals(order, road, nobody, LITTLE) as arrivals:
        arrivals.take(order[0])
    assert road.most_allocated <= 4096


def test_a_file_that_was_cut_off_is_named(tmp_path: Path) -> None:
    order = scatter(tmp_path, [600] * 40)
    victim = order[20]
    whole = victim.path.read_bytes()
    road = LateRoad()
    with (
        pytest.raises(CheckpointError, match=victim.path.name),
        Arrivals(order, road, nobody, LITTLE) as arrivals,
    ):
        victim.path.write_bytes(whole[: victim.offset + 1])
        for tensor in order:
            arrivals.take(tensor)
    assert road.closed
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights-")]


@pytest.mark.parametrize(("left", "why"), [("nothing", "No such file"), ("a folder", "directory")])
def test_a_file_that_cannot_be_read_is_named(left: str, why: str, tmp_path: Path) -> None:
    order = scatter(tmp_path, [600] * 40)
    victim = order[3].path
    victim.unlink()
    if left == "a folder":
        victim.mkdir()
    road = LateRoad()
    with (
        pytest.raises(CheckpointError, match=f"{victim.name} cannot be read: .*{why}"),
        Arrivals(order, road, nobody, LITTLE) as arrivals,
    ):
        for tensor in order:
            arrivals.take(tensor)
    assert road.closed
    with pytest.raises(CheckpointError, match=f"{victim.name} cannot be read: .*{why}"):
        order[3].read()


def test_who_is_told_to_stop_while_it_waits_leaves_no_reader_behind(tmp_path: Path) -> None:
    order = scatter(tmp_path, [600] * 40)

    def told(done: int, total: int) -> None:
        raise SystemExit(0)

    with pytest.raises(SystemExit), Arrivals(order, LateRoad(), told, LITTLE) as arrivals:
        arrivals.take(order[0])
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("weights-")]
