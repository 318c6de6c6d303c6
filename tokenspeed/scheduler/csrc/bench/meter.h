// CPU time of the calling thread, bytes asked of the heap, and a table with targets beside.
#ifndef TOKENSPEED_SCHEDULER_BENCH_METER_H_
#define TOKENSPEED_SCHEDULER_BENCH_METER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace tokenspeed::bench {

// Microseconds of CPU that this thread has used: neighbours on the machine do not count.
double CpuMicros();

// Bytes that live on the heap now.
std::size_t HeapBytes();

class Samples {
 public:
  void Add(double value) { values_.push_back(value); }
  [[nodiscard]] std::size_t size() const { return values_.size(); }
  // The value below which `share` of all lie. REQUIRES: size() > 0.
  [[nodiscard]] double At(double share) const {
    std::vector<double> sorted = values_;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
  }

 private:
  std::vector<double> values_;
};

// Times one call.
template <typename Call>
auto Timed(Samples& into, Call call) {
  const double begin = CpuMicros();
  auto result = call();
  into.Add(CpuMicros() - begin);
  return result;
}

inline void Header() {
  std::printf("%-58s %10s %10s %8s\n", "measure", "median", "p99", "target");
}

inline void Line(const std::string& name, double median, double p99, double target) {
  const char* verdict = target <= 0 ? "" : median <= target ? "  ok" : "  MISSED";
  std::printf("%-58s %10.2f ", name.c_str(), median);
  p99 > 0 ? std::printf("%10.2f ", p99) : std::printf("%10s ", "");
  target > 0 ? std::printf("%8.0f%s\n", target, verdict) : std::printf("%8s\n", "");
  std::fflush(stdout);
}

inline void Line(const std::string& name, const Samples& samples, double target) {
  Line(name + " (n " + std::to_string(samples.size()) + ")", samples.At(0.5), samples.At(0.99),
       target);
}

}  // namespace tokenspeed::bench

#endif  // TOKENSPEED_SCHEDULER_BENCH_METER_H_
