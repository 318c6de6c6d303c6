// How a state becomes the next: each overload consumes the old state and the event whole.
#ifndef TOKENSPEED_SCHEDULER_TRANSITIONS_H_
#define TOKENSPEED_SCHEDULER_TRANSITIONS_H_

#include <concepts>
#include <utility>

#include "events.h"
#include "states.h"

namespace tokenspeed {

template <typename S>
concept Running = std::same_as<S, Prefilling> || std::same_as<S, Decoding>;
template <typename S>
concept HoldsSlot = requires(S s) { s.held; };
template <typename S>
concept Lives = !std::same_as<S, Gone>;

// noexcept: the moves are; memory that runs out while a list of free blocks grows ends the
// process.
struct Transition {
  // What must hold beyond the rule. Asked before anything changes.
  template <typename S, typename E>
  static bool Allows(const S&, const E&) noexcept {
    return true;
  }
  // A retracted request first gets the results that are still its own.
  static bool Allows(const Retracted& old, const event::Admit&) noexcept {
    return old.samples_in_flight == 0;
  }
  // Every result was announced by its step.
  static bool Allows(const Decoding& old, const event::Sampled&) noexcept {
    return old.held.samples_in_flight > 0;
  }
  static bool Allows(const Finishing& old, const event::Sampled&) noexcept {
    return old.held.samples_in_flight > 0;
  }
  static bool Allows(const Retracted& old, const event::Sampled&) noexcept {
    return old.samples_in_flight > 0;
  }

  // Rejected drafts are rolled back: the next row writes where they were. Nothing of them was
  // published, and the blocks they had stay for the next tokens.
  static void Take(Held& held, const event::Sampled& sampled) noexcept {
    --held.samples_in_flight;
    held.drafts_in_flight -= sampled.drafts;
    held.scheduled -= sampled.rejected;
  }

  static State On(Waiting&&, event::Admit&& admit) noexcept {
    return Prefilling{std::move(admit.held)};
  }
  static State On(Retracted&&, event::Admit&& admit) noexcept {
    return Prefilling{std::move(admit.held)};
  }

  static State On(Prefilling&& old, event::StartDecoding&&) noexcept {
    return Decoding{std::move(old.held)};
  }

  static State On(Running auto&& old, event::AwaitLast&&) noexcept {
    return Finishing{std::move(old.held)};
  }

  static State On(Running auto&& old, event::Preempt&&) noexcept {
    const Retracted next{old.held.samples_in_flight};
    std::move(old.held).Release();
    return next;
  }

  static State On(Decoding&& old, event::Sampled&& sampled) noexcept {
    Take(old.held, sampled);
    return std::move(old);
  }
  static State On(Finishing&& old, event::Sampled&& sampled) noexcept {
    Take(old.held, sampled);
    return std::move(old);
  }
  static State On(Retracted&& old, event::Sampled&&) noexcept {
    return Retracted{old.samples_in_flight - 1};
  }

  template <Lives S>
  static State On(S&& old, event::End&&) noexcept {
    if constexpr (HoldsSlot<S>) std::move(old.held).Release();
    return Gone{};
  }
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_TRANSITIONS_H_
