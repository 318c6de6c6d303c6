"""Kernels of the activation ops, best first, the reference last."""

from __future__ import annotations

from tokenspeed_kernels.spec import REFERENCE, KernelSpec, OpTable, one_of

TABLES = (
    OpTable(
        op="silu_mul",
        fields=("activations",),
        kernels=(
            KernelSpec(
                name="silu_mul_reference",
                op="silu_mul",
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
