"""Builds a tokenizer from the metadata of a GGUF file.

GGUF stores the vocabulary, the merges and the name of a pre-tokenizer; what that name means is
code in its reference implementation. Every name known here was checked to give the same ids as
the model's original tokenizer; an unknown name is refused, since a near miss would go unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from tokenspeed.errors import CheckpointError
from tokenspeed.tokenizer.assets import TokenizerAssets, tokenizer_error

_PREFIX = "tokenizer.ggml."

# Words with their space, single digits or groups of up to three, punctuation runs, spaces.
_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_SPLIT = _QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


class _TokenType(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4


def read_gguf_tokenizer(
    file: str, metadata: Mapping[str, Any], override: str | None
) -> TokenizerAssets:
    """`file` is for messages; `override` is the recipe's chat template.

    Raises CheckpointError when the kind of tokenizer is not one that this build knows, or when
    the metadata do not make one.
    """
    try:
        return _read(file, metadata, override)
    except CheckpointError:
        raise
    except Exception as error:  # the Rust side raises bare Exception
        message = f"not a tokenizer: {type(error).__name__}: {error}"
        raise tokenizer_error(file, message, "fetch the model again") from error


def _read(file: str, metadata: Mapping[str, Any], override: str | None) -> TokenizerAssets:
    kind = metadata.get(f"{_PREFIX}model")
    if kind != "gpt2":
        hint = "use the model's safetensors form, which carries a tokenizer.json"
        raise tokenizer_error(file, f"GGUF tokenizers of kind {kind!r} are not supported", hint)
    tokens: list[str] = list(metadata[f"{_PREFIX}tokens"])
    tokenizer = _byte_level_bpe(file, metadata, tokens)
    bos = metadata.get(f"{_PREFIX}bos_token_id")
    eos = metadata.get(f"{_PREFIX}eos_token_id")
    # The reference implementation adds the begin token for this kind unless the file says no.
    adds_bos = metadata.get(f"{_PREFIX}pre") == "llama-bpe"
    if metadata.get(f"{_PREFIX}add_bos_token", adds_bos) and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    template = override if override is not None else metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise tokenizer_error(file, "the chat template is no text", "fetch the model again")
    return TokenizerAssets(
        tokenizer=tokenizer,
        bos_token=None if bos is None else tokens[bos],
        eos_token=None if eos is None else tokens[eos],
        eos_token_ids=_end_ids(metadata),
        chat_template=template,
        template_origin="the recipe" if override is not None else "the GGUF metadata",
    )


def _end_ids(metadata: Mapping[str, Any]) -> tuple[int, ...]:
    """End of text, of a turn, of a message: each ends an answer."""
    found = (metadata.get(f"{_PREFIX}{kind}_token_id") for kind in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(int(token) for token in found if token is not None))


def _byte_level_bpe(file: str, metadata: Mapping[str, Any], tokens: list[str]) -> Tokenizer:
    pre = str(metadata.get(f"{_PREFIX}pre", "default"))
    # A space inside a merge's halves is spelt "Ġ", so the first space always separates them.
    merges = [tuple(merge.split(" ", 1)) for merge in metadata[f"{_PREFIX}merges"]]
    model = models.BPE(
        vocab={token: place for place, token in enumerate(tokens)},
        merges=merges,
        ignore_merges=pre == "llama-bpe",
    )
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = _pre_tokenizer(file, pre)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(_added_tokens(metadata, tokens))
    return tokenizer


def _added_tokens(metadata: Mapping[str, Any], tokens: list[str]) -> list[AddedToken]:
    types = metadata.get(f"{_PREFIX}token_type") or [_TokenType.NORMAL] * len(tokens)
    special = (_TokenType.CONTROL, _TokenType.UNKNOWN)
    return [
        AddedToken(token, special=kind in special, normalized=False)
        for token, kind in zip(tokens, types, strict=True)
        if kind in (*special, _TokenType.USER_DEFINED)
    ]


def _pre_tokenizer(file: str, pre: str) -> pre_tokenizers.PreTokenizer:
    def split(pattern: str) -> pre_tokenizers.PreTokenizer:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    match pre:
        case "gpt-2":
            return pre_tokenizers.ByteLevel(add_prefix_space=False)
        case "smollm":
            return pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            )
        case "qwen2":
            return split(_QWEN2_SPLIT)
        case "llama-bpe":
            return split(_LLAMA3_SPLIT)
    hint = "known are gpt-2, llama-bpe, qwen2 and smollm; use the model's safetensors form"
    raise tokenizer_error(file, f"the GGUF pre-tokenizer {pre!r} is not known", hint)
