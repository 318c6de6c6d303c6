"""What a recipe may ask for beyond what this build runs: planned whole, with the lack as data."""

from __future__ import annotations

from tokenspeed.plan import ModelConfig, SchedulerPlan, SpeculationPlan, TierPlan
from tokenspeed.recipe.types import Recipe
from tokenspeed.resolve.facts import BuildFacts
from tokenspeed.resolve.ledger import DEFAULT, RECIPE, Ledger

# Tokens guessed ahead where the recipe only names who guesses.
DRAFT_TOKENS = 3
# A host tier or a disk tier without a size would be a guess about other programs' needs.
NEEDS_DRAFT = ("draft", "eagle3")


def settle_tiers(recipe: Recipe, ledger: Ledger) -> tuple[TierPlan, ...]:
    """Tiers in the order of their speed. Each needs its size."""
    tiers = recipe.kv.tiers
    found: list[TierPlan] = []
    if tiers is None or (tiers.host is None and tiers.disk is None):
        ledger.note("cache.tiers", None, DEFAULT, "device memory only")
        return ()
    if tiers.host is not None:
        found.append(TierPlan(name="host", bytes=_size("host", tiers.host.size, ledger)))
    if tiers.disk is not None:
        path = ledger.settle(
            "cache.tiers.disk.path",
            tiers.disk.path,
            "kv",
            DEFAULT,
            "in the instance's cache folder",
            "kv.tiers.disk.path",
        )
        size = _size("disk", tiers.disk.size, ledger)
        found.append(TierPlan(name="disk", bytes=size, path=path))
    for tier in found:
        ledger.need(f"a {tier.name} tier", "this build keeps the KV cache in device memory only")
    return tuple(found)


def _size(name: str, size: int | None, ledger: Ledger) -> int:
    key = f"kv.tiers.{name}.size"
    if size is None:
        ledger.fail("TS-R025", key, f"the {name} tier has no size", f"write {key}: 64GiB")
        return 0
    ledger.note(f"cache.tiers.{name}.bytes", size, RECIPE, "as the recipe says", key)
    return size


def settle_speculation(recipe: Recipe, config: ModelConfig, ledger: Ledger) -> SpeculationPlan:
    """Who guesses ahead, and how far."""
    wish = recipe.speculation
    why = "no speculative decoding"
    method = ledger.settle(
        "speculation.method", wish.method, "none", DEFAULT, why, "speculation.method"
    )
    if method == "none":
        for name in ("tokens", "draft"):
            if ledger.asks(f"speculation.{name}"):
                ledger.fail(
                    "TS-R025",
                    f"speculation.{name}",
                    "speculative decoding is off: speculation.method is none",
                    "write speculation.method: ngram, or remove the key",
                )
        return SpeculationPlan()
    if method in NEEDS_DRAFT and wish.draft is None:
        key = "speculation.draft"
        hint = f"write {key}: hf:org/name"
        ledger.fail("TS-R025", key, f"{method} needs the source of a draft model", hint)
    if method == "mtp" and not config.draft_layers:
        key = "speculation.method"
        ledger.fail("TS-R025", key, "the model has no draft layers", "write ngram, or none")
    tokens = ledger.settle(
        "speculation.num_tokens",
        wish.tokens,
        DRAFT_TOKENS,
        DEFAULT,
        "longer drafts are rarely accepted whole",
        "speculation.tokens",
    )
    if wish.draft is not None:
        key = "speculation.draft"
        ledger.note(key, wish.draft, RECIPE, "as the recipe says", key)
    ledger.need("speculation", f"this build has no speculative decoding ({method})")
    return SpeculationPlan(method=method, num_tokens=tokens, draft=wish.draft)


def settle_graphs(recipe: Recipe, kind: str, max_running: int, ledger: Ledger) -> tuple[int, ...]:
    """Batch sizes that get a captured graph, ascending."""
    key, wish = "graphs.batch_sizes", recipe.graphs.batch_sizes
    source, why = DEFAULT, "a decode step is one graph launch, padded to the next size"
    if wish is not None:
        source, why = RECIPE, "as the recipe says"
        sizes = tuple(sorted(set(wish)))
    elif kind == "cuda":
        sizes = _graph_sizes(max_running)
    else:
        sizes, why = (), "no graphs: kernels are launched one at a time"
    ledger.note("graphs", tuple(map(str, sizes)) or None, source, why, key)
    if sizes and kind != "cuda":
        ledger.need("device graphs", f"this build launches one kernel at a time on {kind}")
    return sizes


def _graph_sizes(max_running: int) -> tuple[int, ...]:
    """Dense where a row of padding costs a large share of the step; the last holds every row."""
    steps = (1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, max_running, 32))
    return (*(size for size in steps if size < max_running), max_running)


# Beyond, a step computes for longer than its kernels take to launch one by one.
_MOST_GRAPH_TOKENS = 2048


def settle_token_graphs(
    recipe: Recipe, kind: str, scheduler: SchedulerPlan, ledger: Ledger
) -> tuple[int, ...]:
    """Numbers of tokens that get a captured graph for steps with prompts, ascending."""
    key, wish = "graphs.token_counts", recipe.graphs.token_counts
    most = scheduler.max_step_tokens
    source, why = DEFAULT, "a step with a short prompt is one graph launch"
    if wish is not None:
        source, why = RECIPE, "as the recipe says"
        counts = tuple(sorted(set(wish)))
        if counts and counts[-1] > most:
            message = f"a graph for {counts[-1]} tokens, and a step has {most} at most"
            ledger.fail("TS-R025", key, message, f"write at most {most}")
    elif kind == "cuda":
        counts = _token_counts(min(most, _MOST_GRAPH_TOKENS))
    else:
        counts, why = (), "no graphs: kernels are launched one at a time"
    ledger.note("token_graphs", tuple(map(str, counts)) or None, source, why, key)
    if counts and kind != "cuda":
        ledger.need("device graphs", f"this build launches one kernel at a time on {kind}")
    return counts


def _token_counts(most: int) -> tuple[int, ...]:
    """Whole tiles of the products; farther apart where a tile more is a small share."""
    steps = (64, *range(128, 1024, 128), *range(1024, most, 256))
    return (*(count for count in steps if count < most), most)


def settle_role(recipe: Recipe, ledger: Ledger) -> str:
    key = "disaggregation.role"
    why = "prefill and decode on the same ranks"
    role = ledger.settle("role", recipe.disaggregation.role, "both", DEFAULT, why, key)
    if role != "both":
        ledger.need("disaggregation", f"this build cannot run {role} alone")
    return role


def settle_metrics_port(recipe: Recipe, ledger: Ledger) -> int | None:
    """None: /metrics is served on the API's port."""
    key, port = "observability.metrics_port", recipe.observability.metrics_port
    if port is None:
        ledger.note("serve.metrics_port", None, DEFAULT, "/metrics on the API's port")
        return None
    ledger.note("serve.metrics_port", port, RECIPE, "as the recipe says", key)
    return port


def settle_traces(recipe: Recipe, build: BuildFacts, ledger: Ledger) -> str | None:
    """None: tracing is off."""
    key, address = "observability.traces", recipe.observability.traces
    if address is None:
        ledger.note("serve.traces", None, DEFAULT, "tracing is off")
        return None
    ledger.note("serve.traces", address, RECIPE, "as the recipe says", key)
    if not build.traces:
        ledger.need(
            "traces",
            f"{key} needs the extra `traces`, which is not installed: pip install "
            "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
        )
    return address


def settle_token(recipe: Recipe, source_kind: str, ledger: Ledger) -> str | None:
    """Where the access token of the model's source is; the token itself is nobody's plan."""
    key, token = "model.token", recipe.model.token
    if token is None:
        return None
    ledger.note(key, token, RECIPE, "as the recipe says", key)
    if source_kind != "hf":
        hint = "remove the key"
        ledger.fail("TS-R025", key, "only a model repository (hf:) asks for a token", hint)
    return token
