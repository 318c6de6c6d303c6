#include "step_builder.h"

#include <algorithm>
#include <utility>

namespace tokenspeed {
namespace {

// Everything that a step says, and the table entries it changes.
std::uint64_t DigestOf(const Step& step, const BlockTables& tables) {
  StepHash hash;
  hash.Add(step.id);
  hash.AddAll(step.request_ids);
  hash.AddAll(step.slots);
  hash.AddAll(step.query_lens);
  hash.AddAll(step.context_lens);
  hash.AddAll(step.unsure_lens);
  hash.AddAll(step.samples);
  hash.AddAll(step.admitted);
  hash.AddAll(step.cached_lens);
  hash.AddAll(step.first);
  hash.AddAll(step.tokens);
  for (const DirtyRange& range : step.dirty) {
    hash.Add(static_cast<std::uint64_t>(range.slot));
    hash.Add(static_cast<std::uint64_t>(range.begin));
    hash.AddAll(tables.Row(range.slot)
                    .subspan(static_cast<std::size_t>(range.begin),
                             static_cast<std::size_t>(range.end - range.begin)));
  }
  for (const Copy& copy : step.copies) {
    hash.Add(static_cast<std::uint64_t>(copy.source));
    hash.Add(static_cast<std::uint64_t>(copy.destination));
    hash.Add(static_cast<std::uint64_t>(copy.tokens));
  }
  step.transfers.AddTo(hash);
  return hash.value();
}

}  // namespace

StepBuilder::StepBuilder(StepId id, std::int32_t max_tokens, std::size_t expected_rows)
    : budget_(max_tokens) {
  step_->id = id;
  step_->Reserve(expected_rows);
  rows_.reserve(expected_rows);
}

void StepBuilder::AddRow(const Request& request, const Held& held, std::int32_t query_len,
                         bool samples, const Admission& admission) {
  Step& step = *step_;
  step.request_ids.push_back(request.id);
  step.slots.push_back(held.slot.id());
  step.query_lens.push_back(query_len);
  step.context_lens.push_back(held.scheduled);
  step.unsure_lens.push_back(held.drafts_in_flight);
  step.samples.push_back(samples ? 1 : 0);
  step.admitted.push_back(admission.admitted ? 1 : 0);
  step.cached_lens.push_back(admission.cached);
  step.first.push_back(admission.first ? 1 : 0);
  for (std::int32_t at = held.scheduled; at < held.scheduled + query_len; ++at) {
    const bool known = at < request.known();
    step.tokens.push_back(known ? request.tokens[static_cast<std::size_t>(at)] : kTokenOnDevice);
  }
  step.num_samples += samples ? 1 : 0;
  rows_.push_back(request.handle);
  budget_ -= query_len;
}

InFlight StepBuilder::Seal(BlockTables& tables) && {
  step_->dirty = tables.TakeDirty();
  step_->digest = DigestOf(*step_, tables);
  return {std::move(step_), std::move(rows_)};
}

}  // namespace tokenspeed
