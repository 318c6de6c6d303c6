from __future__ import annotations

import importlib
from dataclasses import replace

import pytest
import torch

from tests.kernels.triton import cases

pytestmark = pytest.mark.gpu

LLAMA = {"heads": 32, "kv_heads": 8, "head_dim": 128, "block": 64}
SHAPES = [
    LLAMA,
    {"heads": 32, "kv_heads": 4, "head_dim": 128, "block": 16},
    {"heads": 9, "kv_heads": 3, "head_dim": 64, "block": 16},
    {"heads": 28, "kv_heads": 4, "head_dim": 128, "block": 128},
    {"heads": 24, "kv_heads": 1, "head_dim": 64, "block": 32},
]


@pytest.mark.parametrize("kv_dtype", [cases.BF16, cases.FP8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("contexts", [[0], [63], [64], [16383], [5, 900, 0, 4095, 64] * 9])
def test_decode(contexts, shape, kv_dtype):
    ones = [1] * len(contexts)
    cases.check_attention("cuda", ones, contexts, len(ones), kv_dtype=kv_dtype, **shape)


@pytest.mark.parametrize("kv_dtype", [cases.BF16, cases.FP8])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("query_lens", "contexts"), [([700], [0]), ([129], [5000]), ([1, 33, 64, 500], [900, 0, 64, 1])]
)
def test_extend(query_lens, contexts, shape, kv_dtype):
    cases.check_attention("cuda", query_lens, contexts, 0, kv_dtype=kv_dtype, **shape)


@pytest.mark.parametrize("shape", SHAPES)
def test_mixed_with_empty_rows(shape):
    lens, contexts = [1, 0, 1, 200, 0, 3, 70], [500, 70, 0, 160, 9, 640, 3000]
    cases.check_attention("cuda", lens, contexts, 3, **shape)
    cases.check_attention("cuda", lens, contexts, 0, **shape)


OSS = {"heads": 64, "kv_heads": 8, "head_dim": 64, "block": 64}


@pytest.mark.parametrize("kv_dtype", [cases.BF16, cases.FP8])
@pytest.mark.parametrize("window", [0, 1, 128, 1000])
def test_windows_and_sinks(window, kv_dtype):
    lens, contexts = [1, 1, 0, 1, 200, 3, 70], [500, 128, 70, 9000, 160, 127, 3000]
    facts = {"window": window, "sinks": True, "kv_dtype": kv_dtype, **OSS}
    cases.check_attention("cuda", lens, contexts, 4, **facts)
    cases.check_attention("cuda", [1] * 40, [900] * 39 + [0], 40, **facts)


def test_without_tensor_maps():
    extend = replace(cases.EXTEND, tensor_maps=False)
    cases.check_attention("cuda", [700, 1, 64], [64, 900, 0], 0, extend=extend, **LLAMA)


# Blocks of whole kv tiles.
HOPPER_SHAPES = [
    LLAMA,
    {"heads": 28, "kv_heads": 4, "head_dim": 128, "block": 128, "sinks": True},
    {"heads": 24, "kv_heads": 1, "head_dim": 64, "block": 64},
    OSS | {"sinks": True},
]


@pytest.fixture
def hopper():
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("no sm_90 device")
    return importlib.import_module("tokenspeed_kernels.attention.paged_attention_hopper")


@pytest.mark.parametrize("shape", HOPPER_SHAPES)
@pytest.mark.parametrize(
    ("query_lens", "contexts"),
    [
        ([700], [0]),
        ([128], [64 * 300]),
        ([129], [5000]),
        ([1, 33, 64, 500], [900, 0, 64, 1]),
        ([2] * 40, [7, 70, 700, 63] * 10),
        ([3000, 2, 2048], [0, 1, 4001]),
        ([300] * 40, [7, 70, 700, 63] * 10),
    ],
)
def test_extend_by_warpgroups_with_roles(hopper, query_lens, contexts, shape):
    settings = {"extend": hopper.EXTEND_HOPPER, "bind": hopper.bind_hopper, **shape}
    for _ in range(2):
        cases.check_attention("cuda", query_lens, contexts, 0, **settings)


@pytest.mark.parametrize("ring", ["RING_FEW", "RING_MANY"])
@pytest.mark.parametrize("shape", HOPPER_SHAPES)
@pytest.mark.parametrize(
    "contexts",
    [[0], [63], [64], [16383], [1000] * 8, [1000] * 40, [5, 900, 0, 4095, 64] * 9],
)
def test_decode_by_rings(hopper, contexts, shape, ring):
    ones = [1] * len(contexts)
    settings = {"bind": hopper.bind_hopper, "extend": hopper.EXTEND_HOPPER, **shape}
    for joins in (True, False):
        decode = replace(getattr(hopper, ring), joins=joins)
        cases.check_attention("cuda", ones, contexts, len(ones), decode=decode, **settings)


@pytest.mark.parametrize(("parts", "norm"), [(1, False), (2, False), (1, True), (2, True)])
@pytest.mark.parametrize("ring", ["RING_FEW", "RING_MANY"])
@pytest.mark.parametrize("contexts", [[0], [64], [999] * 8, [1000] * 40, [5, 900, 0, 4095, 64] * 9])
def test_rings_that_turn_queries(hopper, contexts, ring, parts, norm):
    decode = getattr(hopper, ring)
    cases.check_from_qkv("cuda", contexts, parts, norm, decode, hopper.bind_hopper, 64)


def test_drawn_tiles_of_a_captured_graph(hopper):
    """Every replay begins with the tiles that the last one ended with: none are left over."""
    shape = (32, 8, 128)
    lens, contexts = [300, 5] * 30, [70, 0] * 30
    drawn = cases.attention_batch("cuda", lens, contexts, *shape, 64, cases.BF16)
    q, k, v, tables, cu, context = drawn
    bound = hopper.bind_hopper(*shape, 0, len(lens), sum(lens), cases.BF16, q.device)
    out = cases.poisoned(*q.shape, dtype=cases.BF16, device="cuda")
    bound.schedule(cu, context)
    bound(q, k, v, tables, 0.09, out=out)
    (kind,) = bound._kinds
    assert kind.schedule[1] < 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            bound(q, k, v, tables, 0.09, out=out)
    expected = cases.attention_reference.paged_attention(q, k, v, tables, cu, context, 0.09)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        cases.assert_near(out, expected, 8e-3)


def test_mixed_rows_by_warpgroups_with_roles(hopper):
    lens, contexts = [1, 0, 1, 200, 0, 3, 70], [500, 70, 0, 160, 9, 640, 3000]
    settings = {"extend": hopper.EXTEND_HOPPER, "bind": hopper.bind_hopper, **LLAMA}
    cases.check_attention("cuda", lens, contexts, 3, **settings)


def test_one_call():
    cases.check_attention_in_one_call("cuda")


def test_a_captured_graph_follows_the_lengths():
    """Captured once on short rows, replayed on longer ones: nothing was read on the host."""
    long = cases.attention_batch("cuda", [1] * 4, [700, 3, 64, 129], 32, 8, 128, 64, cases.BF16)
    q, k, v, tables, cu, context = long
    lengths = context.clone()
    bound = cases.PagedAttentionTriton(32, 8, 128, 4, 0, 0, cases.BF16, q.device)
    out = cases.poisoned(*q.shape, dtype=cases.BF16, device="cuda")
    context.fill_(1)

    def step():
        bound.schedule(cu, context)
        bound(q, k, v, tables, 0.09, out=out, early=False)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    context.copy_(lengths)
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        expected = cases.attention_reference.paged_attention(q, k, v, tables, cu, lengths, 0.09)
        cases.assert_near(out, expected, 8e-3)


# The last says by what: Triton, rings, or rings that turn queries and keys.
CHAINS = [
    (OSS, 128, cases.BF16, "triton"),
    (OSS, 0, cases.BF16, "triton"),
    (OSS, 0, cases.BF16, "rings"),
    (LLAMA, 0, cases.BF16, "triton"),
    (LLAMA, 0, cases.BF16, "rings"),
    (LLAMA, 0, cases.BF16, "turning"),
    (LLAMA, 100, cases.FP8, "triton"),
]


@pytest.mark.parametrize("contexts", [[999], [127, 3, 4000, 128, 64, 63, 0, 700], [900] * 40])
@pytest.mark.parametrize(("shape", "window", "kv_dtype", "how"), CHAINS)
def test_a_step_of_dependent_launches_reads_what_it_writes(
    shape, window, kv_dtype, how, contexts, request
):
    """Attention starts long before the newest keys are there, and reads older ones at once."""
    heads, kv_heads, head_dim = (shape[name] for name in ("heads", "kv_heads", "head_dim"))
    rows, width = len(contexts), 1024
    made = [
        cases.attention_batch(
            "cuda", [1] * rows, contexts, heads, kv_heads, head_dim, shape["block"], kv_dtype
        )
        for _ in range(3)
    ]
    cu, context = made[0][4:]
    tokens = torch.zeros(rows, dtype=torch.int32, device="cuda")
    rows_of = torch.randn(4, width, device="cuda").to(cases.BF16)
    embed = cases.EmbeddingTriton(cases.RawWeight("bfloat16", (4, width), rows_of))
    weight = torch.randn((heads + 2 * kv_heads) * head_dim, width, device="cuda") / 32
    weight = weight.to(cases.BF16)
    x = torch.randn(rows, width, device="cuda").to(cases.BF16)
    qkv = torch.empty(rows, weight.shape[0], device="cuda", dtype=cases.BF16)
    cos_sin = torch.rand(5000, head_dim, device="cuda")
    sinks = None if how == "turning" else torch.randn(heads, device="cuda").to(cases.BF16)
    block = shape["block"]
    newest = []
    for _, _, _, tables, _, _ in made:
        blocks = tables.gather(1, (context // block).long()[:, None])[:, 0]
        newest.append(blocks.long() * block + context % block)
    bind = cases.PagedAttentionTriton
    if how != "triton":
        bind = request.getfixturevalue("hopper").bind_hopper
    bound = bind(heads, kv_heads, head_dim, rows, 0, 0, kv_dtype, x.device, window=window)
    outs = [cases.poisoned(rows, heads, head_dim, dtype=cases.BF16, device="cuda") for _ in made]
    queries = [torch.empty_like(out) for out in outs]

    def step():
        bound.schedule(cu, context)
        embed(tokens)
        for (_, k, v, tables, _, _), slots, q, out in zip(made, newest, queries, outs, strict=True):
            cases.multiply(x, weight, None, qkv, cases.Tile(32, 128, 4, 3))
            if how == "turning":
                rope = (context, cos_sin, slots, None, None, 1e-6)
                bound.from_qkv(qkv, *rope, k, v, tables, head_dim**-0.5, out=out)
                continue
            cases.rope_kv_write(
                qkv, heads, kv_heads, context, cos_sin, slots, k, v, None, None, 1e-6, out=q
            )
            bound(q, k, v, tables, head_dim**-0.5, sinks=sinks, out=out)

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(5):
        x.normal_()
        seen = []
        for _ in range(2):
            for (_, k, v, *_), slots, out in zip(made, newest, outs, strict=True):
                for cache in (k, v):
                    cache.view(torch.uint8).flatten(0, 1)[slots] = 0xFF
                out.fill_(float("nan"))
            torch.cuda.synchronize()
            graph.replay()
            seen.append([out.clone() for out in outs])
        for (_, k, v, tables, _, _), slots, q, first, second in zip(
            made, newest, queries, *seen, strict=True
        ):
            if how == "turning":
                copies = (k.clone(), v.clone())
                q = cases.rope_reference.rope_kv_write(
                    qkv, heads, kv_heads, context, cos_sin, slots, *copies, None, None, 1e-6
                )
                for cache, copy in zip((k, v), copies, strict=True):
                    torch.testing.assert_close(cache, copy, rtol=2e-2, atol=2e-2, equal_nan=True)
            expected = cases.attention_reference.paged_attention(
                q, k, v, tables, cu, context, head_dim**-0.5, 0, 1.0, 1.0, window, sinks
            )
            cases.assert_near(first, expected, 8e-3)
            assert torch.equal(first, second)
