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
from tokenspeed.plan import (
    PLAN_VERSION,
    CachePlan,
    ExpansionPlan,
    KernelChoice,
    MemoryItem,
    MemoryPlan,
    ModelPlan,
    Plan,
    SchedulerPlan,
    SpeculationPlan,
)
from tokenspeed.recipe.types import Recipe
from tokenspeed.resolve.cache import Geometry, settle_geometry, settle_memory
from tokenspeed.resolve.change import Attempt, lacks_memory, smallest_change, told_of_none
from tokenspeed.resolve.device import Target, settle_activations, settle_device, settle_target
from tokenspeed.resolve.expansion import expansion_item, settle_expansion
from tokenspeed.resolve.facts import BuildFacts, ModelFacts
from tokenspeed.resolve.formats import require_whole_blocks, settle_formats
from tokenspeed.resolve.kernels import Setting, choose_all, uses
from tokenspeed.resolve.ledger import Decision, Ledger
from tokenspeed.resolve.limits import Context, note_context, settle_context, settle_limits
from tokenspeed.resolve.memory import Load, fixed_items
from tokenspeed.resolve.misfit import Sizes
from tokenspeed.resolve.model import settle_model
from tokenspeed.resolve.ordered import ordered_item, settle_ordered
from tokenspeed.resolve.parallel import settle_expert_load, settle_parallel
from tokenspeed.resolve.predict import predict
from tokenspeed.resolve.reach import (
    settle_graphs,
    settle_metrics_port,
    settle_role,
    settle_speculation,
    settle_tiers,
    settle_token,
    settle_token_graphs,
    settle_traces,
)
from tokenspeed.resolve.roofline import Roofline
from tokenspeed.resolve.runnable import note_unrunnable
from tokenspeed.resolve.serving import settle_serve
from tokenspeed.resolve.shard import Formats, Shard, weight_bytes, weight_groups


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
    """Raises ResolveError listing every constraint that fails; where memory is what lacks, with
    the smallest change of the recipe that fits, proven by resolving it."""

    def attempt(changed: Recipe) -> Attempt:
        ledger = Ledger(origins)
        plan = _plan(changed, model, hardware, build, ledger)
        return Attempt(plan, tuple(ledger.failures), tuple(ledger.unmet), tuple(ledger.decisions))

    first = attempt(recipe)
    if first.plan is not None:
        return Resolution(first.plan, first.decisions)
    if not lacks_memory(first.failures):
        raise ResolveError(*first.failures)
    change = smallest_change(recipe, first, attempt)
    if change is None:
        raise ResolveError(*told_of_none(first.failures, hardware.name))
    raise ResolveError(*change.told(first.failures), suggestion=change.edits)


def plan_as_it_is(
    recipe: Recipe,
    origins: Mapping[str, Where],
    model: ModelFacts,
    hardware: Hardware,
    build: BuildFacts,
) -> Plan | None:
    """The plan, None where a constraint fails; quick, for who only asks whether it fits."""
    return _plan(recipe, model, hardware, build, Ledger(origins))


@dataclass(frozen=True, slots=True)
class _Shape:
    """What is decided before memory is shared out."""

    context: Context
    target: Target
    shard: Shard
    activations: str
    formats: Formats
    geometry: Geometry
    scheduler: SchedulerPlan
    speculation: SpeculationPlan
    graphs: tuple[int, ...]
    token_graphs: tuple[int, ...]
    kernels: tuple[KernelChoice, ...]
    ordered: bool
    expansion: ExpansionPlan | None


def _plan(
    recipe: Recipe, model: ModelFacts, hardware: Hardware, build: BuildFacts, ledger: Ledger
) -> Plan | None:
    """None when a constraint fails; the ledger has them all."""
    context = settle_context(recipe, model.config, ledger)
    target = settle_target(recipe, hardware, ledger)
    if target is None:
        return None
    parallel = settle_parallel(recipe, model.config, target, build, ledger)
    if ledger.failures and parallel.world_size > 1:
        return None  # a shard that does not exist has no sizes
    shard = Shard(model.config, parallel)
    activations = settle_activations(recipe, target, ledger)
    device = settle_device(recipe, hardware, target, activations, parallel.world_size, ledger)
    served = settle_model(recipe, model, ledger)
    shape = _settle_shape(recipe, model, context, target, shard, activations, ledger)
    note_unrunnable(shard, shape.formats, build, ledger)
    cache, memory, max_model_len = _settle_memory(recipe, shape, ledger)
    scheduler = replace(shape.scheduler, max_model_len=max_model_len)
    serve = replace(
        settle_serve(recipe, ledger),
        metrics_port=settle_metrics_port(recipe, ledger),
        traces=settle_traces(recipe, build, ledger),
    )
    expert_load = settle_expert_load(recipe, model.config, ledger)
    token, role = settle_token(recipe, model.source_kind, ledger), settle_role(recipe, ledger)
    if ledger.failures:
        return None
    formats = shape.formats
    return Plan(
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
            config=model.config,
            linear_format=formats.linear,
            embedding_format=formats.embedding,
            chat_template=model.chat_template,
            token=token,
            weights=weight_groups(shard, formats),
            active_parameters=active_parameters(model.config),
        ),
        parallel=parallel,
        cache=cache,
        scheduler=scheduler,
        kernels=shape.kernels,
        memory=memory,
        serve=serve,
        unmet=tuple(ledger.unmet),
        speculation=shape.speculation,
        graphs=shape.graphs,
        token_graphs=shape.token_graphs,
        role=role,
        prediction=predict(
            shard,
            formats,
            target,
            device.threads,
            cache,
            scheduler,
            activations,
            ordered=shape.ordered,
        ),
        expansion=shape.expansion,
        expert_load=expert_load,
    )


def _settle_shape(
    recipe: Recipe,
    model: ModelFacts,
    context: Context,
    target: Target,
    shard: Shard,
    activations: str,
    ledger: Ledger,
) -> _Shape:
    formats = settle_formats(recipe, model, target, shard, activations, ledger)
    require_whole_blocks(shard, formats, ledger)
    geometry = settle_geometry(recipe, target, shard, activations, ledger)
    roofline = Roofline(shard, formats, geometry.groups, activations)
    scheduler = settle_limits(recipe, context, target, geometry.request_bytes, roofline, ledger)
    setting = Setting(
        shard=shard,
        activations=activations,
        kv_dtype=geometry.dtype,
        block_size=geometry.block_size,
        formats=formats,
        kv_layout=geometry.layout,
    )
    overrides = recipe.kernels.overrides or {}
    ordered = settle_ordered(recipe, ledger)
    kernels = choose_all(uses(setting), target.kernels, overrides, ledger, ordered=ordered)
    return _Shape(
        context=context,
        target=target,
        shard=shard,
        activations=activations,
        formats=formats,
        geometry=geometry,
        scheduler=scheduler,
        speculation=settle_speculation(recipe, model.config, ledger),
        graphs=settle_graphs(recipe, target.kind, scheduler.max_running, ledger),
        token_graphs=settle_token_graphs(recipe, target.kind, scheduler, ledger),
        kernels=kernels,
        ordered=ordered,
        expansion=settle_expansion(
            kernels, shard, target.kind, activations, geometry.dtype, ledger
        ),
    )


def _settle_memory(
    recipe: Recipe, shape: _Shape, ledger: Ledger
) -> tuple[CachePlan, MemoryPlan, int]:
    """(cache, memory, context)"""
    weights = weight_bytes(shape.shard, shape.formats)
    scheduler = shape.scheduler
    asked = Sizes(
        context=shape.context.limit,
        running=scheduler.max_running,
        step_tokens=scheduler.max_step_tokens,
        least_step=1 if scheduler.chunked_prefill else shape.context.limit,
    )

    def fixed(sizes: Sizes) -> tuple[MemoryItem, ...]:
        load = Load(
            device=shape.target.kind,
            activations=shape.activations,
            step_tokens=sizes.step_tokens,
            max_running=sizes.running,
            max_model_len=sizes.context,
            graphs=shape.graphs,
            token_graphs=shape.token_graphs,
            draft=shape.speculation.method == "mtp",
            further_fronts=(recipe.serve.fronts or 1) - 1,
        )
        items = fixed_items(shape.shard, shape.formats, weights, load)
        expansion = expansion_item(
            shape.expansion, shape.shard, load.device, load.activations, load.step_tokens
        )
        ordered = ordered_item(shape.ordered, shape.shard, load.step_tokens)
        requests = shape.geometry.request_items(sizes.running)
        more = [item for item in (expansion, ordered) if item.bytes]
        return (items[0], *requests, *items[1:], *more)

    cache, memory, max_model_len = settle_memory(
        recipe, shape.target, shape.geometry, shape.context, asked, fixed, ledger
    )
    note_context(max_model_len, shape.context, shape.shard.config, ledger)
    return replace(cache, tiers=settle_tiers(recipe, ledger)), memory, max_model_len
