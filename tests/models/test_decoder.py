"""One pass over a whole prompt equals transformers, for every fact that the decoder reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.rigs import FAMILIES, Oracle, build_rand, rand_prompts
from tests.rigs.experts import EXPERT_FAMILIES, build_experts
from tests.rigs.plans import tiny_plan
from tokenspeed.cache.kv import allocate
from tokenspeed.layers.attention import AttentionInputs
from tokenspeed.layers.kernels import Kernels
from tokenspeed.models.decoder import Decoder
from tokenspeed.models.registry import parameters
from tokenspeed.plan import WeightFormat
from tokenspeed.weights.load import load_weights

CPU = torch.device("cpu")

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"family": "qwen2"},
    "qwen3": {"family": "qwen3"},
    "all biases": {"attention_bias": True, "mlp_bias": True},
    "qwen3 with biases": {"family": "qwen3", "attention_bias": True},
    "tied": {"tie_word_embeddings": True},
    "untied qwen2": {"family": "qwen2", "tie_word_embeddings": False},
    "every head its own": {"num_key_value_heads": 4},
    "one kv head": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 32},
    "linear rope": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama3 rope": {
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        }
    },
    "yarn rope": {
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "max_position_embeddings": 256,
    },
}


def build_decoder(
    folder: Path,
    activations: str = "float32",
    kv_dtype: str | None = None,
    kv_layout: str | None = None,
    kv_scales: tuple[tuple[float, float], ...] = (),
) -> Decoder:
    kept = WeightFormat(activations)
    plan = tiny_plan(
        folder,
        num_blocks=64,
        block_size=4,
        activations=activations,
        kv_dtype=kv_dtype or activations,
        kv_layout=kv_layout,
        linear_format=kept,
        embedding_format=kept,
    )
    config, dtype = plan.model.config, getattr(torch, activations)
    weights = load_weights(
        parameters(config, plan.model.container, plan.model.formats),
        config,
        folder,
        plan.model.container,
        device=CPU,
        dtype=dtype,
        progress=lambda done, total: None,
    )
    kernels = Kernels(plan.kernels)
    cache = allocate(plan.cache, config, CPU, kv_scales)
    return Decoder(config, weights, kernels, cache, dtype, config.max_position)


@torch.inference_mode()
def prefill_logits(
    model: Decoder, prompt: list[int], block_size: int = 4, wanted: torch.Tensor | None = None
) -> torch.Tensor:
    """The logits after every token of a prompt, or after those `wanted`, its blocks scattered over
    the pool."""
    length = len(prompt)
    positions = torch.arange(length, dtype=torch.int32)
    count = -(-length // block_size)
    # For two cache groups; a model with one of them leaves the other alone.
    tables = tuple(
        first + torch.arange(count, dtype=torch.int32).flip(0) for first in (1, 1 + count)
    )
    inputs = AttentionInputs(
        positions=positions,
        slots=tuple(
            table[positions // block_size].long() * block_size + positions % block_size
            for table in tables
        ),
        block_tables=tuple(table.unsqueeze(0) for table in tables),
        cu_query_lens=torch.tensor([0, length], dtype=torch.int32),
        context_lens=torch.zeros(1, dtype=torch.int32),
    )
    hidden = model.forward(torch.tensor(prompt, dtype=torch.int32), inputs, wanted)
    return model.logits(hidden)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    facts = dict(VARIANTS[variant])
    folder = build_rand(tmp_path, facts.pop("family", "llama"), seed=5, **facts)
    (prompt,) = rand_prompts(1, 100)
    ours = prefill_logits(build_decoder(folder), prompt)
    torch.testing.assert_close(ours, Oracle(folder).logits(prompt), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("places", [[99], [0, 41, 99], []])
def test_the_wanted_rows_are_those_of_all(places: list[int], tmp_path: Path) -> None:
    folder = build_rand(tmp_path, "llama", seed=5)
    (prompt,) = rand_prompts(1, 100)
    model, wanted = build_decoder(folder), torch.tensor(places, dtype=torch.int32)
    every = prefill_logits(model, prompt)
    some = prefill_logits(model, prompt, wanted=wanted)
    torch.testing.assert_close(some, every[places], atol=1e-4, rtol=1e-4)


def test_every_family_of_the_rigs_is_covered() -> None:
    assert {facts.get("family", "llama") for facts in VARIANTS.values()} == set(FAMILIES)


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    """What a GPU runs by default, through the torch references."""
    folder = build_rand(tmp_path, "qwen3", seed=6)
    (prompt,) = rand_prompts(1, 60)
    exact = prefill_logits(build_decoder(folder), prompt)
    rounded = prefill_logits(build_decoder(folder, activations="bfloat16"), prompt)
    assert rounded.dtype == torch.float32
    correlation = torch.corrcoef(torch.stack((exact.flatten(), rounded.flatten())))[0, 1]
    assert correlation > 0.99


@pytest.mark.parametrize("family", EXPERT_FAMILIES)
def test_logits_of_experts_equal_transformers(family: str, tmp_path: Path) -> None:
    folder = build_experts(tmp_path, family, seed=5)
    (prompt,) = rand_prompts(1, 100)
    ours = prefill_logits(build_decoder(folder), prompt)
    torch.testing.assert_close(ours, Oracle(folder).logits(prompt), atol=1e-3, rtol=1e-3)


def test_c39_a_token_matters_as_far_as_the_window_and_no_further(tmp_path: Path) -> None:
    """One layer with a window of 8, which counts the token itself."""
    only = {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
    model = build_decoder(build_experts(tmp_path, "gpt_oss", seed=5, **only))
    (prompt,) = rand_prompts(1, 40)
    before = prefill_logits(model, prompt)
    for changed in (0, 3, 4, 17):
        after = prefill_logits(model, [*prompt[:changed], 3, *prompt[changed + 1 :]])
        differs = (before != after).any(-1)
        assert differs[changed : changed + 8].all()
        assert not differs[changed + 8 :].any()


@pytest.mark.parametrize("outlier", [1.0, 30.0, 1000.0])
def test_c41_float8_latents_keep_the_distribution(tmp_path: Path, outlier: float) -> None:
    """Mean divergence from float32 in nats a token, with channels of the latents so many times as
    large as the others: a scale per token and rotated parts that are not rounded lose less than
    one scale for all."""
    folder = build_experts(tmp_path, "deepseek_v2", seed=5, qk_scale=1.0)
    _enlarge_channels(folder, outlier)
    (prompt,) = rand_prompts(1, 100)
    exact = prefill_logits(build_decoder(folder), prompt).log_softmax(-1)
    lost = {}
    for layout in ("latent", "latent_scaled"):
        model = build_decoder(folder, kv_dtype="fp8", kv_layout=layout)
        rounded = prefill_logits(model, prompt).log_softmax(-1)
        lost[layout] = float((exact.exp() * (exact - rounded)).sum(-1).mean())
    assert lost["latent_scaled"] < 0.02
    assert lost["latent_scaled"] < lost["latent"]


def _enlarge_channels(folder: Path, factor: float) -> None:
    """Two channels of every latent times `factor`, and what reads them divided by it: in exact
    arithmetic nothing changes."""
    (path,) = folder.glob("*.safetensors")
    tensors = load_file(path)
    for name, tensor in tensors.items():
        if name.endswith("kv_a_layernorm.weight"):
            tensor[[3, 17]] *= factor
        if name.endswith("kv_b_proj.weight"):
            tensor[:, [3, 17]] /= factor
    save_file(tensors, path)


def test_c41_the_scales_of_a_checkpoint_are_used(tmp_path: Path) -> None:
    """Keys 500 times as large and queries as much smaller, values 500 times as large and what
    follows as much smaller: nothing changes but what the cache holds, which clips without scales
    and is near with those that bring the largest to about 200."""
    folder = build_rand(tmp_path, seed=7, qk_scale=1.0)
    (prompt,) = rand_prompts(1, 60)
    exact = prefill_logits(build_decoder(folder), prompt)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if name.endswith(("k_proj.weight", "v_proj.weight")):
            tensor *= 500
        elif name.endswith(("q_proj.weight", "o_proj.weight")):
            tensor /= 500
    save_file(tensors, folder / "model.safetensors")
    divergence = {}
    for scales in ((1.0, 1.0), (10.0, 10.0), (10.0, 1.0), (1.0, 10.0)):
        model = build_decoder(folder, kv_dtype="fp8", kv_scales=(scales,) * 2)
        made = prefill_logits(model, prompt).log_softmax(-1)
        gaps = exact.softmax(-1) * (exact.log_softmax(-1) - made)
        divergence[scales] = float(gaps.sum(-1).mean())
    near = divergence.pop((10.0, 10.0))
    assert near < 0.03 < 10 * near < min(divergence.values()), divergence
