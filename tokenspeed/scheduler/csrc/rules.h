// The complete table of states and events, and the one place where a state changes.
//
// Every cell is written: *go* (there is a transition), *ignore* (nothing happens, and that is
// right) or *reject* (whoever sends the event is wrong). A state or an event without its cell
// does not compile, nor does a *go* without a transition or a transition without a *go*.
#ifndef TOKENSPEED_SCHEDULER_RULES_H_
#define TOKENSPEED_SCHEDULER_RULES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

#include "check.h"
#include "events.h"
#include "states.h"
#include "transitions.h"

namespace tokenspeed {

enum class Verdict : std::uint8_t { kGo, kIgnore, kReject };

// A cell of the table. No default: a cell that is left out does not compile.
struct Rule {
  Rule() = delete;  // every state needs a rule for every event
  constexpr Rule(Verdict v) : verdict(v) {}
  Verdict verdict;
};

// The row of a state: one cell per event, in the order of `Events`.
struct Row {
  Rule bootstrap, fetch, fetched, admit, admit_loading, admit_receiving, admit_restoring, arrived,
      not_arrived, start_decoding, hand_over, await_last, preempt, write_back, image_stored,
      image_lost, sampled, end;
};

inline constexpr auto kGo = Verdict::kGo;
inline constexpr auto kIgnore = Verdict::kIgnore;
inline constexpr auto kReject = Verdict::kReject;

// clang-format off
template <typename S> inline constexpr Row kRow = S::a_state_needs_a_row_of_rules;
template <> inline constexpr Row kRow<Bootstrapping> = {
    .bootstrap = kGo, .fetch = kReject, .fetched = kReject, .admit = kReject,
    .admit_loading = kReject, .admit_receiving = kReject, .admit_restoring = kReject,
    .arrived = kReject, .not_arrived = kReject, .start_decoding = kReject, .hand_over = kReject,
    .await_last = kReject, .preempt = kReject, .write_back = kReject, .image_stored = kReject,
    .image_lost = kReject, .sampled = kReject, .end = kGo};
template <> inline constexpr Row kRow<Waiting> = {
    .bootstrap = kReject, .fetch = kGo, .fetched = kReject, .admit = kGo, .admit_loading = kGo,
    .admit_receiving = kGo, .admit_restoring = kReject, .arrived = kReject,
    .not_arrived = kReject, .start_decoding = kReject, .hand_over = kReject,
    .await_last = kReject, .preempt = kReject, .write_back = kReject, .image_stored = kReject,
    .image_lost = kReject, .sampled = kReject, .end = kGo};
template <> inline constexpr Row kRow<Fetching> = {
    .bootstrap = kReject, .fetch = kReject, .fetched = kGo, .admit = kReject,
    .admit_loading = kReject, .admit_receiving = kReject, .admit_restoring = kReject,
    .arrived = kReject, .not_arrived = kReject, .start_decoding = kReject, .hand_over = kReject,
    .await_last = kReject, .preempt = kReject, .write_back = kReject, .image_stored = kReject,
    .image_lost = kReject, .sampled = kReject, .end = kGo};
template <> inline constexpr Row kRow<Prefetching> = {
    .bootstrap = kReject, .fetch = kReject, .fetched = kReject, .admit = kReject,
    .admit_loading = kReject, .admit_receiving = kReject, .admit_restoring = kReject,
    .arrived = kGo, .not_arrived = kGo, .start_decoding = kReject, .hand_over = kReject,
    .await_last = kReject, .preempt = kGo, .write_back = kReject, .image_stored = kReject,
    .image_lost = kReject, .sampled = kReject, .end = kGo};
// Not preempted: a peer writes its blocks.
template <> inline constexpr Row kRow<Receiving> = {
    .bootstrap = kReject, .fetch = kReject, .fetched = kReject, .admit = kReject,
    .admit_loading = kReject, .admit_receiving = kReject, .admit_restoring = kReject,
    .arrived = kGo, .not_arrived = kReject, .start_decoding = kReject, .hand_over = kReject,
    .await_last = kReject, .preempt = kReject, .write_back = kReject, .image_stored = kReject,
    .image_lost = kReject, .sampled = kReject, .end = kGo};
template <> inline constexpr Row kRow<Prefilling> = {
    .bootstrap = kReject, .fetch = kReject, .fetched = kReject, .admit = kReject,
    .admit_loading = kReject, .admit_receiving = kReject, .admit_restoring = kReject,
    .arrived = kReject, .not_arrived = kReject, .start_decoding = kGo, .hand_over = kGo,
    .await_last = kGo, .preempt = kGo, .write_back = kGo, .image_stored = kReject,
    .image_lost = kReject, .sampled = kReject, .end = kGo};
// Not preempted, nor is Finishing: their blocks come back by themselves, as soon.
template <> inline constexpr Row kRow<PrefillDone> = {
    .bootstrap = kReject, .fetch = kReject, .fetched = kReject, .admit = kReject,
    .admit_loading = kReject, .admit_receiving = kReject, .admit_restoring = kReject,
    .arrived = kReject, .not_arrived = kReject, .start_decoding = kReject, .hand_over = kReject,
    .await_last = kReject, .preempt = kReject, .write_back = kReject, .image_stored = kReject,
    .image_lost = kReject, .sampled = kGo, .end = kGo};
template <> inline constexpr Row kRow<Decoding> = {
    .bootstrap = kReject, .fetch = kReject, .fetched = kReject, .admit = kReject,
    .admit_loading = kReject, .admit_receiving = kReject, .admit_restoring = kReject,
    .arrived = kReject, .not_arrived = kReject, .start_decoding = kReject, .hand_over = kReject,
    .await_last = kGo, .preempt = kGo, .write_back = kGo, .image_stored = kReject,
    .image_lost = kReject, .sampled = kGo, .end = kGo};
template <> inline constexpr Row kRow<Finishing> = {
    .bootstrap = kReject, .fetch = kReject, .fetched = kReject, .admit = kReject,
    .admit_loading = kReject, .admit_receiving = kReject, .admit_restoring = kReject,
    .arrived = kReject, .not_arrived = kReject, .start_decoding = kReject, .hand_over = kReject,
    .await_last = kReject, .preempt = kReject, .write_back = kReject, .image_stored = kReject,
    .image_lost = kReject, .sampled = kGo, .end = kGo};
template <> inline constexpr Row kRow<WritingBack> = {
    .bootstrap = kReject, .fetch = kReject, .fetched = kReject, .admit = kReject,
    .admit_loading = kReject, .admit_receiving = kReject, .admit_restoring = kReject,
    .arrived = kReject, .not_arrived = kReject, .start_decoding = kReject, .hand_over = kReject,
    .await_last = kReject, .preempt = kReject, .write_back = kReject, .image_stored = kGo,
    .image_lost = kGo, .sampled = kGo, .end = kGo};
template <> inline constexpr Row kRow<Retracted> = {
    .bootstrap = kReject, .fetch = kReject, .fetched = kReject, .admit = kGo,
    .admit_loading = kGo, .admit_receiving = kReject, .admit_restoring = kGo, .arrived = kReject,
    .not_arrived = kReject, .start_decoding = kReject, .hand_over = kReject,
    .await_last = kReject, .preempt = kReject, .write_back = kReject, .image_stored = kReject,
    .image_lost = kReject, .sampled = kGo, .end = kGo};
template <> inline constexpr Row kRow<Restoring> = {
    .bootstrap = kReject, .fetch = kReject, .fetched = kReject, .admit = kReject,
    .admit_loading = kReject, .admit_receiving = kReject, .admit_restoring = kReject,
    .arrived = kGo, .not_arrived = kGo, .start_decoding = kReject, .hand_over = kReject,
    .await_last = kReject, .preempt = kGo, .write_back = kReject, .image_stored = kReject,
    .image_lost = kReject, .sampled = kReject, .end = kGo};
// Whatever comes late for a request that ended is dropped, and ending twice is ending once.
template <> inline constexpr Row kRow<Gone> = {
    .bootstrap = kIgnore, .fetch = kReject, .fetched = kIgnore, .admit = kReject,
    .admit_loading = kReject, .admit_receiving = kReject, .admit_restoring = kReject,
    .arrived = kIgnore, .not_arrived = kIgnore, .start_decoding = kReject, .hand_over = kReject,
    .await_last = kReject, .preempt = kReject, .write_back = kReject, .image_stored = kIgnore,
    .image_lost = kIgnore, .sampled = kIgnore, .end = kIgnore};
// clang-format on

template <typename E>
struct Column;
template <>
struct Column<event::Bootstrap> {
  static constexpr std::string_view kName = "bootstrap";
  static constexpr auto kCell = &Row::bootstrap;
};
template <>
struct Column<event::Fetch> {
  static constexpr std::string_view kName = "fetch";
  static constexpr auto kCell = &Row::fetch;
};
template <>
struct Column<event::Fetched> {
  static constexpr std::string_view kName = "fetched";
  static constexpr auto kCell = &Row::fetched;
};
template <>
struct Column<event::Admit> {
  static constexpr std::string_view kName = "admit";
  static constexpr auto kCell = &Row::admit;
};
template <>
struct Column<event::AdmitLoading> {
  static constexpr std::string_view kName = "admit_loading";
  static constexpr auto kCell = &Row::admit_loading;
};
template <>
struct Column<event::AdmitReceiving> {
  static constexpr std::string_view kName = "admit_receiving";
  static constexpr auto kCell = &Row::admit_receiving;
};
template <>
struct Column<event::AdmitRestoring> {
  static constexpr std::string_view kName = "admit_restoring";
  static constexpr auto kCell = &Row::admit_restoring;
};
template <>
struct Column<event::Arrived> {
  static constexpr std::string_view kName = "arrived";
  static constexpr auto kCell = &Row::arrived;
};
template <>
struct Column<event::NotArrived> {
  static constexpr std::string_view kName = "not_arrived";
  static constexpr auto kCell = &Row::not_arrived;
};
template <>
struct Column<event::StartDecoding> {
  static constexpr std::string_view kName = "start_decoding";
  static constexpr auto kCell = &Row::start_decoding;
};
template <>
struct Column<event::HandOver> {
  static constexpr std::string_view kName = "hand_over";
  static constexpr auto kCell = &Row::hand_over;
};
template <>
struct Column<event::AwaitLast> {
  static constexpr std::string_view kName = "await_last";
  static constexpr auto kCell = &Row::await_last;
};
template <>
struct Column<event::Preempt> {
  static constexpr std::string_view kName = "preempt";
  static constexpr auto kCell = &Row::preempt;
};
template <>
struct Column<event::WriteBack> {
  static constexpr std::string_view kName = "write_back";
  static constexpr auto kCell = &Row::write_back;
};
template <>
struct Column<event::ImageStored> {
  static constexpr std::string_view kName = "image_stored";
  static constexpr auto kCell = &Row::image_stored;
};
template <>
struct Column<event::ImageLost> {
  static constexpr std::string_view kName = "image_lost";
  static constexpr auto kCell = &Row::image_lost;
};
template <>
struct Column<event::Sampled> {
  static constexpr std::string_view kName = "sampled";
  static constexpr auto kCell = &Row::sampled;
};
template <>
struct Column<event::End> {
  static constexpr std::string_view kName = "end";
  static constexpr auto kCell = &Row::end;
};

template <typename S, typename E>
inline constexpr Verdict kRule = (kRow<S>.*Column<E>::kCell).verdict;

template <typename... Es>
struct EventList {
  static constexpr std::size_t kSize = sizeof...(Es);
  static constexpr std::array<std::string_view, kSize> kNames = {Column<Es>::kName...};
};
using Events = EventList<event::Bootstrap, event::Fetch, event::Fetched, event::Admit,
                         event::AdmitLoading, event::AdmitReceiving, event::AdmitRestoring,
                         event::Arrived, event::NotArrived, event::StartDecoding, event::HandOver,
                         event::AwaitLast, event::Preempt, event::WriteBack, event::ImageStored,
                         event::ImageLost, event::Sampled, event::End>;
inline constexpr std::size_t kNumStates = std::variant_size_v<State>;
inline constexpr std::size_t kNumEvents = Events::kSize;
static_assert(sizeof(Row) == kNumEvents * sizeof(Rule), "every column of the table is an event");

namespace detail {

template <typename S, typename E>
concept HasTransition = requires(S&& state, E&& happened) {
  { Transition::On(std::move(state), std::move(happened)) } noexcept;
};

template <typename S, typename E>
consteval bool CellHolds() {
  static_assert(HasTransition<S, E> == (kRule<S, E> == kGo),
                "a cell says go exactly where there is a noexcept transition");
  return true;
}

template <typename S, typename... Es>
consteval bool RowHolds(EventList<Es...>) {
  return (CellHolds<S, Es>() && ...);
}

template <typename... Ss>
consteval bool TableHolds(std::type_identity<std::variant<Ss...>>) {
  return (RowHolds<Ss>(Events{}) && ...);
}

template <typename E, typename... Es>
consteval std::size_t IndexOf(EventList<Es...>) {
  std::size_t index = 0;
  (void)((std::is_same_v<E, Es> || (++index, false)) || ...);
  return index;
}

}  // namespace detail

static_assert(detail::TableHolds(std::type_identity<State>{}));

// What the table says to an event, without applying it.
template <typename E>
Verdict VerdictOf(const State& state) {
  return std::visit([]<typename S>(const S&) { return kRule<S, E>; }, state);
}

// Which *go* cells were taken, for tests that must reach them: bit state * kNumEvents + event.
using Trail = std::array<bool, kNumStates * kNumEvents>;

// Applies one event. Strong guarantee: the verdict and the guard are settled before the old
// state is consumed, and a transition does not throw. A guard or a *reject* that strikes is a
// mistake of ours: it throws Broken and changes nothing.
template <typename E>
Verdict Apply(State& state, E happened, Trail& trail) {
  return std::visit(
      [&]<typename S>(S& old) -> Verdict {
        constexpr Verdict verdict = kRule<S, E>;
        if constexpr (verdict == kGo) {
          TS_CHECK(Transition::Allows(std::as_const(old), std::as_const(happened)),
                   "the guard of a transition holds");
          trail[state.index() * kNumEvents + detail::IndexOf<E>(Events{})] = true;
          if constexpr (std::is_void_v<decltype(Transition::On(std::move(old),
                                                               std::move(happened)))>) {
            Transition::On(std::move(old), std::move(happened));
          } else {
            // By way of a value: assigning to the variant ends the life of `old`.
            State next = Transition::On(std::move(old), std::move(happened));
            state = std::move(next);
          }
        } else {
          TS_CHECK(verdict != kReject, "an event came in a state that rejects it");
        }
        return verdict;
      },
      state);
}

}  // namespace tokenspeed

#endif  // TOKENSPEED_SCHEDULER_RULES_H_
