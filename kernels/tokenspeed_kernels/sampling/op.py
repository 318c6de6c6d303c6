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

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Sample(Protocol):
    """`logits` [B, V] float32 to tokens [B] int32. `logits` may hold -inf, but not
    in a whole row, and never nan.

    Per row: `temperature` f32 (0: the largest logit, lowest id on a tie; nothing else matters),
    `top_k` i32 (0: all), `top_p` f32 (1: all), `min_p` f32 (0: all), `seeds` i64 (64 random bits),
    `positions` i64 (of the token to be drawn). `logits` are left alone.
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
    ) -> torch.Tensor: ...


class ApplyPenalties(Protocol):
    """Changes `logits` [B, V] float32 in place.

    State of S slots: `prompt_seen` [S, V] bool, `output_counts` [S, V] int32; row b uses slot
    slots[b] (int64). In this order: where a token was seen in prompt or output, a positive logit
    is divided by repetition[b] and another multiplied; then presence[b] is taken off where the
    output has the token, and frequency[b] times its count there. Neutral: 1, 0, 0.
    """

    def __call__(
        self,
        logits: torch.Tensor,
        prompt_seen: torch.Tensor,
        output_counts: torch.Tensor,
        slots: torch.Tensor,
        repetition: torch.Tensor,
        presence: torch.Tensor,
        frequency: torch.Tensor,
    ) -> None: ...


class ApplyBitmask(Protocol):
    """Sets to -inf, in place, what a row may not draw.

    `logits` [B, V] float32; `masks` [G, ceil(V / 32)] int32: bit v % 32 of word v // 32 is 1 where
    token v may be drawn; mask g is that of row rows[g] (int64, all different). Other rows are left
    alone, bits beyond V are not looked at.
    """

    def __call__(self, logits: torch.Tensor, masks: torch.Tensor, rows: torch.Tensor) -> None: ...


class LogSoftmaxTopk(Protocol):
    """`logits` [B, V] float32, `chosen` [B] int32 and k to the log-probability of the chosen
    token [B], and the k largest [B, k] with their ids [B, k] int32, largest first, lowest id
    first among equals. k from 0 to V."""

    def __call__(
        self, logits: torch.Tensor, chosen: torch.Tensor, k: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...
