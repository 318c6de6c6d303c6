"""The kinds of values in a recipe: what each accepts, its JSON Schema, and what it says else.

One rule each, with no guessing:
- a count is a plain integer (decimal, 0x or 0o), never text, never with a suffix;
- a size is a number followed by B, KiB, MiB, GiB or TiB (powers of 1024), rounded down to bytes;
- a duration is a number followed by ms, s, m or h;
- a flag is true or false.
A kind is put on a field with `Annotated`; pydantic calls `parse`, whose complaint carries a code
and the way out.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from tokenspeed.recipe.words import nearest

AUTO = "auto"
WRONG_TYPE, OUT_OF_RANGE, WRONG_UNIT = "TS-R012", "TS-R013", "TS-R014"
LITERAL_SECRET = "TS-R026"

# Where a secret is: `credential` is one of systemd's.
REFERENCE = r"env:[A-Za-z_][A-Za-z0-9_]*|file:/.+|credential:[A-Za-z0-9_][A-Za-z0-9_.-]*"
HIDDEN = "***"
# The name and the password in an address.
_USER = re.compile(r"(?<=://)[^\s/?#@]+(?=@)")

SIZE_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DECIMAL = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?) ?(?P<unit>[A-Za-z%]*)")
_FACTORS = {
    "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12,
    "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40,
}  # fmt: skip


def complaint(code: str, message: str, hint: str) -> PydanticCustomError:
    """What a kind raises; `load` turns it into a Problem."""
    return PydanticCustomError(
        "recipe", "{message}", {"message": message, "code": code, "hint": hint}
    )


@dataclass(frozen=True, slots=True)
class Kind(ABC):
    """A kind of value. `auto` says that the word auto is accepted and kept as it is."""

    auto: bool = False

    @abstractmethod
    def parse(self, value: Any) -> Any:
        """The value to keep. Raises PydanticCustomError (through `complaint`)."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """JSON Schema of what is accepted, without auto."""

    def _validate(self, value: Any) -> Any:
        if self.auto and value == AUTO and isinstance(value, str):
            return AUTO
        return self.parse(value)

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"anyOf": [self.schema(), {"const": AUTO}]} if self.auto else self.schema()

    def _or_auto(self) -> str:
        return ", or auto" if self.auto else ""


class Distinct:
    """On a list: nothing is in it twice."""

    def _check(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        for value in values:
            if values.count(value) > 1:
                raise complaint(OUT_OF_RANGE, f"{show(value)} is there twice", "leave one out")
        return values

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "uniqueItems": True}


@dataclass(frozen=True, slots=True)
class Count(Kind):
    """A plain integer from `low` to `high`."""

    low: int = 1
    high: int = 2**31 - 1
    power_of_two: bool = False

    def parse(self, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise complaint(
                WRONG_TYPE, f"{show(value)} is not a whole number", self._way_out(value)
            )
        if not self.low <= value <= self.high:
            message = f"{value} is out of range"
            raise complaint(OUT_OF_RANGE, message, f"write {self._range()}{self._or_auto()}")
        if self.power_of_two and value & (value - 1):
            near = 2 ** round(math.log2(value))
            message = f"{value} is not a power of two"
            raise complaint(OUT_OF_RANGE, message, f"write {near}")
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.low, "maximum": self.high}

    def _range(self) -> str:
        if self.low == self.high:
            return str(self.low)
        return f"a whole number from {self.low} to {self.high}"

    def _way_out(self, value: Any) -> str:
        number = intended_integer(value)
        if number is not None:
            return f"counts are plain integers: write {number}"
        return f"write {self._range()}{self._or_auto()}"


def intended_integer(value: Any) -> str | None:
    """The integers that a text or a fraction may have meant: "4k" -> "4000 or 4096"."""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else None
    if not isinstance(value, str):
        return None
    text = value.replace("_", "").replace(" ", "").replace(",", "")
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return str(int(text))
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kmgt]i?)b?", text, re.IGNORECASE)
    if match is None:
        return None
    number, suffix = float(match[1]), match[2].lower()
    meant = [number * _FACTORS[suffix]]
    if not suffix.endswith("i"):
        meant.append(number * _FACTORS[suffix + "i"])
    whole = [str(int(amount)) for amount in meant if amount.is_integer()]
    return " or ".join(whole) or None


@dataclass(frozen=True, slots=True)
class Number(Kind):
    """A number from `low` to `high`, whole or not; `above` excludes `low` itself."""

    low: float = 0.0
    high: float = math.inf
    above: bool = False

    def parse(self, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise complaint(WRONG_TYPE, f"{show(value)} is not a number", f"write {self._range()}")
        if not self.low <= value <= self.high or (self.above and value == self.low):
            raise complaint(OUT_OF_RANGE, f"{value} is out of range", f"write {self._range()}")
        return float(value)

    def schema(self) -> dict[str, Any]:
        bound = "exclusiveMinimum" if self.above else "minimum"
        limits = {"maximum": self.high} if math.isfinite(self.high) else {}
        return {"type": "number", bound: self.low, **limits}

    def _range(self) -> str:
        low = f"above {self.low:g}" if self.above else f"of {self.low:g} or more"
        high = f", at most {self.high:g}" if math.isfinite(self.high) else ""
        return f"a number {low}{high}"


@dataclass(frozen=True, slots=True)
class Flag(Kind):
    """true or false."""

    def parse(self, value: Any) -> bool:
        if isinstance(value, bool):
            return value
        word = str(value).lower()
        meant = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false"}
        meant |= {"0": "false", "true": "true", "false": "false"}
        way_out = f"write {meant[word]}" if word in meant else "write true or false"
        raise complaint(WRONG_TYPE, f"{show(value)} is neither true nor false", way_out)

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True)
class Text(Kind):
    """Text that matches `pattern` as a whole; `form` says the pattern in words."""

    pattern: str = r"(?s).+"
    form: str = "text"

    def parse(self, value: Any) -> str:
        if not isinstance(value, str):
            message = f"{show(value)} is not text"
            quoted = f'quote it if it is meant as text: "{show(value)}"'
            way_out = f"write {self.form}" if isinstance(value, list | dict) else quoted
            raise complaint(WRONG_TYPE, message, way_out)
        if not re.fullmatch(self.pattern, value):
            raise complaint(OUT_OF_RANGE, f"{show(value)} is not {self.form}", self.meant(value))
        return value

    def meant(self, value: str) -> str:
        """What to do about a text that does not match."""
        return f"write {self.form}"

    def schema(self) -> dict[str, Any]:
        plain = self.pattern.removeprefix("(?s)")
        return {"type": "string"} | (
            {"pattern": f"^(?:{plain})$"} if plain != ".+" else {"minLength": 1}
        )


@dataclass(frozen=True, slots=True)
class Origin(Text):
    """Where a model comes from: a Text that knows what is usually left out of it."""

    def meant(self, value: str) -> str:
        if re.match(r"~|\.{0,2}/", value):
            return f"write path:{value}"
        if re.fullmatch(r"pypi:[A-Za-z0-9][\w.-]*", value):
            return f"add ==version, the exact one: {value}==version"
        if re.fullmatch(r"[A-Za-z0-9][\w.-]*==[\w.!+-]+", value):
            return f"write pypi:{value}"
        if re.fullmatch(r"[\w.-]+/[\w.-]+(?:@[\w./-]+)?", value):
            return f"write hf:{value}, or path:{value} for a folder of that name"
        return f"write {self.form}"


@dataclass(frozen=True, slots=True)
class Secret(Kind):
    """Where a secret is, never the secret: what it complains about is not repeated."""

    def parse(self, value: Any) -> str:
        if isinstance(value, str) and re.fullmatch(REFERENCE, value):
            return value
        raise complaint(
            LITERAL_SECRET,
            "this is not a reference to a secret (what stands here is not shown)",
            "write env:NAME, file:/path or credential:NAME, and change the secret if it was "
            "written here",
        )

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(?:{REFERENCE})$"}


@dataclass(frozen=True, slots=True)
class Choice(Kind):
    """One of a few words."""

    words: tuple[str, ...] = ()

    def parse(self, value: Any) -> str:
        if value in self.words and isinstance(value, str):
            return value
        words = (*self.words, AUTO) if self.auto else self.words
        near = nearest(str(value), words)
        way_out = f"did you mean {near}? " if near else ""
        raise complaint(
            OUT_OF_RANGE,
            f"{show(value)} is not one of the choices",
            f"{way_out}write one of: {', '.join(words)}",
        )

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True, slots=True)
class Size(Kind):
    """An amount of memory; kept in bytes."""

    low: int = 1

    def parse(self, value: Any) -> int:
        amount = measured(value, SIZE_UNITS, "a size", "80GiB", self._hint(value))
        if amount < self.low:
            raise complaint(OUT_OF_RANGE, f"{show(value)} is too small", "write a larger size")
        return int(amount)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(B|KiB|MiB|GiB|TiB)$"}

    def _hint(self, value: Any) -> str:
        """The same amount in the units that exist, where the text leaves no doubt."""
        match = _DECIMAL.fullmatch(str(value).replace("_", ""))
        if match is None or isinstance(value, bool):
            return ""
        unit = match["unit"].lower().removesuffix("b")
        number = float(match["number"])
        if unit.endswith("i") and unit in _FACTORS:
            return f"{match['number']}{unit[0].upper()}iB"
        if unit in _FACTORS:
            exact = number * _FACTORS[unit]
            binary = f"{match['number']}{unit.upper()}iB"
            return f"{binary}, or {format_size(int(exact))} if powers of 1000 were meant"
        return f"{match['number']}GiB, or {match['number']}B for bytes" if not unit else ""


@dataclass(frozen=True, slots=True)
class Duration(Kind):
    """A span of time; kept in seconds."""

    low: float = 0.0
    high: float = 86_400.0

    def parse(self, value: Any) -> float:
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        way_out = f"{number}s" if number is not None else ""
        seconds = measured(value, DURATION_UNITS, "a duration", "30s", way_out)
        if seconds < self.low:
            message = f"{show(value)} is too short"
            raise complaint(OUT_OF_RANGE, message, f"write at least {self.low:g}s")
        if seconds > self.high:
            message = f"{show(value)} is too long"
            raise complaint(OUT_OF_RANGE, message, f"write at most {self.high:g}s")
        return seconds

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(ms|s|m|h)$"}


def measured(value: Any, units: dict[str, Any], noun: str, example: str, suggestion: str) -> float:
    """`value` as number times unit. Raises `complaint`, with `suggestion` as the text to write."""
    match = _DECIMAL.fullmatch(value) if isinstance(value, str) else None
    if match is not None and match["unit"] in units:
        return float(match["number"]) * float(units[match["unit"]])
    names = ", ".join(units)
    way_out = (
        f"write {suggestion}" if suggestion else f"write a number and one of {names}: {example}"
    )
    if match is not None and match["unit"]:
        message = f"{show(value)}: {match['unit']} is not a unit of {noun.split()[-1]}"
        raise complaint(WRONG_UNIT, message, f"{way_out} (the units are {names})")
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise complaint(WRONG_UNIT, f"{show(value)} is {noun} without a unit", way_out)
    raise complaint(WRONG_TYPE, f"{show(value)} is not {noun}", way_out)


def format_size(count: int) -> str:
    """Bytes in the largest unit that leaves at least 1: 1610612736 -> 1.5GiB."""
    for unit, factor in reversed(SIZE_UNITS.items()):
        if count >= factor:
            return f"{count / factor:.4g}{unit}"
    return f"{count}B"


def show(value: Any) -> str:
    """A value as the recipe would spell it, shortened; no password of an address is in it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(without_user(value)) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def without_user(text: str) -> str:
    """`text` without the names and passwords of addresses in it."""
    return _USER.sub(HIDDEN, text)
