"""Philox4x32-10 in torch, in 64-bit integers. Source: see `op`."""

from __future__ import annotations

import torch

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW = 0xFFFFFFFF

Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def philox(counter: Words, key: tuple[torch.Tensor, torch.Tensor]) -> Words:
    """Four words of random bits; every tensor is int64 with values in [0, 2^32), and they
    broadcast against each other."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        # Products wrap in int64; both halves are right after the mask.
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _LOW) ^ c1 ^ k0,
            p1 & _LOW,
            ((p0 >> 32) & _LOW) ^ c3 ^ k1,
            p0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return c0, c1, c2, c3


def token_bits(seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """The 32 random bits of every token, int64 [B, vocab_size]; seeds, positions [B] int64."""
    groups = torch.arange((vocab_size + 3) // 4, device=seeds.device)
    seed, position = seeds.unsqueeze(1), positions.unsqueeze(1)
    words = philox(
        (groups, position & _LOW, (position >> 32) & _LOW, torch.zeros_like(groups)),
        (seed & _LOW, (seed >> 32) & _LOW),
    )
    return torch.stack(words, dim=-1).flatten(1)[:, :vocab_size]
