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

from collections.abc import Callable
from typing import Any

import torch
from triton import JITFunction, knobs
from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

# The name under which a kernel keeps what it remembers.
_KNOWN = "known_launches"

# From arguments and options to what decides about the kernel, and the arguments in the order of its
# signature, addresses for tensors.
Bind = Callable[..., tuple[tuple[Any, ...], tuple[Any, ...]]]


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
        known = kernel.__dict__[_KNOWN] = (binder(kernel), {})
    bind, launches = known
    key, values = bind(*args, **options)
    found = launches.get(key)
    if found is None:
        compiled = _launch(kernel, *args, grid=grid, warmup=False, **options)
        # One that is still being compiled has no handles yet.
        if hasattr(compiled, "packed_metadata"):
            launches[key] = _handles(compiled)
        return compiled
    launch, device, between = found
    x, y, z = grid if len(grid) == 3 else (*grid, 1, 1)[:3]
    launch(x, y, z, driver.active.get_current_stream(device), *between, *values)
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


def binder(kernel: Any) -> Bind:
    """The `Bind` of a kernel, as source for its signature: a loop over arguments takes as long as
    what it is to save."""
    heads: list[str] = []
    lines: list[str] = []
    key: list[str] = []
    names: dict[str, Any] = {"Tensor": torch.Tensor, "trait": _trait}
    for parameter in kernel.params:
        name = parameter.name
        heads.append(name)
        if parameter.has_default:
            names[f"default_{name}"] = parameter.default
            heads[-1] += f"=default_{name}"
        key.append(name if parameter.is_constexpr else f"of_{name}")
        if parameter.is_constexpr:
            continue
        specialise = not parameter.do_not_specialize
        align = specialise and not parameter.do_not_specialize_on_alignment
        aligned = f"{name} % 16 == 0" if align else "False"
        # Integers that fit 32 bits, and are no constants, the other way round: they are the most.
        plain = f"-(2**31) <= {name} < 2**31"
        lines += (
            f"if type({name}) is int and {plain}" + (f" and {name} != 1:" if specialise else ":"),
            f"    of_{name} = {aligned}",
            f"elif isinstance({name}, Tensor):",
            f"    of_{name} = {name}.dtype",
            f"    {name} = {name}.data_ptr()",
            f"    of_{name} = of_{name}, {aligned}",
            f"else: of_{name} = trait({name}, {specialise}, {align})",
        )
    order = "".join(f"{parameter.name}, " for parameter in kernel.params)
    result = f"return ({', '.join(key)}, *options.items()), ({order})"
    body = "\n    ".join((*lines, result))
    exec(f"def bind({', '.join(heads)}, **options):\n    {body}", names)
    bind: Bind = names["bind"]
    return bind


def _trait(value: Any, specialise: bool, align: bool) -> Any:
    """What a kernel is compiled for of an argument that is no tensor."""
    if isinstance(value, (GluonDescriptor, TensorDescriptor)):
        layout = getattr(value, "layout", None)
        return value.base.dtype, *value.block_shape, layout, value.padding
    return native_specialize_impl(BaseBackend, value, False, specialise, align)
