"""Attention by warps with roles."""

from __future__ import annotations

import triton.language as tl
from case import Case
from tokenspeed_kernels.attention.attend_decode_hopper import _attend_decode
from tokenspeed_kernels.attention.attend_hopper import _attend_hopper
from tokenspeed_kernels.attention.paged_attention_hopper import EXTEND_HOPPER, RING_FEW, RING_MANY
from triton.experimental.gluon.language import NVMMASharedLayout


def attention_by_roles(head_dim):
    layout = NVMMASharedLayout.get_default_for([64, 64], tl.bfloat16)
    kv = f"tensordesc<bf16[64,64],{layout!r}>".replace(" ", "")
    tiling = EXTEND_HOPPER
    return Case(
        f"extend_hopper_{head_dim}", _attend_hopper,
        f"*bf16 {kv} {kv} *i32 *i32 *i32 {'*bf16 ' if head_dim == 64 else ''}*bf16 *fp32 *fp32 "
        "i32 i32 fp32 fp32",
        {"H": 32, "K": 8, "D": head_dim, "N": tiling.keys, "BLOCK": 64, "P": 132, "REPEATS": 8,
         "COST": tiling.cost, "STAGES": tiling.stages, "TURNS": tiling.specialise,
         "PRODUCER_REGISTERS": 504 - 2 * tiling.registers,
         "CONSUMER_REGISTERS": tiling.registers, "PRODUCER_WARPS": 1,
         "HAS_SINKS": head_dim == 64} | ({} if head_dim == 64 else {"SINKS": None}),
        {"num_warps": 4},
    )  # fmt: skip


def _decode(name, tiling, heads=32, head_dim=128, parts=0, norm=False, sinks=False):
    layout = NVMMASharedLayout.get_default_for([tiling.keys, head_dim], tl.bfloat16)
    kv = f"tensordesc<bf16[{tiling.keys},{head_dim}],{layout!r}>".replace(" ", "")
    constants = {
        "H": heads, "K": 8, "D": head_dim, "BLOCK": 64, "M": 8, "P": 33, "COST": tiling.cost,
        "STAGES": tiling.stages, "BEFORE": tiling.before, "HAS_SINKS": sinks,
        "JOIN_ROWS": heads // 8 if tiling.joins else 0, "ROPE": parts, "NORM": norm, "EARLY": True,
    }  # fmt: skip
    given = f"*{'fp32' if parts > 1 else 'bf16'} *i32 *fp32 *i64 *bf16 *bf16"
    if norm:
        given += " *bf16 *bf16"
    else:
        constants |= dict.fromkeys(("Q_NORM", "K_NORM"))
    if not parts:
        given = "*bf16"
        constants |= dict.fromkeys(("POSITIONS", "COS_SIN", "SLOTS", "K_CACHE", "V_CACHE"))
    if not sinks:
        constants["SINKS"] = None
    return Case(
        name, _attend_decode,
        f"{given} {kv} {kv} *i32 *i32 {'*bf16 ' if sinks else ''}*bf16 *fp32 *fp32 *i32 "
        "!i32 !i32 fp32 i32 i32 fp32 fp32",
        constants, {"num_warps": tiling.warps, "maxnreg": tiling.most_registers},
    )  # fmt: skip


def decode_by_rings():
    """Few rows and many, with sinks, and turning queries and keys: as they are, or in parts."""
    return [
        _decode("decode_ring_few", RING_FEW),
        _decode("decode_ring_many", RING_MANY),
        _decode("decode_ring_sinks", RING_MANY, heads=64, head_dim=64, sinks=True),
        _decode("decode_ring_turning", RING_MANY, parts=1, norm=True),
        _decode("decode_ring_turning_parts", RING_FEW, parts=2),
    ]
