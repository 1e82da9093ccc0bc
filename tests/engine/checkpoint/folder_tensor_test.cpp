// SPDX-License-Identifier: Apache-2.0
// Tensors in pieces: every cut gives the tensor back, and pieces that do not cover it are refused.

#include "engine/checkpoint/folder_tensor.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>

#include "engine/checkpoint/weights_folder.h"
#include "tests/engine/checkpoint/pieces.h"
#include "tests/engine/data/disk.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::checkpoint;
using namespace slipstream::tests;

namespace {

/// Value i of a tensor is i mod 251, which all types hold.
float value_of(int64_t i) { return static_cast<float>(i % 251); }

std::string values(int64_t elems, bool half) {
  std::string bytes;
  for (int64_t i = 0; i < elems; ++i) {
    const float value = value_of(i);
    char raw[4];
    std::memcpy(raw, &value, 4);
    bytes += half ? std::string(raw + 2, 2) : std::string(raw, 4);
  }
  return bytes;
}

/// Sorted cuts from 0 to `dim`; equal ones leave empty pieces.
std::vector<int64_t> cuts(std::mt19937_64& random, int64_t dim) {
  std::vector<int64_t> at = {0, dim};
  for (uint64_t more = random() % 4; more > 0; --more)
    at.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(dim + 1)));
  std::sort(at.begin(), at.end());
  return at;
}

std::vector<Box> grid(const std::vector<std::vector<int64_t>>& cuts_of) {
  std::vector<Box> boxes = {{}};
  for (const auto& at : cuts_of) {
    std::vector<Box> finer;
    for (const Box& box : boxes)
      for (size_t i = 0; i + 1 < at.size(); ++i) {
        finer.push_back(box);
        finer.back().offsets.push_back(at[i]);
        finer.back().size.push_back(at[i + 1] - at[i]);
      }
    boxes = finer;
  }
  return boxes;
}

struct Files {
  const TempFolder folder;
  std::vector<std::unique_ptr<SafetensorsFile>> open;

  void add(const std::string& bytes) {
    const std::string path = folder / piece_file_name(static_cast<int>(open.size()) + 1);
    put(path, bytes);
    open.push_back(std::make_unique<SafetensorsFile>(path));
  }
};

/// A file with one F32 piece.
std::string one(const Box& box, const std::string& dtype = "F32") {
  PieceFile file;
  file.add("w", dtype, box, std::string(static_cast<size_t>(product(box.size) * (dtype == "F32" ? 4 : 2)), '\0'));
  return file.bytes();
}

}  // namespace

TEST_CASE("folder_tensor: every cut gives the tensor back, range by range", "[checkpoint]") {
  const uint64_t seed = 20261126;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int trial = 0; trial < 150; ++trial) {
    INFO("trial " << trial);
    std::vector<int64_t> shape;
    for (uint64_t dims = random() % 5; dims > 0; --dims) shape.push_back(static_cast<int64_t>(random() % 8));
    const bool half = random() % 2 == 0;
    std::vector<std::vector<int64_t>> cuts_of;
    for (const int64_t dim : shape) cuts_of.push_back(cuts(random, dim));
    std::vector<Box> boxes = grid(cuts_of);
    std::shuffle(boxes.begin(), boxes.end(), random);
    const std::string whole = values(product(shape), half);
    Files files;  // one for each piece, because a file holds a name once
    for (const Box& box : boxes) {
      PieceFile file;
      if (random() % 2 == 0) file.add("other." + std::to_string(files.open.size()), "F32", Box{{0}, {1}}, "1234");
      file.add("w", half ? "BF16" : "F32", box, cut(whole, shape, half ? 2 : 4, box));
      files.add(file.bytes());
    }
    const std::vector<FolderTensor> tensors = join_pieces(files.open);
    const auto found = std::find_if(tensors.begin(), tensors.end(), [](const auto& t) { return t.name() == "w"; });
    REQUIRE(found != tensors.end());
    REQUIRE(found->shape() == shape);
    REQUIRE(found->elems() == product(shape));
    CHECK(found->dtype() == (half ? "BF16" : "F32"));
    CHECK(found->pieces() == std::ssize(boxes));
    for (int reads = 0; reads < 10; ++reads) {
      const auto all = static_cast<uint64_t>(found->elems());
      const auto first = static_cast<int64_t>(reads == 0 ? 0 : random() % (all + 1));
      const auto count = static_cast<size_t>(reads == 0 ? all : random() % (all - static_cast<uint64_t>(first) + 1));
      std::vector<float> read(count, -1);
      found->read_floats(first, read);
      bool same = true;
      for (size_t i = 0; i < count; ++i) same = same && read[i] == value_of(first + static_cast<int64_t>(i));
      CHECK(same);
    }
  }
}

TEST_CASE("folder_tensor: a read opens no bytes of other pieces", "[checkpoint]") {
  Files files;
  const std::string whole = values(64, false);
  for (const Box& box : grid({{0, 3, 8}, {0, 8}})) {
    PieceFile file;
    file.add("w", "F32", box, cut(whole, {8, 8}, 4, box));
    files.add(file.bytes());
  }
  const std::vector<FolderTensor> tensors = join_pieces(files.open);
  std::filesystem::resize_file(files.open[1]->path(), 0);
  std::vector<float> read(24);
  tensors[0].read_floats(0, read);
  CHECK(read[23] == value_of(23));
  read.resize(25);
  CHECK_REFUSED(CheckpointError, tensors[0].read_floats(0, read), "shard-00002");
}

TEST_CASE("folder_tensor: pieces that do not fit together are refused with names and numbers", "[checkpoint]") {
  const auto refused = [](const std::vector<std::string>& contents, const std::string& a, const std::string& b) {
    Files files;
    for (const std::string& bytes : contents) files.add(bytes);
    CHECK_REFUSED(CheckpointError, join_pieces(files.open), a, b, "\"w\"");
  };
  const std::string top = one({{0, 0}, {4, 8}}), bottom = one({{4, 0}, {4, 8}});
  {
    Files files;
    files.add(bottom);
    files.add(top);
    CHECK(join_pieces(files.open)[0].elems() == 64);
  }
  refused({top, bottom, top}, "overlap: [0:4, 0:8] in", "and [0:4, 0:8] in");
  refused({top, one({{3, 0}, {5, 8}})}, "overlap: [0:4, 0:8] in", "and [3:8, 0:8] in");
  refused({one({{}, {}}), one({{}, {}})}, "overlap: [] in", "shard-00002");
  // The pieces have as many values as the shape, but do not hold each value once; or they are no neighbours by their
  // offsets.
  refused({top, one({{0, 0}, {3, 8}}), one({{7, 0}, {1, 8}})}, "overlap: [0:4, 0:8] in", "and [0:3, 0:8] in");
  refused({one({{0, 0}, {8, 4}}), one({{0, 4}, {4, 4}}), one({{4, 3}, {4, 5}})}, "overlap: [0:8, 0:4] in",
          "and [4:8, 3:8] in");
  refused({bottom}, "has 32 of 64 values of its shape [8, 8] in pieces from [4:8, 0:8] in", "(1). Copy");
  refused({top, one({{5, 0}, {3, 8}})}, "has 56 of 64 values of its shape [8, 8] in pieces from [0:4, 0:8] in",
          "(2). Copy");
  refused({top, one({{4, 1}, {4, 7}})}, "has 60 of 64 values", "Copy the files of all ranks");
  refused({one({{0, 0}, {4, 4}}), one({{4, 4}, {4, 4}})}, "has 32 of 64 values", "shard-00002");
  refused({top, one({{4}, {4}})}, "F32 with 1 dimensions, but F32 with 2", "shard-00002");
  refused({top, one({{4, 0}, {4, 8}}, "BF16")}, "BF16 with 2 dimensions, but F32 with 2", "shard-00002");
  refused({one({{0}, {4, 8}})}, "has 1 saved_offsets for 2 dimensions", "shard-00001");
  refused({one({{0, 0, 0}, {4, 8}})}, "has 3 saved_offsets for 2 dimensions", "shard-00001");

  // These offsets would overflow.
  constexpr int64_t kHuge = int64_t{1} << 62;
  Files empty;
  empty.add(one({{0, 0, 0}, {0, kHuge, 4}}));
  CHECK(join_pieces(empty.open)[0].shape() == std::vector<int64_t>{0, kHuge, 4});
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  refused({one({{0, kMost}, {4, 8}})}, "begins at 9223372036854775807 of dimension 1 and has 8 there", "64 bits");
  refused({one({{kMost - 4, 0}, {4, 8}})}, "the shape [9223372036854775807, 8]", "64 bits");
  refused({one({{kMost / 2, 4}, {1, 8}})}, "by its pieces, more elements than 64 bits", "12]");
  refused({one({{kMost - 4, 0}, {4, 1}})}, "has 4 of 9223372036854775807 values", "shard-00001");
}

TEST_CASE("folder_tensor: a file without valid offsets is refused", "[checkpoint]") {
  const auto refused = [](const std::string& metadata, const std::string& part) {
    INFO(metadata);
    PieceFile file;
    file.add_unplaced("w", "F32", {2}, "12345678");
    Files files;
    files.add(file.with_metadata(metadata));
    CHECK_REFUSED(CheckpointError, join_pieces(files.open), part, "shard-00001");
  };
  const auto places = [](const std::string& json) {
    std::string text;
    for (const char c : json) text += (c == '"' || c == '\\' ? "\\" : "") + std::string(1, c);
    return R"("DCP_SHARDING_INFO":")" + text + "\"";
  };
  refused(R"("a":"b")", "has no \"DCP_SHARDING_INFO\"");
  refused(places(""), "is empty");
  refused(places("[]"), "does not begin with {");
  refused(places(R"({"w":)"), "is not JSON");
  refused(places(R"({"w":{"saved_offsets":[0]},"w":{"saved_offsets":[0]}})"), "duplicate key");
  refused(places(std::string(200, '[')), "does not begin with {");
  refused(places("{\"w\":" + std::string(200, '[')), "deeper than 64");
  refused(places("{}"), "lacks the tensor \"w\"");
  refused(places(R"({"w":[0]})"), "has an array as the value of \"w\", need an object");
  refused(places(R"({"w":{}})"), "lacks the key \"saved_offsets\"");
  refused(places(R"({"w":{"saved_offsets":0}})"), "need an array");
  refused(places(R"({"w":{"saved_offsets":[-1]}})"), "has -1 in \"saved_offsets\"");
  refused(places(R"({"w":{"saved_offsets":[0.0]}})"), "has a real in \"saved_offsets\"");
  refused(places(R"({"w":{"saved_offsets":["0"]}})"), "has a string in \"saved_offsets\"");
  refused(places(R"({"w":{"saved_offsets":[9223372036854775808]}})"), "does not fit into 64 signed bits");
  refused(places(R"({"w":{"saved_offsets":[0]}})") + R"(,"DCP_VERSION":"2.0")", "DCP_VERSION = \"2.0\", need 1.0");
}

TEST_CASE("folder_tensor: a folder of pieces needs config.json, and whole weights come before pieces", "[checkpoint]") {
  const TempFolder folder;
  CHECK(!has_weights(folder.path()));
  put(folder / "shard-00001-model-00001-of-00001.safetensors.tmp", "x");
  put(folder / "model-shard-00001.safetensors", "x");
  CHECK(!has_weights(folder.path()));
  put(folder / piece_file_name(2), one({{4, 0}, {4, 8}}));
  put(folder / piece_file_name(1), one({{0, 0}, {4, 8}}));
  CHECK(has_weights(folder.path()));
  CHECK_REFUSED(CheckpointError, WeightsFolder(folder.path()), "has pieces of weights but no config.json", "Copy");
  put(folder / "config.json", "{}");
  const WeightsFolder weights(folder.path());
  REQUIRE(weights.find("w") != nullptr);
  CHECK(weights.in_pieces());
  CHECK(weights.find("w")->shape() == std::vector<int64_t>{8, 8});
  CHECK(weights.find("v") == nullptr);
  put(folder / "model.safetensors", one({{0}, {3}}));
  const WeightsFolder whole(folder.path());
  CHECK(!whole.in_pieces());
  CHECK(whole.find("w")->shape() == std::vector<int64_t>{3});
}
