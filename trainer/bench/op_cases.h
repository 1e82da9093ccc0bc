// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ops with arguments of given sizes: the rows of slipstream bench kernels and of tests/gpu/cuda/kernels_bench.cpp.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>

#include "engine/device/work.h"
#include "kernels/matmul/product.h"

namespace slipstream::bench {

/// One op with its arguments.
struct OpCase {
  std::string op, shape;
  Cost cost;
  std::function<void()> run;
  double flops = 0;           // for attention, as its papers count; 0: those of `cost`
  kernels::Product direct{};  // k > 0: the same product for the host's library, in the type of direct_type()
};

/// Measures cases on one device. Every function makes the operands of some ops, measures these one after another, and
/// frees the operands. All activations have the type `dtype_`.
class OpCases {
 public:
  virtual ~OpCases() = default;

  struct Layer {
    const char* name;
    int64_t rows, in, out;
    bool bias = false, gelu = false, accumulate = false, forward_alone = false;
  };
  void products(const Layer& layer);
  void attention(int64_t batch, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t head_dim, bool blocks);
  void layer_norm(int64_t rows, int64_t width);
  void rms_norm(int64_t rows, int64_t width);
  void head_norm(int64_t rows, int64_t heads, int64_t head_dim);
  void activations(int64_t rows, int64_t width);
  /// Measures the sum of a residual connection, without and with dropout, and dropout alone.
  void residuals(int64_t batch, int64_t tokens, int64_t width);
  /// Measures a mixture of experts of `hidden` units each, up to the second product. Choices are as frequent as words
  /// of a text, so that the loads of experts are uneven.
  void experts(int64_t tokens, int64_t width, int64_t hidden, int64_t count, int64_t top_k);
  void rope(int64_t batch, int64_t tokens, int64_t heads, int64_t head_dim, int64_t row_stride);
  /// `vocab` is the number of rows of the table, and the ids are below `ids_below`.
  void embedding(int64_t batch, int64_t tokens, int64_t width, int64_t vocab, int64_t ids_below);
  /// `stride` is the number of elements of a row of logits, of which the first `vocab` count.
  void loss(int64_t rows, int64_t vocab, int64_t stride);
  /// Measures ops on the float parameters of a model or a part of one. `narrow_alone`: AdamW always writes a bfloat16
  /// copy.
  void update(int64_t elems, bool narrow_alone);

 protected:
  virtual bool wanted(const std::string& op) = 0;
  virtual void measure(const OpCase& op) = 0;
  /// Return memory of the device until free_all(): without set values, with random values, or with ids that are as
  /// frequent as in text.
  virtual void* take(int64_t size_bytes) = 0;
  virtual void* values(int64_t elems, DType dtype, float scale) = 0;
  virtual int32_t* ids(int64_t elems, int64_t below) = 0;
  virtual void upload(void* to, const void* from, int64_t size_bytes) = 0;
  virtual void free_all() = 0;
  /// The type in which the host's library multiplies these operands, for comparison; none on other devices.
  virtual std::optional<DType> direct_type() const { return {}; }

  void* values(int64_t elems) { return values(elems, dtype_, 1); }
  float* floats(int64_t elems, float scale = 1) { return static_cast<float*>(values(elems, DType::f32, scale)); }

  LaunchContext context_;
  DType dtype_ = DType::bf16;

 private:
  template <typename Args, typename CostOf, typename Op>
  void time(const char* op, const std::string& shape, const Args& args, CostOf cost, Op run, double flops = 0,
            const kernels::Product& direct = {});
  bool any_wanted(std::initializer_list<const char*> ops);
  /// The three products of a linear layer for the host's library; without sizes on other devices.
  struct DirectProducts {
    kernels::Product forward, input, weight;
  };
  DirectProducts direct_products(int64_t rows, int64_t in, int64_t out, void* x, void* w, void* y);
  void router(int64_t tokens, int64_t width, int64_t count, int64_t top_k, const int32_t* chosen);
  void rows_of_experts(int64_t tokens, int64_t width, int64_t hidden, int64_t count, int64_t top_k,
                       const int32_t* chosen);
  void grouped_products(int64_t rows, int64_t in, int64_t out, int64_t count, const int32_t* offsets);
  template <typename T>
  const T* uploaded(const T* host, int64_t count);
};

}  // namespace slipstream::bench
