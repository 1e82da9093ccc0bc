// SPDX-License-Identifier: Apache-2.0
#pragma once
// Selects cuBLASLt's algorithm for each product. It is timed once on a GPU, and kept in a file that every run on that
// GPU reads.
//
// Choices depend only on this table and on the library, never on timings inside a run. They are therefore part of the
// plan, and a run repeats its bits. Without an entry, a product uses the library's first choice, and gradients are not
// fused.

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/device/work.h"

namespace slipstream::kernels {

/// The operation that the library applies to a product before storing it. The values from gelu_gradient on are
/// gradients that our kernels can compute as well. summed_gelu_gradient is the library's gelu_gradient followed by a
/// kernel that sums the result; gelu_bias_gradient includes these sums.
enum class Epilogue : uint8_t {
  none,
  bias,
  gelu,
  gelu_bias,
  gelu_gradient,
  bias_gradient,
  summed_gelu_gradient,
  gelu_bias_gradient
};
constexpr bool is_gradient(Epilogue epilogue) { return epilogue >= Epilogue::gelu_gradient; }

/// All inputs of a choice: D[m,n] = op(A)[m,k] op(B)[k,n], column-major, as Gemm in cublaslt.h.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_ld = 0, b_ld = 0, d_ld = 0;
  bool a_transposed = false, b_transposed = false;
  DType in = DType::f32, out = DType::f32;
  bool accumulate = false;
  Epilogue epilogue = Epilogue::none;
  uint32_t alignment_bytes = 256;  // of all operands
  int32_t multiprocessors = 0;     // as Gemm::multiprocessors

  auto operator<=>(const ProductShape&) const = default;
};
/// Pure. The key of the product in the file, such as "768x65536x3072 TN bfloat16 to bfloat16, ld 3072 3072 768, bias,
/// aligned 256".
std::string text_of(const ProductShape& product);

using AlgorithmBits = std::array<uint64_t, 8>;  // a cublasLtMatmulAlgo_t, valid for one version of the library

struct TimedAlgorithm {
  AlgorithmBits algorithm = {};
  double us = 0;        // of this algorithm
  double first_us = 0;  // of the library's first choice
  double apart_us = 0;  // of a fused gradient: the best product without it, plus the kernels for the rest; 0 for others

  bool wins() const { return apart_us == 0 || us < apart_us; }
};

/// Times are valid for one GPU model and one version of the library.
struct GemmLibrary {
  std::string card;
  int64_t version = 0;  // of cuBLASLt, in its own numbers; 0: not in this build
};

class AlgorithmTable {
 public:
  AlgorithmTable() = default;
  explicit AlgorithmTable(GemmLibrary library) : library_(std::move(library)) {}
  /// Pure. Throws: DataError "source ..." if the text is malformed, or if it is for another GPU or version than
  /// `library`.
  static AlgorithmTable parse(const std::string& text, const std::string& source, const GemmLibrary& library);
  /// Pure. JSON, one line per product.
  std::string text() const;

  /// Entries are timed on the whole card, and also apply to its parts.
  const TimedAlgorithm* find(const ProductShape& product) const;
  void set(const ProductShape& product, const TimedAlgorithm& timed) { entries_[text_of(product)] = timed; }
  void erase(const ProductShape& product) { entries_.erase(text_of(product)); }
  size_t size() const { return entries_.size(); }

 private:
  GemmLibrary library_;
  std::map<std::string, TimedAlgorithm> entries_;  // by text_of(product)
};

/// Pure except for the environment. The path for `asked` (device.algorithms). A path stays as it is. "auto" gives a
/// file for this GPU and version in the user's cache folder. The result is empty for "", and if there is no such
/// folder.
std::string algorithms_path(const std::string& asked, const GemmLibrary& library);
/// Blocks. Returns the table at `path`. It is empty if there is none, and empty with a message in `warning` if it
/// cannot be used.
AlgorithmTable read_algorithms(const std::string& path, const GemmLibrary& library, std::string& warning);
/// Blocks. Creates the folder. The file appears under its final name complete or not at all. Throws: ResourceError.
void write_algorithms(const std::string& path, const AlgorithmTable& table);

// --- functions of the build's library (kernels/cuda/cublaslt.cpp), which a build without CUDA lacks

/// The current GPU and the library that runs on it.
GemmLibrary gemm_library();
/// Sets the table for all later products. Call it before a stream's first product.
void use_algorithms(AlgorithmTable table);

/// The algorithm that a product used.
struct ChosenAlgorithm {
  enum class From : uint8_t { table, library, kernel };  // kernel: one of our kernels computed the fused gradient
  From from = From::library;
  AlgorithmBits algorithm = {};
  int64_t calls = 0;  // on all existing streams
};
/// All products of all streams so far.
std::map<ProductShape, ChosenAlgorithm> chosen_algorithms();
/// Pure. The products by operations x calls, the largest first. The plain product of the same size precedes a fused
/// gradient.
std::vector<ProductShape> by_flops(const std::map<ProductShape, ChosenAlgorithm>& chosen);

struct SearchOptions {
  int candidates = 64;
  int rounds = 5;
  int64_t rotate_bytes = int64_t{256} << 20;  // operands rotate through this much memory, more than the caches hold
  double seconds = 0;                         // after this time no product begins; 0: there is no limit
};
/// Blocks. Times the products that `table` lacks, in this order, and adds them to the table.
///
/// Each product is timed with up to `candidates` algorithms on the context's stream, which must be idle, with rotating
/// operands. A product without an algorithm gets no entry. `added` is called after each entry.
/// Returns: the number of products for which the time did not suffice. Throws: ResourceError.
size_t search_algorithms(LaunchContext& context, const std::vector<ProductShape>& products,
                         const SearchOptions& options, AlgorithmTable& table,
                         const std::function<void(const ProductShape&, const TimedAlgorithm&)>& added);

}  // namespace slipstream::kernels
