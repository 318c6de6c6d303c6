"""Latent attention: what it computes, in every form of the cache."""

from __future__ import annotations

import pytest
import torch
from tokenspeed_kernels.latent.latent_extend_torch import latent_extend as extend_in_chunks
from tokenspeed_kernels.latent.op import LatentExtend, LatentPool
from tokenspeed_kernels.latent.reference import (
    latent_attention,
    latent_extend,
    latent_kv_write,
    row_tokens,
)
from tokenspeed_kernels.norm.reference import rms_norm

HEADS, NOPE, ROPE, RANK, VALUE, BLOCK = 3, 16, 8, 32, 24, 4
LENGTHS = ((5, 0), (1, 11), (0, 0), (3, 8))  # new tokens and cached ones of each row


def make_pool(kind: str, blocks: int = 24) -> LatentPool:
    if kind == "latent_scaled":
        return LatentPool(
            torch.zeros(blocks, BLOCK, RANK, dtype=torch.float8_e4m3fn),
            torch.zeros(blocks, BLOCK, ROPE, dtype=torch.bfloat16),
            torch.zeros(blocks, BLOCK),
        )
    whole = torch.zeros(blocks, BLOCK, RANK + ROPE, dtype=getattr(torch, kind))
    scale = 0.02 if kind == "float8_e4m3fn" else 1.0
    return LatentPool(whole[..., :RANK], whole[..., RANK:], scale=scale)


def angles(length: int) -> torch.Tensor:
    positions = torch.arange(length, dtype=torch.float32)
    radians = torch.outer(positions, 0.3 ** torch.arange(ROPE // 2))
    return torch.cat((radians.cos(), radians.sin()), dim=1)


class Batch:
    """Rows with all their tokens in shuffled blocks; `new` marks the ones that query."""

    def __init__(self, pool: LatentPool, outlier: float = 1.0) -> None:
        torch.manual_seed(0)
        totals = [new + cached for new, cached in LENGTHS]
        width = max(-(-total // BLOCK) for total in totals)
        self.tables = (1 + torch.randperm(len(LENGTHS) * width)).view(len(LENGTHS), width).int()
        self.positions = torch.cat([torch.arange(total) for total in totals]).int()
        rows = torch.cat([torch.full((total,), row) for row, total in enumerate(totals)]).long()
        blocks = self.tables[rows, self.positions // BLOCK].long()
        self.slots = blocks * BLOCK + self.positions % BLOCK
        count = len(self.positions)
        self.query = torch.randn(count, HEADS, NOPE + ROPE)
        self.kv = torch.randn(count, RANK + ROPE)
        self.kv[:, 0] *= outlier
        self.weight = 1 + 0.1 * torch.randn(RANK)
        self.key_up = torch.randn(HEADS, NOPE, RANK) / NOPE**0.5
        self.value_up = torch.randn(HEADS, RANK, VALUE) / RANK**0.5
        self.cos_sin = angles(32)
        self.absorbed = latent_kv_write(
            self.query, self.kv, self.weight, 1e-6, self.positions, self.cos_sin, self.slots,
            pool, self.key_up,
        )  # fmt: skip
        ends = torch.tensor(totals).cumsum(0).tolist()
        self.new = [range(end - new, end) for (new, _), end in zip(LENGTHS, ends, strict=True)]
        self.cu_query_lens = torch.tensor([0, *(new for new, _ in LENGTHS)]).cumsum(0).int()
        self.context_lens = torch.tensor([cached for _, cached in LENGTHS]).int()

    def absorbed_form(self, pool: LatentPool) -> torch.Tensor:
        places = torch.tensor([place for new in self.new for place in new])
        return latent_attention(
            self.absorbed[places], pool, self.tables, self.cu_query_lens, self.context_lens, 0.2,
            self.value_up,
        )  # fmt: skip

    def expanded_form(self, pool: LatentPool, extend: LatentExtend, chunk: int) -> torch.Tensor:
        places = torch.tensor([place for new in self.new for place in new])
        return extend(
            self.query[places][..., :NOPE], self.absorbed[places][..., RANK:], pool, self.tables,
            self.cu_query_lens, self.context_lens, 0.2, self.key_up, self.value_up, chunk,
        )  # fmt: skip

    def unabsorbed_form(self) -> torch.Tensor:
        """Keys and values of every head made from the latents, in float64, row by row."""
        latent = rms_norm(self.kv[:, :RANK].contiguous(), self.weight, 1e-6).double()
        at = self.cos_sin[self.positions.long()].double()
        rope = rotated(self.kv[:, RANK:].double(), at)
        nope = torch.einsum("tr,hnr->thn", latent, self.key_up.double())
        keys = torch.cat((nope, rope.unsqueeze(1).expand(-1, HEADS, -1)), dim=-1)
        values = torch.einsum("tr,hrv->thv", latent, self.value_up.double())
        turned = rotated(self.query[..., NOPE:].double(), at.unsqueeze(1))
        queries = torch.cat((self.query[..., :NOPE].double(), turned), dim=-1)
        out = []
        for (new, cached), places in zip(LENGTHS, self.new, strict=True):
            first = places.start - cached
            for place in places:
                scores = 0.2 * torch.einsum("hd,shd->hs", queries[place], keys[first : place + 1])
                out.append(
                    torch.einsum("hs,shv->hv", scores.softmax(-1), values[first : place + 1])
                )
            assert len(places) == new
        return torch.stack(out)


def rotated(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    cos, sin = at.chunk(2, dim=-1)
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def test_absorbed_and_unabsorbed_forms_agree() -> None:
    pool = make_pool("float32")
    batch = Batch(pool)
    torch.testing.assert_close(
        batch.absorbed_form(pool).double(), batch.unabsorbed_form(), atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize("extend", [latent_extend, extend_in_chunks])
@pytest.mark.parametrize("chunk", [1, 3, 4, 11, 100])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "latent_scaled", "float8_e4m3fn"])
def test_expanded_and_absorbed_forms_agree(kind: str, chunk: int, extend: LatentExtend) -> None:
    """Over the same pool, whatever its rounding, and however it is cut into chunks."""
    pool = make_pool(kind)
    batch = Batch(pool)
    torch.testing.assert_close(
        batch.expanded_form(pool, extend, chunk), batch.absorbed_form(pool), atol=2e-5, rtol=1e-4
    )


def test_only_the_first_queries_are_absorbed_where_the_others_are_not_needed() -> None:
    whole, part = make_pool("float32"), make_pool("float32")
    batch = Batch(whole)
    args = (batch.query, batch.kv, batch.weight, 1e-6, batch.positions, batch.cos_sin, batch.slots)
    absorbed = latent_kv_write(*args, part, batch.key_up, 2)
    torch.testing.assert_close(absorbed[:2], batch.absorbed[:2])
    assert torch.equal(absorbed[..., RANK:], batch.absorbed[..., RANK:])
    assert torch.equal(part.latent, whole.latent)


@pytest.mark.parametrize(
    ("kind", "bound"), [("bfloat16", 0.01), ("latent_scaled", 0.06), ("float8_e4m3fn", 0.08)]
)
def test_narrow_pools_stay_within_their_rounding(kind: str, bound: float) -> None:
    """The relative error of the outputs: bfloat16 keeps 8 bits, e4m3 keeps 4."""
    pool = make_pool(kind)
    batch = Batch(pool)
    exact = batch.unabsorbed_form()
    error = (batch.absorbed_form(pool).double() - exact).norm() / exact.norm()
    assert 0 < error < bound


def test_write_leaves_the_rest_of_the_pool_alone() -> None:
    pool = make_pool("latent_scaled")
    batch = Batch(pool)
    written = torch.zeros(24 * BLOCK, dtype=torch.bool)
    written[batch.slots] = True
    assert pool.scales is not None
    assert (pool.scales.flatten() > 0).equal(written)
    assert not pool.latent.view(torch.uint8).flatten(0, 1)[~written].any()


# ---- C41: scales of a float8 cache


def test_c41_token_scales_are_finite_and_positive_for_any_token() -> None:
    """Zeros, the smallest and huge values: every scale is a positive number, nothing clips."""
    pool = make_pool("latent_scaled")
    kv = torch.zeros(4, RANK + ROPE)
    kv[1, :RANK] = 1e-30
    kv[2, :RANK] = 1e30
    kv[3, 5] = -7.0
    slots, positions = torch.arange(4) + BLOCK, torch.arange(4).int()
    latent_kv_write(
        torch.zeros(4, HEADS, NOPE + ROPE), kv, torch.full((RANK,), 300.0), 1e-6, positions,
        angles(4), slots, pool, torch.zeros(HEADS, NOPE, RANK),
    )  # fmt: skip
    latent, _ = row_tokens(pool, torch.tensor([1]), 4)
    assert pool.scales is not None
    assert torch.isfinite(pool.scales).all()
    assert (pool.scales[1] > 0).all()
    exact = rms_norm(kv[:, :RANK].contiguous(), torch.full((RANK,), 300.0), 1e-6)
    assert (latent - exact).abs().amax() <= exact.abs().amax() / 16


def test_c41_the_scale_of_the_layer_is_used_by_writing_and_reading() -> None:
    """With a scale that fits the outlier the output is near; with 1 the values clip and it is
    not."""
    exact = None
    errors = {}
    for scale in (0.5, 1e-3):
        whole = torch.zeros(24, BLOCK, RANK + ROPE, dtype=torch.float8_e4m3fn)
        pool = LatentPool(whole[..., :RANK], whole[..., RANK:], scale=scale)
        batch = Batch(pool)
        exact = batch.unabsorbed_form()
        errors[scale] = float((batch.absorbed_form(pool) - exact).norm() / exact.norm())
    assert errors[0.5] < 0.3
    assert errors[1e-3] > 0.4


def test_c41_token_scales_beat_one_scale_under_outlier_channels() -> None:
    """A channel 30 times as large as the others, tokens of different sizes."""
    errors = {}
    for kind in ("latent_scaled", "float8_e4m3fn"):
        pool = make_pool(kind)
        batch = Batch(pool, outlier=30.0)
        exact = batch.unabsorbed_form()
        errors[kind] = float((batch.absorbed_form(pool) - exact).norm() / exact.norm())
    assert errors["latent_scaled"] < errors["float8_e4m3fn"]
