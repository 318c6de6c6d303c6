"""Tensor maps, by which Hopper's copy engine finds boxes of a tensor."""

# Gluon has no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import functools

import torch
from triton.experimental.gluon.language import NVMMASharedLayout, bfloat16, float8e4nv, float32
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

_KINDS = {torch.bfloat16: bfloat16, torch.float8_e4m3fn: float8e4nv, torch.float32: float32}


def tensor_map(tensor: torch.Tensor, *box: int) -> TensorDescriptor:
    """A map of `tensor` in boxes of these sizes, which arrive swizzled as products read them."""
    return TensorDescriptor.from_tensor(tensor, list(box), _layout(box, tensor.dtype))


@functools.cache
def _layout(box: tuple[int, ...], dtype: torch.dtype) -> NVMMASharedLayout:
    # Gluon works one out in as long as a launch takes.
    return NVMMASharedLayout.get_default_for(list(box), _KINDS[dtype])
