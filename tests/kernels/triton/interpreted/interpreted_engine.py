"""The engine over interpreted kernels, where no GPU is needed to see that they fit together."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.rigs import Oracle, rand_prompts
from tests.rigs.drive import driver
from tests.rigs.experts import build_experts
from tests.rigs.plans import tiny_plan
from tokenspeed.worker import build as worker_build
from tokenspeed.worker.inputs import Inputs

LATENT = ("latent_kv_write", "latent_attention", "latent_extend")
# In bfloat16 the logits of the rig are off by up to some 0.1 where they reach 30.
NEAR = 0.3


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """A tiny model with latents in bfloat16, steps padded as they are on a GPU."""
    folder = build_experts(
        tmp_path / "model", "deepseek_v2", seed=11, qk_scale=1.0, kv_lora_rank=64,
        qk_rope_head_dim=16, num_hidden_layers=2,
    )  # fmt: skip
    given = tiny_plan(
        folder, max_running=3, max_step_tokens=64, num_blocks=33, reference_kernels=True,
        activations="bfloat16", kv_dtype="bfloat16", expands=False,
    )  # fmt: skip
    whole = tiny_plan(folder, activations="bfloat16", kv_dtype="bfloat16")
    choices = [one for one in whole.kernels if one.op in LATENT]
    triton = [dataclasses.replace(one, kernel=f"{one.op}_triton") for one in choices]
    others = [one for one in given.kernels if one.op not in LATENT]
    # A tile of the line at a time.
    expansion = dataclasses.replace(whole.expansion, chunk_tokens=128)

    def padded(plan, scheduler, config, device):
        size, rule = plan.cache.block_size, plan.expansion
        return Inputs(scheduler.block_tables, config.row_lengths, size, device, True, rule)

    monkeypatch.setattr(worker_build, "_inputs", padded)
    return dataclasses.replace(given, kernels=(*others, *triton), expansion=expansion), folder


def test_prompts_are_expanded_beside_answers(plan):
    """Two prompts, and later a third that finds the first one's past while the others answer."""
    plan, folder = plan
    oracle = Oracle(folder)
    prompts = rand_prompts(2, 40, seed=3)
    prompts.append([*prompts[0][:32], *rand_prompts(1, 20, seed=4)[0]])
    with driver(plan, folder) as run:
        runner = run.loop._runner
        bound, steps = runner._bound, []

        def counted(shape, expands):
            steps.append(expands)
            return bound(shape, expands)

        runner._bound = counted
        ids = [run.submit(prompt, 4) for prompt in prompts[:2]]
        run.turn()
        run.turn()
        ids.append(run.submit(prompts[2], 2))
        run.run(check=True)
        answers = [run.answers[one] for one in ids]
    assert any(steps) and not all(steps)
    assert answers[2].cached_tokens == 32
    for prompt, answer in zip(prompts, answers, strict=True):
        scores = oracle.logits([*prompt, *answer.tokens]).numpy()[len(prompt) - 1 : -1]
        taken = scores[np.arange(len(answer.tokens)), answer.tokens]
        assert (scores.max(1) - taken < NEAR).all()
