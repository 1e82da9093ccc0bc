// SPDX-License-Identifier: Apache-2.0
// The residual sum is exact but for its one rounding.

#include "kernels/residual/residual.h"

#include "engine/base/check.h"
#include "tests/kernels/common/op_test.h"
#include "tests/reference/elementwise.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

TEST_CASE("residual: every element is the rounded sum, in place or not", "[kernels]") {
  INFO("seeds 1 and 2");
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t elems : {1, 3, 7, 8, 9, 16, 17, 31, 16385, 32771, 49157}) {
      INFO(fmt::format("{} {} elements", name_of(dtype), elems));
      const Doubles a = random_doubles(elems, dtype, 1), b = random_doubles(elems, dtype, 2);
      const Doubles sum = reference::sum(a, b, dtype == DType::f32 ? reference::kFloatBits : reference::kBfloat16Bits);
      for (int alias : {0, 1, 2})
        for_isas_and_threads<Residual>(SLIP_EVERY_ISA(residual_cpu),
                                       [&](LaunchContext& context, auto function, const std::string& label) {
                                         INFO(label);
                                         Tensor left(a, dtype), right(b, dtype), other(elems, dtype);
                                         Tensor& to = alias == 0 ? other : alias == 1 ? left : right;
                                         function(context, {left.data(), right.data(), to.data(), elems, dtype});
                                         CHECK(to.doubles() == sum);
                                         CHECK(to.guard_intact());
                                       });
    }
}

TEST_CASE("residual: operands that cannot be are sentences, the cost is the card's", "[kernels]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  CHECK_THROWS_WITH(residual(context, {nullptr, nullptr, nullptr, 1, DType::f32}),
                    "[residual] operand 0 is null. Pass every operand that is not optional in the op's header.");
  CHECK(residual_cost({nullptr, nullptr, nullptr, 5, DType::bf16}).bytes == 30);
}
