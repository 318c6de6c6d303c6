"""Prompts arrive whole, however little of them is sent."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenspeed.engine.shipping import CHUNK_BYTES, Shipping
from tokenspeed.request import Request, SamplingParams
from tokenspeed.wire import Submit, decode_from_front, encode_to_worker
from tokenspeed.worker.prompts import Prompts

CHUNK = CHUNK_BYTES // 4


def request(tokens: bytes, salt: bytes = b"") -> Request:
    return Request(request_id=1, tokens=tokens, max_tokens=1, sampling=SamplingParams(), salt=salt)


def random_tokens(count: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(4 * count)


def carried(message: Submit) -> Submit:
    """What comes out at the other end of the wire."""
    body = decode_from_front(encode_to_worker(message, "f")).body
    assert isinstance(body, Submit)
    return body


TURNS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4 * CHUNK), st.integers(1, 3 * CHUNK)),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(turns=TURNS, most=st.sampled_from([3, 6, 40]))
def test_every_prompt_arrives_whole(turns: list[tuple[int, int, int]], most: int) -> None:
    """Conversations grow, are cut and branch; both sides forget in step."""
    shipping, prompts = Shipping(most * CHUNK_BYTES), Prompts(2 * most * CHUNK_BYTES)
    talks = [random_tokens(CHUNK // 2, seed) for seed in range(6)]
    for which, keep, more in turns:
        talks[which] = talks[which][: 4 * keep] + random_tokens(more, keep)
        message = carried(shipping.submit(request(talks[which])))
        whole = prompts.whole("f", message)
        assert whole is not None
        assert whole == request(talks[which])


def test_a_turn_is_sent_as_what_is_new() -> None:
    shipping = Shipping()
    talk = random_tokens(50_000, 1)
    assert shipping.submit(request(talk)).request.tokens == talk
    message = shipping.submit(request(talk + random_tokens(800, 2)))
    assert len(message.request.tokens) // 4 <= 800 + CHUNK
    assert message.shared + len(message.request.tokens) // 4 == 50_800
    # Siblings of one prompt, and a short one that is not worth it.
    again = shipping.submit(request(talk))
    assert len(again.request.tokens) < CHUNK_BYTES
    assert shipping.submit(request(b"\1\0\0\0")) == Submit(request(b"\1\0\0\0"))


def test_nothing_is_left_out_that_only_another_one_sent() -> None:
    shipping = Shipping()
    talk = random_tokens(50_000, 1)
    for salt in (b"one", b"two"):
        assert shipping.submit(request(talk, salt)).request.tokens == talk
    for salt in (b"one", b"two"):
        assert shipping.submit(request(talk, salt)).request.tokens == b""


def test_the_worker_refuses_what_it_does_not_know() -> None:
    prompts = Prompts()
    assert prompts.whole("f", Submit(request(b""), 0, 7, 1)) is None
    kept = prompts.whole("f", Submit(request(b"\1\0\0\0"), 7))
    assert kept is not None
    assert prompts.whole("f", Submit(request(b""), 0, 7, 2)) is None
    assert prompts.whole("g", Submit(request(b""), 0, 7, 1)) is None
    prompts.drop("f")
    assert prompts.whole("f", Submit(request(b""), 0, 7, 1)) is None
