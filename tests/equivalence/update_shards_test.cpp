// SPDX-License-Identifier: Apache-2.0
// What the optimizer is told to update, against the layout element by element: each one once, in the same place of
// every buffer, with the weight decay of its parameter.

#include "engine/plan/update_shards.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

/// Where an update finds an element's moment, and all that must follow from it.
struct Element {
  int64_t master = 0, gradient = 0, variance = 0, updated = 0, working = 0;  // bytes in their buffers
  bool decays = true;
  bool operator==(const Element&) const = default;
};
using Elements = std::map<std::pair<BufferId, int64_t>, Element>;  // by {buffer, byte} of the first moment

int64_t at(const Slice& slice, int64_t elem, int64_t elem_bytes = 4) { return slice.begin_bytes + elem * elem_bytes; }

/// Of the shards, with decay as adamw() reads its edges.
Elements of(const std::vector<UpdateShard>& shards, int64_t working_bytes) {
  Elements elements;
  bool once = true;
  for (const UpdateShard& shard : shards) {
    size_t passed = 0;
    for (int64_t e = 0; e < shard.elems; ++e) {
      while (passed < shard.decay_edges.size() && shard.decay_edges[passed] <= e) ++passed;
      const Element element{at(shard.master, e),
                            at(shard.gradient, e),
                            at(shard.states[1], e),
                            at(shard.updated, e),
                            working_bytes ? at(shard.working, e, working_bytes) : 0,
                            passed % 2 == 0};
      once &= elements.emplace(std::pair{shard.states[0].buffer, at(shard.states[0], e)}, element).second;
    }
    CHECK(std::is_sorted(shard.decay_edges.begin(), shard.decay_edges.end()));
  }
  CHECK(once);
  return elements;
}

/// From where the layout placed each part; padding goes with what is before it.
Elements placed(const Job& job, int64_t working_bytes) {
  Elements elements;
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const Bucket& bucket = job.layout.buckets[b];
    const BucketStorage& storage = job.storage[b];
    for (int64_t e = 0; e < storage.shard_elems; ++e) {
      size_t part = bucket.first_part;
      while (part + 1 < bucket.first_part + bucket.part_count &&
             job.layout.parts[part + 1].offset_elems <= storage.shard_offset_elems + e)
        ++part;
      elements[{storage.states[0].buffer, at(storage.states[0], e)}] = {
          at(storage.master, e),
          at(storage.gradient, e),
          at(storage.states[1], e),
          at(storage.master, e),  // the second buffer has the places of the first
          working_bytes ? at(storage.working, e, working_bytes) : 0,
          job.model.parameters[job.layout.parts[part].part.parameter].decay};
    }
  }
  return elements;
}

}  // namespace

TEST_CASE("updates: every element of a shard once, in one place of all buffers, with its parameter's decay") {
  for (const models::ModelOptions& model : {tiny_gpt2(), tiny_llama()})
    for (DType dtype : {DType::f32, DType::bf16})
      for (int stage = 0; stage < 4; ++stage)
        for (int64_t bucket_bytes : {int64_t{2} << 10, int64_t{8} << 10, int64_t{1} << 30})
          for (bool two_copies : {false, true}) {
            if (two_copies && stage == 3) continue;
            Layout layout{.name = "updates", .model = model, .ranks = stage == 0 ? 1 : 3, .micro_batch = 4};
            layout.model.dtype = dtype;
            layout.zero_stage = stage;
            layout.model.split_tied_embedding = stage == 0;
            layout.bucket_bytes = bucket_bytes;
            layout.double_buffer = two_copies;
            for (int rank = 0; rank < layout.ranks; ++rank) {
              const auto job = make_job(layout, rank);
              CAPTURE(stage, rank, bucket_bytes, two_copies, job->storage.size());
              const int64_t working_bytes = rounds_updates(*job) ? 2 : 0;
              CHECK(rounds_updates(*job) == (dtype == DType::bf16));
              const auto all = update_shards(*job, -1);
              const Elements expected = placed(*job, working_bytes);
              CHECK(of(all, working_bytes) == expected);
              // Nothing lies between the buckets of ranks that share nothing: one launch.
              if (stage == 0) CHECK(all.size() == 1);
              std::vector<UpdateShard> one_by_one;
              for (size_t b = 0; b < job->storage.size(); ++b) {
                const auto of_bucket = update_shards(*job, static_cast<int32_t>(b));
                REQUIRE(of_bucket.size() == 1);
                one_by_one.push_back(of_bucket[0]);
              }
              CHECK(of(one_by_one, working_bytes) == expected);
              // The edges of one launch: as many as a merge by hand leaves, not one at every bucket.
              if (stage == 0) {
                std::vector<int64_t> edges;
                int64_t elem = 0;
                bool decays = true;
                for (const auto& [assignment, element] : expected) {
                  if (element.decays != decays) edges.push_back(elem);
                  decays = element.decays;
                  ++elem;
                }
                CHECK(all[0].decay_edges == edges);
              }
              for (const UpdateShard& shard : all) {
                CHECK(shard.updated.buffer == (two_copies && shard.master.buffer == job->ids.values
                                                   ? job->ids.values_next
                                                   : shard.master.buffer));
              }
            }
          }
}
