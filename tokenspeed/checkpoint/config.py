"""ModelConfig from a Hugging Face style config.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenspeed.checkpoint.families import FAMILIES, MAX_LAYERS, Family
from tokenspeed.checkpoint.reader import ConfigReader
from tokenspeed.checkpoint.rope import RopeError, rope_config
from tokenspeed.plan import Layer, LayerRun, ModelConfig, RopeConfig

# Longest pattern of layers that is looked for.
_LONGEST_PERIOD = 8
ACTIVATIONS = ("silu", "situ")


def model_config(config: Mapping[str, Any], file: str = "config.json") -> ModelConfig:
    """The facts of the model that `config` (a parsed config.json) describes.

    `rope_parameters` (transformers 5) and `rope_theta` with `rope_scaling` (transformers 4) are
    both read. Of a model with other modalities the language model is read. Raises CheckpointError
    with every problem found; `file` is where they are said to be.
    """
    outer = ConfigReader(config, file)
    family = _family(outer)
    reader = outer.nested(family.text) if family.text else outer
    reader.done()
    refuse_unsupported(reader)
    layers = reader.count("num_hidden_layers")
    if layers > MAX_LAYERS:
        reader.wrong(f"num_hidden_layers is {layers}")
        layers = 1
    mixers = family.mixers(reader, layers)
    feeds = family.feed_forwards(reader, layers)
    eos = reader.token_ids("eos_token_id") or outer.token_ids("eos_token_id")
    bos = reader.token_ids("bos_token_id") or outer.token_ids("bos_token_id")
    tied = reader.flag("tie_word_embeddings", default=outer.flag("tie_word_embeddings"))
    facts = {
        "vocab_size": reader.count("vocab_size"),
        "hidden_size": reader.count("hidden_size"),
        "residual_block": reader.count_or_none("attn_res_block_size"),
        "draft_layers": reader.count_or_none(
            reader.first("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers")
        )
        or 0,
    }
    norm_eps = reader.number("rms_norm_eps", 1e-6)
    activation = reader.word("hidden_act", "silu")
    rope, max_position = _rope(reader, family)
    reader.done()
    sequence = [
        Layer(mixer=mixer, feed_forward=feed) for mixer, feed in zip(mixers, feeds, strict=True)
    ]
    return ModelConfig(
        family=family.name,
        layers=run_length(sequence),
        norm_eps=norm_eps,
        rope=rope,
        max_position=max_position,
        tie_embeddings=tied,
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=eos,
        activation=activation,
        **facts,  # type: ignore[arg-type]
    )


def _family(reader: ConfigReader) -> Family:
    name = reader.config.get("model_type")
    family = FAMILIES.get(str(name))
    if family is None:
        known = f"known are {', '.join(FAMILIES)}"
        reader.wrong(f"model_type {name!r} is not one that can be planned", known)
        reader.done()
    assert family is not None
    return family


def _rope(reader: ConfigReader, family: Family) -> tuple[RopeConfig | None, int]:
    """The rope and the usable context."""
    longest = reader.count(reader.first("max_position_embeddings", "model_max_length"))
    head_dim = family.rope_dim(reader)
    if head_dim is None:
        return None, longest
    parameters = rope_parameters(reader.config)
    width = reader.count_or_none("rotary_dim")
    if width is not None and "partial_rotary_factor" not in parameters:
        parameters = {**parameters, "partial_rotary_factor": width / head_dim}
    theta = reader.number("rope_theta", 10_000.0, parameters)
    reader.done()
    try:
        return rope_config(parameters, theta=theta, head_dim=head_dim, max_position=longest)
    except RopeError as error:
        reader.wrong(str(error))
        reader.done()
        raise AssertionError("done() raises") from error


def rope_parameters(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The rope description of a config.json, in the keys of `rope_parameters`."""
    written = config.get("rope_parameters") or config.get("rope_scaling") or {}
    outside = {key: config[key] for key in ("rope_theta", "partial_rotary_factor") if key in config}
    # `refuse_unsupported` names what is no mapping.
    return {**outside, **written} if isinstance(written, Mapping) else outside


def refuse_unsupported(reader: ConfigReader) -> None:
    """Refuse what has no fact that could say it."""
    config = reader.config
    activation = config.get("hidden_act", "silu")
    if activation not in ACTIVATIONS:
        reader.wrong(f"hidden_act {activation!r}; known are {', '.join(ACTIVATIONS)}")
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(config.get(key) or {}, Mapping):
            reader.wrong(f"{key} is {config[key]!r}, not a mapping")
    if any(isinstance(value, Mapping) for value in rope_parameters(config).values()):
        reader.wrong("rope parameters that differ from layer to layer")


def run_length(sequence: Sequence[Layer]) -> tuple[LayerRun, ...]:
    """The layers as runs: at each place the shortest pattern that repeats over most layers."""
    runs: list[LayerRun] = []
    start = 0
    while start < len(sequence):
        best = (1, 1)
        for period in range(1, _LONGEST_PERIOD + 1):
            repeat = _repeats(sequence, start, period)
            if repeat > 1 and repeat * period > best[0] * best[1]:
                best = (repeat, period)
        repeat, period = best
        runs.append(LayerRun(repeat=repeat, layers=tuple(sequence[start : start + period])))
        start += repeat * period
    return tuple(runs)


def _repeats(sequence: Sequence[Layer], start: int, period: int) -> int:
    pattern = list(sequence[start : start + period])
    count, place = 0, start
    while len(pattern) == period and list(sequence[place : place + period]) == pattern:
        count, place = count + 1, place + period
    return count
