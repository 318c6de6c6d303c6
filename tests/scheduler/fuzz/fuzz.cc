// Bytes become calls. With -fsanitize=fuzzer a libFuzzer target; with -DREPLAY a program that
// replays files and prints a digest of the Steps of each, equal for every compiler and level, and
// which cells of the rule table none of them took. `player.py` builds and runs both.
//
// The full audit follows every few calls. At the end everything drains and nothing is left.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "rules.h"
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

// The audit costs as much as dozens of calls; what it would find stays wrong until the next one.
constexpr int kCallsPerAudit = 16;

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
  Config config{.num_blocks = 6 + bytes.Below(20),
                .block_size = 1 + bytes.Below(4),
                .max_running = 1 + bytes.Below(4),
                .max_step_tokens = 4 + bytes.Below(12),
                .max_model_len = 40,
                .prefix_cache = bytes.Below(4) != 0,
                .chunked_prefill = bytes.Below(4) != 0,
                .in_flight_depth = bytes.Below(2),
                .digest_key = {3, 4},
                .max_mixed_tokens = 1 + bytes.Below(8),
                .patience_steps = 1 + bytes.Below(3),
                .cache_lead_s = static_cast<double>(bytes.Below(3)),
                .max_waiting = bytes.Below(6),
                .max_draft_tokens = bytes.Below(9),  // and min_tail_tokens
                .overcommit = bytes.Below(4) != 0};
  config.min_tail_tokens = config.max_draft_tokens / 3;
  config.max_draft_tokens %= 3;
  // Of bytes that are there, so that the corpus keeps its meaning.
  config.max_backlog_tokens = config.max_mixed_tokens % 3 * 5;
  config.backlog_steps = config.patience_steps;
  config.max_step_tokens =
      std::max(config.max_step_tokens, config.max_running * (1 + config.max_draft_tokens));
  config.groups = kModels[static_cast<std::size_t>(bytes.Below(4))];
  const std::int32_t host = bytes.Below(4);
  config.num_host_blocks = host == 0 ? 0 : 2 + host * 9;
  config.disk = host > 1;
  config.remote = host > 2;
  config.transfer_credits = 2 + bytes.Below(30);
  config.role = std::array{Role::kFused, Role::kFused, Role::kPrefill,
                           Role::kDecode}[static_cast<std::size_t>(bytes.Below(4))];
  return config;
}

class Player {
 public:
  explicit Player(Bytes bytes) : bytes_(bytes), scheduler_(ConfigOf(bytes_)) {}

  std::uint64_t Play() {
    for (int calls = 0; !bytes_.done(); ++calls) {
      Call();
      if (calls % kCallsPerAudit == 0) scheduler_.Audit();
    }
    scheduler_.Audit();
    for (int quiet = 0, turn = 0; quiet < 3; ++turn) {
      Must(turn < 20'000, "what is live does not drain");
      const bool made = !Full() && Step();
      const bool told = Tell();
      const bool committed = !flights_.empty() && (!made || Full());
      if (committed) Commit();
      const bool busy = made || told || committed;
      Must(busy || live_.empty(), "stalled");
      quiet = busy ? 0 : quiet + 1;
      if (!busy) now_ += 1'000;
    }
    scheduler_.Audit();
    const Stats stats = scheduler_.GetStats();
    Must(stats.finished + stats.aborted + stats.failed + stats.expired == accepted_,
         "every request ends once");
    Must(stats.blocks_used == 0 && stats.slots_used == 0, "something leaked");
    Must(stats.host_blocks_used == 0 && stats.peers == 0, "a tier or a peer leaked");
    Must(stats.transfers_in_flight == 0 && stats.transfers_lost == 0, "a transfer leaked");
    scheduler_.ResetPrefixCache();
    const Stats after = scheduler_.GetStats();
    Must(after.blocks_free == stats.blocks_total, "the pool comes back whole");
    Must(after.host_blocks_free == stats.host_blocks_total, "and the host's");
    return hash_.value();
  }

  [[nodiscard]] const Trail& trail() const { return scheduler_.trail(); }

 private:
  [[nodiscard]] bool Full() const {
    return static_cast<std::int32_t>(flights_.size()) > scheduler_.config().in_flight_depth;
  }

  void Call() {
    switch (bytes_.Below(10)) {
      case 8: return Acknowledge();
      case 9: return Whisper();
      case 0:
      case 1: return Submit();
      case 2: {
        const auto id = static_cast<RequestId>(bytes_.Below(18));
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
    const std::vector<Token> stops{bytes_.Below(20)};
    const bool shared = scheduler_.config().role != Role::kFused;
    const PeerId peer = shared ? ++last_peer_ : 0;
    if (shared) rooms_[peer] = static_cast<std::int32_t>(prompt.size());
    const auto result = scheduler_.Submit({.id = id,
                                           .tokens = prompt,
                                           .max_tokens = bytes_.Below(16) + (shared ? 1 : 0),
                                           .stop_token_ids = stops,
                                           .priority = bytes_.Below(3),
                                           .read_prefix_cache = bytes_.Below(8) != 0,
                                           .now = now_,
                                           .max_wait_s = Patience(),
                                           .peer = peer});
    Must((result == SubmitResult::kDuplicate) == live_.contains(id), "an id has one live request");
    if (result != SubmitResult::kAccepted) return;
    live_.insert(id);
    ++accepted_;
  }

  bool Step() {
    now_ += 0.5;
    auto step = scheduler_.MakeStep(now_);
    Take(scheduler_.TakeEnded());
    if (step == nullptr) return false;
    for (std::size_t i = 0; i < step->transfers.tickets.size(); ++i) {
      const auto& t = step->transfers;
      pending_[t.tickets[i]] = static_cast<std::size_t>(t.begins[i + 1] - t.begins[i]);
      if (t.sources[i] == static_cast<std::uint8_t>(Tier::kPeer)) told_.insert(t.peers[i]);
    }
    hash_.Add(step->digest);
    flights_.push_back(std::move(step));
    return true;
  }

  void Commit() {
    const auto step = flights_.front();
    flights_.pop_front();
    const Config& config = scheduler_.config();
    const bool forces = config.role != Role::kPrefill &&
                        (config.in_flight_depth == 0 || config.max_draft_tokens == 0);
    std::vector<Token> tokens;
    std::vector<std::int32_t> counts;
    std::vector<std::int32_t> forced;
    for (std::size_t row = 0; row < step->num_rows(); ++row) {
      if (step->samples[row] == 0) continue;
      counts.push_back(1 + bytes_.Below(step->most_samples(row)));
      for (std::int32_t i = 0; i < counts.back(); ++i) tokens.push_back(bytes_.Below(7));
      // Here one token is always followed by some that nobody samples.
      forced.push_back(forces && tokens.back() == 5 ? bytes_.Below(12) : 0);
      counts.back() += forced.back();
      tokens.insert(tokens.end(), Index(forced.back()), 4);
    }
    Take(scheduler_.Commit(step->id, tokens, counts, forced));
  }

  // How long a request waits; mostly for ever.
  double Patience() {
    const std::int32_t wait = bytes_.Below(8);
    return wait < 3 ? 3.0 * wait : std::numeric_limits<double>::infinity();
  }

  void Take(const Deltas& deltas) {
    for (std::size_t i = 0; i < deltas.finish.size(); ++i) {
      Must(live_.contains(deltas.request_ids[i]), "a delta of nobody");
      if (deltas.finish[i] != 0) live_.erase(deltas.request_ids[i]);
    }
  }

  void Apply(const Report& report) {
    Take(scheduler_.ApplyReports({&report, 1}, now_));
  }

  // One transfer ends: well, badly in part, or nobody knows.
  void Acknowledge() {
    if (pending_.empty()) return;
    const auto at = std::next(pending_.begin(),
                              bytes_.Below(static_cast<std::int32_t>(pending_.size())));
    const auto [ticket, size] = *at;
    const std::int32_t how = bytes_.Below(8);
    if (how == 0 && lost_.insert(ticket).second) {
      // The clock may have found out before.
      if (scheduler_.GetStats().transfers_in_flight > 0) {
        try {
          Apply(report::TransferLost{ticket});
        } catch (const std::invalid_argument&) {
          scheduler_.Audit();  // a refusal changes nothing
        }
      }
      return;
    }
    report::TransferDone done{ticket, std::vector<std::uint8_t>(size, 1)};
    for (std::uint8_t& result : done.results) {
      if (how == 1) result = static_cast<std::uint8_t>(bytes_.Below(2));
    }
    pending_.erase(at);
    Apply(done);
  }

  // A peer says something.
  void Whisper() {
    if (rooms_.empty()) {
      now_ += bytes_.Below(40);
      return;
    }
    const auto at = std::next(rooms_.begin(),
                              bytes_.Below(static_cast<std::int32_t>(rooms_.size())));
    const PeerId peer = at->first;
    switch (bytes_.Below(4)) {
      case 0: return Apply(report::PeerGone{peer, bytes_.Below(2) != 0});
      case 1: return Apply(report::PeerProgress{peer});
      default: Answer(peer);
    }
  }

  // What the peer is there for. False: nothing is left for it to do.
  bool Answer(PeerId peer) {
    if (scheduler_.config().role == Role::kPrefill) {
      if (!ready_.insert(peer).second) return false;
      Apply(Manifest(peer, rooms_.at(peer)));
      return true;
    }
    if (told_.erase(peer) == 0) return false;
    Apply(report::PeerDelivered{peer, bytes_.Below(7)});
    return true;
  }

  report::PeerReady Manifest(PeerId peer, std::int32_t prompt_len) {
    const Config& config = scheduler_.config();
    const std::int32_t blocks = (prompt_len - 1) / config.block_size;
    report::PeerReady ready{peer, bytes_.Below(blocks + 1) * config.block_size, prompt_len, {}};
    BlockId next = 1;
    for (std::int32_t g = 0; g < config.num_groups(); ++g) {
      const CacheGroup& group = config.groups[static_cast<std::size_t>(g)];
      const Columns columns = ColumnsFor(config, group, ready.prefix_len, prompt_len);
      for (std::int32_t column = columns.begin; column < columns.end; ++column) {
        ready.blocks.push_back({.group = g, .column = column, .destination = next++});
      }
    }
    return ready;
  }

  // Everything that is still awaited comes. False: nothing was.
  bool Tell() {
    bool told = false;
    while (!pending_.empty()) {
      const auto [ticket, size] = *pending_.begin();
      pending_.erase(pending_.begin());
      Apply(report::TransferDone{ticket, std::vector<std::uint8_t>(size, 1)});
      told = true;
    }
    for (const auto& [peer, prompt_len] : rooms_) told = Answer(peer) || told;
    return told;
  }

  Bytes bytes_;
  Scheduler scheduler_;
  std::map<TicketId, std::size_t> pending_;  // and how many blocks it moves
  std::set<TicketId> lost_;
  std::map<PeerId, std::int32_t> rooms_;  // and the length of the prompt
  std::set<PeerId> ready_;                // to which the manifest came
  std::set<PeerId> told_;                 // that may write here
  PeerId last_peer_ = 0;
  std::deque<std::shared_ptr<const tokenspeed::Step>> flights_;
  std::set<RequestId> live_;
  std::uint64_t accepted_ = 0;
  double now_ = 0;
  StepHash hash_;
};

}  // namespace
}  // namespace tokenspeed

namespace tokenspeed {
namespace {

// As the compiler spells it: the name of a state is that of its type.
template <typename S>
std::string_view NameOf() {
  const std::string_view text = __PRETTY_FUNCTION__;
  const std::string_view before = "S = tokenspeed::";
  const std::size_t begin = text.find(before) + before.size();
  return text.substr(begin, text.find_first_of(";]", begin) - begin);
}

template <typename S, typename... Es>
void ReportRow(std::size_t state, const Trail& trail, int& go, int& taken, EventList<Es...>) {
  const std::array<bool, kNumEvents> goes = {kRule<S, Es> == kGo...};
  for (std::size_t event = 0; event < kNumEvents; ++event) {
    if (!goes[event]) continue;
    ++go;
    if (trail[state * kNumEvents + event]) {
      ++taken;
    } else {
      std::cout << "not taken: " << NameOf<S>() << " x " << Events::kNames[event] << '\n';
    }
  }
}

// Which *go* cells of the rule table were not taken, and how many were.
template <typename... Ss>
void ReportCells(const Trail& trail, std::type_identity<std::variant<Ss...>>) {
  int go = 0;
  int taken = 0;
  std::size_t state = 0;
  (ReportRow<Ss>(state++, trail, go, taken, Events{}), ...);
  std::cout << "go cells taken: " << taken << " of " << go << '\n';
}

std::vector<std::uint8_t> Read(const char* path) {
  std::ifstream file(path, std::ios::binary);
  Must(file.good(), path);
  return {std::istreambuf_iterator<char>(file), {}};
}

int Replay(std::span<char*> paths) {
  Trail all{};
  for (const char* path : paths) {
    const std::vector<std::uint8_t> bytes = Read(path);
    Player player(Bytes(bytes.data(), bytes.size()));
    std::cout << std::hex << std::setfill('0') << std::setw(16) << player.Play() << std::dec
              << '\n';
    for (std::size_t cell = 0; cell < all.size(); ++cell) all[cell] |= player.trail()[cell];
  }
  ReportCells(all, std::type_identity<State>{});
  return 0;
}

}  // namespace
}  // namespace tokenspeed

#ifdef REPLAY

int main(int argc, char** argv) {
  return tokenspeed::Replay(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
}

#else

// `replay FILES` does what the other program does, under the sanitizers.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::span words(*argv, static_cast<std::size_t>(*argc));
  if (words.size() > 1 && std::string_view(words[1]) == "replay") {
    std::exit(tokenspeed::Replay(words.subspan(2)));
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tokenspeed::Player(tokenspeed::Bytes(data, size)).Play();
  return 0;
}

#endif
