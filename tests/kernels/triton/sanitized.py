"""Every kind of Triton kernel once on small shapes, for a tool that watches a device's memory.

    compute-sanitizer --tool racecheck python tests/kernels/triton/sanitized.py

Outputs start poisoned and inputs that no row owns are nan, as in the tests, and results are
checked too.
"""

from __future__ import annotations

import sys
from functools import partial

import torch
from tokenspeed_kernels.latent.latent_attention_hopper import LatentAttentionHopper

from tests.kernels.triton import cases, latent_cases
from tests.kernels.triton.cases import BF16, FP8

# New and cached tokens of rows; of these the first three decode.
ROWS, CONTEXTS = [1, 0, 1, 20, 0, 3], [50, 70, 0, 16, 9, 130]
LATENT = {"rank": 512, "rope_dim": 64, "block": 64}


def checks(device: str) -> dict[str, partial[None]]:
    found = {
        "norm": partial(cases.check_add_rms_norm, device, 3, 576),
        "silu": partial(cases.check_silu_mul, device, 3, 300),
        "embedding": partial(cases.check_embedding, device, 50, 576, 5),
        "quantise": partial(cases.check_quantise_rows, device, 3, 576),
        "sample": partial(cases.check_sample, device, 3, 5000),
        "logprobs": partial(cases.check_logprobs, device, 2, 5000, 5),
        "penalties": partial(cases.check_penalties, device, 3, 5000),
        "bitmask": partial(cases.check_bitmask, device, 3, 5000),
        "head_product": partial(latent_cases.check_head_product, device, 17, 3, 128, 512),
    }
    for name, dtype in (("bf16", BF16), ("fp8", FP8)):
        given = {"head_dim": 128, "block": 64, "kv_dtype": dtype}
        found[f"attention {name}"] = partial(
            cases.check_attention, device, ROWS, CONTEXTS, 3, **given
        )
        found[f"rope {name}"] = partial(cases.check_rope, device, 5, 4, 2, 128, 128, True, dtype)
    for rows in (1, 5, 40):
        for kind in ("bf16", "fp8"):
            found[f"linear {rows} {kind}"] = partial(
                cases.check_linear, device, rows, 256, 512, kind
            )
    for kind in ("bf16", "fp8", "scaled"):
        found[f"latent write {kind}"] = partial(
            latent_cases.check_latent_write, device, 3, 16, 128, 512, 64, kind
        )
        for heads in (16, 32, 64, 128):
            found[f"latent {kind} of {heads} heads"] = partial(
                latent_cases.check_latent,
                device,
                ROWS,
                CONTEXTS,
                3,
                heads=heads,
                kind=kind,
                **LATENT,
            )
            found[f"latent {kind} of {heads} heads by roles"] = partial(
                latent_cases.check_latent, device, ROWS, CONTEXTS, 3, heads=heads, kind=kind,
                bind=LatentAttentionHopper, **LATENT,
            )  # fmt: skip
        found[f"latent extend {kind}"] = partial(
            latent_cases.check_latent_extend, device, ROWS, CONTEXTS, first_row=3, kind=kind,
            nope=128, value=128, chunk=128, **LATENT,
        )  # fmt: skip
    return found


def main() -> None:
    torch.manual_seed(7)
    for name, check in checks("cuda").items():
        print(name, flush=True)
        check()
        torch.cuda.synchronize()


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    main()
