// SPDX-License-Identifier: Apache-2.0
// Ranks that share layers train the model of one rank: sums of halves instead of wholes, so to a rounding error; and the
// same bits wherever the order of additions is the same.

#include <cstdio>

#include "comm/rehearse/hazards.h"
#include "comm/rehearse/seams.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 3;
// A sum of t parts rounds t - 1 times more than the sum of the whole; over these few layers and steps that stays far below.
constexpr double kTolerance = 2e-5;

Layout layout_of(bool llama) {
  Layout layout{.name = llama ? "llama" : "gpt2", .model = llama ? tiny_llama() : tiny_gpt2(), .micro_batch = 4};
  layout.model.heads = 4;
  layout.model.kv_heads = 4;
  layout.model.width = 32;
  layout.model.vocab = 151;  // of four ranks with 64 rows each one has padding only
  layout.model.tokens = layout.model.context = 8;
  return layout;
}

void check_same_model(const Trained& a, const Trained& b) {
  CHECK(a.names == b.names);
  REQUIRE((a.norms.size() == b.norms.size() && a.evaluations.size() == b.evaluations.size()));
  CHECK(difference(a.losses.size() == b.losses.size() ? std::vector<float>(a.losses.begin(), a.losses.end()) : std::vector<float>{},
                   std::vector<float>(b.losses.begin(), b.losses.end())) < kTolerance);
  for (size_t i = 0; i < b.norms.size(); ++i) CHECK(a.norms[i] == Approx(b.norms[i]).epsilon(kTolerance));
  CHECK(difference(a.gradients, b.gradients) < kTolerance);
  CHECK(difference(a.weights, b.weights) < kTolerance);
  for (size_t i = 0; i < b.evaluations.size(); ++i) CHECK(a.evaluations[i] == Approx(b.evaluations[i]).epsilon(kTolerance));
}

}  // namespace

TEST_CASE("tensor ranks x chunks x sequence parallelism train the model of one rank", "[tensor]") {
  for (bool llama : {false, true}) {
    const Layout whole = with(layout_of(llama), [](Layout& l) { l.evaluate_between = true; });
    const Trained expected = train(whole, kSteps);
    for (int tensor : {2, 4})
      for (bool sequence : {false, true})
        for (int chunks : {1, 2, 4}) {
          CAPTURE(llama, tensor, sequence, chunks);
          const Trained shared = train(with(whole, [&](Layout& l) { l.tensor = tensor, l.sequence_parallel = sequence, l.tensor_chunks = chunks; }), kSteps);
          check_same_model(shared, expected);
        }
  }
}

TEST_CASE("tensor ranks cross with data parallelism, ZeRO and accumulation", "[tensor][zero]") {
  for (bool llama : {false, true})
    for (int micro_batches : {1, 2}) {
      const Layout whole = with(layout_of(llama), [&](Layout& l) { l.ranks = 2, l.micro_batch = 2, l.micro_batches = micro_batches; });
      const Trained expected = train(whole, kSteps);
      for (bool sequence : {false, true}) {
        const auto shared = [&](int stage) {
          return with(whole, [&](Layout& l) {
            l.model.split_tied_embedding = stage == 0;
            l.tensor = 2, l.sequence_parallel = sequence, l.tensor_chunks = 2, l.zero_stage = stage;
          });
        };
        const Trained plain = train(shared(0), kSteps);
        check_same_model(plain, expected);
        for (int stage : {1, 2, 3}) {
          CAPTURE(llama, micro_batches, sequence, stage);
          const Trained zero = train(shared(stage), kSteps);
          check_same_model(zero, expected);
          if (micro_batches == 1 && llama) CHECK(zero.hash == plain.hash);  // the same additions; a tied table's shares are added in another order
          for (const std::string& hash : zero.rank_hashes) CHECK(hash == zero.hash);
        }
      }
    }
  for (int stage : {1, 3}) {
    const Layout whole = with(layout_of(true), [](Layout& l) { l.ranks = 4, l.micro_batch = 1; });
    check_same_model(train(with(whole, [&](Layout& l) { l.tensor = 2, l.tensor_chunks = 2, l.zero_stage = stage, l.shard_size = 2; }), kSteps), train(whole, kSteps));
  }
}

TEST_CASE("tensor ranks cross with pipelines: the bits of the same tensor ranks on one stage", "[tensor][pipeline]") {
  for (bool llama : {false, true})
    for (bool sequence : {false, true}) {
      const Layout shared = with(layout_of(llama), [&](Layout& l) {
        l.model.layers = 4, l.micro_batch = 2, l.micro_batches = 2, l.tensor = 2, l.sequence_parallel = sequence, l.tensor_chunks = 2, l.evaluate_between = true;
      });
      const Trained expected = train(shared, kSteps);
      check_same_model(expected, train(with(shared, [](Layout& l) { l.tensor = l.tensor_chunks = 1, l.sequence_parallel = false; }), kSteps));
      for (ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b, ScheduleKind::zb_h1})
        for (int zero : {0, 1, 3}) {
          if (zero > 0 && (kind != ScheduleKind::one_f_one_b || !llama)) continue;
          CAPTURE(llama, sequence, name_of(kind), zero);
          const Trained piped = train(with(shared, [&](Layout& l) {
            l.stages = 2, l.schedule = kind, l.virtual_stages = kind == ScheduleKind::interleaved_1f1b ? 2 : 1;
            if (zero > 0) l.ranks = 2, l.micro_batch = 1, l.zero_stage = zero, l.evaluate_between = false;
          }), kSteps);
          if (zero > 0) {
            Trained unevaluated = expected;
            unevaluated.evaluations.clear();
            check_same_model(piped, unevaluated);
            continue;
          }
          CHECK(piped.hash == expected.hash);
          CHECK(piped.losses == expected.losses);
          CHECK(piped.evaluations == expected.evaluations);
          for (size_t i = 0; i < piped.norms.size(); ++i) CHECK(piped.norms[i] == Approx(expected.norms[i]).epsilon(1e-12));
        }
      check_same_model(train(with(shared, [](Layout& l) { l.stages = 3, l.layers = {0, 4, 0}; }), kSteps), expected);
    }
}

TEST_CASE("what moves only the time of tensor ranks does not move bits", "[tensor]") {
  for (bool sequence : {false, true}) {
    const Layout shared = with(layout_of(false), [&](Layout& l) { l.tensor = 2, l.sequence_parallel = sequence, l.tensor_chunks = 4, l.micro_batch = 2, l.micro_batches = 2; });
    const Trained expected = train(shared, kSteps);
    for (uint64_t seed : {3, 33}) CHECK(train(with(shared, [&](Layout& l) { l.delay_seed = seed; }), kSteps).hash == expected.hash);
    CHECK(train(with(shared, [](Layout& l) { l.update_on_spine = false; }), kSteps).hash == expected.hash);
    CHECK(train(with(shared, [](Layout& l) { l.bucket_bytes = 1 << 20; }), kSteps).hash == expected.hash);
  }
}

TEST_CASE("bfloat16, grouped key-value heads and untied heads are shared too", "[tensor]") {
  for (bool sequence : {false, true}) {
    const auto shared = [&](Layout& l) { l.tensor = 2, l.sequence_parallel = sequence, l.tensor_chunks = 2; };
    const Layout grouped = with(layout_of(true), [](Layout& l) { l.model.kv_heads = 2; });
    check_same_model(train(with(grouped, shared), kSteps), train(grouped, kSteps));
    for (bool llama : {false, true}) {
      const Layout other = with(layout_of(llama), [](Layout& l) { l.model.tie_embeddings = !l.model.tie_embeddings; });
      check_same_model(train(with(other, shared), kSteps), train(other, kSteps));
      // A rounded sum of rounded halves: 2^-8 at each of a handful of sums.
      const Layout rounded = with(layout_of(llama), [](Layout& l) { l.model.dtype = DType::bf16; });
      const Trained a = train(with(rounded, shared), kSteps), b = train(rounded, kSteps);
      for (size_t i = 0; i < b.losses.size(); ++i) CHECK(a.losses[i] == Approx(b.losses[i]).epsilon(5e-3));
    }
  }
}

TEST_CASE("every wait of a tensor-parallel plan is needed", "[tensor][mutation]") {
  int64_t waits = 0;
  for (bool llama : {false, true})
    for (bool sequence : {false, true})
      for (int zero : {0, 1, 3}) {
        const Layout layout = with(layout_of(llama), [&](Layout& l) {
          l.model.split_tied_embedding = zero == 0;
          l.ranks = zero > 0 ? 2 : 1, l.zero_stage = zero, l.micro_batches = 2, l.micro_batch = 2, l.tensor = 2, l.sequence_parallel = sequence, l.tensor_chunks = 2;
        });
        const auto job = make_job(layout, 1);
        const std::vector<const Plan*> runs{&job->train, &job->train, &job->evaluate, &job->train};
        const auto seams = comm::link_all(runs, job->channels);
        REQUIRE(comm::find_hazards({runs, seams}, job->channels, &job->buffers).count == 0);
        const comm::Mutations mutations = comm::mutate_waits({runs, seams}, job->channels, &job->buffers);
        waits += mutations.waits;
        CAPTURE(llama, sequence, zero, mutations.redundant_names, mutations.missed_names);
        CHECK(mutations.caught == mutations.waits);
      }
  std::printf("  %lld waits\n", static_cast<long long>(waits));
}

TEST_CASE("sums of chunks travel under the next, and those of input gradients under weight gradients", "[tensor]") {
  const auto job = make_job(with(layout_of(false), [](Layout& l) { l.tensor = 2, l.tensor_chunks = 4; }), 0);
  const Plan& plan = job->train;
  const auto under = [&](const std::string& name) {
    std::string names;
    for (const Task& task : plan.tasks)
      if (task.name == name && task.before)
        for (ItemId i = task.after[0].item + 1; i < task.before->item; ++i) names += plan.spine[i].name + " ";
    return names;
  };
  CHECK(under("all_reduce.attention.proj.1.0") == "mlp.norm.0.0 attention.proj.2.0 ");
  CHECK(under("all_reduce.mlp_input_gradient.products.3.1").starts_with("mlp_out_gradient.1 mlp_fc_gradient.1 "));
  CHECK(under("all_reduce.head_input_gradient.products.3.2").find("head_gradient.0") != std::string::npos);
}

TEST_CASE("no rank has the logits of the whole vocabulary, and padding has no weights, no gradient and no logits", "[tensor]") {
  const Layout layout = with(layout_of(true), [](Layout& l) { l.tensor = 4; });
  for (int rank = 0; rank < 4; ++rank) {
    const auto job = make_job(layout, rank);
    CHECK(job->buffers[job->model.logits].size_bytes == layout.micro_batch * layout.model.tokens * 64 * 4);
    CHECK(job->parameter_elems == make_job(layout_of(true), 0)->parameter_elems);
    for (const Task& task : job->train.tasks)
      if (task.name.find("head.products") != std::string::npos) CHECK(task.elems == layout.micro_batch * layout.model.tokens * 3);
  }
}

TEST_CASE("sizes that ranks cannot share are refused with the numbers", "[tensor]") {
  const auto refusal = [](auto change) -> std::string {
    models::ModelOptions options = layout_of(true).model;
    options.batch = 1, options.tensor = 4;
    change(options);
    try {
      Buffers buffers;
      models::build_model(options, buffers);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  const auto names = [](const std::string& text, std::initializer_list<const char*> words) {
    return std::all_of(words.begin(), words.end(), [&](const char* word) { return text.find(word) != std::string::npos; });
  };
  CHECK(refusal([](auto&) {}).empty());
  CHECK(names(refusal([](auto& o) { o.kv_heads = 2; }), {"parallel.tensor = 4", "model.kv_heads = 2"}));
  CHECK(names(refusal([](auto& o) { o.heads = o.kv_heads = 2; }), {"parallel.tensor = 4", "model.heads = 2"}));
  CHECK(names(refusal([](auto& o) { o.ffn_width = 42; }), {"parallel.tensor = 4", "model.ffn_width = 42"}));
  CHECK(names(refusal([](auto& o) { o.sequence_parallel = true, o.tokens = 7; }), {"1 x 7 = 7", "parallel.tensor = 4"}));
  // Chunks are equal; where they cannot be as many as asked for, there are fewer.
  CHECK(models::token_chunks(24, 4, 2, false) == 4);
  CHECK(models::token_chunks(24, 5, 2, false) == 4);
  CHECK(models::token_chunks(24, 8, 2, true) == 6);
  CHECK(models::token_chunks(7, 4, 2, false) == 1);
}

TEST_CASE("recomputation on ranks that share layers gives the bits of keeping everything", "[tensor][recompute]") {
  for (bool llama : {false, true})
    for (int stages : {1, 2}) {
      const Layout kept = with(layout_of(llama), [&](Layout& l) {
        l.model.layers = 4, l.micro_batch = 2, l.micro_batches = 2, l.tensor = 2, l.tensor_chunks = 2, l.stages = stages;
      });
      const Trained expected = train(kept, kSteps);
      for (Recomputation how : {Recomputation::selective, Recomputation::full}) {
        CAPTURE(llama, stages, name_of(how));
        CHECK(train(with(kept, [&](Layout& l) { l.recompute = how; }), kSteps).hash == expected.hash);
      }
    }
}
