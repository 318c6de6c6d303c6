// How a state becomes the next: each overload consumes the old state and the event whole. One that
// returns nothing changes what the state holds, and the state stays.
#ifndef TOKENSPEED_SCHEDULER_TRANSITIONS_H_
#define TOKENSPEED_SCHEDULER_TRANSITIONS_H_

#include <concepts>
#include <utility>

#include "events.h"
#include "states.h"

namespace tokenspeed {

template <typename S>
concept Running = std::same_as<S, Prefilling> || std::same_as<S, Decoding>;
// Its blocks are being filled by a transfer.
template <typename S>
concept Filled = std::same_as<S, Prefetching> || std::same_as<S, Restoring>;
template <typename S>
concept HoldsSlot = requires(S s) { s.held; };
template <typename S>
concept HoldsImage = requires(S s) { s.image; };
template <typename S>
concept AwaitsSamples = std::same_as<S, PrefillDone> || std::same_as<S, Decoding> ||
                        std::same_as<S, Finishing> || std::same_as<S, WritingBack> ||
                        std::same_as<S, Retracted>;
template <typename S>
concept Lives = !std::same_as<S, Gone>;

template <typename S>
auto& SamplesOf(S& state) noexcept {
  if constexpr (HoldsSlot<S>) {
    return state.held.samples_in_flight;
  } else {
    return state.samples_in_flight;
  }
}

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
  // What has an image is restored from it.
  static bool Allows(const Retracted& old, const event::AdmitLoading&) noexcept {
    return old.samples_in_flight == 0 && old.image == nullptr;
  }
  static bool Allows(const Retracted& old, const event::AdmitRestoring&) noexcept {
    return old.samples_in_flight == 0 && old.image != nullptr;
  }
  // Every result was announced by its step, every answer by its question.
  template <AwaitsSamples S>
  static bool Allows(const S& old, const event::Sampled&) noexcept {
    return SamplesOf(old) > 0;
  }
  static bool Allows(const Fetching& old, const event::Fetched&) noexcept {
    return old.outstanding > 0;
  }

  static State On(Bootstrapping&&, event::Bootstrap&&) noexcept { return Waiting{}; }

  static State On(Waiting&&, event::Fetch&& fetch) noexcept { return Fetching{fetch.tickets}; }
  static State On(Fetching&& old, event::Fetched&& fetched) noexcept {
    old.outstanding += fetched.more - 1;
    if (old.outstanding > 0) return old;
    return Waiting{};
  }

  static State On(Waiting&&, event::Admit&& admit) noexcept {
    return Prefilling{std::move(admit.held)};
  }
  static State On(Retracted&& old, event::Admit&& admit) noexcept {
    Release(std::move(old.image));
    return Prefilling{std::move(admit.held)};
  }
  static State On(Waiting&&, event::AdmitLoading&& admit) noexcept {
    return Prefetching{std::move(admit.held), admit.ticket};
  }
  static State On(Retracted&&, event::AdmitLoading&& admit) noexcept {
    return Prefetching{std::move(admit.held), admit.ticket};
  }
  static State On(Waiting&&, event::AdmitReceiving&& admit) noexcept {
    return Receiving{std::move(admit.held), admit.peer};
  }
  static State On(Retracted&& old, event::AdmitRestoring&& admit) noexcept {
    return Restoring{std::move(admit.held), admit.ticket, std::move(old.image)};
  }

  static State On(Prefetching&& old, event::Arrived&&) noexcept {
    return Prefilling{std::move(old.held)};
  }
  static State On(Receiving&& old, event::Arrived&&) noexcept {
    return Prefilling{std::move(old.held)};
  }
  static State On(Restoring&& old, event::Arrived&&) noexcept {
    Release(std::move(old.image));
    return Prefilling{std::move(old.held)};
  }
  template <Filled S>
  static State On(S&& old, event::NotArrived&&) noexcept {
    std::move(old.held).Release();
    if constexpr (HoldsImage<S>) Release(std::move(old.image));
    return Retracted{};
  }

  static State On(Prefilling&& old, event::StartDecoding&&) noexcept {
    return Decoding{std::move(old.held)};
  }
  static State On(Prefilling&& old, event::HandOver&&) noexcept {
    return PrefillDone{std::move(old.held)};
  }

  static State On(Running auto&& old, event::AwaitLast&&) noexcept {
    return Finishing{std::move(old.held)};
  }

  static State On(Running auto&& old, event::Preempt&&) noexcept {
    Retracted next{.samples_in_flight = old.held.samples_in_flight};
    std::move(old.held).Release();
    return next;
  }
  // The image stays good: a transfer only reads it.
  template <Filled S>
  static State On(S&& old, event::Preempt&&) noexcept {
    std::move(old.held).Release();
    Retracted next;
    if constexpr (HoldsImage<S>) next.image = std::move(old.image);
    return next;
  }
  static State On(Running auto&& old, event::WriteBack&& event) noexcept {
    WritingBack next{std::move(event.image), event.ticket, old.held.samples_in_flight};
    std::move(old.held).Release();
    return next;
  }

  static State On(WritingBack&& old, event::ImageStored&&) noexcept {
    return Retracted{old.samples_in_flight, std::move(old.image)};
  }
  static State On(WritingBack&& old, event::ImageLost&&) noexcept {
    Release(std::move(old.image));
    return Retracted{.samples_in_flight = old.samples_in_flight};
  }

  // Rejected drafts are rolled back: the next row writes where they were. Nothing of them was
  // published, and the blocks they had stay for the next tokens.
  template <AwaitsSamples S>
  static void On(S&& old, event::Sampled&& sampled) noexcept {
    --SamplesOf(old);
    if constexpr (HoldsSlot<S>) {
      old.held.drafts_in_flight -= sampled.drafts;
      old.held.scheduled -= sampled.rejected;
    }
  }

  template <Lives S>
  static State On(S&& old, event::End&&) noexcept {
    if constexpr (HoldsSlot<S>) std::move(old.held).Release();
    if constexpr (HoldsImage<S>) Release(std::move(old.image));
    return Gone{};
  }
};

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_TRANSITIONS_H_
