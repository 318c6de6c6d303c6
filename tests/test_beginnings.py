"""What a text begins with like an earlier one, and nothing that it does not."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenspeed.beginnings import Beginnings

CHUNK = 4
TEXTS = st.lists(st.sampled_from(["aaaa", "bbbb", "ab", "c"]), max_size=8).map("".join)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXTS, st.sampled_from([b"one", b"two"])), max_size=12))
def test_what_is_found_was_kept_and_begins_alike(asked: list[tuple[str, bytes]]) -> None:
    memory: Beginnings[str, int] = Beginnings(CHUNK, 60)
    kept: dict[int, tuple[str, bytes]] = {}
    for number, (text, space) in enumerate(asked):
        found = memory.find(text, space)
        if found.value is None:
            assert found.shared == 0
        else:
            earlier, its_space = kept[found.value]
            assert its_space == space
            assert found.shared >= CHUNK
            assert text[: found.shared] == earlier[: found.shared]
            # To the last character, within the chunk that differs.
            rest = text[found.shared :], earlier[found.shared :]
            assert not all(rest) or rest[0][0] != rest[1][0] or found.shared % CHUNK == 0
        kept[number] = text, space
        for gone in memory.keep(text, found, number, len(text), space):
            del kept[gone]
        assert memory.held_bytes <= 60


def test_the_one_that_shares_most_is_found() -> None:
    memory: Beginnings[bytes, int] = Beginnings(CHUNK, 1000)
    for number, text in enumerate((b"aaaabbbb", b"aaaabbbbccccdd", b"aaaacccc")):
        memory.keep(text, memory.find(text), number, len(text))
    assert (memory.find(b"aaaabbbbccccddee").value, memory.find(b"aaaabbbbccccddee").shared) == (
        1,
        14,
    )
    assert memory.find(b"aaaaccccdddd").value == 2
    assert memory.find(b"baaaaccccdddd").value is None
    assert memory.find(b"aaa").value is None


def test_a_longer_one_takes_the_place_of_what_it_goes_on_from() -> None:
    memory: Beginnings[bytes, str] = Beginnings(CHUNK, 1000)
    memory.keep(b"aaaabbbb", memory.find(b"aaaabbbb"), "short", 8)
    found = memory.find(b"aaaabbbbccccdddd")
    assert memory.keep(b"aaaabbbbccccdddd", found, "long", 16) == ["short"]
    assert memory.held_bytes == 16
    # A branch that leaves earlier stands beside it.
    branch = memory.find(b"aaaabbbbeeeeeeee")
    assert (branch.value, branch.shared) == ("long", 8)
    assert memory.keep(b"aaaabbbbeeeeeeee", branch, "branch", 16) == []


def test_equal_hashes_are_not_taken_for_equal_texts() -> None:
    memory: Beginnings[bytes, int] = Beginnings(CHUNK, 1000)
    memory.keep(b"aaaabbbb", memory.find(b"aaaabbbb"), 1, 8)
    for mark in memory.find(b"ccccdddd").marks:
        memory._at[mark] = 1
    assert memory.find(b"ccccdddd").value is None


def test_what_was_used_longest_ago_is_forgotten_first() -> None:
    memory: Beginnings[bytes, str] = Beginnings(CHUNK, 20)
    for text in (b"aaaaaaaa", b"bbbbbbbb"):
        memory.keep(text, memory.find(text), text.decode(), 8)
    memory.find(b"aaaaaaaa")
    assert memory.keep(b"cccccccc", memory.find(b"cccccccc"), "c", 8) == ["bbbbbbbb"]
    assert memory.keep(b"dddddddd", memory.find(b"dddddddd"), "d", 21) == []
    assert memory.find(b"dddddddd").value is None
