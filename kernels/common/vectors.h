// SPDX-License-Identifier: Apache-2.0
#pragma once
// Loops over a row in vectors, of which the last one may be partial. Only *_cpu.cpp files include it.

#include "kernels/common/simd.h"

namespace slipstream::kernels::SLIP_ISA {

/// The number of lanes of a vector that hold elements. Whole vectors cost no branch.
struct Whole {
  template <typename T>
  Vf load(const T* p) const {
    return SLIP_ISA::load(p);
  }
  template <typename T>
  void store(T* p, Vf v) const {
    SLIP_ISA::store(p, v);
  }
  Vf keep(Vf v) const { return v; }
};
struct Part {
  int64_t count;
  template <typename T>
  Vf load(const T* p) const {
    return load_part(p, count);
  }
  template <typename T>
  void store(T* p, Vf v) const {
    store_part(p, v, count);
  }
  /// v with zeros in the lanes without elements.
  Vf keep(Vf v) const {
    float lanes[kLanes] = {};
    store_part(lanes, v, count);
    return SLIP_ISA::load(lanes);
  }
};

/// Calls body(lanes, index) for every vector of [begin, end).
template <typename Body>
inline void for_vectors(int64_t begin, int64_t end, Body body) {
  int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) body(Whole{}, i);
  if (i < end) body(Part{end - i}, i);
}

/// v after it was stored to T and loaded again.
inline Vf rounded_to(const float*, Vf v) { return v; }
inline Vf rounded_to(const bfloat16*, Vf v) {
  const Vu u = reinterpret_cast<Vu>(v);
  const Vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  return v == v ? reinterpret_cast<Vf>(rounded) : v;
}

}  // namespace slipstream::kernels::SLIP_ISA
