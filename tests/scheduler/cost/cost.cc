// What calls cost, in basic blocks run, never in time: the core is compiled with
// -fsanitize-coverage=trace-pc, which calls the counter below at each of them.
//
// Prints lines "what size blocks". The sizes are of what must not matter.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "scheduler.h"

namespace {
std::uint64_t work = 0;
}  // namespace

extern "C" void __sanitizer_cov_trace_pc() { ++work; }

namespace tokenspeed {
namespace {

constexpr std::int32_t kBlock = 16;

Config ConfigOf(std::int32_t blocks, std::int32_t running, std::int32_t tokens) {
  return {.num_blocks = blocks,
          .block_size = kBlock,
          .max_running = running,
          .max_step_tokens = std::max(tokens, running),
          .max_model_len = 2 * tokens + 4'000,
          .digest_key = {1, 2},
          .prefix_events = true};
}

std::vector<Token> Prompt(std::int32_t length, Token from) {
  std::vector<Token> tokens(static_cast<std::size_t>(length));
  std::iota(tokens.begin(), tokens.end(), from);
  return tokens;
}

void Submit(Scheduler& scheduler, RequestId id, std::int32_t length, Token from,
            std::int32_t max_tokens) {
  const std::vector<Token> tokens = Prompt(length, from);
  if (scheduler.Submit({.id = id, .tokens = tokens, .max_tokens = max_tokens,
                        .stop_token_ids = {}}) != SubmitResult::kAccepted) {
    std::abort();
  }
}

std::shared_ptr<const Step> Turn(Scheduler& scheduler) {
  auto step = scheduler.MakeStep(0);
  if (step != nullptr) {
    (void)scheduler.Commit(
        step->id, std::vector<Token>(static_cast<std::size_t>(step->num_samples), 7));
  }
  return step;
}

void Drain(Scheduler& scheduler) {
  while (Turn(scheduler) != nullptr) continue;
  (void)scheduler.TakePrefixEvents();
}

// `shares`: by how many the work is divided.
template <typename Call>
void Measure(const char* what, std::int32_t size, Call call, std::uint64_t shares = 1) {
  const std::uint64_t before = work;
  call();
  const std::uint64_t each = (work - before) / shares;
  std::printf("%s %d %llu\n", what, size, static_cast<unsigned long long>(each));
}

// A prompt of ten blocks that evicts ten, with `cached` blocks idle.
void Evict(std::int32_t cached) {
  Scheduler scheduler(ConfigOf(cached + 1, 2, 4'096));
  for (std::int32_t i = 0; i * 256 < cached; ++i) {
    Submit(scheduler, 1, 255 * kBlock + 1, 10'000 * i, 1);
    Drain(scheduler);
  }
  Submit(scheduler, 2, 10 * kBlock, 50'000'000, 1);
  Measure("evict", cached, [&] { (void)scheduler.MakeStep(0); });
}

// A decode step of a request with that many blocks.
void Decode(std::int32_t blocks) {
  Scheduler scheduler(ConfigOf(2 * blocks + 100, 1, blocks * kBlock));
  Submit(scheduler, 1, blocks * kBlock - kBlock / 2, 0, 500);
  for (int i = 0; i < 3; ++i) Turn(scheduler);
  Measure("decode", blocks, [&] {
    for (int i = 0; i < 2 * kBlock; ++i) Turn(scheduler);
  });
}

// A step beside `waiting` prompts that find no slot.
void Wait(std::int32_t waiting) {
  Scheduler scheduler(ConfigOf(20'000, 1, 8'192));
  Submit(scheduler, 0, 100, 0, 900);
  Turn(scheduler);
  for (std::int32_t i = 1; i <= waiting; ++i) {
    Submit(scheduler, static_cast<RequestId>(i), 4'000, 10 * i, 10);
  }
  Turn(scheduler);
  Measure("wait", waiting, [&] { Turn(scheduler); });
}

// A step beside a prompt that shares that many blocks, first in line and blocked for want of others.
// Tried again means one look at what is remembered, however many groups have to agree on it.
void Retry(const char* what, std::int32_t blocks, std::vector<CacheGroup> groups) {
  const auto count = static_cast<std::int32_t>(groups.size());
  Config config = ConfigOf(count * (blocks + 20), 2, blocks * kBlock);
  config.groups = std::move(groups);
  Scheduler scheduler(config);
  Submit(scheduler, 1, blocks * kBlock, 0, 12);
  Turn(scheduler);
  Submit(scheduler, 2, (blocks + 19) * kBlock, 0, 1);
  for (int i = 0; i < 3; ++i) Turn(scheduler);
  Measure(what, blocks, [&] { Turn(scheduler); });
  if (scheduler.GetStats().waiting != 1) std::abort();
}

// A row's part of a step beside that many others, in a model with states, where all are promised
// their room: what was promised is asked only where a state may be kept.
void DecodeEach(std::int32_t running) {
  Config config = ConfigOf(running * 10, running, running * 20);
  config.groups = {{}, {.kind = CacheGroup::Kind::kState}};
  config.overcommit = false;
  Scheduler scheduler(config);
  for (std::int32_t i = 0; i < running; ++i) {
    Submit(scheduler, static_cast<RequestId>(i), 20, 1'000 * i, 40);
  }
  for (int i = 0; i < 4; ++i) Turn(scheduler);
  if (scheduler.GetStats().running != running) std::abort();
  Measure("row", running, [&] { Turn(scheduler); }, static_cast<std::uint64_t>(running));
}

// The event of one more block, behind that many.
void Event(std::int32_t blocks) {
  Scheduler scheduler(ConfigOf(2 * blocks + 100, 1, blocks * kBlock));
  Submit(scheduler, 1, blocks * kBlock, 0, 500);
  Turn(scheduler);
  (void)scheduler.TakePrefixEvents();
  Measure("event", blocks, [&] {
    for (int i = 0; i < kBlock; ++i) Turn(scheduler);
    if (scheduler.TakePrefixEvents().size() != 1) std::abort();
  });
}

}  // namespace
}  // namespace tokenspeed

int main() {
  for (const std::int32_t size : {512, 4'096, 32'768}) tokenspeed::Evict(size);
  for (const std::int32_t size : {16, 256, 4'096}) {
    tokenspeed::Decode(size);
    tokenspeed::Retry("retry", size, {{}});
    tokenspeed::Retry("retry_joint", size,
                      {{}, {.kind = tokenspeed::CacheGroup::Kind::kWindow, .window = 1 << 20}});
    tokenspeed::Event(size);
  }
  for (const std::int32_t size : {1, 16, 256}) tokenspeed::Wait(size);
  for (const std::int32_t size : {4, 32, 256}) tokenspeed::DecodeEach(size);
}
