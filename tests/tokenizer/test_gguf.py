"""A tokenizer built from GGUF metadata equals the one the metadata was made from."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from tests.tokenizer.conftest import TEMPLATE, gguf_metadata, trained
from tokenspeed.errors import CheckpointError
from tokenspeed.tokenizer.gguf import read_gguf_tokenizer

# Written from the published tokenizer.json of each family, not from our own table.
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def original(pre: str) -> Tokenizer:
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre == "gpt-2":
        return trained(plain)
    if pre == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return trained(pre_tokenizers.Sequence([digits, plain]))
    split = pre_tokenizers.Split(Regex(_QWEN2), behavior="isolated")
    raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = trained(pre_tokenizers.Sequence([split, raw]))
    tokenizer.normalizer = normalizers.NFC()
    return tokenizer


PAIRS = {
    pre: (source := original(pre), read_gguf_tokenizer("x.gguf", gguf_metadata(source, pre), None))
    for pre in ("gpt-2", "smollm", "qwen2")
}


@pytest.mark.parametrize("pre", PAIRS)
@given(text=st.text(max_size=60) | st.text(alphabet="the 12 '\n\tquick<s>think|é", max_size=60))
@example(text="It's 2024,\r\n  <think>the   quick</s> fox 12345 世界🦙 cafe\u0301 ")
def test_same_ids_as_the_original(pre: str, text: str) -> None:
    source, built = PAIRS[pre]
    assert built.tokenizer.encode(text).ids == source.encode(text).ids


def test_facts_of_the_metadata() -> None:
    source, built = PAIRS["smollm"]
    assert (built.bos_token, built.eos_token) == ("<s>", "</s>")
    assert built.eos_token_ids == (source.token_to_id("</s>"),)
    assert built.chat_template == TEMPLATE
    added = built.tokenizer.get_added_tokens_decoder().values()
    assert {token.content for token in added if not token.special} == {"<think>"}


@pytest.mark.parametrize(
    "hostile",
    [
        {"tokens": None},
        {"merges": None},
        {"merges": ["onlyone"]},
        {"merges": ["not there"]},
        {"merges": [3]},
        {"tokens": [1, 2]},
        {"bos_token_id": 10**9},
        {"eos_token_id": "</s>"},
        {"token_type": [1]},
    ],
    ids=str,
)
def test_metadata_that_make_no_tokenizer_are_refused(hostile: dict[str, object]) -> None:
    metadata = gguf_metadata(PAIRS["smollm"][0], "smollm")
    for key, value in hostile.items():
        metadata.pop(f"tokenizer.ggml.{key}")
        if value is not None:
            metadata[f"tokenizer.ggml.{key}"] = value
    with pytest.raises(CheckpointError, match="not a tokenizer"):
        read_gguf_tokenizer("x.gguf", metadata, None)


def test_begin_token_only_where_the_file_says_so() -> None:
    source, built = PAIRS["gpt-2"]
    adding = gguf_metadata(source, "gpt-2") | {"tokenizer.ggml.add_bos_token": True}
    with_begin = read_gguf_tokenizer("x.gguf", adding, "override").tokenizer
    begin = source.token_to_id("<s>")
    assert with_begin.encode("the").ids == [begin, *built.tokenizer.encode("the").ids]


def test_the_end_of_a_turn_ends_an_answer() -> None:
    metadata = gguf_metadata(PAIRS["gpt-2"][0], "gpt-2") | {"tokenizer.ggml.eot_token_id": 2}
    assert read_gguf_tokenizer("x.gguf", metadata, None).eos_token_ids == (1, 2)


@pytest.mark.parametrize(
    ("key", "value"), [("tokenizer.ggml.pre", "viking"), ("tokenizer.ggml.model", "bert")]
)
def test_what_is_not_known_is_refused(key: str, value: str) -> None:
    metadata = gguf_metadata(PAIRS["gpt-2"][0], "gpt-2") | {key: value}
    with pytest.raises(CheckpointError, match=value):
        read_gguf_tokenizer("x.gguf", metadata, None)
