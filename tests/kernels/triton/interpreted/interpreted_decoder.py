"""A whole model with the kernels that a plan takes for a GPU, beside the torch references: windows,
sinks and quantised experts, in steps that mix rows which decode with longer ones."""

from __future__ import annotations

import dataclasses

import torch
from tokenspeed_kernels.gemm import linear_triton
from tokenspeed_kernels.spec import Device

from tests.kernels.triton.cases import assert_near
from tests.rigs.experts import build_experts
from tests.rigs.packed import to_mxfp4
from tests.rigs.plans import this_cpu, tiny_plan
from tests.rigs.rand import rand_prompts
from tokenspeed.cache.kv import allocate
from tokenspeed.layers.attention import AttentionInputs
from tokenspeed.layers.kernels import Kernels
from tokenspeed.models.decoder import Decoder
from tokenspeed.models.registry import parameters
from tokenspeed.plan import WeightFormat
from tokenspeed.weights.load import load_weights

BLOCK, BLOCKS = 16, 8  # of a row in each of two cache groups
CPU = torch.device("cpu")


def decoder(folder, device, experts=WeightFormat.MXFP4):
    bf16 = WeightFormat.BFLOAT16
    plan = tiny_plan(
        folder, block_size=BLOCK, num_blocks=4 * BLOCKS + 1, activations="bfloat16",
        kv_dtype="bfloat16", linear_format=bf16, embedding_format=bf16,
        experts_format=experts, device=device, reference_kernels=device.kind == "cpu",
    )  # fmt: skip
    model = plan.model
    weights = load_weights(
        parameters(model.config, model.container, model.formats), model.config, folder,
        model.container, device=CPU, dtype=torch.bfloat16, progress=lambda done, total: None,
    )  # fmt: skip
    cache = allocate(plan.cache, model.config, CPU)
    kernels = Kernels(plan.kernels)
    return Decoder(model.config, weights, kernels, cache, torch.bfloat16, 256), plan.kernels


def inputs(lengths, contexts):
    """Two rows, whose blocks in the two groups are all different."""
    tables = tuple(
        torch.stack([1 + torch.arange(BLOCKS) + BLOCKS * (2 * group + row) for row in range(2)])
        for group in range(2)
    )
    rows = torch.tensor(lengths)
    places = [
        context + torch.arange(count) for count, context in zip(lengths, contexts, strict=True)
    ]
    positions, row = torch.cat(places), torch.arange(2).repeat_interleave(rows)
    return AttentionInputs(
        positions=positions.int(),
        slots=tuple(table[row, positions // BLOCK] * BLOCK + positions % BLOCK for table in tables),
        block_tables=tuple(table.int() for table in tables),
        cu_query_lens=torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
    )


@torch.inference_mode()
def test_gpt_oss_in_mxfp4(tmp_path):
    folder = build_experts(
        tmp_path, "gpt_oss", seed=5, qk_scale=1.0, hidden_size=128, head_dim=64,
        intermediate_size=64, num_hidden_layers=2, sliding_window=12,
    )  # fmt: skip
    to_mxfp4(folder)
    truth, _ = decoder(folder, this_cpu())
    model, kernels = decoder(folder, Device("cuda", "sm_100"))
    assert {"paged_attention_triton", "experts_packed_triton"} <= {one.kernel for one in kernels}
    tokens = torch.tensor(rand_prompts(1, 33)[0], dtype=torch.int32)
    # Two prompts, then a token behind one of them and a chunk behind the other.
    for decodes, lengths, contexts in ((0, (28, 5), (0, 0)), (1, (1, 3), (28, 5))):
        step = inputs(lengths, contexts)
        given = tokens[: sum(lengths)]
        bound = model.attention.bind(decodes, 2 - decodes, sum(lengths))
        bound.schedule(step.cu_query_lens, step.context_lens)
        made = model.logits(model.forward(given, dataclasses.replace(step, bound=bound)))
        assert_near(made, truth.logits(truth.forward(given, step)), 3e-2)


def lone(length, context):
    """One row in one cache group."""
    positions = context + torch.arange(length)
    return AttentionInputs(
        positions=positions.int(),
        slots=(BLOCK + positions,),
        block_tables=((1 + torch.arange(BLOCKS)).int().view(1, -1),),
        cu_query_lens=torch.tensor([0, length], dtype=torch.int32),
        context_lens=torch.tensor([context], dtype=torch.int32),
    )


@torch.inference_mode()
def test_deepseek_whose_products_norm_a_lone_token(tmp_path):
    bf16 = WeightFormat.BFLOAT16
    folder = build_experts(
        tmp_path, "deepseek_v2", seed=11, qk_scale=1.0, kv_lora_rank=64, qk_rope_head_dim=16,
        num_hidden_layers=3, moe_intermediate_size=64,
    )  # fmt: skip
    truth, _ = decoder(folder, this_cpu(), bf16)
    model, kernels = decoder(folder, Device("cuda", "sm_100"), bf16)
    assert {"linear_triton", "latent_attention_triton"} <= {one.kernel for one in kernels}
    made = []
    product = linear_triton.multiply_normed

    def counted(*args):
        made.append(args)
        product(*args)

    linear_triton.multiply_normed = counted
    try:
        tokens = torch.tensor(rand_prompts(1, 22)[0], dtype=torch.int32)
        for decodes, length, context in ((0, 20, 0), (1, 1, 20), (1, 1, 21)):
            step, given = lone(length, context), tokens[context : context + length]
            bound = model.attention.bind(decodes, 1 - decodes, length)
            bound.schedule(step.cu_query_lens, step.context_lens)
            logits = model.logits(model.forward(given, dataclasses.replace(step, bound=bound)))
            assert_near(logits, truth.logits(truth.forward(given, step)), 3e-2)
    finally:
        linear_triton.multiply_normed = product
    # The first layer has no experts, and its first norm follows nothing.
    assert len(made) == 2 * (2 + 2)
