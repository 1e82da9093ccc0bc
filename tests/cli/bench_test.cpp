// SPDX-License-Identifier: Apache-2.0
// Benchmarks started as a user does: contents and consistency of their tables. No test here judges a time.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <sstream>
#include <tuple>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

/// Rows of a table whose names contain no commas, by column; docs/benchmarks/columns.md has a row for every column.
std::vector<std::map<std::string, std::string>> table_of(const std::string& path) {
  std::istringstream lines(read(path));
  std::vector<std::vector<std::string>> cells;
  for (std::string line; std::getline(lines, line);) {
    cells.emplace_back();
    std::istringstream fields(line);
    for (std::string field; std::getline(fields, field, ',');) cells.back().push_back(field);
  }
  REQUIRE(!cells.empty());
  const std::string page = read(source_dir() + "/docs/benchmarks/columns.md");
  for (const std::string& column : cells[0]) {
    CAPTURE(column);
    CHECK(page.find("`" + column + "`") != std::string::npos);
  }
  std::vector<std::map<std::string, std::string>> rows;
  for (size_t i = 1; i < cells.size(); ++i) {
    REQUIRE(cells[i].size() == cells[0].size());
    for (size_t c = 0; c < cells[0].size(); ++c) rows.resize(i), rows[i - 1][cells[0][c]] = cells[i][c];
  }
  return rows;
}

constexpr int kStages = 2, kMicroBatches = 4;
const std::string kStagesOf4 =
    " --set device.kind=cpu --steps 1 --ratios 0.5 --set model.layers=4 --set "
    "train.micro_batch_size=1 --set train.global_batch_size=4 --csv ";

}  // namespace

TEST_CASE("bench overlap measures the four reduce modes beside their bounds, in the documented CSV columns", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), csv = folder.path("table.csv");
  const Result result =
      on_ranks(2, "bench overlap " + run + " --steps 2 --ratios 0.5,1 --set device.kind=cpu --csv " + csv);
  INFO(result.text);
  REQUIRE(result.code == 0);
  CHECK(count(result.text, "noise floor: the run without communication against itself: ") == 2);
  const std::string text = read(csv);
  CHECK(text.rfind("implementation,model_size,d_model,num_layers,world_size,bucket_bytes,link,avg_step_time_ms,"
                   "speedup_vs_naive,compute_ms,comm_ms,exposed_ms,hidden_fraction,bound_ms,share_of_bound",
                   0) == 0);
  const auto rows = table_of(csv);
  for (const char* reduce_mode : {"no_communication", "naive", "flat", "per_parameter", "bucketed"}) {
    CAPTURE(reduce_mode);
    CHECK(std::count_if(rows.begin(), rows.end(),
                        [&](const auto& row) { return row.at("implementation") == reduce_mode; }) == 2);
  }
  for (const auto& row : rows) {
    const auto number = [&](const char* column) { return std::stod(row.at(column)); };
    INFO(row.at("implementation"));
    CHECK(number("world_size") == 2);
    CHECK(number("d_model") == 16);
    CHECK(number("num_layers") == 2);
    CHECK(number("avg_step_time_ms") > 0);
    CHECK(number("share_of_bound") == Approx(number("bound_ms") / number("avg_step_time_ms")).epsilon(0.02));
    CHECK((number("comm_ms") > 0) == (row.at("implementation").find("no_communication") == std::string::npos));
  }
  // Exposed time is relative to the backward pass: the column is the same and the values are lower, because compute has
  // a forward pass and an update, too.
  const Result backward = on_ranks(
      2, "bench overlap " + run + " --steps 1 --ratios 0.5 --ratio-of backward --set device.kind=cpu --csv " + csv);
  INFO(backward.text);
  REQUIRE(backward.code == 0);
  for (const auto& row : table_of(csv)) {
    CHECK(std::stod(row.at("ratio")) > 0.05);
    CHECK(std::stod(row.at("ratio")) < 0.45);
  }
  CHECK(call("bench overlap " + run + " --zero 1 --ratio-of backward").code == 2);
}

TEST_CASE("bench pipeline measures every schedule beside the rehearsal and its ideal, and the noise",
          "[cli][pipeline]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), csv = folder.path("table.csv");
  const Result result = on_ranks(kStages, "bench pipeline " + run + " --forward-ms 1" + kStagesOf4 + csv);
  INFO(result.text);
  REQUIRE(result.code == 0);
  CHECK(count(result.text, "noise floor: gpipe against itself: ") == 2);
  const auto rows = table_of(csv);
  REQUIRE(rows.size() == 10);
  const std::pair<const char*, double> schedules[] = {// what theory gives of bubbles
                                                      {"gpipe", 1.0 / kMicroBatches},
                                                      {"1f1b", 1.0 / kMicroBatches},
                                                      {"interleaved_1f1b", 0.5 / kMicroBatches},
                                                      {"zb_h1", 1.0 / 3 / kMicroBatches},
                                                      {"zb_v", 1.0 / 6 / kMicroBatches}};
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto number = [&](const char* column) { return std::stod(rows[i].at(column)); };
    const auto& [name, bubble] = schedules[i % 5];
    INFO(name);
    CHECK(rows[i].at("schedule") == name);
    CHECK(rows[i].at("virtual_stages") == (i % 5 == 2 || i % 5 == 4 ? "2" : "1"));
    CHECK(rows[i].at("compute_kind") == "paced");
    CHECK(number("hop_of_forward") == (i < 5 ? 0 : 0.5));
    // Pipeline transfers do not change the result, because none is exposed.
    CHECK(std::abs(number("ideal_bound_ms") - 3 * kMicroBatches * (1 + bubble)) < 1e-3);
    CHECK(number("rehearsed_step_ms") > number("ideal_bound_ms") - 1e-3);
    CHECK(number("noise_floor") > 0);
    CHECK(rows[i].at("noise_floor") == rows[i / 5 * 5].at("noise_floor"));
  }
}

TEST_CASE("bench pipeline runs the kernels and rehearses with their measured times", "[cli][pipeline]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), csv = folder.path("table.csv");
  const Result result = on_ranks(kStages, "bench pipeline " + run + " --compute real" + kStagesOf4 + csv);
  INFO(result.text);
  REQUIRE(result.code == 0);
  CHECK(contains(result.text, "2 stages that compute, 1 thread each"));
  const auto rows = table_of(csv);
  REQUIRE(rows.size() == 10);
  for (const auto& row : rows) {
    const auto number = [&](const char* column) { return std::stod(row.at(column)); };
    INFO(row.at("schedule") << " " << row.at("hop_of_forward"));
    CHECK(row.at("compute_kind") == "real");
    // The passes of a stage are part of the ideal step, which is part of the rehearsed step.
    const double passes_ms =
        kMicroBatches * (number("measured_forward_ms") + number("measured_backward_ms") + number("measured_weight_ms"));
    CHECK(number("measured_forward_ms") > 0);
    CHECK((number("measured_weight_ms") > 0) == row.at("schedule").starts_with("zb_"));
    CHECK(number("ideal_bound_ms") > 0.5 * passes_ms);  // times in proportion to a median step
    CHECK(number("rehearsed_step_ms") > 0.999 * number("ideal_bound_ms"));
    CHECK(number("forward_ms") > 0);
  }
  check_refused(on_ranks(kStages, "bench pipeline " + run + " --compute real --forward-ms 1" + kStagesOf4 + csv), 2,
                {"--forward-ms 1", "--compute real", "Leave one of them out"});
  check_refused(call("bench pipeline " + run), 2, {"at least 2 ranks", "got 1", "mpirun -np 2"});
}

TEST_CASE("bench layers measures chunks and rings beside the plan and their ideal, and the noise", "[cli][tensor]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), csv = folder.path("table.csv");
  const std::string quick = " --set device.kind=cpu --set train.global_batch_size=2 --steps 1 --layer-ms 0.5 --csv ";
  for (bool ring : {false, true}) {
    const Result result = on_ranks(
        2, "bench layers " + run +
               (ring ? " --set parallel.context=2 --ratios 0.5,40" : " --ratios 0.5,4 --chunks 1,2") + quick + csv);
    INFO(result.text);
    REQUIRE(result.code == 0);
    CHECK(count(result.text, ring ? "noise floor: ring of 2 against itself: "
                                  : "noise floor: tensor 2 in 1 chunk against itself: ") == 2);
    const auto rows = table_of(csv);
    REQUIRE(rows.size() == (ring ? 2 : 8));
    for (const auto& row : rows) {
      const auto number = [&](const char* column) { return std::stod(row.at(column)); };
      INFO(row.at("layout") << " " << row.at("ratio"));
      CHECK(number("ideal_bound_ms") == std::max(number("compute_ms"), number("comm_ms")));
      CHECK((number("ideal_bound_ms") > number("compute_ms")) == (number("ratio") > 1));
      CHECK(number("plan_bound_ms") > 0.999 * number("ideal_bound_ms"));
      CHECK(number("noise_floor") > 0);
    }
  }
}

TEST_CASE("bench kernels times every op of a size beside its bound, in the documented CSV columns", "[cli]") {
  Folder folder;
  const std::string csv = folder.path("table.csv");
  const Result result = call("bench kernels --only \"float32 small\" --rounds 1 --csv " + csv);
  INFO(result.text);
  REQUIRE(result.code == 0);
  CHECK(contains(result.text, "1 thread: copy through memory "));
  CHECK(read(csv).rfind("op,dtype,size,shape,threads,time_us,gflops,gbytes_per_s,bound,bound_us,share_of_bound\n", 0) ==
        0);
  const auto rows = table_of(csv);
  CHECK(count(result.text, "float32   small") == static_cast<int>(rows.size()));
  for (const char* op : {"matmul_forward",
                         "matmul_backward_input",
                         "matmul_backward_weight",
                         "gelu_forward",
                         "gelu_backward",
                         "swiglu_forward",
                         "swiglu_backward",
                         "residual",
                         "layer_norm_forward",
                         "layer_norm_backward",
                         "rms_norm_forward",
                         "rms_norm_backward",
                         "head_norm_forward",
                         "head_norm_backward",
                         "attention_forward",
                         "attention_backward",
                         "rope",
                         "embedding_forward",
                         "embedding_backward",
                         "cross_entropy",
                         "adamw",
                         "sum_squares",
                         "add"}) {
    CAPTURE(op);
    CHECK(std::any_of(rows.begin(), rows.end(), [&](const auto& row) { return row.at("op") == op; }));
  }
  for (const auto& row : rows) {
    const auto number = [&](const char* column) { return std::stod(row.at(column)); };
    INFO(row.at("op") << " " << row.at("shape"));
    CHECK(row.at("dtype") == "float32");
    CHECK(row.at("size") == "small");
    CHECK(number("threads") == 1);
    for (const char* column : {"time_us", "gbytes_per_s", "bound_us"}) CHECK(number(column) > 0);
    const bool copies = row.at("op") == "take_rows" || row.at("op") == "arrange_rows";
    CHECK((number("gflops") > 0) == !copies);
    CHECK(number("share_of_bound") == Approx(number("bound_us") / number("time_us")).epsilon(1e-4));
    // The effort of an op can be counted by hand: rates times durations must equal it.
    const double flops = 1e3 * number("gflops") * number("time_us"),
                 bytes = 1e3 * number("gbytes_per_s") * number("time_us");
    if (row.at("op").rfind("matmul", 0) == 0 && row.at("shape") == "qkv 768 x 128 x 384")
      CHECK(flops == Approx(2.0 * 768 * 128 * 384).epsilon(1e-4));
    if (row.at("op") == "residual") CHECK(bytes == Approx(3 * 4 * 768 * 128).epsilon(1e-4));
    if (row.at("op") == "adamw") CHECK(bytes == Approx(7 * 4 * (12 * 128 * 128 + 13 * 128)).epsilon(1e-4));
  }
  check_refused(call("bench kernels --only nothing --rounds 1"), 2, {"--only", "nothing"});
}

TEST_CASE("bench step times whole steps beside a plain loop and the bound of a link, and writes its initial weights",
          "[cli]") {
  constexpr int64_t kVocab = 65, kWidth = 16, kTokens = 16, kLayers = 2, kBatch = 2;
  // The parameters are those of the table, the positions, two norms and four products with biases in each layer, and
  // the last norm.
  constexpr int64_t kParameters =
      kVocab * kWidth + kTokens * kWidth + kLayers * (12 * kWidth * kWidth + 13 * kWidth) + 2 * kWidth;
  Folder folder;
  const std::string run = run_file(folder), csv = folder.path("table.csv"), start = folder.path("start");
  const std::string step = "bench step " + run +
                           " --steps 2 --set device.kind=cpu --set model.vocab_size=65 --set data.tokenizer=chars"
                           " --set overlap.split_tied_embedding=false --csv " +
                           csv;
  const auto row_of = [&](const Result& result) {
    INFO(result.text);
    REQUIRE(result.code == 0);
    CHECK(contains(result.text, "loss at step 1  "));
    CHECK(read(csv).rfind("ranks,threads,steps,loss,step_ms,fastest_ms,plain_loop_ms,overhead,compute_ms,comm_ms,"
                          "exposed_ms,other_ms,bound_ms,wire_ms\n",
                          0) == 0);
    const auto rows = table_of(csv);
    REQUIRE(rows.size() == 1);
    std::map<std::string, double> row;
    for (const auto& [column, value] : rows[0]) row[column] = std::stod(value);
    CHECK(row["threads"] == 1);
    CHECK(row["steps"] == 2);
    CHECK(std::abs(row["loss"] - std::log(kVocab)) < 0.1);  // with small weights every token is as likely
    CHECK(row["fastest_ms"] > 0);
    CHECK(row["step_ms"] >= row["fastest_ms"]);
    CHECK(row["compute_ms"] > 0);
    CHECK(row["exposed_ms"] >= 0);
    CHECK(row["other_ms"] >= 0);
    return row;
  };
  const auto check_batch = [&](int rank) {
    const std::string bytes = read(start + "/batch_" + std::to_string(rank) + ".bin");
    REQUIRE(bytes.size() == 2 * kBatch * kTokens * sizeof(int32_t));  // ids, and then targets
    std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
    std::memcpy(ids.data(), bytes.data(), bytes.size());
    CHECK(std::all_of(ids.begin(), ids.end(), [](int32_t id) { return 0 <= id && id < kVocab; }));
    return bytes;
  };

  const std::string alone = step + " --set train.global_batch_size=2";
  const Result whole = call(alone + " --plain-loop --export " + start + " --line-rate 1Gbit/s --ranks 2");
  auto row = row_of(whole);
  CHECK(contains(whole.text, "plain loop      "));
  CHECK(contains(whole.text, "bound on 2 ranks at 1 Gbit/s: "));
  CHECK(row["ranks"] == 1);
  CHECK(row["plain_loop_ms"] > 0);
  CHECK(row["overhead"] > -1);
  CHECK(row["comm_ms"] == 0);
  // Each of two ranks sends half of the gradients twice, the padding of the vocabulary included.
  constexpr int64_t kSent = kParameters + (128 - kVocab) * kWidth;
  CHECK(row["wire_ms"] == Approx(kSent * 4 / 125e6 * 1e3).epsilon(1e-5));
  CHECK(row["bound_ms"] > row["wire_ms"]);
  CHECK(Json::parse(read(start + "/config.json")).at("vocab_size").as_int() == kVocab);
  CHECK(static_cast<int64_t>(read(start + "/model.safetensors").size()) > 4 * kParameters);
  const std::string first = check_batch(0);
  CHECK(!fs::exists(start + "/batch_1.bin"));

  const double loss = row["loss"];
  const Result bare = call(alone);
  row = row_of(bare);
  CHECK(row["loss"] == loss);  // the same weights and batch every time
  for (const char* column : {"plain_loop_ms", "overhead", "bound_ms", "wire_ms"}) CHECK(row[column] == 0);
  CHECK(!contains(bare.text, "plain loop"));
  CHECK(!contains(bare.text, "bound on"));
  row = row_of(call(alone + " --in-a-row 3"));
  CHECK(row["loss"] == loss);
  CHECK(row["step_ms"] > 0);
  check_refused(call(step + " --in-a-row 3 --plain-loop"), 2, {"--in-a-row", "--plain-loop"});

  if (!has_mpirun()) return;
  row = row_of(on_ranks(2, step + " --set train.global_batch_size=4 --export " + start));
  CHECK(row["ranks"] == 2);
  CHECK(row["comm_ms"] > 0);
  CHECK(row["plain_loop_ms"] == 0);
  CHECK(check_batch(0) == first);
  CHECK(check_batch(1) != first);
}

TEST_CASE("bench step has the loss of one rank with stages, whose plans have different items, and tensor ranks",
          "[cli][pipeline][tensor]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), csv = folder.path("table.csv");
  const auto loss_of = [&](int ranks, const std::string& layout) {
    const Result result =
        on_ranks(ranks, "bench step " + run + " --steps 2 --set device.kind=cpu --set " + layout + " --csv " + csv);
    INFO(layout << "\n" << result.text);
    REQUIRE(result.code == 0);
    const auto rows = table_of(csv);
    REQUIRE(rows.size() == 1);
    CHECK(rows[0].at("ranks") == std::to_string(ranks));
    CHECK(std::stod(rows[0].at("step_ms")) > 0);
    CHECK((std::stod(rows[0].at("comm_ms")) > 0) == (ranks > 1));
    return std::stod(rows[0].at("loss"));
  };
  const double alone = loss_of(1, "parallel.data=1"), replicas = loss_of(2, "parallel.data=2");
  CHECK(alone != replicas);
  CHECK(loss_of(2, "parallel.pipeline=2") == Approx(alone).epsilon(1e-6));
  CHECK(loss_of(2, "parallel.tensor=2") == Approx(alone).epsilon(1e-6));
  CHECK(loss_of(4, "parallel.pipeline=2 --set parallel.tensor=2") == Approx(alone).epsilon(1e-6));
  CHECK(loss_of(4, "parallel.data=2 --set parallel.tensor=2") == Approx(replicas).epsilon(1e-6));
}

TEST_CASE("bench step exports the same weights on every layout, and the batch of each rank", "[cli][tensor]") {
  Folder folder;
  const std::string run = run_file(folder), start = folder.path("start");
  const auto exported = [&](int ranks, const std::string& layout) {
    fs::remove_all(start);
    const std::string step = "bench step " + run +
                             " --steps 1 --set device.kind=cpu --set train.global_batch_size=0 --export " + start +
                             layout;
    const Result result = ranks == 1 ? call(step) : on_ranks(ranks, step);
    INFO(layout << "\n" << result.text);
    REQUIRE(result.code == 0);
    std::vector<std::string> batches;
    for (int rank = 0; rank < ranks; ++rank) batches.push_back(read(start + "/batch_" + std::to_string(rank) + ".bin"));
    return std::tuple(read(start + "/model.safetensors"), read(start + "/config.json"), batches);
  };
  const auto [weights, config, batches] = exported(1, "");
  // In a staged batch, masks and numbers of sequences come after the exported part.
  const auto [longer_weights, longer_config, longer] =
      exported(1, " --set data.document_mask=true --set model.embd_pdrop=0.1");
  CHECK(longer_weights == weights);
  CHECK(longer == batches);
  check_refused(
      call("bench step " + run + " --set device.kind=cpu --export " + start), 2,
      {"--export needs one micro-batch, got 2. Set train.global_batch_size to micro_batch_size x data ranks = "
       "2."});
  if (!has_mpirun()) return;
  for (const std::string layout : {"tensor=2", "pipeline=2", "context=2", "data=2 --set zero.stage=1",
                                   "data=2 --set zero.stage=3", "tensor=2 --set parallel.pipeline=2"}) {
    INFO(layout);
    const auto [their_weights, their_config, theirs] =
        exported(contains(layout, "parallel") ? 4 : 2, " --set parallel." + layout);
    CHECK(their_weights == weights);
    CHECK(their_config == config);
    const bool replicas = contains(layout, "data") || contains(layout, "context");
    CHECK((theirs[0] == theirs[1]) == !replicas);
    if (!contains(layout, "context")) CHECK(theirs[0] == batches[0]);
  }
}

TEST_CASE("an error that all ranks of a benchmark raise is printed once", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder);
  const std::pair<const char*, const char*> refusals[] = {
      {"overlap", " --set parallel.pipeline=2"},
      {"overlap", " --zero 3 --set parallel.pipeline=2"},
      {"overlap", " --ablate"},
      {"step", " --line-rate 1Gbit/s --set parallel.pipeline=2"},
      {"step", " --line-rate 1Gbit/s --set parallel.tensor=2"},
      {"step", " --line-rate 1Gbit/s --set parallel.context=2"},
      {"layers", " --set parallel.tensor=1 --set parallel.pipeline=2"}};
  for (const auto& [benchmark, flags] : refusals) {
    const Result result =
        on_ranks(2, std::string("bench ") + benchmark + " " + run + " --set device.kind=cpu --steps 1" + flags);
    INFO(result.text);
    CHECK(result.code == 2);
    CHECK(count(result.text, "[bench]") == 1);
    CHECK(contains(result.text, "on all ranks: [bench]"));
  }
}

TEST_CASE("bench comm: right results on every verb, and no bandwidth above that of the emulated link", "[cli]") {
  if (!has_mpirun()) return;
  const Folder folder;
  const std::string csv = folder.path("comm.csv"), machine = folder.path("link.toml");
  constexpr double kRate = 25e6, kLatencyUs = 200;  // 200 Mbit/s
  for (const int ranks : {2, 3}) {
    const Result result = on_ranks(ranks,
                                   "bench comm --min 1KiB --max 256KiB --seconds 0.05 --set device.kind=cpu --set "
                                   "comm.emulate.bandwidth=200Mbit/s --set comm.emulate.latency=200us --csv " +
                                       csv + " --machine " + machine);
    INFO(result.text);
    REQUIRE(result.code == 0);
    const auto rows = table_of(csv);
    // Seven verbs, three of them with two algorithms, at 1, 4, 16, 64 and 256 KiB. The emulated link does not slow the
    // library's verbs, so they are left out.
    REQUIRE(rows.size() == 10 * 5);
    for (const auto& row : rows) {
      const auto number = [&](const char* column) { return std::stod(row.at(column)); };
      INFO(row.at("verb") << " " << row.at("algorithm") << " " << row.at("operation_bytes"));
      CHECK(number("wrong") == 0);
      CHECK(number("world_size") == ranks);
      CHECK(number("hosts") == 1);
      const double bytes = number("operation_bytes");
      CHECK(bytes <= 262144);
      CHECK(bytes > 0.9 * 1024 - 4 * ranks);
      CHECK(number("algbw_GBps") == Approx(bytes / number("time_us") * 1e-3).epsilon(1e-6));
      const double n = ranks;
      const std::string& verb = row.at("verb");
      const double factor = verb == "all_reduce" ? 2 * (n - 1) / n
                            : verb == "reduce_scatter" || verb == "all_gather" || verb.starts_with("all_to_all")
                                ? (n - 1) / n
                                : 1;
      CHECK(number("busbw_GBps") == Approx(number("algbw_GBps") * factor).epsilon(1e-6));
      CHECK(number("busbw_GBps") * 1e9 < 1.01 * kRate);
      CHECK(number("time_us") > kLatencyUs);
    }
    const Result plan = call("plan " + run_file(folder) + " --ranks 2 --machine " + machine);
    INFO(plan.text << read(machine));
    CHECK(plan.code == 0);
    CHECK(contains(read(machine), "# slipstream bench comm: [intra] from all_reduce, "));
  }
}

TEST_CASE("bench comm: the MPI library's verbs are right, too, beside a given line rate", "[cli]") {
  if (!has_mpirun()) return;
  const Folder folder;
  const std::string csv = folder.path("comm.csv");
  const Result result = on_ranks(3,
                                 "bench comm --min 64KiB --max 64KiB --seconds 0.01 --algorithms library --line-rate "
                                 "1Gbit/s --set device.kind=cpu --csv " +
                                     csv);
  INFO(result.text);
  REQUIRE(result.code == 0);
  const auto rows = table_of(csv);
  REQUIRE(rows.size() == 7);
  for (const auto& row : rows) {
    CHECK(row.at("algorithm") == "library");
    CHECK(row.at("wrong") == "0");
    CHECK(std::stod(row.at("share_of_line")) == Approx(std::stod(row.at("busbw_GBps")) / 0.125).epsilon(1e-6));
  }
}

TEST_CASE("bench comm refuses one rank, wrong sizes and unknown verbs with one sentence", "[cli]") {
  check_refused(call("bench comm"), 2, {"[bench] comm needs at least 2 ranks, got 1. Start it with mpirun -np 2."});
  check_refused(call("bench comm --verbs all_reduse"), 2, {"--verbs"});
  if (!has_mpirun()) return;
  for (const std::string sizes : {"--max 512B", "--min 2B", "--max many"}) {
    const Result result = on_ranks(2, "bench comm " + sizes);
    check_refused(result, 2, {"on all ranks: "});
    CHECK(count(result.text, "slipstream: ") == 1);
  }
}
