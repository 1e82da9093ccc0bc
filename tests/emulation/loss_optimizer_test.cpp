// SPDX-License-Identifier: Apache-2.0
// Cross-entropy, AdamW, Muon and the sum of squares on the emulated device against double and the CPU's bits.

#include <limits>

#include "kernels/adamw/adamw.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/cross_entropy/sharded_cross_entropy.h"
#include "kernels/muon/muon.h"
#include "kernels/step_scalars/step_scalars.h"
#include "kernels/sum_squares/sum_squares.h"
#include "tests/emulation/on_device.h"
#include "tests/reference/elementwise.h"
#include "tests/reference/loss.h"
#include "tests/reference/optimizer.h"
#include "tests/sample.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

constexpr float kScale = 0.25f;

struct Losses {
  double sum = 0.0;
  Doubles rows, gradient;
};

Losses expected(const Doubles& logits, const std::vector<int32_t>& targets, int64_t vocab, int64_t stride) {
  Losses result;
  for (size_t r = 0; r < targets.size(); ++r) {
    const auto begin = logits.begin() + static_cast<int64_t>(r) * stride;
    const Doubles row(begin, begin + vocab);
    result.rows.push_back(reference::row_loss(row, targets[r]));
    result.sum += result.rows.back();
    Doubles gradient = reference::row_gradient(row, targets[r]);
    gradient.resize(static_cast<size_t>(stride), 0.0);
    for (double element : gradient) result.gradient.push_back(kScale * element);
  }
  return result;
}

struct Sum {
  emulation::DeviceMemory memory{8, "sum"};
  double* data() const { return reinterpret_cast<double*>(memory.data()); }
  double value() const {
    double value = 0;
    host_access.read(&value, data(), sizeof value);
    return value;
  }
  void set(double value) { host_access.write(data(), &value, sizeof value); }
};

/// The same values in the host's and in the device's memory.
template <typename T>
class Numbers {
 public:
  explicit Numbers(const std::vector<T>& values) : host_(values), device_(8 + values.size() * sizeof(T), "numbers") {
    host_access.write(device_.data(), host_.data(), host_.size() * sizeof(T));
  }
  T* on(bool host) { return host ? host_.data() : reinterpret_cast<T*>(device_.data()); }
  std::vector<T> values(bool host) const {
    std::vector<T> values = host_;
    if (!host) host_access.read(values.data(), device_.data(), values.size() * sizeof(T));
    return values;
  }

 private:
  std::vector<T> host_;
  emulation::DeviceMemory device_;
};

ThreadPool& one_thread() {
  static ThreadPool pool(1);
  return pool;
}

}  // namespace

TEST_CASE("cross-entropy: loss and gradient equal double, padding columns become zero") {
  // The last five have rows that shared memory holds whole (bf16) or in part (float, 196 of 99 KiB), that are aligned
  // to 16 bytes or not, and whose last pack is whole or not.
  for (DType dtype : {DType::f32, DType::bf16})
    for (const auto& [rows, vocab, stride] : std::vector<std::array<int64_t, 3>>{{1, 1, 1},
                                                                                 {2, 1, 8},
                                                                                 {3, 2, 4},
                                                                                 {5, 65, 65},
                                                                                 {3, 1023, 1024},
                                                                                 {3, 1025, 1100},
                                                                                 {257, 9, 16},
                                                                                 {1027, 2, 8},
                                                                                 {2, 2049, 2056},
                                                                                 {2, 4104, 4104},
                                                                                 {1, 50257, 50304},
                                                                                 {1, 50304, 50304},
                                                                                 {1, 50257, 50257}}) {
      if (rows > 1000 && dtype == DType::bf16 && !test_everything()) continue;  // sums of losses are float in both
      CAPTURE(rows, vocab, stride, name_of(dtype));
      Doubles logits = Tensor(random_doubles(rows * stride, dtype, 1, 5.0), dtype).doubles();
      std::vector<int32_t> targets;
      for (int64_t r = 0; r < rows; ++r) targets.push_back(static_cast<int32_t>(r * 7919 % vocab));
      const Losses want = expected(logits, targets, vocab, stride);
      OnDevice ids(targets, "targets");
      for_orders([&](LaunchContext& context) {
        OnDevice x(logits, dtype, "logits"), losses(rows, DType::f32, "row_losses");
        Sum sum;
        CrossEntropy args = {
            x.data(), ids.data<int32_t>(), sum.data(), losses.data<float>(), rows, vocab, stride, kScale, dtype, false};
        cross_entropy(context, args);
        CHECK(x.doubles() == logits);
        const auto forward_losses = losses.bytes();
        args.backward = true;
        cross_entropy(context, args);
        CHECK(losses.bytes() == forward_losses);
        CHECK(error_of(x.doubles(), want.gradient) < (dtype == DType::f32 ? 1e-5 : 0x1p-7));
        CHECK(sum.value() == Approx(want.sum).epsilon(1e-6).margin(1e-6));
        std::vector<float> of_rows(static_cast<size_t>(rows));
        host_access.read(of_rows.data(), losses.data(), of_rows.size() * 4);
        CHECK(sum.value() == sum_of_losses(of_rows.data(), rows));
        CHECK((x.intact() && losses.intact() && sum.memory.intact()));
      });
    }
}

TEST_CASE("cross-entropy: huge, masked and NaN logits, no rows, targets outside the vocabulary") {
  LaunchContext context = cuda_context();
  Doubles logits(2100, -INFINITY);
  logits[5] = -1e4, logits[2000] = 1e4;
  OnDevice x(logits, DType::f32, "logits"), losses(1, DType::f32, "row_losses"),
      target(std::vector<int32_t>{2000}, "targets");
  Sum sum;
  CrossEntropy args = {
      x.data(), target.data<int32_t>(), sum.data(), losses.data<float>(), 1, 2100, 2100, kScale, DType::f32, true};
  cross_entropy(context, args);
  CHECK(sum.value() == 0.0);
  CHECK(x.doubles() == Doubles(2100, 0.0));
  logits[1500] = NAN;
  x.set(logits);
  cross_entropy(context, args);
  CHECK(std::isnan(sum.value()));
  for (int32_t bad : {-1, 2100, 2000000000}) {
    x.set(Doubles(2100, 1.0));
    host_access.write(target.data(), &bad, sizeof bad);
    cross_entropy(context, args);
    CHECK(std::isnan(sum.value()));
    CHECK(x.intact());
  }
  args.rows = 0;
  cross_entropy(context, args);
  CHECK(sum.value() == 0.0);
}

TEST_CASE("cross-entropy: parts of a shared vocabulary merge into the loss and the gradient of the whole") {
  constexpr int64_t kRows = 3, kVocab = 1100, kRanks = 3, kHeld = 512;
  for (DType dtype : {DType::f32, DType::bf16}) {
    const Doubles logits = Tensor(random_doubles(kRows * kVocab, dtype, 1, 5.0), dtype).doubles();
    const std::vector<int32_t> targets{0, 700, 1099};
    const Losses want = expected(logits, targets, kVocab, kVocab);
    OnDevice ids(targets, "targets");
    for_orders([&](LaunchContext& context) {
      OnDevice all(kRanks * kRows * kCrossEntropyPartElems, DType::f64, "parts");
      for (bool merge : {false, true})
        for (int64_t rank = 0; rank < kRanks; ++rank) {
          const int64_t columns = std::min(kHeld, kVocab - rank * kHeld);
          Doubles own(static_cast<size_t>(kRows * kHeld), 77.0);
          for (int64_t r = 0; r < kRows; ++r)
            for (int64_t j = 0; j < columns; ++j)
              own[static_cast<size_t>(r * kHeld + j)] = logits[static_cast<size_t>(r * kVocab + rank * kHeld + j)];
          OnDevice x(own, dtype, "logits"), losses(kRows, DType::f32, "row_losses");
          Sum sum;
          if (!merge) {
            cross_entropy_part(
                context, {x.data(), ids.data<int32_t>(), all.data<double>() + rank * kRows * kCrossEntropyPartElems,
                          kRows, columns, kHeld, rank * kHeld, kVocab, dtype});
            continue;
          }
          cross_entropy_merge(
              context, {x.data(), ids.data<int32_t>(), all.data<double>(), sum.data(), losses.data<float>(), kRows,
                        columns, kHeld, rank * kHeld, kRanks, kScale, dtype, true});
          CHECK(sum.value() == Approx(want.sum).epsilon(1e-6));
          const Doubles got = x.doubles();
          double worst = 0.0;
          for (int64_t r = 0; r < kRows; ++r)
            for (int64_t j = 0; j < kHeld; ++j) {
              const double expected_here =
                  j < columns ? want.gradient[static_cast<size_t>(r * kVocab + rank * kHeld + j)] : 0.0;
              worst =
                  std::max(worst, std::abs(got[static_cast<size_t>(r * kHeld + j)] - expected_here) / double{kScale});
            }
          CHECK(worst < (dtype == DType::f32 ? 1e-5 : 0x1p-7));
          CHECK((x.intact() && losses.intact() && all.intact()));
        }
    });
  }
}

TEST_CASE("adamw: three steps equal the double optimizer, aligned or not") {
  const reference::AdamwRule rule = {1e-2, 0.9, 0.95, 1e-8, 0.1};
  for (int64_t elems : {1, 7, 8, 9, 2047, 2048, 2051})
    for (int64_t shift : {0, 1}) {
      CAPTURE(elems, shift);
      const Doubles start = random_doubles(elems, DType::f32, 1);
      std::vector<reference::AdamwState> states;
      for (double p : start) states.push_back({p, 0.0, 0.0});
      OnDevice p(start, DType::f32, "parameters", shift), m(Doubles(start.size()), DType::f32, "m"),
          v(Doubles(start.size()), DType::f32, "v");
      OnDevice working(elems, DType::bf16, "working");
      for (int t = 1; t <= 3; ++t) {
        const Doubles g = random_doubles(elems, DType::f32, static_cast<uint32_t>(10 + t));
        OnDevice gradient(g, DType::f32, "gradient");
        OnDevice scalars(
            Doubles{1e-2, 1.0 / (1.0 - std::pow(double{0.9f}, t)), 1.0 / (1.0 - std::pow(double{0.95f}, t)), 0.5},
            DType::f32, "scalars");
        for (size_t i = 0; i < states.size(); ++i) states[i] = adamw_step(states[i], 0.5 * g[i], rule, t);
        LaunchContext context = cuda_context();
        adamw(context, {p.data<float>(), m.data<float>(), v.data<float>(), gradient.data<float>(),
                        t == 2 ? nullptr : working.data<bfloat16>(), elems, scalars.data<AdamwScalars>(), 0.9f, 0.95f,
                        1e-8f, 0.1f});
      }
      Doubles want;
      for (const auto& state : states) want.push_back(state.p);
      CHECK(error_of(p.doubles(), want) <= 1e-6);
      CHECK(working.doubles() == Tensor(p.doubles(), DType::bf16).doubles());
      CHECK((p.intact() && m.intact() && v.intact() && working.intact()));
    }
}

TEST_CASE("adamw: a skipped step keeps parameters and moments, and copies the parameters") {
  for (int64_t elems : {1, 8, 9, 2051})
    for (int64_t shift : {0, 1}) {
      CAPTURE(elems, shift);
      const Doubles start = random_doubles(elems, DType::f32, 1), moment = random_doubles(elems, DType::f32, 2);
      OnDevice p(start, DType::f32, "parameters", shift), m(moment, DType::f32, "m"), v(moment, DType::f32, "v"),
          updated(elems, DType::f32, "updated"), working(elems, DType::bf16, "working"),
          gradient(Doubles(start.size(), NAN), DType::f32, "gradient"),
          scalars(Doubles{1e-2, 1.5, 1.2, -1.0}, DType::f32, "scalars");
      LaunchContext context = cuda_context();
      for (const bool apart : {false, true})
        adamw(context,
              {p.data<float>(), m.data<float>(), v.data<float>(), gradient.data<float>(), working.data<bfloat16>(),
               elems, scalars.data<AdamwScalars>(), 0.9f, 0.95f, 1e-8f, 0.1f, apart ? updated.data<float>() : nullptr});
      CHECK(p.doubles() == start);
      CHECK(m.doubles() == moment);
      CHECK(v.doubles() == moment);
      CHECK(updated.doubles() == start);
      CHECK(working.doubles() == Tensor(start, DType::bf16).doubles());
    }
}

TEST_CASE("adamw: multipliers of spans give the bits of ranges of their own, however many there are") {
  for (const int64_t count : {1, 2, 5, 127, 128, 129, 255, 256, 600}) {
    CAPTURE(count);
    std::vector<UpdateSpan> spans{{3, 0.5f, 0}};
    while (std::ssize(spans) < count)
      spans.push_back({spans.back().begin + std::ssize(spans) * 7 % 11,
                       static_cast<float>(std::ssize(spans) % 3) * 0.5f, static_cast<float>(std::ssize(spans) % 4)});
    const int64_t elems = spans.back().begin + 9;
    const Doubles start = random_doubles(elems, DType::f32, 1), g = random_doubles(elems, DType::f32, 2);
    OnDevice gradient(g, DType::f32, "gradient");
    std::vector<uint8_t> bytes[2];
    for (bool apart : {false, true}) {
      OnDevice p(start, DType::f32, "parameters"), m(Doubles(start.size()), DType::f32, "m"),
          v(Doubles(start.size()), DType::f32, "v"), working(elems, DType::bf16, "working");
      LaunchContext context = cuda_context();
      const auto update = [&](int64_t begin, int64_t end, float rate, float decay, int64_t span_count) {
        OnDevice scalars(Doubles{static_cast<double>(1e-2f * rate), 1.5, 1.2, 0.5}, DType::f32, "scalars");
        adamw(context, {p.data<float>(begin), m.data<float>(begin), v.data<float>(begin), gradient.data<float>(begin),
                        working.data<bfloat16>(begin), end - begin, scalars.data<AdamwScalars>(), 0.9f, 0.95f, 1e-8f,
                        0.1f * decay, nullptr, spans.data(), span_count});
      };
      const int64_t before = emulation::launches();
      if (!apart) update(0, elems, 1, 1, count);
      if (!apart && !on_card)
        CHECK(emulation::launches() - before == (count <= 128 ? 1 : 1 + (count - 128 + 126) / 127));
      if (apart) update(0, spans[0].begin, 1, 1, 0);
      for (size_t i = 0; apart && i < spans.size(); ++i)
        update(spans[i].begin, i + 1 < spans.size() ? spans[i + 1].begin : elems, spans[i].learning_rate,
               spans[i].weight_decay, 0);
      bytes[apart] = p.bytes();
      const auto more = working.bytes();
      bytes[apart].insert(bytes[apart].end(), more.begin(), more.end());
      CHECK((p.intact() && m.intact() && v.intact() && working.intact()));
    }
    CHECK(bytes[0] == bytes[1]);
  }
}

TEST_CASE("muon: three steps equal the double optimizer for wide, tall and square matrices, aligned or not") {
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
        for_orders([&](LaunchContext& context) {
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

TEST_CASE("muon: a gradient of zero moves nothing but the decay") {
  LaunchContext context = cuda_context();
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
  LaunchContext context = cuda_context();
  for (const auto& [rows, cols] : std::vector<std::array<int64_t, 2>>{{5, 9}, {9, 5}})
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

TEST_CASE("clip and report: the CPU's verdicts and bits") {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const Doubles& sums :
       {Doubles{}, Doubles{9, 16}, Doubles{1e-3, 2e-5, 0}, Doubles{1, infinity, nan}, Doubles{nan, 1}})
    for (const double loss : {2.0, nan, infinity, -infinity})
      for (const double max_norm : {0.5, infinity})
        for (const std::array<float, 2>& limits : {std::array{5.0f, 2.0f}, {4.0f, INFINITY}, {INFINITY, INFINITY}})
          for (const bool skips : {false, true}) {
            CAPTURE(sums, loss, max_norm, limits[0], limits[1], skips);
            const auto verdict_on = [&](bool host) {
              LaunchContext context = host ? LaunchContext{.kind = DeviceKind::cpu} : cuda_context();
              Numbers<double> all_sums(sums), of_loss({loss}), norm({-1, -1, -1}), slot({-1, -1, -1, -1});
              Numbers<float> of_limits({limits[0], limits[1]}), factor({-5});
              clip(context, {.sums = all_sums.on(host),
                             .count = static_cast<int64_t>(sums.size()),
                             .max_norm = max_norm,
                             .norm = norm.on(host),
                             .factor = factor.on(host),
                             .loss = skips ? of_loss.on(host) : nullptr,
                             .limits = skips ? of_limits.on(host) : nullptr});
              report(context, {.loss = of_loss.on(host), .norm = norm.on(host), .slot = slot.on(host)});
              Doubles all = slot.values(host);
              all.push_back(factor.values(host)[0]);
              for (double& value : all)
                if (std::isnan(value)) value = -12345;  // NaN is not equal to itself
              return all;
            };
            CHECK(verdict_on(false) == verdict_on(true));
          }
}

TEST_CASE("sum of squares: the CPU's bits") {
  for (int64_t elems : {0, 1, 15, 17, 4095, 4096, 4097, 65537, 4096 * 300 + 3}) {
    CAPTURE(elems);
    const Doubles x = random_doubles(elems, DType::f32, 3);
    Tensor host(x, DType::f32);
    LaunchContext cpu;
    cpu.pool = &one_thread();
    double want = 0.0;
    const SumSquaresPart whole{0, elems, 0};
    sum_squares(cpu, {host.data<float>(), &whole, 1, &want});
    const double exact = reference::sum_squares(x);
    CHECK(std::abs(want - exact) <= 1e-14 * exact);
    for_orders([&](LaunchContext& context) {
      OnDevice on(x, DType::f32, "x");
      Sum sum;
      sum_squares(context, {on.data<float>(), &whole, 1, sum.data()});
      CHECK(sum.value() == want);
    });
  }
}

TEST_CASE(
    "sum of squares: parts of a bucket have the CPU's bits, aligned or not, in one pair of launches up to 96 of them") {
  for (const int64_t count : {1, 7, 96, 97, 200}) {
    std::vector<SumSquaresPart> parts;
    int64_t begin = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t elems = i % 5 == 3 ? 0 : i % 7 == 1 ? 4096 * (1 + i % 3) + i : 1 + i * 37 % 300;
      parts.push_back({begin, elems, (i * 3 + 1) % (4 * count)});
      begin += elems + i % 3;
    }
    const Doubles x = random_doubles(begin, DType::f32, 3);
    Tensor host(x, DType::f32);
    LaunchContext cpu;
    cpu.pool = &one_thread();
    std::vector<double> want(static_cast<size_t>(4 * count), 7.0);
    sum_squares(cpu, {host.data<float>(), parts.data(), count, want.data()});
    for_orders([&](LaunchContext& context) {
      OnDevice on(x, DType::f32, "x"), results(4 * count, DType::f64, "results");
      const std::vector<double> untouched(want.size(), 7.0);
      host_access.write(results.data(), untouched.data(), 8 * untouched.size());
      const int64_t before = emulation::launches();
      sum_squares(context, {on.data<float>(), parts.data(), count, results.data<double>()});
      if (!on_card) CHECK(emulation::launches() - before == 2 * ((count + 95) / 96));
      std::vector<double> got(want.size());
      host_access.read(got.data(), results.data(), 8 * got.size());
      CHECK(got == want);
      CHECK(results.intact());
    });
  }
}
