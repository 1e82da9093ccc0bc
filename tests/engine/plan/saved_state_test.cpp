// SPDX-License-Identifier: Apache-2.0
// The ranges that all ranks of a mesh save cover every element of the model once.

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "engine/plan/build_job.h"
#include "engine/plan/saved_state.h"
#include "models/model.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

struct Case {
  std::string name;
  MeshSizes sizes;
  int zero_stage = 0;
  int64_t bucket_bytes = 4 << 10;
  ReduceMode reduce_mode = ReduceMode::bucketed;
  std::vector<GroupRule> groups = PlanOptions{}.groups;
};

Job job_of(const Case& c, int rank) {
  const Coordinates at = Mesh(c.sizes).coordinates(rank);
  std::vector<int> layers(static_cast<size_t>(c.sizes.pipeline), 1);
  layers.back() = 2;
  const bool piped = c.sizes.pipeline > 1;
  Buffers buffers;
  ModelSpec model = models::build_model({.layers = c.sizes.pipeline + 1,
                                         .heads = 6,
                                         .kv_heads = 6,
                                         .width = 24,
                                         .ffn_width = 96,
                                         .context = 12,
                                         .vocab = 397,
                                         .batch = 2,
                                         .tokens = 12 / c.sizes.context,
                                         .context_ranks = c.sizes.context,
                                         .context_rank = at.context,
                                         .global_tokens = 12 * 2 * c.sizes.data * (piped ? 2 : 1),
                                         .micro_batches = piped ? 2 : 1,
                                         .ranks = c.sizes.data * c.sizes.context,
                                         .split_tied_embedding = c.zero_stage == 0 && c.sizes.tensor == 1,
                                         .cuts = cuts_of(layers),
                                         .ends_apart = piped,
                                         .tensor = c.sizes.tensor,
                                         .tensor_index = at.tensor,
                                         .whole_layers = c.zero_stage >= 2},
                                        buffers);
  return build_job(std::move(model), std::move(buffers),
                   {.sizes = c.sizes,
                    .rank = rank,
                    .reduce_mode = c.reduce_mode,
                    .bucket_bytes = c.bucket_bytes,
                    .first_bucket_bytes = 1 << 10,
                    .groups = c.groups,
                    .sharding = sharding_of_stage(c.zero_stage),
                    .layers = layers});
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int stage = 0; stage <= 3; ++stage)
    for (const MeshSizes& sizes : std::vector<MeshSizes>{{.data = 1},
                                                         {.data = 2},
                                                         {.data = 3},
                                                         {.data = 7},
                                                         {.data = 2, .context = 2},
                                                         {.data = 4, .data_inner = 2},
                                                         {.data = 6, .data_inner = 3},
                                                         {.data = 2, .context = 2, .data_inner = 2},
                                                         {.data = 2, .pipeline = 2},
                                                         {.data = 3, .pipeline = 3},
                                                         {.data = 2, .tensor = 2},
                                                         {.data = 2, .tensor = 3},
                                                         {.data = 2, .pipeline = 2, .tensor = 2},
                                                         {.data = 4, .pipeline = 2, .data_inner = 2}})
      for (int64_t bucket_bytes : {int64_t{4} << 10, int64_t{1} << 20})
        all.push_back({.name = "zero " + std::to_string(stage) + ", data " + std::to_string(sizes.data) + "/" +
                               std::to_string(sizes.data_inner) + ", context " + std::to_string(sizes.context) +
                               ", pipeline " + std::to_string(sizes.pipeline) + ", tensor " +
                               std::to_string(sizes.tensor),
                       .sizes = sizes,
                       .zero_stage = stage,
                       .bucket_bytes = bucket_bytes});
  for (ReduceMode mode : {ReduceMode::flat, ReduceMode::per_parameter})
    all.push_back({.name = "mode", .sizes = {.data = 3}, .reduce_mode = mode});
  return all;
}

}  // namespace

TEST_CASE("saved ranges: every element of every shard is saved by one of the ranks that hold it") {
  for (const Case& c : cases()) {
    CAPTURE(c.name, c.bucket_bytes);
    const Mesh mesh(c.sizes);
    // Counts, for each part of the model, how often each element of its flat order is saved.
    std::map<std::pair<int, int>, std::vector<int>> saved;
    std::map<std::tuple<int, int, size_t>, std::pair<int64_t, int64_t>> extremes;
    for (int rank = 0; rank < mesh.world(); ++rank) {
      CAPTURE(rank);
      const Job job = job_of(c, rank);
      const Coordinates at = mesh.coordinates(rank);
      std::vector<int>& counts = saved[{at.pipeline, at.tensor}];
      counts.resize(static_cast<size_t>(job.layout.flat_elems), 0);
      for (size_t b = 0; b < job.storage.size(); ++b) {
        const BucketStorage& storage = job.storage[b];
        const SavedRange range = saved_range(job, b, rank);
        const int64_t begin = range.begin_elems - storage.shard_offset_elems;
        REQUIRE(range.elems >= 0);
        REQUIRE(begin >= 0);
        REQUIRE(begin + range.elems <= storage.shard_elems);
        CHECK(begin % 16 == 0);
        for (int64_t i = 0; i < range.elems; ++i) ++counts[static_cast<size_t>(range.begin_elems + i)];
        auto& [least, most] = extremes.try_emplace({at.pipeline, at.tensor, b}, range.elems, range.elems).first->second;
        least = std::min(least, range.elems), most = std::max(most, range.elems);
      }
    }
    for (const auto& [part, counts] : saved)
      CHECK(std::all_of(counts.begin(), counts.end(), [](int count) { return count == 1; }));
    for (const auto& [bucket, range] : extremes) CHECK(range.second - range.first <= 16);
  }
}

TEST_CASE("saved parameters: stages and tensor ranks together save every element of the whole model once") {
  for (const Case& c : cases()) {
    CAPTURE(c.name);
    const Mesh mesh(c.sizes);
    int64_t elems = 0, whole = 0;
    for (int stage = 0; stage < c.sizes.pipeline; ++stage)
      for (int tensor = 0; tensor < c.sizes.tensor; ++tensor) {
        const Job job = job_of(c, mesh.rank({.pipeline = stage, .tensor = tensor}));
        whole = job.parameter_elems;
        for (const ParameterSpec& parameter : job.model.parameters)
          for (const NamedTensor& held : parameter.tensors)
            if (is_saved(job, parameter, job.options.rank))
              held.for_runs(tensor, 0, held.elems(), [&](int64_t, int64_t, int64_t count) { elems += count; });
      }
    CHECK(elems == whole);
  }
}
