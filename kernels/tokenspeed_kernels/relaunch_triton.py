"""Launches Triton kernels in a few microseconds once they have been launched with such arguments.

`JITFunction.run` binds arguments, prints layouts and options to look a kernel up, asks the driver
what each pointer is, and calls hooks: some 40 us, as much as a kernel takes. A step outside a
CUDA graph launches hundreds of kernels, one layer after the other with the same arguments but for
addresses. Here a launch looks up what the one before it resolved to, by what a kernel is compiled
for: constants, options, the types of the others, whether addresses and integers are multiples of
16, and which integers are 1.
"""

# Triton has no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
from triton import JITFunction, knobs
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

_LEAST, _MOST = -(2**31), 2**31 - 1
# The name under which a kernel keeps what it remembers.
_KNOWN = "known_launches"


def remember_launches() -> None:
    """From now on all kernels of this process remember their launches, which are all on the current
    device. Without effect where it was called before, and on kernels that are interpreted."""
    if JITFunction.run is not _run:
        JITFunction.run = _run


_launch = JITFunction.run


def _run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
    """`JITFunction.run`. A launch that is remembered returns None, where Triton returns the kernel,
    which nobody reads."""
    if warmup or callable(grid) or kernel.pre_run_hooks or _hooked():
        return _launch(kernel, *args, grid=grid, warmup=warmup, **options)
    known = kernel.__dict__.get(_KNOWN)
    if known is None:
        known = kernel.__dict__[_KNOWN] = (Arguments(kernel), {})
    arguments, launches = known
    key, values = arguments.described(args, options)
    found = launches.get(key)
    if found is None:
        compiled = _launch(kernel, *args, grid=grid, warmup=False, **options)
        constants = arguments.after(len(args), options)
        # One that is still being compiled has no handles yet.
        if constants is not None and hasattr(compiled, "packed_metadata"):
            launches[key] = (*_handles(compiled), constants)
        return compiled
    launch, device, between, constants = found
    x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
    stream = driver.active.get_current_stream(device)
    launch(x, y, z, stream, *between, *values, *constants)
    return None


def _handles(compiled: Any) -> tuple[Any, ...]:
    """What launches a compiled kernel, its device, and what that takes between the stream and the
    kernel's arguments."""
    launch, device = compiled.run, driver.active.get_current_device()
    before: tuple[Any, ...] = (compiled.function,)
    # Without memory for the launch itself its launcher only passes on.
    if getattr(launch, "global_scratch_size", 1) == getattr(launch, "profile_scratch_size", 1) == 0:
        before += (launch.launch_cooperative_grid, launch.launch_pdl, None, None)
        launch = launch.launch
    # No metadata for hooks, and no hooks.
    return launch, device, (*before, compiled.packed_metadata, None, None, None)


def _hooked() -> bool:
    runtime = knobs.runtime
    return bool(runtime.launch_enter_hook.calls or runtime.launch_exit_hook.calls)


class Arguments:
    """What the arguments of a kernel say about how it is compiled."""

    def __init__(self, kernel: Any) -> None:
        self._parameters = kernel.params
        # Of each parameter: whether it is a constant, whether Triton compiles for its value, and
        # whether for what it is a multiple of.
        self._ways = [
            (
                parameter.is_constexpr,
                not parameter.do_not_specialize,
                not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment),
            )
            for parameter in kernel.params
        ]

    def described(
        self, args: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], list[Any]]:
        """All that decides about the compiled kernel, and what it is launched with in the place of
        `args`: addresses for tensors, of which a launcher would ask the driver what they are."""
        key: list[Any] = [len(args), *options.items()]
        values = []
        for value, (constant, specialise, align) in zip(args, self._ways, strict=False):
            # Most are integers of 32 bits and tensors. Only what is no integer is a sequence here.
            if constant:
                key.append(value)
            elif type(value) is int and _LEAST <= value <= _MOST and (value != 1 or not specialise):
                key.append(align and value % 16 == 0)
            elif isinstance(value, torch.Tensor):
                key.append(value.dtype)
                value = value.data_ptr()
                key.append(align and value % 16 == 0)
            else:
                key.append(_trait(value, specialise, align))
            values.append(value)
        return tuple(key), values

    def after(self, count: int, options: dict[str, Any]) -> list[Any] | None:
        """Values of the parameters after the first `count`; None if not all are constants."""
        rest = self._parameters[count:]
        if not all(parameter.is_constexpr for parameter in rest):
            return None
        return [options.get(parameter.name, parameter.default) for parameter in rest]


def _trait(value: Any, specialise: bool, align: bool) -> Any:
    """What a kernel is compiled for of an argument that is no tensor."""
    if isinstance(value, (GluonDescriptor, TensorDescriptor)):
        layout = getattr(value, "layout", None)
        return value.base.dtype, *value.block_shape, layout, value.padding
    return native_specialize_impl(BaseBackend, value, False, specialise, align)
