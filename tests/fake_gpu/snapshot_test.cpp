// SPDX-License-Identifier: Apache-2.0
// Snapshots on a GPU: between steps that are replayed as graphs, one with a snapshot runs task by task, with the same
// bits.

#include "tests/equivalence/snapshots.h"
#include "tests/equivalence/table.h"
#include "tests/sample.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

TEST_CASE("snapshots between replayed steps equal the state at rest and change nothing", "[cuda]") {
  // Two eager steps, then each of four recorded and replayed, but for every third.
  constexpr int kSteps = 13;
  for (bool twice : {false, true})
    for (bool spine : {false, true})
      for (uint64_t seed : {0, 1}) {
        if (!test_everything() && twice == spine) continue;
        CAPTURE(twice, spine, seed);
        Layout row{.name = "one rank on a GPU",
                   .model = smallest(Family::gpt2),
                   .micro_batch = 2,
                   .bucket_bytes = 512,
                   .first_bucket_bytes = 256,
                   .double_buffer = twice,
                   .update_on_spine = spine && !twice,
                   .check_hazards = false,
                   .device = [](const Job&) { return make_cuda_device(0); }};
        const Seen expected = run_at_rest(row, kSteps);
        row.save_interval = 3;
        row.delay_seed = seed;
        const Seen seen = run_saving(row, kSteps);
        CHECK(seen.trained.hash == expected.trained.hash);
        CHECK(seen.trained.losses == expected.trained.losses);
        CHECK(!seen.states.empty());
        for (const auto& [at, bytes] : seen.states) {
          CAPTURE(std::get<0>(at), std::get<2>(at), std::get<3>(at));
          REQUIRE(bytes == expected.states.at(at));
        }
      }
}
