// The results of a step become tokens, ends and reusable blocks.
#include "scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "check.h"

namespace tokenspeed {

void Scheduler::CheckCounts(const Step& step, std::span<const Token> tokens,
                            std::span<const std::int32_t> counts,
                            std::span<const std::int32_t> forced) const {
  const auto samples = static_cast<std::size_t>(step.num_samples);
  std::size_t expected = samples;
  const auto check_rows = [&](std::size_t rows) {
    Require(rows == samples, "step " + std::to_string(step.id) + " samples " +
                                 std::to_string(samples) + " rows, not " + std::to_string(rows));
  };
  if (!forced.empty()) {
    check_rows(forced.size());
    Require(!counts.empty(), "tokens that were forced are part of the counts");
    Require(std::all_of(forced.begin(), forced.end(), [](std::int32_t n) { return n == 0; }) ||
                (config_.role != Role::kPrefill &&
                 (config_.in_flight_depth == 0 || config_.max_draft_tokens == 0)),
            "no token can be forced in the prefill role, or past drafts in flight");
    Require(!AnyNegative(forced), "counts of forced tokens must not be negative");
  }
  if (!counts.empty()) {
    check_rows(counts.size());
    expected = 0;
    std::size_t next = 0;
    for (std::size_t row = 0; row < step.num_rows(); ++row) {
      if (step.samples[row] == 0) continue;
      const std::int32_t count = counts[next];
      const std::int64_t sampled = std::int64_t{count} - (forced.empty() ? 0 : forced[next]);
      ++next;
      Require(sampled >= 1 && sampled <= step.most_samples(row),
              "a row of step " + std::to_string(step.id) + " cannot bring " +
                  std::to_string(sampled) + " tokens");
      expected += static_cast<std::size_t>(count);
    }
  }
  Require(tokens.size() == expected, "step " + std::to_string(step.id) + " samples " +
                                         std::to_string(expected) + " tokens, not " +
                                         std::to_string(tokens.size()));
  Require(!AnyNegative(tokens), "sampled token ids must not be negative");
}

Deltas Scheduler::Commit(StepId step_id, std::span<const Token> tokens,
                         std::span<const std::int32_t> counts,
                         std::span<const std::int32_t> forced) {
  Require(!in_flight_.empty() && in_flight_.front().step->id == step_id,
          "step " + std::to_string(step_id) + " is not the oldest step in flight");
  CheckCounts(*in_flight_.front().step, tokens, counts, forced);

  const InFlight done = std::move(in_flight_.front());
  in_flight_.pop_front();
  Settle(step_id);
  Deltas deltas;
  deltas.Reserve(tokens.size());
  std::size_t next = 0;
  std::size_t at = 0;
  for (std::size_t row = 0; row < done.rows.size(); ++row) {
    const bool sampled = done.step->samples[row] != 0;
    std::size_t count = sampled ? 1 : 0;
    std::int32_t given = 0;
    if (sampled && !counts.empty()) {
      count = Index(counts[next]);
      given = forced.empty() ? 0 : forced[next];
      ++next;
    }
    const std::span<const Token> brought = tokens.subspan(at, count);
    at += count;
    Request* request = requests_.Find(done.rows[row]);
    if (request == nullptr) continue;  // it ended while the step ran, or knows more already
    if (sampled) {
      Accept(*request, brought, given, done.step->most_samples(row) - 1, deltas);
    } else if (std::holds_alternative<Finishing>(request->state)) {
      // max_tokens is 0 and its last chunk may still be in the next step.
      if (HeldOf(request->state)->last_step == step_id) {
        ++counters_.finished;
        deltas.Add(request->id, kNoToken, Finish::kLength);
        End(*request);
      }
    }
  }
  return deltas;
}

void Scheduler::Settle(StepId committed) {
  committed_ = committed;
  cache_.Settle(committed);
  tables_.Settle(committed);
}

// `drafts` were in its row; one token fewer than was sampled of them stood. The last `forced` tokens
// follow them without having been sampled.
void Scheduler::Accept(Request& request, std::span<const Token> tokens, std::int32_t forced,
                       std::int32_t drafts, Deltas& deltas) {
  const std::int32_t stood = static_cast<std::int32_t>(tokens.size()) - forced - 1;
  Apply(request.state, event::Sampled{.drafts = drafts, .rejected = drafts - stood}, trail_);
  if (forced > 0) Overtake(request);
  if (std::holds_alternative<PrefillDone>(request.state)) {
    Peer& peer = peers_.at(request.peer);
    peer.token = tokens.front();
    OfferWord(peer);
  }
  Extend(request, tokens, deltas);
}

// What the request's row in flight samples is known by now: what it computes stands, and its result
// finds nobody. O(rows in flight).
void Scheduler::Overtake(Request& request) {
  for (InFlight& flight : in_flight_) {
    for (std::size_t row = 0; row < flight.rows.size(); ++row) {
      if (!(flight.rows[row] == request.handle) || flight.step->samples[row] == 0) continue;
      flight.rows[row] = Handle{};
      Apply(request.state, event::Sampled{.drafts = 0, .rejected = 0}, trail_);
    }
  }
}

// Tokens of the request are known. The prefill role never ends a request by one: its peer does.
void Scheduler::Extend(Request& request, std::span<const Token> tokens, Deltas& deltas) {
  const bool handed_over = std::holds_alternative<PrefillDone>(request.state);
  Finish how = Finish::kNo;
  for (const Token token : tokens) {
    ++counters_.generated_tokens;
    request.tokens.push_back(token);
    if (!handed_over) how = HowItEnds(request);
    deltas.Add(request.id, token, how);
    if (how != Finish::kNo) break;
  }
  if (cache_.enabled()) ExtendDigests(request);
  if (Held* held = HeldOf(request.state)) Publish(request, *held);

  if (how != Finish::kNo) {
    ++counters_.finished;
    End(request);
  } else if (std::holds_alternative<Decoding>(request.state)) {
    FinishIfLast(request);  // what stood may have left one token, which is in flight
  } else {
    Requeue(request);
  }
}

// A stop token counts once `min_tokens` were generated, itself included.
Finish Scheduler::HowItEnds(const Request& request) {
  if (request.generated() >= request.min_tokens &&
      std::binary_search(request.stop_token_ids.begin(), request.stop_token_ids.end(),
                         request.tokens.back())) {
    return Finish::kStop;
  }
  return request.generated() >= request.max_tokens ? Finish::kLength : Finish::kNo;
}

}  // namespace tokenspeed
