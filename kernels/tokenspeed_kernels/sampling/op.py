"""From logits to tokens: penalties, masks, the draw, log-probabilities.

The draw is Gumbel-max: the token that maximises l[v] - log(-log(u[v])) over the kept tokens,
l being the logits over the temperature. u[v] = (w + 0.5) / 2^32 where w is 32 random bits of
Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
word v % 4 of the output for counter (v // 4, position low half, position high half, 0) under the
key (seed low half, seed high half). So a draw depends on the row's logits and parameters, its
seed, the position and nothing else.

What is kept, each step over what the one before left, ties at a threshold kept:
  top-k  the k largest logits;
  min-p  those with probability >= min_p times the largest probability;
  top-p  the smallest set of likeliest tokens whose probabilities, normalised over what is left,
         reach top_p.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Edits:
    """What changes a row's logits before it is drawn, in this order.

    State of S slots; row b has that of slots[b] (int64 [B]).

    Penalties: `counts` [S, V] int16 says how often a token is in the output, and has its sign bit
    set where the prompt holds it. Where either does, a positive logit is divided by repetition[b]
    and another multiplied; then presence[b] is taken off where the output has the token, and
    frequency[b] times its count there. All float32 [B], neutral: 1, 0, 0.
    Bias: `bias` [S, V] float32 is added where biased[b] (float32) is not 0.
    Bitmask: -inf where bit v % 32 of word v // 32 of masks[mask_of[b]] is 0; `masks` [G, ceil(V /
    32)] int32, `mask_of` [B] int32, -1 for rows without. Bits beyond V are not looked at.
    """

    slots: torch.Tensor
    counts: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    biased: torch.Tensor
    bias: torch.Tensor
    mask_of: torch.Tensor
    masks: torch.Tensor


class Logprobs(NamedTuple):
    """Of N rows: of the chosen tokens float32 [N], and the k largest float32 [N, k] with their ids
    int32 [N, k], largest first, lowest id first among equals."""

    chosen: torch.Tensor
    top_values: torch.Tensor
    top_ids: torch.Tensor


class Drawn(NamedTuple):
    """Tokens int32 [B]; log-probabilities where they were asked for."""

    tokens: torch.Tensor
    logprobs: Logprobs | None


class Sample(Protocol):
    """`logits` [B, V] float32 to tokens. `logits` may hold -inf, but not in a whole row, edited
    or not, and never nan: such a row's token is any of the V. They are left alone.

    Per row: `temperature` f32 (0: the largest logit, lowest id on a tie; nothing else matters),
    `top_k` i32 (0: all), `top_p` f32 (1: all), `min_p` f32 (0: all), `seeds` i64 (64 random bits),
    `positions` i64 (of the token to be drawn). The draw is by logits with `edits`.

    The log-probabilities of `scored_rows` (int64 [N]) and their `num_logprobs` likeliest tokens
    are those of the logits without edits.
    """

    def __call__(
        self,
        logits: torch.Tensor,
        temperature: torch.Tensor,
        top_k: torch.Tensor,
        top_p: torch.Tensor,
        min_p: torch.Tensor,
        seeds: torch.Tensor,
        positions: torch.Tensor,
        edits: Edits | None = None,
        scored_rows: torch.Tensor | None = None,
        num_logprobs: int = 0,
    ) -> Drawn: ...


class LogSoftmaxTopk(Protocol):
    """`logits` [B, V] float32, `chosen` [B] int32 and k, from 0 to V."""

    def __call__(self, logits: torch.Tensor, chosen: torch.Tensor, k: int) -> Logprobs: ...
