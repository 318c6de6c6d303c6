"""Recipe, model, hardware and build become a Plan: decisions in order, each with its reason.

Pure: no I/O, clock, torch or randomness. Equal inputs give equal plans. Either the whole plan is
returned, or one error lists every constraint that fails, with what would fit. What this build
or this machine lacks, but a plan can say, is in `Plan.unmet`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tokenspeed.checkpoint.inventory import active_parameters
from tokenspeed.errors import ResolveError, Where
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import PLAN_VERSION, MemoryItem, ModelPlan, Plan
from tokenspeed.recipe.types import Recipe
from tokenspeed.resolve.cache import settle_geometry, settle_memory
from tokenspeed.resolve.device import (
    settle_activations,
    settle_device,
    settle_target,
)
from tokenspeed.resolve.facts import BuildFacts, ModelFacts
from tokenspeed.resolve.formats import require_whole_blocks, settle_formats
from tokenspeed.resolve.kernels import Setting, choose_all, uses
from tokenspeed.resolve.ledger import Decision, Ledger
from tokenspeed.resolve.limits import note_context, settle_context, settle_limits
from tokenspeed.resolve.memory import Load, fixed_items
from tokenspeed.resolve.model import settle_model
from tokenspeed.resolve.parallel import settle_parallel
from tokenspeed.resolve.reach import (
    settle_graphs,
    settle_metrics_port,
    settle_role,
    settle_speculation,
    settle_tiers,
    settle_token,
)
from tokenspeed.resolve.runnable import note_unrunnable
from tokenspeed.resolve.serving import settle_serve
from tokenspeed.resolve.shard import Shard, weight_bytes, weight_groups


@dataclass(frozen=True, slots=True)
class Resolution:
    """The plan, and why it is so."""

    plan: Plan
    decisions: tuple[Decision, ...]


def resolve(
    recipe: Recipe,
    origins: Mapping[str, Where],
    model: ModelFacts,
    hardware: Hardware,
    build: BuildFacts,
) -> Resolution:
    """Raises ResolveError listing every constraint that fails."""
    ledger = Ledger(origins)
    config = model.config
    context = settle_context(recipe, config, ledger)
    target = settle_target(recipe, hardware, ledger)
    parallel = settle_parallel(recipe, config, target, build, ledger)
    if ledger.failures and parallel.world_size > 1:
        raise ResolveError(*ledger.failures)  # a shard that does not exist has no sizes
    shard = Shard(config, parallel)
    activations = settle_activations(recipe, target, ledger)
    device = settle_device(recipe, hardware, target, activations, parallel.world_size, ledger)
    served = settle_model(recipe, model, build, ledger)
    formats = settle_formats(recipe, model, target, shard, activations, ledger)
    require_whole_blocks(shard, formats, ledger)
    note_unrunnable(shard, formats, build, ledger)
    geometry = settle_geometry(recipe, target, shard, activations, ledger)
    scheduler = settle_limits(recipe, context, target, geometry.request_bytes, ledger)
    speculation = settle_speculation(recipe, ledger)
    graphs, role = settle_graphs(recipe, ledger), settle_role(recipe, ledger)
    weights = weight_bytes(shard, formats)

    def fixed(max_model_len: int) -> tuple[MemoryItem, ...]:
        load = Load(
            device=target.kind,
            activations=activations,
            step_tokens=scheduler.max_step_tokens,
            max_running=scheduler.max_running,
            max_model_len=max_model_len,
            graphs=graphs,
            draft=speculation.method == "mtp",
        )
        items = fixed_items(shard, formats, weights, load)
        return (items[0], *geometry.request_items(scheduler.max_running), *items[1:])

    cache, memory, max_model_len = settle_memory(
        recipe, target, geometry, context, scheduler.max_running, fixed, ledger
    )
    note_context(max_model_len, context, config, ledger)
    setting = Setting(
        shard=shard,
        activations=activations,
        kv_dtype=cache.dtype,
        block_size=cache.block_size,
        formats=formats,
    )
    overrides = recipe.kernels.overrides or {}
    kernels = choose_all(uses(setting), target.kernels, overrides, ledger)
    serve = replace(settle_serve(recipe, ledger), metrics_port=settle_metrics_port(recipe, ledger))
    cache = replace(cache, tiers=settle_tiers(recipe, ledger))
    token = settle_token(recipe, model.source_kind, ledger)
    if ledger.failures:
        raise ResolveError(*ledger.failures)
    plan = Plan(
        version=PLAN_VERSION,
        name=recipe.name,
        tokenspeed=build.version,
        hardware=hardware.name,
        device=device,
        model=ModelPlan(
            source=model.source,
            served_names=served.names,
            load=served.load,
            container=served.container,
            files=served.files,
            config=config,
            linear_format=formats.linear,
            embedding_format=formats.embedding,
            chat_template=model.chat_template,
            token=token,
            weights=weight_groups(shard, formats),
            active_parameters=active_parameters(config),
        ),
        parallel=parallel,
        cache=cache,
        scheduler=replace(scheduler, max_model_len=max_model_len),
        kernels=kernels,
        memory=memory,
        serve=serve,
        unmet=tuple(ledger.unmet),
        speculation=speculation,
        graphs=graphs,
        role=role,
    )
    return Resolution(plan, tuple(ledger.decisions))
