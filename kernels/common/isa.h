// SPDX-License-Identifier: Apache-2.0
#pragma once
// The instruction set of the CPU kernels: every *_cpu.cpp is compiled once per set, and one set is chosen at run time.

#include <string_view>

namespace slipstream::kernels {

enum class Isa { baseline, avx2, avx512 };

/// The best set that this machine supports. SLIPSTREAM_ISA=baseline|avx2|avx512 selects a lower one. The choice is part
/// of the plan, because bits depend on it, and run.json records it. Throws: ConfigError if the selected set cannot run
/// here.
Isa isa();
/// Selects another set from now on. For tests, while no op runs. Throws: BugError if the machine does not support it.
void use_isa(Isa isa);
std::string_view name_of(Isa isa);

}  // namespace slipstream::kernels

/// Declares the CPU functions of an op for every instruction set:
///   SLIP_DECLARE_PER_ISA(void gelu_backward_cpu(LaunchContext& context, const GeluBackward& args);)
#define SLIP_DECLARE_PER_ISA(...) \
  namespace isa_baseline {        \
  __VA_ARGS__                     \
  }                               \
  namespace isa_avx2 {            \
  __VA_ARGS__                     \
  }                               \
  namespace isa_avx512 {          \
  __VA_ARGS__                     \
  }

/// Calls the function of the chosen set: SLIP_CALL_ISA(gelu_backward_cpu(context, args));
#if defined(SLIP_BASELINE_ONLY)  // the build has no other set (kernels/meson.build)
#define SLIP_CALL_ISA(call) \
  { isa_baseline::call; }
#else
#define SLIP_CALL_ISA(call)                    \
  switch (::slipstream::kernels::isa()) {      \
    case ::slipstream::kernels::Isa::avx512:   \
      isa_avx512::call;                        \
      break;                                   \
    case ::slipstream::kernels::Isa::avx2:     \
      isa_avx2::call;                          \
      break;                                   \
    case ::slipstream::kernels::Isa::baseline: \
      isa_baseline::call;                      \
      break;                                   \
  }
#endif
