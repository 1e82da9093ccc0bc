// SPDX-License-Identifier: Apache-2.0
#pragma once
// Abilities and choices of the emulated cuBLASLt, set by tests. Products are computed by their definition in double,
// and rounded once.

#include <cstddef>
#include <cstdint>
#include <map>

namespace slipstream::emulation {

struct FakeCublasLt {
  size_t version = 130100;
  bool fuses_gradients = true;    // has algorithms for DGELU and BGRADB
  int64_t gradient_ns = 0;        // added by a fused gradient to the virtual time of a product
  std::map<uint64_t, int> calls;  // products launched, by candidate
  std::map<int, int> targets;     // products launched, by the multiprocessors that they are planned for
};
/// Candidates in the order that the library proposes: candidate 0 comes first, 2 is the fastest, 3 is refused when
/// launched. Candidate 5 precedes all if parts of a sum may be added as D is stored.
constexpr uint64_t kFastestCandidate = 2, kFailingCandidate = 3, kRoundingCandidate = 5, kCandidates = 6;
FakeCublasLt& fake_cublaslt();

}  // namespace slipstream::emulation
