"""Checks of the Triton kernels against their references, for a device and a shape.

The interpreter runs them on small shapes, a GPU on real ones. Outputs start poisoned; inputs are
fresh random numbers. A bfloat16 result may differ from the float32 truth by its own rounding (up to
2^-8) and that of one intermediate.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from tokenspeed_kernels.activation import reference as activation_reference
from tokenspeed_kernels.activation.silu_mul_triton import silu_mul
from tokenspeed_kernels.attention import reference as attention_reference
from tokenspeed_kernels.attention.paged_attention_triton import (
    EXTEND,
    PagedAttentionTriton,
    Tiling,
    paged_attention,
)
from tokenspeed_kernels.embedding.embedding_triton import EmbeddingTriton
from tokenspeed_kernels.gemm.linear_triton import LinearSiluMulTriton, LinearTriton
from tokenspeed_kernels.gemm.op import Unnormed
from tokenspeed_kernels.gemm.quantise_triton import quantise_rows
from tokenspeed_kernels.gemm.small_triton import multiply
from tokenspeed_kernels.gemm.tiles import Ring, Tile
from tokenspeed_kernels.norm import reference as norm_reference
from tokenspeed_kernels.norm.norm_triton import add_rms_norm, add_rms_norm_float8, rms_norm
from tokenspeed_kernels.rope import reference as rope_reference
from tokenspeed_kernels.rope.rope_kv_write_triton import rope_kv_write
from tokenspeed_kernels.sampling import reference as sampling_reference
from tokenspeed_kernels.sampling.logprobs_triton import log_softmax_topk
from tokenspeed_kernels.sampling.op import Edits
from tokenspeed_kernels.sampling.philox import token_bits
from tokenspeed_kernels.sampling.sample_triton import sample
from tokenspeed_kernels.weight import RawWeight

from tests.kernels.sampling.unsound import unsound_rows

BF16 = torch.bfloat16
FP8 = torch.float8_e4m3fn


def poisoned(*shape, dtype, device):
    """Memory full of nan."""
    if dtype is FP8:
        return torch.full(shape, 0x7F, dtype=torch.uint8, device=device).view(FP8)
    return torch.full(shape, float("nan"), dtype=dtype, device=device)


def assert_near(out, expected, relative):
    """Relative error of the whole in the 2-norm; nan never passes."""
    out, expected = out.double(), expected.double()
    error = (out - expected).norm() / expected.norm().clamp(min=1e-30)
    assert error <= relative, f"relative error {error:.2e} over {relative:.0e}"


def check_rms_norm(device, rows, width):
    x = torch.randn(rows, width, device=device).to(BF16)
    weight = (torch.randn(width, device=device) * 0.2 + 1).to(BF16)
    out = poisoned(rows, width, dtype=BF16, device=device)
    assert rms_norm(x, weight, 1e-5, out=out) is out
    torch.testing.assert_close(out, norm_reference.rms_norm(x, weight, 1e-5), rtol=1.6e-2, atol=0)


def check_add_rms_norm(device, rows, width):
    x = torch.randn(rows, width, device=device).to(BF16)
    residual = torch.randn(rows, width, device=device).to(BF16)
    weight = (torch.randn(width, device=device) * 0.2 + 1).to(BF16)
    expected_residual = residual.clone()
    expected = norm_reference.add_rms_norm(x, expected_residual, weight, 1e-6)
    out = poisoned(rows, width, dtype=BF16, device=device)
    add_rms_norm(x, residual, weight, 1e-6, out=out)
    assert torch.equal(residual, expected_residual)
    torch.testing.assert_close(out, expected, rtol=1.6e-2, atol=0)


def check_add_parts_rms_norm(device, parts, rows, width):
    x = torch.randn(parts, rows, width, device=device)
    residual = torch.randn(rows, width, device=device).to(BF16)
    weight = (torch.randn(width, device=device) * 0.2 + 1).to(BF16)
    before, expected_residual = residual.clone(), (residual.float() + x.sum(0)).to(BF16)
    expected = norm_reference.rms_norm(expected_residual, weight, 1e-6)
    out = poisoned(rows, width, dtype=BF16, device=device)
    add_rms_norm(x, residual, weight, 1e-6, out=out)
    # Where many parts cancel, what is left depends on their order.
    near = 1e-6 if parts <= 4 else 1e-5
    torch.testing.assert_close(residual, expected_residual, rtol=8e-3, atol=near)
    torch.testing.assert_close(out, expected, rtol=2.4e-2, atol=near)
    made = add_rms_norm_float8(x, before, weight, 1e-6)
    torch.testing.assert_close(made.rows, expected, rtol=2.4e-2, atol=near)
    check_float8(made.rows, made.float8, made.scales)


def check_normed(device, out_features, width, parts=1, bias=False, dtype=BF16):
    """The product of a row that makes its row's norm, beside norm and product."""
    x = torch.randn(parts, 1, width, device=device)
    x = x.to(BF16)[0] if parts == 1 else x
    residual = torch.randn(1, width, device=device).to(BF16)
    norm = (torch.randn(width, device=device) * 0.2 + 1).to(BF16)
    data, _, exact = random_weight(device, "bf16", out_features, width)
    weight = RawWeight("bfloat16", (out_features, width), data)
    offset = torch.randn(out_features, device=device).to(BF16) if bias else None
    expected_total, before = residual.clone(), residual.clone()
    expected = add_rms_norm(x, expected_total, norm, 1e-6)
    places = [poisoned(1, width, dtype=BF16, device=device) for _ in range(2)]
    made = LinearTriton(weight, offset)
    assert made.norms_itself
    given = Unnormed(x, residual, norm, 1e-6, *places)
    out = made.parts(given, dtype)
    assert out.dtype is dtype and out.shape == (1, out_features)
    assert torch.equal(residual, before)
    assert torch.equal(given.total, expected_total)
    # Sums of squares in another order: a rounding may fall the other way.
    torch.testing.assert_close(given.rows, expected, rtol=1.6e-2, atol=0)
    product = given.rows.double() @ exact.T + (0 if offset is None else offset.double())
    assert_near(out, product, 4e-3)


def check_silu_mul(device, rows, width):
    x = (torch.randn(rows, 2 * width, device=device) * 3).to(BF16)
    out = poisoned(rows, width, dtype=BF16, device=device)
    silu_mul(x, out=out)
    # Two roundings to bfloat16, of which one may fall the other way.
    torch.testing.assert_close(out, activation_reference.silu_mul(x), rtol=1.6e-2, atol=1e-6)


def check_embedding(device, vocab, width, rows):
    table = torch.randn(vocab, width, device=device).to(BF16)
    tokens = torch.randint(0, vocab, (rows,), device=device, dtype=torch.int32)
    embed = EmbeddingTriton(RawWeight("bfloat16", (vocab, width), table), BF16)
    out = poisoned(rows, width, dtype=BF16, device=device)
    assert torch.equal(embed(tokens, out=out), table[tokens.long()])


def rotated_exactly(heads, norm, angles, eps=1e-6):
    """Heads [T, H, D], normed if asked and rotated in float64, and how far from that a kernel may
    be: bfloat16 is rounded to before and after the norm's weight and at the end, each time by
    2^-8 of a value at most, and where the rotation cancels what it adds is larger than its sum."""
    wide, half = heads.double(), angles.shape[-1] // 2
    off = 2**-20  # by float32
    if norm is not None:
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        wide, off = wide * scale * norm.double(), 2.01 * 2**-8
    cos, sin = angles.double().unsqueeze(1).split(half, -1)
    a, b, rest = wide.tensor_split((half, 2 * half), -1)
    exact = torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)
    cos, sin, a, b, rest = (x.abs() for x in (cos, sin, a, b, rest))
    added = torch.cat((a * cos + b * sin, b * cos + a * sin, rest), -1)
    return exact, exact.abs() * 2**-8 + added * off * (1 + 2**-8)


def assert_within(out, exact, near):
    """Each element; nan never passes."""
    over = ~((out.double() - exact).abs() <= near)
    worst = (out.double() - exact).abs()[over], near[over]
    assert not over.any(), f"{int(over.sum())} of {over.numel()}: {worst}"


def check_cache(cache, slots, exact, near, scale):
    """Values [T, K, D] as a cache holds them in `slots`, `near` what they should be before float8
    rounds; all others are nan."""
    stored = cache.float().flatten(0, 1)
    if cache.dtype is FP8:
        largest = 448 * scale
        exact = exact.clamp(-largest, largest)
        # Half a step of 1/8 of a value's power of two, or of the least step there is.
        near = near + ((exact.abs() + near) * 2**-4).clamp(min=scale * 2**-10)
    assert_within(stored[slots] * scale, exact, near)
    others = torch.ones(len(stored), dtype=torch.bool, device=stored.device)
    others[slots] = False
    assert stored[others].isnan().all()


def check_rope(device, tokens, heads, kv_heads, head_dim, rotary_dim, norm, kv_dtype, parts=1):
    blocks, block_size = tokens // 4 + 3, 16
    given = torch.randn(parts, tokens, (heads + 2 * kv_heads) * head_dim, device=device)
    qkv = sum(given[1:], given[0]).to(BF16)
    given = given if parts > 1 else qkv
    angles = torch.rand(64, rotary_dim // 2, device=device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    positions = torch.randint(0, 64, (tokens,), device=device, dtype=torch.int32)
    slots = torch.randperm(blocks * block_size, device=device)[:tokens]
    norms = [torch.randn(head_dim, device=device).to(BF16) if norm else None for _ in "qk"]
    scales = (0.02, 0.5) if kv_dtype is FP8 else (1.0, 1.0)
    shape = (blocks, block_size, kv_heads, head_dim)
    q, k, v = qkv.view(tokens, -1, head_dim).split([heads, kv_heads, kv_heads], 1)
    by_token = cos_sin[positions.long()]
    exact = [rotated_exactly(x, own, by_token) for x, own in zip((q, k), norms, strict=True)]
    into = poisoned(tokens, heads, head_dim, dtype=BF16, device=device)
    mine = partial(rope_kv_write, given, out=into)
    for kernel in (mine, partial(rope_reference.rope_kv_write, qkv)):
        caches = [poisoned(*shape, dtype=kv_dtype, device=device) for _ in "kv"]
        out = kernel(heads, kv_heads, positions, cos_sin, slots, *caches, *norms, 1e-6, *scales)
        assert_within(out, *exact[0])
        check_cache(caches[0], slots, *exact[1], scales[0])
        check_cache(caches[1], slots, v.double(), torch.zeros_like(v.double()), scales[1])


def attention_batch(device, query_lens, contexts, heads, kv_heads, head_dim, block, kv_dtype):
    """Random rows in random blocks; whatever no row owns is nan, unused table entries wild."""
    seq_lens = [q + c for q, c in zip(query_lens, contexts, strict=True)]
    needed = [(s + block - 1) // block for s in seq_lens]
    order = torch.randperm(sum(needed) + 1)[: sum(needed)].to(torch.int32)
    tables = torch.full((len(needed), max([*needed, 1]) + 1), 2**30, dtype=torch.int32)
    caches = [
        poisoned(sum(needed) + 1, block, kv_heads, head_dim, dtype=kv_dtype, device=device)
        for _ in "kv"
    ]
    taken = 0
    for row, (count, seq_len) in enumerate(zip(needed, seq_lens, strict=True)):
        blocks = order[taken : taken + count]
        tables[row, :count] = blocks
        taken += count
        token = torch.arange(seq_len)
        slots = blocks.long()[token // block] * block + token % block
        for cache in caches:
            values = torch.randn(seq_len, kv_heads, head_dim, device=device).to(kv_dtype)
            flat = cache.view(torch.uint8).flatten(0, 1)
            flat[slots.to(device)] = values.view(torch.uint8)
    q = torch.randn(sum(query_lens), heads, head_dim, device=device).to(BF16)
    cu = torch.tensor([0, *torch.tensor(query_lens).cumsum(0).tolist()], dtype=torch.int32)
    return (
        q, *caches, tables.to(device), cu.to(device),
        torch.tensor(contexts, dtype=torch.int32, device=device),
    )  # fmt: skip


def check_attention(
    device, query_lens, contexts, num_decode_rows, *, heads=8, kv_heads=2, head_dim=64,
    block=16, kv_dtype=BF16, decode: Tiling | None = None, extend: Tiling = EXTEND,
    bind=PagedAttentionTriton, window=0, sinks=False,
):  # fmt: skip
    q, k, v, tables, cu, context = attention_batch(
        device, query_lens, contexts, heads, kv_heads, head_dim, block, kv_dtype
    )
    logits = torch.randn(heads, device=device) * 3 if sinks else None
    scale = head_dim**-0.5
    scales = (0.9, 1.7) if kv_dtype is FP8 else (1.0, 1.0)
    expected = attention_reference.paged_attention(
        q, k, v, tables, cu, context, scale, 0, *scales, window, logits
    )
    if window:
        # What slid out of every query's sight is anybody's.
        for row, length in enumerate(contexts):
            tables[row, : max(0, length + 1 - window) // block] = 2**30
    bound = bind(
        heads, kv_heads, head_dim, num_decode_rows, len(query_lens) - num_decode_rows,
        sum(query_lens), kv_dtype, torch.device(device), decode=decode, extend=extend,
        window=window,
    )  # fmt: skip
    for kind in bound._kinds:
        kind.parts.fill_(float("nan"))
        kind.schedule.fill_(2**30)  # far outside, wherever it is used as a place
    bound.schedule(cu, context)
    out = poisoned(*q.shape, dtype=BF16, device=device)
    bound(q, k, v, tables, scale, *scales, logits, out=out, early=False)
    assert_near(out, expected, 8e-3)
    torch.testing.assert_close(out.float(), expected.float(), rtol=3e-2, atol=3e-2)


def check_from_qkv(
    device, contexts, parts, norm, decode, bind, block, heads=32, kv_heads=8
):  # fmt: skip
    """Attention that turns queries and keys itself, beside rope and the reference; its cache holds
    what rope writes, and the newest keys are nan before."""
    head_dim, rows = 128, len(contexts)
    _, k, v, tables, cu, context = attention_batch(
        device, [1] * rows, contexts, heads, kv_heads, head_dim, block, BF16
    )
    blocks = tables.gather(1, (context // block).long()[:, None])[:, 0].long()
    slots = blocks * block + context % block
    given = torch.randn(parts, rows, (heads + 2 * kv_heads) * head_dim, device=device)
    qkv = sum(given[1:], given[0]).to(BF16)
    given = given if parts > 1 else qkv
    angles = torch.rand(max(contexts) + 1, head_dim // 2, device=device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    for cache in (k, v):
        cache.flatten(0, 1)[slots] = float("nan")
    expected_k, expected_v = k.clone(), v.clone()
    norms = [torch.randn(head_dim, device=device).to(BF16) if norm else None for _ in "qk"]
    rope = (context, cos_sin, slots)
    q = rope_reference.rope_kv_write(
        qkv, heads, kv_heads, *rope, expected_k, expected_v, *norms, 1e-6
    )
    expected = attention_reference.paged_attention(
        q, expected_k, expected_v, tables, cu, context, head_dim**-0.5
    )
    shape = (heads, kv_heads, head_dim, rows, 0, 0, BF16, torch.device(device))
    bound = bind(*shape, decode=decode)
    (kind,) = bound._kinds
    kind.parts.fill_(float("nan"))
    bound.schedule(cu, context)
    out = poisoned(*q.shape, dtype=BF16, device=device)
    bound.from_qkv(given, *rope, *norms, 1e-6, k, v, tables, head_dim**-0.5, out=out, early=False)
    assert_near(out, expected, 8e-3)
    torch.testing.assert_close(out.float(), expected.float(), rtol=3e-2, atol=3e-2)
    heads_of = qkv.view(rows, -1, head_dim).split([heads, kv_heads, kv_heads], 1)
    turned = rotated_exactly(heads_of[1], norms[1], cos_sin[context.long()])
    stored = heads_of[2].double()
    for cache, wanted, exact, near in (
        (k, expected_k, *turned), (v, expected_v, stored, torch.zeros_like(stored)),
    ):  # fmt: skip
        written = cache.flatten(0, 1)
        assert_within(written[slots], exact, near)
        # Nothing else was.
        written[slots] = wanted.flatten(0, 1)[slots]
        assert torch.equal(cache.view(torch.int16), wanted.view(torch.int16))


def check_attention_in_one_call(device):
    q, k, v, tables, cu, context = attention_batch(device, [1, 3], [20, 5], 4, 2, 64, 16, BF16)
    args = (q, k, v, tables, cu, context, 0.125)
    out = poisoned(*q.shape, dtype=BF16, device=device)
    assert paged_attention(*args, num_decode_rows=1, out=out) is out
    assert_near(out, attention_reference.paged_attention(*args), 8e-3)


def random_weight(device, kind, out_features, in_features):
    """A weight, its scales, and what they stand for in float64. Kinds: bf16; fp8 with a scale per
    row; fp8 block with one per 128 x 128."""
    weight = torch.randn(out_features, in_features, device=device)
    if kind == "bf16":
        weight = weight.to(BF16)
        return weight, None, weight.double()
    weight = (weight * 30).to(FP8)
    if kind == "fp8":
        scales = torch.rand(out_features, device=device) + 0.1
        return weight, scales, weight.double() * scales.double()[:, None]
    shape = (-(-out_features // 128), -(-in_features // 128))
    scales = torch.rand(*shape, device=device) + 0.1
    spread = scales.repeat_interleave(128, 0)[:out_features].repeat_interleave(128, 1)
    return weight, scales, weight.double() * spread[:, :in_features].double()


def silu_mul_of(product):
    gate, up = product.chunk(2, -1)
    return gate * gate.sigmoid() * up


def check_product(
    device, rows, out_features, in_features, tile: Tile, *, kind="bf16", bias=False, gated=False,
    dtype=BF16,
):  # fmt: skip
    x = torch.randn(rows, in_features, device=device).to(BF16)
    weight, scales, exact = random_weight(device, kind, out_features, in_features)
    offset = torch.randn(out_features, device=device).to(BF16) if bias else None
    outputs = out_features // 2 if gated else out_features
    shape = (rows, outputs) if tile.splits == 1 else (tile.splits, rows, outputs)
    out = poisoned(*shape, dtype=dtype, device=device)
    multiply(x, weight, offset, out, tile, scales=scales, gated=gated)
    expected = x.double() @ exact.T
    if gated:
        expected = silu_mul_of(expected)
    elif offset is not None:
        expected = expected + offset.double()
    assert_near(out if tile.splits == 1 else out.sum(0), expected, 8e-3 if gated else 4e-3)


def check_linear(
    device, rows, out_features, in_features, kind, bias=False, dtype=BF16,
    linear=LinearTriton, linear_silu_mul=LinearSiluMulTriton,
):  # fmt: skip
    """A bound linear layer: its product, the sum of its parts, and the gated form."""
    x = torch.randn(rows, in_features, device=device).to(BF16)
    data, scales, exact = random_weight(device, kind, out_features, in_features)
    name = "bfloat16" if kind == "bf16" else kind
    weight = RawWeight(name, (out_features, in_features), data, scales)
    offset = torch.randn(out_features, device=device).to(BF16) if bias else None
    expected = x.double() @ exact.T + (0 if offset is None else offset.double())
    kernel, gated = linear(weight, offset), linear_silu_mul(weight, offset)
    # Rows in float8 are rounded to 3 bits of mantissa.
    near, loose = (
        0.04 if _in_float8(kind, one._product.cut(rows)) else 0.004 for one in (kernel, gated)
    )
    result = kernel(x, dtype)
    assert result.dtype is dtype
    assert_near(result, expected, near)
    parts = kernel.parts(x)
    assert_near(parts if parts.dim() == 2 else parts.sum(0), expected, near)
    # With a bias the activation is a kernel of its own, after torch's product.
    loose = 0.04 if kind == "fp8" and bias else loose
    assert_near(gated(x), silu_mul_of(expected), 2 * loose)


def _in_float8(kind, cut):
    if kind == "fp8_block":
        return isinstance(cut, Ring)
    return kind == "fp8" and not isinstance(cut, Tile)


def check_quantise_rows(device, rows, width):
    x = (torch.randn(rows, width, device=device) * torch.rand(rows, 1, device=device) * 50).to(BF16)
    x[0] = 0
    check_float8(x, *quantise_rows(x))


def check_float8(x, out, scales):
    assert out.dtype is FP8 and scales.shape == (len(x), 1)
    largest = out.float().abs().amax(1)[x.abs().amax(1) > 0]
    assert torch.equal(largest, torch.full_like(largest, 448.0))
    error = (out.float() * scales - x.float()).abs()
    # Half a step of 1/8 of the value's power of two, or of the least step there is.
    assert (error <= x.float().abs() / 16 + scales * 2**-10).all()


def sampling_parameters(rows, device):
    """Every kind of row, cycled: greedy, plain, each filter, all filters, odd extremes."""
    kinds = [
        (0.0, 0, 1.0, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.7, 50, 1.0, 0.0),
        (1.0, 0, 0.9, 0.0),
        (1.3, 0, 1.0, 0.05),
        (0.8, 40, 0.95, 0.02),
        (1.0, 1, 1.0, 0.0),
        (1.0, 0, 0.0, 0.0),
        (2.5, 1 << 30, 0.5, 0.0),
        (0.3, 7, 0.8, 1.5),
    ]
    chosen = [kinds[row % len(kinds)] for row in range(rows)]
    columns = list(zip(*chosen, strict=True))
    dtypes = (torch.float32, torch.int32, torch.float32, torch.float32)
    return [
        torch.tensor(column, dtype=dtype, device=device)
        for column, dtype in zip(columns, dtypes, strict=True)
    ]


def edits_of(rows, vocab, device):
    """Every kind of change, cycled so that rows have none, each alone, and all of them."""
    row, slots = torch.arange(rows, device=device), rows + 3
    counts = torch.randint(-9, 4, (slots, vocab), device=device).clamp(min=0).to(torch.int16)
    counts[torch.rand(slots, vocab, device=device) < 0.2] |= -32768
    masks = torch.randint(-(2**31), 2**31, (rows, -(-vocab // 32)), device=device).int()
    # Bits beyond the vocabulary are at random too, but a row keeps one token.
    masks[:, 0] |= 1
    penalty = torch.where(row % 2 == 0, 1.0, 0.0)
    return Edits(
        slots=torch.randperm(slots, device=device)[:rows],
        counts=counts,
        repetition=1 + 0.3 * penalty * (row % 4 < 2),
        presence=0.5 * penalty * (row % 8 < 4),
        frequency=-0.2 * penalty,
        biased=(row % 3 == 0).float(),
        bias=torch.randn(slots, vocab, device=device),
        mask_of=torch.where(row % 5 == 1, (rows - 1 - row), -1).int(),
        masks=masks,
    )


def check_sample(device, rows, vocab, spread=3.0, k=None, edited=False):
    """`k`: log-probabilities of every other row with so many alternatives."""
    logits = torch.randn(rows, vocab, device=device) * spread
    logits[rows // 2, : vocab // 3] = float("-inf")
    before = logits.clone()
    parameters = sampling_parameters(rows, device)
    seeds = torch.randint(-(2**63), 2**63 - 1, (rows,), device=device)
    positions = torch.randint(0, 2**40, (rows,), device=device)
    edits = edits_of(rows, vocab, device) if edited else None
    scored = None if k is None else torch.arange(0, rows, 2, device=device).flip(0)
    arguments = (logits, *parameters, seeds, positions, edits, scored, k or 0)
    mine, theirs = sample(*arguments), sampling_reference.sample(*arguments)
    assert torch.equal(logits, before)
    by = logits if edits is None else sampling_reference.apply_edits(logits, edits)
    for row in (mine.tokens != theirs.tokens).nonzero().flatten().tolist():
        drawn, expected = int(mine.tokens[row]), int(theirs.tokens[row])
        gap = _draw_gap(by[row], drawn, expected, row, parameters, seeds, positions)
        assert gap < 1e-4, f"row {row}: {drawn} drawn, {expected} expected"
    if scored is not None:
        chosen = mine.tokens[scored]
        compare_logprobs(
            mine.logprobs, sampling_reference.log_softmax_topk(logits[scored], chosen, k)
        )
    # A row drawn alone is drawn alike.
    for r in range(min(rows, 10)):
        own = None
        if edits is not None:
            by_row = ("slots", "repetition", "presence", "frequency", "biased", "mask_of")
            own = replace(edits, **{name: getattr(edits, name)[r : r + 1] for name in by_row})
        alone = sample(logits[r : r + 1], *(p[r : r + 1] for p in parameters), seeds[r : r + 1],
                       positions[r : r + 1], own)  # fmt: skip
        assert alone.tokens[0] == mine.tokens[r]


def check_rows_that_are_no_numbers(device, vocab):
    """Their tokens are of the vocabulary, whatever is asked; of numbers among them, the draw is
    one."""
    logits = unsound_rows(torch.randn(6, vocab, device=device))
    kinds = len(sampling_parameters(10, device)[0])
    rows = logits.repeat_interleave(kinds, 0)
    parameters = sampling_parameters(len(rows), device)
    every = torch.arange(len(rows), device=device)
    for edits in (None, edits_of(len(rows), vocab, device)):
        drawn = sample(rows, *parameters, every, every, edits, every, min(4, vocab))
        for ids in (drawn.tokens, drawn.logprobs.top_ids):
            assert ((ids >= 0) & (ids < vocab)).all()
        unsound = rows.isnan().any(1) | (rows == torch.inf).any(1) | (rows == -torch.inf).all(1)
        assert unsound.all() and drawn.logprobs.chosen.isnan().all()
        if edits is None:
            of_numbers = rows.isnan().any(1) & ~rows.isnan().all(1)
            chosen = rows.gather(1, drawn.tokens.long().unsqueeze(1)).squeeze(1)
            assert chosen[of_numbers].isfinite().all()


def _draw_gap(logits, drawn, expected, row, parameters, seeds, positions):
    """How far apart two tokens' scores are: a draw may go either way on a tie of float32."""
    bits = token_bits(seeds[row : row + 1], positions[row : row + 1], len(logits))[0].double()
    heat = parameters[0][row].double()
    if heat == 0:
        return abs(float(logits[drawn] - logits[expected]))
    scores = logits.double() / heat - (-((bits + 0.5) / 2**32).log()).log()
    return abs(float(scores[drawn] - scores[expected]))


def check_logprobs(device, rows, vocab, k, ties=False):
    logits = torch.randn(rows, vocab, device=device) * 4
    if ties:
        logits = logits.round()
    logits[0, 1:] = float("-inf")
    chosen = torch.randint(0, vocab, (rows,), device=device, dtype=torch.int32)
    compare_logprobs(
        log_softmax_topk(logits, chosen, k), sampling_reference.log_softmax_topk(logits, chosen, k)
    )


def compare_logprobs(mine, theirs):
    torch.testing.assert_close(mine.chosen, theirs.chosen, rtol=1e-5, atol=3e-5)
    torch.testing.assert_close(mine.top_values, theirs.top_values, rtol=1e-5, atol=3e-5)
    assert torch.equal(mine.top_ids, theirs.top_ids)
