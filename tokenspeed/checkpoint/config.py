"""ModelConfig from a Hugging Face style config.json. Known: dense Llama, Qwen2 and Qwen3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tokenspeed.checkpoint.rope import RopeError, rope_config
from tokenspeed.errors import CheckpointError, Problem, Where
from tokenspeed.plan import ModelConfig


@dataclass(frozen=True, slots=True)
class Family:
    """What the code of a family fixes and its config.json does not say.

    A bias of None means that `attention_bias` decides; `mlp_bias` says whether the key of that
    name is obeyed. `head_dim` None means hidden / heads.
    """

    name: str
    qkv_bias: bool | None
    o_bias: bool | None
    mlp_bias: bool
    qk_norm: bool
    head_dim: int | None


FAMILIES = {
    "llama": Family("llama", None, None, mlp_bias=True, qk_norm=False, head_dim=None),
    "qwen2": Family("qwen2", True, False, mlp_bias=False, qk_norm=False, head_dim=None),
    "qwen3": Family("qwen3", None, None, mlp_bias=False, qk_norm=True, head_dim=128),
}


def model_config(config: Mapping[str, Any], file: str = "config.json") -> ModelConfig:
    """The facts of the model that `config` (a parsed config.json) describes.

    `rope_parameters` (transformers 5) and `rope_theta` with `rope_scaling` (transformers 4) are
    both read. Raises CheckpointError with every problem found; `file` is where they are said to
    be.
    """
    reader = _Reader(config, file)
    family = reader.family()
    refuse_unsupported(reader)
    hidden = reader.count("hidden_size")
    heads = reader.count("num_attention_heads")
    kv_heads = reader.count("num_key_value_heads", default=heads)
    head_dim = reader.count("head_dim", default=family.head_dim or hidden // max(heads, 1))
    if heads and kv_heads and heads % kv_heads:
        reader.wrong(f"{heads} query heads do not share {kv_heads} kv heads evenly")
    bias = reader.flag("attention_bias")
    mlp_bias = reader.flag("mlp_bias")
    tied = reader.flag("tie_word_embeddings")
    norm_eps = reader.number("rms_norm_eps", 1e-6)
    max_position = reader.count("max_position_embeddings")
    sizes = {
        "vocab_size": reader.count("vocab_size"),
        "intermediate_size": reader.count("intermediate_size"),
        "num_layers": reader.count("num_hidden_layers"),
    }
    eos = reader.token_ids("eos_token_id")
    bos = reader.token_ids("bos_token_id")
    theta = reader.number("rope_theta", 10_000.0, rope_parameters(config))
    reader.done()
    try:
        rope, usable = rope_config(
            rope_parameters(config), theta=theta, head_dim=head_dim, max_position=max_position
        )
    except RopeError as error:
        reader.wrong(str(error))
        reader.done()
        raise AssertionError("done() raises") from error
    return ModelConfig(
        family=family.name,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        norm_eps=norm_eps,
        rope=rope,
        max_position=usable,
        tie_embeddings=tied,
        qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        o_bias=bias if family.o_bias is None else family.o_bias,
        mlp_bias=mlp_bias and family.mlp_bias,
        qk_norm=family.qk_norm,
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos,
        **sizes,
    )


def rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rope description of a config.json, in the keys of `rope_parameters`."""
    written = config.get("rope_parameters") or config.get("rope_scaling") or {}
    outside = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config}
    # `refuse_unsupported` names what is no mapping.
    return {**outside, **written} if isinstance(written, Mapping) else outside


def refuse_unsupported(reader: _Reader) -> None:
    """Refuse what would be computed wrongly rather than not at all."""
    config = reader.config
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        reader.wrong(f"hidden_act {activation!r}; this build computes silu only")
    if window_used(config):
        reader.wrong(
            f"sliding window attention over {config.get('sliding_window')} tokens",
            "this build computes full attention only; the answers would differ past the window",
        )
    if config.get("quantization_config"):
        described = config["quantization_config"]
        method = described.get("quant_method") if isinstance(described, Mapping) else described
        reader.wrong(
            f"weights quantised with {method!r}",
            "use the checkpoint in bfloat16 or float32, or a GGUF file in Q4_1 or Q8_0",
        )
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(key) or {}, Mapping):
            reader.wrong(f"{key} is {config[key]!r}, not a mapping")
    if any(isinstance(value, Mapping) for value in rope_parameters(config).values()):
        reader.wrong("rope parameters that differ from layer to layer")


def window_used(config: Mapping[str, Any]) -> bool:
    """Whether any layer of the model attends to a window instead of everything."""
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and kinds:
        return any(kind != "full_attention" for kind in kinds)
    if not config.get("sliding_window") or not config.get("use_sliding_window", True):
        return False
    # Qwen: layers from max_window_layers on have the window.
    first, layers = config.get("max_window_layers", 0), config.get("num_hidden_layers", 0)
    return not (isinstance(first, int) and isinstance(layers, int) and first >= layers)


class _Reader:
    """Reads typed values out of a config and keeps every problem for one error."""

    def __init__(self, config: Mapping[str, Any], file: str) -> None:
        self.config = config
        self._where = Where(file)
        self._problems: list[Problem] = []

    def wrong(self, message: str, hint: str = "") -> None:
        self._problems.append(
            Problem(code="TS-W010", message=message, where=self._where, hint=hint)
        )

    def done(self) -> None:
        if self._problems:
            raise CheckpointError(*self._problems)

    def family(self) -> Family:
        name = self.config.get("model_type")
        family = FAMILIES.get(str(name))
        if family is None:
            self.wrong(
                f"model_type {name!r} is not one that this build computes",
                f"known are {', '.join(FAMILIES)}",
            )
            self.done()
        assert family is not None
        return family

    def count(self, key: str, default: int | None = None) -> int:
        """A positive integer; 0 after a problem was noted."""
        value = self.config.get(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.wrong(f"{key} is {value!r}, not a positive integer")
            return 0
        return value

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

    def flag(self, key: str) -> bool:
        """False where the key is absent or null."""
        value = self.config.get(key)
        if value is not None and not isinstance(value, bool):
            self.wrong(f"{key} is {value!r}, neither true nor false")
        return value is True

    def token_ids(self, key: str) -> tuple[int, ...]:
        value = self.config.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in ids):
            self.wrong(f"{key} is {value!r}, not a token id or a list of them")
            return ()
        return tuple(ids)
