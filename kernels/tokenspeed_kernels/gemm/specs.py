"""Kernels of the products, best first, the reference last."""

from __future__ import annotations

from tokenspeed_kernels.spec import (
    ANY_CPU,
    AVX2,
    AVX512_VNNI,
    HOPPER,
    REFERENCE,
    TRITON,
    KernelSpec,
    OpTable,
    anything,
    multiple_of,
    one_of,
)

# What of an nvfp4 matrix is bfloat16 at once where very many rows meet it on a GPU; plans count it.
WIDENED_BYTES = 64 << 20

_FIELDS = ("weight_format", "activations", "in_features")
_BLOCKS_OF_32 = {
    "weight_format": one_of("q4_1", "q8_0"),
    "activations": one_of("float32"),
    "in_features": multiple_of(32),
}
_ANY_WEIGHT = {
    "weight_format": one_of(
        *("float32", "bfloat16", "q4_1", "q8_0", "fp8", "fp8_block"),
        *("mxfp4", "nvfp4", "int4", "int4_g32"),
    ),
    "activations": one_of("float32", "bfloat16"),
    "in_features": anything(),
}

TABLES = (
    OpTable(
        op="linear",
        fields=_FIELDS,
        kernels=(
            KernelSpec(
                name="linear_int16_avx512_vnni",
                module="tokenspeed_kernels.gemm.linear_cpu",
                attribute="LinearAvx512Vnni",
                device=AVX512_VNNI,
                requires=_BLOCKS_OF_32,
                why="16-bit activations as two int8 products; one row at memory bandwidth",
                ordered=True,
            ),
            KernelSpec(
                name="linear_int16_avx2",
                module="tokenspeed_kernels.gemm.linear_cpu",
                attribute="LinearAvx2",
                device=AVX2,
                requires=_BLOCKS_OF_32,
                why="16-bit activations; int16 products in 8 lanes",
                ordered=True,
            ),
            KernelSpec(
                name="linear_int16_portable",
                module="tokenspeed_kernels.gemm.linear_cpu",
                attribute="LinearPortable",
                device=ANY_CPU,
                requires=_BLOCKS_OF_32,
                why="16-bit activations; compiled C++ for any CPU",
                ordered=True,
            ),
            KernelSpec(
                name="linear_torch_float32",
                module="tokenspeed_kernels.gemm.linear_torch",
                attribute="LinearTorch",
                device=REFERENCE,
                requires={
                    "weight_format": one_of("float32"),
                    "activations": one_of("float32"),
                    "in_features": anything(),
                },
                why="torch's own product reaches peak throughput in float32",
            ),
            KernelSpec(
                name="linear_triton",
                module="tokenspeed_kernels.gemm.linear_triton",
                attribute="LinearTriton",
                device=TRITON,
                requires={
                    "weight_format": one_of("bfloat16"),
                    "activations": one_of("bfloat16"),
                    "in_features": multiple_of(8),
                },
                why="few rows at memory bandwidth, torch's own product for many",
            ),
            KernelSpec(
                name="linear_ordered",
                module="tokenspeed_kernels.gemm.linear_ordered",
                attribute="LinearOrdered",
                device=HOPPER,
                requires={
                    "weight_format": one_of("bfloat16"),
                    "activations": one_of("bfloat16"),
                    "in_features": multiple_of(8),
                },
                why="the same instructions for any number of rows",
                ordered=True,
            ),
            KernelSpec(
                name="linear_float8_rows",
                module="tokenspeed_kernels.gemm.linear_triton",
                attribute="LinearFloat8Rows",
                device=HOPPER,
                requires={
                    "weight_format": one_of("fp8"),
                    "activations": one_of("bfloat16"),
                    "in_features": multiple_of(16),
                },
                why="few rows in float8 too: 8 users of an 8B get 367 tokens/s each instead of 266",
            ),
            KernelSpec(
                name="linear_float8_blocks",
                module="tokenspeed_kernels.gemm.linear_triton",
                attribute="LinearFloat8Rows",
                device=HOPPER,
                requires={
                    "weight_format": one_of("fp8_block"),
                    "activations": one_of("bfloat16"),
                    "in_features": multiple_of(128),
                },
                why="up to 128 rows in float8 too: 8 in 68 us a layer of an 8B, 32 in 101",
            ),
            KernelSpec(
                name="linear_fp8_triton",
                module="tokenspeed_kernels.gemm.linear_triton",
                attribute="LinearTriton",
                device=TRITON,
                requires={
                    "weight_format": one_of("fp8", "fp8_block"),
                    "activations": one_of("bfloat16"),
                    "in_features": multiple_of(16),
                },
                why="weights dequantised for few rows, at memory bandwidth; many rows in float8",
            ),
            KernelSpec(
                name="linear_nvfp4_triton",
                module="tokenspeed_kernels.gemm.linear_nvfp4_triton",
                attribute="LinearNvfp4Triton",
                device=TRITON,
                requires={
                    "weight_format": one_of("nvfp4"),
                    "activations": one_of("bfloat16"),
                    "in_features": multiple_of(16),
                },
                why="packed for the tensor cores: 25 us at 1 row, 37 at 64; bfloat16 49 and 52",
            ),
            KernelSpec(
                name="linear_nibbles_triton",
                module="tokenspeed_kernels.gemm.linear_nibbles_triton",
                attribute="LinearNibblesTriton",
                device=TRITON,
                requires={
                    "weight_format": one_of("mxfp4", "int4", "int4_g32"),
                    "activations": one_of("bfloat16"),
                    "in_features": multiple_of(32),
                },
                why="4-bit weights read as stored, dequantised in registers",
            ),
            KernelSpec(
                name="linear_torch_bfloat16",
                module="tokenspeed_kernels.gemm.linear_torch",
                attribute="LinearTorch",
                device=REFERENCE,
                requires={
                    "weight_format": one_of("bfloat16"),
                    "activations": one_of("bfloat16", "float32"),
                    "in_features": anything(),
                },
                why="torch's own product reaches peak throughput in bfloat16",
            ),
            KernelSpec(
                name="linear_reference",
                module="tokenspeed_kernels.gemm.reference",
                attribute="LinearReference",
                device=REFERENCE,
                requires=_ANY_WEIGHT,
                why="torch over weights dequantised to float32, on any device",
                is_reference=True,
            ),
        ),
    ),
    OpTable(
        op="linear_silu_mul",
        fields=_FIELDS,
        fuses=True,
        kernels=(
            KernelSpec(
                name="linear_silu_mul_float8_rows",
                module="tokenspeed_kernels.gemm.linear_triton",
                attribute="LinearSiluMulFloat8Rows",
                device=HOPPER,
                requires={
                    "weight_format": one_of("fp8"),
                    "activations": one_of("bfloat16"),
                    "in_features": multiple_of(128),
                },
                why="few rows in float8 too: 8 users of an 8B get 367 tokens/s each instead of 266",
            ),
            KernelSpec(
                name="linear_silu_mul_float8_blocks",
                module="tokenspeed_kernels.gemm.linear_triton",
                attribute="LinearSiluMulFloat8Rows",
                device=HOPPER,
                requires={
                    "weight_format": one_of("fp8_block"),
                    "activations": one_of("bfloat16"),
                    "in_features": multiple_of(128),
                },
                why="up to 128 rows in float8 too: 8 in 68 us a layer of an 8B, 32 in 101",
            ),
            KernelSpec(
                name="linear_silu_mul_triton",
                module="tokenspeed_kernels.gemm.linear_triton",
                attribute="LinearSiluMulTriton",
                device=TRITON,
                requires={
                    "weight_format": one_of("bfloat16", "fp8", "fp8_block"),
                    "activations": one_of("bfloat16"),
                    "in_features": multiple_of(128),
                },
                why="silu(gate) * up fused into the product for few rows, one kernel less",
            ),
            KernelSpec(
                name="linear_silu_mul_ordered",
                module="tokenspeed_kernels.gemm.linear_ordered",
                attribute="LinearSiluMulOrdered",
                device=HOPPER,
                requires={
                    "weight_format": one_of("bfloat16"),
                    "activations": one_of("bfloat16"),
                    "in_features": multiple_of(128),
                },
                why="the same instructions for any number of rows",
                ordered=True,
            ),
            KernelSpec(
                name="linear_silu_mul_reference",
                module="tokenspeed_kernels.gemm.reference",
                attribute="LinearSiluMulReference",
                device=REFERENCE,
                requires=_ANY_WEIGHT,
                why="torch over weights dequantised to float32, on any device",
                is_reference=True,
            ),
        ),
    ),
)
