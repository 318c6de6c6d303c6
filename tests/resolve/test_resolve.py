"""The plan as a whole: pure, complete, explained, and one error for everything that fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.resolve.conftest import DENSE, SMALL, Resolver
from tokenspeed.errors import ResolveError, TokenspeedError
from tokenspeed.hardware.types import Hardware
from tokenspeed.plan import Plan
from tokenspeed.recipe.keys import key_paths
from tokenspeed.recipe.load import show_example


def codes(error: ResolveError) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in error.problems]


@pytest.mark.parametrize("text", [SMALL, DENSE])
def test_equal_inputs_give_equal_plans(resolved: Resolver, h200: Hardware, text: str) -> None:
    first, second = resolved(text, h200), resolved(text, h200)
    assert first == second
    assert first.plan.digest() == second.plan.digest()
    assert Plan.from_json(first.plan.to_json()) == first.plan


def test_the_small_model_on_a_cpu(resolved: Resolver, cpu: Hardware) -> None:
    plan = resolved(SMALL, cpu).plan
    assert (plan.device.kind, plan.device.threads, plan.device.activations) == ("cpu", 1, "float32")
    assert (plan.cache.block_size, plan.cache.dtype) == (16, "float32")
    assert plan.model.container == "gguf"
    assert plan.model.served_names == ("small",)
    assert plan.scheduler.max_model_len == 8192
    assert plan.unmet == ()


def test_the_dense_model_on_a_gpu(resolved: Resolver, h200: Hardware) -> None:
    plan = resolved(DENSE, h200).plan
    assert (plan.device.kind, plan.device.threads, plan.device.activations) == (
        "cuda",
        0,
        "bfloat16",
    )
    assert (plan.cache.block_size, plan.cache.dtype) == (64, "bfloat16")
    assert (plan.model.linear_format, plan.model.container, plan.model.files) == (
        "bfloat16",
        "none",
        (),
    )
    assert plan.scheduler.max_model_len == 40_960


def test_every_field_that_was_decided_has_one_reason(resolved: Resolver, cpu: Hardware) -> None:
    resolution = resolved(SMALL, cpu)
    fields = [decision.field for decision in resolution.decisions]
    assert len(fields) == len(set(fields))
    assert all(decision.reason for decision in resolution.decisions)
    for part in ("scheduler", "cache", "serve", "device"):
        decided = {field for field in fields if field.startswith(f"{part}.")}
        owned = {
            f"{part}.{name}" for name in type(getattr(resolution.plan, part)).__dataclass_fields__
        }
        derived = {"device.name", "device.count", "serve.sampling"}
        derived |= {"cache.bytes_per_block", "cache.groups", "cache.request_slots"}
        assert owned - derived <= decided


# Keys whose example says what a GPU does anyway, or that only a CPU has.
CPU_KEYS = (
    "limits.threads",
    "advanced.in_flight_depth",
    "quantization.activations",
    "kv.dtype",
    "kernels.overrides",
)


@pytest.mark.parametrize("path", [path for path in key_paths() if path != "version"])
def test_every_key_has_a_reader(
    resolved: Resolver, cpu: Hardware, h200: Hardware, path: str, tmp_path: Path
) -> None:
    """A key that changes neither the plan nor its verdict is read by nobody."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/plain.jinja").write_text("{{ messages }}")
    machine = cpu if path in CPU_KEYS else h200
    before = resolved(SMALL, machine).plan
    verdicts = []
    for example in key_paths()[path].examples or ():
        try:
            after = resolved(SMALL, machine, f"{path}={show_example(example)}").plan
        except TokenspeedError as error:
            verdicts.append(str(error))
        else:
            verdicts.append("" if after == before else "another plan")
    assert any(verdicts)


def test_all_failed_constraints_at_once(resolved: Resolver, h200: Hardware) -> None:
    with pytest.raises(ResolveError) as caught:
        resolved(
            DENSE,
            h200,
            "model.max_context=40961",
            "limits.max_step_tokens=100",
            "limits.memory=200GiB",
            "kernels.overrides={linar: x, sample: y}",
            "kv.size=500GiB",
        )
    error = caught.value
    assert error.exit_code == 78
    assert codes(error) == [
        ("TS-R020", "model.max_context"),
        ("TS-R021", "limits.max_step_tokens"),
        ("TS-K002", "kernels.overrides.linar"),
        ("TS-K001", "kernels.overrides.sample"),
        ("TS-M002", "limits.memory"),
        ("TS-M003", "kv.size"),
    ]
    assert all(problem.hint and problem.where for problem in error.problems)


def test_what_this_build_lacks_is_data(resolved: Resolver, h200: Hardware) -> None:
    plan = resolved(DENSE, h200, "parallel.attention.tp=2", "model.load=weights").plan
    assert [unmet.need for unmet in plan.unmet] == [
        "parallel groups",
        "devices",
    ]
    assert plan.parallel.world_size == 2


def test_more_gpus_meet_the_need_for_devices(resolved: Resolver, h200: Hardware) -> None:
    two = replace(h200, gpus=(replace(h200.gpus[0], count=2),))
    plan = resolved(DENSE, two, "parallel.attention.tp=2").plan
    assert [unmet.need for unmet in plan.unmet] == ["parallel groups"]


def test_auto_is_a_wish_with_a_place(resolved: Resolver, cpu: Hardware) -> None:
    """It takes the default and says which line asked for it."""
    (decision,) = (
        d
        for d in resolved(SMALL, cpu, "kv.block_size=auto").decisions
        if d.field == "cache.block_size"
    )
    assert (decision.value, decision.source) == (16, "hardware")
    assert decision.origin == "--set kv.block_size=auto"


def test_origins_of_decisions(resolved: Resolver, cpu: Hardware) -> None:
    decisions = {d.field: d for d in resolved(SMALL + "serve:\n  port: 9000\n", cpu).decisions}
    port, host = decisions["serve.port"], decisions["serve.host"]
    assert (port.value, port.source) == (9000, "recipe")
    assert port.origin is not None
    assert port.origin.endswith("recipe.yaml:6:9")
    assert (host.source, host.origin) == ("default", None)


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("kv.prefix_cache", "cache.prefix_cache"),
        ("limits.chunked_prefill", "scheduler.chunked_prefill"),
        ("serve.log_requests", "serve.log_requests"),
    ],
)
def test_flags_arrive_in_the_plan(
    resolved: Resolver, cpu: Hardware, key: str, field: str, value: bool
) -> None:
    """C01: whatever the value, it is applied, and shown as the recipe's."""
    resolution = resolved(SMALL, cpu, f"{key}={str(value).lower()}")
    (decision,) = (d for d in resolution.decisions if d.field == field)
    assert (decision.value, decision.source) == (value, "recipe")
    part, _, name = field.partition(".")
    assert getattr(getattr(resolution.plan, part), name) is value
