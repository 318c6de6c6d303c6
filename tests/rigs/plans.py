"""Plans by hand: what resolve would make for a small model on the CPU of this machine."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterator
from pathlib import Path

from tokenspeed_kernels import registry
from tokenspeed_kernels.spec import Device, Fact

from tokenspeed.checkpoint.describe import describe
from tokenspeed.plan import (
    PLAN_VERSION,
    CachePlan,
    DevicePlan,
    KernelChoice,
    MemoryPlan,
    ModelConfig,
    ModelPlan,
    ParallelPlan,
    Plan,
    SamplingDefaults,
    SchedulerPlan,
    ServePlan,
    WeightFormat,
)


def tiny_plan(
    model_dir: Path,
    *,
    num_blocks: int = 257,
    block_size: int = 16,
    max_running: int = 16,
    max_step_tokens: int = 256,
    max_model_len: int | None = None,
    max_waiting: int = 1024,
    chunked_prefill: bool = True,
    prefix_cache: bool = True,
    in_flight_depth: int = 0,
    activations: str = "float32",
    kv_dtype: str = "float32",
    linear_format: WeightFormat = WeightFormat.FLOAT32,
    embedding_format: WeightFormat = WeightFormat.FLOAT32,
    reference_kernels: bool = False,
) -> Plan:
    """A whole Plan for the model folder, one thread, exact float32 unless told otherwise.

    The kernels are those that the tables prefer here, or the torch references.
    """
    described = describe(model_dir)
    config = described.config
    kernels = tuple(
        choose(op, variant, needs, reference_kernels)
        for op, variant, needs in kernel_needs(
            config, activations, kv_dtype, block_size, linear_format, embedding_format
        )
    )
    element = {"float32": 4, "bfloat16": 2}[kv_dtype]
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim * element
    return Plan(
        version=PLAN_VERSION,
        name="tiny",
        tokenspeed="0",
        hardware="here",
        device=DevicePlan(kind="cpu", name="cpu", count=1, threads=1, activations=activations),
        model=ModelPlan(
            source=f"path:{model_dir}",
            served_names=("tiny",),
            load="weights",
            container=described.container,
            files=described.files,
            config=config,
            linear_format=linear_format,
            embedding_format=embedding_format,
            chat_template=None,
        ),
        parallel=ParallelPlan(attention_tp=1, attention_dp=1, world_size=1),
        cache=CachePlan(
            dtype=kv_dtype,
            block_size=block_size,
            num_blocks=num_blocks,
            bytes_per_block=per_token * block_size,
            prefix_cache=prefix_cache,
        ),
        scheduler=SchedulerPlan(
            max_running=max_running,
            max_waiting=max_waiting,
            max_step_tokens=max_step_tokens,
            max_model_len=max_model_len or config.max_position,
            chunked_prefill=chunked_prefill,
            in_flight_depth=in_flight_depth,
        ),
        kernels=kernels,
        memory=MemoryPlan(device_bytes=0, budget_bytes=0, items=()),
        serve=ServePlan(
            host="127.0.0.1",
            port=0,
            drain_seconds=1.0,
            max_body_bytes=1 << 24,
            max_choices=16,
            log_requests=False,
            sampling=SamplingDefaults(
                temperature=1.0,
                top_p=1.0,
                top_k=0,
                min_p=0.0,
                repetition_penalty=1.0,
                max_tokens=None,
            ),
        ),
        unmet=(),
    )


def dummy_plan(plan: Plan, **model: object) -> Plan:
    """The same plan with random weights and no files; `model` replaces fields of its model."""
    changed = dataclasses.replace(plan.model, load="dummy", container="none", files=(), **model)
    return dataclasses.replace(plan, model=changed)


def this_cpu() -> Device:
    """The CPU of this machine as the kernel tables see it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next((line.split(":")[1].split() for line in lines if line.startswith("flags")), [])
    return Device(kind="cpu", arch=platform.machine(), features=frozenset(flags))


Needs = list[dict[str, Fact]]


def kernel_needs(
    config: ModelConfig,
    activations: str,
    kv_dtype: str,
    block_size: int,
    linear_format: WeightFormat,
    embedding_format: WeightFormat,
) -> Iterator[tuple[str, str, Needs]]:
    """(op, variant, needs that the one kernel must all satisfy) of every op of the decoder."""
    common: dict[str, Fact] = {"activations": activations}
    attention = common | {"kv_dtype": kv_dtype, "head_dim": config.head_dim}
    widths: dict[str, list[int]] = {}
    inner = [config.hidden_size, config.num_heads * config.head_dim, config.intermediate_size]
    widths.setdefault(linear_format.value, []).extend(inner)
    widths.setdefault(embedding_format.value, []).append(config.hidden_size)
    for kept, features in widths.items():
        yield (
            "linear",
            kept,
            [common | {"weight_format": kept, "in_features": width} for width in features],
        )
    yield "embedding", embedding_format.value, [common | {"weight_format": embedding_format.value}]
    for op in ("rms_norm", "add_rms_norm", "silu_mul"):
        yield op, "", [common]
    yield "rope_kv_write", "", [attention | {"qk_norm": config.qk_norm}]
    yield "paged_attention", "", [attention | {"block_size": block_size}]
    for op in ("sample", "apply_penalties", "log_softmax_topk"):
        yield op, "", [{}]


def choose(op: str, variant: str, needs: Needs, reference: bool) -> KernelChoice:
    """The first kernel of the table that satisfies all needs; the last, if asked for."""
    device = this_cpu()
    specs = registry.specs(op)
    fitting = [spec for spec in specs if all(spec.miss(need, device) is None for need in needs)]
    spec = fitting[-1 if reference else 0]
    return KernelChoice(op=op, variant=variant, kernel=spec.name, reason="a test", rejected=())
