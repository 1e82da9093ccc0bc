// SPDX-License-Identifier: Apache-2.0
#pragma once
// Typed exceptions with documented exit codes, and assertions that are active in every build.

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace slipstream {

/// Exit codes of the program; they are API (docs/how-to/first-run.md, "When it stops").
enum class ExitCode : int {
  ok = 0,
  config = 2,
  data = 3,
  checkpoint = 4,
  numerics = 5,
  communication = 6,
  resources = 7,
  bug = 70,
  preempted = 75,  // a signal ended the run after it had saved a checkpoint
};

/// Base of every error that a user may see. `what()` is one sentence of the form
/// "[where] what is wrong: got X, need Y. What to do."
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

#define SLIP_DEFINE_ERROR(Name, Code)                                                \
  class Name : public Error {                                                        \
   public:                                                                           \
    template <typename... Args>                                                      \
    explicit Name(fmt::format_string<Args...> format, Args&&... args)                \
        : Error(ExitCode::Code, fmt::format(format, std::forward<Args>(args)...)) {} \
  }

SLIP_DEFINE_ERROR(ConfigError, config);          // an invalid run file, flag or layout
SLIP_DEFINE_ERROR(DataError, data);              // text, token shards, vocabularies
SLIP_DEFINE_ERROR(CheckpointError, checkpoint);  // weights on disk
SLIP_DEFINE_ERROR(NumericsError, numerics);      // NaN, Inf
SLIP_DEFINE_ERROR(CommError, communication);     // a peer, a link, a collective
SLIP_DEFINE_ERROR(ResourceError, resources);     // memory, disk, devices
SLIP_DEFINE_ERROR(PlanError, bug);               // a plan that violates its own rules
SLIP_DEFINE_ERROR(ShapeError, bug);              // operands of mismatched shapes
SLIP_DEFINE_ERROR(InternalError, bug);           // an assertion

#undef SLIP_DEFINE_ERROR

namespace detail {
[[noreturn]] void assertion_failed(const char* expression, const char* file, int line);
}

}  // namespace slipstream

/// Asserts one property. The assertion is active in every build.
#define SLIP_ASSERT(condition)                                                \
  do {                                                                        \
    if (!(condition)) [[unlikely]]                                            \
      ::slipstream::detail::assertion_failed(#condition, __FILE__, __LINE__); \
  } while (false)
