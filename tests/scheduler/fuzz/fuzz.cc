// Bytes become calls. With -fsanitize=fuzzer a libFuzzer target; with -DREPLAY a program that
// replays files and prints the digest of their Steps, equal for every compiler and level.
//
// Every call is followed by the full audit. At the end everything drains and nothing is left.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "scheduler.h"

namespace tokenspeed {
namespace {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data, size) {}
  [[nodiscard]] bool done() const { return at_ >= data_.size(); }
  // A value in [0, bound); 0 once the bytes are used up.
  std::int32_t Below(std::int32_t bound) { return done() ? 0 : data_[at_++] % bound; }

 private:
  std::span<const std::uint8_t> data_;
  std::size_t at_ = 0;
};

void Must(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

Config ConfigOf(Bytes& bytes) {
  static const std::vector<std::vector<CacheGroup>> kModels = {
      {{}},
      {{.kind = CacheGroup::Kind::kWindow, .window = 5}},
      {{.kind = CacheGroup::Kind::kState}},
      {{}, {.kind = CacheGroup::Kind::kWindow, .window = 3}, {.kind = CacheGroup::Kind::kState}}};
  Config config{.num_blocks = 6 + bytes.Below(40),
                .block_size = 1 + bytes.Below(4),
                .max_running = 1 + bytes.Below(4),
                .max_step_tokens = 4 + bytes.Below(12),
                .max_model_len = 32,
                .prefix_cache = bytes.Below(4) != 0,
                .chunked_prefill = bytes.Below(4) != 0,
                .in_flight_depth = bytes.Below(2),
                .digest_key = {3, 4}};
  config.groups = kModels[static_cast<std::size_t>(bytes.Below(4))];
  return config;
}

class Player {
 public:
  explicit Player(Bytes bytes) : bytes_(bytes), scheduler_(ConfigOf(bytes_)) {}

  std::uint64_t Play() {
    while (!bytes_.done()) {
      Call();
      scheduler_.Audit();
    }
    for (int turn = 0; !live_.empty() || !flights_.empty(); ++turn) {
      Must(turn < 20'000, "what is live does not drain");
      const bool made = !Full() && Step();
      Must(made || !flights_.empty() || live_.empty(), "stalled");
      if (!flights_.empty() && (!made || Full())) Commit();
    }
    now_ += 1'000;
    Must(scheduler_.MakeStep(now_) == nullptr, "a step of nothing");
    scheduler_.Audit();
    const Stats stats = scheduler_.GetStats();
    Must(stats.finished + stats.aborted == accepted_, "every request ends once");
    Must(stats.blocks_used == 0 && stats.slots_used == 0, "something leaked");
    scheduler_.ResetPrefixCache();
    Must(scheduler_.GetStats().blocks_free == stats.blocks_total, "the pool comes back whole");
    return hash_.value();
  }

  [[nodiscard]] const Trail& trail() const { return scheduler_.trail(); }

 private:
  [[nodiscard]] bool Full() const {
    return static_cast<std::int32_t>(flights_.size()) > scheduler_.config().in_flight_depth;
  }

  void Call() {
    switch (bytes_.Below(8)) {
      case 0:
      case 1: return Submit();
      case 2: {
        const auto id = static_cast<RequestId>(bytes_.Below(6));
        Must(scheduler_.Abort(id) == (live_.erase(id) == 1), "abort knows who is live");
        return;
      }
      case 3: {
        // One after the other: compilers differ in the order of arguments.
        const std::vector<Token> prompt = Prompt();
        const double ttl_s = 1 + bytes_.Below(30);
        (void)scheduler_.PinPrefix(prompt, "", ttl_s, now_);
        return;
      }
      case 4:
        if (bytes_.Below(8) == 0) scheduler_.ResetPrefixCache();
        return;
      default:
        if (Full() || (!Step() && !flights_.empty())) Commit();
    }
  }

  std::vector<Token> Prompt() {
    std::vector<Token> tokens(static_cast<std::size_t>(1 + bytes_.Below(24)));
    const Token family = bytes_.Below(3);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = family + static_cast<Token>(i % 5);
    return tokens;
  }

  void Submit() {
    const auto id = static_cast<RequestId>(bytes_.Below(6));
    const std::vector<Token> prompt = Prompt();
    const std::vector<Token> stops{bytes_.Below(5)};
    const auto result = scheduler_.Submit({.id = id,
                                           .tokens = prompt,
                                           .max_tokens = bytes_.Below(10),
                                           .stop_token_ids = stops,
                                           .priority = bytes_.Below(3),
                                           .read_prefix_cache = bytes_.Below(8) != 0,
                                           .now = now_});
    Must((result == SubmitResult::kDuplicate) == live_.contains(id), "an id has one live request");
    if (result != SubmitResult::kAccepted) return;
    live_.insert(id);
    ++accepted_;
  }

  bool Step() {
    now_ += 0.5;
    auto step = scheduler_.MakeStep(now_);
    scheduler_.Audit();
    if (step == nullptr) return false;
    hash_.Add(step->digest);
    flights_.push_back(std::move(step));
    return true;
  }

  void Commit() {
    const auto step = flights_.front();
    flights_.pop_front();
    std::vector<Token> tokens(static_cast<std::size_t>(step->num_samples));
    for (Token& token : tokens) token = bytes_.Below(7);
    const Deltas deltas = scheduler_.Commit(step->id, tokens);
    for (std::size_t i = 0; i < deltas.finish.size(); ++i) {
      Must(live_.contains(deltas.request_ids[i]), "a delta of nobody");
      if (deltas.finish[i] != 0) live_.erase(deltas.request_ids[i]);
    }
  }

  Bytes bytes_;
  Scheduler scheduler_;
  std::deque<std::shared_ptr<const tokenspeed::Step>> flights_;
  std::set<RequestId> live_;
  std::uint64_t accepted_ = 0;
  double now_ = 0;
  StepHash hash_;
};

}  // namespace
}  // namespace tokenspeed

#ifndef REPLAY

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size <= 2'000) tokenspeed::Player(tokenspeed::Bytes(data, size)).Play();
  return 0;
}

#else

// Prints one digest per file, and how many *go* cells of the rule table all of them took.
int main(int argc, char** argv) {
  tokenspeed::Trail all{};
  for (int i = 1; i < argc; ++i) {
    std::FILE* file = std::fopen(argv[i], "rb");
    if (file == nullptr) return 66;
    std::vector<std::uint8_t> bytes(1 << 16);
    bytes.resize(std::fread(bytes.data(), 1, bytes.size(), file));
    std::fclose(file);
    tokenspeed::Player player(tokenspeed::Bytes(bytes.data(), bytes.size()));
    std::printf("%016llx\n", static_cast<unsigned long long>(player.Play()));
    for (std::size_t cell = 0; cell < all.size(); ++cell) all[cell] |= player.trail()[cell];
  }
  int taken = 0;
  for (const bool cell : all) taken += cell ? 1 : 0;
  std::printf("go cells taken: %d\n", taken);
}

#endif
