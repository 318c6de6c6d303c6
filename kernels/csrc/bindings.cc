// The Python face of the CPU kernels: addresses and sizes in, nothing owned. The wrappers in
// tokenspeed_kernels/*/*_cpu.py check dtypes, shapes and strides before they pass an address.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

#include "cpu/isa.h"
#include "cpu/linear.h"

namespace py = pybind11;

namespace {

template <typename T>
T* At(std::uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "CPU kernels on raw addresses.";
  m.attr("PORTABLE") = static_cast<int>(ts::Isa::kPortable);
  m.attr("AVX2") = static_cast<int>(ts::Isa::kAvx2);
  m.attr("AVX512") = static_cast<int>(ts::Isa::kAvx512);
  m.attr("AVX512_VNNI") = static_cast<int>(ts::Isa::kAvx512Vnni);
  m.def("supports", [](int isa) { return ts::Supports(static_cast<ts::Isa>(isa)); });

  py::class_<ts::PackedWeight>(m, "PackedWeight")
      .def(py::init([](const char* format, std::uintptr_t data, std::size_t rows,
                       std::size_t columns, std::uintptr_t bias) {
             const bool q4 = std::string_view(format) == "q4_1";
             py::gil_scoped_release release;
             return new ts::PackedWeight(q4 ? ts::WeightFormat::kQ4_1 : ts::WeightFormat::kQ8_0,
                                         At<std::uint8_t>(data), rows, columns, At<float>(bias));
           }),
           py::arg("format"), py::arg("data"), py::arg("rows"), py::arg("columns"),
           py::arg("bias"))
      .def_property_readonly("bytes", &ts::PackedWeight::bytes)
      .def("linear",
           [](const ts::PackedWeight& weight, int isa, std::uintptr_t x, std::uintptr_t out,
              std::size_t rows) {
             py::gil_scoped_release release;
             ts::Linear(static_cast<ts::Isa>(isa), weight, At<float>(x), At<float>(out), rows);
           });
}
