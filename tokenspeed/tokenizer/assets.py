"""What a tokenizer's files say, whichever format they came in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tokenizers import Tokenizer

from tokenspeed.errors import CheckpointError, Problem, Where


@dataclass(frozen=True, slots=True)
class TokenizerAssets:
    """`bos_token` and `eos_token` are text, None where the model has none. `eos_token_ids` are
    those that the files name; `chat_template` is Jinja source, `template_origin` where it was.
    """

    tokenizer: Tokenizer
    bos_token: str | None
    eos_token: str | None
    eos_token_ids: tuple[int, ...]
    chat_template: str | None
    template_origin: str


def encode(tokenizer: Tokenizer, text: str, *, add_special: bool) -> list[int]:
    """Ids of a text. A batch of one, since only batches let go of the interpreter lock: a long
    prompt takes seconds, during which streams and probes must go on. Raises RuntimeError."""
    with panics_as_errors():
        ids: list[int] = tokenizer.encode_batch_fast([text], add_special_tokens=add_special)[0].ids
    return ids


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Where the tokenizer's Rust side panics it raises what is no Exception, and would pass every
    handler by: RuntimeError instead."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise RuntimeError(f"the tokenizer panicked: {error}") from error


def tokenizer_error(file: object, message: str, hint: str) -> CheckpointError:
    """The files are there but do not describe a tokenizer that can be used."""
    return CheckpointError(Problem("TS-T001", message, where=Where(str(file)), hint=hint))
