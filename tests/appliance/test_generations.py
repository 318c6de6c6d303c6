"""The life of generations, with a clock of the test's own."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tokenspeed.appliance.generations import RECIPE, GenerationError, Generations, acting_for


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def generations(tmp_path: Path, clock: Clock) -> Generations:
    """Two: the first confirmed, the second added."""
    it = Generations(tmp_path / "demo", clock)
    (tmp_path / "demo").mkdir()
    assert not it.exist
    for number in (1, 2):
        assert it.add({RECIPE: f"number: {number}\n"}) == number
    it.select(1, None)
    assert it.begin() == 1
    it.ready()
    return it


def test_the_first_one_is_confirmed_by_being_ready(generations: Generations) -> None:
    assert generations.current == 1
    assert generations.state().confirmed == (1,)
    assert generations.state().trial is None
    assert generations.recipe(1).read_text() == "number: 1\n"


def test_one_that_is_not_ready_gives_way_whoever_starts_next(generations: Generations) -> None:
    generations.select(2, None)
    assert generations.begin() == 2  # and it is killed
    assert generations.begin() == 1
    last = generations.state().last
    assert last is not None
    assert (last.generation, last.reason) == (2, "it ended while it was not ready")


def test_one_that_is_stopped_on_purpose_is_tried_again(generations: Generations) -> None:
    generations.select(2, None)
    assert generations.begin() == 2
    generations.put_off()
    assert generations.begin() == 2


def test_a_trial_is_confirmed_or_lapses(generations: Generations, clock: Clock) -> None:
    generations.select(2, 60.0)
    with pytest.raises(GenerationError):
        generations.confirm()  # not ready yet
    generations.begin()
    assert generations.remaining() is None
    generations.ready()
    clock.now += 10
    assert generations.remaining() == 50.0
    assert generations.confirm() == 2
    assert generations.remaining() is None
    assert generations.state().confirmed == (1, 2)
    with pytest.raises(GenerationError):
        generations.confirm()


def test_one_that_crashes_on_trial_gives_way(generations: Generations) -> None:
    generations.select(2, 60.0)
    generations.begin()
    generations.ready()
    assert generations.begin() == 1


def test_the_only_one_gives_way_to_nobody(tmp_path: Path) -> None:
    it = Generations(tmp_path)
    it.add({RECIPE: ""})
    it.select(1, None)
    it.begin()
    assert not it.fall_back("it failed")
    assert it.begin() == 1
    with pytest.raises(GenerationError):
        it.previous()


def test_a_rollback_leads_to_the_one_before(generations: Generations) -> None:
    generations.select(2, None)
    generations.begin()
    generations.ready()
    assert generations.previous() == 1
    with pytest.raises(GenerationError, match="no generation 9"):
        generations.select(9, None)


def test_what_no_rollback_leads_to_is_deleted(tmp_path: Path) -> None:
    it = Generations(tmp_path)
    for number in range(1, 9):
        it.add({RECIPE: ""})
        it.select(number, None)
        it.begin()
        it.ready()
    assert it.numbers() == [4, 5, 6, 7, 8]
    it.add({RECIPE: ""})
    it.select(9, None)
    it.begin()
    assert it.fall_back("it failed")
    assert it.collect() == []  # the failed one stays, to be looked into
    assert it.numbers()[-1] == 9


def test_a_torn_write_leaves_the_state_before(generations: Generations) -> None:
    (generations.root / "state.json.new").write_bytes(b'{"confirmed": [')
    (generations.root / "generations" / ".new-x").mkdir()
    assert generations.state().confirmed == (1,)
    assert generations.numbers() == [1, 2]


def test_acting_for_oneself_changes_nothing(tmp_path: Path) -> None:
    with acting_for(tmp_path):
        (tmp_path / "file").touch()
    assert (tmp_path / "file").stat().st_uid == tmp_path.stat().st_uid


@pytest.mark.parametrize("left", [0, 1, 40])
def test_a_damaged_state_loses_the_way_back_and_not_what_runs(
    generations: Generations, left: int
) -> None:
    generations.select(2, None)
    path = generations.root / "state.json"
    path.write_bytes(path.read_bytes()[:left])
    assert generations.begin() == 2
    assert generations.state().confirmed == (2,)
    generations.select(1, None)  # and from there on as ever
    generations.begin()
    generations.ready()
    assert generations.state().confirmed == (2, 1)


def test_no_room_is_said_and_changes_nothing(generations: Generations) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(GenerationError, match="cannot be changed"):
            generations.select(2, None)
        with pytest.raises(GenerationError, match="cannot be changed"):
            generations.add({RECIPE: "number: 3\n"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert generations.state().confirmed == (1,)
    assert generations.numbers() == [1, 2]
