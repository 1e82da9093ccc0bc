// SPDX-License-Identifier: Apache-2.0
// Muon against double over several steps, and the singular values of its orthogonalized matrices.

#include "kernels/muon/muon.h"

#include <Eigen/Dense>
#include <array>

#include "engine/base/check.h"
#include "kernels/muon/muon_passes.h"
#include "tests/kernels/common/backend.h"
#include "tests/kernels/common/cases.h"
#include "tests/reference/optimizer.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

constexpr float kRate = 1e-2f, kDecay = 0.1f, kClip = 0.5f, kMu = 0.95f, kEps = 1e-7f;
constexpr int kSteps = 3;
constexpr std::array<std::array<int64_t, 2>, 11> kShapes = {
    {{1, 1}, {1, 7}, {7, 1}, {13, 13}, {16, 16}, {17, 61}, {61, 17}, {64, 64}, {3, 1031}, {1031, 3}, {96, 64}}};

// Of the largest change of a parameter. Weights near 1 that move by 1e-3 are stored to 3e-8: 3e-5 in three steps.
constexpr double kFloatTolerance = 5e-5, kBfloat16Tolerance = 5e-2;

/// Of step `t`. Muon does not see a factor that is the same in all steps.
float clip_of(int t) { return t == 2 ? kClip : 1.0f; }

MuonScalars scalars_of(int t) { return {kRate, 1.0f - kRate * kDecay, clip_of(t)}; }

std::vector<float> gradient(int64_t elems, int t) { return random<float>(elems, "g" + std::to_string(t)); }

struct State {
  State(int64_t rows_, int64_t cols_)
      : rows(rows_),
        cols(cols_),
        p(random<float>(rows * cols, "p")),
        m(static_cast<size_t>(rows * cols)),
        working(static_cast<size_t>(rows * cols)) {}
  int64_t rows, cols;
  std::vector<float> p, m;
  std::vector<bfloat16> working;
  std::vector<std::byte> workspace;

  /// Guard bytes follow the workspace.
  Muon args(const std::vector<float>& g, const MuonScalars& s, DType product_dtype = DType::f32) {
    Muon args = {.parameters = p.data(),
                 .momentum = m.data(),
                 .gradient = g.data(),
                 .working = working.data(),
                 .rows = rows,
                 .cols = cols,
                 .scalars = &s,
                 .product_dtype = product_dtype};
    args.workspace_bytes = muon_workspace_bytes(args);
    workspace.assign(static_cast<size_t>(args.workspace_bytes) + 64, std::byte{0x7f});
    args.workspace = workspace.data();
    return args;
  }
  bool workspace_intact() const {
    return std::all_of(workspace.end() - 64, workspace.end(), [](std::byte b) { return b == std::byte{0x7f}; });
  }
};

template <typename Change>
State run(LaunchContext& context, int64_t rows, int64_t cols, DType product_dtype, const Change& change) {
  State state(rows, cols);
  for (int t = 1; t <= kSteps; ++t) {
    const auto g = gradient(rows * cols, t);
    const auto given = g;
    const MuonScalars s = scalars_of(t);
    Muon args = state.args(g, s, product_dtype);
    change(args);
    muon(context, args);
    CHECK(same_bits(g, given));
    CHECK(state.workspace_intact());
  }
  return state;
}
State run(LaunchContext& context, int64_t rows, int64_t cols, DType product_dtype = DType::f32) {
  return run(context, rows, cols, product_dtype, [](Muon&) {});
}

/// Parameters after kSteps steps in double.
std::vector<double> expected(int64_t rows, int64_t cols, bool nesterov = true, double scale = 0.0) {
  const double largest = static_cast<double>(std::max(rows, cols));
  const reference::MuonRule rule = {
      kRate, kDecay, kMu, nesterov, 5, kEps, scale > 0.0 ? scale : 0.2 * std::sqrt(largest)};
  const auto start = random<float>(rows * cols, "p");
  reference::MuonState state{{start.begin(), start.end()}, std::vector<double>(start.size())};
  for (int t = 1; t <= kSteps; ++t) {
    const auto g = gradient(rows * cols, t);
    std::vector<double> clipped;
    for (float element : g) clipped.push_back(double{clip_of(t)} * as_double(element));
    state = muon_step(std::move(state), clipped, static_cast<size_t>(rows), static_cast<size_t>(cols), rule);
  }
  return state.p;
}

/// Largest difference over the largest change of a parameter.
double update_error(const State& state, const std::vector<double>& want) {
  const auto start = random<float>(state.rows * state.cols, "p");
  double difference = 0.0, change = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!std::isfinite(state.p[i])) return INFINITY;
    difference = std::max(difference, std::abs(as_double(state.p[i]) - want[i]));
    change = std::max(change, std::abs(want[i] - as_double(start[i])));
  }
  return difference / change;
}

/// The X of the card: with no decay, parameters at 0 and a rate of -1 / scale it becomes the parameters.
std::vector<float> orthogonalized(LaunchContext& context, int64_t rows, int64_t cols, const std::vector<float>& g,
                                  DType product_dtype) {
  State state(rows, cols);
  std::fill(state.p.begin(), state.p.end(), 0.0f);
  const MuonScalars s{static_cast<float>(-1.0 / muon_scale(MuonScaling::original, rows, cols)), 1.0f, 1.0f};
  Muon args = state.args(g, s, product_dtype);
  args.scaling = MuonScaling::original;
  muon(context, args);
  return state.p;
}

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
Matrix matrix_of(const std::vector<float>& values, int64_t rows, int64_t cols) {
  return Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>(values.data(), rows,
                                                                                                 cols)
      .cast<double>();
}

double newton_schulz(double value) {
  for (int step = 0; step < 5; ++step)
    value = 3.4445 * value - 4.7750 * std::pow(value, 3) + 2.0315 * std::pow(value, 5);
  return value;
}

}  // namespace

TEST_CASE("muon: three steps equal the double optimizer at 1, 2 and 3 threads, the bf16 copy is the rounded result",
          "[.][cpu]") {
  for (const auto& [rows, cols] : kShapes) {
    const auto want = expected(rows, cols);
    for (int threads : {1, 2, 3}) {
      CAPTURE(rows, cols, threads);
      LaunchContext context = context_of(threads);
      const State state = run(context, rows, cols);
      CHECK(update_error(state, want) < kFloatTolerance);
      for (size_t i = 0; i < state.p.size(); ++i) REQUIRE(state.working[i].bits == bfloat16(state.p[i]).bits);
      CHECK(update_error(run(context, rows, cols, DType::bf16), want) < kBfloat16Tolerance);
    }
  }
}

TEST_CASE("muon: both scalings and plain momentum equal the double optimizer", "[.][cpu]") {
  LaunchContext context = context_of(1);
  for (const auto& [rows, cols] : kShapes) {
    CAPTURE(rows, cols);
    const double original = std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(cols)));
    CHECK(update_error(run(context, rows, cols, DType::f32, [](Muon& args) { args.scaling = MuonScaling::original; }),
                       expected(rows, cols, true, original)) < kFloatTolerance);
    CHECK(update_error(run(context, rows, cols, DType::f32, [](Muon& args) { args.nesterov = false; }),
                       expected(rows, cols, false)) < kFloatTolerance);
  }
}

TEST_CASE("muon: the tolerance sees a coefficient, the clip, the decay, momentum and Nesterov", "[.][cpu]") {
  LaunchContext context = context_of(1);
  const auto want = expected(61, 17);
  const auto error = [&](const auto& change) { return update_error(run(context, 61, 17, DType::f32, change), want); };
  CHECK(error([](Muon& args) { args.a = 3.44f; }) > kFloatTolerance);
  CHECK(error([](Muon& args) { args.b = -4.78f; }) > kFloatTolerance);
  CHECK(error([](Muon& args) { args.c = 2.03f; }) > kFloatTolerance);
  CHECK(error([](Muon& args) { args.mu = 0.949f; }) > kFloatTolerance);
  CHECK(error([](Muon& args) { args.nesterov = false; }) > kFloatTolerance);
  const MuonScalars no_clip{kRate, 1.0f - kRate * kDecay, 1.0f}, no_decay{kRate, 1.0f, kClip};
  CHECK(error([&](Muon& args) { args.scalars = &no_clip; }) > kFloatTolerance);
  CHECK(error([&](Muon& args) { args.scalars = args.scalars->clip == kClip ? &no_decay : args.scalars; }) >
        kFloatTolerance);
}

TEST_CASE("muon: singular vectors stay, and five steps of the polynomial move the singular values into [0.68, 1.21]",
          "[.][cpu]") {
  LaunchContext context = context_of(2);
  for (const auto& [rows, cols] : std::vector<std::array<int64_t, 2>>{{16, 48}, {48, 16}, {37, 101}, {64, 24}, {9, 9}})
    for (DType product_dtype : {DType::f32, DType::bf16}) {
      CAPTURE(rows, cols, name_of(product_dtype));
      const auto g = random<float>(rows * cols, "well-conditioned");
      const Matrix u = matrix_of(g, rows, cols);
      const Matrix x = matrix_of(orthogonalized(context, rows, cols, g, product_dtype), rows, cols);
      const Eigen::JacobiSVD<Matrix> svd(u, Eigen::ComputeThinU | Eigen::ComputeThinV);
      REQUIRE(svd.singularValues().minCoeff() > 0.005 * u.norm());
      Eigen::VectorXd moved = svd.singularValues() / u.norm();
      for (double& value : moved) value = newton_schulz(value);
      const Matrix want = svd.matrixU() * moved.asDiagonal() * svd.matrixV().transpose();
      const bool exact = product_dtype == DType::f32;
      CHECK((x - want).cwiseAbs().maxCoeff() < (exact ? 1e-5 : 5e-2) * want.cwiseAbs().maxCoeff());
      const Eigen::VectorXd values = Eigen::JacobiSVD<Matrix>(x).singularValues();
      CHECK(values.minCoeff() > (exact ? 0.68 : 0.66));
      CHECK(values.maxCoeff() < (exact ? 1.21 : 1.23));
    }
}

TEST_CASE("muon: a gradient of zero moves nothing but the decay, one of 1e-30 stays finite, and NaN is not hidden",
          "[.][cpu]") {
  LaunchContext context = context_of(1);
  for (DType product_dtype : {DType::f32, DType::bf16})
    for (const auto& [rows, cols] : std::vector<std::array<int64_t, 2>>{{5, 9}, {9, 5}}) {
      State state(rows, cols);
      const auto start = state.p;
      const MuonScalars s = scalars_of(1);
      std::vector<float> g(start.size(), 0.0f);
      muon(context, state.args(g, s, product_dtype));
      for (size_t i = 0; i < start.size(); ++i) REQUIRE(state.p[i] == start[i] * s.decay);
      std::fill(g.begin(), g.end(), 1e-30f);
      muon(context, state.args(g, s, product_dtype));
      for (float p : state.p) REQUIRE(std::isfinite(p));
      g[3] = NAN;
      muon(context, state.args(g, s, product_dtype));
      CHECK(std::any_of(state.p.begin(), state.p.end(), [](float p) { return std::isnan(p); }));
    }
}

TEST_CASE("muon: `updated` gets the bits that the parameters get in place, and the parameters stay", "[.][cpu]") {
  LaunchContext context = context_of(2);
  State in_place(17, 61), apart(17, 61);
  const auto g = gradient(17 * 61, 1);
  const MuonScalars s = scalars_of(1);
  muon(context, in_place.args(g, s));
  std::vector<float> updated(g.size(), 7.0f);
  const auto start = apart.p;
  Muon args = apart.args(g, s);
  args.updated = updated.data();
  muon(context, args);
  CHECK(same_bits(apart.p, start));
  CHECK(same_bits(updated, in_place.p));
  CHECK(same_bits(apart.working, in_place.working));
  CHECK(same_bits(apart.m, in_place.m));
}

TEST_CASE("muon: equal calls give equal bits with any previous content of the workspace", "[.][cpu]") {
  for (int threads : {1, 2, 3})
    for (DType product_dtype : {DType::f32, DType::bf16}) {
      LaunchContext context = context_of(threads);
      const State first = run(context, 61, 67, product_dtype);
      const State second = run(context, 61, 67, product_dtype, [](Muon& args) {
        std::memset(args.workspace, 0xff, static_cast<size_t>(args.workspace_bytes));
      });
      CHECK(same_bits(first.p, second.p));
      CHECK(same_bits(first.m, second.m));
    }
}

TEST_CASE("muon: element-wise passes give the same bits at any number of threads and the double result on every set",
          "[.][cpu]") {
  constexpr int64_t kElems = 20011, kSide = 141;
  const auto g = random<float>(kElems, "g"), p = random<float>(kElems, "p");
  const MuonScalars s{kRate, 0.9f, kClip};
  const double sum = 4.0;
  for (DType dtype : {DType::f32, DType::bf16})
    for (Isa isa : isas()) {
      std::vector<std::vector<float>> all[4];
      for (int threads : {1, 2, 3}) {
        CAPTURE(name_of(dtype), name_of(isa), threads);
        LaunchContext context = context_of(threads);
        std::vector<float> m = p, u(g.size()), x(g.size()), square = random<float>(kElems, "square"), updated(g.size());
        std::vector<bfloat16> x16(g.size()), gram16 = random<bfloat16>(kElems, "gram"),
                                             square16 = random<bfloat16>(kElems, "square");
        const auto gram = random<float>(kElems, "gram"), given = square;
        const bool wide = dtype == DType::f32;
        void* to = wide ? static_cast<void*>(x.data()) : x16.data();
        SLIP_CALL_ON(isa, muon_momentum_cpu(context, {g.data(), m.data(), u.data(), kElems, &s, kMu, true}));
        SLIP_CALL_ON(isa, muon_normalize_cpu(context, {u.data(), &sum, to, kElems, kEps, dtype}));
        SLIP_CALL_ON(isa, muon_polynomial_cpu(context, {wide ? static_cast<const void*>(gram.data()) : gram16.data(),
                                                        wide ? static_cast<void*>(square.data()) : square16.data(),
                                                        kSide, 3.5f, -4.5f, 2.0f, dtype}));
        SLIP_CALL_ON(isa, muon_step_cpu(context, {p.data(), updated.data(), nullptr, to, kElems, &s, 2.0f, dtype}));
        if (!wide) {
          const auto widen = [](bfloat16 value) { return static_cast<float>(value); };
          std::transform(x16.begin(), x16.end(), x.begin(), widen);
          std::transform(square16.begin(), square16.end(), square.begin(), widen);
        }
        const double rounding = wide ? 1e-6 : 0x1p-8;
        const double mu = kMu, rest = 1.0 - mu;
        CHECK(relative_error(m, [&](int64_t i) {
                return mu * as_double(p[static_cast<size_t>(i)]) + rest * 0.5 * as_double(g[static_cast<size_t>(i)]);
              }) < 1e-6);
        CHECK(relative_error(u, [&](int64_t i) {
                const auto at = static_cast<size_t>(i);
                return mu * as_double(m[at]) + rest * 0.5 * as_double(g[at]);
              }) < 1e-6);
        CHECK(relative_error(x, [&](int64_t i) { return as_double(u[static_cast<size_t>(i)]) / 2.0; }) < rounding);
        CHECK(relative_error(updated, [&](int64_t i) {
                const auto at = static_cast<size_t>(i);
                return 0.9 * as_double(p[at]) - 2e-2 * as_double(x[at]);
              }) < 1e-6);
        CHECK(relative_error(square, [&](int64_t i) {
                const auto at = static_cast<size_t>(i);
                const double before = wide ? as_double(given[at]) : as_double(bfloat16(given[at]));
                const double entry = wide ? as_double(gram[at]) : as_double(gram16[at]);
                if (i >= kSide * kSide) return before;
                return -4.5 * entry + 2.0 * before + (i / kSide == i % kSide ? 3.5 : 0.0);
              }) < rounding);
        all[threads] = {m, u, x, square, updated};
      }
      for (int threads : {2, 3})
        for (size_t i = 0; i < all[1].size(); ++i) CHECK(same_bits(all[1][i], all[threads][i]));
    }
}

TEST_CASE("muon: a missing operand, a small workspace, a dtype without products and an unknown device are refused",
          "[.][cpu]") {
  LaunchContext context = context_of(1);
  State state(4, 6);
  const auto g = gradient(24, 1);
  const MuonScalars s = scalars_of(1);
  for (float* Muon::*operand : {&Muon::parameters, &Muon::momentum}) {
    Muon args = state.args(g, s);
    args.*operand = nullptr;
    CHECK_THROWS_AS(muon(context, args), ShapeError);
  }
  Muon args = state.args(g, s);
  args.workspace_bytes -= 1;
  CHECK_THROWS_AS(muon(context, args), ShapeError);
  args = state.args(g, s);
  args.product_dtype = DType::f64;
  CHECK_THROWS_AS(muon(context, args), ShapeError);
  args = state.args(g, s);
  args.steps = -1;
  CHECK_THROWS_AS(muon(context, args), ShapeError);
  CHECK_NOTHROW(muon(context, {.rows = 0, .cols = 5}));
  CHECK_NOTHROW(muon(context, {.rows = 5, .cols = 0}));
  CHECK_THROWS_AS(muon(context, {.rows = -1, .cols = 5}), ShapeError);
  context.kind = DeviceKind::sim;
  CHECK_THROWS_AS(muon(context, state.args(g, s)), ResourceError);
}

TEST_CASE("muon: the cost is that of the card, the same for a matrix and its transposed in float", "[.][cpu]") {
  const int64_t n = 30, k = 5;
  const Cost wide = muon_cost({.rows = 5, .cols = 6});
  CHECK(wide.flops == 11 * n + 5 * (4 * k * n + 2 * k * k * k + 3 * k * k));
  CHECK(wide.bytes == 40 * n + 5 * 4 * (3 * n + 7 * k * k));
  const Cost tall = muon_cost({.rows = 6, .cols = 5});
  CHECK((tall.flops == wide.flops && tall.bytes == wide.bytes));
  bfloat16 working;
  CHECK(muon_cost({.working = &working, .rows = 6, .cols = 5, .product_dtype = DType::bf16}).bytes ==
        38 * n + 5 * (2 * (3 * n + 7 * k * k) + 8 * k * k));
  CHECK(muon_cost({.rows = 5, .cols = 6, .steps = 0}).flops == 11 * n);
}

TEST_CASE("muon: three steps equal the double optimizer for wide, tall and square matrices, aligned or not", "[cuda]") {
  for (const auto& [rows, cols] : std::vector<std::array<int64_t, 2>>{
           {1, 1}, {1, 9}, {9, 1}, {8, 8}, {13, 13}, {16, 40}, {40, 16}, {3, 20}, {20, 2}, {7, 131}, {67, 33}})
    for (DType product_dtype : {DType::f32, DType::bf16})
      for (int64_t shift : {0, 1}) {
        CAPTURE(rows, cols, name_of(product_dtype), shift);
        const int64_t elems = rows * cols;
        const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, cols)));
        const reference::MuonRule rule = {0.1, 0.1, 0.95, true, 5, 1e-7, scale};
        const Doubles start = random_doubles(elems, DType::f32, 1);
        reference::MuonState state{start, Doubles(start.size())};
        for (int t = 1; t <= 3; ++t) {
          Doubles g = random_doubles(elems, DType::f32, static_cast<uint32_t>(10 + t));
          for (double& element : g) element *= t == 2 ? 0.5 : 1.0;
          state = muon_step(std::move(state), g, static_cast<size_t>(rows), static_cast<size_t>(cols), rule);
        }
        for_machines([&](LaunchContext& context) {
          OnDevice p(start, DType::f32, "parameters", shift), m(Doubles(start.size()), DType::f32, "momentum", shift);
          OnDevice working(elems, DType::bf16, "working", shift);
          Muon args = {.parameters = p.data<float>(),
                       .momentum = m.data<float>(),
                       .working = working.data<bfloat16>(),
                       .rows = rows,
                       .cols = cols,
                       .product_dtype = product_dtype};
          args.workspace_bytes = muon_workspace_bytes(args);
          OnDevice workspace(args.workspace_bytes, DType::u8, "workspace");
          args.workspace = workspace.data();
          for (int t = 1; t <= 3; ++t) {
            OnDevice g(random_doubles(elems, DType::f32, static_cast<uint32_t>(10 + t)), DType::f32, "gradient", shift);
            OnDevice scalars(Doubles{0.1, 0.99, t == 2 ? 0.5 : 1.0}, DType::f32, "scalars");
            args.gradient = g.data<float>(), args.scalars = scalars.data<MuonScalars>();
            muon(context, args);
          }
          Doubles change, want;
          const Doubles got = p.doubles();
          for (size_t i = 0; i < got.size(); ++i) {
            change.push_back(got[i] - start[i]);
            want.push_back(state.p[i] - start[i]);
          }
          CHECK(error_of(change, want) < (product_dtype == DType::f32 ? 5e-5 : 5e-2));
          CHECK(working.doubles() == Tensor(got, DType::bf16).doubles());
          CHECK((p.intact() && m.intact() && working.intact() && workspace.intact()));
        });
      }
}

TEST_CASE("muon: a gradient of zero moves nothing but the decay, exactly") {
  LaunchContext context = a_context();
  for (const auto& [rows, cols] : std::vector<std::array<int64_t, 2>>{{5, 9}, {9, 5}}) {
    const Doubles start = random_doubles(rows * cols, DType::f32, 1);
    OnDevice p(start, DType::f32, "parameters"), m(Doubles(start.size()), DType::f32, "momentum"),
        g(Doubles(start.size()), DType::f32, "gradient"), scalars(Doubles{1e-2, 0.5, 1.0}, DType::f32, "scalars");
    Muon args = {.parameters = p.data<float>(),
                 .momentum = m.data<float>(),
                 .gradient = g.data<float>(),
                 .rows = rows,
                 .cols = cols,
                 .scalars = scalars.data<MuonScalars>()};
    args.workspace_bytes = muon_workspace_bytes(args);
    OnDevice workspace(args.workspace_bytes, DType::u8, "workspace");
    args.workspace = workspace.data();
    muon(context, args);
    Doubles want = start;
    for (double& element : want) element *= 0.5;
    CHECK(p.doubles() == want);
  }
}

TEST_CASE("muon: a skipped step keeps parameters and momentum, and copies the parameters") {
  LaunchContext context = a_context();
  for (const auto& [rows, cols] : std::vector<std::array<int64_t, 2>>{{5, 9}, {9, 5}, {17, 61}})
    for (DType product_dtype : {DType::f32, DType::bf16}) {
      const Doubles start = random_doubles(rows * cols, DType::f32, 1),
                    moment = random_doubles(rows * cols, DType::f32, 2);
      OnDevice p(start, DType::f32, "parameters"), m(moment, DType::f32, "momentum"),
          g(Doubles(start.size(), NAN), DType::f32, "gradient"),
          scalars(Doubles{1e-2, 0.5, -1.0}, DType::f32, "scalars"), updated(rows * cols, DType::f32, "updated"),
          working(rows * cols, DType::bf16, "working");
      Muon args = {.parameters = p.data<float>(),
                   .momentum = m.data<float>(),
                   .gradient = g.data<float>(),
                   .working = working.data<bfloat16>(),
                   .rows = rows,
                   .cols = cols,
                   .scalars = scalars.data<MuonScalars>(),
                   .product_dtype = product_dtype};
      args.workspace_bytes = muon_workspace_bytes(args);
      OnDevice workspace(args.workspace_bytes, DType::u8, "workspace");
      args.workspace = workspace.data();
      muon(context, args);
      args.updated = updated.data<float>();
      muon(context, args);
      CHECK(p.doubles() == start);
      CHECK(m.doubles() == moment);
      CHECK(updated.doubles() == start);
      CHECK(working.doubles() == Tensor(start, DType::bf16).doubles());
    }
}
