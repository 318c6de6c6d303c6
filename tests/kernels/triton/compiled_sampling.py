"""The kernels of sampling, to compile."""

from __future__ import annotations

from case import Case
from tokenspeed_kernels.sampling.draw_triton import draw
from tokenspeed_kernels.sampling.logprobs_triton import list_logprobs
from tokenspeed_kernels.sampling.scan_triton import (
    CHUNK,
    FEW,
    GROUP,
    OWN_STATS,
    RUNS,
    STATS,
    TURN,
    scan,
)


def sampling() -> list[Case]:
    parameters = "*fp32 *fp32 *i32 *fp32 *fp32 *i64 *i64"
    edits = "*i64 *i16 *fp32 *fp32 *fp32 *fp32 *fp32 *i32 *i32"
    changes = dict.fromkeys(
        (
            "SLOTS",
            "COUNTS",
            "REPETITION",
            "PRESENCE",
            "FREQUENCY",
            "BIASED",
            "BIAS",
            "MASK_OF",
            "MASKS",
        )
    )
    drawing = dict.fromkeys(
        ("TEMPERATURE", "TOP_K", "TOP_P", "MIN_P", "SEEDS", "POSITIONS", "GROUPS", "CHUNKS")
    )
    scanned = {"CHUNK": CHUNK, "GROUP": GROUP, "STATS": STATS, "OWN_STATS": OWN_STATS}
    few = {"CHUNKS_PAD": 32, "GROUPS_PAD": 2048, "GROUP": GROUP, "FEW": FEW, "RUNS": RUNS}
    kept = {**few, "STATS": STATS, "RANKED": 512, "CAPACITY": 4096, "GUESS": 512}
    room = "*i32 *fp32 *i32"
    warps = {"num_warps": 8}
    few_registers = {**warps, "maxnreg": 128}
    return [
        Case("scan", scan, f"{parameters} *fp32 *fp32 !i32 !i32 !i32",
             {**changes, **scanned, "OWN_GROUPS": None, "OWN_CHUNKS": None, "EDITED": False,
              "DRAW": True, "OWN": False}, warps),
        Case("scan_edited", scan, f"{parameters} {edits} *fp32 *fp32 *fp32 *fp32 !i32 !i32 !i32",
             {**scanned, "EDITED": True, "DRAW": True, "OWN": True}, warps),
        Case("scan_own", scan, "*fp32 *fp32 *fp32 !i32 !i32 !i32",
             {**changes, **drawing, **scanned, "EDITED": False, "DRAW": False, "OWN": True}, warps),
        Case("draw", draw, f"{parameters} *fp32 *fp32 {room} *i32 !i32 !i32 !i32 i32 !i32",
             {**changes, **kept, "EDITED": False}, few_registers),
        Case("draw_edited", draw,
             f"{parameters} {edits} *fp32 *fp32 {room} *i32 !i32 !i32 !i32 i32 !i32",
             {**kept, "EDITED": True}, few_registers),
        Case("logprobs", list_logprobs,
             f"*fp32 *i64 *i32 *fp32 *fp32 {room} *fp32 *fp32 *i32 !i32 !i32 i32 !i32 i32",
             {**few, "FEW": 64, "STATS": OWN_STATS, "CAPACITY": 2048, "TURN": TURN,
              "BESIDE": True}, warps),
    ]  # fmt: skip
