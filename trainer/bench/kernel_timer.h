// SPDX-License-Identifier: Apache-2.0
#pragma once
// Times ops interleaved with their bounds.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/device/work.h"
#include "kernels/matmul/product.h"
#include "trainer/bench/csv_file.h"
#include "trainer/bench/options.h"

namespace slipstream::bench {

/// The bound of a product is the time of the library, called directly with the same shape and threads. The bound of
/// every other op is the larger of two times: a copy of the same bytes, and its operations at the rate of a large
/// product. Bound and op are interleaved, so that a busy machine slows both. Prints a line and writes a row for each
/// op.
class KernelTimer {
 public:
  struct Size {
    const char* name;
    int64_t batch, tokens, heads, width, ffn, vocab;
    int64_t rows() const { return batch * tokens; }
  };
  using Body = std::function<void()>;

  /// Throws: IoError if its CSV cannot be written.
  explicit KernelTimer(const KernelsOptions& options);

 protected:
  /// Measures the rates of a copy and of a large product on the context's threads.
  void measure_rates(const Size& any);
  bool wanted(const std::string& op);

  /// Returns memory with small values of this size's dtype, of float, or with ids below `vocab` that are as frequent as
  /// in text (Philox::zipf). It lives until the size is finished.
  void* values(int64_t elems, DType dtype);
  void* values(int64_t elems) { return values(elems, dtype_); }
  float* floats(int64_t elems) { return static_cast<float*>(values(elems, DType::f32)); }
  const int32_t* ids(int64_t elems, int64_t vocab);

  /// The copy has as many bytes as the op, so that both stay in the cache or both use memory.
  void compare(const std::string& op, const std::string& shape, const Cost& cost, const Body& ours);
  void compare_product(const std::string& op, const std::string& shape, const Cost& cost, const Body& ours,
                       const kernels::Product& direct);

  struct alignas(64) Line {
    std::byte bytes[64];
  };
  const KernelsOptions& options_;
  LaunchContext context_;
  const Size* size_ = nullptr;
  DType dtype_ = DType::f32;
  bool found_ = false;  // --only selects at least one row
  std::vector<std::vector<Line>> memory_;

 private:
  void copy_bytes(int64_t bytes);
  void print(const std::string& op, const std::string& shape, const Cost& cost, double ns, double bound_ns,
             const char* bound);

  std::vector<std::byte> from_, to_;
  double flops_per_ns_ = 0;
  CsvFile csv_;
};

}  // namespace slipstream::bench
