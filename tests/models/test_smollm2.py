"""The shipped model's greedy answers equal transformers on the same dequantised weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from transformers import LlamaConfig, LlamaForCausalLM

from tests.rigs import Oracle
from tests.rigs.drive import driver
from tests.rigs.plans import tiny_plan
from tokenspeed.cli.planning import plan_recipe
from tokenspeed.plan import Attention, Dense, ModelConfig, Plan, WeightFormat
from tokenspeed.tokenizer import load_text_model

NEW_TOKENS = 48
PROMPTS = (
    "What is the capital of France?",
    "Write a haiku about rain in the mountains.",
    "def fibonacci(n):\n    # complete this Python function",
    "Explain in two sentences why the sky is blue.",
    "Translate to Spanish: The library opens at nine.",
    "List five animals that live in the sea, one per line.",
    "If I have 12 apples and give away 5, how many are left? Show your work.",
    "Résumé 漢字 🦙: what do these have in common? Answer briefly.",
)

_PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def reference_model(path: Path, config: ModelConfig) -> LlamaForCausalLM:
    """transformers over the file's weights, dequantised by the gguf package, rows of q and k
    put back into half-split order. (Its own GGUF loader takes half a minute.)"""
    ((layer, _),) = config.kinds()
    attention, feed = layer.mixer, layer.feed_forward
    assert isinstance(attention, Attention)
    assert isinstance(feed, Dense)
    assert config.rope is not None
    heads = {"attn_q": attention.num_heads, "attn_k": attention.num_kv_heads}
    state: dict[str, torch.Tensor] = {}
    for tensor in GGUFReader(path).tensors:
        data = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy())
        if not tensor.name.startswith("blk."):
            stem = {"token_embd": "embed_tokens", "output_norm": "norm"}[tensor.name[:-7]]
            state[f"model.{stem}.weight"] = data
            continue
        _, layer, part, _ = tensor.name.split(".")
        if part in heads:
            rows, columns = data.shape
            pairs = data.view(heads[part], rows // heads[part] // 2, 2, columns)
            data = pairs.transpose(1, 2).reshape(rows, columns)
        state[f"model.layers.{layer}.{_PARTS[part]}.weight"] = data
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=feed.inner,
                num_hidden_layers=config.num_layers,
                num_attention_heads=attention.num_heads,
                num_key_value_heads=attention.num_kv_heads,
                head_dim=attention.head_dim,
                rms_norm_eps=config.norm_eps,
                max_position_embeddings=config.max_position,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
                tie_word_embeddings=True,
                attn_implementation="eager",
            )
        )
    model.load_state_dict(state, assign=True)
    # Not in the state: the frequencies were made on the meta device.
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    return model


@dataclass(frozen=True)
class Reference:
    """The model's folder, the prompts as ids, and the oracle."""

    folder: Path
    prompts: tuple[list[int], ...]
    oracle: Oracle


@pytest.fixture(scope="module")
def reference(smollm2_dir: Path) -> Iterator[Reference]:
    plan = tiny_plan(smollm2_dir)
    text = load_text_model(smollm2_dir, plan)
    prompts = tuple(
        np.frombuffer(text.encode_chat([{"role": "user", "content": prompt}], {}), "<i4").tolist()
        for prompt in PROMPTS
    )
    (path,) = smollm2_dir.glob("*.gguf")
    yield Reference(smollm2_dir, prompts, Oracle(reference_model(path, plan.model.config)))


def walk(reference: Reference, plan: Plan, tie: float) -> int:
    """Runs all prompts at once and walks each answer; returns how many tokens agreed."""
    with driver(plan, reference.folder) as run:
        answers = run.generate(reference.prompts, NEW_TOKENS)
    return sum(
        reference.oracle.check_greedy(prompt, answer.tokens, tie)
        for prompt, answer in zip(reference.prompts, answers, strict=True)
    )


def test_exact_mode_equals_transformers(reference: Reference) -> None:
    plan = tiny_plan(reference.folder, max_running=8, num_blocks=129)
    agreed = walk(reference, plan, tie=1e-3)
    assert agreed > 0.9 * NEW_TOKENS * len(PROMPTS)


@pytest.mark.parametrize(
    "overrides",
    [(), ("kv.dtype=bfloat16",), ("advanced.in_flight_depth=1",)],
    ids=["as shipped", "bfloat16 cache", "overlapped"],
)
def test_shipped_recipe_stays_within_its_ties(
    reference: Reference, repo: Path, overrides: tuple[str, ...]
) -> None:
    """Weights as the file holds them, activations rounded to 16 bits in the products. All tokens
    agreed on the machine where this was written; a tie of 0.05 leaves room for another order of
    sums and for the bfloat16 cache."""
    recipe = repo / "recipes" / "smollm2-135m-cpu.yaml"
    plan = plan_recipe(recipe, overrides).resolution.plan
    assert plan.model.linear_format == WeightFormat.Q4_1
    agreed = walk(reference, plan, tie=0.05)
    assert agreed > 0.95 * NEW_TOKENS * len(PROMPTS)
