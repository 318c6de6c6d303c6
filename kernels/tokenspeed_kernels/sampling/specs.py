"""Kernels of sampling, best first, the reference last. Logits are float32 everywhere."""

from __future__ import annotations

from tokenspeed_kernels.spec import ANY_CPU, AVX2, AVX512, REFERENCE, TRITON, KernelSpec, OpTable

TABLES = (
    OpTable(
        op="sample",
        fields=(),
        kernels=(
            KernelSpec(
                name="sample_avx512",
                module="tokenspeed_kernels.sampling.sampling_cpu",
                attribute="sample_avx512",
                device=AVX512,
                requires={},
                why="16 lanes; no sort of the vocabulary",
                ordered=True,
            ),
            KernelSpec(
                name="sample_avx2",
                module="tokenspeed_kernels.sampling.sampling_cpu",
                attribute="sample_avx2",
                device=AVX2,
                requires={},
                why="8 lanes; no sort of the vocabulary",
                ordered=True,
            ),
            KernelSpec(
                name="sample_portable",
                module="tokenspeed_kernels.sampling.sampling_cpu",
                attribute="sample_portable",
                device=ANY_CPU,
                requires={},
                why="compiled C++, for any CPU; no sort of the vocabulary",
                ordered=True,
            ),
            KernelSpec(
                name="sample_triton",
                module="tokenspeed_kernels.sampling.sample_triton",
                attribute="sample",
                device=TRITON,
                requires={},
                why="one pass and one program per row, no sort",
                ordered=True,
            ),
            KernelSpec(
                name="sample_reference",
                module="tokenspeed_kernels.sampling.reference",
                attribute="sample",
                device=REFERENCE,
                requires={},
                why="torch, on any device",
                is_reference=True,
            ),
        ),
    ),
    OpTable(
        op="log_softmax_topk",
        fields=(),
        kernels=(
            KernelSpec(
                name="log_softmax_topk_avx512",
                module="tokenspeed_kernels.sampling.sampling_cpu",
                attribute="log_softmax_topk_avx512",
                device=AVX512,
                requires={},
                why="16 lanes; no sort of the vocabulary",
                ordered=True,
            ),
            KernelSpec(
                name="log_softmax_topk_avx2",
                module="tokenspeed_kernels.sampling.sampling_cpu",
                attribute="log_softmax_topk_avx2",
                device=AVX2,
                requires={},
                why="8 lanes; no sort of the vocabulary",
                ordered=True,
            ),
            KernelSpec(
                name="log_softmax_topk_portable",
                module="tokenspeed_kernels.sampling.sampling_cpu",
                attribute="log_softmax_topk_portable",
                device=ANY_CPU,
                requires={},
                why="compiled C++, for any CPU; no sort of the vocabulary",
                ordered=True,
            ),
            KernelSpec(
                name="log_softmax_topk_triton",
                module="tokenspeed_kernels.sampling.logprobs_triton",
                attribute="log_softmax_topk",
                device=TRITON,
                requires={},
                why="one pass and one program per row, no sort",
                ordered=True,
            ),
            KernelSpec(
                name="log_softmax_topk_reference",
                module="tokenspeed_kernels.sampling.reference",
                attribute="log_softmax_topk",
                device=REFERENCE,
                requires={},
                why="torch, on any device",
                is_reference=True,
            ),
        ),
    ),
)
