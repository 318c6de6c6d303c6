"""The families that the one decoder computes, as data: where each parameter lies in their files.

A new dense family is a line here (and one in `checkpoint`), not a class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tokenspeed.checkpoint.tensors import gguf_tensors, hf_tensors
from tokenspeed.plan import Attention, Layer, ModelConfig, WeightFormat
from tokenspeed.weights.parameter import Matrix, Parameter, Part, Vector

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one container names things. `fused` lists, for each matrix of a layer, the tensors
    whose rows it joins; `norms` the vectors of a layer. `layer` takes the layer's index."""

    tensors: Callable[[ModelConfig], dict[str, Shape]]
    embedding: str
    final_norm: str
    head: str
    layer: str
    fused: Mapping[str, tuple[str, ...]]
    norms: Mapping[str, str]
    # Families whose q and k rows the container stores as adjacent rotary pairs.
    interleaved: frozenset[str] = frozenset()


HF = Layout(
    tensors=hf_tensors,
    embedding="model.embed_tokens",
    final_norm="model.norm",
    head="lm_head",
    layer="model.layers.{}.",
    fused={
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "o": ("self_attn.o_proj",),
        "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
        "down": ("mlp.down_proj",),
    },
    norms={
        "attn_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        "q_norm": "self_attn.q_norm",
        "k_norm": "self_attn.k_norm",
    },
)

GGUF = Layout(
    tensors=gguf_tensors,
    embedding="token_embd",
    final_norm="output_norm",
    head="output",
    layer="blk.{}.",
    fused={
        "qkv": ("attn_q", "attn_k", "attn_v"),
        "o": ("attn_output",),
        "gate_up": ("ffn_gate", "ffn_up"),
        "down": ("ffn_down",),
    },
    norms={
        "attn_norm": "attn_norm",
        "mlp_norm": "ffn_norm",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
    },
    interleaved=frozenset({"llama"}),
)

# "none" is a model without files: dummy weights take the shapes, not the names.
LAYOUTS: Mapping[str, Layout] = {"safetensors": HF, "gguf": GGUF, "none": HF}


def parameters(
    config: ModelConfig,
    container: str,
    linear_format: WeightFormat,
    embedding_format: WeightFormat,
) -> tuple[Parameter, ...]:
    """Every parameter of the decoder, in the order in which layers run.

    A tied output projection is the embedding itself; an untied one is a linear layer like the
    others.
    """
    layout = LAYOUTS[container]
    shapes = layout.tensors(config)
    whole: list[Parameter] = [
        Matrix("embedding", _parts(shapes, f"{layout.embedding}.weight"), embedding_format)
    ]
    for index, layer in enumerate(config.sequence()):
        interleaved = config.family in layout.interleaved
        whole.extend(_layer(layer, interleaved, layout, shapes, index, linear_format))
    whole.append(Vector("final_norm", _parts(shapes, f"{layout.final_norm}.weight")))
    if not config.tie_embeddings:
        whole.append(Matrix("head", _parts(shapes, f"{layout.head}.weight"), linear_format))
    return tuple(whole)


def _layer(
    layer: Layer,
    interleaved: bool,
    layout: Layout,
    shapes: Mapping[str, Shape],
    index: int,
    kept: WeightFormat,
) -> Iterator[Parameter]:
    ours, theirs = f"layers.{index}.", layout.layer.format(index)
    mixer = layer.mixer
    assert isinstance(mixer, Attention), "up refuses what this build cannot run"
    for name, tensor in layout.norms.items():
        if f"{theirs}{tensor}.weight" in shapes:
            yield Vector(ours + name, _parts(shapes, f"{theirs}{tensor}.weight"))
    for name, tensors in layout.fused.items():
        paired = (0,) * len(tensors)
        if name == "qkv" and interleaved:
            paired = (mixer.num_heads, mixer.num_kv_heads, 0)
        for kind in ("weight", "bias"):
            files = [f"{theirs}{tensor}.{kind}" for tensor in tensors]
            if files[0] not in shapes:
                continue
            parts = tuple(
                Part(file, shapes[file], heads) for file, heads in zip(files, paired, strict=True)
            )
            if kind == "weight":
                yield Matrix(ours + name, parts, kept)
            else:
                yield Vector(f"{ours}{name}.bias", parts)


def _parts(shapes: Mapping[str, Shape], tensor: str) -> tuple[Part, ...]:
    return (Part(tensor, shapes[tensor]),)
