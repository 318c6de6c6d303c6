"""Plans by hand: what resolve would make for a small model on the CPU of this machine."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

from tokenspeed_kernels import registry
from tokenspeed_kernels.spec import Device

from tokenspeed.checkpoint.describe import describe
from tokenspeed.plan import (
    PLAN_VERSION,
    CachePlan,
    DevicePlan,
    ExpansionPlan,
    KernelChoice,
    LatentAttention,
    MemoryPlan,
    ModelPlan,
    ParallelPlan,
    Plan,
    SamplingDefaults,
    SchedulerPlan,
    ServePlan,
    WeightFormat,
)
from tokenspeed.resolve.kernels import Setting, choose, is_fast, is_optional, uses
from tokenspeed.resolve.memory import cache_groups, paged_token_bytes
from tokenspeed.resolve.shard import Formats, Shard, weight_groups


def tiny_plan(
    model_dir: Path,
    *,
    num_blocks: int = 257,
    block_size: int = 16,
    max_running: int = 16,
    max_step_tokens: int = 256,
    max_mixed_tokens: int | None = None,
    max_model_len: int | None = None,
    max_waiting: int = 1024,
    max_wait_seconds: float | None = None,
    chunked_prefill: bool = True,
    prefix_cache: bool = True,
    in_flight_depth: int = 0,
    jump_ahead: int = 1,
    activations: str = "float32",
    kv_dtype: str = "float32",
    kv_layout: str | None = None,
    linear_format: WeightFormat = WeightFormat.FLOAT32,
    embedding_format: WeightFormat = WeightFormat.FLOAT32,
    experts_format: WeightFormat | None = None,
    head_format: WeightFormat | None = None,
    reference_kernels: bool = False,
    device: Device | None = None,
    graphs: tuple[int, ...] = (),
    token_graphs: tuple[int, ...] = (),
    expands: bool = True,
    ordered: bool = False,
) -> Plan:
    """A whole Plan for the model folder, one thread, exact float32 unless told otherwise.

    The kernels are those that the tables prefer on `device` (this CPU), or the torch references.
    Latents are expanded early and in several chunks, or never.
    """
    device = device or this_cpu()
    described = describe(model_dir)
    config = described.config
    shard = Shard.over(config, 1)
    formats = Formats.of(
        linear_format,
        embedding_format,
        activations,
        experts=experts_format or linear_format,
        head=head_format or linear_format,
    )
    mixers = [layer.mixer for layer in config.sequence()]
    latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    layout = kv_layout or ("latent" if latent else "split")
    kernels = choose_kernels(
        Setting(
            shard=shard,
            activations=activations,
            kv_dtype=kv_dtype,
            block_size=block_size,
            formats=formats,
            kv_layout=layout,
        ),
        device,
        reference_kernels,
        ordered,
    )
    if not expands:
        kernels = tuple(choice for choice in kernels if choice.op != "latent_extend")
    expansion = None
    if any(choice.op == "latent_extend" for choice in kernels):
        expansion = ExpansionPlan(least_reuse=2, chunk_tokens=32)
    groups = cache_groups(shard, kv_dtype, layout, block_size)
    return Plan(
        version=PLAN_VERSION,
        name="tiny",
        tokenspeed="0",
        hardware="here",
        device=DevicePlan(
            kind=device.kind, name=device.kind, count=1, threads=1, activations=activations
        ),
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
            weights=weight_groups(shard, formats),
        ),
        parallel=ParallelPlan(attention_tp=1, attention_dp=1, world_size=1),
        cache=CachePlan(
            dtype=kv_dtype,
            block_size=block_size,
            num_blocks=num_blocks,
            bytes_per_block=paged_token_bytes(groups) * block_size,
            prefix_cache=prefix_cache,
            layout=layout,
            groups=groups,
            request_slots=max_running,
        ),
        scheduler=SchedulerPlan(
            max_running=max_running,
            max_waiting=max_waiting,
            max_step_tokens=max_step_tokens,
            max_mixed_tokens=max_mixed_tokens or max_step_tokens,
            max_model_len=max_model_len or config.max_position,
            chunked_prefill=chunked_prefill,
            in_flight_depth=in_flight_depth,
            jump_ahead=jump_ahead,
            max_wait_seconds=max_wait_seconds,
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
        graphs=graphs,
        token_graphs=token_graphs,
        expansion=expansion,
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


def choose_kernels(
    setting: Setting, device: Device, reference: bool, ordered: bool = False
) -> tuple[KernelChoice, ...]:
    """For every op the kernel that the tables prefer there, or the first that is ordered; the
    torch reference, if asked for."""
    return tuple(
        choose(use, device, registry.specs(use.op)[-1].name if reference else None, ordered=ordered)
        for use in uses(setting)
        if not is_optional(use) or (is_fast(use, device, ordered=ordered) and not reference)
    )
