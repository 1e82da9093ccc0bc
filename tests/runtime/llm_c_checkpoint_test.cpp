// SPDX-License-Identifier: Apache-2.0
// Checkpoints of llm.c: every element arrives at its place in the Hugging Face format, and damaged files are refused.

#include <cstring>

#include "engine/base/dtype.h"
#include "engine/checkpoint/weights_folder.h"
#include "tests/engine/data/disk.h"
#include "tests/test.hpp"
#include "trainer/runtime/weights/convert.h"

using namespace slipstream;
using namespace slipstream::tests;

namespace {

constexpr int kContext = 5, kVocab = 7, kLayers = 2, kHeads = 2, kWidth = 4, kPadded = 8;

/// The value of an element of llm.c: a different one for every tensor, layer, output and input; exact in bfloat16.
float value_of(int tensor, int layer, int out, int in) {
  return static_cast<float>((tensor * 31 + layer * 7 + out * 17 + in * 3) % 251) - 100;
}

std::string file_of(int version, std::vector<int32_t> sizes = {kContext, kVocab, kLayers, kHeads, kWidth, kPadded}) {
  std::vector<int32_t> header(256);
  header[0] = 20240326;
  header[1] = version;
  std::copy(sizes.begin(), sizes.end(), header.begin() + 2);
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  const auto put = [&](float value) {
    const bfloat16 rounded(value);
    if (version == 3)
      bytes.append(reinterpret_cast<const char*>(&value), 4);
    else
      bytes.append(reinterpret_cast<const char*>(&rounded), 2);
  };
  int tensor = 0;
  const auto add = [&](int layers, int rows, int columns) {
    for (int layer = 0; layer < layers; ++layer)
      for (int out = 0; out < rows; ++out)
        for (int in = 0; in < columns; ++in) put(value_of(tensor, layer, out, in));
    ++tensor;
  };
  add(1, kPadded, kWidth);
  add(1, kContext, kWidth);
  for (const auto& [rows, columns] : std::vector<std::pair<int, int>>{{kWidth, 1},
                                                                      {kWidth, 1},
                                                                      {3 * kWidth, kWidth},
                                                                      {3 * kWidth, 1},
                                                                      {kWidth, kWidth},
                                                                      {kWidth, 1},
                                                                      {kWidth, 1},
                                                                      {kWidth, 1},
                                                                      {4 * kWidth, kWidth},
                                                                      {4 * kWidth, 1},
                                                                      {kWidth, 4 * kWidth},
                                                                      {kWidth, 1}})
    add(kLayers, rows, columns);
  add(1, kWidth, 1);
  add(1, kWidth, 1);
  return bytes;
}

}  // namespace

TEST_CASE("llm.c: every element of a checkpoint arrives in the Hugging Face format", "[runtime]") {
  const TempFolder folder;
  struct Expected {
    const char* name;
    int tensor, rows, columns;  // of llm.c; 0 columns: a vector
    bool transposed;
  };
  const Expected of_layer[] = {{"ln_1.weight", 2, kWidth, 0, false},
                               {"ln_1.bias", 3, kWidth, 0, false},
                               {"attn.c_attn.weight", 4, 3 * kWidth, kWidth, true},
                               {"attn.c_attn.bias", 5, 3 * kWidth, 0, false},
                               {"attn.c_proj.weight", 6, kWidth, kWidth, true},
                               {"attn.c_proj.bias", 7, kWidth, 0, false},
                               {"ln_2.weight", 8, kWidth, 0, false},
                               {"ln_2.bias", 9, kWidth, 0, false},
                               {"mlp.c_fc.weight", 10, 4 * kWidth, kWidth, true},
                               {"mlp.c_fc.bias", 11, 4 * kWidth, 0, false},
                               {"mlp.c_proj.weight", 12, kWidth, 4 * kWidth, true},
                               {"mlp.c_proj.bias", 13, kWidth, 0, false}};
  for (const int version : {3, 5}) {
    put(folder / "gpt2.bin", file_of(version));
    const auto summary = runtime::convert({.from = folder / "gpt2.bin", .to = folder / "out"});
    CHECK(summary.dtype == (version == 3 ? "float32" : "bfloat16"));
    CHECK(summary.tensors == 4 + 12 * kLayers);
    const checkpoint::WeightsFolder out(folder / "out");
    const auto check = [&](const std::string& name, const Expected& e, int layer) {
      INFO(name);
      const checkpoint::FolderTensor* found = out.find("transformer." + name);
      REQUIRE(found != nullptr);
      const std::vector<int64_t> shape = e.columns == 0 ? std::vector<int64_t>{e.rows}
                                         : e.transposed ? std::vector<int64_t>{e.columns, e.rows}
                                                        : std::vector<int64_t>{e.rows, e.columns};
      REQUIRE(found->shape() == shape);
      std::vector<float> values(static_cast<size_t>(found->elems()));
      found->read_floats(0, values);
      bool same = true;
      for (int out_index = 0; out_index < e.rows; ++out_index)
        for (int in = 0; in < std::max(1, e.columns); ++in) {
          const int at = e.transposed ? in * e.rows + out_index : out_index * std::max(1, e.columns) + in;
          same &= values[static_cast<size_t>(at)] == value_of(e.tensor, layer, out_index, in);
        }
      CHECK(same);
    };
    check("wte.weight", {"", 0, kVocab, kWidth, false}, 0);
    check("wpe.weight", {"", 1, kContext, kWidth, false}, 0);
    for (int layer = 0; layer < kLayers; ++layer)
      for (const Expected& e : of_layer) check("h." + std::to_string(layer) + "." + e.name, e, layer);
    check("ln_f.weight", {"", 14, kWidth, 0, false}, 0);
    check("ln_f.bias", {"", 15, kWidth, 0, false}, 0);
    CHECK(out.config().at("n_head").as_int() == kHeads);
    CHECK(out.config().at("vocab_size").as_int() == kVocab);
    // The folder is a model: it converts again to the same bytes.
    runtime::convert({.from = folder / "out", .to = folder / "again"});
    CHECK(bytes_in(folder / "again/model.safetensors") == bytes_in(folder / "out/model.safetensors"));
  }
}

TEST_CASE("llm.c: other files and wrong sizes are refused with the numbers", "[runtime]") {
  const TempFolder folder;
  const auto refusal = [&](const std::string& bytes) {
    put(folder / "x.bin", bytes);
    return sentence<CheckpointError>([&] { runtime::convert({.from = folder / "x.bin", .to = folder / "out"}); });
  };
  const std::string good = file_of(3);
  CHECK_THAT(refusal(""), Catch::Contains("has 0 bytes, need the header of llm.c of 1024"));
  CHECK_THAT(refusal("x" + good.substr(1)), Catch::Contains("need 20240326 and 3 (float32) or 5 (bfloat16)"));
  CHECK_THAT(refusal(file_of(1)), Catch::Contains("the numbers 20240326 and 1"));
  CHECK_THAT(refusal(good.substr(0, good.size() - 1)), Catch::Contains("elements of 4 bytes for its sizes"));
  CHECK_THAT(refusal(good + "abcd"), Catch::Contains("was truncated or replaced"));
  CHECK_THAT(refusal(file_of(3, {kContext, kVocab, kLayers, 3, kWidth, kPadded})),
             Catch::Contains("heads = 3, need a divisor of width = 4"));
  CHECK_THAT(refusal(file_of(3, {0, kVocab, kLayers, kHeads, kWidth, kPadded})), Catch::Contains("context = 0"));
  CHECK_THAT(refusal(file_of(3, {kContext, kVocab, -2, kHeads, kWidth, kPadded})), Catch::Contains("layers = -2"));
  CHECK_THAT(refusal(file_of(3, {kContext, kVocab, 65536, kHeads, 1 << 20, kPadded})),
             Catch::Contains("need 864692021824061440 elements"));
  CHECK_THAT(refusal(file_of(3, {kContext, kVocab, kLayers, kHeads, kWidth, 6})),
             Catch::Contains("padded_vocab_size = 6, need 7"));
}
