// SPDX-License-Identifier: Apache-2.0
// Rows in the order of experts against a sort, and the weighted SwiGLU of such rows against double.

#include "engine/base/check.h"
#include "kernels/experts/counts.h"
#include "kernels/experts/rows.h"
#include "kernels/experts/weighted_swiglu.h"
#include "tests/kernels/common/backend.h"
#include "tests/reference/activations.h"
#include "tests/reference/elementwise.h"
#include "tests/reference/experts.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

constexpr DType kTypes[] = {DType::f32, DType::bf16};
constexpr double kPoison = 77;  // of memory that must stay untouched

/// Choices of `experts` experts: uneven, some experts without any, and with `lost` some that are no expert.
std::vector<int32_t> uneven_choices(int64_t count, int64_t experts, bool lost) {
  std::vector<int32_t> chosen;
  std::mt19937 generator(5);
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t draw = generator();
    const auto expert = static_cast<int32_t>(std::min(draw % experts, draw / 1024 % experts));
    chosen.push_back(lost && draw % 7 == 0 ? (draw % 2 ? -1 : static_cast<int32_t>(experts)) : expert);
  }
  return chosen;
}

/// The value by which error_of divides.
double absolute_largest(const Doubles& values, size_t count) {
  double largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(values[i]));
  return largest;
}

void check_arrangement(const std::vector<int32_t>& chosen, int64_t top_k, int64_t experts, int64_t first = 0) {
  CAPTURE(chosen.size(), top_k, experts, first);
  const auto tokens = static_cast<int64_t>(chosen.size()) / top_k;
  const reference::Arrangement expected = reference::arrangement(chosen, experts, first);
  std::vector<int32_t> expected_rows = expected.rows;
  expected_rows.resize(chosen.size(), -9);  // rows after the last choice stay
  const Held<int32_t> on_chosen(chosen, "chosen");
  for_machines([&](LaunchContext& context) {
    const Held<int32_t> offsets(std::vector<int32_t>(static_cast<size_t>(experts + 1), -9), "offsets"),
        rows(std::vector<int32_t>(chosen.size(), -9), "rows"),
        places(std::vector<int32_t>(chosen.size(), -9), "places");
    arrange_rows(context,
                 {on_chosen.data(), offsets.data(), rows.data(), places.data(), tokens, experts, top_k, first});
    CHECK(offsets.values() == expected.offsets);
    CHECK(rows.values() == expected_rows);
    CHECK(places.values() == expected.places);
    CHECK((offsets.intact() && rows.intact() && places.intact()));
  });
}

}  // namespace

TEST_CASE("arrange_rows: choices are in the order of expert, token and choice") {
  check_arrangement({0}, 1, 1);
  check_arrangement({2, 0, 0, 2}, 2, 3);                 // expert 1 is empty
  check_arrangement(std::vector<int32_t>(70, 4), 1, 6);  // all tokens choose one expert
  check_arrangement({3, 1, 0, 2, 2, 3, 1, 0}, 4, 4);     // top_k = count
  check_arrangement({-1, -1, 5, -1}, 2, 5);              // none has a row
  for (const bool lost : {false, true}) {
    check_arrangement(uneven_choices(600, 7, lost), 3, 7);
    check_arrangement(uneven_choices(256, 300, lost), 1, 300);
    if (on_cpu()) check_arrangement(uneven_choices(40000, 64, lost), 8, 64);
  }
  for_machines([&](LaunchContext& context) {
    const Held<int32_t> offsets({5, 5, 5}, "offsets");
    arrange_rows(context, {.offsets = offsets.data(), .tokens = 0, .experts = 2, .top_k = 1});
    CHECK(offsets.values() == std::vector<int32_t>{0, 0, 0});
  });
}

TEST_CASE("arrange_rows: ranks that divide the experts have every choice once, in the order of its expert and token") {
  for (const auto& [ranks, own] : std::vector<std::pair<int64_t, int64_t>>{{2, 2}, {4, 1}, {3, 5}, {8, 37}}) {
    const int64_t experts = ranks * own, top_k = 3;
    const std::vector<int32_t> chosen = uneven_choices(600, experts, true);
    for (const int64_t rank : {int64_t{0}, int64_t{1}, ranks - 1}) check_arrangement(chosen, top_k, own, rank * own);
    for_machines([&](LaunchContext& context) {
      const Held<int32_t> on_chosen(chosen, "chosen");
      std::vector<int32_t> held(chosen.size(), 0);
      const reference::Arrangement whole = reference::arrangement(chosen, experts);
      std::vector<int32_t> joined;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const Held<int32_t> offsets(std::vector<int32_t>(static_cast<size_t>(own + 1), -9), "offsets"),
            of_rank(std::vector<int32_t>(chosen.size(), -9), "rows"),
            places(std::vector<int32_t>(chosen.size(), -9), "places");
        arrange_rows(context, {on_chosen.data(), offsets.data(), of_rank.data(), places.data(),
                               static_cast<int64_t>(chosen.size()) / top_k, own, top_k, rank * own});
        const std::vector<int32_t> at = of_rank.values(), to = places.values();
        joined.insert(joined.end(), at.begin(), at.begin() + offsets.values().back());
        for (size_t i = 0; i < to.size(); ++i) held[i] += to[i] >= 0;
      }
      CHECK(joined == whole.rows);  // the rows of all ranks, one after the other, are those of one rank
      CHECK(std::equal(held.begin(), held.end(), whole.places.begin(),
                       [](int32_t count, int32_t place) { return count == (place >= 0); }));
    });
  }
}

TEST_CASE("take_rows: rows and weights are copied up to the count, aligned or not") {
  for (const DType dtype : kTypes)
    for (const auto& [tokens, top_k, max_rows, count, width] :
         std::vector<std::array<int64_t, 5>>{{1, 1, 1, 1, 1},
                                             {5, 2, 10, 7, 16},
                                             {4, 3, 12, -1, 33},
                                             {6, 1, 8, 6, 8},
                                             {3, 2, 6, 0, 5},
                                             {67, 2, 140, 134, 130}})
      for (const int64_t shift : {0, 1}) {
        CAPTURE(tokens, top_k, max_rows, count, width, shift, name_of(dtype));
        const int64_t taken = count < 0 ? max_rows : count;
        const Doubles x = random_doubles(tokens * width, dtype, 1),
                      weights = random_doubles(tokens * top_k, DType::f32, 2);
        std::vector<int32_t> rows;
        for (int64_t i = 0; i < max_rows; ++i) rows.push_back(static_cast<int32_t>(i * 5 % (tokens * top_k)));
        Doubles expected(static_cast<size_t>(max_rows * width), kPoison),
            expected_weights(static_cast<size_t>(max_rows), kPoison);
        for (int64_t i = 0; i < taken; ++i) {
          const int64_t row = rows[static_cast<size_t>(i)];
          std::copy_n(x.begin() + row / top_k * width, width, expected.begin() + i * width);
          expected_weights[static_cast<size_t>(i)] = weights[static_cast<size_t>(row)];
        }
        for (size_t i = static_cast<size_t>(taken); i < rows.size(); ++i) rows[i] = 1 << 30;  // no row is read
        OnDevice from(x, dtype, "from", shift), on_weights(weights, DType::f32, "weights");
        const Held<int32_t> on_rows(rows, "rows"), on_count({static_cast<int32_t>(count)}, "count");
        for_machines([&](LaunchContext& context) {
          OnDevice to(Doubles(expected.size(), kPoison), dtype, "to", shift),
              row_weights(Doubles(expected_weights.size(), kPoison), DType::f32, "row_weights");
          TakeRows args{.from = from.data(),
                        .rows = on_rows.data(),
                        .count = count < 0 ? nullptr : on_count.data(),
                        .to = to.data(),
                        .top_k = top_k,
                        .max_rows = max_rows,
                        .width = width,
                        .dtype = dtype,
                        .weights = on_weights.data<float>(),
                        .row_weights = row_weights.data<float>()};
          take_rows(context, args);
          CHECK(to.doubles() == expected);
          CHECK(row_weights.doubles() == expected_weights);
          args.weights = nullptr, args.row_weights = nullptr;
          to.set(Doubles(expected.size(), kPoison));
          take_rows(context, args);
          CHECK(to.doubles() == expected);
          CHECK((to.intact() && row_weights.intact()));
        });
      }
}

TEST_CASE("return_rows: sums of the rows of a token in order, rounded once, without dropped rows") {
  for (const DType dtype : kTypes)
    for (const auto& [tokens, top_k, width] :
         std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {5, 2, 16}, {4, 3, 33}, {3, 8, 8}, {67, 4, 130}})
      for (const int64_t shift : {0, 1})
        for (const bool adds : {false, true}) {
          CAPTURE(tokens, top_k, width, shift, adds, name_of(dtype));
          const int64_t rows = tokens * top_k + 3;
          const Doubles from = random_doubles(rows * width, dtype, 1), add = random_doubles(tokens * width, dtype, 2),
                        row_weights = random_doubles(rows, DType::f32, 3);
          std::vector<int32_t> places;
          for (int64_t i = 0; i < tokens * top_k; ++i)
            places.push_back(i % 5 == 3 ? -1 : static_cast<int32_t>((i * 7 + 2) % rows));
          Doubles expected, expected_weights;
          for (int64_t t = 0; t < tokens; ++t) {
            for (int64_t c = 0; c < width; ++c) {
              float sum = adds ? static_cast<float>(add[static_cast<size_t>(t * width + c)]) : 0.0f;
              for (int64_t j = 0; j < top_k; ++j)
                if (const int32_t place = places[static_cast<size_t>(t * top_k + j)]; place >= 0)
                  sum += static_cast<float>(from[static_cast<size_t>(place * width + c)]);
              expected.push_back(reference::rounded(
                  static_cast<double>(sum), dtype == DType::f32 ? reference::kFloatBits : reference::kBfloat16Bits));
            }
            for (int64_t j = 0; j < top_k; ++j) {
              const int32_t place = places[static_cast<size_t>(t * top_k + j)];
              expected_weights.push_back(place < 0 ? 0 : row_weights[static_cast<size_t>(place)]);
            }
          }
          OnDevice on_from(from, dtype, "from", shift), on_add(add, dtype, "add", shift),
              on_weights(row_weights, DType::f32, "row_weights");
          const Held<int32_t> on_places(places, "places");
          for_machines([&](LaunchContext& context) {
            OnDevice to(tokens * width, dtype, "to", shift), weights(tokens * top_k, DType::f32, "weights");
            ReturnRows args{.from = on_from.data(),
                            .places = on_places.data(),
                            .add = adds ? on_add.data() : nullptr,
                            .to = to.data(),
                            .tokens = tokens,
                            .top_k = top_k,
                            .width = width,
                            .dtype = dtype,
                            .row_weights = on_weights.data<float>(),
                            .weights = weights.data<float>()};
            return_rows(context, args);
            CHECK(to.doubles() == expected);  // bit for bit
            CHECK(weights.doubles() == expected_weights);
            CHECK((to.intact() && weights.intact()));
            if (!adds) return;
            args.to = on_add.data(), args.row_weights = nullptr, args.weights = nullptr;  // in place
            return_rows(context, args);
            CHECK(on_add.bytes() == to.bytes());
            on_add.set(add);
          });
        }
}

TEST_CASE("counts of rows: differences of offsets, and the sums over all ranks up to the bound") {
  for (const auto& [ranks, own] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {2, 3}, {4, 70}, {3, 300}}) {
    const int64_t experts = ranks * own;
    std::mt19937 generator(9);
    std::vector<int32_t> counts, offsets = {0}, of_experts;
    for (int64_t i = 0; i < ranks * experts; ++i) counts.push_back(static_cast<int32_t>(generator() % 9) - 2);
    for (int64_t e = 0; e < experts; ++e) {
      of_experts.push_back(std::max(0, counts[static_cast<size_t>(e)]));
      offsets.push_back(offsets.back() + of_experts.back());
    }
    const Held<int32_t> on_counts(counts, "counts"), on_offsets(offsets, "offsets");
    for (const int64_t rank : {int64_t{0}, ranks - 1})
      for (const auto& [begin, bound] :
           {std::pair<int64_t, int64_t>{0, 0}, {0, 7}, {0, 1 << 30}, {5, 7}, {2, 1 << 30}}) {
        CAPTURE(ranks, own, rank, begin, bound);
        // The rows of the rank's experts, one by one.
        std::vector<int32_t> expected = {0};
        for (int64_t j = 0, row = 0, kept = 0; j < own; ++j) {
          for (int64_t s = 0; s < ranks; ++s)
            for (int32_t k = 0; k < counts[static_cast<size_t>(s * experts + rank * own + j)]; ++k, ++row)
              kept += row >= begin && row < begin + bound ? 1 : 0;
          expected.push_back(static_cast<int32_t>(kept));
        }
        // This rank's rows, at any rank.
        int32_t rows_of_rank = 0;
        bool late = false;
        for (int64_t e = 0, row = 0; e < experts; ++e) {
          row = e % own == 0 ? 0 : row;
          for (int64_t s = 0; s < ranks; ++s)
            for (int32_t k = 0; k < counts[static_cast<size_t>(s * experts + e)]; ++k, ++row)
              if (s == rank) ++rows_of_rank, late = late || row >= bound;
        }
        for_machines([&](LaunchContext& context) {
          const Held<int32_t> first(std::vector<int32_t>(expected.size(), -9), "first rows"),
              sent(std::vector<int32_t>(of_experts.size(), -9), "sent rows");
          count_rows(context, {on_offsets.data(), sent.data(), experts});
          CHECK(sent.values() == of_experts);
          own_rows(context, {on_counts.data(), first.data(), ranks, rank, own, bound, begin});
          CHECK(first.values() == expected);
          const Held<int32_t> number(std::vector<int32_t>{-9}, "late rows");
          late_rows(context, {on_counts.data(), number.data(), ranks, rank, own, bound});
          CHECK(number.values()[0] == (late ? rows_of_rank : 0));
          CHECK((sent.intact() && first.intact() && number.intact()));
        });
      }
  }
}

TEST_CASE("weighted swiglu: the value and its gradients equal double, and rows after the count stay") {
  std::vector<std::array<int64_t, 3>> shapes = {{1, 1, 1}, {5, 3, 16},    {4, 4, 33},  {3, -1, 7},
                                                {2, 0, 5}, {37, 30, 130}, {2, 1, 1030}};
  if (on_cpu()) shapes.insert(shapes.end(), {{5, 4, 4099}, {300, 299, 64}});
  for (const DType dtype : kTypes)
    for (const auto& [max_rows, count, width] : shapes)
      for (const int64_t shift : {0, 1}) {
        CAPTURE(max_rows, count, width, shift, name_of(dtype));
        const auto rows = static_cast<size_t>(count < 0 ? max_rows : count), w = static_cast<size_t>(width);
        Doubles x = random_doubles(max_rows * 2 * width, dtype, 1, 2.0),
                dy = random_doubles(max_rows * width, dtype, 2), weights = random_doubles(max_rows, DType::f32, 3);
        Doubles y(dy.size(), kPoison), dx(x.size(), kPoison), dweights(weights.size(), kPoison);
        double largest = 0;  // sum of the terms of a dweight
        for (size_t r = 0; r < rows; ++r) {
          dweights[r] = 0;
          double terms = 0;
          for (size_t i = 0; i < w; ++i) {
            const double gate = x[r * 2 * w + i], up = x[r * 2 * w + w + i], d = dy[r * w + i];
            y[r * w + i] = weights[r] * reference::silu(gate) * up;
            dx[r * 2 * w + i] = weights[r] * d * up * reference::silu_derivative(gate);
            dx[r * 2 * w + w + i] = weights[r] * d * reference::silu(gate);
            dweights[r] += d * reference::silu(gate) * up;
            terms += std::abs(d * reference::silu(gate) * up);
          }
          largest = std::max(largest, terms);
        }
        for (size_t i = rows * w; i < dy.size(); ++i) dy[i] = NAN;  // not read
        for (size_t i = rows * 2 * w; i < x.size(); ++i) x[i] = NAN;
        OnDevice in(x, dtype, "gate_up", shift), d(dy, dtype, "dy", shift), by(weights, DType::f32, "weights");
        const Held<int32_t> on_count({static_cast<int32_t>(count)}, "count");
        const int32_t* const counted = count < 0 ? nullptr : on_count.data();
        SameBits same;
        for_machines([&](LaunchContext& context) {
          OnDevice out(Doubles(y.size(), kPoison), dtype, "y", shift),
              apart(Doubles(dx.size(), kPoison), dtype, "dgate_up", shift),
              of_weights(Doubles(weights.size(), kPoison), DType::f32, "dweights");
          weighted_swiglu_forward(context, {in.data(), by.data<float>(), out.data(), counted, max_rows, width, dtype});
          const auto error = [&](const OnDevice& got, const Doubles& expected, size_t of_row) {
            const Doubles values = got.doubles();
            const auto at = static_cast<std::ptrdiff_t>(rows * of_row);
            CHECK(std::all_of(values.begin() + at, values.end(), [](double v) { return v == kPoison; }));
            return error_of({values.begin(), values.begin() + at}, {expected.begin(), expected.begin() + at});
          };
          CHECK(error(out, y, w) < forward_tolerance(dtype, 1));
          WeightedSwigluBackward args{
              d.data(), in.data(), by.data<float>(), apart.data(), of_weights.data<float>(), counted, max_rows,
              width,    dtype};
          weighted_swiglu_backward(context, args);
          CHECK(error(apart, dx, 2 * w) < gradient_tolerance(dtype, 1));
          CHECK(error(of_weights, dweights, 1) * absolute_largest(dweights, rows) <= 1e-6 * largest);
          CHECK(same(of_weights));
          CHECK((out.intact() && apart.intact() && of_weights.intact()));
          if (rows < static_cast<size_t>(max_rows)) return;
          args.dgate_up = in.data();  // in place
          weighted_swiglu_backward(context, args);
          CHECK(in.bytes() == apart.bytes());
          in.set(x);
        });
      }
}

TEST_CASE("weighted swiglu: the formulas of the test agree with central differences", "[.][cpu]") {
  const Doubles x = random_doubles(3, DType::f32, 4, 1.0);  // gate, up and weight of one element
  const auto value = [](const Doubles& v) { return v[2] * reference::silu(v[0]) * v[1]; };
  const Doubles gradient = {x[2] * x[1] * reference::silu_derivative(x[0]), x[2] * reference::silu(x[0]),
                            reference::silu(x[0]) * x[1]};
  CHECK(error_of(central_differences(value, x), gradient) < 1e-9);
}

TEST_CASE("rows of experts: impossible operands are refused, costs equal the formulas in the headers", "[.][cpu]") {
  LaunchContext context = a_context();
  float value = 0;
  int32_t number = 0;
  CHECK_THROWS_WITH(arrange_rows(context, {.offsets = &number, .tokens = int64_t{1} << 30, .experts = 1, .top_k = 2}),
                    "[arrange_rows] there are 2147483648 choices of 1073741824 tokens, need fewer than 2^31.");
  CHECK_THROWS_AS(arrange_rows(context, {.tokens = 0, .experts = 1, .top_k = 1}), ShapeError);
  CHECK_THROWS_WITH(arrange_rows(context, {.offsets = &number, .experts = 1, .top_k = 1, .first = -1}),
                    "[arrange_rows] first is -1, need at least 0.");
  CHECK_THROWS_WITH(arrange_rows(context, {.offsets = &number, .experts = 2, .top_k = 1, .first = 2147483646}),
                    "[arrange_rows] 2 experts from number 2147483646 on end after 2^31 - 1.");
  CHECK_THROWS_WITH(return_rows(context, {.width = 1, .max_rows = -1}),
                    "[return_rows] max_rows is -1, need at least 0.");
  CHECK_THROWS_WITH(
      take_rows(context, {.from = &value, .rows = &number, .to = &value, .max_rows = 1, .width = 1, .weights = &value}),
      "[take_rows] only row_weights is null. Pass both weights and row_weights, or neither.");
  CHECK_THROWS_AS(return_rows(context, {.tokens = 1, .width = 1}), ShapeError);
  CHECK_THROWS_WITH(weighted_swiglu_forward(context, {.max_rows = 1, .width = 0}),
                    "[weighted_swiglu_forward] width is 0, need at least 1.");
  CHECK_NOTHROW(take_rows(context, {.width = 1}));
  CHECK_NOTHROW(return_rows(context, {.width = 1}));
  CHECK(arrange_rows_cost({.tokens = 5, .experts = 3, .top_k = 2}).bytes == 12 * 10 + 16);
  CHECK(take_rows_cost({.max_rows = 5, .width = 3, .dtype = DType::bf16}).bytes == 60 + 20);
  CHECK(take_rows_cost({.max_rows = 5, .width = 3, .weights = &value}).bytes == 120 + 60);
  CHECK(return_rows_cost({.tokens = 5, .top_k = 2, .width = 3}).bytes == 15 * 4 * 3 + 40);
  CHECK(return_rows_cost({.add = &value, .tokens = 5, .top_k = 2, .width = 3, .weights = &value}).bytes ==
        15 * 4 * 4 + 120);
  CHECK(return_rows_cost({.tokens = 5, .top_k = 2, .width = 3}).flops == 30);
  CHECK(return_rows_cost({.tokens = 5, .top_k = 2, .width = 3, .weights = &value, .max_rows = 4}).bytes ==
        4 * 3 * (4 + 5) + 4 * (10 + 10 + 4));
  CHECK(return_rows_cost({.tokens = 5, .top_k = 2, .width = 3, .max_rows = 4}).flops == 12);
  CHECK(weighted_swiglu_forward_cost({.max_rows = 3, .width = 5, .dtype = DType::bf16}).bytes == 90 + 12);
  CHECK(weighted_swiglu_backward_cost({.max_rows = 3, .width = 5}).bytes == 300 + 24);
}
