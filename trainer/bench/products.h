// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench products: times the algorithms of cuBLASLt for every product of a run.

#include <cstdint>

#include "trainer/bench/options.h"

namespace slipstream::bench {

struct ProductsOptions : BenchOptions {
  int ranks = 0;                              // the ranks of the layout; 0: one
  int64_t rotate_bytes = int64_t{256} << 20;  // operands rotate through this much memory
  double seconds = 0;                         // no product starts after this time; 0: no limit
  bool again = false;                         // time the products of the table again
};

/// Blocks. Returns the exit code. Throws: ConfigError, ResourceError.
int bench_products(const ProductsOptions& options);

}  // namespace slipstream::bench
