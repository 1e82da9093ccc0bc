// SPDX-License-Identifier: Apache-2.0
// A checkpoint of any layout, loaded by any other, gives every element of every weight and optimizer state its bits.
//
// A known state is restored under layout A, saved, restored under layout B and saved again. The two checkpoints and the
// known state are compared element by element. No rank trains.

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>

#include "engine/checkpoint/store.h"
#include "tests/engine/data/disk.h"
#include "tests/equivalence/table.h"
#include "tests/test.hpp"
#include "trainer/runtime/durability/saved_state.h"

using namespace slipstream;
using namespace slipstream::equivalence;
using checkpoint::Manifest;

namespace {

using State = std::map<std::pair<std::string, std::string>, std::vector<float>>;  // by tensor and array

/// A layout of the model on 1 to 8 ranks, legal or not.
Layout random_layout(std::mt19937_64& random, const Layout& of_model, bool muon) {
  const auto one_of = [&](std::initializer_list<int> values) { return *(values.begin() + random() % values.size()); };
  Layout l = of_model;
  l.ranks = one_of({1, 1, 2, 3, 4, 8});
  l.tensor = one_of({1, 1, 2});
  l.stages = one_of({1, 1, 2, 3});
  l.context = one_of({1, 1, 2});
  l.sequence_parallel = l.tensor > 1 && one_of({0, 1}) == 1;
  l.zero_stage = one_of({0, 0, 1, 1, 2, 3});
  l.model.split_tied_embedding = l.zero_stage == 0;
  l.prefetch_depth = one_of({0, 1, 2});
  l.persistent_elems = l.zero_stage == 3 ? one_of({0, 48}) : 0;
  l.accumulate_unsharded = l.zero_stage == 2 && one_of({0, 1}) == 1;
  if (l.zero_stage > 0 && l.ranks % 2 == 0 && l.ranks > 2) l.shard_size = one_of({0, 2});
  l.micro_batches = l.stages > 1 ? 2 : one_of({1, 2});
  if (l.stages == 2) {
    l.schedule = static_cast<ScheduleKind>(
        one_of({static_cast<int>(ScheduleKind::one_f_one_b), static_cast<int>(ScheduleKind::zb_h1),
                static_cast<int>(ScheduleKind::interleaved_1f1b)}));
    l.virtual_stages = l.schedule == ScheduleKind::interleaved_1f1b ? 2 : 1;
  }
  if (l.stages == 3) l.layers = one_of({0, 1}) == 1 ? std::vector<int>{1, 2, 1} : std::vector<int>{2, 1, 1};
  l.reduce_mode = static_cast<ReduceMode>(random() % 4);
  l.bucket_bytes = one_of({256, 512, 4096});
  l.first_bucket_bytes = one_of({64, 256});
  l.model.dtype = one_of({0, 1}) == 1 ? DType::bf16 : DType::f32;
  if (l.zero_stage > 0 && one_of({0, 3}) == 0) l.gather_dtype = one_of({0, 1}) == 1 ? kInt8 : DType::bf16;
  l.wire_dtype = std::array<Format, 3>{DType::f32, DType::bf16, kInt8}[random() % 3];
  l.double_buffer = l.zero_stage < 3 && one_of({0, 0, 1}) == 1;
  l.update_on_spine = one_of({0, 1}) == 1;
  l.micro_batch = 2;
  l.max_norm = one_of({0, 1}) == 1 ? 0.5f : 0.0f;
  if (l.model.experts.count > 0) {
    l.tensor = 1, l.sequence_parallel = false;
    l.expert = one_of({1, 2, 2, 4});
  }
  if (muon) l.groups = muon_on_matrices();
  return l;
}

std::string text_of(const Layout& l) {
  return fmt::format(
      "data {} tensor {} stages {} context {} expert {} zero {} shard {} {} muon {} bucket {} double {} persistent {}",
      l.ranks, l.tensor, l.stages, l.context, l.expert, l.zero_stage, l.shard_size, name_of(l.reduce_mode),
      l.groups.size() > 1, l.bucket_bytes, l.double_buffer, l.persistent_elems);
}

/// All ranks of a layout. Throws if the layout is not legal.
struct Ranks {
  std::vector<std::shared_ptr<const Job>> stages;
  std::vector<std::unique_ptr<runtime::Rank>> ranks;

  explicit Ranks(const Layout& layout) {
    for (auto& job : make_jobs(layout, 0)) stages.push_back(std::move(job));
    std::vector<std::unique_ptr<Job>> jobs;
    for (int r = 0; r < layout.world(); ++r) jobs.push_back(make_job(layout, r));
    std::vector<Communicators> communicators = make_communicators(jobs);
    for (size_t r = 0; r < jobs.size(); ++r)
      ranks.push_back(std::make_unique<runtime::Rank>(std::move(jobs[r]), make_cpu_device(),
                                                      std::move(communicators[r]), runtime::RankOptions{},
                                                      [](const runtime::StagedBatch&) {}));
  }
};

Manifest save(Ranks& of, const std::string& dir, int64_t step) {
  const std::string folder = checkpoint::begin_checkpoint(dir, step);
  Manifest manifest{.step = step,
                    .memory_layout = runtime::memory_layout_of(of.stages),
                    .tensors = runtime::logical_tensors(of.stages)};
  for (size_t r = 0; r < of.ranks.size(); ++r) {
    manifest.files.push_back(
        checkpoint::write_state_file(folder, fmt::format("rank-{:04}.safetensors", r),
                                     runtime::boxes_to_save(of.ranks[r]->job(), runtime::read_at_rest(*of.ranks[r]))));
  }
  checkpoint::commit_checkpoint(dir, manifest);
  return manifest;
}

State state_of(const std::string& dir, const Manifest& manifest) {
  const checkpoint::StateReader reader(dir + "/" + checkpoint::name_of_step(manifest.step), manifest);
  State state;
  for (const checkpoint::LogicalTensor& tensor : manifest.tensors)
    for (const std::string& array : tensor.arrays) {
      const auto [rows, columns] = checkpoint::matrix_of(tensor.shape);
      std::vector<float>& values = state[{tensor.name, array}];
      values.resize(static_cast<size_t>(rows * columns));
      reader.read({tensor.name, array, 0, 0, rows, columns}, values);
    }
  return state;
}

/// A checkpoint with a value of its own for every element.
Manifest known_state(const std::string& dir, const std::vector<checkpoint::LogicalTensor>& tensors) {
  Manifest manifest{.step = 1, .tensors = tensors};
  std::vector<checkpoint::BoxToSave> boxes;
  int64_t next = 1;
  for (const checkpoint::LogicalTensor& tensor : tensors)
    for (const std::string& array : tensor.arrays) {
      const auto [rows, columns] = checkpoint::matrix_of(tensor.shape);
      boxes.push_back({{tensor.name, array, 0, 0, rows, columns}, [next](int64_t begin, std::span<float> out) {
                         for (size_t i = 0; i < out.size(); ++i)
                           out[i] =
                               static_cast<float>(next + begin + static_cast<int64_t>(i)) / 1024;  // exact below 2^24
                       }});
      next += rows * columns;
    }
  REQUIRE(next < (1 << 24));
  manifest.files = {
      checkpoint::write_state_file(checkpoint::begin_checkpoint(dir, 1), "known.safetensors", std::move(boxes))};
  checkpoint::commit_checkpoint(dir, manifest);
  return manifest;
}

void restore(Ranks& to, const std::string& dir, const Manifest& manifest) {
  const std::string folder = dir + "/" + checkpoint::name_of_step(manifest.step);
  const checkpoint::StateReader reader(folder, manifest);
  for (size_t r = 0; r < to.ranks.size(); ++r) {
    runtime::Restoring restoring(*to.ranks[r], manifest.memory_layout == runtime::memory_layout_of(to.stages));
    // Verification reads some of the files whole; the others are read box by box.
    std::vector<checkpoint::StateFile> own;
    for (size_t f = r % 2; f < manifest.files.size(); f += 1 + r % 3) own.push_back(manifest.files[f]);
    CHECK(restoring.take(folder, own) == "");
    restoring.finish(reader);
  }
}

}  // namespace

TEST_CASE("resharding: pairs of layouts give every element its bits", "[equivalence][checkpoint]") {
  const int pairs = test_everything() ? 1000 : 40;
  const uint64_t seed = 20263;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::map<std::string, int> refused;
  int done = 0, redrawn = 0, with_ranks = 0;
  int sharded_experts = 0, experts_with_muon = 0;  // layouts whose ranks divide experts
  while (done < pairs) {
    const Family family = std::array{Family::gpt2, Family::llama, Family::mixtral}[random() % 3];
    const bool muon = random() % 3 == 0;
    Layout base{.name = "reshard", .model = smallest(family)};
    if (family == Family::mixtral) base.model.experts = {.count = 4, .top_k = 2, .ffn_width = 12};
    base.model.layers = 4;
    base.model.tokens = base.model.context = 8;
    base.model.vocab = std::array<int64_t, 3>{19, 67, 97}[random() % 3];
    base.model.tie_embeddings = random() % 2 == 0;
    std::unique_ptr<Ranks> a, b;
    std::string names;
    for (std::unique_ptr<Ranks>* each : {&a, &b})
      for (int attempt = 0; attempt < 100 && !*each; ++attempt) {
        const Layout layout = random_layout(random, base, muon);
        if (layout.world() > 8) continue;
        try {
          *each = std::make_unique<Ranks>(layout);
          with_ranks += layout.world() > 1;
          sharded_experts += layout.expert > 1 && layout.zero_stage >= 2;
          experts_with_muon += layout.expert > 1 && muon;
          names += (names.empty() ? "" : " -> ") + text_of(layout);
        } catch (const Error& error) {
          ++refused[std::string(error.what()).substr(0, 60)];
        }
      }
    if (!a || !b) {  // 100 layouts in a row were refused: take another model
      REQUIRE(++redrawn < pairs);
      continue;
    }
    INFO(names);
    const tests::TempFolder folder;
    const Manifest known = known_state(folder.path(), runtime::logical_tensors(a->stages));
    const State need = state_of(folder.path(), known);
    restore(*a, folder.path(), known);
    const Manifest of_a = save(*a, folder.path(), 2);
    CHECK(of_a.tensors == known.tensors);
    CHECK(state_of(folder.path(), of_a) == need);
    restore(*b, folder.path(), of_a);
    const Manifest of_b = save(*b, folder.path(), 3);
    CHECK(of_b.tensors == known.tensors);
    CHECK(state_of(folder.path(), of_b) == need);
    ++done;
  }
  for (const auto& [sentence, times] : refused) UNSCOPED_INFO(times << " layouts refused: " << sentence);
  CHECK(done == pairs);
  CHECK(with_ranks > pairs);
  CHECK(sharded_experts > 0);
  CHECK(experts_with_muon > 0);
  std::printf("  COUNTED %d pairs of layouts; divided experts in %d layouts with ZeRO-2 or 3, and in %d with Muon\n",
              done, sharded_experts, experts_with_muon);
}
