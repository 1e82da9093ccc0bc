// SPDX-License-Identifier: Apache-2.0
// The search against the rehearsal of every layout of a small space, its bounds, and inverse questions.

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <map>

#include <fmt/ranges.h>

#include "engine/base/progress.h"
#include "engine/config/load.h"
#include "tests/paths.h"
#include "tests/sample.h"
#include "tests/test.hpp"
#include "trainer/planner/search/need.h"
#include "trainer/planner/search/search.h"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

PlanRequest request(int ranks, const std::vector<std::string>& sets) {
  PlanRequest made;
  made.run_file = source_dir() + "/configs/runs/llama_1b.toml";
  made.sets = {"model.layers=6", "model.vocab_size=32000", "train.sequence_length=1024", "train.global_batch_size=32"};
  made.sets.insert(made.sets.end(), sets.begin(), sets.end());
  made.ranks = ranks;
  made.machine = source_dir() + "/configs/machines/h100x8.toml";
  return made;
}

std::vector<SearchedKey> keys(const std::vector<std::string>& texts) {
  std::vector<SearchedKey> made;
  for (const std::string& text : texts) made.push_back(parse_searched_key(text));
  return made;
}

}  // namespace

TEST_CASE("search: the winner is that of rehearsing every layout, and no bound exceeds a rehearsal", "[planner]") {
  struct Row {
    int ranks;
    std::vector<std::string> sets, keys;
  };
  std::vector<Row> rows = {
      {8,
       {},
       {"parallel.tensor=1,2", "parallel.pipeline=1,2", "train.micro_batch_size=1", "train.recompute=none,full",
        "zero.stage=0,1,3", "overlap.bucket_size=25MiB", "zero.prefetch_depth=1", "overlap.tensor_chunks=1"}}};
  if (test_everything()) {
    rows.push_back(
        {16, {"parallel.context=2", "train.micro_batch_size=2"}, {"zero.stage=0,2,3", "train.recompute=none"}});
    rows.push_back({8, {"model.layers=8"}, {"parallel.pipeline=4", "parallel.tensor=1", "zero.stage=0,1,2"}});
    rows.push_back({16,
                    {"comm.emulate.bandwidth=1GB/s", "model.layers=8"},
                    {"parallel.tensor=1,4", "train.micro_batch_size=1", "train.recompute=none"}});
    // The first layers cost more than those with a window.
    rows.push_back({8,
                    {"model.family=mistral", "model.sliding_window=8", "model.window_layers=[3, 4, 5]",
                     "train.sequence_length=8192", "model.context=8192"},
                    {"parallel.tensor=1,2", "parallel.pipeline=1,2,4", "train.micro_batch_size=1",
                     "train.recompute=none", "zero.stage=0,1", "overlap.tensor_chunks=1"}});
  }
  for (const Row& row : rows) {
    const PlanRequest asked = request(row.ranks, row.sets);
    const SearchResult quick = search(asked, {.keys = keys(row.keys), .seconds = 0, .threads = 1});
    const SearchResult all = search(asked, {.keys = keys(row.keys), .seconds = 0, .threads = 2, .exhaustive = true});
    CHECK(quick.is_certain);
    CHECK(quick.layouts.front().step_ms == all.layouts.front().step_ms);
    CHECK(quick.layouts.front().sets == all.layouts.front().sets);
    CHECK(quick.rehearsed < all.rehearsed);  // the bounds spare rehearsals
    CHECK(all.rehearsed > 10);
    for (size_t i = 0; i < all.rehearsed; ++i) {
      const SearchedLayout& layout = all.layouts[i];
      CAPTURE(fmt::format("{}", fmt::join(layout.sets, " ")), name_of(layout.bound.limit));
      CHECK(layout.bound.step_ns > 0);
      CHECK(static_cast<double>(layout.bound.step_ns) / 1e6 <= layout.step_ms);
      CHECK(layout.bound.memory_bytes <= layout.memory_bytes);
    }
  }
}

TEST_CASE("search: the bound of a layout does not depend on the layouts before it", "[planner]") {
  // The rows have one value other than the run's own for every kind of key that a price or the works of a layer may
  // read.
  const PlanRequest asked = request(8, {"parallel.tensor=2", "parallel.pipeline=2", "train.micro_batch_size=2"});
  const Drawn drawn = draw(asked);
  const WrittenRun written = load_written_run(asked.run_file, asked.sets);
  LayoutBounds shared(drawn.machine);
  for (const char* set : {"train.seed=1337",          "train.dtype=float32",
                          "train.head_tokens=0",      "train.micro_batch_size=1",
                          "train.recompute=full",     "train.sequence_length=512",
                          "model.ffn_width=4096",     "model.tie_embeddings=true",
                          "model.vocab_size=50304",   "model.kv_heads=4",
                          "model.resid_pdrop=0.1",    "data.document_mask=true",
                          "optimizer.weight_decay=0", "parallel.sequence_parallel=true",
                          "parallel.tensor=1",        "parallel.order=dp-tp-cp-pp",
                          "overlap.tensor_chunks=4",  "overlap.bucket_size=100MiB",
                          "comm.grad_dtype=bfloat16", "zero.stage=3",
                          "pipeline.schedule=zb_h1",  "train.seed=1338"}) {
    CAPTURE(set);
    const ResolvedConfig config = resolved_with(written, drawn.config, {set});
    const LayoutBound again = shared.bound(config), alone = LayoutBounds(drawn.machine).bound(config);
    CHECK(again.step_ns == alone.step_ns);
    CHECK(again.memory_bytes == alone.memory_bytes);
    CHECK(again.expected_ns == alone.expected_ns);
  }
}

TEST_CASE("search: as few layers recompute as the memory needs, and the winner is that of all layouts", "[planner]") {
  const std::vector<std::string> others = {
      "parallel.tensor=1",        "parallel.pipeline=1,2", "pipeline.virtual_stages=1",  "pipeline.schedule=1f1b",
      "train.micro_batch_size=8", "zero.stage=1",          "overlap.bucket_size=100MiB", "zero.shard_size=0"};
  const auto with_keys = [&](std::vector<std::string> more) {
    more.insert(more.end(), others.begin(), others.end());
    return keys(more);
  };
  PlanRequest asked = request(4, {});
  int64_t bytes[2];
  for (size_t i = 0; i < 2; ++i)
    bytes[i] = search(asked, {.keys = with_keys({i == 0 ? "train.recompute=none" : "train.recompute=full",
                                                 "train.recompute_layers=0"}),
                              .seconds = 0})
                   .layouts.front()
                   .memory_bytes;
  REQUIRE(bytes[0] > bytes[1]);
  Machine machine = draw(asked).machine;
  machine.memory_bytes = (bytes[0] + bytes[1]) / 2;
  asked.machine = std::string(std::tmpnam(nullptr)) + ".toml";
  std::ofstream(asked.machine) << machine_toml(machine);
  const std::vector<SearchedKey> space = with_keys({"train.recompute=none,full"});
  const SearchResult quick = search(asked, {.keys = space, .seconds = 0, .threads = 1});
  const SearchResult all = search(asked, {.keys = space, .seconds = 0, .threads = 2, .exhaustive = true});
  std::remove(asked.machine.c_str());
  CHECK(quick.layouts.front().step_ms == all.layouts.front().step_ms);
  CHECK(quick.layouts.front().sets == all.layouts.front().sets);
  const RunConfig& winner = *all.configs.front();
  CHECK(winner.train.recompute == Recomputation::full);
  CHECK(winner.train.recompute_layers > 0);
  size_t some = 0;
  for (const SearchedLayout& layout : all.layouts) {
    if (layout.outcome != Outcome::rehearsed && layout.outcome != Outcome::too_large) continue;
    CAPTURE(fmt::format("{}", fmt::join(layout.sets, " ")), name_of(layout.bound.limit));
    CHECK(layout.bound.memory_bytes <= layout.memory_bytes);
    if (layout.outcome != Outcome::rehearsed) continue;
    CHECK(static_cast<double>(layout.bound.step_ns) / 1e6 <= layout.step_ms);
    some += std::find(layout.sets.begin(), layout.sets.end(), "train.recompute_layers=0") == layout.sets.end();
  }
  CHECK(some >= 3);
}

TEST_CASE("search: parts of a pipeline may differ by a layer, and a data rank may compute its batch at once",
          "[planner]") {
  const PlanRequest asked = request(4, {"model.layers=10", "train.global_batch_size=24"});
  const Drawn drawn = draw(asked);
  size_t uneven = 0, at_once = 0;
  for (const std::vector<std::string>& sets : layouts_of(drawn.config, drawn.machine, {}, 24)) {
    const std::string text = fmt::format("{}", fmt::join(sets, " "));
    uneven += text.find("pipeline.virtual_stages=2 pipeline.layers=[2,3,3,2]") != std::string::npos;
    at_once += text.find("parallel.data=4 ") != std::string::npos &&
               text.find("train.micro_batch_size=6 ") != std::string::npos;
  }
  CHECK(uneven > 0);
  CHECK(at_once > 0);
}

TEST_CASE("search: ranks divide experts wherever they can, and the winner is the fastest rehearsal", "[planner]") {
  PlanRequest asked = request(4, {"model.family=mixtral", "model.experts.count=12", "model.layers=2"});
  const Drawn drawn = draw(asked);
  std::map<std::string, int> listed;  // by data ranks and expert ranks
  const auto value_of = [](const std::vector<std::string>& sets, const std::string& key) {
    for (const std::string& set : sets)
      if (set.starts_with(key + "=")) return set.substr(key.size() + 1);
    return std::string("none");
  };
  for (const auto& sets : layouts_of(drawn.config, drawn.machine, {}, 32)) {
    CHECK(value_of(sets, "parallel.tensor") == "1");
    if (value_of(sets, "parallel.expert") == "1" || value_of(sets, "parallel.pipeline") != "1")
      CHECK(value_of(sets, "overlap.paired_passes") == "false");
    ++listed[value_of(sets, "parallel.data") + " " + value_of(sets, "parallel.expert")];
  }
  std::vector<std::string> found;
  for (const auto& [name, count] : listed) found.push_back(name);
  CHECK(found == std::vector<std::string>{"2 1", "2 2", "4 1", "4 2", "4 4"});
  const std::vector<std::string> space = {"parallel.pipeline=1", "train.micro_batch_size=2",  "train.recompute=none",
                                          "zero.stage=0,1",      "overlap.bucket_size=25MiB", "zero.shard_size=0"};
  const SearchResult result = search(asked, {.keys = keys(space), .seconds = 0});
  // 2 stages of ZeRO x {1 rank, 2 and 4 ranks with and without pairs}.
  REQUIRE(result.layouts.size() == 10);
  for (const SearchedLayout& layout : result.layouts) {
    INFO(fmt::format("{}: {}", fmt::join(layout.sets, " "), layout.refusal));
    CHECK(layout.outcome != Outcome::refused);
    CHECK(layout.step_ms >= result.layouts.front().step_ms);
  }
}

TEST_CASE("search: narrower types on the wire are priced as a search over them prices them", "[planner]") {
  const std::vector<std::string> space = {"parallel.tensor=1",     "parallel.pipeline=1", "train.micro_batch_size=1",
                                          "train.recompute=none",  "zero.stage=0,1,3",    "overlap.bucket_size=25MiB",
                                          "zero.prefetch_depth=1", "zero.shard_size=0"};
  const PlanRequest asked = request(8, {"comm.emulate.bandwidth=4GB/s"});  // the link is slow, so bytes decide
  const SearchResult plain = search(asked, {.keys = keys(space), .seconds = 0, .exhaustive = true});
  REQUIRE(plain.rehearsed == 3);
  size_t checked = 0;
  for (const NarrowerWire& wire : plain.wires) {
    CHECK(wire.step_ms < plain.layouts[wire.layout].step_ms);
    std::vector<std::string> sets = plain.layouts[wire.layout].sets, fixed = space;
    sets.insert(sets.end(), wire.sets.begin(), wire.sets.end());
    for (const std::string& set : wire.sets) fixed.push_back(set);
    const SearchResult all = search(asked, {.keys = keys(fixed), .seconds = 0, .exhaustive = true});
    CHECK(all.wires.empty());  // the table has them
    for (size_t i = 0; i < all.rehearsed; ++i)
      if (all.layouts[i].sets == sets) {
        CHECK(all.layouts[i].step_ms == wire.step_ms);
        ++checked;
      }
  }
  CHECK(checked == plain.wires.size());
  CHECK(plain.wires.size() >= 4);  // gradients of three stages, and parameters of one
}

TEST_CASE("search: the bound of one stage without communication is its rehearsal but for the update", "[planner]") {
  const SearchResult one =
      search(request(1, {}), {.keys = keys({"train.micro_batch_size=1", "train.recompute=none,full"}), .seconds = 0});
  for (size_t i = 0; i < one.rehearsed; ++i)
    CHECK(static_cast<double>(one.layouts[i].bound.step_ns) / 1e6 > 0.9 * one.layouts[i].step_ms);
}

TEST_CASE("search: a model that fits no layout is refused with the smallest need", "[planner]") {
  CHECK_THROWS_WITH(search(request(2, {"model.layers=400"}), {.seconds = 0}),
                    Catch::Contains("none of") && Catch::Contains("The smallest needs at least") &&
                        Catch::Contains("more than the 74.51 GiB of h100x8"));
  CHECK_THROWS_WITH(parse_searched_key("overlap.bucketsize=1MiB"),
                    Catch::Contains("no key overlap.bucketsize") && Catch::Contains("overlap.bucket_size"));
  CHECK_THROWS_WITH(parse_searched_key("zero.stage"), Catch::Contains("needs KEY=VALUE"));
}

TEST_CASE("need: the smallest bandwidth is that of a plain bisection", "[planner]") {
  const PlanRequest asked = request(16, {"zero.stage=1", "train.micro_batch_size=1", "train.global_batch_size=64"});
  const Drawn drawn = draw(asked);
  const double now_ms = rehearse_config(drawn, drawn.config).step_ms;
  for (const double factor : {1.02, 1.3, 0.99}) {
    CAPTURE(factor);
    const double goal_ms = factor * now_ms;
    std::vector<double> tried;
    const auto step_ms = [&](double rate) {
      Drawn other = drawn;
      other.machine.inter_bytes_per_second = static_cast<int64_t>(rate);
      const ResolvedConfig& config = other.config;
      const SteadyState state = steady_state(config);
      double total_ms = 0;
      for (const auto& [micro_batches, weight] :
           {std::pair{state.planned + state.round, state.rounds}, std::pair{state.planned, 1 - state.rounds}}) {
        const JobRequest then{.config = with_micro_batches(config, micro_batches),
                              .machine = drawn.machine,
                              .nccl = drawn.nccl,
                              .proves = false};
        JobRequest now = then;
        now.machine = other.machine;
        total_ms += weight * static_cast<double>(step_period_ns(now, build_job_with_update(then, {}), false)) / 1e6;
      }
      tried.push_back(total_ms);
      return total_ms;
    };
    double high = static_cast<double>(drawn.machine.inter_bytes_per_second), low = high, answer_ms = step_ms(high);
    const bool meets = answer_ms <= goal_ms;
    while (low == high)
      if (const double ms = step_ms(meets ? high / 4 : high * 4); meets) {
        low = high / 4;
        if (ms <= goal_ms) high = low, answer_ms = ms;
      } else {
        high *= 4;
        answer_ms = ms;
        REQUIRE(ms <= goal_ms);
      }
    while (high / low > 1.01) {
      const double middle = std::sqrt(low * high), ms = step_ms(middle);
      (ms <= goal_ms ? high : low) = middle;
      if (ms <= goal_ms) answer_ms = ms;
    }
    const Needed needed = find_needed(asked, {.goal = Goal::step_ms, .value = goal_ms}, Varied::bandwidth);
    CHECK(needed.answer.reached == answer_ms);
    CHECK(needed.tried.size() < tried.size());
  }
}

TEST_CASE("need: the answer reaches the goal and a smaller value does not", "[planner]") {
  const PlanRequest asked = request(16, {"zero.stage=1", "train.micro_batch_size=1"});
  const Drawn drawn = draw(asked);
  const double now_ms = rehearse_config(drawn, drawn.config).step_ms;
  const Needed rate = find_needed(asked, {.goal = Goal::step_ms, .value = 1.02 * now_ms}, Varied::bandwidth);
  CHECK(rate.varied == "bandwidth between nodes");
  CHECK(rate.now.reached == Approx(now_ms));
  CHECK(rate.now.meets);
  CHECK(rate.answer.meets);
  CHECK(std::any_of(rate.tried.begin(), rate.tried.end(), [](const NeedStep& step) { return !step.meets; }));
  CHECK_THROWS_WITH(find_needed(asked, {.goal = Goal::step_ms, .value = 1e-3}, Varied::bandwidth),
                    Catch::Contains("no bandwidth between nodes reaches step_ms = 0.001"));
  const Needed ranks = find_needed(asked, {.goal = Goal::step_ms, .value = 1.1 * now_ms}, Varied::ranks);
  CHECK(std::stoi(ranks.answer.value) <= 16);
  // A machine file's nodes limit the ranks.
  PlanRequest limited = request(16, {"zero.stage=1", "train.micro_batch_size=1", "train.global_batch_size=512"});
  const double many_ms = rehearse_config(drawn, draw(limited).config).step_ms;
  CHECK(find_needed(limited, {.goal = Goal::step_ms, .value = 0.8 * many_ms}, Varied::ranks).answer.value == "32");
  Machine two_nodes = drawn.machine;
  two_nodes.nodes = 2;
  limited.machine = std::string(std::tmpnam(nullptr)) + ".toml";
  std::ofstream(limited.machine) << machine_toml(two_nodes);
  CHECK_THROWS_WITH(find_needed(limited, {.goal = Goal::step_ms, .value = 0.8 * many_ms}, Varied::ranks),
                    Catch::Contains("no number of ranks reaches") && Catch::Contains("the best one, 16, reaches"));
  std::remove(limited.machine.c_str());
  const Needed memory = find_needed(asked, {.goal = Goal::step_ms, .value = 100 * now_ms}, Varied::memory);
  CHECK(memory.answer.value.find("full") != std::string::npos);
  const Needed batch = find_needed(asked, {.goal = Goal::step_ms, .value = 10 * now_ms}, Varied::micro_batch);
  CHECK(batch.answer.value == "1");
  CHECK_THROWS_WITH(parse_need("mfuu=0.5"), Catch::Contains("does not know 'mfuu'; did you mean 'mfu'?"));
  CHECK_THROWS_WITH(parse_need("mfu=1.5"), Catch::Contains("below 1"));
  CHECK_THROWS_WITH(parse_need("mfu"), Catch::Contains("NAME=VALUE"));
  CHECK_THROWS_WITH(parse_varied("bandwith"), Catch::Contains("did you mean 'bandwidth'?"));
}

TEST_CASE("search: --seconds holds before the first result, and an interrupt is noted once", "[planner]") {
  CHECK_THROWS_WITH(search(request(8, {}), {.seconds = 1e-9}),
                    Catch::Contains("no rehearsal of") && Catch::Contains("Raise --seconds"));
  {
    const Interrupt interrupt;
    CHECK_FALSE(Interrupt::asked());
    std::raise(SIGINT);
    CHECK(Interrupt::asked());
  }
  const Interrupt later;
  CHECK_FALSE(Interrupt::asked());
}
