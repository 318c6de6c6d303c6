"""Kernels of attention, best first, the reference last."""

from __future__ import annotations

from tokenspeed_kernels.spec import REFERENCE, KernelSpec, OpTable, anything, one_of

TABLES = (
    OpTable(
        op="paged_attention",
        fields=("activations", "kv_dtype", "head_dim", "block_size"),
        kernels=(
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
                },
                why="torch, gathering each row's own blocks, on any device",
                is_reference=True,
            ),
        ),
    ),
)
