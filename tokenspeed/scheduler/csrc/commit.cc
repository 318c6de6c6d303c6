// The results of a step become tokens, ends and reusable blocks.
#include "scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

#include "check.h"

namespace tokenspeed {

Deltas Scheduler::Commit(StepId step_id, std::span<const Token> tokens) {
  Require(!in_flight_.empty() && in_flight_.front().step->id == step_id,
          "step " + std::to_string(step_id) + " is not the oldest step in flight");
  const auto expected = static_cast<std::size_t>(in_flight_.front().step->num_samples);
  Require(tokens.size() == expected, "step " + std::to_string(step_id) + " samples " +
                                         std::to_string(expected) + " tokens, not " +
                                         std::to_string(tokens.size()));
  Require(!AnyNegative(tokens), "sampled token ids must not be negative");

  const InFlight done = std::move(in_flight_.front());
  in_flight_.pop_front();
  Settle(step_id);
  Deltas deltas;
  std::size_t next = 0;
  for (std::size_t row = 0; row < done.rows.size(); ++row) {
    const bool sampled = done.step->samples[row] != 0;
    const Token token = sampled ? tokens[next++] : kNoToken;
    Request* request = requests_.Find(done.rows[row]);
    if (request == nullptr) continue;  // it ended while the step ran
    if (sampled) {
      Accept(*request, token, deltas);
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

void Scheduler::Accept(Request& request, Token token, Deltas& deltas) {
  Apply(request.state, event::Sampled{}, trail_);
  ++counters_.generated_tokens;
  request.tokens.push_back(token);
  if (cache_.enabled()) ExtendDigests(request);
  if (Held* held = HeldOf(request.state)) Publish(request, *held);

  const Finish how = HowItEnds(request);
  deltas.Add(request.id, token, how);
  if (how != Finish::kNo) {
    ++counters_.finished;
    End(request);
  } else if (const auto* retracted = std::get_if<Retracted>(&request.state);
             retracted != nullptr && retracted->samples_in_flight == 0) {
    waiting_.Push(request, last_now_);
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
