"""Text to token ids and back: everything of a model that is about characters.

Lives in the front; workers see ids only. Loading is blocking (a second for a large vocabulary);
encoding releases the interpreter lock, so long texts belong on a thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from tokenizers import Tokenizer

from tokenspeed.checkpoint.gguf import SUFFIX, read_gguf
from tokenspeed.plan import Plan
from tokenspeed.tokenizer.assets import TokenizerAssets, encode, tokenizer_error
from tokenspeed.tokenizer.gguf import read_gguf_tokenizer
from tokenspeed.tokenizer.huggingface import has_tokenizer, read_huggingface
from tokenspeed.tokenizer.literal import LiteralText
from tokenspeed.tokenizer.pieces import Pieces
from tokenspeed.tokenizer.segments import Segments
from tokenspeed.tokenizer.sizes import TemplateError
from tokenspeed.tokenizer.stream import Detokenizer, decode
from tokenspeed.tokenizer.template import ChatTemplate, compile_template, refused_variable

log = logging.getLogger(__name__)


class TextError(ValueError):
    """This text cannot be turned into a prompt of this model; the message is for the client."""


class VariableError(TextError):
    """It is a variable of the template that no request may set."""


class _Numbers:
    """Stands in for the vocabulary of a model without tokenizer: ids, each after a space."""

    strips_space = 0

    def is_special(self, token: int) -> bool:
        return False

    def text_bytes(self, token: int) -> bytes:
        return b" %d" % token

    raw_bytes = text_bytes


class TextModel:
    """A model's tokenizer and chat template.

    Without a tokenizer (a model with dummy weights) it takes ids only and shows ids as text.
    `eos_token_ids` end an answer; they are those of the plan and of the tokenizer's files.
    """

    def __init__(self, assets: TokenizerAssets | None, eos_token_ids: Sequence[int]) -> None:
        self._tokenizer: Tokenizer | None = None
        self._literal: LiteralText | None = None
        self._segments: Segments | None = None
        self._template: ChatTemplate | None = None
        self._pieces: Pieces | _Numbers = _Numbers()
        self._bos: tuple[str, int] | None = None
        self.template_source: str | None = None
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        if assets is None:
            return
        self._tokenizer = assets.tokenizer
        self._segments = Segments(assets.tokenizer)
        self._literal = LiteralText(assets.tokenizer, self._segments)
        self._pieces = Pieces(assets.tokenizer)
        self.eos_token_ids = tuple(dict.fromkeys([*eos_token_ids, *assets.eos_token_ids]))
        bos = assets.tokenizer.token_to_id(assets.bos_token) if assets.bos_token else None
        if assets.bos_token and bos is not None:
            self._bos = (assets.bos_token, bos)
        if assets.chat_template is not None:
            self._template = _compiled(assets)
            self.template_source = assets.chat_template

    @property
    def has_tokenizer(self) -> bool:
        return self._tokenizer is not None

    @property
    def template_reads(self) -> frozenset[str]:
        """Variables that the chat template asks for."""
        return frozenset() if self._template is None else self._template.reads

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Ids of a raw prompt: the tokenizer's default, control tokens parsed.

        A begin token that the text starts with is not added again; an empty text is the begin
        token alone. Raises TextError when nothing comes out, or when there is no tokenizer.
        """
        ids = encode(self._require_tokenizer(), text, add_special=True)
        if self._bos is None:
            if not ids:
                raise TextError("the prompt is empty and the model has no begin token")
            return ids
        bos_text, bos = self._bos
        if text.startswith(bos_text) and ids[:2] == [bos, bos]:
            return ids[1:]
        return ids or [bos]

    def encode_bare(self, text: str) -> list[int]:
        """The same without a begin token or anything else that the text does not say; may be
        empty. Raises TextError when there is no tokenizer."""
        return encode(self._require_tokenizer(), text, add_special=False)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        space: bytes = b"",
        plain: bool = False,
    ) -> bytes:
        """Exactly the ids of the rendered template, as little-endian int32: its control tokens
        parsed, none added, and none made from what the messages say (see `literal`).

        `variables` are template variables of the request, `tools` what the template may show as
        such. `space` says whose memory of earlier conversations may be used (see `segments`).
        `plain`: `says_control` is known to be false of every message.
        Raises TextError, and VariableError for a variable.
        """
        self._require_tokenizer()
        if self._template is None or self._literal is None or self._segments is None:
            raise TextError("the model has no chat template: use /v1/completions")
        for name in variables:
            if refused_variable(self._template, name):
                raise VariableError(f"chat_template_kwargs may not set {name!r}")
        marked = None
        if not plain or self._literal.says_control([variables, tools]):
            marked = self._literal.mark([messages, variables, tools])
        try:
            if marked is None:
                rendered = self._template.render(messages, variables, tools)
                ids = self._segments.encode(rendered, space, self.encode_bare)
            else:
                rendered = self._template.render(*marked.messages)
                ids = self._literal.encode(rendered, marked, space)
        except TemplateError as error:
            raise TextError(str(error)) from error
        if not ids:
            raise TextError("the chat template makes an empty prompt of these messages")
        return ids

    def says_control(self, value: object) -> bool:
        """Whether a text in nested lists and objects holds that of a control token."""
        return self._literal is not None and self._literal.says_control(value)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of these ids without control tokens. Equals what `stream` gives, joined."""
        return decode(self._pieces, tokens)

    def spell(self, tokens: Collection[int]) -> str:
        """The text of these ids with control tokens."""
        decoder = Detokenizer(self._pieces, frozenset(tokens))
        return "".join([*map(decoder.push, tokens), decoder.finish()])

    def stream(self, shown: frozenset[int] = frozenset()) -> Detokenizer:
        """A fresh incremental decoder for one answer; `shown` are control tokens that count as
        text."""
        return Detokenizer(self._pieces, shown)

    def special_ids(self, texts: Collection[str]) -> frozenset[int]:
        """The control tokens that are spelt like one of these."""
        ids = map(self.special_id, texts)
        return frozenset(token for token in ids if token is not None)

    def special_id(self, text: str) -> int | None:
        """The control token that is spelt like this, None where it is text."""
        token = None if self._tokenizer is None else self._tokenizer.token_to_id(text)
        return token if token is not None and self.is_special(token) else None

    def token_bytes(self, token: int) -> bytes:
        """The spelling of one id, control tokens included; b"" for ids without one."""
        return self._pieces.raw_bytes(token)

    def is_special(self, token: int) -> bool:
        return self._pieces.is_special(token)

    def _require_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise TextError("the model has no tokenizer: send the prompt as token ids")
        return self._tokenizer


def load_text_model(model_dir: Path | None, plan: Plan) -> TextModel:
    """Reads the tokenizer of a model folder: a .gguf file's metadata, or tokenizer.json.

    Raises CheckpointError when the files are there but unusable.
    """
    assets = None if model_dir is None else _read_assets(model_dir, plan.model.chat_template)
    if assets is None:
        log.warning("the model has no tokenizer: prompts are taken as token ids only")
    elif assets.chat_template is None:
        log.warning("the model has no chat template: chat completions are refused")
    else:
        log.info("chat template taken from %s", assets.template_origin)
    return TextModel(assets, plan.model.config.eos_token_ids)


def _read_assets(model_dir: Path, override: str | None) -> TokenizerAssets | None:
    if has_tokenizer(model_dir):
        return read_huggingface(model_dir, override)
    files = [model_dir] if model_dir.is_file() else sorted(model_dir.glob(f"*{SUFFIX}"))
    if not files:
        return None
    return read_gguf_tokenizer(str(files[0]), read_gguf(files[0]).metadata, override)


def _compiled(assets: TokenizerAssets) -> ChatTemplate:
    assert assets.chat_template is not None
    variables = {
        "bos_token": assets.bos_token or "",
        "eos_token": assets.eos_token or "",
    }
    try:
        return compile_template(assets.chat_template, variables)
    except jinja2.TemplateSyntaxError as error:
        hint = "mend it, or give another with the recipe key model.chat_template"
        message = f"line {error.lineno} of the chat template: {error.message}"
        raise tokenizer_error(assets.template_origin, message, hint) from error
