// SPDX-License-Identifier: Apache-2.0
#pragma once
// A cpu device on which a work can access only its declared bytes.
//
// Works run one at a time, in host order, which the proof of a plan allows (launch gate "serial"). While one runs, the
// pages of the arenas without its declared bytes are inaccessible, and those that it only reads are read-only. Inside
// the open pages it runs twice, from the same inputs but with different poison: bytes that it only writes are poisoned
// both times, undeclared bytes the second time. Bytes that it may not write must not change, and its results must be
// the same.

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "engine/device/device.h"
#include "engine/plan/buffers.h"

namespace slipstream::guard {

/// An access that a work did not declare.
struct Violation {
  enum class Kind : uint8_t { reads, writes, depends };  // depends: on undeclared bytes, or on its output's old value
  Kind kind = Kind::reads;
  std::string work;
  std::string buffer;
  int64_t begin_bytes = 0, end_bytes = 0;  // in `buffer`, counted from its first instance

  /// "attention forward writes qkv bytes 0..96, which it does not declare."
  std::string sentence() const;
};

/// Results of removing declarations one at a time: those whose removal caused a violation, and those that did not. A
/// work that needs a declaration only in some launches (sums over micro-batches read their previous value) is in both.
/// Declarations that are in `noticed` are not removed again.
struct Counts {
  int64_t works = 0;                         // launches examined
  int64_t removed = 0;                       // declared reads and writes deleted
  std::set<std::string> noticed, unnoticed;  // "work reads buffer"
};

struct Options {
  bool removes_declarations =
      false;                  // run every work first without each of its declarations in turn, and once as declared
  bool runs_kernels = false;  // run works of kernels as on a GPU, which tests/emulation replaces
  bool counts_waits = false;  // count the waits that running one work at a time causes
};

/// A launch throws PlanError with the first violation. `counts` may be null. Borrows `buffers` and `counts`.
std::unique_ptr<Device> make_guarded_device(const Buffers& buffers, const Options& options, Counts* counts);

}  // namespace slipstream::guard
