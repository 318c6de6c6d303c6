"""Writes a GGUF checkpoint as a Hugging Face folder in bfloat16, for a peer to serve.

Both servers must answer from the same weights, and the peer takes half a minute and float32 to
read GGUF by itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from tokenspeed.checkpoint.gguf import read_gguf
from tokenspeed.checkpoint.inventory import GROUPS
from tokenspeed.checkpoint.tensors import HF
from tokenspeed.models.registry import parameters
from tokenspeed.plan import Attention, Dense, ModelConfig, WeightFormat
from tokenspeed.tokenizer.gguf import read_gguf_tokenizer
from tokenspeed.weights.load import load_weights
from tokenspeed.weights.parameter import Weights


def export_bfloat16(gguf: Path, config: ModelConfig, folder: Path) -> None:
    """`folder` gets model.safetensors, config.json and the tokenizer; made when missing."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = load_weights(
        parameters(config, "gguf", dict.fromkeys(GROUPS, WeightFormat.BFLOAT16)),
        config,
        gguf.parent,
        "gguf",
        device=torch.device("cpu"),
        dtype=torch.bfloat16,
        progress=lambda done, total: None,
    )
    tensors = _named(weights, config)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(_config(config), indent=2))
    _write_tokenizer(gguf, folder)


def _named(weights: Weights, config: ModelConfig) -> dict[str, torch.Tensor]:
    """Fused matrices taken apart again, under the names of the Hugging Face layout."""
    attention, inner = _only_layer(config)
    q = attention.num_heads * attention.head_dim
    kv = attention.num_kv_heads * attention.head_dim
    rows = {
        "qkv": {"q": q, "k": kv, "v": kv},
        "o": {"o": config.hidden_size},
        "gate_up": {"gate": inner, "up": inner},
        "down": {"down": config.hidden_size},
    }
    tensors = {
        f"{HF.embedding}.weight": weights.matrices["embedding"].data,
        f"{HF.final_norm}.weight": weights.vectors["final_norm"],
    }
    if not config.tie_embeddings:
        tensors[f"{HF.head}.weight"] = weights.matrices["head"].data
    for layer in range(config.num_layers):
        for name, parts in rows.items():
            whole = weights.matrices[f"layers.{layer}.{name}"].data
            split = torch.split(whole, list(parts.values()))
            for part, piece in zip(parts, split, strict=True):
                tensors[HF.of(layer, f"{part}.weight")] = piece.contiguous()
        for norm in ("attn_norm", "mlp_norm"):
            tensors[HF.of(layer, f"{norm}.weight")] = weights.vectors[f"layers.{layer}.{norm}"]
    return tensors


def _only_layer(config: ModelConfig) -> tuple[Attention, int]:
    """The attention of every layer and the inner width of its feed-forward."""
    ((layer, _),) = config.kinds()
    assert isinstance(layer.mixer, Attention)
    assert isinstance(layer.feed_forward, Dense)
    return layer.mixer, layer.feed_forward.inner


def _config(config: ModelConfig) -> dict[str, object]:
    attention, inner = _only_layer(config)
    plain = not (attention.qkv_bias or attention.qk_norm != "none")
    assert plain, "the peer's folder is written for plain layers"
    assert config.rope is not None
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": inner,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": attention.num_heads,
        "num_key_value_heads": attention.num_kv_heads,
        "head_dim": attention.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope.theta,
        "max_position_embeddings": config.max_position,
        "tie_word_embeddings": config.tie_embeddings,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids),
        "torch_dtype": "bfloat16",
    }


def _write_tokenizer(gguf: Path, folder: Path) -> None:
    assets = read_gguf_tokenizer(str(gguf), read_gguf(gguf).metadata, None)
    assets.tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": assets.bos_token,
        "eos_token": assets.eos_token,
        "pad_token": assets.eos_token,
        "chat_template": assets.chat_template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    generation = {"eos_token_id": list(assets.eos_token_ids), "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation))
