// SPDX-License-Identifier: Apache-2.0
// The equivalence table on GPUs, one process per rank and NCCL between them: every layout trains the model that the CPU
// trains from the same plan, to a rounding error; and replayed steps, eager ones and delayed ones give the same bits.
//
// The number of ranks selects the rows; "sample" instead of a group runs one of each, with half the layers where there
// is no pipeline. Seven steps: two eager, four recorded, one replayed.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "tests/equivalence/trained.h"
#include "tests/gpu/cuda/nccl_ranks.h"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kSteps = 7;
// Sums in another order. Where bfloat16 rounds, a value in the middle of two goes to either side.
constexpr double kTolerance = 5e-5, kRounded = 2e-2;

struct Row {
  std::string group;
  Layout layout;
  double tolerance = kTolerance;
};

std::vector<Row> rows_of(int ranks) {
  std::vector<Row> rows;
  const auto add = [&](const std::string& group, const std::string& name, bool llama, auto change,
                       double tolerance = kTolerance) {
    Layout layout{
        .name = (llama ? "llama, " : "gpt2, ") + name, .model = llama ? tiny_llama() : tiny_gpt2(), .micro_batch = 2};
    layout.model.layers = 4;
    layout.model.vocab = 151;
    layout.model.tokens = layout.model.context = 8;
    layout.model.split_tied_embedding = false;
    layout.check_hazards = false;  // the CPU's tests follow every launch
    change(layout);
    if (layout.world() != ranks) return;
    const auto behind = std::find_if(rows.rbegin(), rows.rend(), [&](const Row& row) { return row.group == group; });
    rows.insert(behind.base() == rows.begin() ? rows.end() : behind.base(), {group, layout, tolerance});
  };
  const auto bf16 = [](Layout& l) { l.model.dtype = DType::bf16; };
  for (bool llama : {false, true}) {
    add("one", "float32", llama, [](Layout&) {});
    add("one", "bfloat16", llama, bf16, kRounded);
    add("one", "two micro-batches, no clipping", llama, [](Layout& l) { l.micro_batches = 2, l.max_norm = 0; });
    add("one", "selective recomputation, one update at the end", llama,
        [](Layout& l) { l.recompute = Recomputation::selective, l.optimizer_per_bucket = false; });
    add("one", "full recomputation, update beside the spine", llama,
        [](Layout& l) { l.recompute = Recomputation::full, l.update_on_spine = false; });
    for (int n : {2, 4}) {
      for (ReduceMode reduce_mode :
           {ReduceMode::naive, ReduceMode::flat, ReduceMode::per_parameter, ReduceMode::bucketed})
        if (n == 2 || reduce_mode == ReduceMode::bucketed)
          add("data", std::string(name_of(reduce_mode)), llama,
              [&](Layout& l) { l.ranks = n, l.reduce_mode = reduce_mode; });
      add("data", "split tied embedding, two micro-batches", llama,
          [&](Layout& l) { l.ranks = n, l.micro_batches = 2, l.model.split_tied_embedding = true; });
      add(
          "data", "bfloat16, on the wire too", llama,
          [&](Layout& l) { l.ranks = n, l.model.dtype = DType::bf16, l.wire_dtype = DType::bf16; }, kRounded);
      add(
          "data", "int8 gradients fed back", llama,
          [&](Layout& l) { l.ranks = n, l.wire_dtype = kInt8, l.error_feedback = true; }, kRounded);
      for (int stage : {1, 2, 3}) {
        add("zero", "ZeRO-" + std::to_string(stage), llama, [&](Layout& l) { l.ranks = n, l.zero_stage = stage; });
        if (n == 2)
          add(
              "zero", "ZeRO-" + std::to_string(stage) + ", bfloat16 gathers, two micro-batches", llama,
              [&](Layout& l) { l.ranks = n, l.zero_stage = stage, l.gather_dtype = DType::bf16, l.micro_batches = 2; },
              kRounded);
      }
      add("zero", "ZeRO-1, two copies of the weights", llama,
          [&](Layout& l) { l.ranks = n, l.zero_stage = 1, l.double_buffer = true; });
      add(
          "zero", "ZeRO-3, full recomputation, bfloat16", llama,
          [&](Layout& l) { bf16(l), l.ranks = n, l.zero_stage = 3, l.recompute = Recomputation::full; }, kRounded);
      add("context", "a sequence on all ranks", llama,
          [&](Layout& l) { l.context = n, l.model.tokens = l.model.context = 4 * n; });
      add(
          "context", "a sequence on all ranks, bfloat16, ZeRO-1", llama,
          [&](Layout& l) { bf16(l), l.context = n, l.model.tokens = l.model.context = 4 * n, l.zero_stage = 1; },
          kRounded);
      for (bool sequence : {false, true})
        add("tensor", std::string("layers and vocabulary on all ranks") + (sequence ? ", sequence parallel" : ""),
            llama, [&](Layout& l) {
              l.model.heads = l.model.kv_heads = 4, l.model.width = 32;
              l.tensor = n, l.sequence_parallel = sequence, l.tensor_chunks = 2;
            });
      for (ScheduleKind kind : {ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1})
        add("pipeline", std::string(name_of(kind)), llama,
            [&](Layout& l) { l.stages = n, l.schedule = kind, l.micro_batches = 4; });
      if (n == 2)
        add("pipeline", "interleaved", llama, [&](Layout& l) {
          l.stages = n, l.schedule = ScheduleKind::interleaved_1f1b, l.virtual_stages = 2, l.micro_batches = 4;
        });
    }
    add("zero", "ZeRO-3 in groups of 2", llama, [](Layout& l) { l.ranks = 4, l.zero_stage = 3, l.shard_size = 2; });
    add("tensor", "layers on 2 ranks x data on 2", llama,
        [](Layout& l) { l.model.heads = l.model.kv_heads = 4, l.model.width = 32, l.tensor = 2, l.ranks = 2; });
    add("context", "a sequence on 2 ranks x data on 2, ZeRO-3", llama,
        [](Layout& l) { l.context = 2, l.ranks = 2, l.zero_stage = 3; });
    add(
        "pipeline", "1f1b on 2 stages x data on 2, ZeRO-1, bfloat16", llama,
        [&](Layout& l) { bf16(l), l.stages = 2, l.ranks = 2, l.zero_stage = 1, l.micro_batches = 4; }, kRounded);
  }
  return rows;
}

std::string packed(const equivalence::detail::Outcome& outcome) {
  std::string bytes;
  const auto put = [&](const auto& values) {
    const auto count = static_cast<int64_t>(values.size());
    bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof values[0]);
  };
  put(outcome.seen.losses), put(outcome.seen.norms), put(outcome.seen.evaluations), put(outcome.held.weights),
      put(outcome.held.gradients);
  return bytes;
}

equivalence::detail::Outcome unpacked(const std::string& bytes) {
  equivalence::detail::Outcome outcome;
  size_t at = 0;
  const auto take = [&](auto& values) {
    int64_t count = 0;
    std::memcpy(&count, bytes.data() + at, sizeof count);
    at += sizeof count;
    values.resize(static_cast<size_t>(count));
    std::memcpy(values.data(), bytes.data() + at, values.size() * sizeof values[0]);
    at += values.size() * sizeof values[0];
  };
  take(outcome.seen.losses), take(outcome.seen.norms), take(outcome.seen.evaluations), take(outcome.held.weights),
      take(outcome.held.gradients);
  return outcome;
}

/// Collective. This rank's part of the run on its GPU; the whole model on every rank.
Trained train_on_cards(runtime::World& world, int card, const Layout& layout) {
  std::unique_ptr<Job> job = make_job(layout, world.rank());
  const Coordinates at = job->mesh.coordinates(world.rank());
  std::unique_ptr<Device> device = make_cuda_device(card, comm::nccl_device_memory());
  auto communicators = world.communicators(*job, 0, 0, 60, DeviceKind::cuda);
  int64_t staged = 0;
  equivalence::detail::Outcome mine;
  {
    runtime::Rank rank(std::move(job), std::move(device), std::move(communicators),
                       equivalence::detail::rank_options(layout, static_cast<size_t>(world.rank())),
                       equivalence::detail::loader(layout, at.data, staged, at.context));
    mine = equivalence::detail::run_steps(rank, layout, at, kSteps);
  }
  std::vector<equivalence::detail::Outcome> outcomes;
  for (const std::string& bytes : world.all_gather(packed(mine))) outcomes.push_back(unpacked(bytes));
  return equivalence::detail::combine(layout, std::move(outcomes));
}

/// The differences; empty if there are none.
std::string compare(const Trained& got, const Trained& expected, const Row& row) {
  const auto worst = [](const std::vector<double>& a, const std::vector<double>& b) {
    double largest = a.size() == b.size() ? 0 : 1;
    for (size_t i = 0; i < b.size() && i < a.size(); ++i)
      largest = std::max(largest, std::abs(a[i] - b[i]) / std::max(1e-3, std::abs(b[i])));
    return largest;
  };
  const double weights = difference(got.weights, expected.weights), losses = worst(got.losses, expected.losses),
               norms = worst(got.norms, expected.norms);
  std::string text =
      fmt::format("losses {:.1e}, norms {:.1e}, weights {:.1e} of {:.0e}", losses, norms, weights, row.tolerance);
  // The comparison can fail: it detects one step of training.
  const bool sees = row.tolerance > kTolerance ||
                    std::abs(expected.losses[0] - expected.losses[1]) > 2 * row.tolerance * expected.losses[0];
  const bool same = losses <= row.tolerance && norms <= 10 * row.tolerance && weights <= row.tolerance;
  for (const std::string& hash : got.rank_hashes)
    if (hash != got.hash) text += ", ranks hold different weights";
  return (same && sees && text.find("ranks hold") == std::string::npos ? "ok      " : "FAILED  ") + text;
}

/// Collective. A rank fails while its arenas are registered: NCCL must deregister them before they are freed. The fake
/// ends a process that does not.
void fail_while_made(runtime::World& world, int card, const Layout& layout) {
  std::unique_ptr<Job> job = make_job(layout, world.rank());
  std::unique_ptr<Device> device = make_cuda_device(card, comm::nccl_device_memory());
  auto communicators = world.communicators(*job, 0, 0, 60, DeviceKind::cuda);
  runtime::RankOptions options = equivalence::detail::rank_options(layout, static_cast<size_t>(world.rank()));
  options.all_agree = [](bool, const std::string&) -> bool { throw CommError("[test] no rank agrees."); };
  try {
    runtime::Rank rank(std::move(job), std::move(device), std::move(communicators), options, {});
  } catch (const CommError&) {
  }
}

std::string check(runtime::World& world, int card, const Row& row) {
  const Trained replayed = train_on_cards(world, card, row.layout);
  const Trained delayed =
      train_on_cards(world, card, with(row.layout, [](Layout& l) { l.graph = false, l.delay_seed = 3; }));
  if (world.rank() != 0) return "";
  std::string text = compare(replayed, train(row.layout, kSteps), row);
  if (replayed.hash != delayed.hash || replayed.losses != delayed.losses)
    text = "FAILED  other bits from eager, delayed steps; " + text;
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> groups;
  for (const Row& row : rows_of(argc > 2 ? std::stoi(argv[2]) : 0))
    if (groups.empty() || groups.back() != row.group) groups.push_back(row.group);
  if (test::lists(argc, argv, groups)) return 0;
  const std::string chosen = argc > 1 ? argv[1] : "";
  test::require_card();
  runtime::World world;
  std::string failures;
  int rows = 0;
  try {
    const int card = test::card_of(world);
    fail_while_made(world, card, rows_of(world.size())[0].layout);
    std::map<std::string, int> seen;
    for (Row row : rows_of(world.size())) {
      const int nth = seen[row.group]++;
      if (chosen == "sample" && row.layout.stages == 1) row.layout.model.layers = 2;
      if (chosen == "sample" ? nth != 1 : !chosen.empty() && row.group != chosen) continue;
      const std::string text = check(world, card, row);
      ++rows;
      if (world.rank() != 0) continue;
      std::printf("%s  %s\n", text.c_str(), row.layout.name.c_str());
      std::fflush(stdout);
      if (!text.starts_with("ok")) failures += row.layout.name + ": " + text + "\n";
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", world.rank(), error.what());
    world.abort(ExitCode::communication);
  }
  return test::report(world, failures, fmt::format("{} layouts train the CPU's model", rows));
}
