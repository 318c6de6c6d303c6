"""The draw in Triton: one pass over the logits, then one program per row on what may be kept.

A filtered row gathers the tokens that can survive (a lower bound on the threshold comes from the
groups' maxima), finds the thresholds among them and draws among the kept ones: few are ranked
against each other, thousands bisected in registers. Rows whose survivors do not fit (a nucleus of
tens of thousands) are searched in full by the same program. Log-probabilities come from the same
pass, by programs that run beside those of the draw.
"""

from __future__ import annotations

import torch

from tokenspeed_kernels.launch_triton import dependent_launch
from tokenspeed_kernels.sampling.draw_triton import draw
from tokenspeed_kernels.sampling.logprobs_triton import list_scanned
from tokenspeed_kernels.sampling.op import Drawn, Edits
from tokenspeed_kernels.sampling.scan_triton import (
    OWN_STATS,
    STATS,
    Scan,
    changes,
    launch_scan,
    mask_words,
)

# Tokens that one program ranks against each other one after the other, and that it bisects. More
# are searched in the logits themselves.
_RANKED = 512
_CAPACITY = 4096
# Groups whose maxima bound a nucleus from below where there is no top-k.
_GUESS = 512
# With four, the histogram in `gather_triton._places` was seen to lose an entry on an H200: every
# row is then searched in full. Its tokens are right all the same.
_WARPS = 8
# A thread's, at most: with more, few programs start before those of the pass are done.
_REGISTERS = 128


def sample(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    top_k: torch.Tensor,
    top_p: torch.Tensor,
    min_p: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    edits: Edits | None = None,
    scored_rows: torch.Tensor | None = None,
    num_logprobs: int = 0,
) -> Drawn:
    """See `op.Sample`."""
    tokens = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    if not len(logits):
        return Drawn(tokens, None)
    parameters = (temperature, top_k, top_p, min_p, seeds, positions)
    scan = Scan(logits, STATS)
    # Kept until the end: what is launched next may write to memory of its own before this is done.
    room = scan.room(len(logits), _CAPACITY)
    own = None if scored_rows is None else Scan(logits, OWN_STATS)
    launch_scan(logits, parameters, edits, scan, own)
    pdl = dependent_launch(logits.device)
    draw[(len(logits),)](
        logits, *parameters, *changes(edits),
        scan.maxima, scan.stats, *room, tokens,
        scan.vocab_size, logits.stride(0), mask_words(edits), scan.chunks, scan.groups,
        **scan.constants, STATS=STATS, RANKED=_RANKED, CAPACITY=_CAPACITY, GUESS=_GUESS,
        EDITED=edits is not None, PDL=pdl, num_warps=_WARPS, launch_pdl=pdl,
        **({"maxnreg": _REGISTERS} if pdl else {}),
    )  # fmt: skip
    if scored_rows is None or own is None:
        return Drawn(tokens, None)
    return Drawn(tokens, list_scanned(logits, own, scored_rows, tokens, num_logprobs, True))
