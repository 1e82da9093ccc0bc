// SPDX-License-Identifier: Apache-2.0
// The folder of final weights: complete before, during and after a replacement.

#include "engine/checkpoint/weights.h"

#include <atomic>
#include <thread>

#include "tests/engine/data/disk.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::checkpoint;
using namespace slipstream::tests;

namespace {

std::vector<TensorToSave> filled_with(char byte, int64_t elems) {
  return {{.name = "w", .dtype = DType::f32, .shape = {elems}, .write = [=](const TensorSink& sink) {
             const std::string bytes(static_cast<size_t>(4 * elems), byte);
             sink(bytes.data(), static_cast<int64_t>(bytes.size()));
           }}};
}

std::string content(const FinalWeights& final) {
  const TensorInfo& tensor = final.weights.get("w");
  std::string bytes(static_cast<size_t>(tensor.size_bytes), '\0');
  final.weights.read(tensor, 0, bytes.data(), tensor.size_bytes);
  return bytes;
}

}  // namespace

TEST_CASE("weights are written, read back and replaced", "[checkpoint]") {
  const TempFolder folder;
  const std::string dir = folder / "run/checkpoints/final";
  const Json config = Json::parse(R"({"model_type": "gpt2", "n_layer": 4})");
  write_final(dir, filled_with('a', 10), config.dump(2), {{"slipstream_tokenizer.json", "{}"}, {"old.txt", "x"}});
  const FinalWeights first = read_final(dir);
  CHECK(first.config == config);
  CHECK(content(first) == std::string(40, 'a'));
  CHECK(bytes_in(dir + "/slipstream_tokenizer.json") == "{}");
  write_final(dir + "/", filled_with('b', 3), "{}", {});
  const FinalWeights second = read_final(dir);
  CHECK(content(second) == std::string(12, 'b'));
  CHECK(second.config.as_object().empty());
  CHECK(!std::filesystem::exists(dir + "/old.txt"));
  CHECK(content(first) == std::string(40, 'a'));  // a process that has the older file open keeps it
  const auto beside = std::filesystem::directory_iterator(folder / "run/checkpoints");
  CHECK(std::distance(begin(beside), end(beside)) == 1);
}

TEST_CASE("weights: a writer that fails leaves what was there", "[checkpoint]") {
  const TempFolder folder;
  const std::string dir = folder / "final";
  std::vector<TensorToSave> bad = {
      {.name = "w", .dtype = DType::f32, .shape = {4}, .write = [](const TensorSink& sink) {
         sink("1234", 4);
         throw CommError("[comm] rank 3 is gone.");
       }}};
  CHECK_REFUSED(CommError, write_final(dir, bad, "{}", {}), "rank 3");
  CHECK(folder.entries() == 0);
  write_final(dir, filled_with('a', 10), "{}", {});
  CHECK_REFUSED(CommError, write_final(dir, bad, "{}", {}), "rank 3");
  CHECK(folder.entries() == 1);
  CHECK(content(read_final(dir)) == std::string(40, 'a'));
  put(folder / "file", "x");
  CHECK_REFUSED(ResourceError, write_final(folder / "file", filled_with('a', 1), "{}", {}), "a file has this name");
  CHECK_REFUSED(ResourceError, write_final(folder / "file/final", filled_with('a', 1), "{}", {}), "cannot be written");
  CHECK(bytes_in(folder / "file") == "x");
  CHECK(folder.entries() == 2);
}

TEST_CASE("weights: while it is replaced a reader always finds a whole folder", "[checkpoint]") {
  const TempFolder folder;
  const std::string dir = folder / "final";
  write_final(dir, filled_with('a', 1000), "{}", {});
  std::atomic<bool> stop = false;
  std::atomic<int> looks = 0, missing = 0;
  std::thread reader([&] {
    while (!stop) {
      ++looks;
      if (!std::filesystem::is_directory(dir) || !std::filesystem::exists(dir)) ++missing;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  // On a busy machine the reader may begin late.
  for (int i = 0; i < 40 || looks < 40; ++i)
    write_final(dir, filled_with(static_cast<char>('a' + i % 2), 1000 + i % 40), "{}", {});
  write_final(dir, filled_with('b', 1039), "{}", {});
  stop = true;
  reader.join();
  CHECK(missing == 0);
  CHECK(content(read_final(dir)) == std::string(4 * 1039, 'b'));
}

TEST_CASE("weights: an unreadable file is named", "[checkpoint]") {
  const TempFolder folder;
  CHECK_REFUSED(CheckpointError, read_final(folder / "none"), "none", "does not exist");
  const std::string dir = folder / "final";
  write_final(dir, filled_with('a', 4), "{}", {});
  put(dir + "/config.json", R"({"a":1,"a":2})");
  CHECK_REFUSED(CheckpointError, read_final(dir), "config.json", "duplicate key");
  std::filesystem::remove(dir + "/config.json");
  CHECK_REFUSED(CheckpointError, read_final(dir), "config.json", "does not exist");
  put(dir + "/config.json", "{}");
  std::filesystem::resize_file(dir + "/model.safetensors", 100);
  CHECK_REFUSED(CheckpointError, read_final(dir), "model.safetensors");
}
