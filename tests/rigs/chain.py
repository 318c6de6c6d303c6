"""R-CHAIN: a model whose output is scripted.

    chain = build_chain(tmp_path / "chain", {"greet": ["Hel", "lo", b"\\xf0\\x9f", b"\\xa6\\x99"]})
    prompt = chain.prompt("greet")          # "<|go:greet|>"; any text may stand before it

Whatever prompt ends in the token `<|go:NAME|>` is continued, greedily, with the pieces of script
NAME, one token per piece, and then with <|im_end|> (or, for a name in `loops`, with the script
again, for ever). A prompt that ends in anything else is answered with <|im_end|> at once. A
script cut by a prompt, as in `<|go:a|>` + more text, does not go on. The chat template renders
the contents of all messages one after the other, so a chat whose last message ends in
`<|go:NAME|>` plays NAME.

How it works: hidden size = vocabulary; attention and MLP add zero; embedding rows are orthogonal;
the output row of next(t) holds the embedding of t, so its logit is the hidden size and every
other one is 0.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.rigs.rand import Tensors, rand_tensors, write_safetensors
from tests.rigs.tokens import BOS, EOS, SPECIALS, chain_tokenizer, write_tokenizer

_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@dataclass(frozen=True)
class Chain:
    """A built R-CHAIN folder. `steps` are the token ids of each script."""

    folder: Path
    steps: Mapping[str, tuple[int, ...]]
    triggers: Mapping[str, int]
    eos: int

    def prompt(self, name: str) -> str:
        """The text that starts script `name`."""
        return f"<|go:{name}|>"


def build_chain(
    folder: Path,
    scripts: Mapping[str, Sequence[str | bytes]],
    *,
    loops: Collection[str] = (),
    starts: Mapping[str, str] | None = None,
    template: str = _TEMPLATE,
    max_position: int = 4096,
) -> Chain:
    """Write the model folder. Pieces are text or raw bytes (a part of a character).

    `starts`: texts that start scripts in place of `<|go:NAME|>`.
    """
    start_of = {name: (starts or {}).get(name, f"<|go:{name}|>") for name in scripts}
    folder.mkdir(parents=True, exist_ok=True)
    pieces = [
        piece.encode() if isinstance(piece, str) else piece
        for script in scripts.values()
        for piece in script
    ]
    specials = [*SPECIALS, *start_of.values()]
    tokenizer = chain_tokenizer(pieces, specials)
    ids = {text: tokenizer.token_to_id(text) for text in specials}

    vocab = -(-tokenizer.get_vocab_size() // 64) * 64
    following = np.full(vocab, ids[EOS])
    steps: dict[str, tuple[int, ...]] = {}
    begin = 256
    for name, script in scripts.items():
        walk = (ids[start_of[name]], *range(begin, begin + len(script)))
        following[list(walk[:-1])] = walk[1:]
        if name in loops:
            following[walk[-1]] = walk[1]
        steps[name] = walk[1:]
        begin += len(script)

    config = _config(vocab, ids, max_position)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_safetensors(folder, _tensors(config, following), shards=1)
    write_tokenizer(folder, tokenizer, template, {})
    triggers = {name: ids[text] for name, text in start_of.items()}
    return Chain(folder=folder, steps=steps, triggers=triggers, eos=ids[EOS])


def _config(vocab: int, ids: Mapping[str, int], max_position: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": vocab,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": max_position,
        "tie_word_embeddings": False,
        "bos_token_id": ids[BOS],
        "eos_token_id": ids[EOS],
        "torch_dtype": "float32",
    }


def _tensors(config: Mapping[str, object], following: np.ndarray) -> Tensors:
    tensors = rand_tensors(config, seed=0)
    vocab = len(following)
    orthogonal, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(vocab, vocab)))
    embed = (orthogonal * np.sqrt(vocab)).astype(np.float32)
    head = np.zeros_like(embed)
    np.add.at(head, following, embed)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor[:] = 0.0
    tensors["model.embed_tokens.weight"] = embed
    tensors["lm_head.weight"] = head
    tensors["model.norm.weight"] = np.ones(vocab, np.float32)
    return tensors
