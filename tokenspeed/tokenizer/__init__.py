"""Text to token ids and back, chat templates, detokenisation, stop strings. Front only."""

from __future__ import annotations

from tokenspeed.tokenizer.stream import Detokenizer, StopMatch, StopMatcher
from tokenspeed.tokenizer.text import TextError, TextModel, VariableError, load_text_model

__all__ = [
    "Detokenizer",
    "StopMatch",
    "StopMatcher",
    "TextError",
    "TextModel",
    "VariableError",
    "load_text_model",
]
