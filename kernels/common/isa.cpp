// SPDX-License-Identifier: Apache-2.0
// Detects, once, the instruction set that the kernels may use.

#include "kernels/common/isa.h"

#include <cstdlib>
#include <string>

#include "engine/base/check.h"

namespace slipstream::kernels {
namespace {

Isa best() {
#if !defined(SLIP_BASELINE_ONLY)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return Isa::avx512;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::avx2;
#endif
  return Isa::baseline;
}

Isa choose() {
  const char* asked = std::getenv("SLIPSTREAM_ISA");
  if (!asked) return best();
  for (Isa candidate : {Isa::baseline, Isa::avx2, Isa::avx512})
    if (name_of(candidate) == asked) {
      if (candidate > best())
        throw ConfigError("[kernels] SLIPSTREAM_ISA={} cannot run here: this CPU has {}. Unset it.", asked,
                          name_of(best()));
      return candidate;
    }
  throw ConfigError("[kernels] SLIPSTREAM_ISA={} is unknown, need baseline, avx2 or avx512.", asked);
}

Isa& chosen() {
  static Isa chosen = choose();
  return chosen;
}

}  // namespace

Isa isa() { return chosen(); }

void use_isa(Isa isa) {
  SLIP_ASSERT(isa <= best());
  chosen() = isa;
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::baseline:
      return "baseline";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
  }
  return "?";
}

}  // namespace slipstream::kernels
