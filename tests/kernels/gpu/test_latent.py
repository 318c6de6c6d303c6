from __future__ import annotations

import importlib

import pytest
import torch
from tokenspeed_kernels.latent.latent_attention_triton import LatentAttentionTriton
from tokenspeed_kernels.latent.latent_kv_write_triton import latent_kv_write

from tests.kernels.triton.cases import BF16, assert_near, poisoned
from tests.kernels.triton.latent_cases import (
    check_head_product,
    check_latent,
    check_latent_extend,
    check_latent_write,
    latent_batch,
)

pytestmark = pytest.mark.gpu

KINDS = ["bf16", "fp8", "scaled"]
SHAPE = {"rank": 512, "rope_dim": 64, "block": 64}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("tokens", "heads"), [(1, 16), (33, 16), (5, 128), (700, 5)])
def test_write(tokens, heads, kind):
    check_latent_write("cuda", tokens, heads, 128, 512, 64, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [5, 16, 32, 64, 128])
@pytest.mark.parametrize("contexts", [[0], [63], [64], [16383], [5, 900, 0, 4095, 64] * 9])
def test_decode(contexts, heads, kind):
    rows = len(contexts)
    check_latent("cuda", [1] * rows, contexts, rows, heads=heads, kind=kind, **SHAPE)


def test_decode_of_a_long_text():
    check_latent("cuda", [1, 1], [131071, 40000], 2, **SHAPE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize(
    ("query_lens", "contexts"),
    [([300], [0]), ([129], [3000]), ([1, 33, 0, 200], [900, 0, 64, 1]), ([2, 5, 8], [700, 64, 9])],
)
def test_extend(query_lens, contexts, heads, kind):
    check_latent("cuda", query_lens, contexts, 0, heads=heads, kind=kind, **SHAPE)


@pytest.mark.parametrize("block", [16, 32, 128])
def test_mixed_with_empty_rows_in_blocks_of_any_size(block):
    lens, contexts = [1, 0, 1, 200, 0, 3, 70], [500, 70, 0, 160, 9, 640, 3000]
    check_latent("cuda", lens, contexts, 3, **(SHAPE | {"block": block}))


@pytest.fixture
def roles():
    """Latent attention by warpgroups with roles."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("made for sm_90")
    name = "tokenspeed_kernels.latent.latent_attention_hopper"
    return importlib.import_module(name).LatentAttentionHopper


# Every number of rows of a tile: 16, 32 and 64 of bfloat16, 16 and 32 of float8.
BY_ROLES = [
    ("bf16", 16), ("bf16", 5), ("bf16", 32), ("bf16", 128), ("scaled", 16), ("scaled", 64),
    ("fp8", 16), ("fp8", 32),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "heads"), BY_ROLES)
def test_decode_by_roles(kind, heads, roles):
    """A lone row; split rows; more rows than parts; empty contexts; a long text; one among others
    with as few tokens as one program has time for."""
    short = [64, 63], [5, 900, 0, 4095, 64] * 9
    for contexts in ([0], [16383], [50000], *short, [131071, 40000], [40000, *[70] * 7]):
        rows = len(contexts)
        check_latent(
            "cuda", [1] * rows, contexts, rows, heads=heads, kind=kind, bind=roles, **SHAPE
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [64, 128])
def test_windows_and_mixed_rows_by_roles(kind, block, roles):
    shape = SHAPE | {"block": block, "kind": kind, "bind": roles}
    lens, contexts = [1, 0, 1, 200, 0, 3, 70], [500, 70, 0, 160, 9, 640, 3000]
    check_latent("cuda", lens, contexts, 3, **shape)
    check_latent("cuda", [*range(1, 9)], [0, 4000, 63, 1, 1600, 90, 31, 64], 0, **shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "contexts",
    [[0, 5, 63, 64, 100, 900, 4095, 16384] * 2, [40], [900], [16384]],
    ids=["many", "short", "some", "long"],
)
def test_a_step_by_roles_reads_what_the_kernel_ahead_wrote(contexts, kind, roles):
    """Of every row one token is written by the kernel right before, when tiles are on their way."""
    rows = len(contexts)
    query, pool, tables, cu, context = latent_batch(
        "cuda", [1] * rows, contexts, 16, 512, 64, 64, kind
    )
    plain = torch.randn(rows, 16, 192, device="cuda").to(BF16)
    kvs = torch.randn(20, rows, 576, device="cuda").to(BF16)
    ones = torch.ones(512, device="cuda").to(BF16)
    angles = torch.rand(16385, 32, device="cuda") * 6
    cos_sin = torch.cat((angles.cos(), angles.sin()), 1)
    key_up, value_up = (
        (torch.randn(16, *shape, device="cuda") / shape[0] ** 0.5).to(BF16)
        for shape in ((128, 512), (512, 128))
    )
    block = tables.gather(1, (context // 64).long()[:, None])[:, 0].long()
    slots = block * 64 + context % 64
    bound = roles(16, 512, 64, rows, 0, 0, pool.latent.dtype, query.device)
    bound.schedule(cu, context)
    torch.cuda.synchronize()
    differing = torch.zeros([], dtype=torch.int64, device="cuda")
    for kv in kvs:
        args = (plain, kv, ones, 1e-6, context, cos_sin, slots, pool, key_up)
        absorbed = latent_kv_write(*args)
        made = bound(absorbed, pool, tables, 0.05, value_up)
        again = bound(absorbed, pool, tables, 0.05, value_up, early=False)
        # Numbers that are none differ from themselves.
        differing += (made != again).sum()
    assert differing.item() == 0


def test_a_captured_graph_follows_the_lengths():
    """Captured once on short rows, replayed on longer ones: nothing was read on the host."""
    query, pool, tables, cu, context = latent_batch(
        "cuda", [1] * 4, [700, 3, 64, 129], 16, 512, 64, 64, "bf16"
    )
    lengths = context.clone()
    bound = LatentAttentionTriton(16, 512, 64, 4, 0, 0, BF16, query.device)
    value_up = torch.randn(16, 512, 128, device="cuda").to(BF16)
    out = poisoned(4, 16, 128, dtype=BF16, device="cuda")
    context.fill_(1)

    def step():
        bound.schedule(cu, context)
        bound(query, pool, tables, 0.05, value_up, out=out, early=False)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    context.copy_(lengths)
    graph.replay()
    replayed = out.clone()
    step()
    assert_near(replayed, out, 0)


EXPANDED = SHAPE | {"nope": 128, "value": 128}


@pytest.fixture(params=["triton", "hopper"])
def attends(request):
    """How a chunk's keys and values are met."""
    if request.param == "triton":
        return {}
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no sm_90 device")
    hopper = importlib.import_module("tokenspeed_kernels.latent.latent_extend_hopper")
    return {"tiling": hopper.HOPPER, "attend": hopper.AttendHopper, "by_torch": True}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("chunk", [512, 16384])
def test_expanded(heads, kind, chunk, attends):
    """Prompts, a token on a long text, rows that go on in another chunk, an empty one."""
    lens, contexts = [300, 1, 0, 129, 64, 7], [0, 3000, 70, 1000, 64, 511]
    check_latent_extend(
        "cuda", lens, contexts, heads=heads, kind=kind, chunk=chunk, layers=2, **attends, **EXPANDED
    )


@pytest.mark.parametrize(("tokens", "chunk"), [(1, 16384), (500, 16384), (500, 65536)])
def test_expanded_on_a_long_text(tokens, chunk, attends):
    """65,536 tokens are what a plan takes of 16 heads."""
    shape = EXPANDED | attends
    check_latent_extend("cuda", [tokens], [131072 - tokens], heads=2, chunk=chunk, **shape)


@pytest.mark.parametrize("block", [16, 32, 128])
def test_expanded_beside_rows_that_decode(block, attends):
    lens, contexts = [1, 0, 1, 200, 0, 3, 700], [500, 70, 0, 160, 9, 640, 3000]
    shape = EXPANDED | attends | {"block": block}
    check_latent_extend("cuda", lens, contexts, first_row=3, chunk=1024, **shape)


@pytest.mark.parametrize(("inputs", "outputs"), [(128, 512), (512, 128), (24, 40)])
@pytest.mark.parametrize("tokens", [1, 17, 64, 300])
def test_head_product(tokens, inputs, outputs):
    check_head_product("cuda", tokens, 3, inputs, outputs)
