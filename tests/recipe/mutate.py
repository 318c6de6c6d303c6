"""One-edit corruptions of valid recipes, each with the lines on which it has to be found.

Eight kinds: key typo, wrong type, wrong unit, out of range, lost indentation, duplicate, YAML trap,
contradiction. No edit is made that leaves a recipe valid: a typo that is another key of its
section, say, or a list that may stand as far left as its key.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic.fields import FieldInfo

from tokenspeed.recipe.keys import key_paths
from tokenspeed.recipe.kinds import Count, Duration, Flag, Kind, Number, Size

LINE = re.compile(r"(?P<indent> *)(?P<key>[a-z_]+):(?: (?P<value>[^#\n]*?))?(?P<rest> *(?:#.*)?)")

RICH = """\
version: 1
name: rich
device: cuda
model:
  source: hf:Qwen/Qwen3-8B
  served_names: [a, b]
  load: dummy
  max_context: 8192
quantization:
  weights: bfloat16
  activations: bfloat16
parallel:
  attention:
    tp: 1
    dp: 1
kv:
  dtype: bfloat16
  block_size: 64
  size: 8GiB
  prefix_cache: true
  tiers:
    host:
      size: 4GiB
kernels:
  overrides:
    sample: sample_reference
limits:
  max_running: 16
  max_waiting: 64
  max_step_tokens: 2048
  max_mixed_tokens: 512
  chunked_prefill: true
  memory: 100GiB
serve:
  host: 127.0.0.1
  port: 8000
  drain: 30s
  log_requests: false
  sampling:
    temperature: 0.7
    top_p: 0.9
    top_k: 20
    max_tokens: 512
speculation:
  method: ngram
  tokens: 3
observability:
  metrics_port: 9100
advanced:
  in_flight_depth: 1
  jump_ahead: 2
  max_body: 1MiB
  max_choices: 4
"""


@dataclass(frozen=True)
class Corruption:
    """`lines` are those (from 1) of which at least one must be named. `machine` is the profile that
    a contradiction needs to show."""

    kind: str
    text: str
    lines: tuple[int, ...]
    machine: str | None = None


@dataclass(frozen=True)
class Spot:
    """A line with a key: its index, its dotted path, and the field where it holds a value."""

    index: int
    path: str
    indent: str
    key: str
    value: str
    rest: str
    field: FieldInfo | None

    def kind(self) -> Kind | None:
        notes = self.field.metadata if self.field else ()
        return next((note for note in notes if isinstance(note, Kind)), None)

    def with_value(self, value: str) -> str:
        return f"{self.indent}{self.key}: {value}{self.rest}"


def spots(text: str) -> list[Spot]:
    """Every line of block style with a key; what is in flow style belongs to its line's value."""
    found: list[Spot] = []
    stack: list[tuple[int, str]] = []
    paths = key_paths()
    for index, line in enumerate(text.splitlines()):
        match = LINE.fullmatch(line)
        if match is None:
            continue
        depth = len(match["indent"])
        while stack and stack[-1][0] >= depth:
            stack.pop()
        stack.append((depth, match["key"]))
        path = ".".join(key for _, key in stack)
        if path.startswith(("when", "extends")):
            continue
        value = (match["value"] or "").strip()
        found.append(
            Spot(index, path, match["indent"], match["key"], value, match["rest"], paths.get(path))
        )
    return found


def replaced(text: str, index: int, *lines: str) -> str:
    all_lines = text.splitlines()
    return "\n".join([*all_lines[:index], *lines, *all_lines[index + 1 :]]) + "\n"


def siblings(path: str) -> set[str]:
    """Keys that exist beside the one at `path`."""
    before = path.rpartition(".")[0]
    prefix = f"{before}." if before else ""
    return {p[len(prefix) :].partition(".")[0] for p in key_paths() if p.startswith(prefix)}


def key_typo(text: str, draw: random.Random) -> Corruption:
    spot = draw.choice([s for s in spots(text) if "overrides." not in s.path])
    at, letter = draw.randrange(len(spot.key)), draw.choice(string.ascii_lowercase)
    key = draw.choice(
        [
            spot.key[:at] + spot.key[at + 1 :],
            spot.key[:at] + letter + spot.key[at:],
            spot.key[:at] + letter + spot.key[at + 1 :],
            spot.key[:at] + spot.key[at : at + 2][::-1] + spot.key[at + 2 :],
            spot.key.upper(),
            spot.key + "s",
        ]
    )
    if not key or key in siblings(spot.path):
        return key_typo(text, draw)
    value = f" {spot.value}" if spot.value else ""
    line = f"{spot.indent}{key}:{value}{spot.rest}"
    return Corruption("key typo", replaced(text, spot.index, line), (spot.index + 1,))


def wrong_type(text: str, draw: random.Random) -> Corruption:
    spot = draw.choice([s for s in spots(text) if s.value and s.field is not None])
    kind = spot.kind()
    wrong = ["{a: 1}", "{}"]
    if isinstance(kind, Flag):
        wrong += ["yes", "off", '"true"', "1", "0"]
    elif isinstance(kind, Count | Number):
        wrong += ["many", '"8"', "true", "[8]", "1.5.2"]
    elif isinstance(kind, Size | Duration):
        wrong += ["large", "true", "[1GiB]", "[]"]
    elif kind is not None:
        wrong += ["5", "true", "[a]", "2.5"]
    line = spot.with_value(draw.choice(wrong))
    if spot.path == "kernels.overrides":
        return wrong_type(text, draw)
    return Corruption("wrong type", replaced(text, spot.index, line), (spot.index + 1,))


def wrong_unit(text: str, draw: random.Random) -> Corruption:
    kinds = (Count, Size, Duration)
    spot = draw.choice([s for s in spots(text) if isinstance(s.kind(), kinds) and s.value])
    number = re.sub(r"[^0-9]", "", spot.value) or "8"
    units = {
        Count: ["k", "K", "Ki", "GiB", "s", " tokens", "%"],
        Size: ["GB", "G", "gib", "", "k", "%", " bytes", "s"],
        Duration: ["", "sec", "min", "S", "d", "GiB", "us"],
    }
    unit = draw.choice(
        next(value for kind, value in units.items() if isinstance(spot.kind(), kind))
    )
    line = spot.with_value(f"{number}{unit}")
    return Corruption("wrong unit", replaced(text, spot.index, line), (spot.index + 1,))


def out_of_range(text: str, draw: random.Random) -> Corruption:
    spot = draw.choice([s for s in spots(text) if isinstance(s.kind(), Count | Number | Size)])
    kind = spot.kind()
    if isinstance(kind, Count):
        values = [str(kind.low - 1), str(kind.high + 1), "-7", "99999999999999999999"]
        values += ["48"] if kind.power_of_two else []
    elif isinstance(kind, Number):
        values = ["-0.5", "1000", "0"] if kind.above else ["-0.5", "1000"]
    else:
        values = ["0B", "0.4B", "0GiB"]
    line = spot.with_value(draw.choice(values))
    return Corruption("out of range", replaced(text, spot.index, line), (spot.index + 1,))


def lost_indentation(text: str, draw: random.Random) -> Corruption:
    """A key stands where its section stands: there it is unknown, or its section is empty. Where
    more of the section follows, that is what cannot stand there, and the message names both."""
    spot = draw.choice([s for s in spots(text) if s.indent])
    line = f"{spot.indent[2:]}{spot.key}:{f' {spot.value}' if spot.value else ''}{spot.rest}"
    parent = max(
        s.index
        for s in spots(text)
        if s.index < spot.index and spot.path.rpartition(".")[0] == s.path
    )
    after = replaced(text, spot.index, line)
    lines = (spot.index + 1, parent + 1, spot.index + 2)
    return Corruption("lost indentation", after, lines)


def duplicate(text: str, draw: random.Random) -> Corruption:
    """The key again, with its own value or another, behind it or at the end of the file."""
    spot = draw.choice([s for s in spots(text) if s.value or not s.indent])
    value = spot.value or "{x-a: 1}"
    again = f"{spot.indent}{spot.key}: {draw.choice([value, value, 'other'])}"
    lines = text.splitlines()
    if not spot.indent:
        return Corruption("duplicate", f"{text}{again}\n", (len(lines) + 1,))
    after = replaced(text, spot.index, lines[spot.index], again)
    return Corruption("duplicate", after, (spot.index + 2,))


def yaml_trap(text: str, draw: random.Random) -> Corruption:
    return draw.choice(
        (
            *(_tab, _octal, _tagged, _open_quote, _second_document, _look_alike),
            *(_merge_key, _alias, _control, _not_finite, _norway, _base_60),
        )
    )(text, draw)


def _on_line(text: str, spot: Spot, line: str, *more: int) -> Corruption:
    lines = (spot.index + 1, *more)
    return Corruption("YAML trap", replaced(text, spot.index, line), lines)


def _of(text: str, draw: random.Random, *kinds: type[Kind]) -> Spot:
    return draw.choice([s for s in spots(text) if isinstance(s.kind(), kinds) and s.value])


def _tab(text: str, draw: random.Random) -> Corruption:
    spot = draw.choice([s for s in spots(text) if s.indent])
    return _on_line(text, spot, "\t" + spot.with_value(spot.value).lstrip())


def _octal(text: str, draw: random.Random) -> Corruption:
    spot = _of(text, draw, Count)
    return _on_line(text, spot, spot.with_value(draw.choice(["010", "-07", "0_8", "00"])))


def _tagged(text: str, draw: random.Random) -> Corruption:
    spot = _of(text, draw, Kind)
    tag = draw.choice(["!!str", "!!int", "!!python/name:os.system", "!secret"])
    return _on_line(text, spot, spot.with_value(f"{tag} {spot.value}"))


def _open_quote(text: str, draw: random.Random) -> Corruption:
    """Found where it is, or on a later line that cannot belong to it any more."""
    spot = _of(text, draw, Kind)
    later = range(spot.index + 2, len(text.splitlines()) + 2)
    sign = draw.choice(['"', "'", "[", "{"])
    return _on_line(text, spot, f"{spot.indent}{spot.key}: {sign}{spot.value}", *later)


def _second_document(text: str, draw: random.Random) -> Corruption:
    spot = draw.choice([s for s in spots(text) if not s.indent and s.index > 1])
    lines = text.splitlines()
    after = replaced(text, spot.index, "---", lines[spot.index])
    return Corruption("YAML trap", after, (spot.index + 1, spot.index + 2))


def _look_alike(text: str, draw: random.Random) -> Corruption:
    alike = str.maketrans("aeopcxi", "аеорсхі")
    found = [
        s for s in spots(text) if s.key.translate(alike) != s.key and "overrides" not in s.path
    ]
    spot = draw.choice(found)
    value = f" {spot.value}" if spot.value else ""
    return _on_line(text, spot, f"{spot.indent}{spot.key.translate(alike)}:{value}")


def _merge_key(text: str, draw: random.Random) -> Corruption:
    spot = draw.choice([s for s in spots(text) if s.indent and "overrides" not in s.path])
    after = replaced(text, spot.index, f"{spot.indent}<<: {{}}", text.splitlines()[spot.index])
    return Corruption("YAML trap", after, (spot.index + 1,))


def _alias(text: str, draw: random.Random) -> Corruption:
    spot = _of(text, draw, Kind)
    return _on_line(text, spot, spot.with_value("*nowhere"))


def _control(text: str, draw: random.Random) -> Corruption:
    spot = _of(text, draw, Kind)
    return _on_line(text, spot, spot.with_value(f"{spot.value}{draw.choice(chr(0) + chr(7))}"))


def _not_finite(text: str, draw: random.Random) -> Corruption:
    spot = _of(text, draw, Count, Number)
    return _on_line(text, spot, spot.with_value(draw.choice([".inf", "-.inf", ".nan"])))


def _norway(text: str, draw: random.Random) -> Corruption:
    spot = _of(text, draw, Flag, Count)
    return _on_line(text, spot, spot.with_value(draw.choice(["no", "on", "Yes", "y", "NO"])))


def _base_60(text: str, draw: random.Random) -> Corruption:
    spot = _of(text, draw, Count, Duration)
    return _on_line(text, spot, spot.with_value(draw.choice(["22:22", "1:30:00", "190:20"])))


# What is added to a recipe that says nothing of it, and the key whose line must be named.
CONTRADICTIONS: tuple[tuple[dict[str, str], str], ...] = (
    ({"kv": "{size: 8GiB, blocks: {n}00}"}, "kv"),
    ({"observability": "{metrics_port: 8{n}}", "serve": "{port: 8{n}}"}, "observability"),
    ({"speculation": "{tokens: {n}}"}, "speculation"),
    ({"speculation": "{method: none, draft: hf:a/b}"}, "speculation"),
    ({"speculation": "{method: eagle3}"}, "speculation"),
    ({"limits": "{max_running: 10{n}, max_step_tokens: {n}}"}, "limits"),
    ({"limits": "{chunked_prefill: false, max_step_tokens: 3{n}}"}, "limits"),
    ({"limits": "{memory: 9{n}GiB}"}, "limits"),
    ({"limits": "{threads: 9{n}}", "device": "cpu"}, "limits"),
    ({"kv": "{size: {n}TiB}"}, "kv"),
    ({"kv": "{size: {n}KiB}"}, "kv"),
    ({"kv": "{blocks: 9{n}99999}"}, "kv"),
    ({"kv": "{tiers: {disk: {path: /a}}}"}, "kv"),
    ({"parallel": "{attention: {tp: 7}}"}, "parallel"),
    ({"parallel": "{experts: {ep: 2}}"}, "parallel"),
    ({"parallel": "{attention: {tp: 2}, dense: {tp: 4}}"}, "parallel"),
    ({"kernels": "{overrides: {sampel: sample_reference}}"}, "kernels"),
    ({"kernels": "{overrides: {sample: sample_{n}}}"}, "kernels"),
    ({"advanced": "{beyond_model_context: true}"}, "advanced"),
    ({"device": "rocm"}, "device"),
)


def contradiction(text: str, draw: random.Random) -> Corruption:
    """Each key by itself is fine; beside the other, the model or the machine it is not."""
    added, named = draw.choice(CONTRADICTIONS)
    number = str(draw.randint(20, 99))
    base = "version: 1\nname: c\nmodel: {source: hf:Qwen/Qwen3-8B, load: dummy}\n"
    lines = base.splitlines()
    for key, value in added.items():
        lines.append(f"{key}: {value.replace('{n}', number)}")
    at = next(i for i, line in enumerate(lines, 1) if line.startswith(f"{named}:"))
    return Corruption("contradiction", "\n".join(lines) + "\n", (at,), "nvidia-h200")


KINDS: tuple[Callable[[str, random.Random], Corruption], ...] = (
    key_typo,
    wrong_type,
    wrong_unit,
    out_of_range,
    lost_indentation,
    duplicate,
    yaml_trap,
    contradiction,
)


def corruptions(recipes: Path, each: int, seed: int) -> Iterator[Corruption]:
    """`each` of every kind, made of the shipped recipes and a rich one; equal for equal seeds."""
    draw = random.Random(seed)
    texts = [path.read_text() for path in sorted(recipes.glob("*.yaml"))]
    texts = [text for text in texts if "extends:" not in text] + [RICH] * len(texts)
    for kind in KINDS:
        made = 0
        while made < each:
            try:
                yield kind(draw.choice(texts), draw)
            except IndexError:  # nothing of that kind in this recipe
                continue
            made += 1
