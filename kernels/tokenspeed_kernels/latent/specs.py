"""Kernels of latent attention, best first, the reference last."""

from __future__ import annotations

from tokenspeed_kernels.spec import (
    ANY_CPU,
    HOPPER,
    TRITON,
    KernelSpec,
    OpTable,
    anything,
    one_of,
)

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
_TRITON_POOL = {
    "activations": one_of("bfloat16"),
    "kv_dtype": one_of("bfloat16", "fp8"),
    "kv_layout": one_of("latent", "latent_scaled"),
    # Powers of two: a token's latent is one vector of a tile.
    "kv_rank": one_of(64, 128, 256, 512),
    "rope_dim": one_of(16, 32, 64),
    "num_heads": one_of(*range(1, 65), 96, 128),
    "block_size": one_of(16, 32, 64, 128),
}

# A kv tile of 64 tokens lies in one block; heads are dealt out evenly, 32 or 64 at once.
_HOPPER_POOL = {
    "kv_rank": one_of(512),
    "rope_dim": one_of(64),
    "num_heads": one_of(*range(1, 33), *range(34, 65, 2), 96, 128),
    "block_size": one_of(64, 128),
}

_WIDTHS = ("nope_dim", "value_dim")
_EXTEND_FIELDS = (*_FIELDS, *_WIDTHS)
_ANY_EXTEND = _ANY_POOL | {width: anything() for width in _WIDTHS}

TABLES = (
    OpTable(
        op="latent_kv_write",
        fields=_FIELDS,
        kernels=(
            KernelSpec(
                name="latent_kv_write_triton",
                module="tokenspeed_kernels.latent.latent_kv_write_triton",
                attribute="latent_kv_write",
                device=TRITON,
                requires=_TRITON_POOL | {"block_size": anything()},
                why="norm, RoPE, quantisation and cache write in one pass",
            ),
            KernelSpec(
                name="latent_kv_write_reference",
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
                name="latent_attention_hopper",
                module="tokenspeed_kernels.latent.latent_attention_hopper",
                attribute="latent_attention",
                bound_attribute="LatentAttentionHopper",
                device=HOPPER,
                requires=_TRITON_POOL | _HOPPER_POOL,
                why="warp-specialised, each latent read once for all heads",
            ),
            KernelSpec(
                name="latent_attention_triton",
                module="tokenspeed_kernels.latent.latent_attention_triton",
                attribute="latent_attention",
                bound_attribute="LatentAttentionTriton",
                device=TRITON,
                requires=_TRITON_POOL,
                why="each latent read once for all heads, split-KV balanced over mixed lengths",
            ),
            KernelSpec(
                name="latent_attention_reference",
                module="tokenspeed_kernels.latent.reference",
                attribute="latent_attention",
                device=ANY_CPU,
                requires=_ANY_POOL,
                why="torch, gathering each row's own blocks, on any CPU",
                is_reference=True,
            ),
        ),
    ),
    OpTable(
        op="latent_extend",
        fields=_EXTEND_FIELDS,
        fuses=True,
        kernels=(
            KernelSpec(
                name="latent_extend_hopper",
                module="tokenspeed_kernels.latent.latent_extend_hopper",
                attribute="latent_extend",
                bound_attribute="LatentExtendHopper",
                device=HOPPER,
                requires=_TRITON_POOL
                | {
                    "rope_dim": one_of(64),
                    "nope_dim": one_of(64, 128),
                    "value_dim": one_of(64, 128),
                },
                why="keys and values expanded by one product of torch, warp-specialised attention",
            ),
            KernelSpec(
                name="latent_extend_triton",
                module="tokenspeed_kernels.latent.latent_extend_triton",
                attribute="latent_extend",
                bound_attribute="LatentExtendTriton",
                device=TRITON,
                requires=_TRITON_POOL
                | {"nope_dim": one_of(64, 128, 192), "value_dim": one_of(64, 128, 256)},
                why="keys and values expanded once for all queries",
            ),
            KernelSpec(
                name="latent_extend_torch",
                module="tokenspeed_kernels.latent.latent_extend_torch",
                attribute="latent_extend",
                device=ANY_CPU,
                requires=_ANY_EXTEND,
                why="keys and values expanded once for all queries, a chunk at a time",
            ),
            KernelSpec(
                name="latent_extend_reference",
                module="tokenspeed_kernels.latent.reference",
                attribute="latent_extend",
                device=ANY_CPU,
                requires=_ANY_EXTEND,
                why="torch, expanding whole rows at once, on any CPU",
                is_reference=True,
            ),
        ),
    ),
)
