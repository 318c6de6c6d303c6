"""The HTTP side: address, bounds, and what a request gets for fields it leaves out."""

from __future__ import annotations

from tokenspeed.plan import SamplingDefaults, ServePlan
from tokenspeed.recipe.types import DEFAULT_PORT, Recipe, Sampling
from tokenspeed.resolve.ledger import DEFAULT, RECIPE, Ledger


def settle_serve(recipe: Recipe, ledger: Ledger) -> ServePlan:
    serve = recipe.serve
    return ServePlan(
        host=ledger.settle(
            "serve.host", serve.host, "127.0.0.1", DEFAULT, "this machine only", "serve.host"
        ),
        port=ledger.settle(
            "serve.port", serve.port, DEFAULT_PORT, DEFAULT, "the default port", "serve.port"
        ),
        drain_seconds=ledger.settle(
            "serve.drain_seconds",
            serve.drain,
            30.0,
            DEFAULT,
            "most requests finish within it, and service managers wait longer",
            "serve.drain",
        ),
        max_body_bytes=ledger.settle(
            "serve.max_body_bytes",
            recipe.advanced.max_body,
            32 * 2**20,
            DEFAULT,
            "a conversation of a million tokens fits",
            "advanced.max_body",
        ),
        max_choices=ledger.settle(
            "serve.max_choices",
            recipe.advanced.max_choices,
            16,
            DEFAULT,
            "one request must not fill the engine",
            "advanced.max_choices",
        ),
        log_requests=ledger.settle(
            "serve.log_requests",
            serve.log_requests,
            True,
            DEFAULT,
            "one line each, never the text",
            "serve.log_requests",
        ),
        api_keys=_settle_api_keys(serve.api_keys, ledger),
        sampling=_settle_sampling(serve.sampling, ledger),
        tls=_settle_tls(serve.tls, ledger),
        timeout_seconds=ledger.settle(
            "serve.timeout_seconds",
            recipe.advanced.timeout,
            None,
            DEFAULT,
            "no limit while the client waits",
            "advanced.timeout",
        ),
        fronts=ledger.settle(
            "serve.fronts",
            serve.fronts,
            1,
            DEFAULT,
            "one HTTP process keeps up with most engines",
            "serve.fronts",
        ),
    )


def _settle_tls(written: tuple[str, ...] | None, ledger: Ledger) -> tuple[str, ...]:
    key = "serve.tls"
    if written is None:
        ledger.note(key, None, DEFAULT, "plain HTTP")
        return ()
    ledger.note(key, written, RECIPE, "as the recipe says", key)
    if any(reference.startswith("env:") for reference in written):
        hint = "write file:/path or credential:NAME"
        ledger.fail("TS-R025", key, "TLS is read from files, not from the environment", hint)
    return written


def _settle_api_keys(written: tuple[str, ...] | None, ledger: Ledger) -> tuple[str, ...]:
    """References only: a plan is printed, compared and kept."""
    key = "serve.api_keys"
    if written is None:
        ledger.note(key, None, DEFAULT, "no keys required")
        return ()
    ledger.note(key, written, RECIPE, "as the recipe says", key)
    return written


def _settle_sampling(wishes: Sampling | None, ledger: Ledger) -> SamplingDefaults:
    """The model's own distribution unless the recipe says otherwise; what the model's files
    suggest is not followed behind the operator's back."""
    why = "the model's distribution as it is"

    def number(name: str, default: float) -> float:
        wish: float | None = getattr(wishes, name) if wishes is not None else None
        key = f"serve.sampling.{name}"
        return ledger.settle(key, wish, default, DEFAULT, why, key)

    top_k = wishes.top_k if wishes is not None else None
    max_tokens = wishes.max_tokens if wishes is not None else None
    key = "serve.sampling.max_tokens"
    if max_tokens is None:
        ledger.note(key, None, DEFAULT, "up to the context limit")
    else:
        ledger.note(key, max_tokens, RECIPE, "as the recipe says", key)
    return SamplingDefaults(
        temperature=number("temperature", 1.0),
        top_p=number("top_p", 1.0),
        top_k=ledger.settle("serve.sampling.top_k", top_k, 0, DEFAULT, why, "serve.sampling.top_k"),
        min_p=number("min_p", 0.0),
        repetition_penalty=number("repetition_penalty", 1.0),
        max_tokens=max_tokens,
    )
