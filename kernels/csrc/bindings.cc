// The Python face of the CPU kernels: addresses and sizes in, nothing owned. The wrappers in
// tokenspeed_kernels/*/*_cpu.py check dtypes, shapes and strides before they pass an address.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cpu/embedding.h"
#include "cpu/huge_memory.h"
#include "cpu/isa.h"
#include "cpu/linear.h"
#include "cpu/measure.h"
#include "cpu/sampling.h"
#include "cpu/vector_ops.h"

namespace py = pybind11;

namespace {

template <typename T>
T* At(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

using Address = std::uintptr_t;

const ts::VectorOps& Ops(int isa) { return ts::OpsFor(static_cast<ts::Isa>(isa)); }

ts::WeightFormat Format(std::string_view name) {
  if (name == "q4_1") return ts::WeightFormat::kQ4_1;
  if (name == "q8_0") return ts::WeightFormat::kQ8_0;
  throw std::invalid_argument("unknown weight format " + std::string(name));
}

void BindLinear(py::module_& m) {
  py::class_<ts::PackedWeight>(m, "PackedWeight")
      .def(py::init([](std::string_view format, Address data, std::size_t rows,
                       std::size_t columns, Address bias) {
             const ts::WeightFormat known = Format(format);
             py::gil_scoped_release release;
             return new ts::PackedWeight(known, At<std::uint8_t>(data), rows, columns,
                                         At<float>(bias));
           }),
           py::arg("format"), py::arg("data"), py::arg("rows"), py::arg("columns"),
           py::arg("bias"))
      .def_property_readonly("bytes", &ts::PackedWeight::bytes)
      .def("linear", [](const ts::PackedWeight& weight, int isa, Address x, Address out,
                        std::size_t rows) {
        py::gil_scoped_release release;
        ts::Linear(static_cast<ts::Isa>(isa), weight, At<float>(x), At<float>(out), rows);
      });
  m.def("embed", [](std::string_view format, Address table, std::size_t columns, Address tokens,
                    std::size_t count, Address out) {
    const ts::WeightFormat known = Format(format);
    py::gil_scoped_release release;
    ts::Embed(known, At<std::uint8_t>(table), columns, At<std::int32_t>(tokens), count,
              At<float>(out));
  });
}

void BindLayer(py::module_& m) {
  m.def("rms_norm", [](int isa, Address x, Address weight, Address out, std::size_t rows,
                       std::size_t dim, float eps) {
    const ts::VectorOps& ops = Ops(isa);
    py::gil_scoped_release release;
    ops.rms_norm(At<float>(x), At<float>(weight), At<float>(out), rows, dim, eps);
  });
  m.def("add_rms_norm", [](int isa, Address x, Address residual, Address weight, Address out,
                           std::size_t rows, std::size_t dim, float eps) {
    const ts::VectorOps& ops = Ops(isa);
    py::gil_scoped_release release;
    ops.add_rms_norm(At<float>(x), At<float>(residual), At<float>(weight), At<float>(out), rows,
                     dim, eps);
  });
  m.def("silu_mul", [](int isa, Address x, Address out, std::size_t rows, std::size_t inner) {
    const ts::VectorOps& ops = Ops(isa);
    py::gil_scoped_release release;
    ops.silu_mul(At<float>(x), At<float>(out), rows, inner);
  });
  m.def("rope_kv_write",
        [](int isa, Address qkv, Address q, Address positions, Address cos_sin, Address slots,
           Address k_cache, Address v_cache, Address q_norm, Address k_norm, std::size_t tokens,
           std::size_t heads, std::size_t kv_heads, std::size_t head_dim, std::size_t rotary_dim,
           float eps, bool kv_bf16) {
          const ts::VectorOps& ops = Ops(isa);
          py::gil_scoped_release release;
          ops.rope_kv_write({At<float>(qkv), At<float>(q), At<std::int32_t>(positions),
                             At<float>(cos_sin), At<std::int64_t>(slots), At<void>(k_cache),
                             At<void>(v_cache), At<float>(q_norm), At<float>(k_norm), tokens,
                             heads, kv_heads, head_dim, rotary_dim, eps, kv_bf16});
        });
  m.def("paged_attention",
        [](int isa, Address q, Address out, Address k_cache, Address v_cache,
           Address block_tables, Address cu_query_lens, Address context_lens, std::size_t rows,
           std::size_t max_blocks, std::size_t block_size, std::size_t heads,
           std::size_t kv_heads, std::size_t head_dim, float scale, bool kv_bf16) {
          const ts::VectorOps& ops = Ops(isa);
          py::gil_scoped_release release;
          ops.paged_attention({At<float>(q), At<float>(out), At<void>(k_cache),
                               At<void>(v_cache), At<std::int32_t>(block_tables),
                               At<std::int32_t>(cu_query_lens), At<std::int32_t>(context_lens),
                               rows, max_blocks, block_size, heads, kv_heads, head_dim, scale,
                               kv_bf16});
        });
}

// Memory to read in order, laid out like weights.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes)
      : bytes_((bytes + 255) / 256 * 256), memory_(ts::AllocateWeights(bytes_)) {}
  float Read(int isa) const {
    return ts::ReadAll(static_cast<ts::Isa>(isa), memory_.get(), bytes_);
  }

 private:
  std::size_t bytes_;
  std::shared_ptr<std::byte> memory_;
};

void BindMemory(py::module_& m) {
  m.def("prefer_huge_pages", [](Address data, std::size_t bytes) {
    return ts::PreferHugePages(At<void>(data), bytes);
  });
}

void BindMeasures(py::module_& m) {
  py::class_<Buffer>(m, "Buffer")
      .def(py::init<std::size_t>(), py::arg("bytes"))
      .def("read", &Buffer::Read, py::call_guard<py::gil_scoped_release>());
  m.def("dot_rounds", [](int isa, std::size_t count) {
    py::gil_scoped_release release;
    return ts::DotRounds(static_cast<ts::Isa>(isa), count);
  });
}

void BindSampling(py::module_& m) {
  m.def("sample", [](int isa, Address logits, std::size_t rows, std::size_t vocab,
                     Address temperature, Address top_k, Address top_p, Address min_p,
                     Address seeds, Address positions, Address tokens) {
    const ts::VectorOps& ops = Ops(isa);
    py::gil_scoped_release release;
    ts::Sample(ops, {At<float>(logits), rows, vocab, At<float>(temperature),
                     At<std::int32_t>(top_k), At<float>(top_p), At<float>(min_p),
                     At<std::int64_t>(seeds), At<std::int64_t>(positions),
                     At<std::int32_t>(tokens)});
  });
  m.def("log_softmax_topk", [](int isa, Address logits, std::size_t rows, std::size_t vocab,
                               std::size_t k, Address chosen, Address chosen_logprob,
                               Address top_values, Address top_ids) {
    const ts::VectorOps& ops = Ops(isa);
    py::gil_scoped_release release;
    ts::LogSoftmaxTopk(ops, {At<float>(logits), rows, vocab, k, At<std::int32_t>(chosen),
                             At<float>(chosen_logprob), At<float>(top_values),
                             At<std::int32_t>(top_ids)});
  });
  m.def("penalise", [](int isa, Address logits, Address counts, std::size_t vocab, float repetition,
                       float presence, float frequency) {
    const ts::VectorOps& ops = Ops(isa);
    py::gil_scoped_release release;
    ops.penalise(At<float>(logits), At<std::int16_t>(counts), vocab, repetition, presence,
                 frequency);
  });
}

}  // namespace

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "CPU kernels on raw addresses.";
  m.attr("PORTABLE") = static_cast<int>(ts::Isa::kPortable);
  m.attr("AVX2") = static_cast<int>(ts::Isa::kAvx2);
  m.attr("AVX512") = static_cast<int>(ts::Isa::kAvx512);
  m.attr("AVX512_VNNI") = static_cast<int>(ts::Isa::kAvx512Vnni);
  m.def("supports", [](int isa) { return ts::Supports(static_cast<ts::Isa>(isa)); });

  BindLinear(m);
  BindLayer(m);
  BindSampling(m);
  BindMemory(m);
  BindMeasures(m);
}
