"""Kernels of the norm ops, best first, the reference last."""

from __future__ import annotations

from tokenspeed_kernels.spec import REFERENCE, KernelSpec, OpTable, one_of

TABLES = (
    OpTable(
        op="rms_norm",
        fields=("activations",),
        kernels=(
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
