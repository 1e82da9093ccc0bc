// SPDX-License-Identifier: Apache-2.0
// Version and compiler recorded by the build.

#include "trainer/runtime/run_folder/version.h"

#include <fmt/core.h>

#include "kernels/matmul/product.h"
#include "project_version.h"  // made by trainer/runtime/meson.build

namespace slipstream::runtime {

std::string version() { return SLIP_VERSION; }

std::string compiler() {
#ifdef __clang__
  return fmt::format("Clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#else
  return fmt::format("GCC {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#endif
}

std::string products_library() { return std::string(kernels::product_library()); }

}  // namespace slipstream::runtime
