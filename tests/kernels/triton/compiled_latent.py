"""Keys and values made from latents, and attention over them."""

from __future__ import annotations

import triton.language as tl
from case import Case
from tokenspeed_kernels.latent.attend_expanded_hopper import _attend_expanded
from tokenspeed_kernels.latent.extend_triton import (
    _attend_chunk,
    _expand,
    _join_shares,
    _lay_out,
    _line,
)
from tokenspeed_kernels.latent.join_parts_triton import (
    _join_one,
    _join_parts,
    _sum_products,
    shares,
)
from tokenspeed_kernels.latent.latent_extend_hopper import _REGISTERS, ROWS
from tokenspeed_kernels.latent.latent_extend_hopper import HOPPER as EXPANDED_HOPPER
from tokenspeed_kernels.latent.latent_extend_triton import EXTEND as EXPANDED
from triton.experimental.gluon.language import NVMMASharedLayout


def expanded_by_roles():
    def boxes(rows):
        layout = NVMMASharedLayout.get_default_for([rows, 64], tl.bfloat16)
        return f"tensordesc<bf16[{rows},64],{layout!r}>".replace(" ", "")

    query, made = boxes(ROWS), boxes(EXPANDED_HOPPER.keys)
    consumer, producer = _REGISTERS
    return Case(
        "attend_expanded_hopper", _attend_expanded,
        f"{query} {query} {made} {made} *i32 *i32 *i32 *bf16 *fp32 *fp32 *i32 !i32 !i32 "
        "i32 fp32",
        {"H": 16, "NOPE": 128, "E": 64, "VALUE": 128, "N": EXPANDED_HOPPER.keys,
         "STAGES": EXPANDED_HOPPER.stages, "TURNS": False, "PRODUCER_REGISTERS": producer,
         "CONSUMER_REGISTERS": consumer}, {"num_warps": 4},
    )  # fmt: skip


def expansion(name, kv, scaled):
    """Keys and values from latents, heads as those of the models that have them."""
    tiling = EXPANDED
    rope = "bf16" if scaled or kv == "bf16" else kv
    constants = {
        "H": 16, "R": 512, "E": 64, "NOPE": 128, "NOPE_PAD": 128, "VALUE": 128, "VALUE_PAD": 128,
        "BLOCK": 64, "R_PAD": 256, "BT": tiling.tokens, "BK": tiling.inputs, "SCALED": scaled,
        "STAGES": tiling.expand_stages,
    }  # fmt: skip
    scales = "*fp32 "
    if not scaled:
        constants["SCALES"], scales = None, ""
    types = f"*{kv} *{rope} {scales}*i32 *i32 *i32 *i32 *bf16 *bf16 *bf16 *bf16 "
    types += "!i32 !i32 i32 i32 i32 fp32"
    options = {"num_warps": tiling.expand_warps, "num_stages": tiling.expand_stages}
    return Case(name, _expand, types, constants, options)


def lay_out(name, latent, rope, scaled=False):
    """The latents of a chunk."""
    constants = {"R": 512, "E": 64, "NOPE": 128, "VALUE": 128, "BLOCK": 64, "R_PAD": 256,
                 "BT": 128, "TOKENS": 16, "PART": 64, "SCALED": scaled}  # fmt: skip
    scales = "*fp32 " if scaled else ""
    if not scaled:
        constants["SCALES"] = None
    types = f"*{latent} *{rope} {scales}*i32 *i32 *i32 *i32 *bf16 *bf16 *bf16 *bf16 *bf16 "
    return Case(name, _lay_out, types + "!i32 !i32 i32 i32 i32 i32 fp32", constants)


def joins():
    """What joins the parts of rows, many or few of each."""
    rows = {"H": 16, "K": 1, "R": 512, "M": 16, "P": 132, "EARLY": True}
    one = {"V": 128, "V_PAD": 128, **shares(132, 512, rows=1)}
    return [
        *(Case(f"join_parts_{parts}", _join_parts, "*i32 *bf16 *fp32 *fp32 i32 fp32",
               {**rows, **shares(parts, 512)}) for parts in (132, 18, 4)),
        Case("join_one", _join_one, "*i32 *bf16 *fp32 *fp32 *bf16 *fp32 fp32", {**rows, **one},
             {"num_warps": 4, "maxnreg": 88}, ("sm_90",)),
        Case("sum_products", _sum_products, "*fp32 *bf16", {"V": 128, "SLICES": 16, "BN": 32},
             {"num_warps": 1}),
    ]  # fmt: skip


def chunks():
    """Attention over a chunk of the line, and what goes with it."""
    tiling = EXPANDED
    heads = {"H": 16, "VALUE": 128, "VALUE_PAD": 128}
    types = "*bf16 *bf16 *bf16 *bf16 *i32 *i32 *i32 *bf16 *fp32 *fp32 "
    types += "!i32 !i32 !i32 !i32 i32 i32 i32 i32 i32 fp32"
    return [
        Case("line", _line, "*i32 *i32 *i32 i32 i32",
             {"R_PAD": 256, "BT": tiling.tokens, "M": tiling.queries}),
        expansion("expand", "bf16", False), expansion("expand_fp8", "fp8e4nv", True),
        expansion("expand_fp8_whole", "fp8e4nv", False),
        lay_out("lay_out", "bf16", "bf16"), lay_out("lay_out_scaled", "fp8e4nv", "bf16", True),
        lay_out("lay_out_fp8", "fp8e4nv", "fp8e4nv"),
        Case("attend_chunk", _attend_chunk, types,
             {**heads, "NOPE": 128, "NOPE_PAD": 128, "E": 64, "R_PAD": 256, "BT": tiling.tokens,
              "M": tiling.queries, "N": tiling.keys, "STAGES": tiling.stages},
             {"num_warps": tiling.warps, "num_stages": tiling.stages}),
        Case("join_shares", _join_shares, "*i32 *fp32 *fp32 *bf16 i32 i32 i32 i32 fp32",
             {**heads, "ROWS": 16}),
    ]  # fmt: skip
