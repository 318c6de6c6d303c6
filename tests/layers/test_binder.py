from __future__ import annotations

import importlib.util

import pytest
import torch

from tokenspeed.layers.binder import AttentionBinder
from tokenspeed.layers.kernels import Kernels
from tokenspeed.plan import Attention, KernelChoice, LatentAttention, Mixer

FULL = Attention(num_heads=4, num_kv_heads=2, head_dim=64)
WINDOW = Attention(num_heads=4, num_kv_heads=2, head_dim=64, window=32)
LATENT = LatentAttention(
    num_heads=16, q_rank=None, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
)


def binder(mixers: list[Mixer], **names: str) -> AttentionBinder:
    choices = [
        KernelChoice(op=op, variant="", kernel=name, reason="", rejected=())
        for op, name in names.items()
    ]
    bf16, cpu = torch.bfloat16, torch.device("cpu")
    return AttentionBinder(mixers, Kernels(choices), bf16, bf16, cpu, 256, 0)


def test_kernels_without_a_bound_form_bind_nothing() -> None:
    made = binder([FULL, WINDOW], paged_attention="paged_attention_reference")
    assert made.bind(4, 0, 0) is None
    assert made.bind_expanded(4, 1, 8) is None and not made.expands


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_attention_is_bound_for_all_kinds_of_heads_or_for_none() -> None:
    names = {"latent_attention": "latent_attention_triton"}
    mixed = binder([LATENT, FULL], paged_attention="paged_attention_reference", **names)
    assert mixed.bind(4, 0, 0) is None
