"""Experts of few tokens, by kernels of their own."""

from __future__ import annotations

import triton.language as tl
from case import Case
from tokenspeed_kernels.moe import experts_packed_hopper as packed
from tokenspeed_kernels.moe import one_token_hopper
from tokenspeed_kernels.moe import one_token_triton as one_token
from tokenspeed_kernels.moe.packed_one_gluon import _packed_one
from tokenspeed_kernels.moe.packed_stream_gluon import _packed_stream
from triton.experimental.gluon.language import NVMMASharedLayout


def experts_of_one():
    """Those of one token: V2-Lite's with what all tokens pass, and Qwen3-30B's alone."""
    beside = {"D": 2048, "F": 1408, "S": 2816, "TOP": 6, "SCALE": 0, "HAS_BIAS": True}
    alone = {"D": 2048, "F": 768, "S": 0, "TOP": 8, "HAS_BIAS": False, "BIAS": None,
             "SHARED": None}  # fmt: skip
    no_scales = {"SCALE": 0, "SCALES": None}
    first = {"D_PAD": 2048, "CLAMP": False}
    second = {"F_PAD": 1024, "REST_PAD": 0, "S_PAD": 1, "TOP_PAD": 8, "HAS_ADDED": False,
              "ADDED": None}  # fmt: skip
    tile = one_token.ONE
    cases = [
        Case("gate_up_one", one_token._gate_up_one,
             "*bf16 *bf16 *bf16 *bf16 *i32 *bf16 fp32",
             {**beside, **first, **no_scales, "N": tile.gate_up, "CLAMP": True},
             {"num_warps": tile.warps}),
        Case("down_one", one_token._down_one,
             "*bf16 *bf16 *bf16 *bf16 *fp32 *i32 *bf16",
             {**beside, **second, **no_scales, "F_PAD": 2048, "S_PAD": 4096},
             {"num_warps": tile.down_warps}),
        Case("gate_up_one_alone", one_token._gate_up_one, "*bf16 *bf16 *i32 *bf16 fp32",
             {**alone, **first, **no_scales, "N": tile.gate_up}, {"num_warps": tile.warps},
             ("sm_90",)),
        Case("down_one_alone", one_token._down_one, "*bf16 *bf16 *fp32 *i32 *bf16",
             {**alone, **second, **no_scales}, {"num_warps": tile.down_warps}, ("sm_90",)),
    ]  # fmt: skip
    for name, scale, narrow in (
        ("fp8", 1, one_token.ONE_FP8), ("fp8_block", 2, one_token.ONE_FP8_BLOCK),
    ):  # fmt: skip
        pieces, bound = {"SCALE": scale}, {}
        if scale == 1:
            pieces |= {"F_PAD": 512, "REST_PAD": 256}
            bound = {"maxnreg": one_token._FEW_REGISTERS}
        cases += [
            Case(f"gate_up_one_{name}", one_token._gate_up_one,
                 "*bf16 *fp8e4nv *fp32 *i32 *bf16 fp32",
                 {**alone, **first, "SCALE": scale, "N": narrow.gate_up},
                 {"num_warps": narrow.warps}, ("sm_90",)),
            Case(f"down_one_{name}", one_token._down_one,
                 "*bf16 *fp8e4nv *fp32 *fp32 *i32 *bf16", {**alone, **second, **pieces},
                 {"num_warps": narrow.down_warps, **bound}, ("sm_90",)),
        ]  # fmt: skip
    return [*cases, by_ring()]


def by_ring():
    """Their second product for Qwen3-30B's."""
    box = [one_token_hopper.ROWS, one_token_hopper.INPUTS]
    layout = NVMMASharedLayout.get_default_for(box, tl.bfloat16)
    weight = f"tensordesc<bf16{box},{layout!r}>".replace(" ", "")
    return Case("down_one_ring", one_token_hopper._down_ring, f"{weight} *bf16 *fp32 *i32 *bf16",
                {"D": 2048, "F": 768, "TOP": 8, "INNER_PAD": 8192,
                 "STAGES": one_token_hopper.STAGES}, {"num_warps": one_token_hopper.WARPS},
                ("sm_90",))  # fmt: skip


def packed_by_rings():
    """gpt-oss's, of few tokens and of one."""
    found = []
    few, one = packed.FEW, packed.ONE
    for product, out in (("gate_up", "*fp16"), ("down", "*fp32")):
        gated = product == "gate_up"
        shape = {"WIDTH": 2880, "OUTPUTS": 2880, "TOP": 4, "GATED": gated, "HAS_BIAS": True,
                 "CLAMP": True}  # fmt: skip
        found += [
            Case(f"{product}_packed_ring", _packed_stream,
                 f"*fp16 *i32 *i32 *bf16 *fp32 *i32 *i32 *i32 {out} fp32 fp32 i32",
                 {**shape, "STAGES": few.stages, "NEIGHBOURS": few.programs},
                 {"num_warps": 1, "maxnreg": few.most_registers}, ("sm_90",)),
            Case(f"{product}_packed_ring_one", _packed_one,
                 f"*fp16 *i32 *i32 *bf16 *fp32 *i32 {out} fp32 fp32",
                 {**shape, "STAGES": one.stages, "SPLITS": 1 if gated else one.splits},
                 {"num_warps": 1}, ("sm_90",)),
        ]  # fmt: skip
    return found
