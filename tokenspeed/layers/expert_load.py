"""How many tokens each expert was given, counted on the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class ExpertLoad:
    """Counts since the start, of the layers that have experts.

    A step costs a handful of small kernels, however many layers there are; nothing waits for them.
    `layers`: for each layer with experts, which one of the model it is.
    """

    def __init__(self, layers: Sequence[int], num_experts: int, device: torch.device) -> None:
        self.layers = tuple(layers)
        shape = (len(self.layers), num_experts)
        self._counts = torch.zeros(shape, dtype=torch.int64, device=device)
        # Where the counts of each layer begin, against [L, T, k].
        begins = torch.arange(len(self.layers), dtype=torch.int64, device=device) * num_experts
        self._begins = begins.view(-1, 1, 1)
        self._chosen: list[torch.Tensor] = []

    def chose(self, experts: torch.Tensor) -> None:
        """What the next layer of the step chose, int32 [T, k]."""
        self._chosen.append(experts)

    def count(self, slots: torch.Tensor) -> None:
        """Ends a step. `slots` int64 [T] are the tokens' places in the cache: 0, in the block that
        no request has, is padding and not counted. A step of some layers only, which is a
        rehearsal, is not counted either."""
        chosen, self._chosen = self._chosen, []
        if len(chosen) != len(self.layers):
            return
        places = torch.stack(chosen) + self._begins
        tokens = (slots != 0).to(torch.int64).view(1, -1, 1).expand_as(places)
        self._counts.view(-1).scatter_add_(0, places.flatten(), tokens.flatten())

    def read(self) -> tuple[tuple[int, ...], ...]:
        """Tokens by layer and expert. Waits for the device."""
        return tuple(tuple(row) for row in self._counts.tolist())
