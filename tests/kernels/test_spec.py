from __future__ import annotations

import pytest
from tokenspeed_kernels.spec import (
    Device,
    DeviceRule,
    KernelSpec,
    anything,
    between,
    multiple_of,
    one_of,
)

CPU = Device("cpu", "x86_64", frozenset({"avx2"}))


def spec(**requires: object) -> KernelSpec:
    return KernelSpec(
        name="k",
        module="m",
        attribute="a",
        device=DeviceRule(("cpu",)),
        requires=requires,  # type: ignore[arg-type]
        why="",
    )


@pytest.mark.parametrize(
    ("predicate", "good", "bad"),
    [
        (one_of("float32", "bfloat16"), ["float32", "bfloat16"], ["float16", 32]),
        (one_of(True, False), [True, False], [1, 0]),
        (one_of(1), [1], [True, "1"]),
        (between(1, 128), [1, 64, 128], [0, 129, "64", True]),
        (multiple_of(32), [32, 576], [0, -32, 33, "32"]),
        (anything(), [0, "x", True], []),
    ],
)
def test_predicates(predicate, good, bad):
    assert all(predicate.holds(value) for value in good)
    assert not any(predicate.holds(value) for value in bad)


def test_a_fact_that_is_not_stated_is_refused():
    assert spec(a=anything()).miss({"a": 1, "b": 2}, CPU) == "does not state b"


def test_a_fact_that_the_need_leaves_open_is_refused():
    assert spec(a=anything(), b=anything()).miss({"a": 1}, CPU) == (
        "needs b, which the need leaves open"
    )


def test_the_miss_names_requirement_and_value():
    assert spec(a=multiple_of(32)).miss({"a": 33}, CPU) == "needs a a multiple of 32, not 33"
    assert spec(a=one_of("x", "y")).miss({"a": "z"}, CPU) == "needs a x or y, not z"
    assert spec(a=multiple_of(32)).miss({"a": 64}, CPU) is None


def test_long_choices_are_told_as_spans():
    assert one_of(*range(1, 65), 96, 128).text == "1 to 64 or 96 or 128"
    assert one_of(*range(16, 257, 16)).text == "16 to 256 in steps of 16"
    assert one_of(16, 32, 64, 128).text == "16 or 32 or 64 or 128"
    assert one_of(64, 1, 2, 3, True).text == "64 or 1 or 2 or 3 or True"


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (DeviceRule(("cuda",)), "runs on cuda, the device is cpu"),
        (DeviceRule(("cpu",), ("aarch64",)), "runs on aarch64, the device is x86_64"),
        (
            DeviceRule(("cpu",), None, ("avx2", "avx512f", "fma")),
            "needs avx512f, fma, which the device lacks",
        ),
        (DeviceRule(("cpu", "cuda"), None, ("avx2",)), None),
    ],
)
def test_device_rules(rule, reason):
    assert rule.miss(CPU) == reason
