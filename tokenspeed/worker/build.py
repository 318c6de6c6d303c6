"""From a Plan and a model folder to a loop that is ready to take requests."""

from __future__ import annotations

import dataclasses
import importlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import torch

from tokenspeed.cache.groups import layer_groups
from tokenspeed.cache.kv import KvCache, allocate
from tokenspeed.errors import Problem, ResolveError
from tokenspeed.grammar.vocabulary import Vocabulary
from tokenspeed.layers.expert_load import ExpertLoad
from tokenspeed.layers.kernels import Kernels
from tokenspeed.models.decoder import Decoder
from tokenspeed.models.registry import parameters
from tokenspeed.plan import KernelChoice, ModelPlan, Moe, Plan
from tokenspeed.scheduler import Scheduler, SchedulerConfig
from tokenspeed.stages import Report
from tokenspeed.tokenizer import load_text_model
from tokenspeed.weights.dummy import dummy_weights
from tokenspeed.weights.kv_scales import Pair, read_kv_scales
from tokenspeed.weights.load import load_weights
from tokenspeed.weights.parameter import Progress, Weights
from tokenspeed.weights.road import CudaRoad
from tokenspeed.wire import Capacity
from tokenspeed.worker.checks import Limits
from tokenspeed.worker.graphs import CompileAll, Graphs
from tokenspeed.worker.guides import Guides
from tokenspeed.worker.inputs import Inputs
from tokenspeed.worker.loop import Loop
from tokenspeed.worker.parent import die_with_parent
from tokenspeed.worker.picks import TORCH_PICKS, Picks
from tokenspeed.worker.runner import Runner
from tokenspeed.worker.sampler import Sampler
from tokenspeed.worker.stream import CpuStream, CudaStream, Stream
from tokenspeed.worker.upload import Upload

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tokenspeed.worker.mapped import Landing

log = logging.getLogger(__name__)

# Masks take some 50 us each; more threads than this wait for one another.
MASK_THREADS = 8

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# A CPU copies a block of 64 tokens in the time in which it computes one (SmolLM2: 1.7 against 1.9
# ms). On a GPU a copy is two launches for each tensor of the cache, and what it would save was not
# measured: none there.
_MIN_TAIL_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Built:
    """`scheduler` is for audits; only the loop may drive it. `runner` and `cache` are for
    measurements that prepare what they measure, and with them `guides`."""

    loop: Loop
    scheduler: Scheduler
    runner: Runner
    guides: Guides
    cache: KvCache
    capacity: Capacity


def build(
    plan: Plan,
    model_dir: Path,
    report: Report,
    kernels_of: Callable[[Sequence[KernelChoice]], Kernels] = Kernels,
) -> Built:
    """Load the model and allocate everything that the plan promised. `kernels_of`: measurements
    put their own between the layers and what the plan chose.

    Raises CheckpointError for bad weights, ResolveError for a plan that this process cannot run.
    """
    _require_runnable(plan)
    with _compiling(plan) as compile_all:
        return _built(plan, model_dir, report, kernels_of, compile_all)


def _compiling(plan: Plan) -> AbstractContextManager[CompileAll[DataclassInstance] | None]:
    """Before the device is started: processes that compile kernels must not have one."""
    if not (plan.graphs or plan.token_graphs):
        return nullcontext()
    # Needs triton, which a CPU's worker does without.
    compiler = importlib.import_module("tokenspeed_kernels.compile_triton")
    return cast(
        "AbstractContextManager[CompileAll[DataclassInstance]]", compiler.compiling(die_with_parent)
    )


def _built(
    plan: Plan,
    model_dir: Path,
    report: Report,
    kernels_of: Callable[[Sequence[KernelChoice]], Kernels],
    compile_all: CompileAll[DataclassInstance] | None,
) -> Built:
    device = torch.device(plan.device.kind)
    dtype = _DTYPES[plan.device.activations]
    if device.type == "cpu":
        torch.set_num_threads(plan.device.threads)
    else:
        report("starting the device", 0.0)
        torch.empty(1, device=device)
    weights = _weights(plan.model, model_dir, device, dtype, report)
    weight_bytes = weights.bytes
    report("building", 0.0)
    kernels = kernels_of(plan.kernels)
    cache = allocate(plan.cache, plan.model.config, device, _kv_scales(plan, model_dir))
    max_model_len = plan.scheduler.max_model_len
    chunk = plan.expansion.chunk_tokens if plan.expansion is not None else 0
    load = _expert_load(plan, device)
    model = Decoder(plan.model.config, weights, kernels, cache, dtype, max_model_len, chunk, load)
    config = scheduler_config(plan)
    scheduler = Scheduler(config)
    graphs = Graphs(plan.graphs, plan.token_graphs, plan.scheduler.max_running)
    runner = Runner(
        model,
        cache,
        _inputs(plan, scheduler, config, device),
        _sampler(plan, kernels, device),
        _upload(plan, scheduler.block_tables.size, device),
        _stream(plan),
        graphs,
        plan.scheduler.max_step_tokens,
        _landing(plan, device),
    )
    report("building", 1.0)
    if compile_all is not None:
        _prepare_graphs(runner, graphs, report, compile_all)
        # Steps without a graph launch hundreds of kernels.
        importlib.import_module("tokenspeed_kernels.relaunch_triton").remember_launches()
    limits, guides = limits_of(plan), _guides(plan, model_dir)
    if device.type != "cpu":
        # It takes seconds of a large vocabulary, for which streams beside the first grammar would
        # wait; on a CPU the start is what people wait for.
        guides.warm()
    longest_wait = plan.scheduler.max_wait_seconds
    return Built(
        loop=Loop(
            scheduler,
            runner,
            guides,
            limits,
            plan.scheduler.in_flight_depth,
            math.inf if longest_wait is None else longest_wait,
        ),
        scheduler=scheduler,
        guides=guides,
        runner=runner,
        cache=cache,
        capacity=Capacity(
            num_blocks=plan.cache.num_blocks,
            block_size=plan.cache.block_size,
            max_running=plan.scheduler.max_running,
            max_request_tokens=scheduler.config.max_request_tokens,
            weight_bytes=weight_bytes,
            kv_bytes=cache.bytes,
        ),
    )


def _expert_load(plan: Plan, device: torch.device) -> ExpertLoad | None:
    if not plan.expert_load:
        return None
    feeds = [layer.feed_forward for layer in plan.model.config.sequence()]
    moes = {place: feed for place, feed in enumerate(feeds) if isinstance(feed, Moe)}
    return ExpertLoad(tuple(moes), max(moe.experts for moe in moes.values()), device)


def _prepare_graphs(
    runner: Runner, graphs: Graphs, report: Report, compile_all: CompileAll[DataclassInstance]
) -> None:
    """Compiles and captures; the log says what either took."""
    report("compiling kernels", 0.0)
    compiled = runner.compile(compile_all)
    report("compiling kernels", 1.0)
    log.info("kernels", extra={"fields": dataclasses.asdict(compiled)})
    began = time.monotonic()
    runner.capture(lambda done, total: report("capturing graphs", done / total))
    seconds = time.monotonic() - began
    fields = {"graphs": len(graphs), "seconds": seconds, "bytes": graphs.bytes}
    log.info("graphs", extra={"fields": fields})


def limits_of(plan: Plan) -> Limits:
    """What one request may ask of a worker that runs this plan."""
    return Limits(
        vocab_size=plan.model.config.vocab_size,
        max_request_tokens=plan.scheduler.max_model_len,
    )


def _require_runnable(plan: Plan) -> None:
    if plan.parallel.world_size != 1:
        message = f"a worker is one of {plan.parallel.world_size} ranks"
        raise ResolveError(Problem(code="TS-R090", message=message, hint="one rank only"))


def _weights(
    plan: ModelPlan, model_dir: Path, device: torch.device, dtype: torch.dtype, report: Report
) -> Weights:
    wanted = parameters(plan.config, plan.container, plan.formats)
    if plan.load == "dummy":
        drawn: Progress = lambda done, total: report("loading weights", done / total)  # noqa: E731
        return dummy_weights(wanted, device=device, dtype=dtype, progress=drawn)
    began = time.monotonic()

    def read(done: int, total: int) -> None:
        rate = done / max(1e-3, time.monotonic() - began)
        detail = f"{done / 1e9:.1f} of {total / 1e9:.1f} GB  {rate / 1e9:.1f} GB/s"
        report("loading weights", done / total, detail)

    weights = load_weights(
        wanted,
        plan.config,
        model_dir,
        plan.container,
        device=device,
        dtype=dtype,
        progress=read,
        road=CudaRoad(device) if device.type == "cuda" else None,
    )
    seconds = time.monotonic() - began
    size = weights.bytes
    rate = f"{size / seconds / 1e9:.1f} GB/s"
    log.info("weights", extra={"fields": {"bytes": size, "seconds": seconds, "rate": rate}})
    return weights


def _kv_scales(plan: Plan, model_dir: Path) -> tuple[Pair, ...]:
    """Those of the checkpoint for a float8 cache with a scale per layer; the log says how many
    there were. () where nothing is scaled so."""
    cache, model = plan.cache, plan.model
    if cache.dtype != "fp8" or cache.layout == "latent_scaled" or model.load == "dummy":
        return ()
    scales = read_kv_scales(model.config, model_dir, model.container)
    fields = {"loaded": scales.loaded, "of": scales.wanted, "others": 1.0}
    log.info("scales of the float8 cache", extra={"fields": fields})
    return scales.layers


def scheduler_config(plan: Plan) -> SchedulerConfig:
    """What the scheduler of a worker with this plan is made from."""
    return SchedulerConfig(
        num_blocks=plan.cache.pool_blocks,
        block_size=plan.cache.block_size,
        max_running=plan.scheduler.max_running,
        max_step_tokens=plan.scheduler.max_step_tokens,
        max_mixed_tokens=plan.scheduler.max_mixed_tokens,
        max_backlog_tokens=plan.scheduler.max_backlog_tokens,
        cache_lead_s=plan.scheduler.cache_lead_seconds,
        max_waiting=plan.scheduler.max_waiting,
        max_model_len=plan.scheduler.max_model_len,
        prefix_cache=plan.cache.prefix_cache,
        chunked_prefill=plan.scheduler.chunked_prefill,
        in_flight_depth=plan.scheduler.in_flight_depth,
        # Secret, so that no client can craft two prompts of one digest.
        digest_key=(secrets.randbits(64), secrets.randbits(64)),
        groups=layer_groups(plan.model.config).kinds,
        min_tail_tokens=_MIN_TAIL_TOKENS if plan.device.kind == "cpu" else 0,
    )


def _inputs(
    plan: Plan, scheduler: Scheduler, config: SchedulerConfig, device: torch.device
) -> Inputs:
    return Inputs(
        scheduler.block_tables,
        config.row_lengths,
        plan.cache.block_size,
        device,
        device.type == "cuda",
        plan.expansion,
        _picks(device),
    )


def _sampler(plan: Plan, kernels: Kernels, device: torch.device) -> Sampler:
    vocab_size, max_running = plan.model.config.vocab_size, plan.scheduler.max_running
    return Sampler(kernels, vocab_size, max_running, device, _picks(device))


def _picks(device: torch.device) -> Picks:
    if device.type == "cpu":
        return TORCH_PICKS
    # Needs triton, which a CPU's worker does without.
    return cast("Picks", importlib.import_module("tokenspeed.worker.picks_triton").TritonPicks())


def _guides(plan: Plan, model_dir: Path) -> Guides:
    size = plan.model.config.vocab_size

    def load() -> Vocabulary:
        return Vocabulary(load_text_model(model_dir, plan), size)

    # A GPU's plan counts no threads, and such a machine has some to spare.
    threads = min(plan.device.threads or MASK_THREADS, MASK_THREADS)
    return Guides(load, size, threads, plan.scheduler.jump_ahead)


def _stream(plan: Plan) -> Stream:
    return CudaStream() if plan.device.kind == "cuda" else CpuStream(plan.device.threads)


def _upload(plan: Plan, table_entries: int, device: torch.device) -> Upload:
    """Sized for the largest step: per token and per row the arrays of `Inputs` and `Sampler`, and
    every entry of the block tables (its place takes two words) at once."""
    tokens, rows = plan.scheduler.max_step_tokens, plan.scheduler.max_running
    words = 8 * (tokens + 64) + 32 * (2 * rows + 32) + 3 * table_entries
    groups = len(layer_groups(plan.model.config).kinds)
    words += 4 * rows * groups + 8  # copies of tails
    words += 3 * (4 * rows * groups + tokens // plan.cache.block_size + 64) + 8  # room in graphs
    steps = _steps_at_once(plan)
    if device.type == "cpu":
        return Upload(words, steps, device)
    return Upload(words, steps, device, _mapped().copy_words)


def _landing(plan: Plan, device: torch.device) -> Landing | None:
    if device.type == "cpu":
        return None
    return cast(
        "Landing", _mapped().Landing(plan.scheduler.max_running, _steps_at_once(plan), device)
    )


def _steps_at_once(plan: Plan) -> int:
    """Of which what went up or came down may be in use: those in flight, the one whose tokens are
    read and the one being prepared."""
    return plan.scheduler.in_flight_depth + 2


def _mapped() -> ModuleType:
    # Needs triton, which a CPU's worker does without.
    return importlib.import_module("tokenspeed.worker.mapped")
