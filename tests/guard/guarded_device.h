// SPDX-License-Identifier: Apache-2.0
#pragma once
// A cpu device on which a work can touch nothing but what it declares.
//
// Works run one at a time, in host order, which the proof of a plan allows (launch gate "serial"). While one runs, the
// pages of the arenas that hold none of its declared bytes are inaccessible and those that it only reads are read-only.
// Inside the pages that are open it runs twice, from the same inputs but with other poison: what it only writes is
// poisoned both times, undeclared bytes the second time. What it may not write must not change, and its results must be
// the same.

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "engine/device/device.h"
#include "engine/plan/buffers.h"

namespace slipstream::guard {

/// A work did something that it did not declare.
struct Violation {
  enum class Kind : uint8_t { reads, writes, depends };  // depends: on undeclared bytes, or on its output's old value
  Kind kind = Kind::reads;
  std::string work;
  std::string buffer;
  int64_t begin_bytes = 0, end_bytes = 0;  // of `buffer`, from its first instance

  /// "attention forward writes qkv bytes 0..96, which it does not declare."
  std::string sentence() const;
};

/// What happened to declarations that were taken away one at a time: those that made a violation, and those that did
/// not. A work that only some launches need a declaration for (sums over micro-batches read what they add to) is in
/// both.
struct Counts {
  int64_t works = 0;                         // launches examined
  int64_t removed = 0;                       // declared reads and writes deleted
  std::set<std::string> noticed, unnoticed;  // "work reads buffer"
};

struct Options {
  bool removes_declarations = false;  // try every work without each of its declarations first
  bool runs_kernels = false;          // works of kernels run as on a GPU, which tests/emulation stands in for
  bool counts_waits = false;          // own up to the waits that running one work at a time takes
};

/// A launch throws PlanError with the first violation. `counts` may be null. Borrows `buffers` and `counts`.
std::unique_ptr<Device> make_guarded_device(const Buffers& buffers, const Options& options, Counts* counts);

}  // namespace slipstream::guard
