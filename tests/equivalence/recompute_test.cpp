// SPDX-License-Identifier: Apache-2.0
// Recomputation changes what is kept and when it is computed, never a bit: under every schedule, ZeRO stage and type.

#include <cstdio>
#include <map>
#include <numeric>

#include "tests/equivalence/mutated.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 2;
constexpr Recomputation kBoth[] = {Recomputation::selective, Recomputation::full};

Layout layout_of(bool llama, int layers, int micro_batches) {
  Layout layout{.name = llama ? "llama" : "gpt2",
                .model = llama ? tiny_llama() : tiny_gpt2(),
                .micro_batch = 2,
                .micro_batches = micro_batches};
  layout.model.layers = layers;
  layout.model.vocab = 61;
  return layout;
}

void check_same_bits(const Layout& kept) {
  const Trained expected = train(kept, kSteps);
  for (Recomputation how : kBoth) {
    CAPTURE(kept.name, name_of(how));
    const Trained again = train(with(kept, [&](Layout& l) { l.recompute = how; }), kSteps);
    CHECK(again.hash == expected.hash);
    CHECK(again.losses == expected.losses);
    CHECK(again.norms == expected.norms);
    CHECK(again.gradients == expected.gradients);
    CHECK(again.evaluations == expected.evaluations);
  }
}

int64_t activations(const Job& job) { return job.buffers.bytes(Owner::activations); }

int64_t flops_of(const Job& job, bool again) {
  int64_t flops = 0;
  for (const SpineItem& item : job.train().spine)
    if (item.piece != UINT32_MAX && item.name.starts_with("recompute.") == again) flops += item.cost.flops;
  return flops;
}

}  // namespace

TEST_CASE("recomputation gives the bits of keeping everything", "[recompute]") {
  for (bool llama : {false, true})
    for (DType dtype : {DType::f32, DType::bf16})
      check_same_bits(
          with(layout_of(llama, 3, 2), [&](Layout& l) { l.model.dtype = dtype, l.evaluate_between = true; }));
}

TEST_CASE("recomputation gives the bits of keeping everything under every schedule", "[recompute][pipeline]") {
  for (bool llama : {false, true})
    for (ScheduleKind kind :
         {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b, ScheduleKind::zb_h1}) {
      CAPTURE(llama, name_of(kind));
      check_same_bits(with(layout_of(llama, 4, 4), [&](Layout& l) {
        l.stages = 2, l.schedule = kind, l.virtual_stages = chunks_of(kind) == 1 ? 1 : 2, l.hides_transfers = llama,
        l.evaluate_between = true;
      }));
    }
}

TEST_CASE("recomputation gives the bits of keeping everything with sharded parameters", "[recompute][zero]") {
  for (bool llama : {false, true})
    for (int stage : {1, 2, 3})
      for (int stages : {1, 2}) {
        CAPTURE(llama, stage, stages);
        check_same_bits(with(layout_of(llama, 4, 2), [&](Layout& l) {
          l.ranks = 2, l.zero_stage = stage, l.stages = stages, l.model.tie_embeddings = false,
          l.model.dtype = llama ? DType::bf16 : DType::f32;
          l.delay_seed = 5;
        }));
      }
}

TEST_CASE("recomputation of some layers gives the bits of keeping everything", "[recompute][pipeline]") {
  for (bool llama : {false, true})
    for (int virtual_stages : {1, 2})
      for (int zero : {0, 3}) {
        CAPTURE(llama, virtual_stages, zero);
        check_same_bits(with(layout_of(llama, virtual_stages == 1 ? 3 : 8, 2), [&](Layout& l) {
          l.recompute_layers = 1, l.evaluate_between = true, l.ranks = 2, l.zero_stage = zero;
          if (zero > 0) l.model.tie_embeddings = false;
          if (virtual_stages > 1)
            l.stages = 2, l.virtual_stages = virtual_stages, l.schedule = ScheduleKind::interleaved_1f1b;
        }));
      }
}

TEST_CASE("every layer that recomputes saves the same memory and costs the same operations", "[recompute]") {
  constexpr int kLayers = 5;
  for (bool llama : {false, true})
    for (Recomputation how : kBoth)
      for (int stages : {1, 2}) {
        CAPTURE(llama, name_of(how), stages);
        std::vector<int64_t> bytes, flops;  // with a growing number of layers; the last ones are with all
        for (int count : {1, 2, 3, 4, 5, 6, 0}) {
          const auto jobs = make_jobs(with(layout_of(llama, kLayers * stages, 4),
                                           [&](Layout& l) {
                                             l.recompute = how, l.recompute_layers = count, l.stages = stages;
                                             l.layers = std::vector<int>(static_cast<size_t>(stages), kLayers);
                                           }),
                                      0);
          bytes.push_back(activations(*jobs[0]));
          flops.push_back(flops_of(*jobs[0], true));
          CHECK(jobs[0]->recomputed.paid.flops == flops.back());
        }
        for (size_t i = 0; i + 1 < kLayers; ++i) {
          CHECK(bytes[i] - bytes[i + 1] == bytes[0] - bytes[1]);
          CHECK(flops[i] * static_cast<int64_t>(i + 2) == flops[i + 1] * static_cast<int64_t>(i + 1));
        }
        CHECK(bytes[0] > bytes[1]);
        for (size_t i = kLayers; i < bytes.size(); ++i) {  // six of five layers are all
          CHECK(bytes[i] == bytes[kLayers - 1]);
          CHECK(flops[i] == flops[kLayers - 1]);
        }
      }
}

TEST_CASE("the control: without any one of the works that run again, another model is trained",
          "[recompute][mutation]") {
  // The first layer shows it: the contents that later layers left in the shared memory do not belong to it.
  for (bool llama : {false, true})
    for (Recomputation how : kBoth) {
      const Layout whole = with(layout_of(llama, 3, 1), [&](Layout& l) { l.recompute = how; });
      const std::string expected = train(whole, kSteps).hash;
      const auto job = make_job(whole, 0);
      int tried = 0;
      for (size_t p = 0; p < job->model.pieces.size(); ++p) {
        const Piece& piece = job->model.pieces[p];
        if (!piece.name.starts_with("recompute.") || piece.layer != 0) continue;
        for (size_t w = 0; w < piece.works.size(); ++w) {
          CAPTURE(llama, name_of(how), piece.name, piece.works[w].name);
          const Layout mutant = with(whole, [&](Layout& l) {
            l.mutate = [=](Job& j) { j.model.pieces[p].works[w].fn = [](LaunchContext&) {}; };
          });
          CHECK(train(mutant, kSteps).hash != expected);
          ++tried;
        }
      }
      CHECK(tried >= 2);
    }
}

TEST_CASE("communication inside a layer runs again with the works around it", "[recompute][pipeline]") {
  // The output of attention is summed over ranks, as in tensor parallelism; the resulting model is trained both ways.
  for (int stages : {1, 2})
    for (int zero : {0, 3}) {
      Layout layout =
          with(layout_of(true, 4, 2), [&](Layout& l) { l.ranks = 2, l.stages = stages, l.zero_stage = zero; });
      layout.change_model = [](ModelSpec& model) {
        for (Piece& piece : model.pieces) {
          if (piece.name != "attention") continue;
          const Slice out = piece.works.back().writes[0];
          piece.communications.push_back({.name = "all_reduce.attention",
                                          .channel = Role::tensor_reduce,
                                          .axis = Axis::data,
                                          .op = Op::all_reduce,
                                          .from = out,
                                          .to = out,
                                          .dtype = DType::f32,
                                          .elems = out.size_bytes / 4});
        }
      };
      CAPTURE(stages, zero);
      check_same_bits(layout);
      layout.recompute = Recomputation::full;
      std::map<std::string, int> sums;
      for (const auto& job : make_jobs(layout, 0))
        for (const Task& task : job->train().tasks)
          if (job->channels[task.channel].role == Role::tensor_reduce)
            ++sums[task.name.starts_with("recompute.") ? "again" : "first"];
      CHECK(sums["first"] == 4 * 2);
      CHECK(sums["again"] == 4 * 2);
    }
}

TEST_CASE("memory and operations of recomputation are those of the closed forms", "[recompute]") {
  constexpr int kLayers = 6, kMicroBatches = 8;
  for (bool llama : {false, true})
    for (int stages : {1, 3}) {
      const auto planned = [&](Recomputation how) {
        return make_jobs(with(layout_of(llama, kLayers, kMicroBatches),
                              [&](Layout& l) {
                                l.stages = stages,
                                l.layers = std::vector<int>(static_cast<size_t>(stages), kLayers / stages),
                                l.recompute = how;
                              }),
                         0);
      };
      const auto none = planned(Recomputation::none), selective = planned(Recomputation::selective),
                 full = planned(Recomputation::full);
      const Layout layout = layout_of(llama, kLayers, kMicroBatches);
      const models::ModelOptions& o = layout.model;
      const int64_t R = 2 * o.tokens, D = o.width, F = o.ffn_width, hd = D / o.heads,
                    qkv = (o.heads + 2 * o.kv_heads) * hd;
      for (size_t s = 0; s < none.size(); ++s) {
        CAPTURE(llama, stages, s);
        const int64_t slots = peak_in_flight(none[s]->schedule, static_cast<int>(s));
        // The report agrees with the memory table.
        CHECK(activations(*none[s]) - activations(*selective[s]) == selective[s]->recomputed.saved_bytes);
        CHECK(activations(*none[s]) - activations(*full[s]) == full[s]->recomputed.saved_bytes);
        CHECK(full[s]->recomputed.paid.flops == flops_of(*full[s], true));
        CHECK(flops_of(*full[s], false) == flops_of(*none[s], true) + flops_of(*none[s], false));
        // Full keeps a layer's input and nothing else; a layer's recomputed buffers exist once, for all layers and
        // micro-batches.
        const auto up = [](int64_t elems) { return (4 * elems + 63) / 64 * 64; };
        const int64_t statistics = llama ? 2 * up(R) : 4 * up(R);
        const int64_t layer_without_input =
            up(R * D) * 4 + up(R * qkv) + up(R * F * (llama ? 2 : 1)) + up(R * F) + up(o.heads * R) + statistics;
        const int64_t one_less = kLayers / stages * slots * layer_without_input - full[s]->recomputed.saved_bytes;
        CHECK(one_less <= layer_without_input + up(R * D));
        CHECK(one_less >= layer_without_input - up(R * D));
        // Every product of a layer except the last runs again, and attention.
        const int64_t products = 2 * R * D * (qkv + D + (llama ? 2 : 1) * F);
        const int64_t again = full[s]->recomputed.paid.flops / kMicroBatches / (kLayers / stages);
        CHECK(again > products);
        CHECK(again < products * 13 / 10);
        CHECK(selective[s]->recomputed.paid.flops < full[s]->recomputed.paid.flops / 4);
        CHECK(selective[s]->recomputed.saved_bytes > 0);
      }
    }
}

TEST_CASE("every wait of a plan that makes activations again is needed", "[recompute][mutation]") {
  int64_t waits = 0;
  for (Recomputation how : kBoth)
    for (const auto& [kind, zero] :
         {std::pair{ScheduleKind::one_f_one_b, 3}, {ScheduleKind::zb_h1, 1}, {ScheduleKind::zb_h1, 3}}) {
      const Layout layout = with(layout_of(true, 4, 2), [&](Layout& l) {
        l.stages = 2, l.ranks = 2, l.zero_stage = zero, l.schedule = kind, l.recompute = how;
      });
      CAPTURE(name_of(how), name_of(kind), zero);
      for (const auto& job : make_jobs(layout, 0)) waits += check_waits_needed(*job).waits;
    }
  std::printf("  %lld waits\n", static_cast<long long>(waits));
}

TEST_CASE("a layer that is gathered for its backward pass is there when its forward works run again",
          "[recompute][zero]") {
  const auto job = make_job(
      with(layout_of(true, 4, 1), [](Layout& l) { l.ranks = 2, l.zero_stage = 3, l.recompute = Recomputation::full; }),
      0);
  for (const Task& task : job->train().tasks) {
    if (task.op != Op::all_gather || !task.before) continue;
    // The first item of a layer in the backward pass runs its forward again. The head has several buckets.
    const std::string& first = job->train()[task.before->item].name;
    CHECK((first.starts_with("recompute.mlp_down") || first.starts_with("attention.") ||
           first.starts_with("embedding") || first.starts_with("final_norm") || first.starts_with("head")));
  }
  // Gradient slots are not held while the forward runs again.
  for (const SpineItem& item : job->train().spine)
    if (item.name.starts_with("recompute."))
      for (const Slice& write : item.writes) CHECK(write.buffer != job->ids.gradient_slots[0]);
}
