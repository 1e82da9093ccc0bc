// SPDX-License-Identifier: Apache-2.0
// What a run on GPUs chooses for products, collectives and attention, and how tables and variables change it.

#include <fmt/core.h>

#include "tests/fake_gpu/runs.h"

using namespace slipstream;
using namespace slipstream::program;

TEST_CASE("products are timed once and kept in a file, and every run prints the table that it uses", "[cuda]") {
  Folder folder;
  const std::string run = run_file(folder), table = folder.path("algorithms.json");
  const std::string more = " --set device.kind=cuda --set train.steps=1 --set device.algorithms=" + table;
  const auto products = [&](const std::string& name) {
    return Json::parse(read(folder.path(name) + "/run.json")).at("products");
  };
  train(folder, kFake, 1, "before", more);
  CHECK(products("before").at("table").as_string().empty());
  const Result timed = shell(kFake + " bench products " + run + " --steps 1 --rotate 4KiB" + more);
  INFO(timed.text);
  REQUIRE(timed.code == 0);
  CHECK(contains(timed.text, "Emulated card, cuBLASLt 130100"));
  CHECK(contains(timed.text, "products timed: " + table));
  // A second call finds every product timed. A table that lacks some is completed, and --again times all.
  const std::string bench = kFake + " bench products " + run + " --steps 1 --rotate 4KiB" + more, whole = read(table);
  const auto entries = [&] { return Json::parse(read(table)).at("products").as_object().size(); };
  const size_t all = entries();
  CHECK(contains(shell(bench).text, fmt::format("{0} products, {0} timed before", all)));
  CHECK(read(table) == whole);
  Json some = Json::parse(whole);
  const Json::Object every = Json::parse(whole).at("products").as_object();
  some["products"] = Json::Object(every.begin() + 1, every.end());
  folder.write("algorithms.json", some.dump(1));
  CHECK(contains(shell(bench).text, fmt::format("{} products, {} timed before", all, all - 1)));
  CHECK(entries() == all);
  const Result limited = shell(bench + " --again --seconds 1e-9");
  CHECK(contains(limited.text, fmt::format("{} products, 0 timed before", all)));
  CHECK(contains(limited.text, "products left after 1e-09 s"));
  CHECK(entries() < all);
  CHECK(shell(bench).code == 0);
  CHECK(entries() == all);
  const Run first = train(folder, kFake, 1, "after", more);
  const Json taken = products("after").at("taken");
  CHECK(products("after").at("table").as_string() == table);
  CHECK(contains(taken.dump(), "gelu and bias gradient"));
  for (const auto& [product, from] : taken.as_object())
    if (contains(product, "gradient")) CHECK(from.as_string() == "table");
  CHECK(train(folder, kFake, 1, "again", more).hash() == first.hash());
  // A foreign file gives one warning and stays unchanged; the run continues without it.
  folder.write("algorithms.json", "{\"format\": 1, \"card\": \"Another\", \"cublaslt\": 1, \"products\": {}}");
  const Run without = train(folder, kFake, 1, "foreign", more);
  CHECK(count(without.result.text, "device.algorithms is ignored") == 1);
  CHECK(without.result.text.find("is for the GPU") != std::string::npos);
  CHECK(products("foreign").at("table").as_string().empty());
  check_refused(shell(kFake + " bench products " + run + " --set device.kind=cpu"), 2, {"on the CPU"});
}

TEST_CASE("NCCL's choices per channel and size are in run.json, and a table changes them", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  small_run_file(folder);
  folder.write("nccl.json",
               "{\"channels\": {\"*\": {\"max_ctas\": 2, \"choices\": [{\"verb\": \"all_reduce\", \"algorithm\": "
               "\"ring\", \"protocol\": \"ll\"}]}}}");
  const auto channels = [&](const std::string& name) {
    return Json::parse(read(folder.path(name) + "/run.json")).at("channels").dump();
  };
  const Run own = train(folder, kFake, 2, "own", " --set device.kind=cuda --set train.steps=2");
  CHECK(contains(channels("own"), "\"from\": \"NCCL\""));
  CHECK(contains(channels("own"), "\"registered\": \"yes\""));
  // Either all ranks have the memory or none uses it: run.json describes the first rank, and the second one cannot get
  // it.
  const std::string alone = kFake + " train " + folder.path("run.toml") +
                            " --set device.kind=cuda --set train.steps=1 --set output.dir=" + folder.path("alone");
  CHECK(shell(mpirun() + "-np 1 " + alone + " : -np 1 -x FAKE_NCCL_NO_REGISTER=1 " + alone, 60).code == 0);
  CHECK(contains(channels("alone"), "no: NCCL needs all ranks to register"));
  CHECK(!contains(channels("alone"), "\"registered\": \"yes\""));
  // NCCL reads arenas in place only from its own memory; with one rank there is no reader.
  const std::string without = "env FAKE_NCCL_NO_MEMORY=1 " + kFake;
  check_refused(shell(mpirun() + "-np 2 " + without + " train " + folder.path("run.toml") + " --set device.kind=cuda"),
                7, {"[memory] parameters needs ", "but NCCL cannot allocate it", "NCCL_CUMEM_ENABLE=0"});
  train(folder, without, 1, "one", " --set device.kind=cuda --set train.steps=1");
  const Run tabled = train(folder, kFake, 2, "tabled",
                           " --set device.kind=cuda --set train.steps=2 --set comm.nccl=" + folder.path("nccl.json"));
  CHECK(contains(channels("tabled"), "\"algorithm\": \"ring\", \"protocol\": \"ll\", \"from\": \"table\""));
  CHECK(tabled.hash() == own.hash());  // the fake adds in one order, whatever the choice
  folder.write("nccl.json", "{\"channels\": {\"*\": {\"ctas\": 2}}}");
  check_refused(shell(kFake + " train " + folder.path("run.toml") +
                      " --set device.kind=cuda --set comm.nccl=" + folder.path("nccl.json")),
                2, {"unknown key", "min_ctas"});
}

TEST_CASE("run.json notes why attention does not use the instructions of sm_90a", "[cuda]") {
  Folder folder;
  run_file(folder);
  const std::string refused = "attention does not use the instructions of sm_90a. ";
  const auto notes_of = [&](const std::string& name, const std::string& capability, const std::string& more) {
    train(folder, "env FAKE_GPU_CAPABILITY=" + capability + " " + kFake, 1, name,
          " --set device.kind=cuda --set train.steps=1 --set train.eval_batches=1 --set train.dtype=bfloat16" + more);
    return Json::parse(read(folder.path(name) + "/run.json")).at("notes").dump();
  };
  const std::string narrow = notes_of("narrow", "90", "");  // heads of 8 elements
  INFO(narrow);
  for (const std::string op : {"attention_forward", "attention_backward"})
    CHECK(count(narrow, refused + op + ": heads of 8, need 64 or 128") == 1);
  CHECK(!contains(notes_of("older", "80", ""), refused));
  CHECK(!contains(notes_of("taken", "90", " --set model.width=128"), refused));
}

TEST_CASE("SLIPSTREAM_ATTENTION and SLIPSTREAM_EARLY_LAUNCH choose, and run.json has the choices", "[cuda]") {
  Folder folder;
  run_file(folder);
  const auto run = [&](const std::string& capability, const std::string& more) {
    return shell("env FAKE_GPU_CAPABILITY=" + capability + " " + more + kFake + " train " + folder.path("run.toml") +
                 " --set device.kind=cuda --set train.steps=1 --set train.eval_batches=1 --set output.dir=" +
                 folder.path("run"));
  };
  const auto choice = [&](const std::string& capability, const std::string& more) {
    const Result result = run(capability, more);
    INFO(result.text);
    REQUIRE(result.code == 0);
    CHECK(count(result.text, "attention uses mma.sync") == (capability == "120" ? 1 : 0));
    const Json written = Json::parse(read(folder.path("run") + "/run.json"));
    CHECK(written.at("early_launch").as_bool() ==
          (std::stoi(capability) >= 90 && more.find("LAUNCH=off") == more.npos));
    return written.at("attention").as_string();
  };
  CHECK(choice("90", "") == "hopper");
  CHECK(choice("90", "SLIPSTREAM_ATTENTION=mma SLIPSTREAM_EARLY_LAUNCH=off ") == "mma");
  CHECK(choice("80", "") == "mma");
  CHECK(choice("120", "") == "mma");
  CHECK(choice("80", "SLIPSTREAM_ATTENTION=plain ") == "plain");
  check_refused(run("89", "SLIPSTREAM_ATTENTION=hopper "), 2, {"needs compute capability 9.0, and this GPU has 8.9"});
  check_refused(run("90", "SLIPSTREAM_ATTENTION=MMA "), 2, {"=MMA is unknown, need hopper, mma or plain"});
}
