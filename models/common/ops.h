// SPDX-License-Identifier: Apache-2.0
#pragma once
// The operations in which the forward pass of a layer is written, and their operands.
//
// SpecBuilder (blocks.h) turns each operation into a work of a ModelSpec. Text generation (generation.cpp) computes it
// at once, for the newest tokens. So a forward pass is written once.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/expert_options.h"
#include "engine/device/work.h"

namespace slipstream::models {

/// One of `count` equal parts of the tokens of a micro-batch.
struct TokenChunk {
  int index = 0, count = 1;
};

/// A part of a pass over a layer, for one chunk of the tokens.
struct Stage {
  std::string piece, part;  // the name of its piece on one rank, and the rest of the name if ranks share layers
  int layer = -1;
  std::function<void(TokenChunk)> body;
  bool whole = false;  // not token-wise: the body is called once, for all tokens

  bool is_part_of(const Stage& other) const {
    return piece == other.piece && part == other.part && layer == other.layer;
  }
};

/// y = x weight^T (+ bias). This is a rank's part of a weight [out, in].
struct Linear {
  uint32_t weight = 0;
  int64_t bias = -1;  // -1: none
  int64_t in = 0, out = 0;
  int64_t padding = 0;              // the last rows of `out`, all zeros
  Slice made = {}, made_bias = {};  // weights that an earlier work has assembled; they replace the parameters' values
  /// True: the work of the weight's gradient also computes the bias's; false: the work that writes dy adds its rows.
  bool sums_dy = true;
};

/// A layer norm if there is a bias, otherwise an RMS norm, with the values that its forward pass keeps for its backward
/// pass.
struct Norm {
  uint32_t weight = 0;
  int64_t bias = -1;
  Slice mean = {}, inv_std = {};  // float [own_rows]; an RMS norm has no mean
  Slice partial = {};             // gradients of weight and bias, if they are this rank's share of a sum

  std::vector<uint32_t> parameters() const {
    return bias < 0 ? std::vector{weight} : std::vector{weight, static_cast<uint32_t>(bias)};
  }
};

/// The RMS norms of the heads of queries and keys.
struct HeadNorms {
  int64_t q_weight = -1, k_weight = -1;  // -1: none
  Slice inv_rms = {};                    // float [rows, heads + kv_heads]
  Slice partial = {};                    // gradients of both weights, if they are this rank's share of a sum

  bool exist() const { return q_weight >= 0; }
  std::vector<uint32_t> parameters() const {
    return {static_cast<uint32_t>(q_weight), static_cast<uint32_t>(k_weight)};
  }
};

/// The attention of one layer.
struct AttentionLayer {
  int index = 0;
  int64_t window = 0;  // the number of tokens that a token attends to, including itself; 0: all tokens before it
};

/// The router of a mixture of experts, with the values that its forward pass keeps for its backward pass. E experts, of
/// which each token passes k.
struct Router {
  uint32_t weight = 0;         // [E, width]
  ExpertOptions options = {};  // of the layer
  Slice logits = {};           // float [rows, E]
  Slice scores = {};           // float [rows, E]
  Slice chosen = {};           // int32 [rows, k]
  Slice weights = {};          // float [rows, k]
};

/// The order of rows at experts, which have a row for each choice of each token.
struct ExpertRoute {
  // The choices of tokens, in the order (expert, token): those of this rank's tokens. If ranks gather tokens, they are
  // those of all ranks' tokens, without the choices of other ranks' experts.
  Slice offsets = {};    // int32 [E + 1]: the first row of each expert, and the number of rows
  Slice choices = {};    // int32 [rows x k]: token x k + choice
  Slice places = {};     // int32 [rows, k]: the inverse of `choices`
  Slice weights = {};    // float [rows x k]
  int64_t first = 0;     // the expert with which `offsets` begins
  bool gathers = false;  // ranks gather tokens

  // The rows of this rank's experts, in the order (expert, rank, token). If rows do not travel, they are those above.
  Slice counts = {};       // int32 [ranks, E]: the rows that each rank sends to each expert; empty: no rows travel
  Slice own_offsets = {};  // int32 [experts + 1]
  Slice own_weights = {};  // float [bound]
  int64_t experts = 0;     // of this rank
  int64_t bound = 0;       // the rows that memory holds
  int64_t expected = 0;    // the rows of equal loads, for prices

  // Rows beyond the memory travel in later rounds, each of which has the next rows of this rank's experts.
  int64_t begin = 0;              // the rows of earlier rounds
  int32_t round = 0, rounds = 1;  // rows of later rounds are computed and return before those of round 0
  Slice late = {};  // int32 [1]: the number of this rank's rows if any of them travels in a later round, otherwise 0
};

/// The products of experts, which have weights [E, out, in]: y = x weight^T with the weight of the row's expert.
struct ExpertLinear {
  uint32_t weight = 0;
  int64_t experts = 0, in = 0, out = 0;
};

/// The number of rows of an operand is that of the pass: a micro-batch or a chunk of it in training, the newest tokens
/// in generation. Weights are [out, in].
class Ops {
 public:
  virtual ~Ops() = default;

  /// x (own rows) = table[ids] (+ positions). If ranks share the tokens, `partial` is memory for all rows. If it is x,
  /// own rows are those of SpecBuilder::own().
  virtual void embed(uint32_t table, int64_t positions, Slice x, Slice partial) = 0;
  /// y = norm(x + delta). Also stores the sum. Without delta, y = norm(x).
  virtual void norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y) = 0;
  /// y = x w^T + bias.
  virtual void linear(Slice x, const Linear& w, Slice y) = 0;
  /// y = gelu(pre) with pre = x w^T + bias.
  virtual void linear_gelu(Slice x, const Linear& w, Slice pre, Slice y) = 0;
  /// linear() whose result is summed over the ranks that share the layer. The first rank adds the bias.
  virtual void partial_linear(Slice x, const Linear& w, Slice y) = 0;
  /// After the current piece, sums chunk c of `partial` over the ranks that share a layer, into chunk c of `sum` (own
  /// rows) or in place.
  virtual void reduce(Slice partial, TokenChunk c, Slice sum = {}) = 0;
  /// y = silu(gate) up, gate_up [.., 2 width].
  virtual void swiglu(Slice gate_up, Slice y, int64_t width) = 0;
  /// Chooses the experts of each token, with their weights.
  virtual void route(Slice x, const Router& router) = 0;
  /// Orders the choices of all tokens by expert, and copies the rows of x into that order.
  virtual void take_rows(Slice x, const Router& router, const ExpertRoute& route, Slice rows) = 0;
  /// After the current piece, sends the round's rows and their weights to the ranks of their experts. If one rank has
  /// all experts, `rows` and `arrived` are the same.
  virtual void send_rows(Slice rows, const ExpertRoute& route, Slice arrived) = 0;
  /// Finds the rows of this rank's experts by the counts that have arrived.
  virtual void find_own_rows(const ExpertRoute& route) = 0;
  virtual void expert_linear(Slice x, const ExpertLinear& w, const ExpertRoute& route, Slice y) = 0;
  /// y = weight silu(gate) up, with the weight of the row's choice; gate_up [.., 2 width].
  virtual void expert_swiglu(Slice gate_up, const ExpertRoute& route, Slice y, int64_t width) = 0;
  /// After the current piece, sends the round's rows back to the ranks of their tokens.
  virtual void send_back(Slice rows_of_experts, const ExpertRoute& route, Slice rows) = 0;
  /// y = the sum over a token's choices of their rows (+ more).
  virtual void return_rows(Slice rows, const Router& router, const ExpertRoute& route, Slice more, Slice y) = 0;
  /// Puts together the weights of `joined`, with SpecBuilder::shares_kv().
  virtual void assemble_qkv(const Linear& q, const Linear& kv, const Linear& joined) = 0;
  /// qkv = raw with normed heads of queries and keys.
  virtual void head_norm(Slice raw, const HeadNorms& n, Slice qkv) = 0;
  /// Rotates q and k inside packed qkv, in place. `inverse` is the backward pass.
  virtual void rotate(Slice qkv, bool inverse) = 0;
  /// `lse` (the log of the sum of exponentials) is kept for the backward pass.
  virtual void attention(const AttentionLayer& layer, double dropout_rate, Slice qkv, Slice out, Slice lse) = 0;
};

}  // namespace slipstream::models
