"""Makes the Triton interpreter compute as a device does: bfloat16, float8, fma, loop bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

# bfloat16 lives in the interpreter as its bits, and arithmetic then runs on those bits. These
# replacements widen to float32 first and round to nearest even after.
Builder, Handle = interpreter.InterpreterBuilder, interpreter.TensorHandle


def _widen(bits):
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)


def _narrow(values):
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where((bits & 0x7FFFFFFF) > 0x7F800000, np.uint16(0x7FC0), rounded)


def _is_bf16(handle):
    return handle.dtype.scalar == tl.bfloat16


def _wide(handle):
    return Handle(_widen(handle.data), tl.float32) if _is_bf16(handle) else handle


def _fma(self, x, y, z):
    """One rounding, as the instruction has: the product is exact in float64."""
    assert z.data.dtype == np.float32
    exact = x.data.astype(np.float64) * y.data.astype(np.float64) + z.data
    return Handle(exact.astype(np.float32), z.dtype.scalar)


def _corrected(binary_op, unary_op, create_dot, cast_impl, fp_to_fp):
    def binary(self, left, right, op):
        if _is_bf16(left):
            data, dtype = op(_widen(left.data), _widen(right.data)), tl.bfloat16
            data = data if data.dtype == np.bool_ else _narrow(data)
        else:
            result = binary_op(self, left, right, op)
            data, dtype = result.data, result.dtype
        # The interpreter gives a comparison the type of its operands, and spreads it as that.
        return Handle(data, tl.int1 if data.dtype == np.bool_ else dtype)

    def unary(self, value, op):
        if not _is_bf16(value):
            return unary_op(self, value, op)
        return Handle(_narrow(op(_widen(value.data))), tl.bfloat16)

    def dot(self, a, b, accumulator, *rest):
        return create_dot(self, _wide(a), _wide(b), accumulator, *rest)

    def cast(self, source, target):
        before, after = source.dtype.scalar, target.scalar
        if before == after or tl.bfloat16 not in (before, after):
            return cast_impl(self, source, target)
        if before == tl.bfloat16:
            wide = Handle(_widen(source.data), tl.float32)
            return wide if after == tl.float32 else fp_to_fp_or_cast(self, wide, target)
        return Handle(_narrow(source.data.astype(np.float32)), after)

    def fp_to_fp_or_cast(self, wide, target):
        if target.scalar in (tl.float16, tl.float64):
            return Handle(wide.data.astype(interpreter._get_np_dtype(target)), target.scalar)
        return fp_to_fp(self, wide, target, None)

    def convert(self, source, target, rounding):
        wide = (tl.float16, tl.float32, tl.float64)
        if target.scalar == tl.float8e4nv and source.dtype.scalar == tl.float32:
            # The interpreter loses the carry where rounding reaches the next power of two.
            bytes_ = torch.from_numpy(source.data).to(torch.float8_e4m3fn).view(torch.uint8)
            return Handle(bytes_.numpy(), tl.float8e4nv)
        if target.scalar == tl.bfloat16 and source.dtype.scalar in wide:
            return cast(self, source, target)
        return fp_to_fp(self, source, target, rounding)

    return binary, unary, dot, cast, convert


_NAMES = ("binary_op", "unary_op", "create_dot", "cast_impl", "create_fp_to_fp")


def _patch_lang_tensor(tensor, scope, original=interpreter._patch_lang_tensor):
    original(tensor, scope)
    # numpy 2.4 turns no array of one element into a number, as the loop bound of a kernel needs.
    scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())


@pytest.fixture(autouse=True)
def _true_interpreter(monkeypatch):
    originals = [getattr(Builder, name) for name in _NAMES]
    for name, corrected in zip(_NAMES, _corrected(*originals), strict=True):
        monkeypatch.setattr(Builder, name, corrected)
    monkeypatch.setattr(Builder, "create_fma", _fma)
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", _patch_lang_tensor)
    torch.manual_seed(7)
    # Lanes that are masked out later may divide by zero, which a device does in silence.
    with np.errstate(all="ignore"):
        yield
