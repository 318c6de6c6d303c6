"""Kernels of the norm ops, best first, the reference last."""

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
        op="rms_norm",
        fields=("activations",),
        kernels=(
            KernelSpec(
                name="rms_norm_avx512",
                op="rms_norm",
                module="tokenspeed_kernels.norm.norm_cpu",
                attribute="rms_norm_avx512",
                device=AVX512,
                requires={
                    "activations": one_of("float32"),
                },
                why="16 lanes",
                ordered=True,
            ),
            KernelSpec(
                name="rms_norm_avx2",
                op="rms_norm",
                module="tokenspeed_kernels.norm.norm_cpu",
                attribute="rms_norm_avx2",
                device=AVX2,
                requires={
                    "activations": one_of("float32"),
                },
                why="8 lanes",
                ordered=True,
            ),
            KernelSpec(
                name="rms_norm_portable",
                op="rms_norm",
                module="tokenspeed_kernels.norm.norm_cpu",
                attribute="rms_norm_portable",
                device=ANY_CPU,
                requires={
                    "activations": one_of("float32"),
                },
                why="compiled C++, for any CPU",
                ordered=True,
            ),
            KernelSpec(
                name="rms_norm_triton",
                op="rms_norm",
                module="tokenspeed_kernels.norm.norm_triton",
                attribute="rms_norm",
                device=TRITON,
                requires={
                    "activations": one_of("bfloat16"),
                },
                why="one pass, the row in registers",
            ),
            KernelSpec(
                name="rms_norm_ordered",
                op="rms_norm",
                module="tokenspeed_kernels.norm.norm_triton",
                attribute="rms_norm_ordered",
                device=TRITON,
                requires={
                    "activations": one_of("bfloat16"),
                },
                why="a row is added up alike however many there are",
                ordered=True,
            ),
            KernelSpec(
                name="rms_norm_reference",
                op="rms_norm",
                module="tokenspeed_kernels.norm.reference",
                attribute="rms_norm",
                device=REFERENCE,
                requires={"activations": one_of("float32", "bfloat16")},
                why="torch, on any device",
                is_reference=True,
            ),
        ),
    ),
    OpTable(
        op="add_rms_norm",
        fields=("activations",),
        kernels=(
            KernelSpec(
                name="add_rms_norm_avx512",
                op="add_rms_norm",
                module="tokenspeed_kernels.norm.norm_cpu",
                attribute="add_rms_norm_avx512",
                device=AVX512,
                requires={
                    "activations": one_of("float32"),
                },
                why="16 lanes",
                ordered=True,
            ),
            KernelSpec(
                name="add_rms_norm_avx2",
                op="add_rms_norm",
                module="tokenspeed_kernels.norm.norm_cpu",
                attribute="add_rms_norm_avx2",
                device=AVX2,
                requires={
                    "activations": one_of("float32"),
                },
                why="8 lanes",
                ordered=True,
            ),
            KernelSpec(
                name="add_rms_norm_portable",
                op="add_rms_norm",
                module="tokenspeed_kernels.norm.norm_cpu",
                attribute="add_rms_norm_portable",
                device=ANY_CPU,
                requires={
                    "activations": one_of("float32"),
                },
                why="compiled C++, for any CPU",
                ordered=True,
            ),
            KernelSpec(
                name="add_rms_norm_triton",
                op="add_rms_norm",
                module="tokenspeed_kernels.norm.norm_triton",
                attribute="add_rms_norm",
                device=TRITON,
                requires={
                    "activations": one_of("bfloat16"),
                },
                why="residual and norm in one pass, the row in registers",
                takes_parts=True,
                float8_attribute="add_rms_norm_float8",
            ),
            KernelSpec(
                name="add_rms_norm_ordered",
                op="add_rms_norm",
                module="tokenspeed_kernels.norm.norm_triton",
                attribute="add_rms_norm_ordered",
                device=TRITON,
                requires={
                    "activations": one_of("bfloat16"),
                },
                why="a row is added up alike however many there are",
                ordered=True,
                takes_parts=True,
            ),
            KernelSpec(
                name="add_rms_norm_reference",
                op="add_rms_norm",
                module="tokenspeed_kernels.norm.reference",
                attribute="add_rms_norm",
                device=REFERENCE,
                requires={"activations": one_of("float32", "bfloat16")},
                why="torch, on any device",
                is_reference=True,
            ),
        ),
    ),
)
