// SPDX-License-Identifier: Apache-2.0
// Snapshots on a GPU: steps are replayed as graphs, but a step with a snapshot runs task by task between them, and
// gives the same bits.

#include "engine/checkpoint/kept_part.h"
#include "tests/equivalence/snapshots.h"
#include "tests/equivalence/table.h"
#include "tests/sample.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

TEST_CASE("snapshots between replayed steps equal the state at rest and change nothing", "[cuda]") {
  // Two steps are eager; then each of four is recorded and replayed, except for every third step, which has a snapshot.
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
        row.keeps = true;
        std::map<int, std::vector<std::byte>> slots;  // by step
        row.kept = [&](runtime::Rank& rank, int step, int slot) {
          const std::span<const std::byte> bytes = rank.kept(rank.job().keeping.own, slot);
          slots[step] = {bytes.begin(), bytes.end()};
        };
        const Seen seen = run_saving(row, kSteps);
        CHECK(seen.trained.hash == expected.trained.hash);
        CHECK(seen.trained.losses == expected.trained.losses);
        CHECK(!seen.states.empty());
        for (const auto& [at, bytes] : seen.states) {
          CAPTURE(std::get<0>(at), std::get<2>(at), std::get<3>(at));
          REQUIRE(bytes == expected.states.at(at));
        }
        // The last two slots of every step stay with a keeper.
        const std::unique_ptr<Job> job = make_job(row, 0);
        REQUIRE(slots.size() == 2);
        for (const auto& [step, bytes] : slots) {
          for (size_t b = 0; b < job->storage.size(); ++b)
            for (size_t i = 0; i < job->storage[b].kept.size(); ++i) {
              const Slice& slice = job->storage[b].kept[i];
              CAPTURE(step, b, i);
              REQUIRE(std::equal(bytes.begin() + slice.begin_bytes, bytes.begin() + slice.end_bytes(),
                                 expected.states.at({step, 0, b, i}).begin()));
            }
          std::vector<std::byte> header(Keeping::kHeaderBytes);
          checkpoint::seal_slot(
              header.data(), step,
              std::span(bytes).subspan(Keeping::kHeaderBytes, static_cast<size_t>(job->keeping.arrays_bytes)));
          CHECK(std::equal(header.begin(), header.begin() + 128, bytes.begin()));
        }
      }
}
