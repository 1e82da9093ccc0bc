// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which algorithm of cuBLASLt a product takes: timed once on a card, kept in a file, read by every run on it.
//
// Choices are a function of this table and of the library, never of timings inside a run, so they are part of the plan
// and a run repeats its bits. Without an entry a product takes the library's first choice, and gradients are not fused.

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

/// What the library does to a product before it stores it; the last two are gradients that a kernel of ours can do as
/// well.
enum class Epilogue : uint8_t { none, bias, gelu, gelu_bias, gelu_gradient, bias_gradient };

/// All that a choice depends on: D[m,n] = op(A)[m,k] op(B)[k,n], column-major, as Gemm in cublaslt.h.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_ld = 0, b_ld = 0, d_ld = 0;
  bool a_transposed = false, b_transposed = false;
  DType in = DType::f32, out = DType::f32;
  bool accumulate = false;
  Epilogue epilogue = Epilogue::none;
  uint32_t alignment_bytes = 256;  // of all operands

  auto operator<=>(const ProductShape&) const = default;
};
/// Its key in the file, such as "768x65536x3072 TN bfloat16 to bfloat16, ld 3072 3072 768, bias, aligned 256". Pure.
std::string text_of(const ProductShape& product);

using AlgorithmBits = std::array<uint64_t, 8>;  // a cublasLtMatmulAlgo_t, good for the same version of the library

struct TimedAlgorithm {
  AlgorithmBits algorithm = {};
  double us = 0;        // of this algorithm
  double first_us = 0;  // of the library's first choice
  double apart_us =
      0;  // of a fused gradient: the best plain product and the kernel that does the rest; 0 where there is none

  bool wins() const { return apart_us == 0 || us < apart_us; }
};

/// Times hold for one kind of card and one version of the library.
struct GemmLibrary {
  std::string card;
  int64_t version = 0;  // of cuBLASLt, as it numbers it; 0: not in this build
};

class AlgorithmTable {
 public:
  AlgorithmTable() = default;
  explicit AlgorithmTable(GemmLibrary library) : library_(std::move(library)) {}
  /// Throws: DataError "source ..." when malformed, or of another card or version than `library`. Pure.
  static AlgorithmTable parse(const std::string& text, const std::string& source, const GemmLibrary& library);
  /// JSON, one line per product. Pure.
  std::string text() const;

  const TimedAlgorithm* find(const ProductShape& product) const;
  void set(const ProductShape& product, const TimedAlgorithm& timed) { entries_[text_of(product)] = timed; }
  void erase(const ProductShape& product) { entries_.erase(text_of(product)); }
  size_t size() const { return entries_.size(); }

 private:
  GemmLibrary library_;
  std::map<std::string, TimedAlgorithm> entries_;  // by text_of(product)
};

/// What `asked` (device.algorithms) means for a card: a path, or with "auto" a file of the card and the version in the
/// user's cache folder; empty for "" and where there is no such folder. Pure but for the environment.
std::string algorithms_path(const std::string& asked, const GemmLibrary& library);
/// Blocks. The table at `path`; empty if there is none, and, with one sentence in `warning`, if it cannot be used.
AlgorithmTable read_algorithms(const std::string& path, const GemmLibrary& library, std::string& warning);
/// Blocks. Under its final name whole or not at all; makes the folder. Throws: ResourceError.
void write_algorithms(const std::string& path, const AlgorithmTable& table);

// --- of the build's library (kernels/cuda/cublaslt.cpp); nothing of it in a build without CUDA

/// The current GPU and the library that runs on it.
GemmLibrary gemm_library();
/// From now on products take what `table` says. Before a stream's first product.
void use_algorithms(AlgorithmTable table);

/// What a product that was asked for took.
struct ChosenAlgorithm {
  enum class From : uint8_t { table, library, kernel };  // kernel: the fused gradient was left to a kernel of ours
  From from = From::library;
  AlgorithmBits algorithm = {};
  int64_t calls = 0;  // on the streams that exist
};
/// Of all products of all streams so far.
std::map<ProductShape, ChosenAlgorithm> chosen_algorithms();
/// Products by operations x calls, the most first; before a fused gradient comes the plain product of the same size.
/// Pure.
std::vector<ProductShape> by_flops(const std::map<ProductShape, ChosenAlgorithm>& chosen);

struct SearchOptions {
  int candidates = 64;
  int rounds = 5;
  int64_t rotate_bytes = int64_t{256} << 20;  // operands come from so much memory in turn, more than the caches hold
  double seconds = 0;                         // after so long no product begins; 0: no limit
};
/// Blocks. Times the products that `table` lacks, in this order, and adds them to it.
///
/// Each product is timed with up to `candidates` algorithms on the context's stream, which has nothing else to do, with
/// operands that rotate. A product that no algorithm serves gets no entry. `added` is called after each entry.
/// Returns: the number of products that the time limit left out. Throws: ResourceError.
size_t search_algorithms(LaunchContext& context, const std::vector<ProductShape>& products,
                         const SearchOptions& options, AlgorithmTable& table,
                         const std::function<void(const ProductShape&, const TimedAlgorithm&)>& added);

}  // namespace slipstream::kernels
