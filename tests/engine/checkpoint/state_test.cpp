// SPDX-License-Identifier: Apache-2.0
// Checkpoints on disk: manifests, boxes, commits. Damage anywhere is found; a kill anywhere leaves a valid checkpoint.

#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "engine/base/hash.h"
#include "engine/checkpoint/state_file.h"
#include "engine/checkpoint/store.h"
#include "engine/plan/tensor_boxes.h"
#include "tests/engine/data/disk.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::checkpoint;
using namespace slipstream::tests;

namespace {

Manifest example(int64_t step = 12) {
  return {.step = step,
          .program = "0.1.0",
          .written = "2026-01-02T03:04:05Z",
          .ranks = 2,
          .layout = "data 2",
          .memory_layout = "abc",
          .global_batch_size = 8,
          .vocab = 257,
          .data_hash = "d",
          .numerics = {.skips = 3, .losses = {0.1, -2}, .norms = {1e-300, 7}},
          .skipped_batches = 40,
          .config = {{"train.steps", "20"}, {"model.family", "\"gpt2\""}},
          .tensors = {{.name = "w", .shape = {3, 5}, .arrays = {"weight", "momentum"}}},
          .files = {{.name = "rank-0000.safetensors", .size_bytes = 10, .hash = std::string(32, 'a')}}};
}

float value_at(const std::string& array, int64_t row, int64_t column) {
  return static_cast<float>(1000 * row + column) + (array == kWeight ? 0.0f : 0.5f);
}

BoxToSave filled(Box box) {
  return {.box = box, .read = [box](int64_t begin, std::span<float> out) {
            for (size_t i = 0; i < out.size(); ++i) {
              const int64_t at = begin + static_cast<int64_t>(i);
              out[i] = value_at(box.array, box.row + at / box.columns, box.column + at % box.columns);
            }
          }};
}

/// Cuts [0, rows) x [0, columns) into boxes at random.
void cut(std::mt19937_64& random, const Box& box, std::vector<Box>& out) {
  const bool by_row = box.columns == 1 || (box.rows > 1 && random() % 2 == 0);
  const int64_t length = by_row ? box.rows : box.columns;
  if (length == 1 || random() % 4 == 0) return out.push_back(box);
  const int64_t at = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(length - 1));
  Box first = box, second = box;
  if (by_row)
    first.rows = at, second.row += at, second.rows -= at;
  else
    first.columns = at, second.column += at, second.columns -= at;
  cut(random, first, out);
  cut(random, second, out);
}

/// Writes a checkpoint of `files` files whose boxes cut the tensor at random.
Manifest save(const std::string& dir, int64_t step, const LogicalTensor& tensor, int files, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto [rows, columns] = matrix_of(tensor.shape);
  std::vector<std::vector<BoxToSave>> of_file(static_cast<size_t>(files));
  for (const std::string& array : tensor.arrays) {
    std::vector<Box> boxes;
    cut(random, {tensor.name, array, 0, 0, rows, columns}, boxes);
    for (const Box& box : boxes) of_file[random() % of_file.size()].push_back(filled(box));
  }
  Manifest manifest = example(step);
  manifest.tensors = {tensor};
  manifest.files.clear();
  const std::string folder = begin_checkpoint(dir, step);
  for (size_t f = 0; f < of_file.size(); ++f)
    manifest.files.push_back(write_state_file(folder, fmt::format("rank-{:04}.safetensors", f), std::move(of_file[f])));
  commit_checkpoint(dir, manifest);
  return manifest;
}

/// The newest checkpoint whose files verify; -1 without one.
int64_t newest_valid(const std::string& dir) {
  for (const Found& found : find_checkpoints(dir))
    if (found.manifest && std::all_of(found.manifest->files.begin(), found.manifest->files.end(),
                                      [&](const StateFile& file) { return problem_of(found.path, file).empty(); }))
      return found.step;
  return -1;
}

}  // namespace

TEST_CASE("manifest: read back, and every damaged byte is found", "[checkpoint]") {
  const Manifest manifest = example();
  const std::string text = text_of(manifest);
  CHECK(parse_manifest(text, "m") == manifest);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    INFO(i);
    CHECK_THROWS_AS(parse_manifest(damaged, "m"), CheckpointError);
    CHECK_THROWS_AS(parse_manifest(text.substr(0, i), "m"), CheckpointError);
  }
  Manifest outside = manifest;
  for (const char* name : {"../x", "", ".x", "a/b"}) {
    outside.files[0].name = name;
    CHECK_REFUSED(CheckpointError, parse_manifest(text_of(outside), "m"), "not the name of a file");
  }
  outside = manifest;
  outside.files.push_back(outside.files[0]);
  CHECK_REFUSED(CheckpointError, parse_manifest(text_of(outside), "m"), "listed twice");
  outside = manifest;
  outside.tensors[0].shape = {int64_t{1} << 40, int64_t{1} << 40};
  CHECK_REFUSED(CheckpointError, parse_manifest(text_of(outside), "m"), "64 bits");
  outside = manifest;
  outside.numerics.losses.push_back(std::numeric_limits<double>::infinity());
  CHECK_REFUSED(CheckpointError, parse_manifest(text_of(outside), "m"), "has 3 losses and 2 norms");
  outside.numerics.norms.push_back(1);
  const std::vector<double> losses = parse_manifest(text_of(outside), "m").numerics.losses;
  CHECK(std::vector<double>(losses.begin(), losses.begin() + 2) == manifest.numerics.losses);
  CHECK(std::isnan(losses[2]));
  outside.numerics = {};  // as in checkpoints that lack the members
  outside.skipped_batches = 0;
  CHECK(parse_manifest(text_of(outside), "m") == outside);
}

TEST_CASE("boxes: names read back", "[checkpoint]") {
  const Box box{"h.0.attn.c_attn.weight", "momentum", 3, 0, 4, 192};
  CHECK(name_of(box) == "momentum:h.0.attn.c_attn.weight[3:7,0:192]");
  CHECK(box_of(name_of(box)) == box);
  for (const char* bad :
       {"", "w", "a:w", "a:w[]", "a:w[0:1]", "a:w[0:1,0:1", "a:w[1:1,0:1]", "a:w[0:1,2:1]", ":w[0:1,0:1]",
        "a:[0:1,0:1]", "a:w[0:1,0:1]x", "a:w[-1:1,0:1]", "a:w[0:99999999999999999999,0:1]"}) {
    INFO(bad);
    CHECK(!box_of(bad));
  }
}

TEST_CASE("boxes: any region reads back from any cut", "[checkpoint]") {
  const uint64_t seed = 20261;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 40; ++round) {
    const TempFolder folder;
    const LogicalTensor tensor{.name = "w",
                               .shape = round % 3 == 0 ? std::vector<int64_t>{1 + static_cast<int64_t>(random() % 40)}
                                                       : std::vector<int64_t>{1 + static_cast<int64_t>(random() % 20),
                                                                              1 + static_cast<int64_t>(random() % 30)},
                               .arrays = {kWeight, "momentum"}};
    const Manifest manifest = save(folder.path(), 1, tensor, 1 + static_cast<int>(random() % 4), random());
    const StateReader reader(folder / name_of_step(1), manifest);
    const auto [rows, columns] = matrix_of(tensor.shape);
    for (int region = 0; region < 20; ++region) {
      const auto range = [&](int64_t length) {
        const auto begin = static_cast<int64_t>(random() % static_cast<uint64_t>(length));
        return std::pair(begin, 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(length - begin)));
      };
      const auto [row, row_count] = range(rows);
      const auto [column, column_count] = range(columns);
      const Box wanted{"w", region % 2 == 0 ? kWeight : "momentum", row, column, row_count, column_count};
      std::vector<float> got(static_cast<size_t>(wanted.elems())), need(got.size());
      reader.read(wanted, got);
      filled(wanted).read(0, need);
      CHECK(got == need);
    }
    std::vector<float> one(1);
    CHECK_REFUSED(CheckpointError, reader.read({"v", kWeight, 0, 0, 1, 1}, one), "another model");
    CHECK_REFUSED(CheckpointError, reader.read({"w", kWeight, rows, 0, 1, 1}, one), "0 of the 1 elements");
  }
}

TEST_CASE("boxes: a tensor that is not covered is refused", "[checkpoint]") {
  const TempFolder folder;
  Manifest manifest = example();
  const auto write = [&](std::vector<Box> boxes) {
    std::vector<BoxToSave> to_save;
    for (const Box& box : boxes) to_save.push_back(filled(box));
    manifest.files = {write_state_file(folder.path(), "f", std::move(to_save))};
    manifest.tensors = {{.name = "w", .shape = {3, 5}, .arrays = {kWeight}}};
    StateReader reader(folder.path(), manifest);
    std::vector<float> all(15);
    reader.read({"w", kWeight, 0, 0, 3, 5}, all);
  };
  write({{"w", kWeight, 0, 0, 1, 5}, {"w", kWeight, 1, 0, 2, 5}});
  CHECK_REFUSED(CheckpointError, write({{"w", kWeight, 0, 0, 2, 5}}), "10 elements", "need 15");
  CHECK_REFUSED(CheckpointError, write({{"w", kWeight, 0, 0, 2, 5}, {"w", kWeight, 1, 0, 1, 5}}), "twice");
  CHECK_REFUSED(CheckpointError, write({{"w", kWeight, 0, 0, 4, 5}}), "outside");
}

TEST_CASE("boxes: numbers, tensors without elements and boxes of several pieces read back", "[checkpoint]") {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{}, {0}, {0, 7}, {3, 0}, {1}, {700, 1000}}) {
    CAPTURE(shape);
    const TempFolder folder;
    const LogicalTensor tensor{.name = "w", .shape = shape, .arrays = {kWeight}};
    const auto [rows, columns] = matrix_of(shape);
    const Box whole{"w", kWeight, 0, 0, rows, columns};
    Manifest manifest = example(1);
    manifest.tensors = {tensor};
    std::vector<BoxToSave> boxes;
    if (whole.elems() > 0) boxes.push_back(filled(whole));
    manifest.files = {write_state_file(begin_checkpoint(folder.path(), 1), "f", std::move(boxes))};
    commit_checkpoint(folder.path(), manifest);
    CHECK(newest_valid(folder.path()) == 1);
    const StateReader reader(folder / name_of_step(1), manifest);
    CHECK(reader.has("w", kWeight) == (whole.elems() > 0));
    if (whole.elems() == 0) continue;
    std::vector<float> got(static_cast<size_t>(whole.elems())), need(got.size());
    reader.read(whole, got);
    filled(whole).read(0, need);
    CHECK(got == need);
  }
}

TEST_CASE("boxes: a tensor of more than 2^31 elements and 4 GiB reads back at its end", "[checkpoint]") {
  const TempFolder folder;
  constexpr int64_t kRows = (int64_t{1} << 20) + 3, kColumns = 4096;
  static_assert(kRows * kColumns > int64_t{1} << 32);
  const Box whole{"w", kWeight, 0, 0, kRows, kColumns};
  std::string header = fmt::format(R"({{"{}":{{"dtype":"F32","shape":[{},{}],"data_offsets":[0,{}]}}}})",
                                   name_of(whole), kRows, kColumns, 4 * whole.elems());
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &header_bytes, 8);
  put(folder / "f", bytes + header);
  // The file has a hole of 16 GiB, which takes no disk, and a last row.
  std::vector<float> last(kColumns), got(kColumns);
  std::iota(last.begin(), last.end(), 1.0f);
  const int64_t end = 8 + static_cast<int64_t>(header_bytes) + 4 * whole.elems();
  std::filesystem::resize_file(folder / "f", static_cast<uintmax_t>(end));
  std::fstream file(folder / "f", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(end - 4 * kColumns);
  file.write(reinterpret_cast<const char*>(last.data()), 4 * kColumns);
  file.close();
  Manifest manifest = example(1);
  manifest.tensors = {{.name = "w", .shape = {kRows, kColumns}, .arrays = {kWeight}}};
  manifest.files = {{.name = "f", .size_bytes = end, .hash = ""}};
  const StateReader reader(folder.path(), manifest);
  reader.read({"w", kWeight, kRows - 1, 0, 1, kColumns}, got);
  CHECK(got == last);
  reader.read({"w", kWeight, kRows - 2, 0, 1, kColumns}, got);
  CHECK(got == std::vector<float>(kColumns));
  std::vector<float> corner(2);
  reader.read({"w", kWeight, kRows - 2, kColumns - 1, 2, 1}, corner);
  CHECK(corner == std::vector<float>{0, kColumns});
}

TEST_CASE("a limited writer is never faster than its rate, until the limit is lifted", "[checkpoint]") {
  using Clock = std::chrono::steady_clock;
  const TempFolder folder;
  const auto writer = [&](WriterPace& pace) {
    return std::thread([&] {  // a thread of its own, because it stays at the low priority
      write_state_file(folder.path(), "f", {filled({"w", kWeight, 0, 0, 400, 1000})}, &pace);
    });
  };
  WriterPace limited(32'000'000);
  const Clock::time_point start = Clock::now();
  writer(limited).join();
  CHECK(std::chrono::duration<double>(Clock::now() - start).count() >= 0.05);  // 1.6 MB
  WriterPace lifted(1);                                                        // 18 days
  std::thread waiting = writer(lifted);
  lifted.lift();
  waiting.join();
  writer(lifted).join();
  WriterPace none(0);
  writer(none).join();
}

TEST_CASE("boxes of a held part cover exactly its elements", "[checkpoint]") {
  const uint64_t seed = 20262;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<uint64_t>(most)); };
  for (int round = 0; round < 300; ++round) {
    const int parts = 1 + static_cast<int>(below(4)), blocks = round % 2 == 0 ? 1 : 3;
    const bool by_column = round % 3 == 0;
    const int64_t rows = blocks * (1 + below(5)), columns = 1 + below(6);
    NamedTensor tensor{.name = "w", .shape = {rows, columns}};
    tensor.split = {.dim = by_column ? 1 : 0, .blocks = by_column ? 1 : blocks, .parts = parts, .index = 0, .whole = 0};
    if (parts > 1)
      tensor.split.whole = parts * (by_column ? columns : rows) - (by_column || blocks > 1 ? 0 : below(rows));
    const std::vector<int64_t> whole = tensor.whole_shape();
    std::vector<int> seen(static_cast<size_t>(whole[0] * whole[1]));
    for (int part = 0; part < parts; ++part) {
      tensor.split.index = part;
      // The part has several ranges, as several ranks save them.
      for (int64_t begin = 0; begin < tensor.elems();) {
        const int64_t count = 1 + below(tensor.elems() - begin);
        std::vector<int64_t> held_to_whole(static_cast<size_t>(count), -1);
        tensor.for_runs(part, begin, count, [&](int64_t held, int64_t at, int64_t elems) {
          for (int64_t i = 0; i < elems; ++i) held_to_whole[static_cast<size_t>(held - begin + i)] = at + i;
        });
        for (const TensorBox& box : boxes_of(tensor, begin, count))
          for (int64_t i = 0; i < box.rows * box.columns; ++i) {
            const int64_t at = (box.row + i / box.columns) * whole[1] + box.column + i % box.columns;
            CHECK(held_to_whole[static_cast<size_t>(box.held - begin + i)] == at);
            ++seen[static_cast<size_t>(at)];
          }
        begin += count;
      }
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
}

TEST_CASE("store: commits, replaces, keeps and removes", "[checkpoint]") {
  const TempFolder folder;
  const LogicalTensor tensor{.name = "w", .shape = {4, 4}, .arrays = {kWeight}};
  CHECK(find_checkpoints(folder / "absent").empty());
  for (const int64_t step : {5, 10, 15, 20}) save(folder.path(), step, tensor, 2, 1);
  save(folder.path(), 20, tensor, 1, 2);  // saved again, with another number of files
  CHECK(find_checkpoints(folder.path()).front().manifest->files.size() == 1);
  begin_checkpoint(folder.path(), 25);  // never committed
  std::filesystem::create_directory(folder / "step-00000030");
  std::filesystem::create_directory(folder / "final");
  const std::vector<Found> found = find_checkpoints(folder.path());
  REQUIRE(found.size() == 5);
  CHECK(found.front().step == 30);
  CHECK(!found.front().manifest);
  CHECK(newest_valid(folder.path()) == 20);
  // The checkpoint that a run resumed from and a folder without a manifest are neither removed nor counted.
  CHECK(remove_old(folder.path(), 2, {.resumed = 5}).empty());
  std::vector<int64_t> left;
  for (const Found& each : find_checkpoints(folder.path())) left.push_back(each.step);
  CHECK(left == std::vector<int64_t>{30, 20, 15, 5});
  clean_leftovers(folder.path());
  CHECK(!std::filesystem::exists(folder / "step-00000025.tmp"));
  CHECK(std::filesystem::exists(folder / "final"));
}

TEST_CASE("store: a checkpoint is removed only when enough newer ones are sound", "[checkpoint]") {
  const LogicalTensor tensor{.name = "w", .shape = {4, 4}, .arrays = {kWeight}};
  const auto left_of = [&](int64_t keep, const KeptSteps& kept) {
    const TempFolder folder;
    for (const int64_t step : {3, 6, 7, 8, 9}) save(folder.path(), step, tensor, 1, 1);
    put(folder / "latest", "step-00000042");  // names that other programs may write; only folders count
    CHECK(remove_old(folder.path(), keep, kept).empty());
    std::vector<int64_t> steps;
    for (const Found& found : find_checkpoints(folder.path())) steps.push_back(found.step);
    return steps;
  };
  using Steps = std::vector<int64_t>;
  CHECK(left_of(1, {}) == Steps{9});
  CHECK(left_of(9, {}) == Steps{9, 8, 7, 6, 3});
  CHECK(left_of(1, {.resumed = 6}) == Steps{9, 6});
  // A run that skipped damaged newer ones keeps what it has saved since.
  CHECK(left_of(1, {.resumed = 6, .damaged = {8, 9}}) == Steps{9, 8, 7, 6});
  CHECK(left_of(1, {.resumed = 6, .damaged = {9}}) == Steps{9, 8, 6});
  CHECK(left_of(2, {.resumed = 3, .damaged = {8}}) == Steps{9, 8, 7, 3});
}

/// While it exists, permissions hold for root as well: this thread lacks CAP_DAC_OVERRIDE.
class WithoutOverride {
 public:
  WithoutOverride() {
    REQUIRE(::syscall(SYS_capget, &header_, before_.data()) == 0);
    std::array<__user_cap_data_struct, 2> without = before_;
    without[0].effective &= ~(1u << CAP_DAC_OVERRIDE);
    REQUIRE(::syscall(SYS_capset, &header_, without.data()) == 0);
  }
  ~WithoutOverride() { ::syscall(SYS_capset, &header_, before_.data()); }
  WithoutOverride(const WithoutOverride&) = delete;
  WithoutOverride& operator=(const WithoutOverride&) = delete;

 private:
  __user_cap_header_struct header_ = {_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> before_ = {};
};

TEST_CASE("store: a folder that cannot be removed gives one error", "[checkpoint]") {
  const TempFolder folder;
  const LogicalTensor tensor{.name = "w", .shape = {4, 4}, .arrays = {kWeight}};
  for (const int64_t step : {1, 2, 3}) save(folder.path(), step, tensor, 1, 1);
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0555));
  std::vector<std::string> failures;
  {
    const WithoutOverride permissions_hold;
    failures = remove_old(folder.path(), 1, {});
  }
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  REQUIRE(failures.size() == 2);
  CHECK(failures[0] == folder / "step-00000002" + " cannot be removed: Permission denied");
  CHECK(newest_valid(folder.path()) == 3);
  CHECK(find_checkpoints(folder.path()).size() == 3);
}

TEST_CASE("store: a checkpoint of a newer program is refused with the version that wrote it", "[checkpoint]") {
  const TempFolder folder;
  save(folder.path(), 1, {.name = "w", .shape = {4, 4}, .arrays = {kWeight}}, 1, 1);
  const std::string file = folder / (name_of_step(1) + "/" + kManifestFile);
  std::string text = bytes_in(file);
  const std::string head = "\"manifest\":", version = "\"version\": 1", program = "\"program\": \"0.1.0\"";
  REQUIRE(text.find(version) != std::string::npos);
  REQUIRE(text.find(program) != std::string::npos);
  text.replace(text.find(version), version.size(), "\"version\": 2");
  text.replace(text.find(program), program.size(), "\"program\": \"9.1.0\"");
  const size_t begin = text.find(head) + head.size();
  const std::string body = text.substr(begin, text.size() - begin - 2);  // without "}" and the line feed
  text.replace(text.find(':') + 2, 32, data::xxh3_128_hex(body.data(), std::ssize(body)));
  CHECK_REFUSED(CheckpointError, parse_manifest(text, "m"), "version 2 of the format", "reads version 1", "\"9.1.0\"");
  put(file, text);
  const std::vector<Found> found = find_checkpoints(folder.path());
  REQUIRE(found.size() == 1);
  CHECK(!found[0].manifest);
  CHECK(found[0].problem.find("9.1.0") != std::string::npos);
  CHECK(remove_old(folder.path(), 1, {}).empty());
  CHECK(find_checkpoints(folder.path()).size() == 1);  // it stays for that program
}

TEST_CASE("store: every damaged byte, missing file and exchanged file is found", "[checkpoint]") {
  const TempFolder folder;
  const LogicalTensor tensor{.name = "w", .shape = {4, 4}, .arrays = {kWeight}};
  save(folder.path(), 1, tensor, 1, 1);
  const Manifest manifest = save(folder.path(), 2, tensor, 1, 2);
  const std::string file = folder / (name_of_step(2) + "/" + manifest.files[0].name);
  const std::string good = bytes_in(file);
  CHECK(newest_valid(folder.path()) == 2);
  for (size_t i = 0; i < good.size(); ++i) {
    std::string damaged = good;
    damaged[i] = static_cast<char>(damaged[i] ^ (1 << (i % 8)));
    std::ofstream(file, std::ios::binary) << damaged;
    REQUIRE(newest_valid(folder.path()) == 1);
  }
  for (const size_t length : {size_t{0}, good.size() / 2, good.size() - 1}) {
    put(file, good.substr(0, length));
    CHECK(newest_valid(folder.path()) == 1);
  }
  put(file, good + "x");
  CHECK(newest_valid(folder.path()) == 1);
  std::filesystem::remove(file);
  CHECK(newest_valid(folder.path()) == 1);
  put(file, good);
  CHECK(newest_valid(folder.path()) == 2);
  put(folder / (name_of_step(2) + "/stranger"),
      "x");  // the manifest does not list the file, so it is no part of the checkpoint
  CHECK(newest_valid(folder.path()) == 2);
  std::filesystem::rename(folder / name_of_step(2), folder / name_of_step(7));
  CHECK(newest_valid(folder.path()) == 1);  // the manifest is that of another step
}

TEST_CASE("store: a kill at any point leaves a valid checkpoint", "[checkpoint]") {
  const LogicalTensor tensor{.name = "w", .shape = {4, 4}, .arrays = {kWeight, "momentum"}};
  const struct {
    const char* point;
    int64_t newest;
  } rows[] = {{"save.begun", 1},     {"save.in_file", 1},   {"save.file", 1},
              {"save.file#1", 1},    {"save.manifest", 1},  {"save.renamed", 2},
              {"save.committed", 2}, {"remove.renamed", 2}, {"none", 2}};
  for (const auto& [point, newest] : rows) {
    INFO(point);
    const TempFolder folder;
    save(folder.path(), 1, tensor, 2, 1);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      ::setenv("SLIPSTREAM_FAIL_POINT", point, 1);
      save(folder.path(), 2, tensor, 2, 2);
      remove_old(folder.path(), 1, {});
      std::_Exit(0);
    }
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (std::string(point) == "none")
      CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
    else
      CHECK((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
    CHECK(newest_valid(folder.path()) == newest);
    // The next start cleans, saves again and continues.
    clean_leftovers(folder.path());
    save(folder.path(), 3, tensor, 1, 3);
    CHECK(remove_old(folder.path(), 1, {}).empty());
    CHECK(newest_valid(folder.path()) == 3);
    CHECK(folder.entries() == 1);
  }
}
