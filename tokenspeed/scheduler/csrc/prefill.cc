// The prefill pass: chunks of prompts in order of rank, whether they hold their blocks or wait.
#include "scheduler.h"

#include <algorithm>
#include <utility>

#include "check.h"

namespace tokenspeed {

void Scheduler::ServePrompts(StepBuilder& build) {
  if (build.budget() == 0 && IsPromptInLine(build)) {  // runs took it all
    build.MarkDenied();
    build.MarkFull();
  }
  for (std::size_t i = 0; i < running_.size() && build.budget() > 0; ++i) {
    Request* request = running_[i];
    auto* prefilling = std::get_if<Prefilling>(&request->state);
    if (prefilling == nullptr) continue;
    // Each of them takes a place before this one.
    i += AdmitBefore(&request->rank, build);
    if (build.is_denied() || build.budget() == 0) return;
    const std::int32_t chunk = NextChunk(*request, prefilling->held.scheduled, build);
    if (chunk == 0) return build.MarkDenied();
    Slide(prefilling->held);
    TurnStates(*request, prefilling->held);
    AddChunk(*request, chunk, build);
  }
  if (!build.is_denied()) AdmitBefore(nullptr, build);
}

// Somebody would take tokens, were there any.
bool Scheduler::IsPromptInLine(const StepBuilder& build) const {
  if (waiting_.first() != nullptr && tables_.num_free() > 0 && !build.is_short()) return true;
  return std::any_of(running_.begin(), running_.end(), [](const Request* request) {
    return std::holds_alternative<Prefilling>(request->state);
  });
}

std::int32_t Scheduler::NextChunk(const Request& request, std::int32_t scheduled,
                                  const StepBuilder& build) const {
  const std::int32_t chunk = ChunkOf(request.known() - scheduled, build.budget(),
                                     config_.max_step_tokens, config_.chunked_prefill);
  if (num_state_groups_ == 0 || !cache_.enabled() || !config_.chunked_prefill) return chunk;
  return StopAtBlock(scheduled, chunk, request.known(), config_.block_size);
}

void Scheduler::AddChunk(Request& request, std::int32_t chunk, StepBuilder& build) {
  Held& held = std::get<Prefilling>(request.state).held;
  const bool last = held.scheduled + chunk == request.known();
  const bool samples = last && request.max_tokens > 0;
  if (request.known() - held.scheduled >= build.budget()) build.MarkFull();
  build.AddRow(request, held, chunk, samples, Enter(request, held));
  held.scheduled += chunk;
  held.last_step = build.id();
  Publish(request, held);
  const bool hands_over = config_.role == Role::kPrefill;
  if (hands_over) SendComputed(request, held, last, build);
  if (!last) return;
  if (samples) ++held.samples_in_flight;
  if (hands_over) {
    Apply(request.state, event::HandOver{}, trail_);
    ++num_finishing_;
  } else if (samples) {
    Apply(request.state, event::StartDecoding{}, trail_);
    FinishIfLast(request);
  } else {
    Apply(request.state, event::AwaitLast{}, trail_);
    ++num_finishing_;
  }
}

// What the first row after an admission says.
StepBuilder::Admission Scheduler::Enter(Request& request, const Held& held) {
  if (held.last_step != 0) return {};
  const bool first = !std::exchange(request.admitted_before, true);
  if (first) {
    counters_.prompt_tokens += static_cast<std::uint64_t>(request.prompt_len);
    counters_.cached_prompt_tokens += static_cast<std::uint64_t>(held.found);
  }
  return {.admitted = true, .cached = held.scheduled, .first = first};
}

}  // namespace tokenspeed
