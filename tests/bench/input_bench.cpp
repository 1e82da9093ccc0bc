// SPDX-License-Identifier: Apache-2.0
// Exposed time of input at a rate of training: how long a step waits for its batch while the loader fills the next one.
// The step itself is a sleep. Files of each format are written to a folder; `read once` drops them from the page cache.

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/base/philox.h"
#include "engine/data/datasets/dataset.h"
#include "engine/data/datasets/loader.h"
#include "engine/device/clock.h"

using namespace slipstream;

namespace {

constexpr int64_t kTokens = 64 << 20;  // of a file
constexpr int64_t kLength = 1024, kRows = 512, kSteps = 20;
constexpr int64_t kVocab = 50257;

template <typename T>
void write_ids(const std::string& path, const std::string& header) {
  std::ofstream file(path, std::ios::binary);
  file.write(header.data(), static_cast<std::streamsize>(header.size()));
  const Philox random(7, "ids");
  std::vector<T> ids(1 << 16);
  for (int64_t begin = 0; begin < kTokens; begin += std::ssize(ids)) {
    for (size_t i = 0; i < ids.size(); ++i)
      ids[i] = static_cast<T>(random.below(static_cast<uint64_t>(begin) + i, kVocab - 1));
    file.write(reinterpret_cast<const char*>(ids.data()), static_cast<std::streamsize>(ids.size() * sizeof(T)));
  }
}

std::string llm_c_header() {
  std::vector<int32_t> header(256);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = static_cast<int32_t>(kTokens);
  return {reinterpret_cast<const char*>(header.data()), 1024};
}

/// Documents of 700 tokens.
void write_megatron(const std::string& stem) {
  write_ids<uint16_t>(stem + ".bin", "");
  constexpr int64_t kDocument = 700;
  const int64_t documents = (kTokens + kDocument - 1) / kDocument;
  std::vector<int32_t> lengths(static_cast<size_t>(documents), kDocument);
  lengths.back() = static_cast<int32_t>(kTokens - (documents - 1) * kDocument);
  std::vector<int64_t> offsets, ends;
  for (int64_t i = 0; i <= documents; ++i) {
    if (i < documents) offsets.push_back(2 * i * kDocument);
    ends.push_back(i);
  }
  std::ofstream file(stem + ".idx", std::ios::binary);
  const uint64_t version = 1, counts[2] = {static_cast<uint64_t>(documents), static_cast<uint64_t>(documents) + 1};
  const auto put = [&](const void* bytes, size_t size) {
    file.write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  };
  put("MMIDIDX\0\0", 9);
  put(&version, 8);
  put("\x08", 1);
  put(counts, 16);
  put(lengths.data(), lengths.size() * 4);
  put(offsets.data(), offsets.size() * 8);
  put(ends.data(), ends.size() * 8);
}

/// Documents of 60 characters.
void write_json_lines(const std::string& path) {
  std::ofstream file(path, std::ios::binary);
  const Philox random(7, "characters");
  std::string line;
  for (uint64_t at = 0; at < kTokens; at += 60) {
    line = "{\"text\": \"";
    for (uint64_t i = 0; i < 60; ++i) line += static_cast<char>('a' + random.below(at + i, 26));
    file << line << "\"}\n";
  }
}

void drop_from_cache(const std::string& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY);
    ::fsync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

void bench(const std::string& name, const std::string& folder, const data::DatasetOptions& options, double rate,
           bool cold) {
  const data::Dataset dataset = data::open_dataset(options);
  if (cold) drop_from_cache(folder);
  const data::TrainSampler sampler(
      dataset.counts, dataset.mixture,
      {.sequence_length = kLength, .micro_batch_size = kRows, .global_batch_size = kRows, .seed = 1});
  const data::BatchShape shape{.micro_batches = 1, .rows = kRows, .sequence_length = kLength};
  const data::BatchFiller fill = data::training_filler(dataset.train, sampler, 0, 1);
  int64_t fill_ns = 0;
  data::Loader loader(
      [&](int64_t step, data::Batch& batch) {
        const int64_t begin = monotonic_ns();
        fill(step, batch);
        fill_ns += monotonic_ns() - begin;
      },
      {.shape = shape, .first = 1, .last = kSteps + 2});
  const double step_ns = rate > 0 ? 1e9 * static_cast<double>(kRows * kLength) / rate : 0;
  loader.next();
  int64_t waited_ns = 0, most_ns = 0;
  const int64_t begin_ns = monotonic_ns();
  for (int64_t step = 0; step < kSteps; ++step) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(static_cast<int64_t>(step_ns)));
    const int64_t before = monotonic_ns();
    loader.next();
    waited_ns += monotonic_ns() - before;
    most_ns = std::max(most_ns, monotonic_ns() - before);
  }
  const double whole_ns = static_cast<double>(monotonic_ns() - begin_ns);
  fmt::print("{:28} {:10} {:12.1f} {:12.3f} {:12.3f} {:12.1f}\n", name, cold ? "no" : "yes",
             1e-6 * kRows * kLength / (static_cast<double>(fill_ns) * 1e-9 / (kSteps + 2)),
             100.0 * static_cast<double>(waited_ns) / whole_ns, 1e-6 * static_cast<double>(most_ns),
             1e-6 * static_cast<double>(kRows * kLength * kSteps) / (whole_ns * 1e-9));
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "/tmp/slipstream-input-bench";
  double rate = 10e6;
  if (argc > 2) std::from_chars(argv[2], argv[2] + std::strlen(argv[2]), rate);
  std::filesystem::create_directories(folder);
  const auto at = [&](const char* name) { return folder + "/" + name; };
  write_ids<uint16_t>(at("llm_c.bin"), llm_c_header());
  write_ids<uint16_t>(at("nanogpt.bin"), "");
  write_megatron(at("megatron"));
  write_ids<uint8_t>(at("bytes.txt"), "");
  write_json_lines(at("lines.jsonl"));
  const auto of = [&](const char* name, DataFormat format = DataFormat::automatic) {
    return data::DatasetOptions{.train = at(name),
                                .validation_fraction = 0,
                                .format = format,
                                .vocab_size = kVocab,
                                .sequence_length = kLength};
  };
  data::DatasetOptions mixture = of("llm_c.bin");
  mixture.train.clear();
  mixture.sources = {at("llm_c.bin"), at("llm_c.bin"), at("llm_c.bin")};
  mixture.weights = {0.6, 0.3, 0.1};
  fmt::print("{} sequences of {} tokens per step, {:.0f} tokens/s\n", kRows, kLength, rate);
  fmt::print("{:28} {:10} {:>12} {:>12} {:>12} {:>12}\n", "input", "cached", "fill Mtok/s", "exposed %", "longest ms",
             "Mtok/s");
  for (const bool cold : {false, true}) {
    bench("llm.c, uint16", folder, of("llm_c.bin"), rate, cold);
    bench("nanoGPT, uint16", folder, of("nanogpt.bin", DataFormat::nanogpt), rate, cold);
    bench("Megatron-LM, documents", folder, of("megatron"), rate, cold);
    bench("mixture of three", folder, mixture, rate, cold);
    bench("text as bytes", folder, of("bytes.txt"), rate, cold);
    bench("JSON lines as bytes", folder, of("lines.jsonl"), rate, cold);
  }
  std::filesystem::remove_all(folder);
}
