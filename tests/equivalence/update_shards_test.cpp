// SPDX-License-Identifier: Apache-2.0
// Compares the input of the optimizer with the layout, element by element: each one occurs once, in the same place of
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

/// Position of an element's moment in an update, and the values that must follow from it.
struct Element {
  int64_t master = 0, gradient = 0, variance = 0, updated = 0, working = 0;  // bytes in their buffers
  float learning_rate = 1, weight_decay = 1;
  bool operator==(const Element&) const = default;
};
using Elements = std::map<std::pair<BufferId, int64_t>, Element>;  // by {buffer, byte} of the first moment

int64_t at(const Slice& slice, int64_t elem, int64_t elem_bytes = 4) { return slice.begin_bytes + elem * elem_bytes; }

/// The elements according to the shards, with multipliers as adamw() reads their spans.
Elements of(const std::vector<UpdateShard>& shards, int64_t working_bytes) {
  Elements elements;
  bool once = true;
  for (const UpdateShard& shard : shards) {
    size_t passed = 0;
    for (int64_t e = 0; e < shard.elems; ++e) {
      while (passed < shard.spans.size() && shard.spans[passed].begin <= e) ++passed;
      const UpdateSpan span = passed > 0 ? shard.spans[passed - 1] : UpdateSpan{};
      const Element element{at(shard.master, e),
                            at(shard.gradient, e),
                            at(shard.states[1], e),
                            at(shard.updated, e),
                            working_bytes ? at(shard.working, e, working_bytes) : 0,
                            span.learning_rate,
                            span.weight_decay};
      once &= elements.emplace(std::pair{shard.states[0].buffer, at(shard.states[0], e)}, element).second;
    }
    for (size_t i = 1; i < shard.spans.size(); ++i) CHECK(shard.spans[i - 1].begin < shard.spans[i].begin);
  }
  CHECK(once);
  return elements;
}

/// The elements according to the layout's position of each part; padding belongs to the part before it.
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
          at(storage.master, e),  // the places of the first buffer are also those of the second
          working_bytes ? at(storage.working, e, working_bytes) : 0,
          1,
          job.model.parameters[job.layout.parts[part].part.parameter].decay ? 1.0f : 0.0f};
    }
  }
  return elements;
}

Item update_of(int32_t bucket) {
  Item update;
  update.bucket = bucket;
  update.group = 0;
  return update;
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
              const int64_t working_bytes = job->groups.front().placement.rounds_updates() ? 2 : 0;
              CHECK(job->groups.front().placement.rounds_updates() == (dtype == DType::bf16));
              const auto all = update_shards(*job, update_of(-1));
              const Elements expected = placed(*job, working_bytes);
              CHECK(of(all, working_bytes) == expected);
              // Nothing lies between the buckets of ranks that share nothing, so there is one launch.
              if (stage == 0) CHECK(all.size() == 1);
              std::vector<UpdateShard> one_by_one;
              for (size_t b = 0; b < job->storage.size(); ++b) {
                const auto of_bucket = update_shards(*job, update_of(static_cast<int32_t>(b)));
                REQUIRE(of_bucket.size() == 1);
                one_by_one.push_back(of_bucket[0]);
              }
              CHECK(of(one_by_one, working_bytes) == expected);
              // The spans of one launch are as many as a merge by hand leaves, not one per bucket.
              if (stage == 0) {
                std::vector<UpdateSpan> spans;
                int64_t elem = 0;
                float decay = 1;
                for (const auto& [assignment, element] : expected) {
                  if (element.weight_decay != decay) spans.push_back({elem, 1, element.weight_decay});
                  decay = element.weight_decay;
                  ++elem;
                }
                CHECK(all[0].spans == spans);
              }
              for (const UpdateShard& shard : all) {
                CHECK(shard.updated.buffer == (two_copies && shard.master.buffer == job->ids.values
                                                   ? job->ids.values_next
                                                   : shard.master.buffer));
              }
            }
          }
}

TEST_CASE("parameter groups: matrices and vectors apart train the model of one group, bit for bit") {
  const std::vector<GroupRule> apart = {
      {"matrices", &optimizers().front(),
       [](const ModelSpec&, const ParameterSpec& parameter) { return parameter.decay; }},
      {"vectors", &optimizers().front()}};
  for (const models::ModelOptions& model : {tiny_gpt2(), tiny_llama()})
    for (int stage : {0, 1, 2, 3})
      for (float max_norm : {0.0f, 0.5f})
        for (bool per_bucket : {false, true}) {
          Layout together{.name = "groups", .model = model, .ranks = 2, .micro_batch = 6};
          together.model.split_tied_embedding = stage == 0;
          together.zero_stage = stage;
          together.max_norm = max_norm;
          together.optimizer_per_bucket = per_bucket;
          Layout groups = together;
          groups.groups = apart;
          CAPTURE(stage, max_norm, per_bucket);
          const auto job = make_job(groups, 0);
          REQUIRE(job->groups.size() == 2);
          for (const Bucket& bucket : job->layout.buckets)
            for (uint32_t p = bucket.first_part; p < bucket.first_part + bucket.part_count; ++p)
              CHECK(job->model.parameters[job->layout.parts[p].part.parameter].decay == (bucket.group == 0));
          CHECK(train(groups, 3).hash == train(together, 3).hash);
        }
}

TEST_CASE("parameter groups: a parameter without a group is refused") {
  Layout layout{.name = "groups", .model = tiny_gpt2(), .ranks = 2, .micro_batch = 6};
  const auto matrix = [](const ModelSpec&, const ParameterSpec& parameter) { return parameter.decay; };
  layout.groups = {{"matrices", &optimizers().front(), matrix}};
  CHECK_THROWS_WITH(make_job(layout, 0), Catch::Contains("no parameter group contains"));
}

TEST_CASE("parameter groups: an optimizer that does not need the clip factor does not wait for it") {
  OptimizerSpec early = optimizers().front();
  early.start = UpdateStart::at_gradient;
  for (bool on_spine : {false, true}) {
    Layout layout{.name = "groups", .model = tiny_llama(), .ranks = 2, .micro_batch = 6};
    layout.update_on_spine = on_spine;
    layout.groups = {
        {"matrices", &early, [](const ModelSpec&, const ParameterSpec& parameter) { return parameter.decay; }},
        {"vectors", &optimizers().front()}};
    const auto job = make_job(layout, 0);
    std::map<ItemId, size_t> position;
    for (ItemId id : job->train().order) position.emplace(id, position.size());
    ItemId clip = 0;
    while (job->train()[clip].op != Op::clip) ++clip;
    int seen[2] = {};
    for (ItemId id = 0; id < job->train().size(); ++id) {
      const Item& item = job->train()[id];
      if (item.op != Op::update) continue;
      ++seen[item.group];
      CAPTURE(item.name, on_spine);
      CHECK((position.at(id) < position.at(clip)) == (item.group == 0));
    }
    CHECK(seen[0] > 1);   // one for each bucket
    CHECK(seen[1] == 1);  // one launch after the clip factor
  }
}
