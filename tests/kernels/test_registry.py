from __future__ import annotations

import itertools
import subprocess
import sys

import pytest
from tokenspeed_kernels import registry
from tokenspeed_kernels.spec import AVX2, AVX512, TRITON, Device

FULL = Device(
    "cpu",
    "x86_64",
    frozenset(
        ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"]
    ),
)
PLAIN = Device("cpu", "x86_64")
CUDA = Device("cuda", "sm_90")
Q4 = {"weight_format": "q4_1", "activations": "float32", "in_features": 576}
ALL = [(op, spec) for op in registry.ops() for spec in registry.specs(op)]


def test_names_are_unique():
    names = [spec.name for _, spec in ALL]
    assert len(names) == len(set(names))
    assert len(registry.ops()) == len(set(registry.ops()))


@pytest.mark.parametrize("op", registry.ops())
def test_a_table_ends_with_its_one_reference(op):
    flags = [spec.is_reference for spec in registry.specs(op)]
    assert flags == [False] * (len(flags) - 1) + [True]


@pytest.mark.parametrize(("op", "spec"), ALL, ids=[spec.name for _, spec in ALL])
def test_a_row_states_the_fields_of_its_op_and_imports(op, spec):
    assert set(spec.requires) == set(registry.need_fields(op))
    assert spec.why
    assert callable(registry.load(spec.name))


@pytest.mark.parametrize(
    ("device", "kernel"),
    [
        (FULL, "linear_int16_avx512_vnni"),
        (Device("cpu", "x86_64", frozenset({"avx2", "fma", "f16c"})), "linear_int16_avx2"),
        (PLAIN, "linear_int16_portable"),
        (Device("cpu", "aarch64"), "linear_int16_portable"),
        (CUDA, "linear_reference"),
    ],
)
def test_the_first_that_fits_is_taken(device, kernel):
    assert registry.find("linear", Q4, device).spec.name == kernel


def _some(predicate):
    """Values that meet it, the ends of many."""
    if predicate.choices is not None:
        few = len(predicate.choices) < 12
        return predicate.choices if few else (predicate.choices[0], predicate.choices[-1])
    if predicate.divisor is not None:
        return predicate.divisor, 17 * predicate.divisor
    ends = (predicate.low, predicate.high)
    return tuple(end for end in ends if end is not None) or ("other", 3)


def _is_taken(op, spec):
    """Whether there are a device and a need that the kernel is chosen for."""
    devices = (FULL, Device("cpu", "x86_64", AVX512.features), PLAIN,
               Device("cpu", "x86_64", AVX2.features), Device("cuda", "sm_80"),
               *(Device("cuda", arch) for arch in TRITON.archs))  # fmt: skip
    here = [device for device in devices if spec.device.miss(device) is None]
    for values in itertools.product(*map(_some, spec.requires.values())):
        need = dict(zip(spec.requires, values, strict=True))
        for device, ordered in itertools.product(here, (False, True)):
            if ordered <= spec.ordered:
                found = registry.find(op, need, device, ordered=ordered)
                if found.spec == spec:
                    return True
    return False


def test_what_is_taken_by_name_only_is_listed(repo):
    """A kernel that no need takes has a reason to be there, beside the table."""
    text = (repo / "kernels/README.md").read_text()
    section = text.partition("## Taken by name only")[2].partition("\n## ")[0]
    kernels = [(op, spec) for op, spec in ALL if not spec.is_reference]
    unnamed = [(op, spec) for op, spec in kernels if f"`{spec.name}`" not in section]
    assert len(unnamed) > len(kernels) // 2
    assert [spec.name for op, spec in unnamed if not _is_taken(op, spec)] == []


def test_every_other_kernel_has_a_reason():
    selection = registry.find("linear", Q4, FULL)
    names = {selection.spec.name, *(name for name, _ in selection.rejected)}
    assert names == {spec.name for spec in registry.specs("linear")}
    assert (
        dict(selection.rejected)["linear_torch_float32"] == "needs weight_format float32, not q4_1"
    )
    assert dict(selection.rejected)["linear_reference"] == "linear_int16_avx512_vnni comes first"


def test_what_a_device_lacks_is_the_reason():
    rejected = dict(registry.find("linear", Q4, PLAIN).rejected)
    assert rejected["linear_int16_avx2"] == "needs avx2, fma, f16c, which the device lacks"


def test_an_unknown_fact_fits_no_kernel():
    with pytest.raises(registry.NoKernel, match="does not state sparsity") as error:
        registry.find("linear", {**Q4, "sparsity": 2}, FULL)
    assert {name for name, _ in error.value.rejected} == {
        spec.name for spec in registry.specs("linear")
    }


def test_a_missing_fact_fits_no_kernel():
    with pytest.raises(registry.NoKernel, match="in_features, which the need leaves open"):
        registry.find("linear", {"weight_format": "q4_1", "activations": "float32"}, FULL)


def test_an_override_is_held_to_the_same_requirements():
    taken = registry.find("linear", Q4, FULL, override="linear_reference")
    assert taken.spec.name == "linear_reference"
    assert taken.reason == "asked for by name"
    assert ("linear_int16_avx2", "linear_reference was asked for") in taken.rejected
    with pytest.raises(registry.NoKernel, match="cannot run: needs avx512f"):
        registry.find("linear", Q4, PLAIN, override="linear_int16_avx512_vnni")
    with pytest.raises(registry.NoKernel, match="cannot run: needs weight_format float32"):
        registry.find("linear", Q4, FULL, override="linear_torch_float32")


def test_an_override_of_another_op_or_of_no_op_is_refused():
    with pytest.raises(
        registry.NoKernel, match="linear has no kernel called rms_norm_avx2; it has"
    ):
        registry.find("linear", Q4, FULL, override="rms_norm_avx2")


def test_unknown_names_list_the_known_ones():
    with pytest.raises(registry.NoKernel, match=r"no op called matmul; the ops are .*linear"):
        registry.find("matmul", {}, FULL)
    with pytest.raises(registry.NoKernel, match="no kernel called nothing"):
        registry.load("nothing")


def test_finding_needs_no_torch():
    code = """
import sys
sys.modules["torch"] = None  # an import of it raises
from tokenspeed_kernels import registry
from tokenspeed_kernels.spec import AVX2, AVX512, TRITON, Device
from tokenspeed_kernels.weight import RawWeight
import tokenspeed_kernels.attention.op, tokenspeed_kernels.gemm.op, tokenspeed_kernels.sampling.op
need = {"weight_format": "q8_0", "activations": "float32", "in_features": 576}
print(registry.find("linear", need, Device("cpu", "x86_64")).spec.name)
print(len(registry.ops()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("linear_int16_portable")
