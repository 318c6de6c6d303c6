// A row is passed over once for the maxima of its chunks; after that only chunks that can matter
// are looked at again, so the cost is that of reading the logits plus what is kept. Thresholds
// and the draw are in float64, like the reference's, so both draw the same token.
#include "cpu/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/philox.h"

namespace ts {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Candidate {
  double scaled;  // (logit - largest) / temperature, at most 0
  float logit;
  std::int32_t id;
};

// What is no number comes last: selection runs out of the row where an order contradicts itself.
bool Above(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (std::isnan(b.logit) && !std::isnan(a.logit));
}

// One row of logits and the maxima of its chunks.
class Row {
 public:
  Row(const VectorOps& ops, const float* logits, std::size_t vocab)
      : ops_(ops), logits_(logits), vocab_(vocab), maxima_((vocab + kChunk - 1) / kChunk) {
    ops.chunk_maxima(logits, vocab, maxima_.data());
    largest_ = *std::max_element(maxima_.begin(), maxima_.end());
  }

  float largest() const { return largest_; }
  float logit(std::size_t id) const { return logits_[id]; }
  std::size_t vocab() const { return vocab_; }
  std::size_t chunks() const { return maxima_.size(); }
  float maximum(std::size_t chunk) const { return maxima_[chunk]; }
  std::size_t begin(std::size_t chunk) const { return chunk * kChunk; }
  std::size_t end(std::size_t chunk) const { return std::min(vocab_, (chunk + 1) * kChunk); }

  // 0 where nothing is a number.
  std::int32_t FirstLargest() const {
    const auto chunk = std::find(maxima_.begin(), maxima_.end(), largest_) - maxima_.begin();
    for (std::size_t id = begin(chunk); id < vocab_; ++id) {
      if (logits_[id] == largest_) return static_cast<std::int32_t>(id);
    }
    return 0;
  }

  double SumExp(double heat) const {
    return ops_.sum_exp(logits_, vocab_, largest_, static_cast<float>(1.0 / heat));
  }

  // A logit that at least `k` tokens reach: the k-th largest of the chunk maxima.
  float LowerBound(std::size_t k) const {
    if (k > maxima_.size()) return -std::numeric_limits<float>::infinity();
    std::vector<float> copy(maxima_);
    std::nth_element(copy.begin(), copy.begin() + (k - 1), copy.end(), std::greater<>());
    return copy[k - 1];
  }

  // Every token whose logit is at least `bound`, in order of id.
  std::vector<Candidate> From(float bound, double heat) const {
    std::vector<Candidate> found;
    for (std::size_t chunk = 0; chunk < chunks(); ++chunk) {
      if (maxima_[chunk] < bound) continue;
      for (std::size_t id = begin(chunk); id < end(chunk); ++id) {
        const float logit = logits_[id];
        if (logit < bound) continue;
        found.push_back({Scaled(logit, heat), logit, static_cast<std::int32_t>(id)});
      }
    }
    return found;
  }

  double Scaled(float logit, double heat) const {
    return static_cast<double>(logit - largest_) / heat;
  }

 private:
  const VectorOps& ops_;
  const float* logits_;
  std::size_t vocab_;
  std::vector<float> maxima_;
  float largest_;
};

// The random bits of one row: word id % 4 of counter id / 4.
class Bits {
 public:
  Bits(std::int64_t seed, std::int64_t position)
      : key_(static_cast<std::uint64_t>(seed)), position_(static_cast<std::uint64_t>(position)) {}

  std::uint32_t operator()(std::size_t id) {
    if (const auto group = static_cast<std::uint32_t>(id / 4); group != group_ || !valid_) {
      group_ = group;
      valid_ = true;
      words_ = Philox({group, static_cast<std::uint32_t>(position_),
                       static_cast<std::uint32_t>(position_ >> 32), 0},
                      static_cast<std::uint32_t>(key_), static_cast<std::uint32_t>(key_ >> 32));
    }
    return words_[id % 4];
  }

 private:
  std::uint64_t key_;
  std::uint64_t position_;
  std::uint32_t group_ = 0;
  bool valid_ = false;
  PhiloxWords words_{};
};

// The running winner of the draw.
class Draw {
 public:
  explicit Draw(Bits bits) : bits_(bits) {}

  void Offer(std::int32_t id, double scaled) {
    const double uniform = (static_cast<double>(bits_(id)) + 0.5) * 0x1p-32;
    const double score = scaled - std::log(-std::log(uniform));
    // Equal scores: the lower id, in whatever order they come.
    if (score > best_ || (score == best_ && id < winner_)) {
      best_ = score;
      winner_ = id;
    }
  }

  // The least bits that can win at `scaled`, 2^32 for none. -log(u) >= 1 - u, so a score is at
  // most scaled - log(1 - u), and beats the best only where 1 - u = (~bits + 0.5) / 2^32 is below
  // exp(scaled - best); a little is added against rounding.
  std::uint64_t LeastBits(double scaled) const {
    const double reach = std::exp(scaled - best_) * 0x1.00001p+32;
    if (!(reach < 0x1p32)) return 0;
    if (reach < 0.5) return std::uint64_t{1} << 32;
    return (std::uint64_t{1} << 32) - 1 - static_cast<std::uint64_t>(reach);
  }

  std::uint32_t bits(std::size_t id) { return bits_(id); }
  // `otherwise` where no score was a number.
  std::int32_t WinnerOr(std::int32_t otherwise) const {
    return best_ > -kInfinity ? winner_ : otherwise;
  }

 private:
  Bits bits_;
  double best_ = -kInfinity;
  std::int32_t winner_ = std::numeric_limits<std::int32_t>::max();
};

// Everything is kept: only tokens whose bits can win at their chunk's maximum are scored.
std::int32_t DrawFromAll(const Row& row, double heat, Bits bits) {
  Draw draw(bits);
  const std::int32_t likeliest = row.FirstLargest();
  draw.Offer(likeliest, 0.0);
  for (std::size_t chunk = 0; chunk < row.chunks(); ++chunk) {
    const double scaled = row.Scaled(row.maximum(chunk), heat);
    const std::uint64_t least = draw.LeastBits(scaled);
    if (least >> 32 != 0) continue;
    for (std::size_t id = row.begin(chunk); id < row.end(chunk); ++id) {
      if (draw.bits(id) >= least) {
        draw.Offer(static_cast<std::int32_t>(id), row.Scaled(row.logit(id), heat));
      }
    }
  }
  return draw.WinnerOr(likeliest);
}

// All tokens with the `k` largest logits, those equal to the k-th included. Unordered.
std::vector<Candidate> TopK(const Row& row, std::size_t k, double heat) {
  std::vector<Candidate> kept = row.From(row.LowerBound(k), heat);
  if (kept.size() > k) {
    std::vector<Candidate> ranked(kept);
    std::nth_element(ranked.begin(), ranked.begin() + (k - 1), ranked.end(), Above);
    const float threshold = ranked[k - 1].logit;
    std::erase_if(kept, [&](const Candidate& c) { return c.logit < threshold; });
  }
  return kept;
}

double Mass(const std::vector<Candidate>& kept) {
  double mass = 0.0;
  for (const Candidate& c : kept) mass += std::exp(c.scaled);
  return mass;
}

// Keeps the likeliest whose weights reach `wanted`, those equal to the last included. Selects
// by halves instead of sorting: the half that holds the boundary is the one looked into.
void KeepMass(std::vector<Candidate>& kept, double wanted) {
  auto low = kept.begin();
  auto high = kept.end();
  double before = 0.0;
  while (high - low > 1) {
    const auto middle = low + (high - low) / 2;
    std::nth_element(low, middle, high, Above);
    double mass = before;
    for (auto c = low; c != middle; ++c) mass += std::exp(c->scaled);
    if (mass < wanted) {
      before = mass;
      low = middle;
    } else {
      high = middle;
    }
  }
  const float threshold = low->logit;
  std::erase_if(kept, [&](const Candidate& c) { return c.logit < threshold; });
}

// The nucleus of a row without top-k and min-p: candidates are collected downwards from the
// largest until their weight suffices.
std::vector<Candidate> Nucleus(const Row& row, double heat, double top_p) {
  const double wanted = top_p * row.SumExp(heat);
  for (double reach = 4.0;; reach *= 2.0) {
    std::vector<Candidate> kept = row.From(static_cast<float>(row.largest() - reach * heat), heat);
    // Rounding may leave even all of them short of `wanted`; at 1e6 the rest weighs nothing.
    if (Mass(kept) >= wanted || kept.size() == row.vocab() || reach > 1e6) {
      KeepMass(kept, wanted);
      return kept;
    }
  }
}

std::vector<Candidate> Keep(const Row& row, double heat, std::size_t k, double top_p,
                            double min_p) {
  if (k >= row.vocab() && min_p <= 0.0) return Nucleus(row, heat, top_p);
  const double floor = std::log(std::min(min_p, 1.0));  // -inf for 0
  std::vector<Candidate> kept;
  if (k < row.vocab()) {
    kept = TopK(row, k, heat);
  } else {
    // A little low against rounding to float32; what is too low goes just below.
    kept = row.From(static_cast<float>(row.largest() + (floor * 1.00001 - 1e-3) * heat), heat);
  }
  std::erase_if(kept, [&](const Candidate& c) { return c.scaled < floor; });
  if (top_p < 1.0) KeepMass(kept, top_p * Mass(kept));
  return kept;
}

}  // namespace

void Sample(const VectorOps& ops, const SampleArgs& args) {
  for (std::size_t r = 0; r < args.rows; ++r) {
    const Row row(ops, args.logits + r * args.vocab, args.vocab);
    const double heat = args.temperature[r];
    if (heat == 0.0) {
      args.tokens[r] = row.FirstLargest();
      continue;
    }
    const Bits bits(args.seeds[r], args.positions[r]);
    const std::size_t k = args.top_k[r] > 0 ? static_cast<std::size_t>(args.top_k[r]) : args.vocab;
    if (k >= args.vocab && args.top_p[r] >= 1.0f && args.min_p[r] <= 0.0f) {
      args.tokens[r] = DrawFromAll(row, heat, bits);
      continue;
    }
    Draw draw(bits);
    for (const Candidate& c : Keep(row, heat, k, args.top_p[r], args.min_p[r])) {
      draw.Offer(c.id, c.scaled);
    }
    args.tokens[r] = draw.WinnerOr(row.FirstLargest());
  }
}

void LogSoftmaxTopk(const VectorOps& ops, const LogSoftmaxArgs& args) {
  for (std::size_t r = 0; r < args.rows; ++r) {
    const Row row(ops, args.logits + r * args.vocab, args.vocab);
    const double log_sum = std::log(row.SumExp(1.0));
    const auto logprob = [&](std::size_t id) {
      return static_cast<float>(row.Scaled(row.logit(id), 1.0) - log_sum);
    };
    args.chosen_logprob[r] = logprob(args.chosen[r]);
    if (args.k == 0) continue;
    std::vector<Candidate> top = TopK(row, args.k, 1.0);
    std::partial_sort(top.begin(), top.begin() + args.k, top.end(),
                      [](const Candidate& a, const Candidate& b) {
                        return a.scaled > b.scaled || (a.scaled == b.scaled && a.id < b.id);
                      });
    for (std::size_t i = 0; i < args.k; ++i) {
      args.top_ids[r * args.k + i] = top[i].id;
      args.top_values[r * args.k + i] = logprob(top[i].id);
    }
  }
}

}  // namespace ts
