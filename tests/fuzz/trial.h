// SPDX-License-Identifier: Apache-2.0
#pragma once
// One input given to one reader, and the contract of all readers: an input is accepted or refused with a documented
// error of one sentence. Crashes, other exceptions, assertions and memory beyond a multiple of the input break it.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/check.h"

namespace slipstream::fuzz {

/// How a reader treated an input.
struct Outcome {
  bool accepted = false;
  ExitCode code = ExitCode::ok;  // of the refusal
  std::string sentence;          // of the refusal
  std::string breach;            // how the reader broke the contract; empty: it kept it
};

/// Runs `read` on an input of this size. A std::logic_error of `read` is a breach, too: it reports an accepted input
/// that does not have the promised properties.
Outcome outcome_of(size_t input_bytes, const std::function<void()>& read);

/// The first outcome, with the first breach of all.
Outcome first_of(const std::vector<Outcome>& outcomes);

/// Throws std::logic_error for a property that an accepted input lacks.
void require(bool property, const char* sentence);

/// Runs `use` on an accepted input, where a typed error is a breach.
void must_succeed(const std::function<void()>& use);

/// Writes `bytes` to the file `name` in a folder of this process in memory, and returns its path.
std::string input_file(const std::string& name, std::string_view bytes);

}  // namespace slipstream::fuzz

/// Makes the function of a target the entry point of libFuzzer (scripts/fuzz.sh). Nothing in other builds.
#ifdef SLIP_LIBFUZZER
#define SLIP_FUZZ_ENTRY(target)                                                                                     \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);                                         \
  extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {                                        \
    const slipstream::fuzz::Outcome outcome = target(std::string_view(reinterpret_cast<const char*>(bytes), size)); \
    if (!outcome.breach.empty()) {                                                                                  \
      std::fprintf(stderr, "BREACH %s\n", outcome.breach.c_str());                                                  \
      __builtin_trap();                                                                                             \
    }                                                                                                               \
    return 0;                                                                                                       \
  }
#else
#define SLIP_FUZZ_ENTRY(target) static_assert(true)
#endif
