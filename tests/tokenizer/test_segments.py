"""Turns cost what is new, and the ids stay those of the whole text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

from tests.rigs.tokens import rand_tokenizer
from tests.tokenizer.conftest import CONTROL, CORPUS, ids_of, trained
from tokenspeed.tokenizer.assets import TokenizerAssets, encode
from tokenspeed.tokenizer.literal import LiteralText
from tokenspeed.tokenizer.segments import Segments
from tokenspeed.tokenizer.text import TextModel, _read_assets

# Each looks at a conversation as real templates do: at the last message, at numbers, at ends.
TEMPLATES = {
    "plain": "{% for m in messages %}{B}{{ m.role }}\n{{ m.content }}{E}\n{% endfor %}{B}assistant",
    "last": "{% for m in messages %}{B}{{ m.role }}\n{% if loop.last %}LAST {% endif %}"
    "{{ m.content }}{E}{% endfor %}",
    "strip": "{% for m in messages %}{B}{{ m.role }}\n{{ m.content.strip() }}{E}{% endfor %}",
    "number": "{{ messages | length }}{% for m in messages %}{B}{{ loop.index }}"
    "{{ m.content }}{E}{% endfor %}",
    "thoughts": "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}{B}{{ m.role }}"
    "{{ m.content if loop.index0 >= ns.last else m.content.split('|')[-1] }}{E}{% endfor %}",
    "joined": "{% for m in messages %}{{ m.content }}{% endfor %}{E}",
    "first": "{E}{{ messages[0].content }}{% for m in messages[1:] %} {B}{{ m.content }}"
    "{% endfor %}{B}",
}


def metaspace(scheme: str) -> Tokenizer:
    """As SentencePiece spells: spaces as "▁", and one before the text or before each part."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme=scheme)
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", *CONTROL], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    return tokenizer


def prepending() -> Tokenizer:
    """A normalizer that writes in front of every part, and a token with a space to its right."""
    tokenizer = metaspace("never")
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.add_special_tokens([AddedToken("<|right|>", rstrip=True, normalized=False)])
    return tokenizer


def awkward() -> Tokenizer:
    """Tokens at which nothing may be cut: inside others, joined to others, with space before."""
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=True))
    tokenizer.add_special_tokens(
        [
            AddedToken("<|user|>!", normalized=False),
            AddedToken("=<s", normalized=False),
            AddedToken("<|left|>", lstrip=True, normalized=False),
        ]
    )
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": lambda: trained(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "rand": lambda: rand_tokenizer(512),
    "metaspace-first": lambda: metaspace("first"),
    "metaspace-always": lambda: metaspace("always"),
    "prepend": prepending,
    "awkward": awkward,
}


class Rig:
    """One tokenizer under one template, with its memory and without."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        specials = [t.content for t in tokenizer.get_added_tokens_decoder().values() if t.special]
        begin, end = specials[-1], specials[1]
        source = template.replace("{B}", begin).replace("{E}", end)
        assets = TokenizerAssets(tokenizer, None, None, (), source, "the test")
        self.specials = specials
        self.tokenizer = tokenizer
        self.remembering = TextModel(assets, ())
        # Short conversations shall have beginnings that are known.
        segments = Segments(tokenizer, chunk=8)
        self.remembering._segments = segments
        self.remembering._literal = LiteralText(tokenizer, segments)
        self._literal = LiteralText(tokenizer, Segments(tokenizer, max_bytes=0))

    def check(self, messages: list[dict[str, Any]]) -> None:
        found = ids_of(self.remembering.encode_chat(messages, {}))
        template = self.remembering._template
        assert template is not None
        marked = self._literal.mark([messages, {}, None])
        if marked is None:
            rendered = template.render(messages, {})
            expected = encode(self.tokenizer, rendered, add_special=False)
        else:
            whole = self._literal
            whole._segments._cut = Segments(Tokenizer(models.BPE()))._cut  # cuts nowhere
            expected = ids_of(whole.encode(template.render(*marked.messages), marked))
        assert found == expected


@pytest.fixture(scope="module")
def rigs(smollm2_dir: Path) -> dict[tuple[str, str], Rig]:
    made = {name: make() for name, make in TOKENIZERS.items()}
    assets = _read_assets(smollm2_dir, None)
    assert assets is not None
    made["smollm2"] = assets.tokenizer
    return {
        (name, template): Rig(tokenizer, source)
        for name, tokenizer in made.items()
        for template, source in TEMPLATES.items()
    }


WORDS = st.sampled_from(
    ["hi", " fox", "  ", "\n", "é", "世界", "🦙", "|", "<", "<s", ">", "!", "=", "x = 10\n",
     "the lazy", "<think>", "<|user|>", "</s>", "<|im_end|>", "<|left|>", "▁", "ﬁ"]
)  # fmt: skip
CONTENTS = st.lists(WORDS, max_size=5).map("".join)
EDITS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "change", "drop", "back"]),
              st.integers(0, 9), CONTENTS),
    min_size=1, max_size=8,
)  # fmt: skip


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("tokenizer", [*TOKENIZERS, "smollm2"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(edits=EDITS)
def test_every_turn_equals_the_whole(
    rigs: dict[tuple[str, str], Rig], tokenizer: str, template: str, edits: list[Any]
) -> None:
    """A conversation that grows, is edited, cut and taken back; after each step the ids are those
    of the whole text, whatever was remembered before."""
    rig = rigs[tokenizer, template]
    messages = [{"role": "system", "content": "be brief"}]
    earlier = list(messages)
    for what, place, content in edits:
        place %= len(messages)
        match what:
            case "add":
                earlier = list(messages)
                role = "assistant" if messages[-1]["role"] == "user" else "user"
                messages.append({"role": role, "content": content})
            case "change":
                messages[place] = {**messages[place], "content": content}
            case "drop" if len(messages) > 1:
                del messages[place]
            case "back":
                messages = list(earlier)
        rig.check(messages)


def cuts(tokenizer: Tokenizer, text: str) -> list[str]:
    return list(Segments(tokenizer).split(text))


def test_where_it_cuts() -> None:
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    text = "a<s>b</s> <think>c<|user|><|user|>d"
    assert cuts(tokenizer, text) == ["a", "<s>b", "</s> <think>c", "<|user|>", "<|user|>d"]
    assert cuts(tokenizer, "") == []
    assert cuts(awkward(), "<s>a<|user|>b</s>c <|left|>d") == ["<s>a<|user|>b", "</s>c <|left|>d"]


def test_a_token_that_looks_around_forbids_cutting() -> None:
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.add_special_tokens([AddedToken("word", single_word=True, normalized=False)])
    assert cuts(tokenizer, "a<s>b</s>c") == ["a<s>b</s>c"]


def counting(calls: list[str]) -> Callable[[str], list[int]]:
    def ids(piece: str) -> list[int]:
        calls.append(piece)
        return [len(piece)]

    return ids


def test_only_new_pieces_are_encoded() -> None:
    segments = Segments(trained(pre_tokenizers.ByteLevel(add_prefix_space=False)))
    calls: list[str] = []
    encode_piece = counting(calls)
    segments.encode("<s>one</s><s>two</s>", b"", encode_piece)
    assert sorted(calls) == ["</s>", "<s>one", "<s>two"]
    calls.clear()
    packed = segments.encode("<s>one</s><s>other</s><s>two</s>", b"", encode_piece)
    assert calls == ["<s>other"]
    assert ids_of(packed) == [6, 4, 8, 4, 6, 4]


def test_a_known_beginning_is_not_cut_again() -> None:
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    segments = Segments(tokenizer, max_bytes=20_000, chunk=8)
    calls: list[str] = []
    encode_piece = counting(calls)
    talk = "".join(f"<s>turn {number} of many</s>" for number in range(20))
    segments.encode(talk, b"", encode_piece)
    segments._known.clear()  # pieces are looked up behind the beginning only
    calls.clear()
    packed = segments.encode(talk + "<s>another", b"", encode_piece)
    # One piece more than must be: what ends with the earlier text might have gone on.
    assert sorted(calls) == ["</s>", "<s>another", "<s>turn 19 of many"]
    assert ids_of(packed) == ids_of(Segments(tokenizer).encode(talk + "<s>another", b"", len_of))


def test_a_beginning_that_ends_within_a_control_token_is_not_taken_for_it() -> None:
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    segments = Segments(tokenizer, chunk=4)
    for text in ("<s>aaaa<|user|>b", "<s>aaaa<|user|", "<s>aaaa<|usual", "<s>aaaa<|user|>c"):
        assert ids_of(segments.encode(text, b"", len_of)) == ids_of(
            Segments(tokenizer, max_bytes=0).encode(text, b"", len_of)
        )


def len_of(piece: str) -> list[int]:
    return [len(piece)]


@pytest.mark.parametrize("chunk", [4, 4096])
def test_tenants_share_no_memory(chunk: int) -> None:
    tokenizer = trained(pre_tokenizers.ByteLevel(add_prefix_space=False))
    segments = Segments(tokenizer, chunk=chunk)
    calls: list[str] = []
    for space in (b"one", b"two", b"one", b"two"):
        segments.encode("<s>secret", space, counting(calls))
    assert calls == ["<s>secret"] * 2


def test_memory_is_bounded_and_forgets_the_oldest() -> None:
    segments = Segments(trained(pre_tokenizers.ByteLevel(add_prefix_space=False)), max_bytes=2000)
    calls: list[str] = []
    encode_piece = counting(calls)
    for number in range(100):
        segments.encode(f"<s>{number}", b"", encode_piece)
        segments.encode("<s>always", b"", encode_piece)
        assert segments.held_bytes <= 2000
    assert calls.count("<s>always") == 1
    segments.encode("<s>" + "x" * 5000, b"", encode_piece)
    assert segments.held_bytes <= 2000


@pytest.mark.parametrize("letter", ["x", "é", "世", "🦙"])
def test_what_is_remembered_counts_in_bytes(letter: str) -> None:
    segments = Segments(trained(pre_tokenizers.ByteLevel(add_prefix_space=False)), chunk=10**9)
    text = "<s>" + letter * 1000
    segments.encode(text, b"", counting([]))
    assert sys.getsizeof(text) <= segments.held_bytes <= sys.getsizeof(text) + 1000
