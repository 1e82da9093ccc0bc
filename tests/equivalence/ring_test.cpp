// SPDX-License-Identifier: Apache-2.0
// Positions of ranks that share a sequence, and activations that a ring keeps: the controls of both.

#include <algorithm>
#include <set>

#include "kernels/rope/rope.h"
#include "kernels/step_scalars/step_scalars.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"

namespace slipstream::equivalence {  // where Layout is that of the tests

namespace {

constexpr double kTolerance = 2e-5;   // as in tests/equivalence/context_test.cpp
constexpr double kOtherModel = 1e-3;  // far above it

Layout layout_of(bool llama, int context) {
  Layout layout{.name = llama ? "llama" : "gpt2", .model = llama ? tiny_llama() : tiny_gpt2(), .micro_batch = 4};
  layout.model.tokens = 24;
  layout.model.context = 27;
  layout.model.vocab = 61;
  layout.context = context;
  return layout;
}

/// Distance between the gradients of the first step and those of one rank.
double off_one_rank(const Layout& ring) {
  const Layout alone = with(ring, [](Layout& l) { l.context = 1, l.change_model = {}; });
  return difference(train(ring, 1).gradients, train(alone, 1).gradients);
}

/// The same distance after `change` has changed every work called `name`.
template <typename Change>
double off_one_rank(const Layout& ring, const std::string& name, const Change& change) {
  return off_one_rank(with(ring, [&](Layout& l) {
    l.change_model = [=](ModelSpec& model) {
      int changed = 0;
      for (Piece& piece : model.pieces)
        for (Work& work : piece.works)
          if (work.name == name) change(work), ++changed;
      if (changed == 0) throw PlanError("no work is called {}", name);
    };
  }));
}

}  // namespace

TEST_CASE("the controls: rotary tables of tokens that are not a rank's own train another model", "[context]") {
  for (int context : {2, 3}) {
    const Layout ring = layout_of(true, context);
    CAPTURE(context);
    CHECK(off_one_rank(ring) < kTolerance);
    const int64_t tokens = ring.model.tokens / context, width = ring.model.width / ring.model.heads;
    const auto filled = [&](const std::function<void(float*)>& after) {
      return off_one_rank(with(ring, [&](Layout& l) {
        l.change_model = [=](ModelSpec& model) {
          if (model.constants.size() != 1) throw PlanError("the rotary table is not the only constant");
          model.constants[0].fill = [=, right = model.constants[0].fill](std::byte* host) {
            right(host);
            after(reinterpret_cast<float*>(host));
          };
        };
      }));
    };
    CHECK(filled([](float*) {}) < kTolerance);
    // Three mistakes: every rank begins at the first token; its second chunk is one token off; its chunks are
    // exchanged.
    CHECK(filled([&](float* table) { kernels::rope_table(table, tokens, width, ring.model.rope_theta); }) >
          kOtherModel);
    CHECK(filled([&](float* table) {
            float* const second = table + tokens / 2 * width;
            std::copy_n(second + width, (tokens / 2 - 1) * width, second);
          }) > kOtherModel);
    CHECK(filled([&](float* table) {
            float* const second = table + tokens / 2 * width;
            std::swap_ranges(table, second, second);
          }) > kOtherModel);
  }
}

TEST_CASE("the controls: learned positions of tokens that are not a rank's own train another model", "[context]") {
  for (int context : {2, 3}) {
    const Layout ring = layout_of(false, context);
    CAPTURE(context);
    CHECK(off_one_rank(ring) < kTolerance);
    // Each change takes one chunk of rows of the table: the first chunk for both, or each chunk for the other.
    for (const auto& [first, second] : {std::pair<size_t, size_t>{0, 1}, {0, 0}, {1, 1}, {1, 0}}) {
      CAPTURE(first, second);
      const double off = off_one_rank(ring, "own_positions", [first = first, second = second](Work& work) {
        work.fn = [from = work.reads, to = work.writes[0], first, second](LaunchContext& c) {
          const int64_t half = to.size_bytes / 2;
          kernels::copy(c, {.from = c.at(from[first]), .to = c.at(to), .size_bytes = half});
          kernels::copy(c, {.from = c.at(from[second]), .to = c.at(to) + half, .size_bytes = half});
        };
      });
      CHECK((first == 0 && second == 1 ? off < kTolerance : off > kOtherModel));
    }
    CHECK(off_one_rank(ring, "add_own_positions", [](Work& work) { work.fn = [](LaunchContext&) {}; }) > kOtherModel);
  }
}

TEST_CASE("a ring keeps two slots of keys and two of their gradients, however many ranks are in it", "[context]") {
  for (bool llama : {false, true})
    for (int context : {2, 3, 4}) {
      CAPTURE(llama, context);
      const auto job = make_job(layout_of(llama, context), 0);
      std::set<BufferId> keys, gradients;
      int hops = 0;
      for (const Task& task : job->train().tasks) {
        if (task.op != Op::exchange) continue;
        ++hops;
        // The outgoing keys are not in the buffer where the next ones arrive.
        REQUIRE(task.reads.size() == 1);
        REQUIRE(task.writes.size() == 1);
        CHECK(task.reads[0].buffer != task.writes[0].buffer);
        const bool of_keys = job->channels[task.channel].role == Role::ring;
        for (const Slice& slice : {task.reads[0], task.writes[0]}) {
          (of_keys ? keys : gradients).insert(slice.buffer);
          CHECK(job->buffers[slice.buffer].size_bytes == (of_keys ? task.elems * size_of(task.dtype) : 4 * task.elems));
        }
      }
      CHECK(hops > 0);
      CHECK(keys.size() == 4);  // two in forward, and two where backward fetches them again
      CHECK(gradients.size() == 2);
    }
}

}  // namespace slipstream::equivalence
