// TS_CHECK: our own mistakes are loud. A broken invariant throws `Broken`; the owner of the
// scheduler must then drop it, because its state is no longer to be trusted.
#ifndef TOKENSPEED_SCHEDULER_CHECK_H_
#define TOKENSPEED_SCHEDULER_CHECK_H_

#include <stdexcept>
#include <string>

namespace tokenspeed {

class Broken : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] inline void ThrowBroken(const char* condition, const char* why, const char* file,
                                     int line) {
  throw Broken(std::string(file) + ":" + std::to_string(line) + ": " + why + " (" + condition +
               ")");
}

}  // namespace tokenspeed

#define TS_CHECK(condition, why)                                      \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::tokenspeed::ThrowBroken(#condition, why, __FILE__, __LINE__); \
  } while (false)

#endif  // TOKENSPEED_SCHEDULER_CHECK_H_
