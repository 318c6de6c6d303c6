"""Kernels of rope and the KV write, best first, the reference last."""

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
    multiple_of,
    one_of,
)

_CPU = {
    "activations": one_of("float32"),
    "kv_dtype": one_of("float32", "bfloat16"),
    "head_dim": HEAD_DIM,
    "qk_norm": one_of(True, False),
    "qk_norm_over": one_of("head"),
}

TABLES = (
    OpTable(
        op="rope_kv_write",
        fields=("activations", "kv_dtype", "head_dim", "qk_norm", "qk_norm_over"),
        kernels=(
            KernelSpec(
                name="rope_kv_write_avx512",
                module="tokenspeed_kernels.rope.rope_kv_write_cpu",
                attribute="rope_kv_write_avx512",
                device=AVX512,
                requires=_CPU,
                why="16 lanes; norm, RoPE and KV write in one pass",
                ordered=True,
            ),
            KernelSpec(
                name="rope_kv_write_avx2",
                module="tokenspeed_kernels.rope.rope_kv_write_cpu",
                attribute="rope_kv_write_avx2",
                device=AVX2,
                requires=_CPU,
                why="8 lanes; norm, RoPE and KV write in one pass",
                ordered=True,
            ),
            KernelSpec(
                name="rope_kv_write_portable",
                module="tokenspeed_kernels.rope.rope_kv_write_cpu",
                attribute="rope_kv_write_portable",
                device=ANY_CPU,
                requires=_CPU,
                why="compiled C++, for any CPU; norm, RoPE and KV write in one pass",
                ordered=True,
            ),
            KernelSpec(
                name="rope_kv_write_triton",
                module="tokenspeed_kernels.rope.rope_kv_write_triton",
                attribute="rope_kv_write",
                device=TRITON,
                requires={
                    "activations": one_of("bfloat16"),
                    "kv_dtype": one_of("bfloat16", "fp8"),
                    "head_dim": HEAD_DIM,
                    "qk_norm": one_of(True, False),
                    "qk_norm_over": one_of("head"),
                },
                why="norm, RoPE and KV write in one pass",
                ordered=True,
                takes_parts=True,
            ),
            KernelSpec(
                name="rope_kv_write_reference",
                module="tokenspeed_kernels.rope.reference",
                attribute="rope_kv_write",
                device=REFERENCE,
                requires={
                    "activations": one_of("float32", "bfloat16"),
                    "kv_dtype": one_of("float32", "bfloat16", "fp8"),
                    "head_dim": multiple_of(2),
                    "qk_norm": one_of(True, False),
                    "qk_norm_over": one_of("head"),
                },
                why="torch, on any device",
                is_reference=True,
            ),
        ),
    ),
)
