"""Kernels of the embedding, best first, the reference last."""

from __future__ import annotations

from tokenspeed_kernels.spec import ANY_CPU, REFERENCE, TRITON, KernelSpec, OpTable, one_of

TABLES = (
    OpTable(
        op="embedding",
        fields=("weight_format", "activations"),
        kernels=(
            KernelSpec(
                name="embedding_quantised_cpu",
                module="tokenspeed_kernels.embedding.embedding_cpu",
                attribute="EmbeddingQuantised",
                device=ANY_CPU,
                requires={
                    "weight_format": one_of("q4_1", "q8_0"),
                    "activations": one_of("float32"),
                },
                why="dequantises only the gathered rows, in compiled C++",
                ordered=True,
            ),
            KernelSpec(
                name="embedding_triton",
                module="tokenspeed_kernels.embedding.embedding_triton",
                attribute="EmbeddingTriton",
                device=TRITON,
                requires={
                    "weight_format": one_of("float32", "bfloat16"),
                    "activations": one_of("float32", "bfloat16"),
                },
                why="one gather with a cast",
                ordered=True,
            ),
            KernelSpec(
                name="embedding_reference",
                module="tokenspeed_kernels.embedding.reference",
                attribute="EmbeddingReference",
                device=REFERENCE,
                requires={
                    "weight_format": one_of("float32", "bfloat16", "q4_1", "q8_0"),
                    "activations": one_of("float32", "bfloat16"),
                },
                why="torch, dequantising only the gathered rows, on any device",
                is_reference=True,
            ),
        ),
    ),
)
