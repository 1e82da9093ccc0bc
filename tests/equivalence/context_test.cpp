// SPDX-License-Identifier: Apache-2.0
// Ranks that share a sequence train the model of one rank: the same sums over tokens, in another order.

#include <algorithm>
#include <cstdio>
#include <map>

#include "comm/link.h"
#include "comm/rehearse/hazards.h"
#include "comm/rehearse/rehearse.h"
#include "comm/rehearse/seams.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"
#include "trainer/planner/planner.h"

namespace slipstream::equivalence {  // where Layout is that of the tests

namespace {

constexpr int kSteps = 3;
// Softmax and gradients of keys are summed block by block, and gradients of weights rank by rank. The tolerance is that
// of gradient accumulation.
constexpr double kTolerance = 2e-5;

/// `tokens` of a sequence: a multiple of 2 x context.
Layout layout_of(bool llama, int64_t tokens = 24) {
  Layout layout{.name = llama ? "llama" : "gpt2", .model = llama ? tiny_llama() : tiny_gpt2(), .micro_batch = 4};
  layout.model.tokens = tokens;
  layout.model.context = tokens + 3;
  layout.model.vocab = 61;
  return layout;
}

void check_same_bits(const Trained& a, const Trained& b) {
  CHECK(a.hash == b.hash);
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  CHECK(a.evaluations == b.evaluations);
  for (const std::string& hash : a.rank_hashes) CHECK(hash == a.hash);
}

void check_close(const Trained& a, const Trained& b, double tolerance = kTolerance) {
  for (const std::string& hash : a.rank_hashes) CHECK(hash == a.hash);
  REQUIRE(a.names == b.names);
  for (size_t i = 0; i < b.losses.size(); ++i) {
    CHECK(a.losses[i] == Approx(b.losses[i]).epsilon(tolerance));
    CHECK(a.norms[i] == Approx(b.norms[i]).epsilon(tolerance));
  }
  REQUIRE(a.evaluations.size() == b.evaluations.size());
  for (size_t i = 0; i < b.evaluations.size(); ++i)
    CHECK(a.evaluations[i] == Approx(b.evaluations[i]).epsilon(tolerance));
  CHECK(difference(a.gradients, b.gradients) < tolerance);
  CHECK(difference(a.weights, b.weights) < tolerance);
}

/// One step of all ranks of `layout` in virtual time, each with its own plan after `change`.
template <typename Change>
comm::Rehearsal rehearse_all(const Layout& layout, const Change& change, comm::Gate gate) {
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<comm::RankRuns> ranks;
  for (int rank = 0; rank < layout.world(); ++rank) {
    jobs.push_back(make_job(layout, rank));
    change(jobs.back()->train());
    ranks.push_back({.rank = rank, .runs = {&jobs.back()->train()}, .seams = {}});
  }
  const comm::RooflinePrice price({.flops_per_second = 5e9, .bytes_per_second = 1e10, .launch_ns = 1000}, {1e9, 20000});
  return comm::rehearse(jobs[0]->mesh, jobs[0]->channels, ranks, price, {.gate = gate, .collapse = false});
}

}  // namespace

TEST_CASE("context 2, 3 and 4 train the model of one rank, evaluations included", "[context]") {
  for (bool llama : {false, true}) {
    const Layout whole = with(layout_of(llama), [](Layout& l) { l.evaluate_between = true; });
    const Trained expected = train(whole, kSteps);
    for (int context : {2, 3, 4}) {
      CAPTURE(llama, context);
      const Trained trained = train(with(whole, [&](Layout& l) { l.context = context; }), kSteps);
      std::printf("  %s, context %d: gradients differ by %.1e, weights by %.1e\n", whole.name.c_str(), context,
                  difference(trained.gradients, expected.gradients), difference(trained.weights, expected.weights));
      check_close(trained, expected);
    }
  }
}

TEST_CASE("the shortest sequences: chunks of one token", "[context]") {
  for (bool llama : {false, true})
    for (int context : {2, 4}) {
      CAPTURE(llama, context);
      const Layout whole = layout_of(llama, 2 * context);
      check_close(train(with(whole, [&](Layout& l) { l.context = context; }), kSteps), train(whole, kSteps));
    }
}

TEST_CASE("context crosses with data ranks, accumulation, dense and untied tables", "[context]") {
  for (bool llama : {false, true})
    for (int micro_batches : {1, 2})
      for (bool tied : {false, true}) {
        CAPTURE(llama, micro_batches, tied);
        const Layout whole = with(layout_of(llama, 12), [&](Layout& l) {
          l.ranks = 2, l.micro_batch = 2, l.micro_batches = micro_batches, l.model.tie_embeddings = tied;
        });
        const Trained expected = train(whole, kSteps);
        const Layout ring = with(whole, [](Layout& l) { l.context = 2; });
        const Trained trained = train(ring, kSteps);
        check_close(trained, expected);
        check_same_bits(train(with(ring, [](Layout& l) { l.reduce_mode = ReduceMode::naive; }), kSteps), trained);
      }
}

TEST_CASE("sharding over data x context gives the bits of summing over them", "[context][zero]") {
  for (bool llama : {false, true}) {
    const Layout unsplit = with(layout_of(llama, 12), [](Layout& l) {
      l.ranks = 2, l.context = 2, l.micro_batch = 2, l.model.split_tied_embedding = false;
    });
    const Trained expected = train(unsplit, kSteps);
    for (int stage : {1, 2, 3}) {
      CAPTURE(llama, stage);
      const Trained sharded = train(with(unsplit, [&](Layout& l) { l.zero_stage = stage; }), kSteps);
      CHECK(sharded.hash == expected.hash);
      CHECK(sharded.losses == expected.losses);
    }
    // Hybrid: groups of 2 are the two ranks that share a sequence.
    check_close(train(with(unsplit, [](Layout& l) { l.zero_stage = 3, l.shard_size = 2; }), kSteps), expected);
    check_close(
        train(with(unsplit, [](Layout& l) { l.zero_stage = 2, l.micro_batch = 1, l.micro_batches = 2; }), kSteps),
        expected);
  }
}

TEST_CASE("pipelines over rings give the bits of a ring on one stage", "[context][pipeline]") {
  for (bool llama : {false, true})
    for (int zero : {0, 1, 3}) {
      const Layout whole = with(layout_of(llama, 12), [&](Layout& l) {
        l.context = 2, l.micro_batch = 1, l.micro_batches = 2, l.model.layers = 4, l.model.tie_embeddings = false,
        l.zero_stage = zero;
      });
      const Trained expected = train(whole, kSteps);
      for (ScheduleKind kind : {ScheduleKind::one_f_one_b, ScheduleKind::interleaved_1f1b, ScheduleKind::zb_h1}) {
        if (kind == ScheduleKind::zb_h1 && zero > 1) continue;
        CAPTURE(llama, zero, name_of(kind));
        const Trained piped = train(with(whole,
                                         [&](Layout& l) {
                                           l.stages = 2, l.schedule = kind,
                                           l.virtual_stages = kind == ScheduleKind::interleaved_1f1b ? 2 : 1;
                                         }),
                                    kSteps);
        CHECK(piped.hash == expected.hash);
        CHECK(piped.losses == expected.losses);
      }
    }
  // Three exchanges, and a tied table on two stages.
  const Layout ring = with(layout_of(false), [](Layout& l) { l.context = 4, l.micro_batch = 2, l.micro_batches = 2; });
  CHECK(train(with(ring, [](Layout& l) { l.stages = 2; }), kSteps).losses.front() ==
        train(ring, kSteps).losses.front());
}

TEST_CASE("rings cross with tensor and sequence parallelism", "[context][tensor]") {
  for (bool llama : {false, true})
    for (bool sequence_parallel : {false, true}) {
      const Layout whole = with(layout_of(llama, 12), [](Layout& l) { l.micro_batch = 2; });
      const Trained expected = train(whole, kSteps);
      const Layout both =
          with(whole, [&](Layout& l) { l.context = 2, l.tensor = 2, l.sequence_parallel = sequence_parallel; });
      CAPTURE(llama, sequence_parallel);
      check_close(train(both, kSteps), expected);
      const Layout unsplit = with(both, [](Layout& l) { l.model.split_tied_embedding = false; });
      CHECK(train(with(unsplit, [](Layout& l) { l.zero_stage = 1; }), kSteps).hash == train(unsplit, kSteps).hash);
      check_close(train(with(unsplit, [](Layout& l) { l.zero_stage = 3; }), kSteps), expected);
      if (sequence_parallel)
        check_close(train(with(both, [](Layout& l) { l.stages = 2, l.micro_batch = 1, l.micro_batches = 2; }), kSteps),
                    expected);
    }
}

TEST_CASE("a ring whose forward runs again gives the bits of one that keeps everything", "[context][recompute]") {
  for (bool llama : {false, true})
    for (int context : {2, 3, 4})
      for (int zero : {0, 3}) {
        const Layout ring = with(layout_of(llama), [&](Layout& l) {
          l.context = context, l.micro_batch = 2, l.micro_batches = 2, l.zero_stage = zero,
          l.model.split_tied_embedding = false;
        });
        const Trained expected = train(ring, kSteps);
        for (Recomputation how : {Recomputation::selective, Recomputation::full}) {
          CAPTURE(llama, context, zero, name_of(how));
          check_same_bits(train(with(ring, [&](Layout& l) { l.recompute = how, l.delay_seed = 3; }), kSteps), expected);
        }
        if (zero > 0 || context == 3) continue;
        const Layout split = with(
            ring, [](Layout& l) { l.stages = 2, l.schedule = ScheduleKind::zb_h1, l.model.tie_embeddings = false; });
        const Trained piped = train(split, kSteps),
                      again = train(with(split, [](Layout&l) { l.recompute = Recomputation::full; }), kSteps);
        CHECK(piped.hash == again.hash);
      }
}

TEST_CASE("settings that change only the timing of a ring do not change bits", "[context]") {
  for (bool llama : {false, true}) {
    const Layout ring = with(layout_of(llama), [](Layout& l) { l.context = 4, l.micro_batch = 2; });
    const Trained expected = train(ring, kSteps);
    for (uint64_t seed : {5, 55}) {
      CAPTURE(llama, seed);
      check_same_bits(train(with(ring, [&](Layout& l) { l.delay_seed = seed; }), kSteps), expected);
    }
    check_same_bits(train(with(ring, [](Layout& l) { l.threads = 2; }), kSteps), expected);
    check_same_bits(train(with(ring, [](Layout& l) { l.update_on_spine = false; }), kSteps), expected);
  }
}

TEST_CASE("a ring in bfloat16 follows one rank in bfloat16", "[context]") {
  // What travels is rounded once, as activations are; sums stay float. 2^-8 a rounding.
  for (bool llama : {false, true}) {
    const Layout whole = with(layout_of(llama), [](Layout& l) { l.model.dtype = DType::bf16, l.micro_batch = 2; });
    const Trained expected = train(whole, kSteps),
                  trained = train(with(whole, [](Layout&l) { l.context = 2; }), kSteps);
    CHECK(difference(trained.gradients, expected.gradients) < 0x1p-5);
    CHECK(difference(trained.weights, expected.weights) < 0x1p-5);
    for (int step = 0; step < kSteps; ++step)
      CHECK(trained.losses[static_cast<size_t>(step)] ==
            Approx(expected.losses[static_cast<size_t>(step)]).epsilon(0x1p-8));
  }
}

TEST_CASE("the controls: a ring without its transfers, or with positions of another rank, trains another model",
          "[context]") {
  const Layout whole = layout_of(true), ring = with(whole, [](Layout&l) { l.context = 3; });
  const Trained expected = train(whole, 1);
  CHECK(difference(train(ring, 1).gradients, expected.gradients) < kTolerance);
  // Keys are not sent on, so every rank sees those of its neighbour twice.
  const Layout stuck = with(ring, [](Layout& l) {
    l.check_hazards = false;
    l.change_model = [](ModelSpec& model) {
      for (Piece& piece : model.pieces)
        for (Communication& c : piece.communications)
          if (c.name.ends_with("keys.2")) c.peer = 0;
    };
  });
  CHECK(difference(train(stuck, 1).gradients, expected.gradients) > 1e-3);
  // The ring runs the other way around: keys of the rank before arrive where those of the next are expected.
  const Layout turned = with(ring, [](Layout& l) {
    l.change_model = [](ModelSpec& model) {
      for (Piece& piece : model.pieces)
        for (Communication& c : piece.communications) c.peer = 1;
    };
  });
  CHECK(difference(train(turned, 1).gradients, expected.gradients) > 1e-3);
}

TEST_CASE("two rings on one channel, in one direction or both, are safe", "[context][peers]") {
  // TransformerEngine and others use streams for this; here the order of a channel is the same on all ranks, for any
  // data.
  const Layout ring = with(layout_of(true), [](Layout& l) { l.context = 4, l.micro_batch = 2; });
  const auto on_one_channel = [&](int16_t peer_of_gradients) {
    return with(ring, [=](Layout& l) {
      l.change_model = [=](ModelSpec& model) {
        for (Piece& piece : model.pieces)
          for (Communication& c : piece.communications) {
            if (c.channel == Role::ring_gradients) c.peer = peer_of_gradients;
            c.channel = Role::ring;
          }
      };
    });
  };
  check_same_bits(train(with(on_one_channel(-1), [](Layout& l) { l.delay_seed = 3; }), kSteps), train(ring, kSteps));
  for (int16_t peer : {-1, 1})
    for (comm::Gate gate : {comm::Gate::none, comm::Gate::launch_order, comm::Gate::serial}) {
      CAPTURE(peer, comm::name_of(gate));
      CHECK(rehearse_all(
                on_one_channel(peer), [](Plan&) {}, gate)
                .finished);
    }
}

TEST_CASE("send and receive of a ring as two tasks: a deadlock in the rehearsal, and refused before it",
          "[context][peers]") {
  const Layout ring = with(layout_of(true), [](Layout& l) { l.context = 4; });
  const auto in_two = [](Plan& plan) {
    for (ItemId id = static_cast<ItemId>(plan.spine.size()), end = static_cast<ItemId>(plan.size()); id < end; ++id) {
      if (plan[id].op != Op::exchange) continue;
      Task recv = plan.task(id);
      recv.op = Op::recv;
      recv.peer = static_cast<int16_t>(-recv.peer);
      recv.reads.clear();
      plan.task(id).op = Op::send;
      plan.task(id).writes.clear();
      const auto both = static_cast<ItemId>(plan.size());
      for (ItemId i = 0; i < both; ++i)
        if (std::find(plan[i].after.begin(), plan[i].after.end(), Point{id}) != plan[i].after.end())
          plan[i].after.push_back({both});
      plan.tasks.push_back(std::move(recv));
      plan.order.insert(std::find(plan.order.begin(), plan.order.end(), id) + 1, both);
    }
  };
  CHECK(rehearse_all(
            ring, [](Plan&) {}, comm::Gate::none)
            .finished);
  const comm::Rehearsal stuck = rehearse_all(ring, in_two, comm::Gate::none);
  CHECK_FALSE(stuck.finished);
  CHECK(stuck.deadlock.find("exchange_keys.1") != std::string::npos);
  for (Op op : {Op::send, Op::recv})
    CHECK_THROWS_WITH(make_job(with(ring,
                                    [=](Layout& l) {
                                      l.change_model = [=](ModelSpec& model) {
                                        for (Piece& piece : model.pieces)
                                          for (Communication& c : piece.communications) c.op = op;
                                      };
                                    }),
                               0),
                      Catch::Contains("every rank would send first, then receive. Use exchange"));
}

TEST_CASE("without any one wait for a transfer, random delays can change the model, and the live checker names it",
          "[context][mutation]") {
  const Layout ring = with(layout_of(true), [](Layout& l) { l.context = 3, l.micro_batch = 2; });
  const std::string expected = train(ring, kSteps).hash;
  const auto job = make_job(ring, 0);
  std::string changed_by;
  int waits = 0;
  for (ItemId id = 0; id < job->train().spine.size(); ++id)
    for (size_t i = 0; i < job->train()[id].after.size(); ++i) {
      if (job->train()[job->train()[id].after[i].item].op != Op::exchange ||
          job->model.pieces[job->train().spine[id].piece].layer != 1)
        continue;
      ++waits;
      CAPTURE(job->train()[id].name);
      Layout mutant = ring;
      mutant.mutate = [=](Job& j) {
        j.train()[id].after.erase(j.train()[id].after.begin() + static_cast<std::ptrdiff_t>(i));
      };
      CHECK_THROWS_AS(train(mutant, 2), PlanError);
      mutant.check_hazards = false;
      for (uint64_t seed = 1; seed <= 3 && changed_by.empty(); ++seed) {
        mutant.delay_seed = seed;
        if (train(mutant, kSteps).hash != expected) changed_by = job->train()[id].name;
      }
    }
  std::printf("  %d waits of one layer; without that of %s another model is trained\n", waits, changed_by.c_str());
  CHECK(waits ==
        6);  // two hops forward; in backward two of keys, and one of gradients before each addition but the first
  CHECK(!changed_by.empty());
}

TEST_CASE("every transfer of a ring has compute to travel under", "[context]") {
  // The exchange of step s + 1 may begin when block s - 1 is done, and block s + 1 waits for it; the addition after the
  // next block waits for gradients.
  struct Case {
    int context = 1, tensor = 1;
    bool recompute = false;
  };
  for (auto [context, tensor, recompute] :
       std::vector<Case>{{2}, {3}, {4}, {2, 2}, {4, 2}, {2, 1, true}, {4, 1, true}, {4, 2, true}}) {
    const auto job = make_job(with(layout_of(true, 24),
                                   [c = context, t = tensor, r = recompute](Layout& l) {
                                     l.context = c, l.tensor = t;
                                     if (r) l.recompute = Recomputation::full;
                                   }),
                              0);
    const Plan& plan = job->train();
    const auto begin_of = [&](const Task& task) {
      ItemId begin = 0;
      for (const Point& point : task.after)
        if (plan.is_spine(point.item)) begin = std::max(begin, point.item);
      return begin;
    };
    int hops = 0;
    for (ItemId id = static_cast<ItemId>(plan.spine.size()); id < plan.size(); ++id) {
      const Task& task = plan.task(id);
      if (task.op != Op::exchange) continue;
      ++hops;
      CAPTURE(context, tensor, recompute, task.name);
      CHECK(task.peer == -1);
      REQUIRE(task.before.has_value());
      const ItemId begin = begin_of(task), end = task.before->item;
      // At least one block is in between. The first transfers of backward wait for no block: gradients of the
      // feed-forward network may be in between, but no keys of a recomputed pass, because those would have to wait.
      int64_t flops = 0, feed_forward_flops = 0;
      for (ItemId i = begin + 1; i < end; ++i) {
        flops += plan[i].cost.flops;
        if (plan[i].name.starts_with("mlp_up_gradient")) feed_forward_flops += plan[i].cost.flops;
      }
      CHECK(flops >= 4 * job->model.batch * 4 * 8 * 2 * (12 / context) * (12 / context) / tensor);
      if (!task.name.starts_with("exchange_keys_again.1.")) continue;
      CHECK(feed_forward_flops > 0);
      for (const Task& other : plan.tasks)
        if (other.name.starts_with("recompute.exchange_")) CHECK((begin_of(other) < begin || begin_of(other) >= end));
    }
    CHECK(hops == 2 * (recompute ? 4 : 3) * (context - 1));
  }
}

TEST_CASE("a ring is charged the bytes of its busiest rank, all of them", "[context]") {
  for (int context : {2, 3, 4}) {
    const Layout layout = with(layout_of(true, 24), [&](Layout& l) { l.context = context; });
    const auto job = make_job(layout, 0);
    std::map<Role, int64_t> sent;
    for (const Task& task : job->train().tasks)
      if (task.op == Op::exchange)
        sent[job->channels[task.channel].role] +=
            comm::wire_bytes(task.op, task.algorithm, context, task.elems, task.dtype);
    const models::ModelOptions& o = layout.model;
    const int64_t hop_elems = layout.micro_batch * 24 / context * 2 * o.kv_heads * (o.width / o.heads);
    CAPTURE(context);
    // Keys go around in the forward and in the backward pass, except for the last exchange; their gradients return, in
    // float.
    CHECK(sent[Role::ring] == o.layers * 2 * (context - 1) * hop_elems * 4);
    CHECK(sent[Role::ring_gradients] == o.layers * (context - 1) * hop_elems * 4);
    // The mask decides the least number of bytes: chunks of others' keys that some query of a rank sees. The rank with
    // the last chunk sees all of them, so an exchange without the keys that other ranks do not need takes no less time.
    int most = 0, all = 0;
    for (int rank = 0; rank < context; ++rank) {
      int needed = 0;
      for (int chunk = 0; chunk < 2 * context; ++chunk) {
        const bool own = chunk == rank || chunk == 2 * context - 1 - rank;
        needed += !own && (chunk < rank || chunk < 2 * context - 1 - rank) ? 1 : 0;
      }
      most = std::max(most, needed);
      all += needed;
    }
    CHECK(most * hop_elems / 2 == (context - 1) * hop_elems);
    CHECK(4 * all == 3 * context * most);  // three quarters
  }
}

TEST_CASE("a ring hides at least 90 % of its communication when a block computes longer than it travels", "[context]") {
  // In virtual time, at sizes where attention dominates: 4 ranks of one sequence of 4096 tokens. The ratio sets the
  // link's speed.
  struct Exposed {
    double ring_ms = 0, exposed_ms = 0;
    double hidden() const { return 1 - exposed_ms / ring_ms; }
  };
  for (bool llama : {false, true}) {
    const Layout layout = with(layout_of(llama, 4096), [](Layout& l) {
      l.context = 4, l.micro_batch = 1, l.model.heads = l.model.kv_heads = 8, l.model.width = 512,
      l.model.ffn_width = 2048;
      l.bucket_bytes = 25 << 20;
    });
    const std::shared_ptr<const Job> job = make_job(layout, 0);
    const Plan& plan = job->train();
    const auto first = [&](auto matches) {
      ItemId id = 0;
      while (!matches(plan[id])) ++id;
      return id;
    };
    const ItemId block = first([](const Item&i) { return i.name == "attention_block.1.0"; }),
                 hop = first([](const Item&i) { return i.op == Op::exchange; });
    const auto ring_at = [&](double ratio) {
      comm::RooflinePrice price({.flops_per_second = 1e12, .bytes_per_second = 1e12, .launch_ns = 4000}, {1e9, 0});
      const double bytes = static_cast<double>(plan.task(hop).elems * size_of(plan.task(hop).dtype));
      price.set_link(Axis::context, {bytes * 1e9 / (ratio * static_cast<double>(price.local_ns(plan, block))), 5000},
                     0);
      price.set_link(Axis::replica, {1e15, 0}, 1);  // other tests cover the gradients of weights
      const comm::Rehearsal rehearsal = comm::rehearse(job->mesh, job->channels, planner::runs_of({job}, 3), price);
      Exposed result;
      for (const auto& run : rehearsal.ranks[0].runs)
        for (ItemId id = 0; id < plan.size(); ++id)
          if (plan[id].op == Op::exchange) result.ring_ms += static_cast<double>(run[id].duration_ns()) / 1e6;
      for (const comm::Exposed& exposed : rehearsal.ranks[0].exposed)
        if (plan[exposed.awaited].op == Op::exchange) result.exposed_ms += static_cast<double>(exposed.time_ns) / 1e6;
      return result;
    };
    for (double ratio : {0.25, 0.5, 0.9, 1.0, 2.0, 4.0}) {
      const Exposed ring = ring_at(ratio);
      std::printf("  %s, a hop takes %.2f of a block: %.0f%% hidden\n", layout.name.c_str(), ratio,
                  100 * ring.hidden());
      CAPTURE(llama, ratio, ring.ring_ms, ring.exposed_ms);
      if (ratio <= 0.9) CHECK(ring.hidden() >= 0.9);
      if (ratio >= 4) CHECK(ring.hidden() < 0.7);  // the control: the excess over blocks is exposed
    }
  }
}

}  // namespace slipstream::equivalence
