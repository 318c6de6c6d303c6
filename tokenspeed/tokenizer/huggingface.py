"""Tokenizers in the Hugging Face layout.

The chat template is taken from the first of these that has one: the recipe, the file
chat_template.jinja, the entry `chat_template` of tokenizer_config.json (of several named ones,
"default"). No other model's template is ever used in its place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from tokenspeed.files import read_regular
from tokenspeed.tokenizer.assets import TokenizerAssets, panics_as_errors, tokenizer_error

# The vocabulary of the largest is 40 MB.
_TOKENIZER_LIMIT = 512 * 2**20


def has_tokenizer(model_dir: Path) -> bool:
    return (model_dir / "tokenizer.json").is_file()


def read_huggingface(model_dir: Path, override: str | None) -> TokenizerAssets:
    """Reads tokenizer.json and its neighbours. `override` is the recipe's chat template.

    Raises CheckpointError when a file is not what its name says.
    """
    path = model_dir / "tokenizer.json"
    try:
        with panics_as_errors():
            tokenizer = Tokenizer.from_buffer(read_regular(path, _TOKENIZER_LIMIT))
    except Exception as error:  # the Rust side raises bare Exception
        hint = "fetch the model again"
        raise tokenizer_error(path, f"not a tokenizer: {error}", hint) from error
    # A stored cut or padding would change prompts in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = _read_object(model_dir / "tokenizer_config.json")
    generation = _read_object(model_dir / "generation_config.json")
    eos_token = _token_text(config.get("eos_token"))
    template, origin = _chat_template(model_dir, config, override)
    return TokenizerAssets(
        tokenizer=tokenizer,
        bos_token=_token_text(config.get("bos_token")),
        eos_token=eos_token,
        eos_token_ids=_end_ids(tokenizer, eos_token, generation.get("eos_token_id")),
        chat_template=template,
        template_origin=origin,
    )


def _read_object(path: Path) -> dict[str, Any]:
    """A JSON object; empty when the file is absent."""
    if not path.is_file():
        return {}
    try:
        return msgspec.json.decode(read_regular(path), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise tokenizer_error(path, f"not a JSON object: {error}", "fetch the file again") from None


def _token_text(entry: object) -> str | None:
    """Special tokens are written as text, or as an object that has it under `content`."""
    if isinstance(entry, dict):
        entry = entry.get("content")
    return entry if isinstance(entry, str) else None


def _end_ids(tokenizer: Tokenizer, eos_token: str | None, listed: object) -> tuple[int, ...]:
    ids = [listed] if isinstance(listed, int) else listed if isinstance(listed, list) else []
    found = [token for token in ids if isinstance(token, int)]
    eos = tokenizer.token_to_id(eos_token) if eos_token is not None else None
    if eos is not None:
        found.append(eos)
    return tuple(dict.fromkeys(found))


def _chat_template(
    model_dir: Path, config: dict[str, Any], override: str | None
) -> tuple[str | None, str]:
    if override is not None:
        return override, "the recipe"
    separate = model_dir / "chat_template.jinja"
    if separate.is_file():
        try:
            return read_regular(separate).decode(), separate.name
        except (OSError, UnicodeDecodeError) as error:
            message = f"not a template: {error}"
            raise tokenizer_error(separate, message, "fetch the file again") from error
    entry = config.get("chat_template")
    if isinstance(entry, list):
        named = {item.get("name"): item.get("template") for item in entry if isinstance(item, dict)}
        entry = named.get("default")
    if isinstance(entry, str):
        return entry, "tokenizer_config.json"
    return None, ""
