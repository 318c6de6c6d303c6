"""R-RAND: seeded tiny random model folders in the Hugging Face layout.

    folder = build_rand(tmp_path / "tiny", family="qwen3", seed=1, shards=3)

The scales of the weights were raised until the first of 200 prompt tokens decides the greedy
continuation of most prompts (`tests/rigs/test_rigs.py` holds the proof): with weights as small as
those of an untrained model, a broken cache would go unseen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.rigs.tokens import BOS, CHATML, EOS, rand_tokenizer, write_tokenizer

FAMILIES = ("llama", "qwen2", "qwen3")
VOCAB = 512
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Sharp attention: logits of q and k spread widely enough that single far tokens win a head.
_QK_SCALE = 3.0
_LINEAR_SCALE = 1.6

Tensors = dict[str, np.ndarray]


def rand_config(family: str, **overrides: object) -> dict[str, object]:
    """config.json of the rig: 2 layers, hidden 64, 4 heads, 2 kv heads, 512 ids."""
    tokenizer = rand_tokenizer(VOCAB)
    config: dict[str, object] = {
        "architectures": [_ARCHITECTURES[family]],
        "model_type": family,
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": family == "qwen2",
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(EOS),
        "torch_dtype": "float32",
    }
    return config | overrides


def rand_tensors(config: Mapping[str, object], seed: int, qk_scale: float = _QK_SCALE) -> Tensors:
    """Seeded float32 weights of that config under their Hugging Face names."""
    draw = np.random.default_rng(seed)
    sizes = {key: int(value) for key, value in config.items() if isinstance(value, int)}
    hidden, inner, head = sizes["hidden_size"], sizes["intermediate_size"], sizes["head_dim"]
    q_rows = sizes["num_attention_heads"] * head
    kv_rows = sizes["num_key_value_heads"] * head
    family = config["model_type"]

    def matrix(rows: int, columns: int, scale: float) -> np.ndarray:
        return draw.normal(0.0, scale / np.sqrt(columns), (rows, columns)).astype(np.float32)

    def vector(size: int, mean: float, spread: float) -> np.ndarray:
        return draw.normal(mean, spread, size).astype(np.float32)

    tensors: Tensors = {
        "model.embed_tokens.weight": matrix(sizes["vocab_size"], hidden, np.sqrt(hidden)),
        "model.norm.weight": vector(hidden, 1.0, 0.1),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(sizes["vocab_size"], hidden, 4.0)
    for layer in range(sizes["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}.{norm}.weight"] = vector(hidden, 1.0, 0.1)
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        for name, rows, scale in (
            ("q_proj", q_rows, qk_scale),
            ("k_proj", kv_rows, qk_scale),
            ("v_proj", kv_rows, _LINEAR_SCALE),
        ):
            tensors[f"{attention}.{name}.weight"] = matrix(rows, hidden, scale)
            if family == "qwen2" or config.get("attention_bias"):
                tensors[f"{attention}.{name}.bias"] = vector(rows, 0.0, 0.3)
        tensors[f"{attention}.o_proj.weight"] = matrix(hidden, q_rows, _LINEAR_SCALE)
        if config.get("attention_bias"):
            tensors[f"{attention}.o_proj.bias"] = vector(hidden, 0.0, 0.3)
        if family == "qwen3":
            # Around 1.7, since the norms undo the scale of the q and k projections.
            tensors[f"{attention}.q_norm.weight"] = vector(head, 1.7, 0.1)
            tensors[f"{attention}.k_norm.weight"] = vector(head, 1.7, 0.1)
        for name, rows, columns in (
            ("gate_proj", inner, hidden),
            ("up_proj", inner, hidden),
            ("down_proj", hidden, inner),
        ):
            tensors[f"{mlp}.{name}.weight"] = matrix(rows, columns, _LINEAR_SCALE)
            if config.get("mlp_bias"):
                tensors[f"{mlp}.{name}.bias"] = vector(rows, 0.0, 0.3)
    return tensors


def write_safetensors(folder: Path, tensors: Mapping[str, np.ndarray], shards: int) -> None:
    """One file, or `shards` files with an index, the tensors dealt out in turn."""
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {key: tensors[key] for key in sorted(tensors)[shard::shards]}
        save_file(part, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def build_rand(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    shards: int = 1,
    chat_template: str | None = CHATML,
    qk_scale: float = _QK_SCALE,
    **overrides: object,
) -> Path:
    """Write the model folder and return it. `overrides` replace keys of config.json. A `qk_scale`
    of 1 makes attention as even as that of a real model: then rounding is not multiplied.

    The folder holds config.json, generation_config.json, the weights, tokenizer.json and
    tokenizer_config.json (with `chat_template`, ChatML by default, or none).
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = rand_config(family, **overrides)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id")}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2))
    write_safetensors(folder, rand_tensors(config, seed, qk_scale), shards)
    write_tokenizer(folder, rand_tokenizer(VOCAB), chat_template, {})
    return folder


def rand_prompts(count: int, length: int, seed: int = 0) -> list[list[int]]:
    """Seeded prompts of ordinary ids (no specials)."""
    draw = np.random.default_rng([seed, count, length])
    return [[int(token) for token in row] for row in draw.integers(3, VOCAB, (count, length))]
