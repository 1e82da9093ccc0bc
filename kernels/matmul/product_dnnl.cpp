// SPDX-License-Identifier: Apache-2.0
// Matrix products by oneDNN, restricted to the calling thread.

#include <fmt/core.h>
#include <omp.h>

#include <array>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <unordered_map>

#include "engine/base/check.h"
#include "kernels/common/isa.h"
#include "kernels/matmul/product.h"

namespace slipstream::kernels {
namespace {

// The bit of dnnl_cpu_isa_t that is set only with bf16 dot products. AVX-512 without them would emulate bf16, which is
// slower than a conversion to float.
constexpr unsigned kBf16Bit = 0x80;

// oneDNN follows SLIPSTREAM_ISA, too, so that a lower set gives the bits of a machine with that set. As observed, this
// works only before the library's first product, hence the call before every product.
bool hold_library() {
  if (isa() == Isa::baseline) dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
  if (isa() == Isa::avx2) dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
  return true;
}

// The pool of the stream is the only pool: each of its threads sets OpenMP once to start no team.
void hold_thread() {
  static const bool library_held = hold_library();
  thread_local const bool held = (omp_set_num_threads(1), library_held);
  SLIP_ASSERT(held);
}

using Key = std::array<int64_t, 7>;

struct Bf16Product {
  dnnl::matmul primitive;
  dnnl::memory a, b, c, bias;
};

dnnl::memory::desc layout_of(int64_t rows, int64_t columns, int64_t stride, bool transposed,
                             dnnl::memory::data_type type) {
  using dnnl::memory;
  return memory::desc({rows, columns}, type, transposed ? memory::dims{1, stride} : memory::dims{stride, 1});
}

struct Layouts {
  dnnl::memory::desc a, b, c;
};
Layouts layouts_of(const Product& p) {
  using Type = dnnl::memory::data_type;
  return {layout_of(p.m, p.k, p.a_stride, p.a_transposed, Type::bf16),
          layout_of(p.k, p.n, p.b_stride, p.b_transposed, Type::bf16),
          layout_of(p.m, p.n, p.c_stride, false, p.c_dtype == DType::bf16 ? Type::bf16 : Type::f32)};
}

/// Prepares a product of these sizes. m and k may be DNNL_RUNTIME_DIM_VAL.
Bf16Product build(const Product& p, const dnnl::engine& engine) {
  using dnnl::memory;
  const auto [a, b, c] = layouts_of(p);
  const auto bias = p.bias != nullptr ? layout_of(1, p.n, p.n, false, memory::data_type::bf16) : memory::desc();
  dnnl::primitive_attr attributes;
  if (p.accumulate) {
    dnnl::post_ops operations;
    operations.append_sum(1.0f);
    attributes.set_post_ops(operations);
  }
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine, a, b, bias, c, attributes);
#else
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, bias, c), attributes, engine);
#endif
  Bf16Product product{.primitive = dnnl::matmul(description)};
  if (p.varying) return product;
  product.a = memory(a, engine, nullptr), product.b = memory(b, engine, nullptr);
  product.c = memory(c, engine, nullptr);
  if (p.bias != nullptr) product.bias = memory(bias, engine, nullptr);
  return product;
}

}  // namespace

void product_f32(const Product& p) {
  hold_thread();
  const dnnl_status_t status = dnnl_sgemm(p.a_transposed ? 'T' : 'N', p.b_transposed ? 'T' : 'N', p.m, p.n, p.k, 1.0f,
                                          static_cast<const float*>(p.a), p.a_stride, static_cast<const float*>(p.b),
                                          p.b_stride, p.accumulate ? 1.0f : 0.0f, static_cast<float*>(p.c), p.c_stride);
  if (status != dnnl_success)
    throw InternalError("[matmul] dnnl_sgemm failed with status {} for m = {}, n = {}, k = {}.",
                        static_cast<int>(status), p.m, p.n, p.k);
}

bool product_has_bf16() {
  static const bool has = [] {
    hold_thread();
    return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & kBf16Bit) != 0;
  }();
  return has;
}

void product_bf16(const Product& p) {
  hold_thread();
  // Creating a primitive costs more than a small product, so each thread keeps the primitives that it has used: as many
  // as a model has shapes.
  thread_local const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  thread_local dnnl::stream stream(engine);
  thread_local std::map<Key, Bf16Product> products;
  // Preparing a product of other sizes takes 0.2 ms, longer than multiplying the rows of a small expert. One of sizes
  // that are given at each call is as fast (measured with 300 x 1024 x 512).
  Product prepared = p;
  if (p.varying) prepared.m = prepared.k = DNNL_RUNTIME_DIM_VAL;
  const int64_t flags = (p.a_transposed ? 1 : 0) | (p.b_transposed ? 2 : 0) | (p.accumulate ? 4 : 0) |
                        (p.c_dtype == DType::bf16 ? 8 : 0) | (p.bias != nullptr ? 16 : 0) | (p.varying ? 32 : 0);
  const Key key = {prepared.m, p.n, prepared.k, p.a_stride, p.b_stride, p.c_stride, flags};
  try {
    auto found = products.find(key);
    if (found == products.end()) found = products.emplace(key, build(prepared, engine)).first;
    Bf16Product& it = found->second;
    if (p.varying) {
      const auto [a, b, c] = layouts_of(p);
      it.a = dnnl::memory(a, engine, nullptr);
      it.b = dnnl::memory(b, engine, nullptr);
      it.c = dnnl::memory(c, engine, nullptr);
    }
    it.a.set_data_handle(const_cast<void*>(p.a));
    it.b.set_data_handle(const_cast<void*>(p.b));
    it.c.set_data_handle(p.c);
    std::unordered_map<int, dnnl::memory> memories = {
        {DNNL_ARG_SRC, it.a}, {DNNL_ARG_WEIGHTS, it.b}, {DNNL_ARG_DST, it.c}};
    if (p.bias != nullptr) {
      it.bias.set_data_handle(const_cast<void*>(p.bias));
      memories.emplace(DNNL_ARG_BIAS, it.bias);
    }
    it.primitive.execute(stream, memories);
    stream.wait();
  } catch (const dnnl::error& error) {
    throw InternalError("[matmul] oneDNN failed with status {} ({}) for m = {}, n = {}, k = {} in bfloat16.",
                        static_cast<int>(error.status), error.message, p.m, p.n, p.k);
  }
}

bool product_direct(const Product& p, DType dtype, int threads) {
  hold_thread();
  omp_set_num_threads(threads);
  dtype == DType::f32 ? product_f32(p) : product_bf16(p);
  omp_set_num_threads(1);
  return true;
}

std::string_view product_library() {
  static const std::string name = [] {
    const dnnl_version_t* version = dnnl_version();
    return fmt::format("oneDNN {}.{}.{}", version->major, version->minor, version->patch);
  }();
  return name;
}

}  // namespace slipstream::kernels
