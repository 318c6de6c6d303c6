// What a step costs. Long contexts on one full-attention group, prefix shared, int32 arrays in.
//
// The clock is here, never in the core. `bench quick` takes a tenth of the samples.
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "meter.h"
#include "scheduler.h"

namespace tokenspeed::bench {
namespace {

constexpr std::int32_t kShared = 50'000;
constexpr std::int32_t kNoLimit = 20'000;  // output tokens: more than any run takes

using Tokens = std::vector<Token>;

Tokens RandomTokens(std::mt19937& random, std::int32_t count) {
  Tokens tokens(static_cast<std::size_t>(count));
  for (Token& token : tokens) token = static_cast<Token>(random() % 100'000);
  return tokens;
}

Tokens With(const Tokens& prefix, const Tokens& tail) {
  Tokens all = prefix;
  all.insert(all.end(), tail.begin(), tail.end());
  return all;
}

// A scheduler and the shared prefix it serves.
struct World {
  World(std::int32_t block, std::int32_t running, std::int32_t shared, std::int32_t blocks,
        std::int32_t slots = 0, std::int32_t host_blocks = 0)
      : scheduler({.num_blocks = blocks,
                   .block_size = block,
                   .max_running = slots > 0 ? slots : std::max(running, 1),
                   .max_step_tokens = 8192,
                   .max_model_len = shared + 2 * kNoLimit,
                   .prefix_cache = true,
                   .chunked_prefill = true,
                   .in_flight_depth = 0,
                   .digest_key = {1, 2},
                   .num_host_blocks = host_blocks,
                   .transfer_credits = 1 << 20}),
        prefix(RandomTokens(random, shared)) {}

  void Submit(RequestId id, const Tokens& tokens, std::int32_t max_tokens) {
    const auto result =
        scheduler.Submit({.id = id, .tokens = tokens, .max_tokens = max_tokens,
                          .stop_token_ids = {}});
    if (result != SubmitResult::kAccepted) std::abort();
  }

  // Requests behind the shared prefix, each at its own phase of a block.
  void Start(std::int32_t count, std::int32_t max_tokens = kNoLimit) {
    for (std::int32_t i = 0; i < count; ++i) {
      Submit(next_id++, With(prefix, RandomTokens(random, 1 + static_cast<int>(random() % 384))),
             max_tokens);
    }
  }

  std::shared_ptr<const Step> Turn() {
    auto step = scheduler.MakeStep(0);
    if (step != nullptr) Commit(*step);
    return step;
  }

  Deltas Commit(const Step& step) {
    sampled.assign(static_cast<std::size_t>(step.num_samples), 0);
    for (Token& token : sampled) token = static_cast<Token>(random() % 100'000);
    return scheduler.Commit(step.id, sampled);
  }

  // Until everybody who can run decodes.
  void Settle() {
    for (auto step = Turn(); step != nullptr; step = Turn()) {
      if (static_cast<std::size_t>(step->num_decode_rows) == step->num_rows()) return;
    }
  }

  std::mt19937 random{7};
  Scheduler scheduler;
  Tokens prefix;
  Tokens sampled;
  RequestId next_id = 1;
};

int scale = 10;

std::string Name(const char* what, std::int32_t block, std::int32_t running,
                 std::int32_t context) {
  return std::string(what) + ", block " + std::to_string(block) + ", " +
         std::to_string(running) + " running, " + std::to_string(context / 1000) + "k";
}

double Decode(std::int32_t block, std::int32_t running, std::int32_t context, double target) {
  World world(block, running, context, 2 * context / block + running * (kNoLimit / block) + 64);
  world.Start(running);
  world.Settle();
  for (int i = 0; i < 20; ++i) world.Turn();
  Samples step;
  Samples commit;
  for (int i = 0; i < 100 * scale; ++i) {
    const auto made = Timed(step, [&] { return world.scheduler.MakeStep(0); });
    Timed(commit, [&] { return world.Commit(*made); });
  }
  Line(Name("decode step", block, running, context), step, target);
  Line("  p99 over median, at most 4", step.At(0.99) / step.At(0.5), 0, 4);
  Line("  commit", commit, 0);
  return step.At(0.5);
}

// What `waiting` blocked prompts add to a step of 32 decodes. `blocks_short`: they wait for blocks
// rather than for slots.
void Queue(std::int32_t block, bool blocks_short) {
  double base = 0;
  for (const int waiting : {0, 256}) {
    // Room for the decodes and what they grow by; far too little for one more private prompt.
    const std::int32_t need =
        kShared / block + 32 * (684 / block + 3) + 10'000 / block;
    World world(block, 32, kShared, need, blocks_short ? 300 : 32);
    world.Start(32);
    world.Settle();
    for (int i = 0; i < waiting; ++i) {
      // A private prompt as long as the pool takes: first in line, and never fits now.
      const std::int32_t tail = i == 0 && blocks_short ? kNoLimit : 200;
      Tokens prompt = blocks_short && i == 0 ? RandomTokens(world.random, kShared + tail)
                                             : With(world.prefix, RandomTokens(world.random, tail));
      world.Submit(world.next_id++, prompt, 200);
    }
    Samples step;
    for (int i = 0; i < 30 * scale; ++i) {
      const auto made = Timed(step, [&] { return world.scheduler.MakeStep(0); });
      world.Commit(*made);
    }
    if (world.scheduler.GetStats().waiting != waiting) std::abort();
    if (waiting == 0) base = step.At(0.5);
    const std::string why = blocks_short ? "blocks" : "slots";
    Line(Name(("32 decodes, " + std::to_string(waiting) + " wait for " + why).c_str(), block, 32,
              kShared),
         step, 0);
    if (waiting > 0) Line("  added by the queue", step.At(0.5) - base, 0, 50);
  }
}

// The first look at a cached 50k prompt, and the second while it still does not fit.
void Match(std::int32_t block) {
  Samples submit;
  Samples first;
  Samples retry;
  World world(block, 4, kShared, 2 * kShared / block + 128);
  world.Start(1, 4);
  while (world.Turn() != nullptr) continue;
  for (int i = 0; i < 5 * scale; ++i) {
    const Tokens prompt = With(world.prefix, RandomTokens(world.random, 192));
    Timed(submit, [&] { return (world.Submit(world.next_id++, prompt, 1), 0); });
    const auto step = Timed(first, [&] { return world.scheduler.MakeStep(0); });
    world.Commit(*step);
  }
  Line(Name("submit of a 50k prompt (digests)", block, 0, kShared), submit, 0);
  Line(Name("first match and admission of it, cached", block, 0, kShared), first, 250);

  // A holder of most of the pool, which decodes; the cached prompt is first in line and blocked.
  World tight(block, 4, kShared, kShared / block + kNoLimit / block + 12);
  tight.Start(1, 4);
  while (tight.Turn() != nullptr) continue;
  tight.Submit(900, With(tight.prefix, RandomTokens(tight.random, kNoLimit - 400)), 300);
  tight.Settle();
  tight.Submit(901, With(tight.prefix, RandomTokens(tight.random, 2000)), 300);
  Samples blocked;
  Timed(blocked, [&] { return tight.Turn(); });
  for (int i = 0; i < 20 * scale; ++i) {
    const auto made = Timed(retry, [&] { return tight.scheduler.MakeStep(0); });
    if (made == nullptr || made->num_rows() != 1) std::abort();
    tight.Commit(*made);
  }
  Line(Name("step of 1 decode with a blocked cached prompt: retry", block, 1, kShared), retry, 5);
}

void Evict() {
  constexpr std::int32_t kBlocks = 131'072;
  World world(16, 4, 64, kBlocks + 1);
  // Fill the cache: everything idle, nothing free.
  for (std::int32_t left = kBlocks; left > 0; left -= 1000) {
    world.Submit(world.next_id++, RandomTokens(world.random, 16'000), 1);
    while (world.Turn() != nullptr) continue;
  }
  Samples admit;
  for (int i = 0; i < 20 * scale; ++i) {
    world.Submit(world.next_id++, RandomTokens(world.random, 160), 1);
    const auto step = Timed(admit, [&] { return world.scheduler.MakeStep(0); });
    world.Commit(*step);
  }
  Line("admission that evicts 10 blocks of 131k", admit, 20);
}

// The whole of a 20-block request that is computed, copied to the host and acknowledged, while the
// host tier is full: every copy evicts there.
void HostTierFull() {
  constexpr std::int32_t kBlocks = 131'072;
  World world(16, 4, 64, 2'200, 0, kBlocks + 1);
  const auto acknowledge = [&](const Step& step) {
    std::vector<Report> reports;
    const Transfers& transfers = step.transfers;
    for (std::size_t i = 0; i < transfers.tickets.size(); ++i) {
      const auto blocks = static_cast<std::size_t>(transfers.begins[i + 1] - transfers.begins[i]);
      report::TransferDone done{transfers.tickets[i], std::vector<std::uint8_t>(blocks, 1)};
      reports.emplace_back(std::in_place_type<report::TransferDone>, std::move(done));
    }
    world.scheduler.ApplyReports(reports, 0);
  };
  for (std::int32_t left = kBlocks + 2'000; left > 0; left -= 1000) {
    world.Submit(world.next_id++, RandomTokens(world.random, 16'000), 1);
    for (auto step = world.Turn(); step != nullptr; step = world.Turn()) acknowledge(*step);
  }
  if (world.scheduler.GetStats().host_blocks_free != 0) std::abort();
  Samples whole;
  for (int i = 0; i < 20 * scale; ++i) {
    const Tokens prompt = RandomTokens(world.random, 320);
    world.Submit(world.next_id++, prompt, 1);
    std::size_t copied = 0;
    double spent = 0;
    for (;;) {
      const double begin = CpuMicros();
      const auto step = world.scheduler.MakeStep(0);
      spent += CpuMicros() - begin;
      if (step == nullptr) break;
      world.Commit(*step);
      copied += step->transfers.moves.size();
      const double reported = CpuMicros();
      acknowledge(*step);
      spent += CpuMicros() - reported;
    }
    if (copied != 20) std::abort();
    whole.Add(spent);
  }
  Line("20-block request with a full host tier of 131k", whole, 50);
}

void Memory(std::int32_t block) {
  constexpr std::int32_t kBlocks = 131'072;
  const std::size_t before = HeapBytes();
  auto world = std::make_unique<World>(block, 1, 0, kBlocks + 1);
  const Tokens prompt = RandomTokens(world->random, 30'000);
  for (std::int32_t left = kBlocks; left > 0; left -= 30'000 / block) {
    world->Submit(world->next_id++, RandomTokens(world->random, 30'000), 1);
    while (world->Turn() != nullptr) continue;
  }
  const auto cached = static_cast<double>(world->scheduler.GetStats().blocks_cached);
  const auto bytes = static_cast<double>(HeapBytes() - before);
  Line("bytes per cached block, all in, block " + std::to_string(block), bytes / cached, 0, 96);
}

// 256 agents; each turn its whole context comes back with 800 tokens more, and 500 are generated.
void Churn(std::int32_t block) {
  constexpr std::int32_t kAgents = 256;
  const std::int32_t turns = scale >= 10 ? 4 : 2;
  World world(block, kAgents, kShared,
              kShared / block + kAgents * (turns + 1) * (1300 / block + 1) + 64);
  std::vector<Tokens> contexts;
  std::vector<std::int32_t> done(kAgents, 0);
  for (std::int32_t i = 0; i < kAgents; ++i) {
    contexts.push_back(
        With(world.prefix, RandomTokens(world.random, 1 + static_cast<int>(world.random() % 192))));
  }
  double cpu = 0;
  double step_cpu = 0;
  std::uint64_t output = 0;
  std::uint64_t steps = 0;
  Samples step_time;
  const auto next_turn = [&](std::int32_t agent) {
    auto& context = contexts[static_cast<std::size_t>(agent)];
    context = With(context, RandomTokens(world.random, 800));
    const double begin = CpuMicros();
    world.Submit(static_cast<RequestId>(agent), context, 500);
    cpu += CpuMicros() - begin;
  };
  for (std::int32_t i = 0; i < kAgents; ++i) next_turn(i);
  for (;;) {
    const double begin = CpuMicros();
    const auto step = world.scheduler.MakeStep(0);
    const double middle = CpuMicros();
    if (step == nullptr) break;
    world.sampled.assign(static_cast<std::size_t>(step->num_samples),
                         static_cast<Token>(world.random() % 100'000));
    const double resumed = CpuMicros();
    const Deltas deltas = world.scheduler.Commit(step->id, world.sampled);
    cpu += middle - begin + CpuMicros() - resumed;
    step_cpu += middle - begin;
    step_time.Add(middle - begin);
    ++steps;
    output += deltas.tokens.size();
    for (std::size_t i = 0; i < deltas.finish.size(); ++i) {
      const auto agent = static_cast<std::size_t>(deltas.request_ids[i]);
      contexts[agent].push_back(deltas.tokens[i]);
      if (deltas.finish[i] != 0 && ++done[agent] < turns) {
        next_turn(static_cast<std::int32_t>(agent));
      }
    }
  }
  const auto per_token = cpu / static_cast<double>(output);
  Line("agentic churn, 256 agents: CPU us per output token, block " + std::to_string(block),
       per_token, 0, 5);
  Line("  step", step_time, 0);
  Line("  of it MakeStep, us per output token", step_cpu / static_cast<double>(output), 0, 0);
}

void All() {
  Header();
  for (const std::int32_t block : {64, 128}) {
    Decode(block, 1, kShared, 5);
    Decode(block, 64, kShared, 60);
    const double middle = Decode(block, 256, kShared, 250);
    for (const std::int32_t context : {1'000, 200'000}) {
      const double other = Decode(block, 256, context, 250);
      Line("  differs from 50k by us, at most 20 % or 2", std::abs(other - middle), 0,
           std::max(2.0, 0.2 * middle));
    }
    Queue(block, false);
    Queue(block, true);
    Match(block);
    Memory(block);
    Churn(block);
  }
  Evict();
  HostTierFull();
}

}  // namespace
}  // namespace tokenspeed::bench

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "quick") == 0) tokenspeed::bench::scale = 1;
  tokenspeed::bench::All();
}
