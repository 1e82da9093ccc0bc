// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the emulated cuBLASLt can do and takes, set by tests. Products are computed by their definition in double, and
// rounded once.

#include <cstddef>
#include <cstdint>
#include <map>

namespace slipstream::emulation {

struct FakeCublasLt {
  size_t version = 130100;
  bool fuses_gradients = true;    // has algorithms for DGELU and BGRADB
  int64_t gradient_ns = 0;        // that a fused gradient adds to the virtual time of a product
  std::map<uint64_t, int> calls;  // products launched, by candidate
};
/// Candidates in the order that the library proposes: it takes candidate 0 first, 2 is the fastest, 3 is refused when
/// launched. Before all of them comes 5, where parts of a sum may be added as D is stored.
constexpr uint64_t kFastestCandidate = 2, kFailingCandidate = 3, kRoundingCandidate = 5, kCandidates = 6;
FakeCublasLt& fake_cublaslt();

}  // namespace slipstream::emulation
