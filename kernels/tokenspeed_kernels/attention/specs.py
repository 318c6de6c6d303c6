"""Kernels of attention, best first, the reference last."""

from __future__ import annotations

from tokenspeed_kernels.spec import (
    ANY_CPU,
    AVX2,
    AVX512,
    HEAD_DIM,
    REFERENCE,
    TRITON,
    KernelSpec,
    OpTable,
    anything,
    one_of,
)

TABLES = (
    OpTable(
        op="paged_attention",
        fields=("activations", "kv_dtype", "head_dim", "block_size", "window", "sinks"),
        kernels=(
            KernelSpec(
                name="paged_attention_avx512",
                op="paged_attention",
                module="tokenspeed_kernels.attention.paged_attention_cpu",
                attribute="paged_attention_avx512",
                device=AVX512,
                requires={
                    "activations": one_of("float32"),
                    "kv_dtype": one_of("float32", "bfloat16"),
                    "head_dim": HEAD_DIM,
                    "block_size": anything(),
                    "window": one_of(0),
                    "sinks": one_of(False),
                },
                why="16 lanes; reads each K and V once for all heads of a group",
            ),
            KernelSpec(
                name="paged_attention_avx2",
                op="paged_attention",
                module="tokenspeed_kernels.attention.paged_attention_cpu",
                attribute="paged_attention_avx2",
                device=AVX2,
                requires={
                    "activations": one_of("float32"),
                    "kv_dtype": one_of("float32", "bfloat16"),
                    "head_dim": HEAD_DIM,
                    "block_size": anything(),
                    "window": one_of(0),
                    "sinks": one_of(False),
                },
                why="8 lanes; reads each K and V once for all heads of a group",
            ),
            KernelSpec(
                name="paged_attention_portable",
                op="paged_attention",
                module="tokenspeed_kernels.attention.paged_attention_cpu",
                attribute="paged_attention_portable",
                device=ANY_CPU,
                requires={
                    "activations": one_of("float32"),
                    "kv_dtype": one_of("float32", "bfloat16"),
                    "head_dim": HEAD_DIM,
                    "block_size": anything(),
                    "window": one_of(0),
                    "sinks": one_of(False),
                },
                why="compiled C++, for any CPU; reads each K and V once for all heads of a group",
            ),
            KernelSpec(
                name="paged_attention_triton",
                op="paged_attention",
                module="tokenspeed_kernels.attention.paged_attention_triton",
                attribute="paged_attention",
                bound_attribute="PagedAttentionTriton",
                device=TRITON,
                requires={
                    "activations": one_of("bfloat16"),
                    "kv_dtype": one_of("bfloat16", "fp8"),
                    "head_dim": one_of(64, 128),
                    "block_size": one_of(16, 32, 64, 128),
                    "window": one_of(0),
                    "sinks": one_of(False),
                },
                why="any mix of lengths spread evenly, decode at memory rate",
            ),
            KernelSpec(
                name="paged_attention_reference",
                op="paged_attention",
                module="tokenspeed_kernels.attention.reference",
                attribute="paged_attention",
                device=REFERENCE,
                requires={
                    "activations": one_of("float32", "bfloat16"),
                    "kv_dtype": one_of("float32", "bfloat16"),
                    "head_dim": anything(),
                    "block_size": anything(),
                    "window": anything(),
                    "sinks": one_of(True, False),
                },
                why="torch, gathering each row's own blocks, on any device",
                is_reference=True,
            ),
        ),
    ),
)
