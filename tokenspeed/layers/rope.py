"""Tables of the rotary embedding, one row per position."""

from __future__ import annotations

import math

import torch

from tokenspeed.plan import RopeConfig


def cos_sin_table(rope: RopeConfig, length: int, device: torch.device) -> torch.Tensor:
    """float32 [length, rotary_dim]: cosines, then sines, of the first half's angles.

    Nothing may ever look up a position of `length` or more; whoever accepts requests sees to it.
    """
    positions = torch.arange(length, dtype=torch.float32)
    if rope.scaling == "dynamic":
        angles = positions.unsqueeze(1) * _dynamic_frequencies(rope, positions)
    else:
        angles = torch.outer(positions, _frequencies(rope))
    magnitude = rope.attention_factor if rope.attention_factor is not None else 1.0
    table = torch.cat((angles.cos(), angles.sin()), dim=1) * magnitude
    return table.to(device)


def _frequencies(rope: RopeConfig) -> torch.Tensor:
    """float32 [rotary_dim / 2], radians per position."""
    plain = _plain(rope.theta, rope.rotary_dim)
    if rope.scaling == "linear":
        return plain / _known(rope.factor)
    if rope.low_freq_factor is not None:
        return _by_wavelength(plain, rope)
    if rope.scaling == "yarn":
        return _yarn(plain, rope)
    assert rope.scaling == "none", rope.scaling
    return plain


def _plain(theta: float, rotary_dim: int) -> torch.Tensor:
    return 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def _dynamic_frequencies(rope: RopeConfig, positions: torch.Tensor) -> torch.Tensor:
    """Dynamic NTK scaling, [positions, rotary_dim / 2]: theta grows with the length of the text.

    Each position takes the theta of the text that ends with it, as decoding token by token does;
    a cached key then stays valid however long its text becomes.
    """
    original, factor = _known(rope.original_max_position), _known(rope.factor)
    length = (positions + 1).clamp(min=original)
    stretch = factor * length / original - (factor - 1)
    theta = rope.theta * stretch ** (rope.rotary_dim / (rope.rotary_dim - 2))
    exponents = torch.arange(0, rope.rotary_dim, 2, dtype=torch.float32) / rope.rotary_dim
    return 1.0 / theta.unsqueeze(1) ** exponents


def _by_wavelength(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """As in Llama 3.1: long waves are slowed by `factor`, short ones kept, a ramp between."""
    low, high = _known(rope.low_freq_factor), _known(rope.high_freq_factor)
    original, factor = _known(rope.original_max_position), _known(rope.factor)
    wavelength = 2 * math.pi / plain
    keep = ((original / wavelength - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - keep) * plain / factor + keep * plain


def _yarn(plain: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    """YaRN (arXiv:2309.00071): dimensions that turn more than beta_fast times within the
    original context are kept, those below beta_slow interpolated, a ramp between."""
    original = _known(rope.original_max_position)

    def dimension_of(turns: float) -> float:
        numerator = rope.rotary_dim * math.log(original / (turns * 2 * math.pi))
        return numerator / (2 * math.log(rope.theta))

    first = dimension_of(_known(rope.beta_fast))
    last = dimension_of(_known(rope.beta_slow))
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.rotary_dim - 1)
    width = max(last - first, 0.001)
    ramp = ((torch.arange(len(plain), dtype=torch.float32) - first) / width).clamp(0.0, 1.0)
    return plain / _known(rope.factor) * ramp + plain * (1 - ramp)


def _known(value: float | None) -> float:
    assert value is not None, "the rope config lacks a number that its scaling needs"
    return value
