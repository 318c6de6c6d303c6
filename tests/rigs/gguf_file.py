"""R-RAND as a GGUF file, beside a Hugging Face folder of the same dequantised weights.

pair = build_gguf(tmp_path, "llama", linear="q4_1", embedding="q8_0")
pair.gguf    # folder with one .gguf: llama with q and k rows in adjacent rotary pairs
pair.floats  # folder with the float32 weights that the file's blocks stand for
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize, quantize

from tests.rigs.rand import VOCAB, Tensors, rand_config, rand_tensors, write_safetensors
from tests.rigs.tokens import BOS, CHATML, EOS, SPECIALS, rand_tokenizer, write_tokenizer

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


@dataclass(frozen=True)
class GgufPair:
    """Two folders with the same model."""

    gguf: Path
    floats: Path


def build_gguf(
    folder: Path,
    family: str = "llama",
    *,
    seed: int = 0,
    linear: str = "q4_1",
    embedding: str = "q8_0",
    **overrides: object,
) -> GgufPair:
    """Quantises the seeded weights of R-RAND; matrices of the layers and an untied output take
    `linear`, the embedding `embedding`, vectors stay float32."""
    config = rand_config(family, **overrides)
    pair = GgufPair(folder / "gguf", folder / "floats")
    for each in (pair.gguf, pair.floats):
        each.mkdir(parents=True)
    tensors = rand_tensors(config, seed)
    kinds = {name: _kind(name, tensor, linear, embedding) for name, tensor in tensors.items()}
    blocks = {name: quantize(tensor, kinds[name]) for name, tensor in tensors.items()}
    floats = {name: dequantize(blocks[name], kinds[name]).astype(np.float32) for name in tensors}
    (pair.floats / "config.json").write_text(json.dumps(config))
    write_safetensors(pair.floats, floats, shards=1)
    write_tokenizer(pair.floats, rand_tokenizer(VOCAB), CHATML, {})
    _write_gguf(pair.gguf / "model.gguf", config, blocks, kinds)
    return pair


def _kind(name: str, tensor: np.ndarray, linear: str, embedding: str) -> gguf.GGMLQuantizationType:
    if tensor.ndim == 1:
        return gguf.GGMLQuantizationType.F32
    kept = embedding if name == "model.embed_tokens.weight" else linear
    return gguf.GGMLQuantizationType[kept.upper()]


def _write_gguf(
    path: Path,
    config: Mapping[str, object],
    blocks: Tensors,
    kinds: Mapping[str, gguf.GGMLQuantizationType],
) -> None:
    family = str(config["model_type"])
    sizes = {key: value for key, value in config.items() if isinstance(value, int)}
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(sizes["max_position_embeddings"])
    writer.add_embedding_length(sizes["hidden_size"])
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_feed_forward_length(sizes["intermediate_size"])
    writer.add_head_count(sizes["num_attention_heads"])
    writer.add_head_count_kv(sizes["num_key_value_heads"])
    writer.add_key_length(sizes["head_dim"])
    writer.add_value_length(sizes["head_dim"])
    writer.add_rope_dimension_count(sizes["head_dim"])
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(sizes["vocab_size"])
    _add_tokenizer(writer)
    heads = {"attn_q": sizes["num_attention_heads"], "attn_k": sizes["num_key_value_heads"]}
    for name, data in blocks.items():
        theirs = _gguf_name(name)
        part = theirs.split(".")[-2]
        if family == "llama" and part in heads:
            data = _interleave(data, heads[part])
        writer.add_tensor(theirs, data, raw_dtype=kinds[name])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_NAMES[part]}.{kind}"
    return f"{_NAMES[stem]}.{kind}"


def _interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from halves to adjacent pairs, as llama.cpp's converter stores them."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(rows.shape))


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokenizer = rand_tokenizer(VOCAB)
    vocab = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in vocab])
    writer.add_token_types(
        [
            gguf.TokenType.CONTROL if token in SPECIALS else gguf.TokenType.NORMAL
            for token, _ in vocab
        ]
    )
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in merges]
    )
    writer.add_bos_token_id(tokenizer.token_to_id(BOS))
    writer.add_eos_token_id(tokenizer.token_to_id(EOS))
    writer.add_chat_template(CHATML)
