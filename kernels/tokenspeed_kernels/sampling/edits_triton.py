"""What is changed in logits before a draw, changed wherever they are read: nothing is written, so
the logits stay the model's own, and rows without edits are read as ever."""

# Triton functions are untyped: the compiler gives their arguments their types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def edits_of(
    row, SLOTS, COUNTS, REPETITION, PRESENCE, FREQUENCY, BIASED, BIAS, MASK_OF, MASKS,
    vocab_size, words,
):  # fmt: skip
    """Those of a row, for `read`; see `op.Edits`."""
    repetition, presence = tl.load(REPETITION + row), tl.load(PRESENCE + row)
    frequency, biased = tl.load(FREQUENCY + row), tl.load(BIASED + row)
    state, mask = tl.load(SLOTS + row) * vocab_size, tl.load(MASK_OF + row)
    return COUNTS, repetition, presence, frequency, BIAS, biased, state, MASKS, mask, words


@triton.jit
def _edited(x, token, inside, first, edits):
    COUNTS, repetition, presence, frequency, BIAS, biased, state, MASKS, mask, words = edits
    penalised = (repetition != 1.0) | (presence != 0.0) | (frequency != 0.0)
    if first is not None:
        # Both at once, not one behind the other.
        counts = tl.load(COUNTS + state + token, mask=inside & penalised, other=0,
                       eviction_policy="evict_first")  # fmt: skip
        allowed = _allowed_side_by_side(MASKS + mask * words, words, mask >= 0, first, token.shape)
    if penalised:
        if first is None:
            counts = tl.load(COUNTS + state + token, mask=inside, other=0,
                           eviction_policy="evict_first")  # fmt: skip
        count = (counts & 0x7FFF).to(tl.float32)
        repeated = x * tl.where(x > 0.0, 1.0 / repetition, repetition)
        x = tl.where(counts != 0, repeated, x) - tl.where(count > 0.0, presence, 0.0)
        x = tl.fma(tl.zeros_like(x) - frequency, count, x)
    if biased != 0.0:
        x += tl.load(BIAS + state + token, mask=inside, other=0.0, eviction_policy="evict_first")
    if mask >= 0:
        if first is None:
            word = tl.load(MASKS + mask * words + token // 32, mask=inside, other=0)
            allowed = (word >> (token % 32)) & 1
        x = tl.where(allowed != 0, x, float("-inf"))
    return x


@triton.jit
def _allowed_side_by_side(MASK, words, masked, first, shape: tl.constexpr):
    """Not 0 where the bit of a token from `first` on is set, if they are `masked`."""
    # Four side by side, which one thread has, ask once for their word.
    four = first + tl.arange(0, shape[0] // 4) * 4
    bits = tl.load(MASK + four // 32, mask=(four // 32 < words) & masked, other=0)
    bits = bits >> (four % 32)
    bits = tl.join(tl.join(bits & 1, bits & 4), tl.join(bits & 2, bits & 8))
    return tl.reshape(bits, shape)


@triton.jit
def edited(x, logits, token, inside, first=None):
    """The logits `x` of some tokens as their row is drawn by; `first`: of tokens that follow each
    other. The same to the bit wherever they are read: a bound that was found in one place holds in
    another."""
    if len(logits) == 2:
        x = _edited(x, token, inside, first, logits[1])
    return x


@triton.jit
def number(x):
    """`x`, or -inf where it is none: what is read has an order."""
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def read(logits, token, inside, first=None):
    """A row's logits of some tokens as it is drawn by, -inf where they are not `inside` or no
    numbers. `logits`: where the row lies, and its edits where there are any. `first`: see
    `edited`."""
    x = tl.load(logits[0] + token, mask=inside, other=float("-inf"))
    return number(edited(x, logits, token, inside, first))
