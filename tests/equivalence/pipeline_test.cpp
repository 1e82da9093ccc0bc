// SPDX-License-Identifier: Apache-2.0
// Every pipeline trains the model of one stage: the same sums in the same order, so the same bits.

#include <algorithm>
#include <cstdio>
#include <map>

#include "comm/wiring.h"
#include "engine/plan/memory.h"
#include "tests/engine/plan/random_schedule.h"
#include "tests/equivalence/mutated.h"
#include "tests/equivalence/table.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 3;

Layout layout_of(bool llama, int layers, int micro_batches) {
  Layout layout{.name = llama ? "llama" : "gpt2",
                .model = llama ? tiny_llama() : tiny_gpt2(),
                .micro_batch = 2,
                .micro_batches = micro_batches};
  layout.model.layers = layers;
  layout.model.vocab = 61;
  return layout;
}

/// ZB-V over `stages`.
void fold(Layout& l, int stages) { l.stages = stages, l.virtual_stages = 2, l.schedule = ScheduleKind::zb_v; }

void check_same_bits(const Trained& a, const Trained& b) {
  CHECK(a.hash == b.hash);
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  CHECK(a.gradients == b.gradients);
  CHECK(a.evaluations == b.evaluations);
  for (const std::string& hash : a.rank_hashes) CHECK(hash == a.hash);
}

}  // namespace

TEST_CASE("every schedule x stages x micro-batches gives the bits of one stage", "[pipeline]") {
  for (bool llama : {false, true})
    for (int micro_batches : {1, 2, 3, 4, 5}) {  // fewer than, equal to and more than the stages
      const Layout whole = layout_of(llama, 4, micro_batches);
      const Trained expected = train(with(whole, [](Layout& l) { l.evaluate_between = true; }), kSteps);
      for (int stages : {2, 3, 4})
        for (ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
          for (bool hides_transfers : {false, true}) {
            if (hides_transfers && kind == ScheduleKind::gpipe) continue;
            // Without --all every second pair runs; the omitted ones run with the other model.
            if (!test_everything() && hides_transfers && (micro_batches + stages + (llama ? 1 : 0)) % 2 != 0) continue;
            CAPTURE(llama, micro_batches, stages, name_of(kind), hides_transfers);
            check_same_bits(train(with(whole,
                                       [&](Layout& l) {
                                         l.stages = stages, l.schedule = kind, l.evaluate_between = true,
                                         l.hides_transfers = hides_transfers;
                                       }),
                                  kSteps),
                            expected);
          }
    }
}

TEST_CASE("ZB-V gives the bits of one stage, and a tied table stays on one", "[pipeline]") {
  int trained = 0;
  for (bool llama : {false, true})
    for (bool tied : {false, true})
      for (int stages : {2, 3, 4})
        for (int micro_batches : {1, 2, 3, 5, 7}) {
          // Without --all half of them run, in which every two of these numbers occur together.
          if (!test_everything() && (llama + tied + stages + micro_batches) % 2 != 0) continue;
          CAPTURE(llama, tied, stages, micro_batches);
          // With three stages the layers do not divide.
          const Layout whole = with(layout_of(llama, 2 * stages + (stages == 3 ? 1 : 0), micro_batches),
                                    [&](Layout& l) { l.model.tie_embeddings = tied, l.evaluate_between = true; });
          const Layout folded = with(
              whole, [&](Layout& l) { fold(l, stages), l.recompute = static_cast<Recomputation>(micro_batches % 3); });
          check_same_bits(train(folded, kSteps), train(whole, kSteps));
          for (const auto& job : make_jobs(folded, 0)) {
            CHECK_FALSE(job->has_tied_copies);
            // Activations and gradients cross from and to every neighbour; nothing travels at the turn.
            const int neighbours = (job->stage() > 0) + (job->stage() + 1 < stages);
            const auto messages =
                std::count_if(job->train().tasks.begin(), job->train().tasks.end(),
                              [](const Task& task) { return task.op == Op::send || task.op == Op::recv; });
            CHECK(messages == 4 * neighbours * micro_batches);
          }
          ++trained;
        }
  CHECK(trained == (test_everything() ? 60 : 30));
}

TEST_CASE("weight gradients that lag by other times give the bits of one stage", "[pipeline]") {
  const Layout whole = layout_of(false, 4, 5);
  const Trained expected = train(whole, kSteps);
  for (bool hides_transfers : {false, true}) {
    const std::vector<int> most = most_lags({.stages = 4, .micro_batches = 5, .hides_transfers = hides_transfers});
    for (const std::vector<int>& lags : {std::vector<int>{0, 0, 0, 0}, {0, 1, 1, 0}, most}) {
      CAPTURE(hides_transfers, lags);
      check_same_bits(train(with(whole,
                                 [&](Layout& l) {
                                   l.stages = 4, l.schedule = ScheduleKind::zb_h1, l.hides_transfers = hides_transfers,
                                   l.lags = lags;
                                 }),
                            kSteps),
                      expected);
    }
  }
}

TEST_CASE("interleaving gives the bits of one stage", "[pipeline]") {
  int trained = 0;
  for (bool llama : {false, true})
    for (int stages : {2, 3, 4})
      for (int virtual_stages : {2, 3})
        for (int rounds : {1, 2, 3}) {
          // Without --all a third of them runs, in which every two of these numbers occur together.
          if (!test_everything() && ((llama ? 1 : 0) + stages + virtual_stages + rounds) % 3 != 0) continue;
          const int micro_batches = stages * rounds;
          CAPTURE(llama, stages, virtual_stages, micro_batches);
          // With three rounds the layers do not divide.
          const Layout whole = layout_of(llama, stages * virtual_stages + (rounds == 3 ? 1 : 0), micro_batches);
          check_same_bits(train(with(whole,
                                     [&](Layout& l) {
                                       l.stages = stages, l.virtual_stages = virtual_stages,
                                       l.schedule = ScheduleKind::interleaved_1f1b;
                                     }),
                                kSteps),
                          train(whole, kSteps));
          ++trained;
        }
  CHECK(trained == (test_everything() ? 36 : 12));
}

TEST_CASE("random schedules and placements give the bits of one stage, in every ZeRO stage", "[pipeline][zero]") {
  const uint64_t first_seed = 640, count = test_everything() ? 60 : 12;
  std::printf("  seeds from %llu\n", static_cast<unsigned long long>(first_seed));
  for (uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return static_cast<int>(random() % n); };
    const int stages = 2 + below(2), chunks = 1 + below(3), micro_batches = 1 + below(5),
              zero = static_cast<int>(seed % 4);
    const Layout whole = with(layout_of(below(2) == 0, stages * chunks + below(2), micro_batches), [&](Layout& l) {
      l.ranks = zero > 0 ? 2 : 1, l.zero_stage = zero, l.model.tie_embeddings = false, l.evaluate_between = true;
    });
    CAPTURE(seed, stages, chunks, micro_batches, zero);
    const bool splits = below(2) == 0;
    const ScheduleShape shape{stages, micro_batches, chunks};
    const StagePlacement placement =
        seed % 3 == 0 ? StagePlacement::round(stages, chunks) : random_placement(shape, random);
    const Trained piped = train(with(whole,
                                     [&](Layout& l) {
                                       l.stages = stages, l.virtual_stages = chunks;
                                       l.order = random_schedule(shape, splits, random, placement);
                                       l.recompute = static_cast<Recomputation>(below(3));
                                     }),
                                kSteps);
    const Trained expected = train(whole, kSteps);
    CHECK(piped.hash == expected.hash);
    CHECK(piped.losses == expected.losses);
    CHECK(piped.evaluations == expected.evaluations);
  }
}

TEST_CASE("the cut of the layers does not change bits", "[pipeline]") {
  for (bool llama : {false, true}) {
    const Layout whole = layout_of(llama, 4, 3);
    const Trained expected = train(whole, kSteps);
    for (const std::vector<int>& layers : {std::vector<int>{0, 4, 0}, {1, 2, 1}, {2, 1, 1}, {3, 1, 0}}) {
      CAPTURE(llama, layers);
      check_same_bits(train(with(whole, [&](Layout& l) { l.stages = 3, l.layers = layers; }), kSteps), expected);
    }
  }
}

TEST_CASE("settings that change only the timing of a pipeline do not change bits", "[pipeline]") {
  const Layout whole = layout_of(false, 4, 4);
  for (float max_norm : {0.5f, 0.0f}) {
    const Trained expected = train(with(whole, [&](Layout& l) { l.max_norm = max_norm; }), kSteps);
    for (ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b,
                              ScheduleKind::zb_h1, ScheduleKind::zb_v}) {
      const Layout piped = with(whole, [&](Layout& l) {
        l.stages = 2, l.schedule = kind, l.virtual_stages = chunks_of(kind) == 1 ? 1 : 2, l.max_norm = max_norm;
      });
      for (uint64_t seed : {7, 77}) {
        CAPTURE(name_of(kind), seed, max_norm);
        check_same_bits(train(with(piped, [&](Layout& l) { l.delay_seed = seed; }), kSteps), expected);
      }
      check_same_bits(train(with(piped, [](Layout& l) { l.update_on_spine = false; }), kSteps), expected);
      check_same_bits(train(with(piped, [](Layout& l) { l.hides_transfers = true; }), kSteps), expected);
      check_same_bits(
          train(with(piped, [](Layout& l) { l.reduce_mode = ReduceMode::flat, l.optimizer_per_bucket = false; }),
                kSteps),
          expected);
    }
  }
}

TEST_CASE(
    "the time at which gradients travel does not change bits: bucketed, a chunk at once, all stages together; and "
    "every wait is needed",
    "[pipeline]") {
  for (bool llama : {false, true})
    for (ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b, ScheduleKind::zb_v}) {
      const Layout data = with(layout_of(llama, 4, 2), [](Layout& l) { l.ranks = 2; });
      const Layout piped = with(
          data, [&](Layout& l) { l.stages = 2, l.schedule = kind, l.virtual_stages = chunks_of(kind) == 1 ? 1 : 2; });
      const Trained expected = train(data, kSteps);
      for (bool at_once : {false, true})
        for (bool align : {false, true}) {
          CAPTURE(llama, name_of(kind), at_once, align);
          const Layout row = with(
              piped, [&](Layout& l) { l.reduced_at_once = at_once, l.align_grad_reduce = align, l.delay_seed = 9; });
          const Trained trained = train(row, kSteps);
          CHECK(trained.hash == expected.hash);
          CHECK(trained.losses == expected.losses);
          const auto jobs = make_jobs(row, 0);
          const auto buckets = std::ssize(jobs[1]->layout.buckets), chunks = std::ssize(jobs[1]->chunks);
          CHECK((at_once
                     ? buckets <= chunks + 1
                     : buckets > chunks + 1));  // a table that is shared with the first stage is a bucket of its own
          if (llama || !(at_once || align)) continue;
          // In ZB-V a later weight pass orders a reduction: the waits for the other stages concern time alone.
          const char* barrier = kind == ScheduleKind::zb_v ? "align." : "";
          for (const auto& job : jobs) check_waits_needed(*job, comm::Mutation::deleted, barrier);
        }
    }
}

TEST_CASE("bfloat16 crosses stages without a rounding of its own", "[pipeline]") {
  for (bool llama : {false, true}) {
    const Layout whole = with(layout_of(llama, 3, 2), [](Layout& l) { l.model.dtype = DType::bf16; });
    check_same_bits(train(with(whole, [](Layout& l) { l.stages = 3; }), kSteps), train(whole, kSteps));
  }
}

TEST_CASE("pipelines cross with data parallelism and ZeRO", "[pipeline][zero]") {
  // The reference has the same data ranks and ZeRO stage on one pipeline stage: the same sums in the same order. ZeRO
  // keeps the shares of a tied table together on one stage, so the tables are untied; tied ones are compared with plain
  // data parallelism.
  for (bool llama : {false, true})
    for (int ranks : {2, 3})
      for (int stage : {0, 1, 2, 3}) {
        const Layout data = with(layout_of(llama, 4, 2), [&](Layout& l) {
          l.ranks = ranks, l.zero_stage = stage, l.model.tie_embeddings = false;
        });
        const Trained expected = train(data, kSteps);
        for (ScheduleKind kind :
             {ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b, ScheduleKind::zb_h1, ScheduleKind::zb_v}) {
          CAPTURE(llama, ranks, stage, name_of(kind));
          const Trained piped = train(with(data,
                                           [&](Layout& l) {
                                             l.stages = 2, l.schedule = kind,
                                             l.virtual_stages = chunks_of(kind) == 1 ? 1 : 2;
                                           }),
                                      kSteps);
          CHECK(piped.hash == expected.hash);
          CHECK(piped.losses == expected.losses);
          for (size_t i = 0; i < piped.norms.size(); ++i)
            CHECK(piped.norms[i] == Approx(expected.norms[i]).epsilon(1e-12));
        }
      }
  for (int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    const Layout data = with(layout_of(false, 4, 1), [](Layout& l) { l.ranks = 2; });
    CHECK(train(with(data, [&](Layout& l) { l.stages = 2, l.zero_stage = stage; }), kSteps).hash ==
          train(data, kSteps).hash);
    // On one stage, as on one rank, the embedding adds its share to the head's.
    const Layout whole = with(data, [](Layout& l) { l.model.split_tied_embedding = false; });
    CHECK(train(with(whole, [&](Layout& l) { fold(l, 2), l.zero_stage = stage; }), kSteps).hash ==
          train(whole, kSteps).hash);
  }
}

TEST_CASE("pipelines cross with hybrid sharding", "[pipeline][zero]") {
  for (bool llama : {false, true})
    for (int stage : {1, 2, 3}) {
      const Layout data = with(layout_of(llama, 4, 2), [&](Layout& l) {
        l.ranks = 4, l.shard_size = 2, l.zero_stage = stage, l.model.tie_embeddings = false, l.micro_batch = 1;
      });
      const Trained expected = train(data, kSteps);
      for (ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b, ScheduleKind::zb_h1}) {
        if (llama && kind != ScheduleKind::zb_h1) continue;
        CAPTURE(llama, stage, name_of(kind));
        const Trained piped = train(
            with(data,
                 [&](Layout& l) { l.stages = 2, l.schedule = kind, l.virtual_stages = chunks_of(kind) == 1 ? 1 : 2; }),
            kSteps);
        CHECK(piped.hash == expected.hash);
        CHECK(piped.losses == expected.losses);
        for (size_t i = 0; i < piped.norms.size(); ++i)
          CHECK(piped.norms[i] == Approx(expected.norms[i]).epsilon(1e-12));
      }
    }
}

TEST_CASE("a split backward reduces each pass's gradients of a layer once per micro-batch", "[pipeline][zero]") {
  for (int zero : {2, 3}) {
    const auto jobs = make_jobs(
        with(layout_of(true, 4, 3),
             [&](Layout& l) { l.stages = 2, l.ranks = 2, l.zero_stage = zero, l.schedule = ScheduleKind::zb_h1; }),
        0);
    for (const auto& job : jobs) {
      std::map<std::pair<int32_t, std::string>, int> reductions;  // bucket, micro-batch
      std::map<int32_t, int64_t> elems;
      for (const Task& task : job->train().tasks) {
        if (task.op != Op::reduce_scatter || !is_of_layer(*job, job->layout.buckets[static_cast<size_t>(task.bucket)]))
          continue;
        ++reductions[{task.bucket, task.name.substr(task.name.find('/'))}];
        // It begins when the pass that produces the bucket has finished it, not at the end of the other.
        const Bucket& bucket = job->layout.buckets[static_cast<size_t>(task.bucket)];
        elems[task.bucket] = bucket.elems;
        const std::string& maker = job->model.parameters[job->layout.parts[bucket.first_part].part.parameter].name();
        const bool norms = maker.find("layernorm") != std::string::npos;
        for (const Point& point : task.after)
          if (job->train().is_spine(point.item))
            CHECK((job->train()[point.item].name.find(".weight") == std::string::npos) == norms);
      }
      CHECK(reductions.size() == 2u * 2u * 3u);  // passes x layers x micro-batches
      for (const auto& [key, count] : reductions) CHECK(count == 1);
    }
  }
}

TEST_CASE("the control: without the exchange of a tied table's gradients its copies train other models", "[pipeline]") {
  // Of its three parts, one at a time has no elements; nothing else of the plans changes.
  const Layout whole = layout_of(false, 2, 2), tied = with(whole, [](Layout&l) { l.stages = 2; });
  const Trained expected = train(whole, kSteps);
  check_same_bits(train(tied, kSteps), expected);
  for (const auto& [part, tasks] :
       std::initializer_list<std::pair<std::string, int>>{{".tied_head", 3}, {"add.tied_head", 1}, {".tied_sum", 2}}) {
    CAPTURE(part);
    int found = 0;
    const Trained trained = train(with(tied,
                                       [&](Layout& l) {
                                         l.check_hazards = false;
                                         l.mutate = [&](Job& job) {
                                           for (Task& task : job.train().tasks)
                                             if (task.name.find(part) != std::string::npos) {
                                               task.elems = 0;
                                               for (Slice& slice : task.writes) slice.size_bytes = 0;
                                               ++found;
                                             }
                                         };
                                       }),
                                  kSteps);
    CHECK(found == tasks);
    CHECK(trained.losses != expected.losses);
    CHECK(trained.hash != expected.hash);
  }
}

TEST_CASE("every wait of a pipeline's plans is needed", "[pipeline][mutation]") {
  int64_t waits = 0;
  const auto check_all_needed = [&](const Layout& layout) {
    CAPTURE(name_of(layout.schedule), layout.stages, layout.virtual_stages, layout.micro_batches,
            layout.hides_transfers, layout.zero_stage);
    for (const auto& job : make_jobs(layout, 0)) waits += check_waits_needed(*job).waits;
  };
  for (ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b,
                            ScheduleKind::zb_h1, ScheduleKind::zb_v})
    for (int zero : {0, 1, 3}) {
      if (zero > 1 && (kind == ScheduleKind::gpipe || kind == ScheduleKind::interleaved_1f1b)) continue;
      const Layout layout = with(layout_of(false, 4, 2), [&](Layout& l) {
        l.stages = 2, l.ranks = 2, l.zero_stage = zero, l.schedule = kind, l.model.split_tied_embedding = zero == 0,
        l.virtual_stages = chunks_of(kind) == 1 ? 1 : 2;
      });
      check_all_needed(layout);
    }
  // The plans of the tables above. Without --all: those of three stages with as many micro-batches, and one more.
  for (int stages : {2, 3, 4})
    for (int micro_batches : {1, 2, 3, 4, 5})
      for (ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
        for (bool hides_transfers : {false, true}) {
          if (hides_transfers && kind == ScheduleKind::gpipe) continue;
          if (!test_everything() && (stages != 3 || micro_batches != (hides_transfers ? 4 : 3))) continue;
          check_all_needed(with(layout_of(micro_batches % 2 == 0, 4, micro_batches), [&](Layout& l) {
            l.stages = stages, l.schedule = kind, l.hides_transfers = hides_transfers;
          }));
        }
  for (int stages : {2, 3, 4})
    for (int virtual_stages : {2, 3})
      for (int rounds : {1, 2}) {
        if (!test_everything() && (stages != 3 || virtual_stages != 3 || rounds != 1)) continue;
        check_all_needed(with(layout_of(rounds == 2, stages * virtual_stages, stages * rounds), [&](Layout& l) {
          l.stages = stages, l.virtual_stages = virtual_stages, l.schedule = ScheduleKind::interleaved_1f1b;
        }));
      }
  std::printf("  %lld waits\n", static_cast<long long>(waits));
}

TEST_CASE("tensors between stages have one slot per live micro-batch, and one per wire at its ends", "[pipeline]") {
  for (ScheduleKind kind :
       {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b, ScheduleKind::zb_h1})
    for (int p : {2, 3, 4})
      for (int m : {p, 3 * p})
        for (bool hides : {false, true}) {
          if (hides && kind != ScheduleKind::one_f_one_b) continue;
          const int v = chunks_of(kind) == 1 ? 1 : 2;
          const auto jobs = make_jobs(with(layout_of(true, p * v, m),
                                           [&](Layout& l) {
                                             l.stages = p, l.virtual_stages = v, l.schedule = kind,
                                             l.hides_transfers = hides;
                                           }),
                                      0);
          int rings = 0;
          for (const auto& job : jobs)
            for (const Chunk& chunk : job->chunks) {
              const int s = job->stage(), c = static_cast<int>(&chunk - job->chunks.data());
              CAPTURE(name_of(kind), p, m, hides, s, c);
              const auto slots = [&](BufferId buffer) {
                const auto ring = std::find_if(job->rings.begin(), job->rings.end(),
                                               [&](const Ring& r) { return r.buffer == buffer; });
                REQUIRE(ring != job->rings.end());
                ++rings;
                return ring->slots;
              };
              // Backward reads the arriving data again; the closed forms of Narayanan et al.
              const int alive = kind == ScheduleKind::gpipe ? m
                                : v > 1                     ? peak_in_flight(job->schedule, s, c)
                                                            : std::min(m, (hides ? 2 : 1) * (p - 1 - s) + 1);
              for (BufferId buffer : chunk.activations_in) CHECK(slots(buffer) == alive + 1);
              for (BufferId buffer : chunk.activations_out) CHECK(slots(buffer) == 2);
              // Gradients arrive and leave in one buffer, whose tenant is the current micro-batch. A split backward has
              // two, and keeps what arrived until its weight gradients, which lag by the stage's number.
              const int wires = (v > 1 || s + 1 < p) + (v > 1 || s > 0);
              const bool split = kind == ScheduleKind::zb_h1;
              for (BufferId buffer : chunk.gradients_in)
                CHECK(slots(buffer) == (split ? std::min(m, s + 1) + 1 : 1 + wires));
              for (BufferId buffer : chunk.gradients_out) CHECK(slots(buffer) == (split ? 2 : 1 + wires));
            }
          CHECK(rings == 4 * (p * v - 1));
        }
}

TEST_CASE("receives are posted early, and no task of a pipeline has an unneeded wait", "[pipeline]") {
  const auto jobs = make_jobs(with(layout_of(true, 4, 6), [](Layout& l) { l.stages = 2; }), 0);
  const Plan& plan = jobs[1]->train();
  // The second micro-batch's activations may arrive while the first is computed: nothing on the spine comes before.
  int early = 0;
  for (const Task& task : plan.tasks)
    if (task.op == Op::recv && (task.name.ends_with("/0") || task.name.ends_with("/1")) &&
        task.name.find("residual") != std::string::npos) {
      CHECK(task.after.empty());
      ++early;
    }
  CHECK(early == 2);
}

TEST_CASE(
    "both ends of a pipeline transfer use one connection, no connection serves two streams of a rank, and members "
    "share a number",
    "[pipeline]") {
  for (const auto& [stages, virtual_stages, ranks] :
       {std::tuple{2, 1, 1}, {2, 2, 1}, {3, 1, 2}, {3, 2, 1}, {4, 1, 1}, {4, 2, 2}, {5, 2, 1}}) {
    CAPTURE(stages, virtual_stages, ranks);
    const Layout layout = with(layout_of(false, stages * virtual_stages, stages), [&](Layout& l) {
      l.stages = stages, l.virtual_stages = virtual_stages, l.ranks = ranks;
      l.schedule = virtual_stages > 1 ? ScheduleKind::interleaved_1f1b : ScheduleKind::one_f_one_b;
    });
    std::map<uint64_t, std::vector<std::pair<int, int>>> members;  // rendezvous -> (rank, connection)
    std::map<uint64_t, size_t> expected;
    const std::vector<Axis> connections = comm::wire_up(*make_job(layout, 0)).connections;
    for (int rank = 0; rank < layout.world(); ++rank) {
      const auto job = make_job(layout, rank);
      const comm::Wiring wiring = comm::wire_up(*job);
      CHECK(wiring.connections == connections);
      std::vector<int> used = wiring.connection_of;
      std::erase(used, -1);
      std::sort(used.begin(), used.end());
      CHECK(std::adjacent_find(used.begin(), used.end()) == used.end());
      const std::vector<uint64_t> rendezvous_ids = comm::graph_of(*job).rendezvous_ids;
      for (ItemId id = 0; id < job->train().size(); ++id) {
        if (!is_communication(job->train()[id].op)) continue;
        const ChannelId channel = job->train()[id].channel;
        REQUIRE(wiring.connection_of[channel] >= 0);
        CHECK(connections[static_cast<size_t>(wiring.connection_of[channel])] == job->channels[channel].axis);
        members[rendezvous_ids[id]].push_back({rank, wiring.connection_of[channel]});
        const bool pair = job->train()[id].op == Op::send || job->train()[id].op == Op::recv;
        expected[rendezvous_ids[id]] =
            pair ? 2 : static_cast<size_t>(job->mesh.group_size(job->channels[channel].axis));
      }
    }
    for (const auto& [rendezvous, ends] : members) {
      CHECK(ends.size() == expected[rendezvous]);
      for (const auto& [rank, connection] : ends) CHECK(connection == ends[0].second);
    }
  }
}
