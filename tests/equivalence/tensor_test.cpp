// SPDX-License-Identifier: Apache-2.0
// Ranks that share layers train the model of one rank: up to rounding where sums are of halves instead of wholes; with
// the same bits where the order of additions is the same.

#include <algorithm>
#include <cstdio>

#include "comm/link.h"
#include "tests/equivalence/mutated.h"
#include "tests/equivalence/table.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 3;
// A sum of t parts has t - 1 more roundings than the sum of the whole; over these few layers and steps the error stays
// far below the tolerance.
constexpr double kTolerance = 2e-5;

Layout layout_of(bool llama) {
  Layout layout{.name = llama ? "llama" : "gpt2", .model = llama ? tiny_llama() : tiny_gpt2(), .micro_batch = 4};
  layout.model.heads = 4;
  layout.model.kv_heads = 4;
  layout.model.width = 32;
  layout.model.vocab = 151;  // with 64 rows each, one of four ranks has padding only
  layout.model.tokens = layout.model.context = 8;
  return layout;
}

int64_t activations(const Job& job) { return job.buffers.bytes(Owner::activations); }

/// The number of spine items between the one after which a task begins and the one that waits for it.
std::string under_task(const Plan& plan, const std::string& name) {
  std::string names;
  for (const Task& task : plan.tasks)
    if (task.name == name && task.before)
      for (ItemId i = task.after[0].item + 1; i < task.before->item; ++i) names += plan.spine[i].name + " ";
  return names;
}

void check_same_model(const Trained& a, const Trained& b) {
  CHECK(a.names == b.names);
  REQUIRE((a.norms.size() == b.norms.size() && a.evaluations.size() == b.evaluations.size()));
  CHECK(difference(a.losses.size() == b.losses.size() ? std::vector<float>(a.losses.begin(), a.losses.end())
                                                      : std::vector<float>{},
                   std::vector<float>(b.losses.begin(), b.losses.end())) < kTolerance);
  for (size_t i = 0; i < b.norms.size(); ++i) CHECK(a.norms[i] == Approx(b.norms[i]).epsilon(kTolerance));
  CHECK(difference(a.gradients, b.gradients) < kTolerance);
  CHECK(difference(a.weights, b.weights) < kTolerance);
  for (size_t i = 0; i < b.evaluations.size(); ++i)
    CHECK(a.evaluations[i] == Approx(b.evaluations[i]).epsilon(kTolerance));
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
          const Trained shared = train(
              with(whole,
                   [&](Layout& l) { l.tensor = tensor, l.sequence_parallel = sequence, l.tensor_chunks = chunks; }),
              kSteps);
          check_same_model(shared, expected);
        }
  }
}

TEST_CASE("tensor ranks cross with data parallelism, ZeRO and accumulation", "[tensor][zero]") {
  for (bool llama : {false, true})
    for (int micro_batches : {1, 2}) {
      const Layout whole =
          with(layout_of(llama), [&](Layout& l) { l.ranks = 2, l.micro_batch = 2, l.micro_batches = micro_batches; });
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
          if (micro_batches == 1 && llama)
            CHECK(zero.hash == plain.hash);  // the same additions; a tied table's shares are added in another order
          for (const std::string& hash : zero.rank_hashes) CHECK(hash == zero.hash);
        }
      }
    }
  for (int stage : {1, 3}) {
    const Layout whole = with(layout_of(true), [](Layout& l) { l.ranks = 4, l.micro_batch = 1; });
    check_same_model(
        train(
            with(whole, [&](Layout& l) { l.tensor = 2, l.tensor_chunks = 2, l.zero_stage = stage, l.shard_size = 2; }),
            kSteps),
        train(whole, kSteps));
  }
}

TEST_CASE("tensor ranks cross with pipelines: the bits of the same tensor ranks on one stage", "[tensor][pipeline]") {
  for (bool llama : {false, true})
    for (bool sequence : {false, true}) {
      const Layout shared = with(layout_of(llama), [&](Layout& l) {
        l.model.layers = 4, l.micro_batch = 2, l.micro_batches = 2, l.tensor = 2, l.sequence_parallel = sequence,
        l.tensor_chunks = 2, l.evaluate_between = true;
      });
      const Trained expected = train(shared, kSteps);
      check_same_model(
          expected,
          train(with(shared, [](Layout& l) { l.tensor = l.tensor_chunks = 1, l.sequence_parallel = false; }), kSteps));
      for (ScheduleKind kind :
           {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b, ScheduleKind::zb_h1})
        for (int zero : {0, 1, 3}) {
          if (zero > 0 && (kind != ScheduleKind::one_f_one_b || !llama)) continue;
          CAPTURE(llama, sequence, name_of(kind), zero);
          const Trained piped = train(
              with(shared,
                   [&](Layout& l) {
                     l.stages = 2, l.schedule = kind, l.virtual_stages = kind == ScheduleKind::interleaved_1f1b ? 2 : 1;
                     if (zero > 0) l.ranks = 2, l.micro_batch = 1, l.zero_stage = zero, l.evaluate_between = false;
                   }),
              kSteps);
          if (zero > 0) {
            Trained unevaluated = expected;
            unevaluated.evaluations.clear();
            check_same_model(piped, unevaluated);
            continue;
          }
          CHECK(piped.hash == expected.hash);
          CHECK(piped.losses == expected.losses);
          CHECK(piped.evaluations == expected.evaluations);
          for (size_t i = 0; i < piped.norms.size(); ++i)
            CHECK(piped.norms[i] == Approx(expected.norms[i]).epsilon(1e-12));
        }
      check_same_model(train(with(shared, [](Layout& l) { l.stages = 3, l.layers = {0, 4, 0}; }), kSteps), expected);
    }
}

TEST_CASE("settings that change only the timing of tensor ranks do not change bits", "[tensor]") {
  for (bool sequence : {false, true}) {
    const Layout shared = with(layout_of(false), [&](Layout& l) {
      l.tensor = 2, l.sequence_parallel = sequence, l.tensor_chunks = 4, l.micro_batch = 2, l.micro_batches = 2;
    });
    const Trained expected = train(shared, kSteps);
    for (uint64_t seed : {3, 33})
      CHECK(train(with(shared, [&](Layout& l) { l.delay_seed = seed; }), kSteps).hash == expected.hash);
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
  const auto check_all_needed = [&](const Layout& layout) {
    CAPTURE(layout.name, layout.tensor, layout.sequence_parallel, layout.tensor_chunks, layout.zero_stage);
    for (const auto& job : make_jobs(layout, 1)) waits += check_waits_needed(*job).waits;
  };
  for (bool llama : {false, true})
    for (bool sequence : {false, true})
      for (int zero : {0, 1, 3}) {
        const Layout layout = with(layout_of(llama), [&](Layout& l) {
          l.model.split_tied_embedding = zero == 0;
          l.ranks = zero > 0 ? 2 : 1, l.zero_stage = zero, l.micro_batches = 2, l.micro_batch = 2, l.tensor = 2,
          l.sequence_parallel = sequence, l.tensor_chunks = 2;
          // The recomputed data is gathered again, in a separate pass, from a stage that sent a share.
          if (sequence && zero == 1) l.stages = 2, l.schedule = ScheduleKind::zb_h1, l.recompute = Recomputation::full;
          if (sequence && zero == 3) l.recompute = Recomputation::selective;
        });
        check_all_needed(layout);
      }
  for (bool llama : {false, true})
    for (int tensor : {2, 4})
      for (bool sequence : {false, true})
        for (int chunks : {1, 2, 4}) {
          if (!test_everything() && (chunks != (tensor == 4 ? 4 : 1) || llama == sequence)) continue;
          check_all_needed(with(layout_of(llama), [&](Layout& l) {
            l.tensor = tensor, l.sequence_parallel = sequence, l.tensor_chunks = chunks;
          }));
        }
  std::printf("  %lld waits\n", static_cast<long long>(waits));
}

TEST_CASE("sums of chunks travel under the next, and those of input gradients under weight gradients", "[tensor]") {
  const auto job = make_job(with(layout_of(false), [](Layout& l) { l.tensor = 2, l.tensor_chunks = 4; }), 0);
  const auto under = [&](const std::string& name) { return under_task(job->train(), name); };
  CHECK(under("all_reduce.attention.out.1.0") == "mlp.norm.0.0 attention.out.2.0 ");
  CHECK(under("all_reduce.mlp_input_gradient.products.3.1").starts_with("mlp_down_gradient.1 mlp_up_gradient.1 "));
  CHECK(under("all_reduce.head_input_gradient.products.3.2").find("head_gradient.0") != std::string::npos);
  for (bool sequence : {false, true}) {  // without chunks, only weight gradients can hide it
    const auto bulk =
        make_job(with(layout_of(false), [&](Layout& l) { l.tensor = 2, l.sequence_parallel = sequence; }), 0);
    const std::string sum = sequence ? "reduce_scatter" : "all_reduce";
    CHECK(under_task(bulk->train(), sum + ".mlp_input_gradient.products.1")
              .starts_with("mlp_down_gradient.1 mlp_up_gradient.1 "));
    CHECK(under_task(bulk->train(), sum + ".attention_input_gradient.qkv.1")
              .starts_with("attention_out_gradient.1 attention_qkv_gradient.1 "));
    CHECK(under_task(bulk->train(), sum + ".head_input_gradient.products.2").starts_with("head_gradient.0.2 "));
  }
}

TEST_CASE(
    "sequence parallelism: a chunk is gathered under the product of the one before, and again under products of the "
    "backward pass",
    "[tensor]") {
  const auto job = make_job(
      with(layout_of(true), [](Layout& l) { l.tensor = 2, l.tensor_chunks = 4, l.sequence_parallel = true; }), 0);
  const auto under = [&](const std::string& name) { return under_task(job->train(), name); };
  CHECK(under("all_gather.mlp.norm.1.0") == "mlp.products.0.0 attention.out.3.0 mlp.norm.2.0 ");
  CHECK(under("all_gather.attention.norm.2.1") == "attention.qkv.1.1 attention.norm.3.1 ");
  CHECK(under("reduce_scatter.mlp.products.1.0") == "attention.norm.0.1 mlp.norm.3.0 mlp.products.2.0 ");
  // The output of a norm travels once more during the products of the input's gradient and the first weight's.
  CHECK(under("all_gather.mlp_input_gradient.products.3.1") == "mlp_down_gradient.1 ");
  CHECK(under("all_gather.mlp_input_gradient.products.0.1").find("mlp_input_gradient.products.1.1") !=
        std::string::npos);
  CHECK(under("all_gather.attention_input_gradient.out.3.0").find("attention_gradient.0") != std::string::npos);
  CHECK(under("all_gather.hidden_again.0.2") ==
        "head_input_gradient.products.0.2 head_input_gradient.products.1.2 head_input_gradient.products.2.2 "
        "head_input_gradient.products.3.2 ");
}

TEST_CASE("sequence parallelism keeps a rank's share of residuals and norms, and stages exchange shares",
          "[tensor][pipeline]") {
  for (bool llama : {false, true})
    for (int tensor : {2, 4})
      for (const auto& [kind, stages] :
           {std::pair{ScheduleKind::one_f_one_b, 1}, {ScheduleKind::one_f_one_b, 2}, {ScheduleKind::zb_h1, 2}}) {
        const auto jobs = [&](bool sequence) {
          return make_jobs(with(layout_of(llama),
                                [&](Layout& l) {
                                  l.model.layers = 4, l.micro_batch = 8, l.micro_batches = 4, l.stages = stages,
                                  l.schedule = kind, l.layers = std::vector(static_cast<size_t>(stages), 4 / stages);
                                  l.tensor = tensor, l.sequence_parallel = sequence, l.tensor_chunks = 2;
                                }),
                           0);
        };
        const auto whole = jobs(false), share = jobs(true);
        const int64_t rows = 8 * 8, D = 32, all = rows * D * 4, own = all / tensor;
        for (size_t s = 0; s < whole.size(); ++s) {
          CAPTURE(llama, tensor, name_of(kind), stages, s);
          const auto held = [](const Job& job, const std::string& name) {
            const BufferId id = job.buffers.find(name);
            return job.buffers[id].is_view ? int64_t{0} : job.buffers.instances(id) * job.buffers[id].size_bytes;
          };
          // Each of these buffers exists for every micro-batch in flight.
          for (int l = 0; l < 4; ++l) {
            CHECK(held(*whole[s], fmt::format("layer{}.residual_mid", l)) ==
                  tensor * held(*share[s], fmt::format("layer{}.residual_mid", l)));
            for (const char* name : {"normed_1", "normed_2"})
              CHECK_THROWS_AS(share[s]->buffers.find(fmt::format("layer{}.{}", l, name)), PlanError);  // recomputed
          }
          CHECK(activations(*share[s]) < activations(*whole[s]));
          // The cost of it is the memory to gather in, once.
          for (const char* name : {"gathered", "gathered_again"}) CHECK(held(*share[s], name) == all);
          for (Op op : {Op::send, Op::recv}) {
            const auto hops = [&](const Job& job) {
              int64_t bytes = 0;
              for (const Task& task : job.train().tasks)
                if (task.op == op && job.channels[task.channel].role != Role::tied) bytes += 4 * task.elems;
              return bytes;
            };
            CHECK(hops(*whole[s]) == (stages == 1 ? 0 : 4 * all));
            CHECK(hops(*share[s]) == (stages == 1 ? 0 : 4 * own));
          }
        }
      }
}

TEST_CASE("bytes of sequence parallelism: those of sums, and each norm's output once more", "[tensor]") {
  for (int tensor : {2, 4}) {
    const auto sent = [&](bool sequence) {
      const auto job = make_job(with(layout_of(true),
                                     [&](Layout& l) {
                                       l.model.layers = 3, l.tensor = tensor, l.sequence_parallel = sequence,
                                       l.tensor_chunks = 2;
                                     }),
                                0);
      int64_t bytes = 0;
      for (const Task& task : job->train().tasks)
        if (job->channels[task.channel].axis == Axis::tensor && task.dtype == DType::f32 &&
            task.elems > 64)  // not the gradients of norms
          bytes += comm::wire_bytes(task.op, task.algorithm, tensor, task.elems, task.dtype);
      return bytes;
    };
    const int64_t once =
        4 * 8 * 32 * 4 * (tensor - 1) / tensor;  // of one gather, or of one scatter of sums, of 4 x 8 tokens
    const int64_t sums =
        1 + 4 * 3 + 1;  // the embedding's, two of each layer and pass, and that of the head's input gradient
    CAPTURE(tensor);
    CHECK(sent(false) == 2 * sums * once);
    CHECK(sent(true) == (2 * sums + 2 * 3 + 1) * once);
  }
}

TEST_CASE("no rank has the logits of the whole vocabulary; padding has no weights, gradients or logits", "[tensor]") {
  const Layout layout = with(layout_of(true), [](Layout& l) { l.tensor = 4; });
  for (int rank = 0; rank < 4; ++rank) {
    const auto job = make_job(layout, rank);
    CHECK(job->buffers[job->model.logits].size_bytes == layout.micro_batch * layout.model.tokens * 64 * 4);
    CHECK(job->parameter_elems == make_job(layout_of(true), 0)->parameter_elems);
    for (const Task& task : job->train().tasks)
      if (task.name.find("head.products") != std::string::npos)
        CHECK(task.elems == layout.micro_batch * layout.model.tokens * 3);
  }
}

TEST_CASE("values in padding reach no softmax, loss, gradient, norm or weight", "[tensor]") {
  for (bool llama : {false, true})
    for (bool sequence : {false, true}) {
      // Of the 151 words, four ranks with 64 rows each hold 64, 64, 23 and 0.
      const Layout clean = with(layout_of(llama), [&](Layout& l) {
        l.tensor = 4, l.sequence_parallel = sequence, l.evaluate_between = true;
      });
      const auto filled = [&](int64_t first_row) {
        return with(clean, [=](Layout& l) {
          l.mutate = [=](Job& job) {
            std::vector<Slice> rows;  // of every table, from this row of the whole table on
            for (const ParameterSpec& p : job.model.parameters) {
              const NamedTensor& table = p.tensors.front();
              if (table.split.parts == 1 || table.split.whole != 151) continue;
              const int64_t held = table.shape[0],
                            begin = std::clamp<int64_t>(first_row - table.split.index * held, 0, held);
              rows.push_back({p.value, begin * 32 * 4, (held - begin) * 32 * 4});
            }
            std::function<void(LaunchContext&)>& first = job.model.pieces[job.model.forward.front()].works.front().fn;
            first = [rows, then = first](LaunchContext& c) {
              for (const Slice& slice : rows) std::fill_n(c.as<float>(slice), slice.size_bytes / 4, 1e3f);
              then(c);
            };
          };
        });
      };
      CAPTURE(llama, sequence);
      const Trained expected = train(clean, kSteps), dirty = train(filled(151), kSteps);
      CHECK(dirty.hash == expected.hash);
      CHECK(dirty.losses == expected.losses);
      CHECK(dirty.norms == expected.norms);
      CHECK(dirty.gradients == expected.gradients);
      CHECK(dirty.evaluations == expected.evaluations);
      CHECK(train(filled(150), kSteps).losses != expected.losses);  // the control: the last word is not padding
    }
}

TEST_CASE("chunks of tokens are equal; fewer are made where the requested number does not divide", "[tensor]") {
  CHECK(models::token_chunks(24, 4, 2, false) == 4);
  CHECK(models::token_chunks(24, 5, 2, false) == 4);
  CHECK(models::token_chunks(24, 8, 2, true) == 6);
  CHECK(models::token_chunks(7, 4, 2, false) == 1);
}

TEST_CASE("recomputation on ranks that share layers gives the bits of keeping everything", "[tensor][recompute]") {
  struct Row {
    int tensor = 2, stages = 1, zero = 0;
    bool sequence = false;
    ScheduleKind kind = ScheduleKind::one_f_one_b;
    DType dtype = DType::f32;
    int context = 1;
  };
  const std::vector<Row> rows = {{},
                                 {.stages = 2},
                                 {.sequence = true},
                                 {.tensor = 4, .sequence = true, .dtype = DType::bf16},
                                 {.stages = 2, .sequence = true},
                                 {.stages = 2, .sequence = true, .kind = ScheduleKind::zb_h1},
                                 {.tensor = 4, .stages = 2, .sequence = true, .kind = ScheduleKind::gpipe},
                                 {.zero = 3, .sequence = true},
                                 {.stages = 2, .zero = 1, .sequence = true, .kind = ScheduleKind::zb_h1},
                                 {.stages = 2, .zero = 2, .sequence = true},
                                 {.sequence = true, .context = 2}};
  for (bool llama : {false, true})
    for (const Row& row : rows) {
      const Layout kept = with(layout_of(llama), [&](Layout& l) {
        l.model.layers = row.stages == 1 ? 2 : 4, l.model.dtype = row.dtype, l.micro_batch = 2, l.micro_batches = 2,
        l.tensor = row.tensor, l.tensor_chunks = 2;
        l.sequence_parallel = row.sequence, l.stages = row.stages, l.schedule = row.kind, l.zero_stage = row.zero,
        l.ranks = row.zero > 0 ? 2 : 1;
        l.context = row.context, l.model.split_tied_embedding = row.zero == 0, l.evaluate_between = row.zero == 0;
      });
      const Trained expected = train(kept, 2);
      for (Recomputation how : {Recomputation::selective, Recomputation::full}) {
        CAPTURE(llama, row.tensor, row.stages, row.zero, row.sequence, name_of(row.kind), row.context, name_of(how));
        const Layout again = with(kept, [&](Layout& l) { l.recompute = how; });
        const Trained trained = train(again, 2);
        CHECK(trained.hash == expected.hash);
        CHECK(trained.losses == expected.losses);
        CHECK(trained.evaluations == expected.evaluations);
        // Sequence parallelism keeps nothing of norms anyway, and GPT-2 has nothing else that is cheap.
        CHECK((make_job(again, 0)->recomputed.saved_bytes > 0) ==
              (how == Recomputation::full || llama || !row.sequence));
      }
    }
}

TEST_CASE("a tied table that ranks share sends rows where they are smaller", "[tensor]") {
  for (const auto& [vocab, as_rows] :
       {std::pair{151, true}, {63, false}}) {  // 2 x 16 rows of two ranks; 2 x 128 and 2 x 64 of half of the table
    const Layout whole = with(layout_of(false), [&, v = vocab](Layout& l) {
      l.ranks = 2, l.micro_batch = as_rows ? 2 : 10, l.model.vocab = v;
    });
    const Layout shared = with(whole, [](Layout& l) { l.tensor = 2, l.tensor_chunks = 2; });
    const auto job = make_job(shared, 0);
    CHECK((job->model.tied.split && job->model.tied.as_rows == as_rows));
    const Trained trained = train(shared, kSteps);
    check_same_model(trained, train(whole, kSteps));
    for (ReduceMode reduce_mode : {ReduceMode::flat, ReduceMode::per_parameter})
      CHECK(train(with(shared, [&](Layout& l) { l.reduce_mode = reduce_mode; }), kSteps).hash == trained.hash);
  }
}
