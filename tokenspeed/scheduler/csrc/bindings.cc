// The Python face: arrays in, zero-copy views out. No decision is made here.
//
// Every call that works on the scheduler drops the GIL first and then takes the face's mutex, so
// that threads may share a Scheduler; they see its calls one after the other.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "scheduler.h"

namespace py = pybind11;

namespace tokenspeed {
namespace {

// Exactly int32, one dimension: a silent cast of ids would be a silent error.
using TokenArray = py::array_t<Token, py::array::c_style>;

std::span<const Token> SpanOf(const TokenArray& array, const char* name) {
  if (array.ndim() != 1)
    throw std::invalid_argument(std::string(name) + " must have one dimension");
  return {array.data(), static_cast<std::size_t>(array.size())};
}

// A read-only view of memory that `owner` keeps alive.
template <typename T>
py::array View(std::vector<py::ssize_t> shape, const T* data, py::handle owner) {
  py::array view(py::dtype::of<T>(), std::move(shape), data, owner);
  // As `setflags(write=False)` does, without the call: a step has a dozen of these.
  py::detail::array_proxy(view.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return view;
}

template <typename T>
py::array_t<T> Copy(std::span<const T> values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

class Face {
 public:
  explicit Face(const Config& config) : core_(config) {}

  // Runs `call` on the core without the GIL, one caller at a time.
  template <typename Call>
  auto With(Call call) {
    py::gil_scoped_release nogil;
    const std::scoped_lock lock(mutex_);
    return call(core_);
  }

  [[nodiscard]] const BlockTables& tables() const { return core_.tables(); }
  [[nodiscard]] const Config& config() const { return core_.config(); }

 private:
  std::mutex mutex_;
  Scheduler core_;
};

SubmitResult Submit(Face& face, RequestId id, const TokenArray& tokens, std::int32_t max_tokens,
                    const TokenArray& stop_token_ids, std::int32_t min_tokens,
                    std::int32_t priority, const std::string& salt, bool read_prefix_cache,
                    double max_wait_s, PeerId peer, double now) {
  const Submission submission{.id = id,
                              .tokens = SpanOf(tokens, "tokens"),
                              .max_tokens = max_tokens,
                              .stop_token_ids = SpanOf(stop_token_ids, "stop_token_ids"),
                              .min_tokens = min_tokens,
                              .priority = priority,
                              .salt = salt,
                              .read_prefix_cache = read_prefix_cache,
                              .now = now,
                              .max_wait_s = max_wait_s,
                              .peer = peer};
  return face.With([&](Scheduler& core) { return core.Submit(submission); });
}

std::vector<CacheGroup> GroupsOf(const std::vector<std::pair<std::string, int>>& groups) {
  std::vector<CacheGroup> made;
  for (const auto& [kind, window] : groups) {
    Require(kind == "full" || kind == "window" || kind == "state",
            "groups: \"" + kind + "\" is none of full, window, state");
    made.push_back({kind == "full"     ? CacheGroup::Kind::kFull
                    : kind == "window" ? CacheGroup::Kind::kWindow
                                       : CacheGroup::Kind::kState,
                    window});
  }
  return made;
}

Role RoleOf(const std::string& role) {
  Require(role == "fused" || role == "prefill" || role == "decode",
          "role: \"" + role + "\" is none of fused, prefill, decode");
  return role == "fused" ? Role::kFused : role == "prefill" ? Role::kPrefill : Role::kDecode;
}

void BindConfig(py::module_& module) {
  using Key = std::pair<std::uint64_t, std::uint64_t>;
  py::class_<Config>(module, "SchedulerConfig")
      .def(py::init([](std::int32_t num_blocks, std::int32_t block_size, std::int32_t max_running,
                       std::int32_t max_step_tokens, std::int32_t max_model_len, bool prefix_cache,
                       bool chunked_prefill, std::int32_t in_flight_depth, const Key& digest_key,
                       double ageing_s, const std::vector<std::pair<std::string, int>>& groups,
                       bool prefix_events, std::int32_t max_mixed_tokens,
                       std::int32_t max_backlog_tokens, std::int32_t backlog_steps,
                       std::int32_t patience_steps, double cache_lead_s,
                       std::int32_t max_waiting, std::int32_t max_draft_tokens,
                       const std::string& role, std::int32_t num_host_blocks, bool disk,
                       bool remote, std::int32_t transfer_credits, double transfer_timeout_s,
                       double peer_timeout_s, double absent_s,
                       std::int32_t layers_per_transfer, bool overcommit,
                       std::int32_t min_tail_tokens) {
             Config config{.num_blocks = num_blocks,
                           .block_size = block_size,
                           .max_running = max_running,
                           .max_step_tokens = max_step_tokens,
                           .max_model_len = max_model_len,
                           .prefix_cache = prefix_cache,
                           .chunked_prefill = chunked_prefill,
                           .in_flight_depth = in_flight_depth,
                           .digest_key = {digest_key.first, digest_key.second},
                           .ageing_s = ageing_s,
                           .groups = GroupsOf(groups),
                           .prefix_events = prefix_events,
                           .max_mixed_tokens = max_mixed_tokens,
                           .max_backlog_tokens = max_backlog_tokens,
                           .backlog_steps = backlog_steps,
                           .patience_steps = patience_steps,
                           .cache_lead_s = cache_lead_s,
                           .max_waiting = max_waiting,
                           .max_draft_tokens = max_draft_tokens,
                           .overcommit = overcommit,
                           .min_tail_tokens = min_tail_tokens,
                           .role = RoleOf(role),
                           .num_host_blocks = num_host_blocks,
                           .disk = disk,
                           .remote = remote,
                           .transfer_credits = transfer_credits,
                           .transfer_timeout_s = transfer_timeout_s,
                           .peer_timeout_s = peer_timeout_s,
                           .absent_s = absent_s,
                           .layers_per_transfer = layers_per_transfer};
             config.Validate();
             return config;
           }),
           py::kw_only(), py::arg("num_blocks"), py::arg("block_size"), py::arg("max_running"),
           py::arg("max_step_tokens"), py::arg("max_model_len"), py::arg("prefix_cache"),
           py::arg("chunked_prefill"), py::arg("in_flight_depth"), py::arg("digest_key"),
           py::arg("ageing_s") = Config{}.ageing_s,
           py::arg("groups") = std::vector<std::pair<std::string, int>>{{"full", 0}},
           py::arg("prefix_events") = false,
           py::arg("max_mixed_tokens") = Config{}.max_mixed_tokens,
           py::arg("max_backlog_tokens") = Config{}.max_backlog_tokens,
           py::arg("backlog_steps") = Config{}.backlog_steps,
           py::arg("patience_steps") = Config{}.patience_steps,
           py::arg("cache_lead_s") = Config{}.cache_lead_s,
           py::arg("max_waiting") = Config{}.max_waiting,
           py::arg("max_draft_tokens") = Config{}.max_draft_tokens,
           py::arg("role") = "fused", py::arg("num_host_blocks") = 0, py::arg("disk") = false,
           py::arg("remote") = false,
           py::arg("transfer_credits") = Config{}.transfer_credits,
           py::arg("transfer_timeout_s") = Config{}.transfer_timeout_s,
           py::arg("peer_timeout_s") = Config{}.peer_timeout_s,
           py::arg("absent_s") = Config{}.absent_s,
           py::arg("layers_per_transfer") = Config{}.layers_per_transfer,
           py::arg("overcommit") = Config{}.overcommit,
           py::arg("min_tail_tokens") = Config{}.min_tail_tokens)
      .def_readonly("num_blocks", &Config::num_blocks)
      .def_readonly("block_size", &Config::block_size)
      .def_readonly("max_running", &Config::max_running)
      .def_readonly("max_step_tokens", &Config::max_step_tokens)
      .def_readonly("max_model_len", &Config::max_model_len)
      .def_readonly("prefix_cache", &Config::prefix_cache)
      .def_readonly("chunked_prefill", &Config::chunked_prefill)
      .def_readonly("in_flight_depth", &Config::in_flight_depth)
      .def_readonly("ageing_s", &Config::ageing_s)
      .def_readonly("max_mixed_tokens", &Config::max_mixed_tokens)
      .def_readonly("max_backlog_tokens", &Config::max_backlog_tokens)
      .def_readonly("backlog_steps", &Config::backlog_steps)
      .def_readonly("patience_steps", &Config::patience_steps)
      .def_readonly("cache_lead_s", &Config::cache_lead_s)
      .def_readonly("max_waiting", &Config::max_waiting)
      .def_readonly("max_draft_tokens", &Config::max_draft_tokens)
      .def_readonly("num_host_blocks", &Config::num_host_blocks)
      .def_readonly("overcommit", &Config::overcommit)
      .def_readonly("min_tail_tokens", &Config::min_tail_tokens)
      .def("blocks_of", &Config::DemandOf, py::arg("tokens"))
      .def_property_readonly("max_request_tokens", &Config::max_request_tokens)
      .def_property_readonly("row_lengths", &Config::row_lengths)
      .def_property_readonly("max_blocks_per_request", &Config::max_blocks_per_request);
  py::native_enum<SubmitResult>(module, "SubmitResult", "enum.Enum")
      .value("ACCEPTED", SubmitResult::kAccepted)
      .value("DUPLICATE", SubmitResult::kDuplicate)
      .value("EMPTY", SubmitResult::kEmpty)
      .value("TOO_LONG", SubmitResult::kTooLong)
      .value("NEVER_FITS", SubmitResult::kNeverFits)
      .value("EXCEEDS_STEP", SubmitResult::kExceedsStep)
      .value("QUEUE_FULL", SubmitResult::kQueueFull)
      .value("PEER_IN_USE", SubmitResult::kPeerInUse)
      .finalize();
  py::class_<Judgement>(module, "Judgement")
      .def_readonly("result", &Judgement::result)
      .def_readonly("needed", &Judgement::needed)
      .def_readonly("limit", &Judgement::limit);
}

void BindStats(py::module_& module) {
  py::class_<Stats>(module, "Stats")
      .def_readonly("running", &Stats::running)
      .def_readonly("waiting", &Stats::waiting)
      .def_readonly("slots_used", &Stats::slots_used)
      .def_readonly("blocks_total", &Stats::blocks_total)
      .def_readonly("blocks_used", &Stats::blocks_used)
      .def_readonly("blocks_cached", &Stats::blocks_cached)
      .def_readonly("blocks_free", &Stats::blocks_free)
      .def_readonly("blocks_pinned", &Stats::blocks_pinned)
      .def_readonly("blocks_quarantined", &Stats::blocks_quarantined)
      .def_readonly("steps", &Stats::steps)
      .def_readonly("prompt_tokens", &Stats::prompt_tokens)
      .def_readonly("cached_prompt_tokens", &Stats::cached_prompt_tokens)
      .def_readonly("generated_tokens", &Stats::generated_tokens)
      .def_readonly("preemptions", &Stats::preemptions)
      .def_readonly("finished", &Stats::finished)
      .def_readonly("aborted", &Stats::aborted)
      .def_readonly("expired", &Stats::expired)
      .def_readonly("failed", &Stats::failed)
      .def_readonly("host_blocks_total", &Stats::host_blocks_total)
      .def_readonly("host_blocks_used", &Stats::host_blocks_used)
      .def_readonly("host_blocks_cached", &Stats::host_blocks_cached)
      .def_readonly("host_blocks_free", &Stats::host_blocks_free)
      .def_readonly("host_blocks_quarantined", &Stats::host_blocks_quarantined)
      .def_readonly("transfers_in_flight", &Stats::transfers_in_flight)
      .def_readonly("transfers_lost", &Stats::transfers_lost)
      .def_readonly("transfers_failed", &Stats::transfers_failed)
      .def_readonly("peers", &Stats::peers)
      .def_readonly("host_blocks_loaded", &Stats::host_blocks_loaded)
      .def_readonly("images_stored", &Stats::images_stored)
      .def_readonly("images_restored", &Stats::images_restored)
      .def_readonly("head_wait_s", &Stats::head_wait_s);
}

// A property of `owner` that views one of its vectors.
template <typename Owner, typename T>
auto ViewOf(std::vector<T> Owner::*field) {
  return [field](py::object self) {
    const auto& values = self.cast<const Owner&>().*field;
    return View(std::vector<py::ssize_t>{static_cast<py::ssize_t>(values.size())}, values.data(),
                self);
  };
}

// A property that views a vector of records as rows of integers.
template <typename T, typename Owner, typename Record>
auto RowsOf(std::vector<Record> Owner::*field) {
  return [field](py::object self) {
    constexpr auto kWidth = static_cast<py::ssize_t>(sizeof(Record) / sizeof(T));
    const auto& records = self.cast<const Owner&>().*field;
    return View({static_cast<py::ssize_t>(records.size()), kWidth},
                reinterpret_cast<const T*>(records.data()), self);
  };
}

void BindTransfers(py::module_& module) {
  py::native_enum<Tier>(module, "Tier", "enum.IntEnum")
      .value("NONE", Tier::kNone)
      .value("DEVICE", Tier::kDevice)
      .value("HOST", Tier::kHost)
      .value("DISK", Tier::kDisk)
      .value("REMOTE", Tier::kRemote)
      .value("PEER", Tier::kPeer)
      .finalize();
  py::native_enum<Guard>(module, "Guard", "enum.IntEnum")
      .value("PINNED", Guard::kPinned)
      .value("ORDERED", Guard::kOrdered)
      .finalize();
  py::native_enum<Word>(module, "Word", "enum.IntEnum")
      .value("NONE", Word::kNone)
      .value("HAND_OVER", Word::kHandOver)
      .value("ABANDON", Word::kAbandon)
      .finalize();
  py::class_<Transfers>(module, "Transfers")
      .def("__len__", [](const Transfers& transfers) { return transfers.tickets.size(); })
      .def_property_readonly("tickets", ViewOf(&Transfers::tickets))
      .def_property_readonly("sources", ViewOf(&Transfers::sources))
      .def_property_readonly("destinations", ViewOf(&Transfers::destinations))
      .def_property_readonly("guards", ViewOf(&Transfers::guards))
      .def_property_readonly("words", ViewOf(&Transfers::words))
      .def_property_readonly("peers", ViewOf(&Transfers::peers))
      .def_property_readonly("after", ViewOf(&Transfers::after))
      .def_property_readonly("tokens", ViewOf(&Transfers::tokens))
      .def_property_readonly("prefix_lens", ViewOf(&Transfers::prefix_lens))
      .def_property_readonly("prompt_lens", ViewOf(&Transfers::prompt_lens))
      .def_property_readonly("layers", ViewOf(&Transfers::layers))
      .def_property_readonly("begins", ViewOf(&Transfers::begins))
      .def_property_readonly("moves", RowsOf<std::int32_t>(&Transfers::moves))
      .def_property_readonly("digests", RowsOf<std::uint64_t>(&Transfers::digests));
}

std::vector<Move> MovesOf(const TokenArray& blocks) {
  if (blocks.ndim() != 2 || blocks.shape(1) != 3) {
    throw std::invalid_argument("blocks must be int32 [K, 3]: group, column, block");
  }
  std::vector<Move> moves;
  for (py::ssize_t i = 0; i < blocks.shape(0); ++i) {
    moves.push_back({.group = blocks.at(i, 0),
                     .column = blocks.at(i, 1),
                     .destination = blocks.at(i, 2)});
  }
  return moves;
}

void BindReports(py::module_& module) {
  using Results = py::array_t<std::uint8_t, py::array::c_style>;
  py::class_<report::TransferDone>(module, "TransferDone")
      .def(py::init([](TicketId ticket, const Results& results) {
             if (results.ndim() != 1) {
               throw std::invalid_argument("results must have one dimension");
             }
             return report::TransferDone{ticket,
                                         {results.data(), results.data() + results.size()}};
           }),
           py::arg("ticket"), py::arg("results").noconvert());
  py::class_<report::TransferLost>(module, "TransferLost")
      .def(py::init<TicketId>(), py::arg("ticket"));
  py::class_<report::PeerReady>(module, "PeerReady")
      .def(py::init([](PeerId peer, std::int32_t prefix_len, std::int32_t prompt_len,
                       const TokenArray& blocks) {
             return report::PeerReady{peer, prefix_len, prompt_len, MovesOf(blocks)};
           }),
           py::arg("peer"), py::kw_only(), py::arg("prefix_len"), py::arg("prompt_len"),
           py::arg("blocks").noconvert());
  py::class_<report::PeerProgress>(module, "PeerProgress")
      .def(py::init<PeerId>(), py::arg("peer"));
  py::class_<report::PeerDelivered>(module, "PeerDelivered")
      .def(py::init<PeerId, Token>(), py::arg("peer"), py::arg("token"));
  py::class_<report::PeerGone>(module, "PeerGone")
      .def(py::init<PeerId, bool>(), py::arg("peer"), py::kw_only(), py::arg("quiet") = false);
}

void BindStep(py::module_& module) {
  py::class_<Step, py::smart_holder>(module, "Step")
      .def_readonly("id", &Step::id)
      .def_readonly("digest", &Step::digest)
      .def_property_readonly("num_rows", &Step::num_rows)
      .def_readonly("num_decode_rows", &Step::num_decode_rows)
      .def_property_readonly("num_tokens", [](const Step& step) { return step.tokens.size(); })
      .def_readonly("num_samples", &Step::num_samples)
      .def_property_readonly("request_ids", ViewOf(&Step::request_ids))
      .def_property_readonly("slots", ViewOf(&Step::slots))
      .def_property_readonly("query_lens", ViewOf(&Step::query_lens))
      .def_property_readonly("context_lens", ViewOf(&Step::context_lens))
      .def_property_readonly("unsure_lens", ViewOf(&Step::unsure_lens))
      .def_property_readonly("samples", ViewOf(&Step::samples))
      .def_property_readonly("admitted", ViewOf(&Step::admitted))
      .def_property_readonly("cached_lens", ViewOf(&Step::cached_lens))
      .def_property_readonly("first", ViewOf(&Step::first))
      .def_property_readonly("tokens", ViewOf(&Step::tokens))
      .def_property_readonly("dirty", RowsOf<std::int32_t>(&Step::dirty))
      .def_property_readonly("copies", RowsOf<std::int32_t>(&Step::copies))
      .def_readonly("transfers", &Step::transfers);
  py::class_<Deltas>(module, "Deltas")
      .def_property_readonly("request_ids", ViewOf(&Deltas::request_ids))
      .def_property_readonly("tokens", ViewOf(&Deltas::tokens))
      .def_property_readonly("finish", ViewOf(&Deltas::finish));
}

// uint64 [N, 2]: low and high half of each digest.
py::array Digests(const std::vector<Digest>& digests) {
  static_assert(sizeof(Digest) == 2 * sizeof(std::uint64_t));
  py::array_t<std::uint64_t> array({static_cast<py::ssize_t>(digests.size()), py::ssize_t{2}});
  std::memcpy(array.mutable_data(), digests.data(), digests.size() * sizeof(Digest));
  return array;
}

void BindPrefixes(py::class_<Face>& scheduler) {
  scheduler
      .def(
          "pin_prefix",
          [](Face& face, const TokenArray& tokens, double ttl_s, const std::string& salt,
             double now) {
            const auto span = SpanOf(tokens, "tokens");
            return face.With(
                [&](Scheduler& core) { return core.PinPrefix(span, salt, ttl_s, now); });
          },
          py::arg("tokens").noconvert(), py::kw_only(), py::arg("ttl_s"),
          py::arg("salt") = py::bytes(), py::arg("now"))
      .def(
          "digests_of",
          [](Face& face, const TokenArray& tokens, const std::string& salt) {
            const auto span = SpanOf(tokens, "tokens");
            return Digests(face.With([&](Scheduler& core) { return core.DigestsOf(span, salt); }));
          },
          py::arg("tokens").noconvert(), py::kw_only(), py::arg("salt") = py::bytes())
      .def("cached_digests",
           [](Face& face) {
             return Digests(face.With([](Scheduler& core) { return core.CachedDigests(); }));
           })
      .def("take_prefix_events", [](Face& face) {
        const auto events = face.With([](Scheduler& core) { return core.TakePrefixEvents(); });
        std::vector<Digest> digests;
        std::vector<std::uint8_t> stored;
        for (const PrefixEvent& event : events) {
          digests.push_back(event.digest);
          stored.push_back(event.stored ? 1 : 0);
        }
        return py::make_tuple(Digests(digests), Copy(std::span<const std::uint8_t>(stored)));
      });
}

void BindScheduler(py::module_& module) {
  py::class_<Face> scheduler(module, "Scheduler");
  BindPrefixes(scheduler);
  scheduler
      .def(py::init<const Config&>(), py::arg("config"))
      .def_property_readonly("config", &Face::config)
      .def_property_readonly(
          "block_tables",
          [](py::object self) {
            const BlockTables& tables = self.cast<const Face&>().tables();
            return View({tables.num_slots(), tables.row_length()}, tables.data(), self);
          })
      .def("submit", &Submit, py::arg("request_id"), py::arg("tokens").noconvert(),
           py::arg("max_tokens"), py::arg("stop_token_ids").noconvert(), py::kw_only(),
           py::arg("min_tokens") = 0, py::arg("priority") = 0, py::arg("salt") = py::bytes(),
           py::arg("read_prefix_cache") = true,
           py::arg("max_wait_s") = std::numeric_limits<double>::infinity(), py::arg("peer") = 0,
           py::arg("now"))
      .def(
          "judge",
          [](Face& face, std::int32_t prompt_len, std::int32_t max_tokens) {
            Require(prompt_len >= 0 && max_tokens >= 0, "counts must not be negative");
            return face.With([&](Scheduler& core) { return core.Judge(prompt_len, max_tokens); });
          },
          py::arg("prompt_len"), py::arg("max_tokens"))
      .def(
          "apply",
          [](Face& face, const std::vector<Report>& reports, double now) {
            return face.With([&](Scheduler& core) { return core.ApplyReports(reports, now); });
          },
          py::arg("reports"), py::arg("now"))
      .def("take_ended",
           [](Face& face) { return face.With([](Scheduler& core) { return core.TakeEnded(); }); })
      .def(
          "abort",
          [](Face& face, RequestId id) {
            return face.With([&](Scheduler& core) { return core.Abort(id); });
          },
          py::arg("request_id"))
      .def(
          "step",
          [](Face& face, double now) {
            auto step = face.With([&](Scheduler& core) { return core.MakeStep(now); });
            return std::const_pointer_cast<Step>(step);
          },
          py::arg("now"))
      .def(
          "commit",
          [](Face& face, StepId step_id, const TokenArray& tokens,
             const std::optional<TokenArray>& counts, const std::optional<TokenArray>& forced) {
            const auto span = SpanOf(tokens, "tokens");
            std::span<const std::int32_t> per_row;
            std::span<const std::int32_t> given;
            if (counts.has_value()) per_row = SpanOf(*counts, "counts");
            if (forced.has_value()) given = SpanOf(*forced, "forced");
            return face.With(
                [&](Scheduler& core) { return core.Commit(step_id, span, per_row, given); });
          },
          py::arg("step_id"), py::arg("tokens").noconvert(),
          py::arg("counts").noconvert() = py::none(), py::arg("forced").noconvert() = py::none())
      .def(
          "tokens",
          [](Face& face, RequestId id) {
            const auto tokens = face.With([&](Scheduler& core) {
              const auto span = core.Tokens(id);
              return std::vector<Token>(span.begin(), span.end());
            });
            return Copy(std::span(tokens));
          },
          py::arg("request_id"))
      .def("stats",
           [](Face& face) { return face.With([](Scheduler& core) { return core.GetStats(); }); })
      .def("check", [](Face& face) { face.With([](Scheduler& core) { core.Audit(); }); })
      .def("reset_prefix_cache", [](Face& face) {
        return face.With([](Scheduler& core) { return core.ResetPrefixCache(); });
      });
}

}  // namespace
}  // namespace tokenspeed

PYBIND11_MODULE(_core, module) {
  module.doc() = "The scheduler core. See README.md beside the sources.";
  tokenspeed::BindConfig(module);
  tokenspeed::BindStats(module);
  tokenspeed::BindTransfers(module);
  tokenspeed::BindStep(module);
  tokenspeed::BindReports(module);
  tokenspeed::BindScheduler(module);
}
