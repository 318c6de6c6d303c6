"""Merging keeps everything that was said."""

from __future__ import annotations

from tokenspeed.engine.answer import merged
from tokenspeed.request import Delta, FinishReason, TokenLogprobs


def test_one_delta_is_itself() -> None:
    delta = Delta(request_id=1, tokens=(1, 2))
    assert merged([delta]) is delta


def test_merged_says_what_the_parts_said() -> None:
    scored = TokenLogprobs(3, -0.5)
    parts = [
        Delta(request_id=1, cached_tokens=32, prompt_logprobs=(None, scored), tokens=(1,)),
        Delta(request_id=1, tokens=(2, 3), logprobs=(scored,)),
        Delta(request_id=1, finish_reason=FinishReason.ERROR, error="why"),
    ]
    assert merged(parts) == Delta(
        request_id=1,
        tokens=(1, 2, 3),
        logprobs=(scored,),
        cached_tokens=32,
        prompt_logprobs=(None, scored),
        finish_reason=FinishReason.ERROR,
        error="why",
    )
