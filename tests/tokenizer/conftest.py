"""A tokenizer with Unicode, digits and control tokens, and the same one as GGUF metadata."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tokenspeed.tokenizer.assets import TokenizerAssets
from tokenspeed.tokenizer.text import TextModel

CONTROL = ("<s>", "</s>", "<|user|>")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|user|>{{ message['role'] }}: "
    "{{ message['content'] }}</s>{% endfor %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog 1234567890",
    "naïve café, größer, ça va? 世界 你好 🦙🦙 привет мир",
    "def main(x): return x + 10  # comment\n\tindented\r\nline",
]


def ids_of(packed: bytes) -> list[int]:
    """The ids that little-endian int32 stand for."""
    return list(memoryview(packed).cast("i"))


def trained(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """A byte-level BPE of 700 ids; <s>, </s>, <|user|> are control tokens, <think> is not."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=list(CONTROL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


def gguf_metadata(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    """What a converter writes into a GGUF file for this tokenizer."""
    model = msgspec.json.decode(tokenizer.to_str())["model"]
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = dict.fromkeys(CONTROL, 3) | {"<think>": 4}
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [types.get(token, 1) for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": vocab["<s>"],
        "tokenizer.ggml.eos_token_id": vocab["</s>"],
        "tokenizer.chat_template": TEMPLATE,
    }


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return trained(pre_tokenizers.ByteLevel(add_prefix_space=False))


@pytest.fixture(scope="session")
def text_model(tokenizer: Tokenizer) -> TextModel:
    assets = TokenizerAssets(
        tokenizer=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        eos_token_ids=(tokenizer.token_to_id("</s>"),),
        chat_template=TEMPLATE,
        template_origin="the test",
    )
    return TextModel(assets, ())
