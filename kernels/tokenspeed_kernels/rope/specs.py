"""Kernels of rope and the KV write, best first, the reference last."""

from __future__ import annotations

from tokenspeed_kernels.spec import REFERENCE, KernelSpec, OpTable, multiple_of, one_of

TABLES = (
    OpTable(
        op="rope_kv_write",
        fields=("activations", "kv_dtype", "head_dim", "qk_norm"),
        kernels=(
            KernelSpec(
                name="rope_kv_write_reference",
                op="rope_kv_write",
                module="tokenspeed_kernels.rope.reference",
                attribute="rope_kv_write",
                device=REFERENCE,
                requires={
                    "activations": one_of("float32", "bfloat16"),
                    "kv_dtype": one_of("float32", "bfloat16"),
                    "head_dim": multiple_of(2),
                    "qk_norm": one_of(True, False),
                },
                why="torch, on any device",
                is_reference=True,
            ),
        ),
    ),
)
