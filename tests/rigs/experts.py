"""Seeded tiny random models with experts or latent attention, in the Hugging Face layout.

    folder = build_experts(tmp_path / "tiny", "deepseek_v3", seed=1)

Scales are as in `rand`: the first of 200 prompt tokens decides most greedy continuations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from tests.rigs.rand import VOCAB, Tensors, write_safetensors
from tests.rigs.tokens import BOS, CHATML, EOS, rand_tokenizer, write_tokenizer

EXPERT_FAMILIES = ("mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss")
_ARCHITECTURES = {
    "mixtral": "MixtralForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v3": "DeepseekV3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}
_GROUPED = {"num_key_value_heads": 2, "head_dim": 16}
_LATENT = {
    "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 32, "n_shared_experts": 2, "first_k_dense_replace": 1,
    "num_hidden_layers": 3,
}  # fmt: skip
_FACTS: Mapping[str, Mapping[str, object]] = {
    "mixtral": {**_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {
        **_GROUPED, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
        "norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1,
    },
    "deepseek_v2": {
        **_LATENT, "q_lora_rank": None, "topk_method": "greedy", "scoring_func": "softmax",
        "n_group": 1, "topk_group": 1, "norm_topk_prob": False, "routed_scaling_factor": 1.0,
    },
    "deepseek_v3": {
        **_LATENT, "q_lora_rank": 48, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        "n_group": 4, "topk_group": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
            "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        },
        "max_position_embeddings": 256,
    },
    "gpt_oss": {
        **_GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32,
        "sliding_window": 8, "attention_bias": True, "swiglu_limit": 7.0,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64,
            "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        },
        "max_position_embeddings": 256,
    },
}  # fmt: skip
# Sharp attention and a sharp choice of experts, as in `rand`.
_QK_SCALE, _SCALE, _ROUTER_SCALE = 3.0, 1.6, 2.0


def experts_config(family: str, **overrides: object) -> dict[str, object]:
    """config.json of the rig: 2 or 3 layers, hidden 64, 4 heads, 512 ids."""
    tokenizer = rand_tokenizer(VOCAB)
    config: dict[str, object] = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(EOS),
        "torch_dtype": "float32",
    }
    return config | _FACTS[family] | overrides


class _Draw:
    """Seeded tensors under a growing mapping of names."""

    def __init__(self, seed: int, qk_scale: float) -> None:
        self._draw = np.random.default_rng(seed)
        self.qk_scale = qk_scale
        self.tensors: Tensors = {}

    def matrix(self, name: str, rows: int, columns: int, scale: float = _SCALE) -> None:
        values = self._draw.normal(0.0, scale / np.sqrt(columns), (rows, columns))
        self.tensors[f"{name}.weight"] = values.astype(np.float32)

    def stack(self, name: str, count: int, width: int, out: int) -> None:
        values = self._draw.normal(0.0, _SCALE / np.sqrt(width), (count, width, out))
        self.tensors[name] = values.astype(np.float32)

    def vector(self, name: str, *shape: int, mean: float = 0.0, spread: float = 0.3) -> None:
        self.tensors[name] = self._draw.normal(mean, spread, shape).astype(np.float32)

    def norm(self, name: str, size: int, mean: float = 1.0) -> None:
        self.vector(f"{name}.weight", size, mean=mean, spread=0.1)


def experts_tensors(
    config: Mapping[str, object], seed: int, qk_scale: float = _QK_SCALE
) -> Tensors:
    """Seeded float32 weights of that config under their Hugging Face names."""
    draw = _Draw(seed, qk_scale)
    sizes = {key: value for key, value in config.items() if isinstance(value, int)}
    hidden, vocab = sizes["hidden_size"], sizes["vocab_size"]
    family = str(config["model_type"])
    draw.matrix("model.embed_tokens", vocab, hidden, np.sqrt(hidden))
    draw.norm("model.norm", hidden)
    draw.matrix("lm_head", vocab, hidden, 4.0)
    for layer in range(sizes["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        draw.norm(f"{at}.input_layernorm", hidden)
        draw.norm(f"{at}.post_attention_layernorm", hidden)
        attention = _latent if "kv_lora_rank" in sizes else _grouped
        attention(draw, f"{at}.self_attn", config, sizes)
        if layer < sizes.get("first_k_dense_replace", 0):
            _gated(draw, f"{at}.mlp", sizes["intermediate_size"], hidden)
        else:
            _FEEDS[family](draw, at, config, sizes)
    return draw.tensors


Sizes = Mapping[str, int]


def _grouped(draw: _Draw, at: str, config: Mapping[str, object], sizes: Sizes) -> None:
    hidden, head = sizes["hidden_size"], sizes["head_dim"]
    q, kv = sizes["num_attention_heads"] * head, sizes["num_key_value_heads"] * head
    for name, rows, columns, scale in (
        ("q_proj", q, hidden, draw.qk_scale), ("k_proj", kv, hidden, draw.qk_scale),
        ("v_proj", kv, hidden, _SCALE), ("o_proj", hidden, q, _SCALE),
    ):  # fmt: skip
        draw.matrix(f"{at}.{name}", rows, columns, scale)
        if config.get("attention_bias"):
            draw.vector(f"{at}.{name}.bias", rows)
    if config["model_type"] == "qwen3_moe":
        draw.norm(f"{at}.q_norm", head, mean=1.7)
        draw.norm(f"{at}.k_norm", head, mean=1.7)
    if config["model_type"] == "gpt_oss":
        draw.vector(f"{at}.sinks", sizes["num_attention_heads"], spread=1.0)


def _latent(draw: _Draw, at: str, config: Mapping[str, object], sizes: Sizes) -> None:
    hidden, heads, rank = sizes["hidden_size"], sizes["num_attention_heads"], sizes["kv_lora_rank"]
    rope, nope, value = (
        sizes[key] for key in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
    )
    if config["q_lora_rank"] is None:
        draw.matrix(f"{at}.q_proj", heads * (nope + rope), hidden, draw.qk_scale)
    else:
        q_rank = sizes["q_lora_rank"]
        draw.matrix(f"{at}.q_a_proj", q_rank, hidden)
        draw.norm(f"{at}.q_a_layernorm", q_rank)
        draw.matrix(f"{at}.q_b_proj", heads * (nope + rope), q_rank, draw.qk_scale)
    draw.matrix(f"{at}.kv_a_proj_with_mqa", rank + rope, hidden, draw.qk_scale)
    draw.norm(f"{at}.kv_a_layernorm", rank)
    draw.matrix(f"{at}.kv_b_proj", heads * (nope + value), rank, draw.qk_scale)
    draw.matrix(f"{at}.o_proj", hidden, heads * value)


def _gated(draw: _Draw, at: str, inner: int, hidden: int, names: str = "gate up down") -> None:
    gate, up, down = (name if name[0] == "w" else f"{name}_proj" for name in names.split())
    draw.matrix(f"{at}.{gate}", inner, hidden)
    draw.matrix(f"{at}.{up}", inner, hidden)
    draw.matrix(f"{at}.{down}", hidden, inner)


def _mixtral(draw: _Draw, at: str, config: Mapping[str, object], sizes: Sizes) -> None:
    hidden, moe = sizes["hidden_size"], f"{at}.block_sparse_moe"
    draw.matrix(f"{moe}.gate", sizes["num_local_experts"], hidden, _ROUTER_SCALE)
    for expert in range(sizes["num_local_experts"]):
        inner = sizes["intermediate_size"]
        _gated(draw, f"{moe}.experts.{expert}", inner, hidden, "w1 w3 w2")


def _qwen3(draw: _Draw, at: str, config: Mapping[str, object], sizes: Sizes) -> None:
    hidden, inner = sizes["hidden_size"], sizes["moe_intermediate_size"]
    draw.matrix(f"{at}.mlp.gate", sizes["num_experts"], hidden, _ROUTER_SCALE)
    for expert in range(sizes["num_experts"]):
        _gated(draw, f"{at}.mlp.experts.{expert}", inner, hidden)


def _deepseek(draw: _Draw, at: str, config: Mapping[str, object], sizes: Sizes) -> None:
    hidden, inner = sizes["hidden_size"], sizes["moe_intermediate_size"]
    draw.matrix(f"{at}.mlp.gate", sizes["n_routed_experts"], hidden, _ROUTER_SCALE)
    if config["topk_method"] == "noaux_tc":
        bias = f"{at}.mlp.gate.e_score_correction_bias"
        draw.vector(bias, sizes["n_routed_experts"], spread=0.1)
    for expert in range(sizes["n_routed_experts"]):
        _gated(draw, f"{at}.mlp.experts.{expert}", inner, hidden)
    _gated(draw, f"{at}.mlp.shared_experts", sizes["n_shared_experts"] * inner, hidden)


def _gpt_oss(draw: _Draw, at: str, config: Mapping[str, object], sizes: Sizes) -> None:
    hidden, inner, count = (
        sizes[key] for key in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    draw.matrix(f"{at}.mlp.router", count, hidden, _ROUTER_SCALE)
    draw.vector(f"{at}.mlp.router.bias", count)
    draw.stack(f"{at}.mlp.experts.gate_up_proj", count, hidden, 2 * inner)
    draw.vector(f"{at}.mlp.experts.gate_up_proj_bias", count, 2 * inner)
    draw.stack(f"{at}.mlp.experts.down_proj", count, inner, hidden)
    draw.vector(f"{at}.mlp.experts.down_proj_bias", count, hidden)


_FEEDS: Mapping[str, Callable[[_Draw, str, Mapping[str, object], Sizes], None]] = {
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gpt_oss": _gpt_oss,
}


def build_experts(
    folder: Path, family: str, *, seed: int = 0, qk_scale: float = _QK_SCALE, **overrides: object
) -> Path:
    """Write the model folder and return it. `overrides` replace keys of config.json. A `qk_scale`
    of 1 makes attention as even as that of a real model: then rounding is not multiplied.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = experts_config(family, **overrides)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    write_safetensors(folder, experts_tensors(config, seed, qk_scale), 1)
    write_tokenizer(folder, rand_tokenizer(VOCAB), CHATML, {})
    return folder
