// SPDX-License-Identifier: Apache-2.0
// Every legal pair of settings of data x tensor x pipeline x context x ZeRO x recomputation x optimizer x family, with
// experts that ranks divide, occurs in a run of at most 8 ranks: it trains the model of one rank, its plans are proved,
// and every wait is needed. The program decides which pairs are legal, not a list in this test.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <set>

#include "comm/rehearse/hazards.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "tests/defaults.h"
#include "tests/equivalence/covering.h"
#include "tests/equivalence/mutated.h"
#include "tests/equivalence/table.h"
#include "tests/test.hpp"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 2;
constexpr int kRanks = 8;
constexpr int64_t kSequences = 16;  // in a step of every row
constexpr double kMuonNoise = 10;

/// A setting as in the run file. `named`: its name in the program's refusal.
struct Level {
  std::string name;
  std::vector<std::string> sets;
  std::vector<std::string> named;
  int ranks = 1;
};
struct Factor {
  std::string name;
  std::vector<Level> levels;  // the first is legal with every setting of the other factors
};

const std::vector<Factor>& factors() {
  const auto piped = [](const std::string& schedule, int stages, int virtual_stages = 1) {
    return std::vector<std::string>{"parallel.pipeline=" + std::to_string(stages), "pipeline.schedule=" + schedule,
                                    "pipeline.virtual_stages=" + std::to_string(virtual_stages)};
  };
  const auto shared = [](int ranks, bool sequence) {
    return std::vector<std::string>{"parallel.tensor=" + std::to_string(ranks),
                                    std::string("parallel.sequence_parallel=") + (sequence ? "true" : "false")};
  };
  std::vector<std::string> aligned = piped("1f1b", 2);
  aligned.push_back("overlap.align_grad_reduce=true");
  static const std::vector<Factor> all = {
      {"pipeline",
       {{"no pipeline", {}, {"pipeline"}},
        {"gpipe 2", piped("gpipe", 2), {"pipeline"}, 2},
        {"1f1b 2", piped("1f1b", 2), {"pipeline"}, 2},
        {"1f1b 2 aligned", aligned, {"align_grad_reduce"}, 2},
        {"1f1b 4", piped("1f1b", 4), {"pipeline"}, 4},
        {"interleaved 2 x 2", piped("interleaved_1f1b", 2, 2), {"interleaved_1f1b"}, 2},
        {"zb_h1 2", piped("zb_h1", 2), {"pipeline"}, 2},
        {"zb_h1 4", piped("zb_h1", 4), {"pipeline"}, 4}}},
      {"tensor",
       {{"no tensor", {}, {"tensor"}},
        {"tensor 2", shared(2, false), {"tensor"}, 2},
        {"tensor 2 sequence", shared(2, true), {"sequence_parallel", "tensor = 2"}, 2},
        {"tensor 4", shared(4, false), {"tensor = 4"}, 4},
        {"tensor 4 sequence", shared(4, true), {"tensor = 4", "sequence_parallel"}, 4}}},
      {"ZeRO",
       {{"ZeRO-0", {"zero.stage=0"}, {"zero.stage = 0"}},
        {"ZeRO-1", {"zero.stage=1"}, {"zero.stage = 1"}},
        {"ZeRO-2", {"zero.stage=2"}, {"zero.stage = 2"}},
        {"ZeRO-3", {"zero.stage=3"}, {"zero.stage = 3"}}}},
      {"data",
       {{"data 1", {}, {"data"}},
        {"data 2", {"parallel.data=2"}, {"data"}, 2},
        {"data 4", {"parallel.data=4"}, {"data"}, 4}}},
      {"context",
       {{"context 1", {}, {"context"}},
        {"context 2", {"parallel.context=2"}, {"context"}, 2},
        {"context 4", {"parallel.context=4"}, {"context"}, 4}}},
      {"recompute",
       {{"keep all", {"train.recompute=none"}, {"recompute"}},
        {"selective", {"train.recompute=selective"}, {"recompute"}},
        {"full", {"train.recompute=full"}, {"recompute"}}}},
      {"micro-batches",
       {{"2 micro-batches", {}, {"2 micro-batches"}},
        {"4 micro-batches", {}, {"4 micro-batches"}},
        {"1 micro-batch", {}, {"1 micro-batches", "micro-batches per step, got 1"}}}},
      {"model",
       {{"gpt2", {"model.family=gpt2"}, {"heads"}},
        {"llama", {"model.family=llama", "model.kv_heads=2"}, {"kv_heads = 2", "kv_heads 2"}},
        {"mixtral", {"model.family=mixtral", "model.kv_heads=2", "model.experts.count=4"}, {"experts"}}}},
      {"optimizer", {{"adamw", {}, {"adamw"}}, {"muon", {"optimizer.name=muon"}, {"optimizer.name = \"muon\""}}}},
  };
  return all;
}

const Level& level_of(const Setting& setting) { return factors()[setting.factor].levels[setting.level]; }
std::vector<size_t> level_counts() {
  std::vector<size_t> counts;
  for (const Factor& factor : factors()) counts.push_back(factor.levels.size());
  return counts;
}
int ranks_of(const Row& row) {
  int ranks = 1;
  for (size_t f = 0; f < row.size(); ++f)
    if (row[f] != kOpen) ranks *= level_of({f, row[f]}).ranks;
  return ranks;
}
size_t factor_named(const std::string& name) {
  const auto found = std::find_if(factors().begin(), factors().end(), [&](const Factor& f) { return f.name == name; });
  return static_cast<size_t>(found - factors().begin());
}
/// Tells whether settings that act between data ranks and ranks of a ring have a peer to share with, or may still get
/// one within kRanks. Aligned reductions with tensor parallelism need four ranks for themselves: with eight ranks these
/// two occur together only where nothing is reduced.
bool shares_if_it_must(const Row& row) {
  const auto level = [&](const char* name) -> const Level* {
    const size_t factor = factor_named(name);
    return row[factor] == kOpen ? nullptr : &level_of({factor, row[factor]});
  };
  const Level *zero = level("ZeRO"), *pipeline = level("pipeline"), *tensor = level("tensor"), *data = level("data"),
              *context = level("context");
  const bool must = (zero && zero->name != "ZeRO-0") ||
                    (pipeline && pipeline->named[0] == "align_grad_reduce" && (!tensor || tensor->ranks < 4));
  if (!must || (data && data->ranks > 1) || (context && context->ranks > 1)) return true;
  return (!data || !context) && 2 * ranks_of(row) <= kRanks;
}
std::string name_of(const Row& row) {
  std::string name;
  for (size_t f = 0; f < row.size(); ++f) name += (f ? ", " : "") + level_of({f, row[f]}).name;
  return name;
}
/// The row with these two settings, and with defaults for all other factors.
Row plain_but(const SettingPair& pair) {
  Row row(factors().size(), 0);
  row[pair.first.factor] = pair.first.level;
  row[pair.second.factor] = pair.second.level;
  return row;
}
int micro_batches_of(const Row& row) { return std::vector<int>{2, 4, 1}[row[factor_named("micro-batches")]]; }

RunConfig config_of(const Row& row) {
  const int data = level_of({factor_named("data"), row[factor_named("data")]}).ranks;
  std::vector<std::string> sets{"model.layers=4",
                                "model.heads=4",
                                "model.width=16",
                                "model.ffn_width=32",
                                "model.context=8",
                                "model.vocab_size=67",
                                "overlap.tensor_chunks=2",
                                "train.global_batch_size=" + std::to_string(kSequences),
                                "train.micro_batch_size=" + std::to_string(kSequences / data / micro_batches_of(row))};
  const auto ranks = [&](const char* name) { return level_of({factor_named(name), row[factor_named(name)]}).ranks; };
  if (level_of({factor_named("model"), row[factor_named("model")]}).name == "mixtral")
    sets.push_back("parallel.expert=" + std::to_string(ranks("data") * ranks("context") > 1 ? 2 : 1));
  for (size_t f = 0; f < row.size(); ++f)
    for (const std::string& set : level_of({f, row[f]}).sets) sets.push_back(set);
  return default_run_config(sets);
}

/// The program's refusal of the row; empty if the program plans it and the plan is proved.
std::string refusal_of(const Row& row) {
  try {
    const RunConfig config = config_of(row);
    require_supported(config);
    planner::build_finished_job({.config = resolve(config, {.world = ranks_of(row)}), .machine = this_host(1)});
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

struct Table {
  std::vector<SettingPair> legal;
  std::map<SettingPair, std::string> refused;
  int too_large = 0;  // pairs that need more ranks
  std::vector<Row> rows;
};

const Table& table() {
  static const Table made = [] {
    Table t;
    std::set<SettingPair> may_meet;
    for (const SettingPair& pair : all_pairs(level_counts())) {
      if (ranks_of(plain_but(pair)) > kRanks) {
        ++t.too_large;
      } else if (const std::string refusal = refusal_of(plain_but(pair)); refusal.empty()) {
        t.legal.push_back(pair);
      } else {
        t.refused[pair] = refusal;
      }
    }
    may_meet.insert(t.legal.begin(), t.legal.end());
    t.rows = covering_rows(level_counts(), t.legal, [&](const Row& row) {
      for (size_t f = 0; f < row.size(); ++f)
        for (size_t g = f + 1; g < row.size(); ++g)
          if (row[f] != kOpen && row[g] != kOpen && !may_meet.contains({{f, row[f]}, {g, row[g]}})) return false;
      return ranks_of(row) <= kRanks && shares_if_it_must(row);
    });
    return t;
  }();
  return made;
}

equivalence::Layout layout_of(const Row& row) {
  const RunConfig config = config_of(row);
  const planner::JobRequest request{.config = resolve(config, {.world = ranks_of(row)}), .machine = {}};
  equivalence::Layout layout{.name = name_of(row),
                             .model = planner::model_options(request),
                             .bucket_bytes = 2 << 10,
                             .first_bucket_bytes = 1 << 10};
  layout.model.tokens = config.train.sequence_length;
  layout.ranks = static_cast<int>(std::max<int64_t>(1, config.parallel.data));
  if (config.parallel.data < 0) layout.ranks = 1;
  layout.context = static_cast<int>(config.parallel.context);
  layout.stages = static_cast<int>(config.parallel.pipeline);
  layout.tensor = static_cast<int>(config.parallel.tensor);
  layout.expert = static_cast<int>(config.parallel.expert);
  layout.sequence_parallel = config.parallel.sequence_parallel;
  layout.tensor_chunks = static_cast<int>(config.overlap.tensor_chunks);
  layout.schedule = config.pipeline.schedule;
  layout.virtual_stages = static_cast<int>(config.pipeline.virtual_stages);
  layout.align_grad_reduce = config.overlap.align_grad_reduce;
  layout.micro_batches = micro_batches_of(row);
  layout.micro_batch = config.train.micro_batch_size;
  layout.zero_stage = static_cast<int>(config.zero.stage);
  layout.recompute = config.train.recompute;
  layout.groups = planner::plan_options(request).groups;
  return layout;
}

/// Allowed distance of a row from one rank, over these few layers and steps: sums over ranks and micro-batches round in
/// another order than sums on one rank, once for every halving of a sum. Without such sums there is nothing to round.
double tolerance_of(const equivalence::Layout& row) {
  const int parts = row.ranks * row.micro_batches * row.context * row.context * row.tensor;
  // Orthogonalization raises the noise of a matrix to the size of its smallest singular values.
  const double rounding = row.groups.size() > 1 ? kMuonNoise * 1e-6 : 1e-6;
  return parts == 1 ? 0 : rounding * (1 + std::log2(parts));  // tokens of a ring are in the softmax and in the batch
}

/// A row with the same order of additions but with other times and places: it has one stage, recomputes nothing, and
/// has no shards if they are summed like whole gradients. Sharded sums of several micro-batches have their own order;
/// the two shares of a tied table are added in another order on one stage, where they travel together as shards, than
/// on two.
std::optional<equivalence::Layout> same_additions(const equivalence::Layout& row) {
  equivalence::Layout same = row;
  same.stages = same.virtual_stages = 1;
  same.schedule = ScheduleKind::one_f_one_b;
  same.align_grad_reduce = false;
  same.recompute = Recomputation::none;
  const bool shares = row.zero_stage > 0 && row.ranks * row.context > 1,
             own_order = row.zero_stage >= 2 && row.micro_batches > 1 && !row.accumulate_unsharded;
  same.accumulate_unsharded = false;
  if (shares && row.model.tie_embeddings && row.stages > 1) {
    if (own_order) return {};
    same.model.split_tied_embedding = true;
  }
  if (!own_order) same.zero_stage = 0;
  return same;
}

std::string key_of(const equivalence::Layout& l) {
  return fmt::format("{} groups {} data {} context {} tensor {} expert {} {} chunks {} micro {} zero {} split {}",
                     static_cast<int>(l.model.family), l.groups.size(), l.ranks, l.context, l.tensor, l.expert,
                     l.sequence_parallel, l.tensor_chunks, l.micro_batches, l.zero_stage, l.model.split_tied_embedding);
}

const Trained& trained_once(const equivalence::Layout& layout) {
  static std::map<std::string, Trained> known;
  auto found = known.find(key_of(layout));
  if (found == known.end()) found = known.emplace(key_of(layout), train(layout, kSteps)).first;
  return found->second;
}

bool names(const std::string& refusal, const Level& level) {
  return std::any_of(level.named.begin(), level.named.end(),
                     [&](const std::string& word) { return refusal.find(word) != std::string::npos; });
}

}  // namespace

TEST_CASE("every legal pair of settings is in a row, and every illegal pair is refused by name", "[crosses]") {
  const Table& t = table();
  for (const Row& row : t.rows) {
    INFO(name_of(row));
    CHECK(ranks_of(row) <= kRanks);
    CHECK(refusal_of(row) == "");  // the program refuses nothing but pairs
    const auto ranks = [&](const char* name) { return level_of({factor_named(name), row[factor_named(name)]}).ranks; };
    CHECK((config_of(row).zero.stage == 0 ||
           ranks("data") * ranks("context") > 1));  // otherwise the program would switch it off
  }
  for (const SettingPair& pair : t.legal) {
    INFO(level_of(pair.first).name << " with " << level_of(pair.second).name);
    CHECK(std::any_of(t.rows.begin(), t.rows.end(), [&](const Row& row) { return holds(row, pair); }));
  }
  for (const auto& [pair, refusal] : t.refused) {
    INFO(level_of(pair.first).name << " with " << level_of(pair.second).name << ": " << refusal);
    CHECK(names(refusal, level_of(pair.first)));
    CHECK(names(refusal, level_of(pair.second)));
    std::printf("  refused: %s with %s\n", level_of(pair.first).name.c_str(), level_of(pair.second).name.c_str());
  }
  std::printf("  %zu pairs in %zu rows; %zu pairs refused, %d need more than %d ranks\n", t.legal.size(), t.rows.size(),
              t.refused.size(), t.too_large, kRanks);
}

TEST_CASE("a covering array without one of its rows misses a pair, and contains no excluded pair", "[crosses]") {
  const std::vector<size_t> levels{3, 2, 4, 2};
  const std::vector<SettingPair> pairs = all_pairs(levels);
  CHECK(pairs.size() == 3 * 2 + 3 * 4 + 3 * 2 + 2 * 4 + 2 * 2 + 4 * 2);
  const auto missed = [](const std::vector<Row>& rows, const std::vector<SettingPair>& wanted) {
    return std::count_if(wanted.begin(), wanted.end(), [&](const SettingPair& pair) {
      return std::none_of(rows.begin(), rows.end(), [&](const Row& row) { return holds(row, pair); });
    });
  };
  const std::vector<Row> rows = covering_rows(levels, pairs, [](const Row&) { return true; });
  CHECK(missed(rows, pairs) == 0);
  CHECK(rows.size() >= 12);  // 3 x 4 pairs of the two largest factors
  CHECK(rows.size() <= 14);
  for (size_t r = 0; r < rows.size(); ++r) {
    std::vector<Row> fewer = rows;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(r));
    CHECK(missed(fewer, pairs) > 0);
  }
  const SettingPair denied{{0, 2}, {2, 3}};
  std::vector<SettingPair> wanted = pairs;
  std::erase(wanted, denied);
  const std::vector<Row> without = covering_rows(levels, wanted, [&](const Row& row) { return !holds(row, denied); });
  CHECK(missed(without, wanted) == 0);
  CHECK(missed(without, {denied}) == 1);
}

TEST_CASE(
    "every row trains the model of one rank, to a rounding error, and the bits of the row with the same additions",
    "[crosses]") {
  const std::vector<Row>& rows = table().rows;
  int exact = 0, whole_gradients = 0;
  double worst = 0;
  for (const Row& row : rows) {
    const equivalence::Layout layout = layout_of(row);
    INFO(layout.name);
    const Trained trained = train(layout, kSteps);
    for (const std::string& hash : trained.rank_hashes) CHECK(hash == trained.hash);
    equivalence::Layout alone = *same_additions(with(layout, [](equivalence::Layout& l) { l.zero_stage = 0; }));
    alone.ranks = alone.context = alone.tensor = alone.expert = alone.micro_batches = alone.tensor_chunks = 1;
    alone.sequence_parallel = false;
    alone.model.split_tied_embedding = true;
    alone.micro_batch = kSequences;
    const Trained& one = trained_once(alone);
    const double weights = difference(trained.weights, one.weights),
                 gradients = difference(trained.gradients, one.gradients);
    const double tolerance = tolerance_of(layout);
    CHECK(weights <= tolerance);
    CHECK(gradients <= tolerance);
    for (size_t i = 0; i < one.losses.size(); ++i) CHECK(trained.losses[i] == Approx(one.losses[i]).epsilon(tolerance));
    worst = std::max(worst, std::max(weights, gradients) / tolerance);
    const std::optional<equivalence::Layout> same = same_additions(layout);
    bool bits = false;
    if (same) {
      const Trained& expected = trained_once(*same);
      bits = trained.hash == expected.hash && trained.losses == expected.losses;
      CHECK(trained.hash == expected.hash);
      CHECK(trained.losses == expected.losses);
      for (size_t i = 0; i < expected.norms.size(); ++i)
        CHECK(trained.norms[i] == Approx(expected.norms[i]).epsilon(1e-12));
      ++exact;
    }
    // If whole gradients fit, the program plans ZeRO-2 that accumulates in them, which gives the bits of ZeRO-0.
    if (layout.zero_stage == 2 && layout.micro_batches > 1 && layout.ranks * layout.context > 1) {
      const equivalence::Layout fits = with(layout, [](equivalence::Layout& l) { l.accumulate_unsharded = true; });
      const auto drafted = [&](int64_t memory_bytes) {
        Machine machine = this_host(1);
        machine.memory_bytes = memory_bytes;
        return planner::build_drafted_job(
            {.config = resolve(config_of(row), {.world = ranks_of(row)}), .machine = machine});
      };
      const int64_t takes_bytes = planner::most_bytes(drafted(int64_t{1} << 40));
      CHECK(!drafted(takes_bytes).job->sharding().gradients);
      CHECK(drafted(takes_bytes - 1).job->sharding().gradients);
      const Trained& whole = trained_once(*same_additions(fits));
      const Trained accumulated = train(fits, kSteps);
      CHECK(accumulated.hash == whole.hash);
      CHECK(accumulated.losses == whole.losses);
      ++whole_gradients;
    }
    std::printf("  %d ranks: %s: %s, %.0e of one rank\n", layout.world(), layout.name.c_str(),
                bits   ? "same bits"
                : same ? "OTHER BITS"
                       : "own order",
                std::max(weights, gradients));
  }
  std::printf("  %zu rows, %d of them compared bit for bit; at most %.2f of a row's tolerance off one rank\n",
              rows.size(), exact, worst);
  CHECK(whole_gradients >= 5);
  CHECK(exact > static_cast<int>(rows.size()) / 2);
}

TEST_CASE("every wait of every row is needed", "[crosses][mutation]") {
  comm::Mutations found;
  const std::vector<Row>& rows = table().rows;
  for (size_t r = 0; r < rows.size(); ++r) {
    const equivalence::Layout layout = layout_of(rows[r]);
    const auto jobs = make_jobs(layout, 0);  // throws unless proved
    for (size_t stage = 0; stage < jobs.size(); ++stage) {
      // Without --all, one stage of every sixteenth row is checked.
      if (!test_everything() && (r % 16 != 0 || stage != r / 16 % jobs.size())) continue;
      CAPTURE(layout.name);
      found += check_waits_needed(*jobs[stage]);
    }
  }
  std::printf("  %lld waits\n", static_cast<long long>(found.waits));
  CHECK(found.waits > 100);
}
