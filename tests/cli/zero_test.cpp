// SPDX-License-Identifier: Apache-2.0
// ZeRO from the user's view: memory and bytes of a run against its plan, the place of the update, and the effect of
// each knob.

#include <cmath>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

/// The number after `words` in `text`.
std::string set(const std::vector<std::string>& values) {
  std::string text;
  for (const std::string& value : values) text += " --set " + value;
  return text;
}

}  // namespace

TEST_CASE("a run sends the bytes of its plan, counted in the transport, and both print them", "[cli][zero]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder);
  const struct {
    int ranks;
    std::vector<std::string> sets;
    double least,
        most;  // relative to the theory, which knows no padding, no scales, and no parameters that stay whole or in a
               // slot
  } rows[] = {
      {2, {"zero.stage=0", "train.global_batch_size=8", "overlap.split_tied_embedding=false"}, 1, 1.05},
      // The table's two shares travel separately, the second as rows of few tokens or dense: two fifths of this model
      // are its table.
      {2, {"zero.stage=0", "train.global_batch_size=8"}, 1, 1.45},
      {2, {"zero.stage=0", "train.micro_batch_size=16", "train.global_batch_size=32"}, 1, 1.45},
      {3, {"zero.stage=1", "train.global_batch_size=6"}, 1, 1.05},
      {3, {"zero.stage=2", "train.global_batch_size=6"}, 1, 1.05},
      // A table shared by embedding and head stays whole: it is reduced once, and gathered once. Separate tables pass
      // through a slot, and are gathered once per micro-batch.
      {3, {"zero.stage=3", "train.global_batch_size=12", "zero.prefetch_depth=0", "model.layers=4"}, 0.6, 1.05},
      {3,
       {"zero.stage=3", "train.global_batch_size=12", "zero.prefetch_depth=0", "model.layers=4",
        "model.tie_embeddings=false"},
       0.75,
       1.05},
      {4, {"zero.stage=2", "zero.shard_size=2", "train.global_batch_size=8"}, 1, 1.05},
      {4, {"zero.stage=1", "zero.shard_size=2", "train.global_batch_size=8", "comm.quantize=int8"}, 1, 1.1},
      {2, {"zero.stage=1", "comm.grad_dtype=bfloat16", "zero.gather_dtype=bfloat16"}, 1, 1.05},
      {2, {"zero.stage=1", "comm.quantize=int8", "zero.gather_dtype=int8", "train.eval_interval=2"}, 1, 1.1},
      {2, {"zero.stage=1", "optimizer.double_buffer=true", "comm.emulate.bandwidth=1GB/s"}, 1, 1.05},
  };
  for (const auto& row : rows) {
    const std::string sets = set(row.sets);
    const Result result = on_ranks(row.ranks, "train " + run + sets);
    INFO(sets << "\n" << result.text);
    REQUIRE(result.code == 0);
    const std::string line = "wire:     rank 0 sends ";
    const double planned = number_after(result.text, line), theory = number_after(result.text, "counted; theory ");
    CHECK(contains(result.text,
                   " bytes per step as planned, " + std::to_string(static_cast<int64_t>(planned)) + " counted; "));
    CHECK(planned >= row.least * theory);
    CHECK(planned <= row.most * theory);
    const Json plan = Json::parse(call("plan " + run + sets + " --json --ranks " + std::to_string(row.ranks)).text);
    CHECK(plan.at("wire_bytes").at("sent").as_int() == static_cast<int64_t>(planned));
    CHECK(plan.at("wire_bytes").at("theory").as_int() == static_cast<int64_t>(theory));
  }
}

TEST_CASE("the memory of a rank grows by the planned bytes within 2 % in every ZeRO stage", "[cli][zero]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder);
  for (int stage : {1, 2, 3}) {
    if (stage != 3 && !test_everything()) continue;
    double small_resident = 0, small_planned = 0;
    // Equally wide: both include the memory of libraries and of the pieces of saved tensors.
    for (const char* layers : {"2", "10"}) {
      // Tens of millions of weights start random.
      const Result result =
          shell(mpirun() + "-np 2 " + exe() + " train " + run +
                    " --set model.width=512 --set model.heads=4 --set model.layers=" + layers +
                    " --set train.steps=2 --set train.eval_batches=1 --set overlap.bucket_size=1MiB " +
                    "--set zero.stage=" + std::to_string(stage),
                240);
      INFO(result.text);
      REQUIRE(result.code == 0);
      const double resident = bytes_after(result.text, "\nmemory:   "), planned = bytes_after(result.text, "at most, ");
      if (small_resident == 0) {
        small_resident = resident, small_planned = planned;
        continue;
      }
      const double grown = resident - small_resident, expected = planned - small_planned;
      WARN("stage " << stage << ": " << grown / 0x1p20 << " MiB more, " << expected / 0x1p20 << " planned");
      CHECK(expected > 150 * 0x1p20);  // against this a page of scratch is negligible
      // Beside other programs, threads of a process touched up to 2 MiB more of their stacks and scratch.
      CHECK(std::abs(grown - expected) < 0.02 * expected + 2 * 0x1p20);
    }
  }
}

TEST_CASE("plan prints the memory table of the ZeRO paper, the effect of small buckets, and where the update runs",
          "[cli][zero]") {
  Folder folder;
  const std::string run = run_file(folder);
  const Result plan = call("plan " + run + " --ranks 2 --set zero.stage=1 --set overlap.bucket_size=64B");
  INFO(plan.text);
  CHECK(plan.code == 0);
  CHECK(contains(plan.text, "2 ranks"));
  CHECK(contains(plan.text, "64 ranks"));
  for (const char* stage : {"\n  0 ", "\n  1 ", "\n  2 ", "\n  3 "}) CHECK(contains(plan.text, stage));
  CHECK(contains(plan.text, "parameters are larger than overlap.bucket_size = 64 B and each travel in one bucket"));
  CHECK(contains(plan.text, "gradients and parameters on the wire: "));
  // On a CPU two copies gain nothing: the update follows all readers on the compute stream.
  CHECK(contains(plan.text, "update (optimizer.double_buffer = \"auto\"):\n  * on the compute stream"));
  CHECK(contains(plan.text, "on a CPU an update takes cores from compute on any stream"));
  CHECK(contains(plan.text, "    double-buffered "));
  CHECK(contains(plan.text, "against one copy there"));
  CHECK(contains(call("plan " + run + " --ranks 2 --set zero.stage=1 --set optimizer.double_buffer=true").text,
                 "  * double-buffered "));
  CHECK(contains(call("plan " + run + " --ranks 2 --set zero.stage=3").text,
                 "double-buffered: not with zero.stage = 3, where no update waits for a reader of weights"));
}

TEST_CASE("optimizer.double_buffer = auto takes the faster rehearsal, and one copy in a tie", "[cli][zero]") {
  Folder folder;
  // Without prices by shape, whose launches hide the end of the readers in models of this size.
  std::string plain = read(source_dir() + "/configs/machines/h100x8.toml");
  const size_t shapes = plain.find("attention_efficiency");
  plain.erase(shapes, plain.find('\n', shapes) + 1 - shapes);
  const std::string run = run_file(folder), machine = " --machine " + folder.write("plain.toml", plain);
  // The head is most of the model and its update most of the step; with two copies it begins before its last readers
  // have ended.
  const std::string late_readers =
      " --set model.family=llama --set model.layers=1 --set model.vocab_size=200000 --set optimizer.grad_clip=0 --set "
      "overlap.bucket_size=8MiB";
  int taken = 0, left = 0;
  for (const std::string& model : {std::string(""), std::string(" --set optimizer.grad_clip=0"), late_readers})
    for (int stage : {0, 1, 2}) {
      const std::string sets =
          model + machine + " --ranks 2 --set device.kind=cuda --set zero.stage=" + std::to_string(stage);
      const Result text = call("plan " + run + sets);
      INFO(sets << "\n" << text.text);
      REQUIRE(text.code == 0);
      const auto chosen = [&](const std::string& choice) {
        const Json plan =
            Json::parse(call("plan " + run + sets + " --json --set optimizer.double_buffer=" + choice).text);
        return std::pair(plan.at("update").at("double_buffer").as_bool(),
                         plan.at("rehearsed").at("step_ms").as_double());
      };
      const auto automatic = chosen("auto");
      CHECK(!chosen("false").first);
      CHECK(chosen("true").first);
      const size_t update = text.text.find("update (");
      const std::string places =
          text.text.substr(update, text.text.find("gradients and parameters on the wire") - update);
      INFO(places);
      CHECK(count(places, "  * ") == 1);
      CHECK(contains(places, "* double-buffered") == automatic.first);
      // The star marks the shortest step.
      const std::string of_star = places.substr(places.find("  * "));
      for (const char* assignment : {"on the compute stream", "on a stream of its own", "double-buffered"})
        CHECK(number_after(of_star, "step ") <= number_after(places.substr(places.find(assignment)), "step "));
      if (automatic.first) CHECK(contains(of_star.substr(0, of_star.find('\n')), " (-"));
      ++(automatic.first ? taken : left);
      // The same command gives the same again: choices depend only on the run file and the machine.
      CHECK(chosen("auto") == automatic);
    }
  WARN(taken << " with two copies, " << left << " with one");
  CHECK(taken > 0);
  CHECK(left > 0);
  // Two copies that do not fit are not used, and no message asks for more memory.
  std::string small = plain;
  const std::string wanted = late_readers + " --set zero.stage=1";
  const auto total = [&](const std::string& choice) {
    return Json::parse(call("plan " + run + wanted + machine +
                            " --ranks 2 --json --set device.kind=cuda --set optimizer.double_buffer=" + choice)
                           .text)
        .at("memory_bytes")
        .at("total")
        .as_int();
  };
  const size_t at = small.find("memory = \"");
  small.replace(at, small.find('"', at + 10) + 1 - at,
                "memory = \"" + std::to_string((total("true") + total("false")) / 2) + "B\"");
  const Result between = call("plan " + run + wanted + " --ranks 2 --json --set device.kind=cuda --machine " +
                              folder.write("between.toml", small));
  INFO(between.text);
  REQUIRE(between.code == 0);
  CHECK(!Json::parse(between.text).at("update").at("double_buffer").as_bool());
}

TEST_CASE("a step as a graph is rehearsed with a barrier after it, and auto takes the faster form", "[cli][zero]") {
  const std::string gpus = " --machine " + source_dir() + "/configs/machines/h100x8.toml --set device.kind=cuda";
  const std::string gpt2 =
      "plan " + source_dir() + "/configs/runs/gpt2_124m.toml --ranks 8" + gpus + " --set zero.stage=1";
  Folder folder;
  const std::string tiny = "plan " + run_file(folder) + " --ranks 2" + gpus + " --set zero.stage=1";
  int graphs = 0, task_by_task = 0;
  // On a slow link all gathers after the barrier cost more than the launches; on a fast one they do not.
  for (const std::string& plan : {gpt2, tiny, gpt2 + " --set comm.emulate.bandwidth=20Gbit/s"}) {
    const auto planned = [&](const std::string& graph) {
      const Result printed = call(plan + " --json --set device.graph=" + graph);
      INFO(printed.text);
      REQUIRE(printed.code == 0);
      return Json::parse(printed.text);
    };
    const Json yes = planned("true"), no = planned("false"), automatic = planned("auto");
    const auto step_ms = [](const Json& of) { return of.at("rehearsed").at("step_ms").as_double(); };
    CAPTURE(plan, step_ms(yes), step_ms(no), step_ms(automatic), automatic.at("graph").at("launches_ms").as_double());
    CHECK(yes.at("graph").at("taken").as_bool());
    CHECK(!no.at("graph").at("taken").as_bool());
    CHECK(step_ms(yes) >= step_ms(no));
    CHECK(automatic.at("graph").at("step_ms").as_double() == Approx(step_ms(yes)));
    CHECK(automatic.at("graph").at("task_by_task_ms").as_double() == Approx(step_ms(no)));
    const bool dear = step_ms(yes) - step_ms(no) > automatic.at("graph").at("launches_ms").as_double();
    CHECK(automatic.at("graph").at("taken").as_bool() == !dear);
    CHECK(step_ms(automatic) == Approx(dear ? step_ms(no) : step_ms(yes)));
    ++(dear ? task_by_task : graphs);
  }
  CHECK(graphs > 0);
  CHECK(task_by_task > 0);
  const Result text = call(gpt2);
  INFO(text.text);
  CHECK(contains(text.text, "\ngraph:   device.graph = \"auto\": steps are launched "));
  CHECK(contains(text.text, "with a graph's barrier after each step"));
  // A CPU has no graphs, and the output has no line about them.
  CHECK(!contains(call("plan " + run_file(folder) + " --ranks 2").text, "graph:"));
}

TEST_CASE("bench overlap measures the stages, prefetch and exposed gathers, and every overlap setting alone",
          "[cli][zero]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), csv = folder.path("table.csv");
  const std::string quick = " --set device.kind=cpu --steps 1 --layer-ms 0.2 --ratios 0.5 --csv " + csv;
  const Result zero = on_ranks(2, "bench overlap " + run + " --zero 0,1,2,3 --prefetch 0,1" + quick);
  INFO(zero.text);
  CHECK(zero.code == 0);
  for (const char* row : {"zero-0 ", "zero-1 ", "zero-1, gathers exposed", "zero-2 ", "zero-2, gathers exposed",
                          "noise floor: zero-0 against itself: ", "zero-3, prefetch 0", "zero-3, prefetch 1",
                          "zero-3, prefetch 1, gathers exposed"})
    CHECK(contains(zero.text, row));
  // Ranks that share sequences gather parameters among them, too.
  const Result ring =
      on_ranks(2, "bench overlap " + run +
                      " --zero 1,3 --prefetch 1 --set parallel.context=2 --set train.global_batch_size=2" + quick);
  INFO(ring.text);
  CHECK(ring.code == 0);
  const std::string table = read(csv);
  CHECK(count(table, "\n") == 5);
  for (size_t line = table.find('\n') + 1; line < table.size(); line = table.find('\n', line) + 1) {
    // ..., gather_ms, gather_exposed, gather_waits_ms
    const std::string row = table.substr(line, table.find('\n', line) - line);
    const size_t last = row.rfind(','), before = row.rfind(',', row.rfind(',', last - 1) - 1);
    INFO(row);
    CHECK(std::stod(row.substr(before + 1)) > 0);
    // Compute waits for a gather that begins when it is needed.
    if (contains(row, "gathers exposed")) CHECK(std::stod(row.substr(last + 1)) > 0);
    CHECK(!contains(row, "inf"));
  }
  for (const char* axis : {"context", "tensor"})
    check_refused(on_ranks(2, "bench overlap " + run + " --set parallel." + std::string(axis) +
                                  "=2 --set train.global_batch_size=2" + quick),
                  2, {"parallel.tensor x parallel.context", "slipstream bench layers"});
  const struct {
    int ranks;
    std::string sets;
    std::vector<std::string> rows;  // there are no other rows
  } runs[] = {
      {2,
       "",
       {"grad_reduce = naive", "grad_reduce = flat", "grad_reduce = per_parameter", "bucket_size = 1GiB",
        "first_bucket_size = 1GiB", "optimizer_per_bucket = false", "split_tied_embedding = false",
        "optimizer.double_buffer = true"}},
      {2,
       " --set zero.stage=3 --set model.layers=3",
       {"overlap.bucket_size = 1GiB", "param_gather = false", "optimizer_per_bucket = false", "prefetch_depth = 0",
        "reshard_after_forward = false"}},
      {4,
       " --set zero.stage=1 --set zero.shard_size=2 --set train.global_batch_size=8",
       {"grad_reduce = naive", "grad_reduce = flat", "grad_reduce = per_parameter", "bucket_size = 1GiB",
        "first_bucket_size = 1GiB", "max_inflight_buckets = 1", "param_gather = false", "optimizer_per_bucket = false",
        "zero.shard_size = 0", "optimizer.double_buffer = true"}},
  };
  for (const auto& row : runs) {
    const Result result = on_ranks(row.ranks, "bench overlap " + run + " --ablate" + quick + row.sets);
    INFO(row.sets << "\n" << result.text);
    CHECK(result.code == 0);
    CHECK(contains(result.text, "as it is, again"));
    for (const std::string& name : row.rows) CHECK(contains(result.text, name));
    CHECK(count(result.text, " = ") == static_cast<int>(row.rows.size()));
    CHECK(count(read(csv), "\n") == static_cast<int>(row.rows.size()) + 3);
  }
  // These axes have their communication in the layers, over the run file's own link.
  const std::string link = " --ablate --steps 1 --layer-ms 0.2 --set comm.emulate.bandwidth=1GB/s";
  const Result tensor =
      on_ranks(2, "bench overlap " + run + link + " --set parallel.tensor=2 --set overlap.tensor_chunks=2");
  INFO(tensor.text);
  CHECK(tensor.code == 0);
  CHECK(contains(tensor.text, "overlap.tensor_chunks = 1"));
  const Result pipeline = on_ranks(2, "bench overlap " + run + link + " --set parallel.pipeline=2");
  INFO(pipeline.text);
  CHECK(pipeline.code == 0);
  CHECK(contains(pipeline.text, "overlap.p2p = false"));
  check_refused(call("bench overlap " + run + " --ablate --ratios 0.5"), 2,
                {"--ablate needs at least 2 ranks", "mpirun -np 2"});
  check_refused(on_ranks(2, "bench overlap " + run + " --ablate"), 2,
                {"--ablate needs a link", "comm.emulate.bandwidth", "--ratios"});
  CHECK(call("bench overlap " + run + " --ablate --zero 1").code == 2);
}
