// SPDX-License-Identifier: Apache-2.0
#pragma once
// Abilities and choices of the emulated cuBLASLt, set by tests. Products are computed by their definition in double,
// and rounded once.

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>

namespace slipstream::emulation {

struct FakeCublasLt {
  size_t version = 130100;
  std::set<uint32_t> refused;           // epilogues without an algorithm (cublasLtEpilogue_t)
  std::map<uint32_t, int64_t> more_ns;  // added by an epilogue to the virtual time of a product
  std::map<uint64_t, int> calls;        // products launched, by candidate
  std::map<int, int> targets;           // products launched, by the multiprocessors that they are planned for
};
/// Candidates in the order that the library proposes: candidate 0 comes first, 2 is the fastest, 3 is refused when
/// launched. Candidate 5 precedes all and is faster still, if parts of a sum may be added as D is stored.
constexpr uint64_t kFastestCandidate = 2, kFailingCandidate = 3, kSplitCandidate = 5, kCandidates = 6;
FakeCublasLt& fake_cublaslt();

}  // namespace slipstream::emulation
