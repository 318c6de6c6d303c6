"""Kernels of sampling, best first, the reference last. Logits are float32 everywhere."""

from __future__ import annotations

from tokenspeed_kernels.spec import REFERENCE, KernelSpec, OpTable

TABLES = (
    OpTable(
        op="sample",
        fields=(),
        kernels=(
            KernelSpec(
                name="sample_reference",
                op="sample",
                module="tokenspeed_kernels.sampling.reference",
                attribute="sample",
                device=REFERENCE,
                requires={},
                why="torch, on any device",
                is_reference=True,
            ),
        ),
    ),
    OpTable(
        op="apply_penalties",
        fields=(),
        kernels=(
            KernelSpec(
                name="apply_penalties_reference",
                op="apply_penalties",
                module="tokenspeed_kernels.sampling.reference",
                attribute="apply_penalties",
                device=REFERENCE,
                requires={},
                why="torch, on any device",
                is_reference=True,
            ),
        ),
    ),
    OpTable(
        op="log_softmax_topk",
        fields=(),
        kernels=(
            KernelSpec(
                name="log_softmax_topk_reference",
                op="log_softmax_topk",
                module="tokenspeed_kernels.sampling.reference",
                attribute="log_softmax_topk",
                device=REFERENCE,
                requires={},
                why="torch, on any device",
                is_reference=True,
            ),
        ),
    ),
)
