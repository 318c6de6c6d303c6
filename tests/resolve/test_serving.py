"""The HTTP side of a plan."""

from __future__ import annotations

from tests.resolve.conftest import SMALL, Resolver
from tokenspeed.hardware.types import Hardware


def test_defaults_are_safe(resolved: Resolver, cpu: Hardware) -> None:
    serve = resolved(SMALL, cpu).plan.serve
    assert serve.host == "127.0.0.1"
    assert serve.sampling.temperature == 1.0
    assert serve.sampling.max_tokens is None


def test_false_zero_and_sizes_arrive(resolved: Resolver, cpu: Hardware) -> None:
    serve = resolved(
        SMALL,
        cpu,
        "serve={log_requests: false, port: 0, drain: 500ms}",
        "advanced={max_body: 1MiB}",
        "serve.sampling={temperature: 0, max_tokens: 7}",
    ).plan.serve
    assert (serve.log_requests, serve.port, serve.drain_seconds) == (False, 0, 0.5)
    assert serve.max_body_bytes == 2**20
    assert (serve.sampling.temperature, serve.sampling.max_tokens) == (0.0, 7)
