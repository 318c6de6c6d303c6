// The step under construction.
#ifndef TOKENSPEED_SCHEDULER_STEP_BUILDER_H_
#define TOKENSPEED_SCHEDULER_STEP_BUILDER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "block_table.h"
#include "ids.h"
#include "request.h"
#include "states.h"
#include "step.h"

namespace tokenspeed {

// A step that was handed out and not yet committed, and whose rows those are.
struct InFlight {
  std::shared_ptr<const Step> step;
  std::vector<Handle> rows;
};

// Collects rows and keeps the one budget of tokens. Decides nothing.
class StepBuilder {
 public:
  StepBuilder(StepId id, std::int32_t max_tokens, std::size_t expected_rows);

  // What an admitted row says beyond the others.
  struct Admission {
    bool admitted = false;
    std::int32_t cached = 0;
    bool first = false;
  };

  // The next `query_len` tokens of a request that holds `held`.
  // What is not known of them is on the device. REQUIRES: query_len <= budget().
  void AddRow(const Request& request, const Held& held, std::int32_t query_len, bool samples,
              const Admission& admission);

  void AddTransfer(const Ticket& ticket, std::int32_t layers) {
    step_->transfers.Add(ticket, layers);
  }

  void AddCopy(const Copy& copy) { step_->copies.push_back(copy); }

  // All rows so far are decode rows; `budget` tokens of prompts may follow.
  void EndOfDecodes(std::int32_t budget) {
    step_->num_decode_rows = static_cast<std::int32_t>(rows_.size());
    budget_ = budget;
  }

  // The first prompt in line found too little budget left for it: those behind it wait too.
  void MarkDenied() { denied_ = true; }

  // A prompt could have used all the tokens that were left.
  void MarkFull() { full_ = true; }

  // Blocks ran short in this step: nobody new is let in.
  void MarkShort() { short_ = true; }

  [[nodiscard]] bool is_short() const { return short_; }
  [[nodiscard]] bool is_denied() const { return denied_; }
  [[nodiscard]] bool is_full() const { return full_; }
  [[nodiscard]] bool empty() const { return rows_.empty() && step_->transfers.empty(); }
  [[nodiscard]] std::int32_t budget() const { return budget_; }
  [[nodiscard]] StepId id() const { return step_->id; }

  // Adds the changes of the tables and the digest; the step is immutable from here on.
  InFlight Seal(BlockTables& tables) &&;

 private:
  std::shared_ptr<Step> step_ = std::make_shared<Step>();
  std::vector<Handle> rows_;
  std::int32_t budget_;
  bool short_ = false;
  bool denied_ = false;
  bool full_ = false;
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_STEP_BUILDER_H_
