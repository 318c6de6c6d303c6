"""Kernels of attention, best first, the reference last."""

from __future__ import annotations

from tokenspeed_kernels.spec import (
    ANY_CPU,
    AVX2,
    AVX512,
    HEAD_DIM,
    HOPPER,
    TRITON,
    KernelSpec,
    OpTable,
    anything,
    one_of,
)

_CPU = {
    "activations": one_of("float32"),
    "kv_dtype": one_of("float32", "bfloat16"),
    "head_dim": HEAD_DIM,
    "block_size": anything(),
    "window": one_of(0),
    "sinks": one_of(False),
}

TABLES = (
    OpTable(
        op="paged_attention",
        fields=("activations", "kv_dtype", "head_dim", "block_size", "window", "sinks"),
        kernels=(
            KernelSpec(
                name="paged_attention_avx512",
                module="tokenspeed_kernels.attention.paged_attention_cpu",
                attribute="paged_attention_avx512",
                device=AVX512,
                requires=_CPU,
                why="16 lanes; reads each K and V once for all heads of a group",
            ),
            KernelSpec(
                name="paged_attention_avx2",
                module="tokenspeed_kernels.attention.paged_attention_cpu",
                attribute="paged_attention_avx2",
                device=AVX2,
                requires=_CPU,
                why="8 lanes; reads each K and V once for all heads of a group",
            ),
            KernelSpec(
                name="paged_attention_portable",
                module="tokenspeed_kernels.attention.paged_attention_cpu",
                attribute="paged_attention_portable",
                device=ANY_CPU,
                requires=_CPU,
                why="compiled C++, for any CPU; reads each K and V once for all heads of a group",
            ),
            KernelSpec(
                name="paged_attention_hopper",
                module="tokenspeed_kernels.attention.paged_attention_hopper",
                attribute="paged_attention",
                bound_attribute="bind_hopper",
                device=HOPPER,
                requires={
                    "activations": one_of("bfloat16"),
                    "kv_dtype": one_of("bfloat16"),
                    "head_dim": one_of(64, 128),
                    "block_size": one_of(64, 128),
                    "window": anything(),
                    "sinks": one_of(True, False),
                },
                why="warp-specialised prefill, split-KV decode at memory bandwidth",
            ),
            KernelSpec(
                name="paged_attention_triton",
                module="tokenspeed_kernels.attention.paged_attention_triton",
                attribute="paged_attention",
                bound_attribute="PagedAttentionTriton",
                device=TRITON,
                requires={
                    "activations": one_of("bfloat16"),
                    "kv_dtype": one_of("bfloat16", "fp8"),
                    "head_dim": one_of(64, 128),
                    "block_size": one_of(16, 32, 64, 128),
                    "window": anything(),
                    "sinks": one_of(True, False),
                },
                why="split-KV balanced over mixed lengths, decode at memory bandwidth",
            ),
            KernelSpec(
                name="paged_attention_ordered",
                module="tokenspeed_kernels.attention.paged_attention_ordered",
                attribute="paged_attention",
                bound_attribute="PagedAttentionOrdered",
                device=HOPPER,
                requires={
                    "activations": one_of("bfloat16"),
                    "kv_dtype": one_of("bfloat16", "fp8"),
                    "head_dim": one_of(64, 128),
                    "block_size": one_of(16, 32, 64, 128),
                    "window": one_of(0),
                    "sinks": one_of(False),
                },
                why="keys in parts of fixed length, reduced in a fixed order",
                ordered=True,
            ),
            KernelSpec(
                name="paged_attention_reference",
                module="tokenspeed_kernels.attention.reference",
                attribute="paged_attention",
                device=ANY_CPU,
                requires={
                    "activations": one_of("float32", "bfloat16"),
                    "kv_dtype": one_of("float32", "bfloat16", "fp8"),
                    "head_dim": anything(),
                    "block_size": anything(),
                    "window": anything(),
                    "sinks": one_of(True, False),
                },
                why="torch, gathering each row's own blocks, on any CPU",
                is_reference=True,
            ),
        ),
    ),
)
