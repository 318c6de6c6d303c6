"""Every kind of Triton kernel once on small shapes, for a tool that watches a device's memory.

    compute-sanitizer python tests/kernels/triton/sanitized.py [WORD...] [--after NAME]

With words: only checks that have one of them in their name. With --after: only those behind NAME.
Outputs start poisoned and inputs that no row owns are nan, as in the tests, and results are
checked too.
"""

from __future__ import annotations

import sys
from functools import partial

import torch
from tokenspeed_kernels.attention.paged_attention_hopper import (
    EXTEND_HOPPER,
    RING_MANY,
    bind_hopper,
)
from tokenspeed_kernels.latent import latent_extend_hopper
from tokenspeed_kernels.latent.latent_attention_hopper import LatentAttentionHopper
from tokenspeed_kernels.moe.experts_packed_hopper import ExpertsPackedHopper
from tokenspeed_kernels.moe.experts_packed_triton import ExpertsPackedTriton

from tests.kernels.triton import cases, latent_cases, moe_cases
from tests.kernels.triton.cases import BF16, FP8
from tests.kernels.triton.sanitize import each

# New and cached tokens of rows; of these the first three decode.
ROWS, CONTEXTS = [1, 0, 1, 20, 0, 3], [50, 70, 0, 16, 9, 130]
LATENT = {"rank": 512, "rope_dim": 64, "block": 64}


def checks(device: str) -> dict[str, partial[None]]:
    found = {
        "norm": partial(cases.check_add_rms_norm, device, 3, 576),
        "silu": partial(cases.check_silu_mul, device, 3, 300),
        "embedding": partial(cases.check_embedding, device, 50, 576, 5),
        "quantise": partial(cases.check_quantise_rows, device, 3, 576),
        "sample": partial(cases.check_sample, device, 3, 5000, k=5, edited=True),
        "logprobs": partial(cases.check_logprobs, device, 2, 5000, 5),
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
        found[f"latent extend {kind} by roles"] = partial(
            latent_cases.check_latent_extend, device, ROWS, CONTEXTS, first_row=3, kind=kind,
            nope=128, value=128, chunk=128, tiling=latent_extend_hopper.HOPPER,
            attend=latent_extend_hopper.AttendHopper, by_torch=True, **LATENT,
        )  # fmt: skip
    return found | by_roles(device) | experts(device)


def by_roles(device: str) -> dict[str, partial[None]]:
    """Attention of prompts: split q tiles, and whole ones that programs draw."""
    given = {"block": 64, "extend": EXTEND_HOPPER, "bind": bind_hopper}
    many = {"heads": 32, "kv_heads": 8, "head_dim": 64}
    short = [50, 0, 300, 128] * 5
    return {
        "attention by roles": partial(
            cases.check_attention, device, ROWS, CONTEXTS, 3, head_dim=128, **given
        ),
        "attention by roles of many rows": partial(
            cases.check_attention, device, [70] * 40, [9] * 40, 0, **given, **many
        ),
        "attention by rings": partial(
            cases.check_attention, device, [1] * len(short), short, len(short), **given, **many
        ),
        "attention by rings that turn queries": partial(
            cases.check_from_qkv, device, short, 2, True, RING_MANY, bind_hopper, 64
        ),
    }


def experts(device: str) -> dict[str, partial[None]]:
    sizes = {"experts": 4, "top": 2, "hidden": 256, "inner": 128}
    found = {
        f"experts of {tokens} tokens": partial(moe_cases.check_experts, device, tokens, **sizes)
        for tokens in (1, 5, 90)
    }
    for kept in ("bfloat16", "fp8_block"):
        for tokens in (5, 90):
            found[f"experts {kept} by roles of {tokens} tokens"] = partial(
                moe_cases.check_hopper_experts, device, tokens, kept, **sizes
            )
    found["experts by roles beside what all tokens pass"] = partial(
        moe_cases.check_hopper_experts, device, 5, "bfloat16", shared=256, **sizes
    )
    found["second product of one token by a ring"] = partial(
        moe_cases.check_hopper_experts, device, 1, "bfloat16", **{**sizes, "inner": 256}
    )
    for tokens in (1, 5, 90):
        found[f"experts packed of {tokens} tokens"] = partial(
            moe_cases.check_quantised_experts, device, tokens, "mxfp4",
            kernel=ExpertsPackedTriton, **sizes,
        )  # fmt: skip
    found["experts packed of 5 tokens by rings"] = partial(
        moe_cases.check_quantised_experts, device, 5, "mxfp4", kernel=ExpertsPackedHopper, **sizes
    )
    return found


def main(arguments: list[str]) -> None:
    torch.manual_seed(7)
    found = checks("cuda")
    for name in each(list(found), arguments):
        found[name]()
        torch.cuda.synchronize()


if __name__ == "__main__":
    if not torch.cuda.is_available():
        sys.exit("no CUDA device")
    main(sys.argv[1:])
