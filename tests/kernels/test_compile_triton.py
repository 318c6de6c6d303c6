"""Compiling on all cores: what one thread may not do to another, and what an error leaves."""

from __future__ import annotations

import importlib
import importlib.util
import threading
import types

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)

compile_triton = importlib.import_module("tokenspeed_kernels.compile_triton")
async_compile = importlib.import_module("triton.runtime._async_compile")
jit = importlib.import_module("triton.runtime.jit")


def hand_over(key, compile_fn):
    """As a launch does whose kernel is not compiled yet."""
    async_compile.active_mode.get().submit(key, compile_fn, lambda kernel: None)


def kernel():
    return types.SimpleNamespace(run=None)


def failing():
    raise ValueError("does not compile")


def test_a_kernel_that_does_not_compile_leaves_the_next_ones_alone():
    with pytest.raises(ValueError, match="does not compile"):
        compile_triton.compile_all([lambda: hand_over("bad", failing)])
    assert async_compile.active_mode.get() is None
    assert compile_triton.compile_all([lambda: hand_over("good", kernel)]).kernels == 1


def test_one_thread_parses_at_a_time(monkeypatch):
    """Each waits a little for another one to come in."""
    inside, met = threading.Semaphore(1), threading.Event()

    def parse(function):
        if inside.acquire(blocking=False):
            met.wait(0.02)
            inside.release()
        else:
            met.set()

    monkeypatch.setattr(jit.JITCallable, "parse", parse)
    monkeypatch.setattr(compile_triton.os, "sched_getaffinity", lambda pid: range(4))

    def compiled():
        jit.JITCallable.parse(None)
        return kernel()

    compile_triton.compile_all([lambda nth=nth: hand_over(nth, compiled) for nth in range(8)])
    assert not met.is_set()
    assert jit.JITCallable.parse is parse
