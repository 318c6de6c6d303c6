"""Where a grammar leaves no choice, the tokens are those in which a prompt would say the same."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.grammar.walk import tokens
from tests.rigs.tokens import rand_tokenizer
from tokenspeed.grammar import lark
from tokenspeed.grammar.vocabulary import Vocabulary
from tokenspeed.tokenizer import TextModel
from tokenspeed.tokenizer.assets import TokenizerAssets

END = 2


def of(tokenizer: Tokenizer) -> tuple[TextModel, Vocabulary]:
    text = TextModel(TokenizerAssets(tokenizer, None, None, (END,), None, ""), (END,))
    return text, Vocabulary(text, tokenizer.get_vocab_size())


@pytest.mark.parametrize("said", ["the seven wizards", '{"name": "return"}', "ünï 🦙\n", "  x"])
def test_byte_level_text_is_spelt_as_in_a_prompt(said: str) -> None:
    text, vocabulary = of(rand_tokenizer(512))
    assert tokens(lark.write(lark.literal(said)), 0, vocabulary) == text.encode_bare(said)


def test_no_space_comes_in_where_a_tokenizer_begins_texts_with_one() -> None:
    letters = ["<unk>", "▁", "</s>", *"abcd", "ab", "▁a", "▁ab", "cd"]
    merges = [("a", "b"), ("▁", "a"), ("▁", "ab"), ("c", "d")]
    vocab = {letter: place for place, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.add_special_tokens(["</s>"])
    text, vocabulary = of(tokenizer)
    for said in ("abcd", "a ab", " ab"):
        drawn = tokens(lark.write(lark.literal(said)), 0, vocabulary)
        assert b"".join(map(text.token_bytes, drawn)).decode() == said
    assert tokens(lark.write(lark.literal("ab cd")), 0, vocabulary) == [
        vocab["ab"], vocab["▁"], vocab["cd"],
    ]  # fmt: skip
