"""Kernels of mixtures of experts, best first, the reference last."""

from __future__ import annotations

from tokenspeed_kernels.spec import (
    ANY_CPU,
    HOPPER,
    TRITON,
    KernelSpec,
    OpTable,
    anything,
    between,
    multiple_of,
    one_of,
)

_ROUTE = ("experts", "top_k", "scoring", "groups")
_EXPERTS = (
    "weight_format", "activations", "hidden_size", "inner", "top_k", "clamp", "expert_bias",
    "latent",
)  # fmt: skip

TABLES = (
    OpTable(
        op="route",
        fields=_ROUTE,
        kernels=(
            KernelSpec(
                name="route_triton",
                module="tokenspeed_kernels.moe.route_triton",
                attribute="route",
                device=TRITON,
                requires={
                    "experts": between(1, 1024),
                    "top_k": between(1, 16),
                    "scoring": one_of("softmax", "topk_softmax", "sigmoid"),
                    "groups": anything(),
                },
                why="one warp per token, the scores in registers",
                takes_parts=True,
            ),
            KernelSpec(
                name="route_reference",
                module="tokenspeed_kernels.moe.reference",
                attribute="route",
                device=ANY_CPU,
                requires={
                    "experts": anything(),
                    "top_k": anything(),
                    "scoring": one_of("softmax", "topk_softmax", "sigmoid"),
                    "groups": anything(),
                },
                why="torch, on any CPU",
                is_reference=True,
            ),
        ),
    ),
    OpTable(
        op="experts",
        fields=_EXPERTS,
        kernels=(
            KernelSpec(
                name="experts_hopper",
                module="tokenspeed_kernels.moe.experts_hopper",
                attribute="ExpertsHopper",
                device=HOPPER,
                requires={
                    "weight_format": one_of("bfloat16", "fp8", "fp8_block"),
                    "activations": one_of("bfloat16"),
                    "hidden_size": multiple_of(256),
                    "inner": multiple_of(128),
                    "top_k": between(1, 16),
                    "clamp": one_of(False),
                    "expert_bias": one_of(False),
                    "latent": one_of(False),
                },
                why="persistent and warp-specialised; float8 weights with float8 activations",
            ),
            KernelSpec(
                name="experts_triton",
                module="tokenspeed_kernels.moe.experts_triton",
                attribute="ExpertsTriton",
                device=TRITON,
                requires={
                    "weight_format": one_of("bfloat16"),
                    "activations": one_of("bfloat16"),
                    "hidden_size": multiple_of(64),
                    "inner": multiple_of(64),
                    "top_k": between(1, 16),
                    "clamp": one_of(True, False),
                    "expert_bias": one_of(True, False),
                    "latent": one_of(False),
                },
                why="each chosen expert read once, activation fused into gate and up",
            ),
            KernelSpec(
                name="experts_packed_hopper",
                module="tokenspeed_kernels.moe.experts_packed_hopper",
                attribute="ExpertsPackedHopper",
                device=HOPPER,
                requires={
                    "weight_format": one_of("mxfp4"),
                    "activations": one_of("bfloat16"),
                    "hidden_size": multiple_of(64),
                    "inner": multiple_of(64),
                    "top_k": between(1, 16),
                    "clamp": one_of(True, False),
                    "expert_bias": one_of(True, False),
                    "latent": one_of(False),
                },
                why="4-bit weights in the tensor cores' operand layout, streamed through rings",
            ),
            KernelSpec(
                name="experts_packed_triton",
                module="tokenspeed_kernels.moe.experts_packed_triton",
                attribute="ExpertsPackedTriton",
                device=TRITON,
                requires={
                    "weight_format": one_of("mxfp4", "int4", "int4_g32"),
                    "activations": one_of("bfloat16"),
                    "hidden_size": multiple_of(32),
                    "inner": multiple_of(32),
                    "top_k": between(1, 16),
                    "clamp": one_of(True, False),
                    "expert_bias": one_of(True, False),
                    "latent": one_of(False),
                },
                why="4-bit weights packed in the tensor cores' operand layout",
            ),
            KernelSpec(
                name="experts_quantised_triton",
                module="tokenspeed_kernels.moe.experts_quantised_triton",
                attribute="ExpertsQuantisedTriton",
                device=TRITON,
                requires={
                    "weight_format": one_of(
                        "mxfp4", "nvfp4", "int4", "int4_g32", "fp8", "fp8_block"
                    ),
                    "activations": one_of("bfloat16"),
                    "hidden_size": multiple_of(32),
                    "inner": multiple_of(32),
                    "top_k": between(1, 16),
                    "clamp": one_of(True, False),
                    "expert_bias": one_of(True, False),
                    "latent": one_of(False),
                },
                why="weights read as stored, dequantised in registers",
            ),
            KernelSpec(
                name="experts_reference",
                module="tokenspeed_kernels.moe.reference",
                attribute="ExpertsReference",
                device=ANY_CPU,
                requires={
                    "weight_format": one_of(
                        "float32",
                        "bfloat16",
                        "q4_1",
                        "q8_0",
                        "fp8",
                        "fp8_block",
                        "mxfp4",
                        "nvfp4",
                        "int4",
                        "int4_g32",
                    ),
                    "activations": one_of("float32", "bfloat16"),
                    "hidden_size": anything(),
                    "inner": anything(),
                    "top_k": anything(),
                    "clamp": one_of(True, False),
                    "expert_bias": one_of(True, False),
                    "latent": one_of(False),
                },
                why="torch, one expert at a time, dequantised when chosen",
                is_reference=True,
            ),
        ),
    ),
)
