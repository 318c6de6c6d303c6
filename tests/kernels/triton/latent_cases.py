"""Checks of the latent kernels against their references, for a device and a shape."""

from __future__ import annotations

import torch
from tokenspeed_kernels.latent import reference
from tokenspeed_kernels.latent.head_product_triton import head_product
from tokenspeed_kernels.latent.latent_attention_triton import LatentAttentionTriton
from tokenspeed_kernels.latent.latent_extend_triton import (
    EXTEND,
    AttendTriton,
    LatentExtendTriton,
)
from tokenspeed_kernels.latent.latent_kv_write_triton import latent_kv_write
from tokenspeed_kernels.latent.op import LatentPool, LatentShape, Lengths

from tests.kernels.triton.cases import BF16, FP8, assert_near, poisoned


def make_pool(kind, blocks, block, rank, rope_dim, device):
    """A pool full of nan. `kind`: "bf16", "fp8" or "scaled"."""
    if kind == "scaled":
        return LatentPool(
            poisoned(blocks, block, rank, dtype=FP8, device=device),
            poisoned(blocks, block, rope_dim, dtype=BF16, device=device),
            torch.full((blocks, block), float("nan"), device=device),
        )
    dtype = BF16 if kind == "bf16" else FP8
    whole = poisoned(blocks, block, rank + rope_dim, dtype=dtype, device=device)
    return LatentPool(whole[..., :rank], whole[..., rank:], scale=0.02 if kind == "fp8" else 1.0)


def planes(pool):
    return [plane for plane in (pool.latent, pool.rope, pool.scales) if plane is not None]


def check_latent_write(device, tokens, heads, nope, rank, rope_dim, kind):
    blocks, block = tokens // 4 + 3, 16
    query = torch.randn(tokens, heads * (nope + rope_dim) + 8, device=device).to(BF16)
    query = query[:, : heads * (nope + rope_dim)].view(tokens, heads, nope + rope_dim)
    kv = torch.randn(tokens, rank + rope_dim + 24, device=device).to(BF16)[:, 8:-16]
    weight = (torch.randn(rank, device=device) * 0.2 + 1).to(BF16)
    angles = torch.rand(64, rope_dim // 2, device=device) * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    positions = torch.randint(0, 64, (tokens,), device=device, dtype=torch.int32)
    slots = torch.randperm(blocks * block, device=device)[:tokens]
    key_up = (torch.randn(heads, nope, rank, device=device) / nope**0.5).to(BF16)
    mine, theirs = (make_pool(kind, blocks, block, rank, rope_dim, device) for _ in range(2))
    args = (query, kv, weight, 1e-6, positions, cos_sin, slots)
    outs = [latent_kv_write(*args, mine, key_up), reference.latent_kv_write(*args, theirs, key_up)]
    torch.testing.assert_close(*outs, rtol=2e-2, atol=1e-2)
    for one, other in zip(planes(mine), planes(theirs), strict=True):
        assert torch.equal(one.float().isnan(), other.float().isnan())
        unit = mine.scale if one.dtype is FP8 else 1.0
        step = 0.13 if one.dtype is FP8 else 2e-2  # neighbours in e4m3 are 1/8 apart
        torch.testing.assert_close(
            one.float() * unit, other.float() * unit, rtol=step, atol=2e-2, equal_nan=True
        )


def latent_batch(device, query_lens, contexts, heads, rank, rope_dim, block, kind):
    """Random rows in random blocks; whatever no row owns is nan, unused table entries wild."""
    seq_lens = [q + c for q, c in zip(query_lens, contexts, strict=True)]
    needed = [(s + block - 1) // block for s in seq_lens]
    order = torch.randperm(sum(needed) + 1)[: sum(needed)].to(torch.int32)
    tables = torch.full((len(needed), max([*needed, 1]) + 1), 2**30, dtype=torch.int32)
    pool = make_pool(kind, sum(needed) + 1, block, rank, rope_dim, device)
    taken = 0
    for row, (count, seq_len) in enumerate(zip(needed, seq_lens, strict=True)):
        blocks = order[taken : taken + count]
        tables[row, :count] = blocks
        taken += count
        token = torch.arange(seq_len)
        slots = (blocks.long()[token // block] * block + token % block).to(device)
        kv = torch.randn(seq_len, rank + rope_dim, device=device)
        if pool.scales is not None:
            size = kv[:, :rank].abs().amax(-1) / 448
            reference._put(pool.scales.unsqueeze(-1), slots, size.unsqueeze(-1))
            kv[:, :rank] /= size.unsqueeze(-1)
        elif kind == "fp8":
            kv /= pool.scale
        reference._put(pool.latent, slots, kv[:, :rank])
        reference._put(pool.rope, slots, kv[:, rank:])
    query = torch.randn(sum(query_lens), heads, rank + rope_dim, device=device).to(BF16)
    cu = torch.tensor([0, *torch.tensor(query_lens).cumsum(0).tolist()], dtype=torch.int32)
    return (
        query, pool, tables.to(device), cu.to(device),
        torch.tensor(contexts, dtype=torch.int32, device=device),
    )  # fmt: skip


def check_latent(
    device, query_lens, contexts, num_decode_rows, *, heads=16, rank=64, rope_dim=16, block=16,
    kind="bf16", bind=LatentAttentionTriton, **tilings,
):  # fmt: skip
    query, pool, tables, cu, context = latent_batch(
        device, query_lens, contexts, heads, rank, rope_dim, block, kind
    )
    scale = (rank + rope_dim) ** -0.5
    value_up = (torch.randn(heads, rank, 48, device=device) / rank**0.5).to(BF16)
    expected = reference.latent_attention(query, pool, tables, cu, context, scale, value_up)
    bound = bind(
        heads, rank, rope_dim, num_decode_rows, len(query_lens) - num_decode_rows,
        sum(query_lens[num_decode_rows:]), pool.latent.dtype, torch.device(device), **tilings,
    )  # fmt: skip
    for attend in bound._kinds:
        attend.parts.fill_(float("nan"))
        attend.schedule.fill_(-1)
    bound._latents.fill_(float("nan"))
    bound.schedule(cu, context)
    out = poisoned(*query.shape[:2], 48, dtype=BF16, device=device)
    bound(query, pool, tables, scale, value_up, out=out, early=False)
    assert_near(out, expected, 8e-3)
    torch.testing.assert_close(out.float(), expected.float(), rtol=3e-2, atol=3e-2)


def check_head_product(device, tokens, heads, inputs, outputs):
    x = torch.randn(tokens, heads, inputs + 8, device=device).to(BF16)[..., :inputs]
    weight = (torch.randn(heads, inputs, outputs, device=device) / inputs**0.5).to(BF16)
    out = poisoned(tokens, heads, outputs + 16, dtype=BF16, device=device)
    head_product(x, weight, out[..., :outputs])
    expected = torch.einsum("thk,hkn->thn", x.float(), weight.float())
    assert_near(out[..., :outputs], expected, 4e-3)
    assert out[..., outputs:].isnan().all()


def check_latent_extend(
    device, query_lens, contexts, *, first_row=0, heads=2, rank=64, nope=32, rope_dim=16, value=32,
    block=16, kind="bf16", chunk=64, room=None, tiling=EXTEND, layers=1,
    attend=AttendTriton, by_torch=False,
):  # fmt: skip
    """Rows from `first_row` on against float64; what lies before them is left alone. `room`: as if
    the device had so many multiprocessors."""
    batch = latent_batch(device, query_lens, contexts, heads, rank, rope_dim, block, kind)
    wide, pool, tables, cu, context = batch
    query = torch.randn(len(wide), heads, nope + 24, device=device).to(BF16)[..., 8 : nope + 8]
    rotated = wide[..., rank:]
    key_up = (torch.randn(heads, nope, rank, device=device) / rank**0.5).to(BF16)
    value_up = (torch.randn(heads, rank, value, device=device) / rank**0.5).to(BF16)
    scale = (nope + rope_dim) ** -0.5
    expected = expanded_exactly(
        query, rotated, pool, tables, query_lens, contexts, scale, key_up, value_up
    )
    bound = LatentExtendTriton(
        LatentShape(heads, rank, nope, rope_dim, value), len(query_lens) - first_row,
        sum(query_lens), chunk, torch.device(device), tiling, room, attend, by_torch,
    )  # fmt: skip
    buffers = [bound._made, bound._turned, bound._attend.state, bound._attend.sums]
    if by_torch:
        buffers += bound._dense
    for buffer in buffers:
        buffer.fill_(float("nan"))
    bound._lines.fill_(2**30)
    out = poisoned(len(wide), heads, value, dtype=BF16, device=device)
    lengths = Lengths(query_lens[first_row:], contexts[first_row:])
    bound.schedule(cu, context, first_row, lengths)
    for _ in range(layers):
        bound(query, rotated, pool, tables, scale, key_up, value_up, out=out)
    first = sum(query_lens[:first_row])
    assert out[:first].isnan().all()
    if first < len(out):
        assert_near(out[first:], expected[first:], 8e-3)
        torch.testing.assert_close(out[first:].double(), expected[first:], rtol=3e-2, atol=3e-2)


def expanded_exactly(
    query, rotated, pool, tables, query_lens, contexts, scale, key_up, value_up
):  # fmt: skip
    """Keys and values of every head, in float64, row by row."""
    out, first = [], 0
    for row, (new, cached) in enumerate(zip(query_lens, contexts, strict=True)):
        latent, rope = reference.row_tokens(pool, tables[row], new + cached)
        latent, rope = latent.double(), rope.double()
        q, t = query[first : first + new].double(), rotated[first : first + new].double()
        keys = torch.einsum("sr,hnr->hsn", latent, key_up.double())
        scores = torch.einsum("qhn,hsn->hqs", q, keys) + torch.einsum("qhe,se->hqs", t, rope)
        sees = cached + 1 + torch.arange(new, device=query.device).unsqueeze(1)
        hidden = torch.arange(new + cached, device=query.device) >= sees
        weights = (scores * scale).masked_fill(hidden, float("-inf")).softmax(-1)
        values = torch.einsum("sr,hrv->hsv", latent, value_up.double())
        out.append(torch.einsum("hqs,hsv->qhv", weights, values))
        first += new
    return torch.cat(out)
