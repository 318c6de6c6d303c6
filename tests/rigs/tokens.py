"""The tokenizers of the rigs: byte-level BPE, every byte has an id, nothing is unknown."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

EOS = "<|im_end|>"
START = "<|im_start|>"
BOS = "<|endoftext|>"
SPECIALS = (BOS, START, EOS)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Enough different words that training finds every merge it is asked for.
_CORPUS = """
The quick brown fox jumps over the lazy dog while seventeen wizards quietly vexed a jumbled band.
An engine answers many short questions about one long document, and every answer shares a prefix.
Blocks of a cache are lent, returned, shared and counted; none may be written by two at a time.
user assistant system function return import class value error number string list table index
Rain in the mountains feeds rivers that carve valleys through limestone, granite and old lava.
She sells sea shells by the sea shore; the shells she sells are surely from that same shore.
Zero one two three four five six seven eight nine ten eleven twelve thirteen twenty thirty forty
def main(arguments): for line in lines: print(line.strip(), end="") # 0123456789 + - * / = () []
"""


def rand_tokenizer(vocab_size: int) -> Tokenizer:
    """A trained byte-level BPE of exactly `vocab_size` ids; the three specials come first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=1,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS.splitlines(), trainer)
    assert tokenizer.get_vocab_size() == vocab_size
    return tokenizer


def byte_names() -> dict[int, str]:
    """Byte value -> the printable character that stands for it in a byte-level vocabulary."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable}
    return names | {byte: chr(256 + place) for place, byte in enumerate(others)}


def chain_vocab(pieces: Sequence[bytes]) -> Iterator[tuple[str, int]]:
    """Vocabulary entries: 256 bytes, then one entry per piece.

    Pieces of equal text need ids of their own, so each piece is spelt with a mark that the
    decoder of `chain_tokenizer` removes.
    """
    names = byte_names()
    for byte in range(256):
        yield names[byte], byte
    for place, piece in enumerate(pieces):
        spelt = "".join(names[byte] for byte in piece)
        yield f"{spelt}⟦{place}⟧", 256 + place


def chain_tokenizer(pieces: Sequence[bytes], specials: Sequence[str]) -> Tokenizer:
    """Bytes, the pieces of the scripts and the specials, in that order of ids.

    Text only ever encodes to bytes and specials; pieces are reached by generation alone.
    """
    tokenizer = Tokenizer(models.BPE(vocab=dict(chain_vocab(pieces)), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    unmark = decoders.Replace(Regex("⟦[0-9]+⟧"), "")
    tokenizer.decoder = decoders.Sequence([unmark, decoders.ByteLevel()])
    # Not special where a user message carries them: templates may refuse to parse specials there.
    tokenizer.add_tokens(
        [AddedToken(text, special=text in SPECIALS, normalized=False) for text in specials]
    )
    return tokenizer


def write_tokenizer(
    folder: Path, tokenizer: Tokenizer, chat_template: str | None, extra: Mapping[str, object]
) -> None:
    """tokenizer.json and tokenizer_config.json, the template inside the latter."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": EOS,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        **extra,
    }
    if chat_template is not None:
        config["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2))
