"""What a step picks, by slot, of that which lasts longer than it: in torch, on any device.

On a GPU `picks_triton` does the same in half as many kernels, of 1 to 2 us each; torch's take up to
13 us where few rows are long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class Drawing:
    """Parameters of the rows that are drawn: `floats` float32 [n, S], `top_k` int32 [S], `seeds`
    int64 [S]."""

    floats: torch.Tensor
    top_k: torch.Tensor
    seeds: torch.Tensor


class Picks(Protocol):
    """Axes: R rows of the step, T tokens, S slots in all (B of them in the step), W columns."""

    def tables(
        self, tables: torch.Tensor, begins: Sequence[int], width: int, slots: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Columns `begin` to `begin + width` of `tables` int32 [S, all columns] in the rows `slots`
        int32 [R], as a new int32 [R, W] for each of `begins`."""

    def tokens(self, tokens: torch.Tensor, slots: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        """`tokens` int32 [T], with what `last` int32 [S] has at their `slots` int32 [T] in place
        of the negative ones."""

    def drawing(self, kept: Drawing, count: int, slots: torch.Tensor) -> Drawing:
        """The first `count` floats and the others of the `slots` int64 [B]."""

    def write(self, kept: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
        """Writes `values` int32 [N] to `kept` int32 [any] at `places` int64 [N]: to the same place
        the same value, unless nobody reads it."""


class TorchPicks:
    """See `Picks`."""

    def tables(
        self, tables: torch.Tensor, begins: Sequence[int], width: int, slots: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        return tuple(tables.narrow(1, begin, width).index_select(0, slots) for begin in begins)

    def tokens(self, tokens: torch.Tensor, slots: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        return torch.where(tokens < 0, last.index_select(0, slots), tokens)

    def drawing(self, kept: Drawing, count: int, slots: torch.Tensor) -> Drawing:
        return Drawing(
            kept.floats[:count].index_select(1, slots),
            kept.top_k.index_select(0, slots),
            kept.seeds.index_select(0, slots),
        )

    def write(self, kept: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
        kept.index_copy_(0, places, values)


TORCH_PICKS = TorchPicks()
