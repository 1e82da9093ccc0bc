// SPDX-License-Identifier: Apache-2.0
// Muon against torch.optim.Muon, whose weights and momenta tests/golden/make_golden_muon.py stored.

#include <cstring>
#include <fstream>
#include <iterator>

#include "engine/base/json.h"
#include "kernels/muon/muon.h"
#include "tests/kernels/common/cases.h"
#include "tests/paths.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

std::string bytes_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Golden {
  Json json = Json::parse(bytes_of_file(golden_dir() + "/muon.json"));
  std::string data = bytes_of_file(golden_dir() + "/muon.bin");

  std::vector<float> floats(const Json& begin_elems, int64_t elems) const {
    std::vector<float> values(static_cast<size_t>(elems));
    REQUIRE(4 * static_cast<size_t>(begin_elems.as_int() + elems) <= data.size());
    std::memcpy(values.data(), data.data() + 4 * begin_elems.as_int(), 4 * values.size());
    return values;
  }
};

struct State {
  std::vector<float> parameters, momentum;
};

/// Runs the steps of `row` with our optimizer. `change` makes a mistake.
template <typename Change>
State train(const Golden& golden, const Json& row, DType product_dtype, const Change& change) {
  const int64_t rows = row.at("rows").as_int(), cols = row.at("cols").as_int(), elems = rows * cols;
  const double rate = row.at("learning_rate").as_double();
  State state{golden.floats(row.at("begin_elems"), elems), std::vector<float>(static_cast<size_t>(elems))};
  MuonScalars scalars{static_cast<float>(rate), static_cast<float>(1.0 - rate * row.at("weight_decay").as_double()), 1};
  LaunchContext context = context_of(1);
  for (const Json& gradient : row.at("gradients").as_array()) {
    const auto g = golden.floats(gradient, elems);
    Muon args = {
        .parameters = state.parameters.data(),
        .momentum = state.momentum.data(),
        .gradient = g.data(),
        .rows = rows,
        .cols = cols,
        .scalars = &scalars,
        .scaling = row.at("scaling").as_string() == "original" ? MuonScaling::original : MuonScaling::match_rms_adamw,
        .product_dtype = product_dtype,
        .mu = static_cast<float>(golden.json.at("momentum").as_double()),
        .nesterov = row.at("nesterov").as_bool()};
    change(args, scalars);
    std::vector<double> workspace(static_cast<size_t>(muon_workspace_bytes(args)) / sizeof(double));
    args.workspace = workspace.data(), args.workspace_bytes = muon_workspace_bytes(args);
    muon(context, args);
  }
  return state;
}

const auto kNoChange = [](Muon&, MuonScalars&) {};

/// The largest difference of the weights, relative to the largest change of a weight.
double update_error(const std::vector<float>& got, const std::vector<float>& want, const std::vector<float>& start) {
  double difference = 0.0, change = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference = std::max(difference, std::abs(as_double(got[i]) - as_double(want[i])));
    change = std::max(change, std::abs(as_double(want[i]) - as_double(start[i])));
  }
  return difference / change;
}

// Our weights and those of the file are stored as float, 2.3e-5 of the update apart. Products in bfloat16 move
// PyTorch's weights by up to 2.1e-2 of the update.
constexpr double kFloatTolerance = 5e-5, kBfloat16Tolerance = 4e-2;

}  // namespace

TEST_CASE("muon: float products equal torch.optim.Muon in float64, and as it is within bfloat16's rounding") {
  const Golden golden;
  REQUIRE(golden.json.at("cases").as_array().size() == 6);
  for (const Json& row : golden.json.at("cases").as_array()) {
    const int64_t elems = row.at("rows").as_int() * row.at("cols").as_int();
    CAPTURE(row.at("rows").as_int(), row.at("cols").as_int(), row.at("scaling").as_string());
    const auto start = golden.floats(row.at("begin_elems"), elems);
    const State exact = train(golden, row, DType::f32, kNoChange);
    CHECK(update_error(exact.parameters, golden.floats(row.at("float64"), elems), start) < kFloatTolerance);
    CHECK(update_error(exact.parameters, golden.floats(row.at("bfloat16"), elems), start) < kBfloat16Tolerance);
    const auto momentum = golden.floats(row.at("momentum"), elems);
    CHECK(relative_error(exact.momentum, [&](int64_t i) { return as_double(momentum[static_cast<size_t>(i)]); }) <
          1e-6);
    const State rounded = train(golden, row, DType::bf16, kNoChange);
    CHECK(update_error(rounded.parameters, golden.floats(row.at("bfloat16"), elems), start) < kBfloat16Tolerance);
    CHECK(same_bits(rounded.momentum, exact.momentum));
  }
}

TEST_CASE("muon: the tolerance sees another momentum, scaling, decay, number of steps and a forgotten Nesterov") {
  const Golden golden;
  const Json& row = golden.json.at("cases").as_array()[2];  // 24 x 8, every setting in use
  const int64_t elems = row.at("rows").as_int() * row.at("cols").as_int();
  const auto start = golden.floats(row.at("begin_elems"), elems), want = golden.floats(row.at("float64"), elems);
  const auto error = [&](const auto& change) {
    return update_error(train(golden, row, DType::f32, change).parameters, want, start);
  };
  CHECK(error([](Muon& args, MuonScalars&) { args.mu = 0.94f; }) > kFloatTolerance);
  CHECK(error([](Muon& args, MuonScalars&) { args.scaling = MuonScaling::match_rms_adamw; }) > kFloatTolerance);
  CHECK(error([](Muon& args, MuonScalars&) { args.steps = 4; }) > kFloatTolerance);
  CHECK(error([](Muon& args, MuonScalars&) { args.nesterov = false; }) > kFloatTolerance);
  CHECK(error([](Muon&, MuonScalars& scalars) { scalars.decay = 1.0f; }) > kFloatTolerance);
}
