"""Typed values out of a parsed config.json, with every problem kept for one error."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tokenspeed.errors import CheckpointError, Problem, Where


class ConfigReader:
    """Reads `config`; what is wrong is noted, answered with a harmless value, and raised by
    `done`. `file` is where problems are said to be."""

    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        self.config = config
        self._file = file
        self._problems: list[Problem] = []

    def wrong(self, message: str, hint: str = "") -> None:
        where = Where(self._file)
        self._problems.append(Problem(code="TS-W010", message=message, where=where, hint=hint))

    def done(self) -> None:
        """Raises CheckpointError when anything was wrong."""
        if self._problems:
            raise CheckpointError(*self._problems)

    def nested(self, key: str) -> ConfigReader:
        """A reader of the mapping at `key`, with the same list of problems."""
        value = self.config.get(key)
        if not isinstance(value, Mapping):
            self.wrong(f"{key} is {value!r}, not a mapping")
            value = {}
        inner = ConfigReader(value, self._file)
        inner._problems = self._problems
        return inner

    def first(self, *keys: str) -> str:
        """The first of `keys` that the config has; spellings of one fact differ between makers."""
        return next((key for key in keys if self.config.get(key) is not None), keys[0])

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer; 1 after a problem was noted."""
        value = self.config.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.wrong(f"{key} is {value!r}, not a positive integer")
            return 1
        return value

    def count_or_none(self, key: str) -> int | None:
        """None where the key is absent, null or 0."""
        value = self.config.get(key)
        if value is None or (value == 0 and type(value) is int):
            return None
        return self.count(key)

    def number(self, key: str, default: float, among: Mapping[str, Any] | None = None) -> float:
        """A positive finite number; the default where the key is absent or null."""
        value = (self.config if among is None else among).get(key)
        if value is None:
            return default
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            self.wrong(f"{key} is {value!r}, not a positive number")
            return default
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """The default where the key is absent or null."""
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(f"{key} is {value!r}, neither true nor false")
        return value is True

    def word(self, key: str, default: str) -> str:
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.wrong(f"{key} is {value!r}, not a word")
            return default
        return value

    def words(self, key: str, length: int) -> list[str] | None:
        """`length` words, one for each layer; None where the key is absent or empty."""
        value = self.config.get(key)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.wrong(f"{key} is {value!r}, not a list of words")
            return None
        if len(value) != length:
            self.wrong(f"{key} names {len(value)} layers, the model has {length}")
            return None
        return value

    def indices(self, key: str) -> frozenset[int]:
        """A list of whole numbers; empty where the key is absent or null."""
        value = self.config.get(key) or []
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            self.wrong(f"{key} is {value!r}, not a list of layers")
            return frozenset()
        return frozenset(value)

    def token_ids(self, key: str) -> tuple[int, ...]:
        value = self.config.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in ids):
            self.wrong(f"{key} is {value!r}, not a token id or a list of them")
            return ()
        return tuple(ids)
