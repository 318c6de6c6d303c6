"""How much is taken in at once: context, requests, tokens of a step."""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed.plan import ModelConfig, SchedulerPlan
from tokenspeed.recipe.kinds import format_size
from tokenspeed.recipe.types import Recipe
from tokenspeed.resolve.device import Target
from tokenspeed.resolve.ledger import DEFAULT, HARDWARE, MODEL, RECIPE, Ledger
from tokenspeed.resolve.predict import prompt_tokens_within
from tokenspeed.resolve.roofline import Roofline

CONTEXT_KEY = "model.max_context"
# What does not grow with the context may take this part of a device by default.
SLOT_SHARE = 8
# Prompts beside answers take this part of a step's tokens by default where nobody knows how long
# they take; else as many as for CPUs only in that time behind that many others.
MIXED_PART, MIXED_NAME = 4, "quarter"
MIXED_SECONDS, MIXED_CONTEXT = 0.011, 50_000
# Whole tiles of the products, of which a small one costs what the next larger does.
MIXED_STEP = 64
# Forced tokens in a row, on a GPU. n of them save their request n - 1 steps, and take everybody
# through one step by the graphs of mixed steps. Not measured: short runs stay what they were.
JUMP_AHEAD = 4
# Where prompts pile up, chunks of four times that cost an answer 44 ms and win most of what there
# is to win: a chunk's share of reading weights and caches. The lead is less than the 30 s that a
# class of priority is worth. Both from simulated agents: bench/results/README.md.
BACKLOG_TIMES, CACHE_LEAD_SECONDS = 4, 20.0
BEYOND_KEY = "advanced.beyond_model_context"


@dataclass(frozen=True, slots=True)
class Context:
    """`limit` tokens; `asked` says that the recipe fixed them, so a small cache may not lower
    them."""

    limit: int
    asked: bool


def settle_context(recipe: Recipe, config: ModelConfig, ledger: Ledger) -> Context:
    """The wished context if the model has positions for it, else the model's own."""
    wish, beyond = recipe.model.max_context, recipe.advanced.beyond_model_context
    further = isinstance(wish, int) and wish > config.max_position
    if beyond is not None:
        ledger.note(BEYOND_KEY, beyond, RECIPE, "as the recipe says", BEYOND_KEY)
        if beyond and not further:
            message = (
                f"{CONTEXT_KEY} does not go beyond the model's {config.max_position} positions"
            )
            ledger.fail("TS-R025", BEYOND_KEY, message, "remove the key")
    if further and not beyond:
        ledger.fail(
            "TS-R020",
            CONTEXT_KEY,
            f"{wish} tokens, and the model's positions end at {config.max_position}",
            f"write at most {config.max_position}, or {BEYOND_KEY}: true",
        )
        return Context(config.max_position, asked=False)
    if not isinstance(wish, int):
        return Context(config.max_position, asked=False)
    return Context(wish, asked=True)


def note_context(final: int, context: Context, config: ModelConfig, ledger: Ledger) -> None:
    """Written down once the cache is known, which may lower a context that nobody fixed."""
    field = "scheduler.max_model_len"
    if context.asked:
        ledger.note(field, final, RECIPE, "as the recipe says", CONTEXT_KEY)
    elif final < context.limit:
        why = f"what the cache holds; the model reaches {context.limit}"
        ledger.note(field, final, HARDWARE, why)
    else:
        scaling = "none" if config.rope is None else config.rope.scaling
        scaled = "" if scaling == "none" else f", {scaling} scaling applied"
        ledger.note(field, final, MODEL, f"the model's positions{scaled}")


def settle_limits(
    recipe: Recipe,
    context: Context,
    target: Target,
    request_bytes: int,
    roofline: Roofline,
    ledger: Ledger,
) -> SchedulerPlan:
    """`max_model_len` is the context as far as it is known before the cache. `request_bytes` is
    what one request keeps on a rank however short it is: states and windows."""
    limits, on_cpu = recipe.limits, target.kind == "cpu"
    usual, why = _usual_running(target, request_bytes)
    running = ledger.settle(
        "scheduler.max_running", limits.max_running, usual, HARDWARE, why, "limits.max_running"
    )
    waiting = ledger.settle(
        "scheduler.max_waiting",
        limits.max_waiting,
        1024,
        DEFAULT,
        "a burst may queue; beyond that, requests are refused at once",
        "limits.max_waiting",
    )
    longest = ledger.settle(
        "scheduler.max_wait_seconds",
        recipe.advanced.max_wait,
        None,
        DEFAULT,
        "a request may wait for as long as its client does",
        "advanced.max_wait",
    )
    chunked = ledger.settle(
        "scheduler.chunked_prefill",
        limits.chunked_prefill,
        True,
        DEFAULT,
        "a long prompt does not hold up decodes",
        "limits.chunked_prefill",
    )
    tokens = _settle_step_tokens(recipe, context, target, running, chunked, ledger)
    behind = min(context.limit, MIXED_CONTEXT)
    fast = None if on_cpu else prompt_tokens_within(MIXED_SECONDS, behind, roofline, target)
    mixed = _settle_mixed_tokens(recipe, tokens, fast, chunked, ledger)
    backlog, lead = _settle_backlog(recipe, tokens, mixed, on_cpu, ledger)
    depth = ledger.settle(
        "scheduler.in_flight_depth",
        recipe.advanced.in_flight_depth,
        0 if on_cpu else 1,
        HARDWARE,
        "scheduling and computing share the cores"
        if on_cpu
        else "the next step is scheduled while the GPU runs this one",
        "advanced.in_flight_depth",
    )
    jump_ahead = _settle_jump_ahead(recipe, on_cpu, ledger)
    hang = ledger.settle(
        "scheduler.hang_seconds",
        recipe.advanced.hang,
        600.0 if on_cpu else 120.0,
        HARDWARE,
        "a step of a large model may take minutes on a CPU"
        if on_cpu
        else "the first step may compile kernels",
        "advanced.hang",
    )
    return SchedulerPlan(
        max_running=running,
        max_waiting=waiting,
        max_step_tokens=tokens,
        max_mixed_tokens=mixed,
        max_backlog_tokens=backlog,
        cache_lead_seconds=lead,
        max_model_len=context.limit,
        chunked_prefill=chunked,
        in_flight_depth=depth,
        jump_ahead=jump_ahead,
        hang_seconds=hang,
        max_wait_seconds=longest,
    )


def _settle_jump_ahead(recipe: Recipe, on_cpu: bool, ledger: Ledger) -> int:
    return ledger.settle(
        "scheduler.jump_ahead",
        recipe.advanced.jump_ahead,
        1 if on_cpu else JUMP_AHEAD,
        HARDWARE,
        "tokens that a grammar forces are computed in one step"
        if on_cpu
        else "fewer forced tokens do not pay for a step outside the decode graphs",
        "advanced.jump_ahead",
    )


def _usual_running(target: Target, request_bytes: int) -> tuple[int, str]:
    if target.kind == "cpu":
        return 32, "more rows hardly help on a CPU"
    running, share = 256, target.memory_bytes // SLOT_SHARE
    while running > 1 and running * request_bytes > share:
        running //= 2
    if running < 256:
        size = format_size(request_bytes)
        return running, f"each keeps {size}, and all of them an eighth of the device at most"
    return running, "enough rows to saturate the weights' bandwidth"


def _settle_mixed_tokens(
    recipe: Recipe, tokens: int, fast: int | None, chunked: bool, ledger: Ledger
) -> int:
    """More than a step holds is as good as a step: the scheduler takes the smaller. `fast`: what
    the device computes in `MIXED_SECONDS`."""
    usual, why = tokens, "an unchunked prompt needs a whole step"
    if chunked and fast is None:
        usual = max(1, tokens // MIXED_PART)
        why = f"prompts may delay decodes by a {MIXED_NAME} of a full step"
    elif chunked and fast is not None:
        usual = min(tokens, max(MIXED_STEP, fast // MIXED_STEP * MIXED_STEP))
        why = f"prompts may delay decodes by {MIXED_SECONDS * 1e3:.0f} ms"
    return ledger.settle(
        "scheduler.max_mixed_tokens",
        recipe.limits.max_mixed_tokens,
        usual,
        DEFAULT,
        why,
        "limits.max_mixed_tokens",
    )


def _settle_backlog(
    recipe: Recipe, tokens: int, mixed: int, on_cpu: bool, ledger: Ledger
) -> tuple[int, float]:
    """Prompt tokens beside answers where prompts pile up, and how far cached ones go first."""
    why = "larger chunks do not make prefill faster here"
    if not on_cpu:
        why = "larger chunks where prompts pile up, at the cost of decodes"
    backlog = ledger.settle(
        "scheduler.max_backlog_tokens",
        recipe.advanced.max_backlog_tokens,
        mixed if on_cpu else max(mixed, min(tokens, BACKLOG_TIMES * mixed)),
        DEFAULT,
        why,
        "advanced.max_backlog_tokens",
    )
    if backlog < mixed:
        ledger.fail(
            "TS-R021",
            "advanced.max_backlog_tokens",
            f"{backlog} tokens where prompts pile up, and {mixed} where they do not",
            f"write at least {mixed}, or limits.max_mixed_tokens: {backlog}",
        )
    lead = ledger.settle(
        "scheduler.cache_lead_seconds",
        recipe.advanced.cache_lead,
        CACHE_LEAD_SECONDS,
        DEFAULT,
        "prompts with a cached prefix overtake others, which wait at most that much longer",
        "advanced.cache_lead",
    )
    return backlog, lead


def _settle_step_tokens(
    recipe: Recipe, context: Context, target: Target, running: int, chunked: bool, ledger: Ledger
) -> int:
    key = "limits.max_step_tokens"
    usual = 512 if target.kind == "cpu" else 8192
    least = max(running, 1 if chunked else context.limit)
    why = (
        "a step of prompt tokens stays short enough for decodes"
        if target.kind == "cpu"
        else "enough prompt tokens to be compute-bound"
    )
    if least > usual:
        why = "a whole prompt fits" if not chunked else "every running request has its token"
    tokens = ledger.settle(
        "scheduler.max_step_tokens",
        recipe.limits.max_step_tokens,
        max(usual, least),
        HARDWARE,
        why,
        key,
    )
    if tokens < running:
        ledger.fail(
            "TS-R021",
            key,
            f"{tokens} tokens a step, for {running} running requests that need one each",
            f"write at least {running}, or limits.max_running: {tokens}",
        )
    elif tokens < least:
        ledger.fail(
            "TS-R021",
            key,
            f"{tokens} tokens a step, and without chunks a prompt may have {context.limit}",
            f"write at least {least}, or limits.chunked_prefill: true, "
            f"or model.max_context: {tokens}",
        )
    return tokens
