"""What /metrics says. Every name, kind and meaning is in the two tables below.

Values of the engine are its true state at the moment of the scrape, asked from the worker; when
it does not answer they are left out rather than frozen. Counters go on from where they were when
a worker is replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, Info, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from tokenspeed.wire import EngineStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["gauge", "counter"]

# field of EngineStats, name (counters get "_total"), kind, meaning
ENGINE_METRICS: tuple[tuple[str, str, Kind, str], ...] = (
    ("running", "tokenspeed_requests_running", "gauge", "Requests that are running."),
    ("waiting", "tokenspeed_requests_waiting", "gauge", "Requests that are waiting."),
    ("slots_used", "tokenspeed_slots_used", "gauge", "Batch slots in use."),
    ("blocks_total", "tokenspeed_cache_blocks", "gauge", "Cache blocks in total."),
    ("blocks_used", "tokenspeed_cache_blocks_used", "gauge", "Cache blocks held by requests."),
    (
        "blocks_cached",
        "tokenspeed_cache_blocks_reusable",
        "gauge",
        "Free cache blocks that still hold a reusable prefix.",
    ),
    ("steps", "tokenspeed_steps", "counter", "Engine steps."),
    ("step_seconds_sum", "tokenspeed_step_seconds", "counter", "Seconds spent in engine steps."),
    ("prompt_tokens", "tokenspeed_prompt_tokens", "counter", "Prompt tokens admitted."),
    (
        "cached_prompt_tokens",
        "tokenspeed_cached_prompt_tokens",
        "counter",
        "Prompt tokens served from the prefix cache.",
    ),
    ("generated_tokens", "tokenspeed_generated_tokens", "counter", "Output tokens."),
    (
        "forced_tokens",
        "tokenspeed_forced_tokens",
        "counter",
        "Output tokens forced by a grammar instead of sampled.",
    ),
    ("preemptions", "tokenspeed_preemptions", "counter", "Requests preempted."),
    ("requests_finished", "tokenspeed_requests_finished", "counter", "Requests completed."),
    ("requests_aborted", "tokenspeed_requests_aborted", "counter", "Requests ended early."),
    (
        "bad_frames",
        "tokenspeed_worker_bad_frames",
        "counter",
        "Malformed messages dropped by the worker.",
    ),
)

# field of FrontState, name, kind, meaning
FRONT_METRICS: tuple[tuple[str, str, Kind, str], ...] = (
    ("ready", "tokenspeed_ready", "gauge", "1 when requests are accepted."),
    ("fronts", "tokenspeed_fronts", "gauge", "HTTP processes that respond."),
    ("draining", "tokenspeed_draining", "gauge", "1 while draining: new requests are refused."),
    ("open_requests", "tokenspeed_open_requests", "gauge", "Sequences in progress."),
    (
        "heartbeat_age",
        "tokenspeed_heartbeat_age_seconds",
        "gauge",
        "Seconds since the engine's last heartbeat.",
    ),
    (
        "bad_frames",
        "tokenspeed_front_bad_frames",
        "counter",
        "Malformed messages dropped by the front.",
    ),
    (
        "worker_starts",
        "tokenspeed_worker_starts",
        "counter",
        "Workers started, including the first.",
    ),
    ("gpu_faults", "tokenspeed_gpu_faults", "counter", "GPU faults reported by the driver."),
)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontState:
    """What the front itself knows at the moment of a scrape."""

    ready: bool
    draining: bool
    open_requests: int
    heartbeat_age: float
    bad_frames: int
    worker_starts: int
    gpu_faults: int
    fronts: int = 1


def combined(first: FrontState, others: Iterable[FrontState]) -> FrontState:
    """That of all fronts of an engine; `first` knows of workers and GPUs."""
    for other in others:
        first = replace(
            first,
            fronts=first.fronts + other.fronts,
            open_requests=first.open_requests + other.open_requests,
            heartbeat_age=max(first.heartbeat_age, other.heartbeat_age),
            bad_frames=first.bad_frames + other.bad_frames,
        )
    return first


class Count(NamedTuple):
    """One series of a counter or histogram: its metric, its own name, its labels by name."""

    metric: str
    name: str
    labels: tuple[tuple[str, str], ...]
    value: float


Counts = tuple[Count, ...]


def added(several: Iterable[Counts]) -> Counts:
    """The sums of what several fronts counted, in the order of their first appearance."""
    sums: dict[tuple[str, str, tuple[tuple[str, str], ...]], float] = {}
    for counts in several:
        for metric, name, labels, value in counts:
            sums[metric, name, labels] = sums.get((metric, name, labels), 0.0) + value
    return tuple(Count(*series, value) for series, value in sums.items())


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._state = _StateCollector()
        self._registry.register(self._state)
        self._info = Info(
            "tokenspeed_build", "Version, model and plan that are running.", registry=self._registry
        )
        self.http_requests = Counter(
            "tokenspeed_http_requests",
            "HTTP responses by route and status.",
            ["route", "status"],
            registry=self._registry,
        )
        self.requests_cancelled = Counter(
            "tokenspeed_requests_cancelled",
            "HTTP requests whose client disconnected before the end.",
            registry=self._registry,
        )
        self.first_token_seconds = Histogram(
            "tokenspeed_time_to_first_token_seconds",
            "Time from a request's arrival to its first token.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.token_seconds = Histogram(
            "tokenspeed_time_per_output_token_seconds",
            "Mean time between output tokens of a request, after the first.",
            buckets=_TOKEN_SECONDS,
            registry=self._registry,
        )
        self.request_seconds = Histogram(
            "tokenspeed_request_seconds",
            "Time from a request's arrival to the end of its response.",
            buckets=_SECONDS,
            registry=self._registry,
        )

    def describe(self, *, version: str, model: str, plan: str) -> None:
        """What runs, as labels of tokenspeed_build_info."""
        self._info.info({"version": version, "model": model, "plan": plan})

    def counts(self) -> Counts:
        """What this front counted of its requests so far."""
        counted = (
            self.http_requests,
            self.requests_cancelled,
            self.first_token_seconds,
            self.token_seconds,
            self.request_seconds,
        )
        return tuple(
            Count(metric.name, sample.name, _labels(sample), sample.value)
            for one in counted
            for metric in one.collect()
            for sample in metric.samples
            if not _is_created(sample)
        )

    def render(
        self, front: FrontState, engine: EngineStats | None, others: Sequence[Counts] = ()
    ) -> bytes:
        """The text of a scrape. `engine` is None when the worker does not answer; `others` are
        added to what was counted here."""
        self._state.observe(front, engine)
        return generate_latest(_Shown(self._registry, added(others)))


class _Shown(CollectorRegistry):
    """Adds what others counted, and leaves out when each series began: in this format those would
    be series of their own."""

    def __init__(self, registry: CollectorRegistry, others: Counts) -> None:
        super().__init__()
        self._source = registry
        self._others = others

    def collect(self) -> Iterator[Metric]:
        for metric in self._source.collect():
            more = {
                (name, labels): value
                for of, name, labels, value in self._others
                if of == metric.name
            }
            own = [sample for sample in metric.samples if not _is_created(sample)]
            metric.samples = [
                s._replace(value=s.value + more.pop((s.name, _labels(s)), 0.0)) for s in own
            ]
            metric.samples += [
                Sample(name, dict(labels), value) for (name, labels), value in more.items()
            ]
            yield metric


def _is_created(sample: Sample) -> bool:
    return sample.name.endswith("_created")


def _labels(sample: Sample) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(sample.labels.items()))


class _StateCollector(Collector):
    def __init__(self) -> None:
        self._front: FrontState | None = None
        self._engine: EngineStats | None = None
        self._last = EngineStats()
        self._before: dict[str, float] = {}

    def observe(self, front: FrontState, engine: EngineStats | None) -> None:
        self._front = front
        self._engine = engine
        if engine is None:
            return
        if engine.steps < self._last.steps or engine.prompt_tokens < self._last.prompt_tokens:
            # A new worker counts from zero: what the old one had counted stays counted.
            for field, _, kind, _ in ENGINE_METRICS:
                if kind == "counter":
                    before = self._before.get(field, 0.0)
                    self._before[field] = before + getattr(self._last, field)
        self._last = engine

    def collect(self) -> Iterator[Metric]:
        if self._front is not None:
            for field, name, kind, meaning in FRONT_METRICS:
                yield _family(name, kind, meaning, float(getattr(self._front, field)))
        if self._engine is not None:
            for field, name, kind, meaning in ENGINE_METRICS:
                value = float(getattr(self._engine, field)) + self._before.get(field, 0.0)
                yield _family(name, kind, meaning, value)

    def describe(self) -> Iterator[Metric]:
        """Names only, so that registering needs no values."""
        for _, name, kind, meaning in (*FRONT_METRICS, *ENGINE_METRICS):
            yield _family(name, kind, meaning, None)


def _family(name: str, kind: Kind, meaning: str, value: float | None) -> Metric:
    if kind == "gauge":
        return GaugeMetricFamily(name, meaning, value=value)
    return CounterMetricFamily(name, meaning, value=value)
