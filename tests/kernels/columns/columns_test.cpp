// SPDX-License-Identifier: Apache-2.0
// Columns of wider rows: taken out and put back, alone or as a sum of two.

#include "kernels/columns/columns.h"

#include "tests/kernels/common/backend.h"
#include "tests/reference/elementwise.h"
#include "tests/reference/masked_attention.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
using reference::columns;

TEST_CASE("columns: copied bit for bit, summed in float and rounded once") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (const auto& [width, stride] : {std::pair<int64_t, int64_t>{19, 23}, std::pair<int64_t, int64_t>{67, 71}}) {
      constexpr int64_t kRows = 5;
      const Doubles packed = random_doubles(kRows * stride, dtype, 1), a = random_doubles(kRows * width, DType::f32, 2),
                    b = random_doubles(kRows * width, DType::f32, 3);
      Doubles expected = reference::sum(a, b, reference::kFloatBits);
      for (double& value : expected)
        value = dtype == DType::f32 ? value : reference::rounded(value, reference::kBfloat16Bits);
      for_machines([&](LaunchContext& context) {
        const OnDevice from(packed, dtype, "from"), taken(kRows * width, dtype, "taken"), left(a, DType::f32, "a"),
            right(b, DType::f32, "b"), to(packed, dtype, "to");
        columns_take(context, {from.data(4), taken.data(), kRows, width, stride, dtype});
        CHECK(taken.doubles() == columns(packed, stride, 4, stride));
        columns_sum(context, {left.data<float>(), right.data<float>(), to.data(4), kRows, width, stride, dtype});
        CHECK(columns(to.doubles(), stride, 4, stride) == expected);
        CHECK(columns(to.doubles(), stride, 0, 4) == columns(packed, stride, 0, 4));
        CHECK((to.intact() && taken.intact()));
      });
    }
}
