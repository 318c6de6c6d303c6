"""Compiles every Triton kernel for the targets named on the command line, without a device.

Run as a script, in a process of its own: an interpreting process cannot compile. Prints a JSON
list of {kernel, target, registers, local_bytes, shared_bytes, instructions}.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
import triton.backends.nvidia
import triton.language as tl
from case import TARGETS, Case
from compiled_attention import attention_by_roles, decode_by_rings
from compiled_latent import chunks, expanded_by_roles, joins
from compiled_moe import experts_of_one, packed_by_rings
from compiled_sampling import sampling
from tokenspeed_kernels.activation.silu_mul_triton import _silu_mul
from tokenspeed_kernels.attention.attend_ordered_triton import _attend_ordered, _fold_parts
from tokenspeed_kernels.attention.attend_triton import _attend, _combine
from tokenspeed_kernels.attention.attend_window_triton import _attend_window
from tokenspeed_kernels.attention.paged_attention_triton import (
    DECODE_FEW,
    DECODE_FP8,
    DECODE_MANY,
    DECODE_WINDOW,
    EXTEND,
)
from tokenspeed_kernels.attention.schedule_triton import _schedule
from tokenspeed_kernels.compilers import decoded, encoded
from tokenspeed_kernels.embedding.embedding_triton import _gather
from tokenspeed_kernels.gemm import linear_nibbles_triton as nibbles
from tokenspeed_kernels.gemm import linear_nvfp4_triton as nvfp4
from tokenspeed_kernels.gemm.normed_triton import _one_normed
from tokenspeed_kernels.gemm.quantise_triton import _quantise
from tokenspeed_kernels.gemm.small_triton import _few_rows, _one_row
from tokenspeed_kernels.gemm.streamed_gluon import _streamed
from tokenspeed_kernels.gemm.tiles import Ring, Tile
from tokenspeed_kernels.latent import latent_attention_hopper as of_hopper
from tokenspeed_kernels.latent import latent_attention_triton as of_latent
from tokenspeed_kernels.latent.attend_latent_hopper import _attend_latent_hopper
from tokenspeed_kernels.latent.attend_latent_triton import _attend_latent
from tokenspeed_kernels.latent.head_product_triton import _head_product
from tokenspeed_kernels.latent.latent_kv_write_triton import _latent_kv_write
from tokenspeed_kernels.moe import experts_packed_triton as packed
from tokenspeed_kernels.moe import experts_quantised_triton as quantised
from tokenspeed_kernels.moe import experts_triton as moe
from tokenspeed_kernels.moe.experts_hopper import RINGS
from tokenspeed_kernels.moe.group_triton import _count, _place
from tokenspeed_kernels.moe.grouped_hopper import _grouped
from tokenspeed_kernels.moe.packed_few_triton import _down, _gate_up
from tokenspeed_kernels.moe.packed_many_triton import _down_many, _gate_up_many, _narrow
from tokenspeed_kernels.moe.packed_triton import KINDS, _pack
from tokenspeed_kernels.moe.pairs_triton import _sum_pairs
from tokenspeed_kernels.moe.quantise_groups_triton import _quantise_groups
from tokenspeed_kernels.moe.route_triton import _route
from tokenspeed_kernels.norm.norm_triton import _rms_norm
from tokenspeed_kernels.rope.rope_kv_write_triton import _rope_kv_write
from tokenspeed_kernels.weight import NIBBLE_GROUPS
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language import NVMMASharedLayout

# What to count in the assembly of each target.
COUNTED = {
    "cuda": (
        "mma.sync",
        "wgmma.mma_async",
        "tcgen05.mma",
        "cp.async",
        "cp.async.bulk.tensor",
        "cvt.rn.f16x2.e4m3x2",
        "ld.global.v4",
        "ldmatrix.sync.aligned.m8n8.x4.trans",
        "griddepcontrol.wait",
    ),
    "hip": ("v_mfma",),
}


def attention(name, tiling, kv, block, head_dim=128, heads=32, kv_heads=8, window=0):
    # Small tiles read float8 values in pairs.
    values = "i16" if kv != "bf16" and tiling.rows < 64 else kv
    shared = {"H": heads, "K": kv_heads, "D": head_dim, "P": 33, "M": tiling.rows,
              "REPEATS": 1 if tiling.lanes else kv_heads, "EARLY": True}  # fmt: skip
    sinks = {"HAS_SINKS": True} if window else {"HAS_SINKS": False, "SINKS": None}
    return Case(
        name, _attend, f"*bf16 *{kv} *{values} *i32 *i32 {'*bf16 ' if window else ''}"
        "*bf16 *fp32 *fp32 *i32 i32 i32 fp32 fp32",
        {**shared, **sinks, "WINDOW": window, "BLOCK": block, "N": tiling.keys,
         "SPLIT_LOOP": tiling.split_loop,
         "COMPUTE": tl.bfloat16 if kv == "bf16" else tl.float16, "TMA": False,
         "STAGES": tiling.stages, "SPECIALISE": False,
         "COST": tiling.cost, "PAIRS": values == "i16",
         "JOIN_ROWS": heads // kv_heads if tiling.joins else 0},
        {"num_warps": tiling.warps, "num_stages": tiling.stages},
    )  # fmt: skip


def window_attention(name, kv, head_dim=64):
    return Case(
        name, _attend_window, f"*bf16 *{kv} *{kv} *i32 *i32 *bf16 *bf16 i32 i32 fp32 fp32",
        {"H": 64, "K": 8, "D": head_dim, "BLOCK": 64, "M": 16, "N": 128, "WINDOW": 128,
         "HAS_SINKS": True, "COMPUTE": tl.bfloat16 if kv == "bf16" else tl.float16, "EARLY": True},
        {"num_warps": DECODE_WINDOW.warps},
    )  # fmt: skip


def ordered_attention(name, kv, apart):
    kind = {"COMPUTE": tl.bfloat16 if kv == "bf16" else tl.float16, "APART": apart}
    return Case(
        name, _attend_ordered, f"*bf16 *{kv} *{kv} *i32 *i32 *bf16 *fp32 *fp32 "
        "i32 i32 i32 fp32 fp32",
        {"H": 32, "K": 8, "D": 128, "BLOCK": 64, "M": 64, "N": 64, "P": 33, "USED": 4,
         "MOST": 128, "STAGES": 3, "EARLY": True, **kind},
        {"num_warps": 8, "num_stages": 3}, ("sm_90",),
    )  # fmt: skip


def latent(name, tiling, kv, scaled, targets=tuple(TARGETS)):
    narrow = kv == "fp8e4nv"
    planes = f"*{'i16' if narrow else kv} *{'bf16' if scaled or not narrow else kv}"
    return Case(
        name, _attend_latent,
        f"*bf16 {planes} *fp32 *i32 *i32 *bf16 *fp32 *fp32 !i32 !i32 !i32 i32 fp32 fp32",
        {"H": tiling.rows, "K": 1, "R": 512, "E": 64, "BLOCK": 64, "M": tiling.rows,
         "N": tiling.keys, "P": 132, "COMPUTE": tl.float16 if narrow else tl.bfloat16,
         "ROPE_COMPUTE": tl.bfloat16 if scaled or not narrow else tl.float16, "SCALED": scaled,
         "PAIRS": narrow, "STAGES": tiling.stages, "EARLY": True},
        {"num_warps": tiling.warps, "num_stages": tiling.stages}, targets,
    )  # fmt: skip


def latent_by_roles(name, kv, scaled, rows):
    kinds = {"bf16": tl.bfloat16, "fp8e4nv": tl.float8e4nv, "fp32": tl.float32}

    def box(kind, *shape):
        layout = NVMMASharedLayout.get_default_for(list(shape), kinds[kind])
        return f"tensordesc<{kind}[{shape[0]},{shape[1]}],{layout!r}>".replace(" ", "")

    tiling = of_hopper.TILINGS[1 if kv == "fp8e4nv" else 2][rows]
    rope = "bf16" if scaled else kv
    constants = {
        "H": rows, "K": 1, "R": 512, "E": 64, "BLOCK": 64, "M": rows, "P": 132,
        "STAGES": tiling.stages, "BUFFERS": tiling.buffers,
        "SHARERS": tiling.sharers, "SCALED": scaled, "REGISTERS": tiling.registers,
        "EARLY": True,
    }  # fmt: skip
    maps = f"{box(kv, 64, 512)} {box(rope, 64, 64)}"
    if scaled:
        maps += f" {box('fp32', 1, 64)}"
    else:
        constants["SCALES_MAP"] = None
    return Case(
        name, _attend_latent_hopper,
        f"*bf16 {maps} *i32 *i32 *bf16 *fp32 *fp32 i32 i32 fp32 fp32",
        constants,
        {"num_warps": tiling.warps}
        | ({"maxnreg": tiling.most_registers} if tiling.most_registers else {}),
        ("sm_90",),
    )  # fmt: skip


def experts(name, tiles):
    """Both products of experts of 768 in 2048, of which a token takes 8."""
    first, second = tiles.gate_up, tiles.down
    return [
        Case(f"gate_up_{name}", moe._gate_up, "*bf16 *bf16 *bf16 *i32 *i32 *i32 *bf16 fp32",
             {"D": 2048, "F": 768, "TOP": 8, "M": first.pairs, "N": first.outputs,
              "K": first.inputs, "HAS_BIAS": False, "CLAMP": False,
              "STAGES": first.stages}, {"num_warps": first.warps, "num_stages": first.stages}),
        Case(f"down_{name}", moe._down, "*bf16 *bf16 *bf16 *fp32 *i32 *i32 *i32 *bf16",
             {"D": 2048, "F": 768, "M": second.pairs, "N": second.outputs, "K": second.inputs,
              "HAS_BIAS": False, "STAGES": second.stages},
             {"num_warps": second.warps, "num_stages": second.stages}),
    ]  # fmt: skip


def grouped(narrow, ring, gated, passed=0):
    """A product of Qwen3-30B's experts on Hopper; `narrow`: fp8_block weights; with `passed` parts
    that all tokens pass."""
    name, kind = ("fp8", tl.float8e4nv) if narrow else ("bf16", tl.bfloat16)
    data = "fp8e4nv" if narrow else "bf16"
    maps = []
    for box in ([64, ring.inputs], [ring.pairs, ring.inputs]):
        layout = NVMMASharedLayout.get_default_for(box, kind)
        maps.append(f"tensordesc<{data}{box},{layout!r}>".replace(" ", ""))
    step = 64 * ring.takers
    shape = {"TOP": 8 + passed, "PASSED": passed, "M": ring.pairs, "K": ring.inputs,
             "TAKERS": ring.takers, "STAGES": ring.stages, "SCALE": 2 if narrow else 0,
             "GATED": gated, "token_stride": 1}  # fmt: skip
    scales, out_scales = ["*fp32", "*fp32"], ["*fp32"]
    if not narrow:
        scales, shape["W_SCALES"], shape["X_SCALES"] = [], None, None
    if gated:
        shape |= {"HEIGHT": 1536, "HALF": 768, "STRIDE": step, "ITEMS": 768 // step,
                  "TURNS": 2048 // ring.inputs, "D": 2048, "WIDTH": 768, "X_MAP": None}  # fmt: skip
        del maps[1]
    else:
        shape |= {"HEIGHT": 2048, "HALF": step, "STRIDE": 2 * step, "ITEMS": 1024 // step,
                  "TURNS": 768 // ring.inputs, "D": 768, "WIDTH": 2048}  # fmt: skip
    if passed:
        maps.insert(0, maps[0])
    else:
        shape["PASSED_MAP"] = None
    if not (gated and narrow):
        shape["OUT_SCALES"], out_scales = None, []
    # Of many tokens what a pair makes is rounded.
    made = "bf16" if ring.pairs >= 64 else "fp32"
    types = [*maps, f"*{data}", "*i32", "*i32", "*i32", "*fp32", *scales,
             f"*{data if gated else made}", *out_scales, "i32", "i32"]  # fmt: skip
    which = ("gate_up" if gated else "down") + ("_passed" if passed else "")
    return Case(f"{which}_hopper_{name}_{ring.pairs}", _grouped, " ".join(types), shape,
                {"num_warps": 4}, ("sm_90",))  # fmt: skip


# Weights with their scales, and of rows.
STORED = {
    "fp8_block": "*fp8e4nv *fp32", "mxfp4": "*u8 *u8", "nvfp4": "*u8 *u8 *fp32",
    "int4_g32": "*u8 *bf16",
}  # fmt: skip
ROW_SCALES = {kept: {} if kept == "nvfp4" else {"ROW_SCALES": None} for kept in STORED}


def linear_nibbles(name, kept, tile):
    return Case(f"linear_{name}", nibbles._product,
                f"*bf16 {STORED[kept]} *bf16 i32 i32 !i32",
                {"WIDTH": 4096, "M": tile.rows, "N": tile.outputs, "K": tile.inputs,
                 "GROUP": NIBBLE_GROUPS[kept], "KIND": nibbles.KINDS[kept].value, "BIAS": None,
                 "HAS_BIAS": False, "STAGES": tile.stages},
                {"num_warps": tile.warps, "num_stages": tile.stages})  # fmt: skip


def linear_nvfp4():
    """Also with 8 rows, which only CUDA has products of."""
    wide, types = {"WIDTH": 4096}, "*bf16 *i32 *i32 *fp32 *bf16 i32 i32 !i32"
    facts = {**wide, "PARTS": 1, "BIAS": None, "HAS_BIAS": False}
    return [
        *(Case(f"nvfp4_{tile.rows}", nvfp4._few, types,
               {**facts, "M": tile.rows, "T": tile.tiles, "W": tile.warps, "AHEAD": tile.ahead},
               {"num_warps": tile.warps}, ("sm_90",) if tile.rows == 8 else tuple(TARGETS))
          for tile in (nvfp4.Few(8, 4, 4, 1), nvfp4.Few(16, 2, 8))),
        *(Case(f"nvfp4_many_{tile.rows}", nvfp4._many, types,
               {**facts, "M": tile.rows, "T": tile.tiles, "STAGES": tile.stages},
               {"num_warps": tile.warps, "num_stages": tile.stages})
          for tile in (nvfp4.Many(64, 4, 4), nvfp4.Many(128, 8, 8))),
        Case("nvfp4_widen", nvfp4._widen, "*i32 *i32 *fp32 *bf16 i32", {**wide, "W": 8},
             {"num_warps": 8}),
        Case("nvfp4_pack", nvfp4._pack, "*u8 *i32 i32", {**wide, "BLOCK": 8}, {"num_warps": 8},
             ("sm_90",)),
    ]  # fmt: skip


def quantised_experts(name, kept, tiles):
    """Both products of experts of 2880 in 2880 with biases, of which a token takes 4."""
    first, second = tiles.gate_up, tiles.down
    kind = quantised._KINDS[kept]
    facts = {"D": 2880, "F": 2880, "GROUP": NIBBLE_GROUPS.get(kept, 128), "KIND": kind.value,
             "HAS_BIAS": True, **ROW_SCALES[kept]}  # fmt: skip
    weight = STORED[kept]
    return [
        Case(f"gate_up_{name}", quantised._gate_up,
             f"*bf16 {weight} *bf16 *i32 *i32 *i32 *bf16 fp32",
             {**facts, "TOP": 4, "M": first.pairs, "N": first.outputs, "K": first.inputs,
              "CLAMP": True, "STAGES": first.stages},
             {"num_warps": first.warps, "num_stages": first.stages}),
        Case(f"down_{name}", quantised._down,
             f"*bf16 {weight} *bf16 *fp32 *i32 *i32 *i32 *bf16",
             {**facts, "M": second.pairs, "N": second.outputs, "K": second.inputs,
              "STAGES": second.stages},
             {"num_warps": second.warps, "num_stages": second.stages}),
    ]  # fmt: skip


def packed_experts(name, kept, tiles, width=1024, one=False, targets=tuple(TARGETS)):
    """As `quantised_experts`, packed, `width` in `width`."""
    first, second, many = tiles.gate_up, tiles.down, tiles.stages
    up, down = (_gate_up_many, _down_many) if many else (_gate_up, _down)
    scales = "*i32" if kept == "mxfp4" else "*fp16"
    facts = {"D": width, "F": width, "TOP": 4, "GROUPS": 4, "KIND": KINDS[kept].value,
             "HAS_BIAS": True, **({"STAGES": many} if many else {"ONE": one})}  # fmt: skip
    early = {} if many else {"EARLY": tiles.early}
    pairs, count = "*i32 ", "*i32 "
    if one:
        facts, pairs, count = {**facts, "PAIRS": None, "COUNT": None}, "", ""

    def options(tile):
        stages = {"num_stages": many} if many else {}
        return {**tile.options, **stages}

    def shape(tile):
        few = {} if many else {"W": tile.warps, "AHEAD": tile.ahead}
        return {"M": tile.pairs, "T": tile.tiles, **few}

    return [
        Case(f"gate_up_{name}", up,
             f"*fp16 *i32 {scales} *bf16 {pairs}*i32 {count}*fp16 fp32 fp32",
             {**facts, **shape(first), **early, "CLAMP": True}, options(first), targets),
        Case(f"down_{name}", down,
             f"*fp16 *i32 {scales} *bf16 *fp32 {pairs}*i32 {count}*fp32 fp32 i32",
             {**facts, **shape(second)}, options(second), targets),
    ]  # fmt: skip


def product(name, weight, tile, rows, gated, scale, maps=False):
    """A product with few rows; `scale` as in `small_triton`."""
    constants = {
        "N": tile.outputs, "K": tile.inputs, "SPLITS": tile.splits, "GATED": gated, "EVEN": True,
        "SCALE": scale, "HAS_BIAS": False, "BIAS": None, "STAGES": tile.stages,
    }  # fmt: skip
    scales = "*fp32 " if scale else ""
    if not scale:
        constants["SCALES"] = None
    options = {"num_warps": tile.warps, "num_stages": tile.stages}
    if rows == 1:
        types = f"*bf16 *{weight} {scales}*bf16 !i32 !i32 i32"
        return Case(name, _one_row, types, constants, options)
    box = [tile.outputs // 2 if gated else tile.outputs, tile.inputs]
    tensor_map = f"tensordesc<{weight}{box}>".replace(" ", "")
    types = ["*bf16", f"*{weight}", tensor_map, *scales.split(), "*bf16",
             "i32", "!i32", "!i32", "!i32", "i32"]  # fmt: skip
    if not maps:
        constants["MAP"] = None
        del types[2]
    wide = tl.bfloat16 if weight == "bf16" else tl.float16
    return Case(
        name,
        _few_rows,
        " ".join(types),
        {**constants, "M": rows, "WIDE": wide, "MAPS": maps},
        options,
    )


def streamed(name, ring, rows, gated, kind="bf16", square=0):
    boxes = [[ring.outputs, ring.inputs], [rows, ring.inputs]]
    element = tl.bfloat16 if kind == "bf16" else tl.float8e4nv
    layouts = [NVMMASharedLayout.get_default_for(box, element) for box in boxes]
    maps = [
        f"tensordesc<{kind}{box},{layout!r}>".replace(" ", "")
        for box, layout in zip(boxes, layouts, strict=True)
    ]
    constants = {"SPLITS": ring.splits, "GATED": gated, "HAS_BIAS": False, "BIAS": None,
                 "STAGES": ring.stages, "EVEN": True, "SCALED": kind != "bf16",
                 "SQUARE": square}  # fmt: skip
    scales = ["*fp32", "*fp32"]
    if kind == "bf16":
        constants |= {"W_SCALES": None, "X_SCALES": None}
        scales = []
    types = [*maps, *scales, "*bf16", "i32", "!i32", "!i32"]
    return Case(name, _streamed, " ".join(types), constants, {"num_warps": 4}, ("sm_90",))


# Of a norm: not in float8 as well.
WHOLE = {"QUANTISE": False, "FLOAT8": None, "SCALES": None}


def cases() -> list[Case]:
    return [
        Case("add_rms_norm", _rms_norm, "*bf16 *bf16 *bf16 *bf16 !i32 fp32",
             {"D": 4096, "D_PAD": 4096, "PARTS": 1, "ADD": True, **WHOLE}),
        Case("add_parts_rms_norm", _rms_norm, "*fp32 *bf16 *bf16 *bf16 !i32 fp32",
             {"D": 4096, "D_PAD": 4096, "PARTS": 2, "ADD": True, **WHOLE}),
        Case("add_parts_rms_norm_float8", _rms_norm,
             "*fp32 *bf16 *bf16 *bf16 *fp8e4nv *fp32 !i32 fp32",
             {"D": 4096, "D_PAD": 4096, "PARTS": 2, "ADD": True, "QUANTISE": True},
             {"num_warps": 16}),
        Case("quantise", _quantise, "*bf16 *fp8e4nv *fp32 !i32 !i32", {"PAD": 16384},
             {"num_warps": 16}),
        Case("silu_mul", _silu_mul, "*bf16 *bf16 !i32 !i32", {"BLOCK": 1024}),
        Case("embedding", _gather, "*i32 *bf16 *bf16 !i32", {"BLOCK": 2048}, {"num_warps": 8}),
        *(Case(f"rope_kv_write{name}", _rope_kv_write,
               "*bf16 *i32 *fp32 *i64 *bf16 *bf16 *bf16 *fp8e4nv *fp8e4nv "
               "!i32 !i32 fp32 fp32 fp32",
               {"H": 32, "K": 8, "D": 128, "HALF": 64, "HALF_PAD": 64, "REST": 0, "REST_PAD": 1,
                "HEADS": heads, "PARTS": 1, "NORM": True, "FP8": True}, {"num_warps": 2})
          for name, heads in (("", 8), ("_one", 1))),
        *(Case(f"schedule{name}", _schedule, "*i32 *i32 *i32 i32 i32 i32",
               {"P": 264, "P_PAD": 512, "R_PAD": 128, "STEPS": 9, "TOKENS": 4, "KEYS": 64,
                "REPEATS": 1, "COST": 1, "WINDOW": 0, "MANY": many, "OWN": own, "SECOND": 2,
                "CHUNK": 128})
          for name, many, own in (("", 6, False), ("_own", 0, True))),
        attention("decode_few", DECODE_FEW, "bf16", 64),
        attention("decode_many", DECODE_MANY, "bf16", 16),
        attention("decode_fp8", DECODE_FP8, "fp8e4nv", 64),
        attention("extend", EXTEND, "bf16", 64),
        attention("decode_many_window", DECODE_MANY, "bf16", 64, 64, 64, 8, window=1000),
        window_attention("decode_window", "bf16"),
        window_attention("decode_window_fp8", "fp8e4nv", 128),
        attention("extend_window", EXTEND, "bf16", 64, 64, 64, 8, window=128),
        *(Case(f"combine{name}", _combine, "*i32 *bf16 *fp32 *fp32 i32 fp32",
               {"H": 32, "K": 8, "D": dim, "P": 33, "M": 16, "REPEATS": 1, "ROWS": 1,
                "SPLITS": dim // 4, "BY_TILE": by_tile, "EARLY": True}, {"num_warps": dim // 32})
          for name, by_tile, dim in (("", False, 128), ("_tiles", True, 128), ("_64", True, 64))),
        ordered_attention("ordered_parts", "bf16", True),
        ordered_attention("ordered_whole", "bf16", False),
        ordered_attention("ordered_parts_fp8", "fp8e4nv", True),
        Case("fold_parts", _fold_parts, "*i32 *bf16 *fp32 *fp32 i32 fp32 fp32",
             {"H": 32, "K": 8, "D": 128, "P": 33, "USED": 4, "MOST": 128}, {"num_warps": 1},
             ("sm_90",)),
        Case("latent_kv_write", _latent_kv_write,
             "*bf16 *bf16 *bf16 *i32 *fp32 *i64 *fp8e4nv *bf16 *fp32 *bf16 *bf16 "
             "i32 !i32 !i32 !i32 !i32 fp32 fp32",
             {"H": 16, "H_PAD": 16, "HEAD": 192, "R": 512, "E": 64, "FP8": True, "SCALED": True,
              "BT": 16, "BN": 64, "BK": 128}),
        latent("latent_decode", of_latent.DECODE, "bf16", False),
        latent("latent_decode_fp8", of_latent.MANY_FP8, "fp8e4nv", True),
        latent("latent_few_fp8", of_latent.FEW_FP8, "fp8e4nv", False, ("sm_90",)),
        latent("latent_wide", of_latent.WIDE, "bf16", False, ("sm_90",)),
        latent("latent_half", of_latent.HALF, "bf16", False),
        latent("latent_half_fp8", of_latent.HALF, "fp8e4nv", True),
        *joins(),
        *chunks(),
        Case("route", _route, "*fp32 *fp32 *fp32 *i32 fp32 i32",
             {"PARTS": 1, "E": 256, "TOP": 8, "TOP_PAD": 8, "GROUPS": 8, "GROUPS_PAD": 8,
              "SIZE": 32, "SIZE_PAD": 32, "TOP_GROUPS": 4, "SCORING": "sigmoid",
              "RENORMALISE": True, "BIASED": True, "T": 4}, {"num_warps": 4}),
        Case("route_one", _route, "*fp32 *fp32 *i32 fp32 i32",
             {"PARTS": 8, "E": 128, "TOP": 8, "TOP_PAD": 8, "GROUPS": 1, "GROUPS_PAD": 1,
              "SIZE": 128, "SIZE_PAD": 128, "TOP_GROUPS": 1, "SCORING": "softmax",
              "RENORMALISE": True, "BIASED": False, "BIAS": None, "T": 1}, {"num_warps": 1}),
        Case("count", _count, "*i32 *i32 *i32 *i32 i32 i32",
             {"E_PAD": 128, "CHUNK": 1024, "TOP": 8, "PASSED": 0}, {"num_warps": 8}),
        *(Case(f"place_{programs}", _place, "*i32 *i32 *i32 *i32 *i32 *i32 i32 i32",
               {"E_PAD": 128, "BLOCK": 16, "CHUNK": 1024, "TOP": 6, "PASSED": passed,
                "ALONE": programs == 1}, {"num_warps": 8})
          for programs, passed in ((1, 2), (32, 0))),
        *experts("few", moe.FEW), *experts("many", moe.MANY),
        *quantised_experts("nvfp4_few", "nvfp4", quantised.FEW),
        *quantised_experts("nvfp4_many", "nvfp4", quantised.MANY),
        *linear_nvfp4(),
        linear_nibbles("mxfp4_few", "mxfp4", nibbles.FEW),
        linear_nibbles("int4_many", "int4_g32", nibbles.MANY),
        *quantised_experts("mxfp4_few", "mxfp4", quantised.FEW),
        *quantised_experts("mxfp4_many", "mxfp4", quantised.MANY),
        *packed_experts("packed_one", "mxfp4", packed.ONE, 2880, one=True, targets=("sm_90",)),
        *packed_experts("packed_few", "mxfp4", packed.FEW, targets=("sm_90",)),
        *packed_experts("packed_some", "mxfp4", packed.SOME),
        *packed_experts("packed_many", "mxfp4", packed.MANY, 2880),
        *(Case(f"pack_{kept}", _pack, "*u8 *i32",
               {"WIDTH": 2880, "KIND": KINDS[kept].value, "BLOCK": 8}, {"num_warps": 8},
               ("sm_90",)) for kept in ("mxfp4", "int4")),
        Case("narrow", _narrow, "*bf16 *fp16", {"D": 2880, "TURN": True, "BLOCK": 1024}),
        Case("sum_parts", _sum_pairs, "*fp32 *bf16 *bf16",
             {"D": 2880, "TOP": 4, "BLOCK": 1024, "APART": True, "HAS_ADDED": True}),
        *quantised_experts("fp8_many", "fp8_block", quantised.MANY_FP8),
        *experts_of_one(),
        *packed_by_rings(),
        Case("quantise_groups", _quantise_groups, "*bf16 *fp8e4nv *fp32",
             {"D": 2048, "SIZE": 128, "COUNT_PAD": 16}),
        Case("sum_pairs", _sum_pairs, "*bf16 *bf16 *bf16",
             {"D": 2048, "TOP": 8, "BLOCK": 1024, "APART": False, "HAS_ADDED": True}),
        Case("head_product", _head_product, "*bf16 *bf16 *bf16 i32 !i32 !i32 !i32 !i32",
             {"K": 512, "N": 128, "BT": 16, "BN": 16, "BK": 512}, {"num_warps": 8}),
        *sampling(),
        Case("normed", _one_normed, "*bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *bf16 !i32 fp32",
             {"D": 2048, "D_PAD": 2048, "N": 8, "PARTS": 1, "HAS_BIAS": False, "BIAS": None}),
        Case("normed_parts", _one_normed,
             "*fp32 *bf16 *bf16 *bf16 *bf16 *bf16 *bf16 *fp32 !i32 fp32",
             {"D": 2880, "D_PAD": 4096, "N": 1, "PARTS": 4, "HAS_BIAS": True}),
        product("one_row", "bf16", Tile(16, 256, 4, 4), 1, True, 0),
        product("one_row_fp8", "fp8e4nv", Tile(16, 512, 8, 3), 1, False, 1),
        product("few_rows", "bf16", Tile(32, 128, 4, 4), 16, False, 0),
        product("few_rows_fp8", "fp8e4nv", Tile(32, 256, 2, 4), 16, True, 1),
        product("few_rows_fp8_maps", "fp8e4nv", Tile(16, 512, 1, 3), 16, False, 1, maps=True),
        product("few_rows_fp8_block", "fp8e4nv", Tile(32, 128, 2, 6), 8, False, 2),
        streamed("streamed", Ring(128, 11, 2), 8, False),
        streamed("streamed_gated", Ring(64, 3), 128, True),
        streamed("streamed_fp8", Ring(256, 6, 2), 8, False, "fp8e4nv"),
        streamed("streamed_gated_fp8", Ring(128, 4), 128, True, "fp8e4nv"),
        streamed("streamed_blocks", Ring(128, 16, 2), 8, False, "fp8e4nv", 128),
        streamed("streamed_gated_blocks", Ring(128, 3), 64, True, "fp8e4nv", 128),
    ]  # fmt: skip


def compile_case(case: Case, target: str) -> dict[str, Any]:
    kind = TARGETS[target].backend
    constants = dict(case.constants)
    if "PDL" in case.kernel.arg_names:
        constants["PDL"] = kind == "cuda"
    free = [name for name in case.kernel.arg_names if name not in constants]
    types = case.types.split()
    assert len(free) == len(types), f"{case.name}: {free} and {types}"
    signature = dict.fromkeys(case.kernel.arg_names, "constexpr")
    attributes = {}
    for name, kind_of in zip(free, types, strict=True):
        signature[name] = kind_of.lstrip("!")
        if kind_of[0] in "*!":
            attributes[(case.kernel.arg_names.index(name),)] = [["tt.divisibility", 16]]
    source = (GluonASTSource if case.kernel.is_gluon() else ASTSource)(
        fn=case.kernel, signature=signature, constexprs=constants, attrs=attributes
    )
    # A worker has other processes compile, which are told in JSON.
    sent, place, options = decoded(encoded(source, TARGETS[target], case.options))
    assert sent.hash() == source.hash(), f"{case.name} would be another kernel"
    compiled = triton.compile(sent, target=place, options=options)
    text = compiled.asm["ptx" if kind == "cuda" else "amdgcn"]
    result = {
        "kernel": case.name,
        "target": target,
        "shared_bytes": compiled.metadata.shared,
        "instructions": {word: text.count(word) for word in COUNTED[kind]},
    }
    if case.kernel.is_gluon():
        result["lost_barriers"] = lost_barriers(compiled.asm["ttgir"])
    if kind == "cuda":
        result |= _resources(compiled.asm["cubin"])
        if "wgmma.mma_async" in text:
            result["waits"] = _tool(compiled.asm["cubin"], "-sass").count("WARPGROUP.DEPBAR")
    else:
        result["registers"] = int(re.search(r"\.vgpr_count:\s+(\d+)", text)[1])
        result["local_bytes"] = int(re.search(r"\.private_segment_fixed_size:\s+(\d+)", text)[1])
    return result


def lost_barriers(text: str) -> list[str]:
    """Barriers of a Gluon kernel whose room the compiler gives to other data once they are made:
    those that no role is handed and nothing keeps. A barrier that was not invalidated may swallow
    what is written there (PTX, mbarrier.init)."""
    of_whole = dict(re.findall(r"(%[\w#]+) = ttg\.memdesc_index (%[\w#]+)\[", text))
    made = re.findall(r"ttng\.init_barrier (%[\w#]+)", text)
    kept = re.findall(r"(?:ttg\.local_dealloc|ttng\.inval_barrier) (%[\w#]+)", text)
    for handed in re.findall(r"ttg\.warp_specialize\(([^)]*)\)", text):
        kept += handed.split(", ")
    made, kept = [{of_whole.get(one, one) for one in ones} for ones in (made, kept)]
    return sorted(made - kept)


def _tool(cubin: bytes, what: str) -> str:
    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run(
            [tool, what, file.name], capture_output=True, text=True, check=True
        ).stdout


def _resources(cubin: bytes) -> dict[str, int]:
    usage = _tool(cubin, "--dump-resource-usage")
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    return {"registers": int(registers), "local_bytes": int(stack)}


LATENT_BY_ROLES = [
    ("latent_roles_16", "bf16", False, 16), ("latent_roles_32", "bf16", False, 32),
    ("latent_roles_64", "bf16", False, 64), ("latent_roles_16_scaled", "fp8e4nv", True, 16),
    ("latent_roles_16_fp8", "fp8e4nv", False, 16), ("latent_roles_32_scaled", "fp8e4nv", True, 32),
]  # fmt: skip


if __name__ == "__main__":
    wanted = sys.argv[1:] or list(TARGETS)
    made = [(case, target) for target in wanted for case in cases() if target in case.targets]
    if "sm_90" in wanted:
        made += [(attention_by_roles(head_dim), "sm_90") for head_dim in (64, 128)]
        made += [(case, "sm_90") for case in decode_by_rings()]
        made += [(latent_by_roles(*case), "sm_90") for case in LATENT_BY_ROLES]
        made += [(expanded_by_roles(), "sm_90")]
        made += [(grouped(*ring, gated), "sm_90") for ring in RINGS for gated in (True, False)]
        few = RINGS[0]
        made += [(grouped(*few, gated, passed=2), "sm_90") for gated in (True, False)]
    print(json.dumps([compile_case(case, target) for case, target in made]))
