"""Kernels of latent attention, best first, the reference last."""

from __future__ import annotations

from tokenspeed_kernels.spec import ANY_CPU, KernelSpec, OpTable, anything, one_of

_FIELDS = ("activations", "kv_dtype", "kv_layout", "kv_rank", "rope_dim", "num_heads", "block_size")
_ANY_POOL = {
    "activations": one_of("float32", "bfloat16"),
    "kv_dtype": one_of("float32", "bfloat16", "fp8"),
    "kv_layout": one_of("latent", "latent_scaled"),
    "kv_rank": anything(),
    "rope_dim": anything(),
    "num_heads": anything(),
    "block_size": anything(),
}

TABLES = (
    OpTable(
        op="latent_kv_write",
        fields=_FIELDS,
        kernels=(
            KernelSpec(
                name="latent_kv_write_reference",
                op="latent_kv_write",
                module="tokenspeed_kernels.latent.reference",
                attribute="latent_kv_write",
                device=ANY_CPU,
                requires=_ANY_POOL,
                why="torch, on any CPU",
                is_reference=True,
            ),
        ),
    ),
    OpTable(
        op="latent_attention",
        fields=_FIELDS,
        kernels=(
            KernelSpec(
                name="latent_attention_reference",
                op="latent_attention",
                module="tokenspeed_kernels.latent.reference",
                attribute="latent_attention",
                device=ANY_CPU,
                requires=_ANY_POOL,
                why="torch, gathering each row's own blocks, on any CPU",
                is_reference=True,
            ),
        ),
    ),
)
