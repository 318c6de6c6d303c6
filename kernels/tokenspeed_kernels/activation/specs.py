"""Kernels of the activation ops, best first, the reference last."""

from __future__ import annotations

from tokenspeed_kernels.spec import (
    ANY_CPU,
    AVX2,
    AVX512,
    REFERENCE,
    TRITON,
    KernelSpec,
    OpTable,
    one_of,
)

TABLES = (
    OpTable(
        op="silu_mul",
        fields=("activations",),
        kernels=(
            KernelSpec(
                name="silu_mul_avx512",
                module="tokenspeed_kernels.activation.silu_mul_cpu",
                attribute="silu_mul_avx512",
                device=AVX512,
                requires={"activations": one_of("float32")},
                why="16 lanes",
                ordered=True,
            ),
            KernelSpec(
                name="silu_mul_avx2",
                module="tokenspeed_kernels.activation.silu_mul_cpu",
                attribute="silu_mul_avx2",
                device=AVX2,
                requires={"activations": one_of("float32")},
                why="8 lanes",
                ordered=True,
            ),
            KernelSpec(
                name="silu_mul_portable",
                module="tokenspeed_kernels.activation.silu_mul_cpu",
                attribute="silu_mul_portable",
                device=ANY_CPU,
                requires={"activations": one_of("float32")},
                why="compiled C++, for any CPU",
                ordered=True,
            ),
            KernelSpec(
                name="silu_mul_triton",
                module="tokenspeed_kernels.activation.silu_mul_triton",
                attribute="silu_mul",
                device=TRITON,
                requires={"activations": one_of("bfloat16")},
                why="one pass at memory bandwidth",
                ordered=True,
            ),
            KernelSpec(
                name="silu_mul_reference",
                module="tokenspeed_kernels.activation.reference",
                attribute="silu_mul",
                device=REFERENCE,
                requires={"activations": one_of("float32", "bfloat16")},
                why="torch, on any device",
                is_reference=True,
            ),
        ),
    ),
)
