"""C13 (characters split over tokens) and C14 (stop strings) as properties."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tokenspeed.tokenizer.pieces import Pieces, byte_names
from tokenspeed.tokenizer.stream import Detokenizer, StopMatch, StopMatcher, decode


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    names = byte_names()
    return [tokenizer.token_to_id(names[byte]) for byte in data]


def pushed(pieces: Pieces, tokens: list[int]) -> list[str]:
    stream = Detokenizer(pieces)
    return [*(stream.push(token) for token in tokens), stream.finish()]


@given(data=st.binary(max_size=40))
def test_joined_deltas_equal_the_decode_of_all_ids(tokenizer: Tokenizer, data: bytes) -> None:
    ids = byte_ids(tokenizer, data)
    pieces = Pieces(tokenizer)
    assert "".join(pushed(pieces, ids)) == tokenizer.decode(ids)
    assert decode(pieces, ids) == data.decode(errors="replace")


@given(ids=st.lists(st.integers(0, 700), max_size=60))
def test_any_ids_decode_as_the_tokenizer_does(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert decode(Pieces(tokenizer), ids) == tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("data", "deltas"),
    [
        (b"\xf0\x9f\xa6\x99", ["", "", "", "\U0001f999", ""]),
        (b"\xe4\xbd\xa0", ["", "", "你", ""]),
        (b"a\xf0\x9f", ["a", "", "", "�"]),
        (b"\xef\xbf\xbd", ["", "", "�", ""]),
        (b"\xa6\x99", ["�", "�", ""]),
    ],
)
def test_c13_never_half_a_character(tokenizer: Tokenizer, data: bytes, deltas: list[str]) -> None:
    assert pushed(Pieces(tokenizer), byte_ids(tokenizer, data)) == deltas


def test_control_tokens_are_no_text(tokenizer: Tokenizer) -> None:
    pieces = Pieces(tokenizer)
    user, think = tokenizer.token_to_id("<|user|>"), tokenizer.token_to_id("<think>")
    assert pieces.text_bytes(user) == b""
    assert pieces.raw_bytes(user) == b"<|user|>"
    assert pieces.text_bytes(think) == b"<think>"
    assert pieces.raw_bytes(10**6) == b""


def sentencepiece() -> Tokenizer:
    from tokenizers import decoders, models

    vocab = {"<unk>": 0, "▁He": 1, "llo": 2, "▁": 3, "<0xF0>": 4, "<0x9F>": 5, "<0xA6>": 6}
    vocab |= {"<0x99>": 7, "▁you": 8}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


@given(ids=st.lists(st.sampled_from([1, 2, 3, 8]), max_size=12), llama=st.booleans())
def test_sentencepiece_spelling(ids: list[int], llama: bool) -> None:
    tokenizer = sentencepiece()
    ids = [*ids, 4, 5, 6, 7] if llama else ids
    assert "".join(pushed(Pieces(tokenizer), ids)) == tokenizer.decode(ids)


def run(stops: list[str], pieces: list[str], include: bool = False) -> tuple[str, str | None]:
    """What reaches the client, and the stop string that ended it."""
    matcher = StopMatcher(stops, include)
    sent = ""
    for piece in pieces:
        match matcher.push(piece):
            case StopMatch(stop, text):
                return sent + text, stop
            case str(text):
                sent += text
    return sent + matcher.finish(), None


SCRIPT = ["ab", "cST", "OP", "def"]


@pytest.mark.parametrize(
    ("stops", "include", "sent", "stop"),
    [
        (["STOP"], False, "abc", "STOP"),
        (["STOP"], True, "abcSTOP", "STOP"),
        (["STOPX"], False, "abcSTOPdef", None),
        (["TO"], False, "abcS", "TO"),
        (["c", "cS"], False, "ab", "cS"),
        (["b"], True, "ab", "b"),
        (["zzz", "f", "STO", "xx"], False, "abc", "STO"),
        (["fX"], False, "abcSTOPdef", None),
    ],
)
def test_c14_script(stops: list[str], include: bool, sent: str, stop: str | None) -> None:
    assert run(stops, SCRIPT, include) == (sent, stop)


def test_withheld_text_is_released_as_soon_as_it_cannot_match() -> None:
    matcher = StopMatcher(["aab"])
    assert [matcher.push(piece) for piece in "aaac"] == ["", "", "a", "aac"]


small = st.text(alphabet="ab", max_size=12)


@given(text=small, stop=st.text(alphabet="ab", min_size=1, max_size=5), cuts=st.data())
def test_one_stop_is_found_wherever_the_text_is_cut(
    text: str, stop: str, cuts: st.DataObject
) -> None:
    places = sorted(cuts.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in pairwise([0, *places, len(text)])]
    sent, matched = run([stop], pieces)
    place = text.find(stop)
    assert (sent, matched) == ((text, None) if place < 0 else (text[:place], stop))


@given(
    pieces=st.lists(small, max_size=6),
    stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_several_stops_follow_the_rule(pieces: list[str], stops: list[str]) -> None:
    """Plain search after each piece: earliest, then longest."""
    expected: tuple[str, str | None] = ("".join(pieces), None)
    seen = ""
    for piece in pieces:
        seen += piece
        found = [(seen.find(stop), -len(stop), stop) for stop in stops if stop in seen]
        if found:
            place, _, stop = min(found)
            expected = (seen[:place], stop)
            break
    assert run(stops, pieces) == expected
