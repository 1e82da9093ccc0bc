// SPDX-License-Identifier: Apache-2.0
#pragma once
// slipstream bench kernels: every op beside its bound.

#include <string>
#include <vector>

namespace slipstream::bench {

struct KernelsOptions {
  int rounds = 30;           // counted turns
  std::string csv;           // path; empty: none
  std::string only;          // rows of "op dtype size" that contain this text; empty: all
  std::vector<int> threads;  // one table each; empty: 1
};

/// Blocks. Returns the exit code. Throws: ConfigError, ResourceError.
int bench_kernels(const KernelsOptions& options);

}  // namespace slipstream::bench
