"""A launch is remembered for exactly those arguments that Triton compiles the same kernel for."""

from __future__ import annotations

import importlib.util
import itertools
from types import SimpleNamespace

import pytest
import torch

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

import triton.language as tl
from tokenspeed_kernels import relaunch_triton
from tokenspeed_kernels.maps_hopper import tensor_map
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

BACKEND = make_backend(GPUTarget("cuda", 90, 32))


def _kernel(X, MAP, count, stride, scale, N: tl.constexpr, KIND: tl.constexpr = "plain"):
    pass


KERNEL = JITFunction(_kernel, do_not_specialize=["stride"])
MEMORY = torch.zeros(4096, dtype=torch.uint8)
HALVES = MEMORY.view(torch.bfloat16)
SHAPED = HALVES.view(32, 64)
# Each in turn; what is in one list is to be told apart, or not, as Triton does.
TENSORS = [HALVES[:64], HALVES[8:], HALVES[1:], HALVES[9:], MEMORY[16:], MEMORY[1:], None]
MAPS = [
    tensor_map(SHAPED, 16, 64),
    tensor_map(SHAPED[:16], 16, 64),
    tensor_map(SHAPED, 8, 64),
    tensor_map(SHAPED, 16, 32),
    tensor_map(MEMORY.view(torch.float32).view(16, 64), 16, 64),
    None,
    HALVES,
]
INTEGERS = [
    0,
    1,
    2,
    15,
    16,
    17,
    32,
    -1,
    -16,
    2**31 - 1,
    2**31,
    2**31 + 16,
    -(2**31) - 1,
    2**63,
    True,
]
STRIDES = [0, 1, 16, 17, 2**31 - 1, 2**31, 2**40]
SCALES = [0.5, 1.0, 2, 1, None]
CONSTANTS = [1, 2, 64, None]
KINDS = ["plain", "fp8", tl.float32]
OPTIONS = [{"num_warps": 4}, {"num_warps": 8}, {"num_warps": 4, "launch_pdl": True}, {}]


def _calls():
    lists = [TENSORS, MAPS, INTEGERS, STRIDES, SCALES, CONSTANTS, KINDS]
    first = [choices[0] for choices in lists]
    for place, choices in enumerate(lists):
        for choice in choices:
            arguments = [*first[:place], choice, *first[place + 1 :]]
            for options in OPTIONS:
                yield arguments, options


def _tritons(arguments, options):
    bind = create_function_from_signature(KERNEL.signature, KERNEL.params, BACKEND)
    _, specialization, rest = bind(*arguments[:5], N=arguments[5], KIND=arguments[6], **options)
    return repr(specialization), repr(rest)


def test_launches_are_told_apart_as_triton_tells_them_apart():
    described = relaunch_triton.Arguments(KERNEL).described
    ours, theirs = [], []
    for arguments, options in _calls():
        constants = {"N": arguments[5], "KIND": arguments[6]}
        key, _ = described(tuple(arguments[:5]), constants | options)
        ours.append(key)
        theirs.append(_tritons(arguments, options))
    assert len(set(theirs)) >= 100
    for one, other in itertools.combinations(range(len(ours)), 2):
        if ours[one] == ours[other]:
            assert theirs[one] == theirs[other], (ours[one], theirs[one], theirs[other])
    # Nothing is looked up in vain either, but for what Triton converts.
    assert len(set(ours)) <= 1.1 * len(set(theirs))


def test_a_known_launch_goes_straight_to_the_launcher(monkeypatch):
    launched, looked_up = [], []
    launcher = SimpleNamespace(
        global_scratch_size=0, profile_scratch_size=0, launch_cooperative_grid=False,
        launch_pdl=True, launch=lambda *arguments: launched.append(arguments),
    )  # fmt: skip
    compiled = SimpleNamespace(run=launcher, function=5, packed_metadata="packed")

    def look_up(*arguments, grid, warmup, **options):
        looked_up.append((grid, warmup))
        return compiled

    here = SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: 77)
    monkeypatch.setattr(relaunch_triton, "driver", SimpleNamespace(active=here))
    monkeypatch.setattr(relaunch_triton, "_launch", look_up)
    monkeypatch.setattr(JITFunction, "run", JITFunction.run)
    relaunch_triton.remember_launches()
    kernel = JITFunction(_kernel)
    rest = (None, 16, 32, 0.5)
    for grid in ((7,), (8,), (7, 8), (7, 8, 9)):
        kernel[grid](HALVES, *rest, N=1, num_warps=4)
    assert looked_up == [((7,), False)]
    middle = (77, 5, False, True, None, None, "packed", None, None, None)
    arguments = (HALVES.data_ptr(), *rest, 1, "plain")
    assert launched == [(*grid, *middle, *arguments) for grid in ((8, 1, 1), (7, 8, 1), (7, 8, 9))]
    # Another kernel, a grid that asks for the arguments, and compiling alone are Triton's.
    kernel[(7,)](HALVES, *rest, N=2, num_warps=4)
    kernel[lambda arguments: (7,)](HALVES, *rest, N=1, num_warps=4)
    kernel.run(HALVES, *rest, N=1, num_warps=4, grid=(7,), warmup=True)
    assert [warmup for _, warmup in looked_up] == [False, False, False, True]
    assert len(launched) == 3


def test_what_is_no_constant_is_remembered_as_one_of_the_first_arguments_only():
    arguments = relaunch_triton.Arguments(KERNEL)
    assert arguments.after(5, {"KIND": "fp8", "num_warps": 8, "N": 8}) == [8, "fp8"]
    assert arguments.after(6, {}) == ["plain"]
    assert arguments.after(4, {"scale": 0.5, "N": 8}) is None
