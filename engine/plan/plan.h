// SPDX-License-Identifier: Apache-2.0
#pragma once
// The plan: one kind of step as data. The program prints, proves, rehearses, runs and reconciles this one value.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/format.h"
#include "engine/device/work.h"
#include "engine/plan/buffers.h"
#include "engine/plan/mesh.h"

namespace slipstream {

using ItemId = uint32_t;     // spine items first, then tasks: item i is spine[i], or tasks[i - spine.size()]
using ChannelId = uint32_t;  // index into Job::channels
constexpr ChannelId kComputeChannel = 0;

enum class Op : uint8_t {
  compute,  // spine items only
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all = 5,  // the hash of a plan has these numbers
  send,
  recv,
  exchange,
  sum_squares,
  clip,
  update,
  add,
  add_rows,
  encode,
  decode,
  sum_parts,
  copy,
  load,
  report,
  snapshot,  // a copy to host memory
  seal,      // the hash of a kept snapshot
  all_to_all_v,
};
const char* name_of(Op op);
constexpr bool is_communication(Op op) {
  return (op >= Op::all_reduce && op <= Op::exchange) || op == Op::all_to_all_v;
}

/// The point at which an item of a plan is complete.
struct Point {
  ItemId item = 0;
  bool operator==(const Point&) const = default;
};

/// The purpose of a channel. A job has at most one channel of each role. A role decides nothing, and only its name is
/// printed.
enum class Role : uint8_t {
  compute,
  h2d,             // stages the next batch
  update,          // the optimizer, if it has a stream of its own
  pipe_fwd_in,     // activations and gradients from the previous stage in the ring of stages
  pipe_fwd_out,    // to the next stage
  pipe_bwd_in,     // from the next stage
  pipe_bwd_out,    // to the previous stage
  tied,            // shares of a table that the stages of the first and the last part hold
  align,           // stages wait for each other before gradients travel
  scalars,         // sums of losses and norms
  norm,            // sums of norms, if their axis differs from that of scalars
  tensor_reduce,   // sums inside a layer
  tensor_gather,   // gathers inside a layer, whose chunks need not wait for the sums of later chunks
  ring,            // keys and values, and sums over the tokens of a sequence
  ring_gradients,  // gradients of keys and values
  reduce,          // gradients
  gather,          // parameters
  reduce_across,   // hybrid sharding: sums of shards across groups
  save,            // copies of the training state to host memory
  keep,            // the same for snapshots that keepers hold
  peer,            // those snapshots on their way to the rank that holds the second copy
  experts,         // rows of tokens on their way to experts and back
};
const char* name_of(Role role);
/// Returns true if messages only arrive on the channel, or only leave it. A send on pipe_fwd_out meets the recv on its
/// peer's pipe_fwd_in.
constexpr bool is_one_way(Role role) { return role >= Role::pipe_fwd_in && role <= Role::pipe_bwd_out; }
/// Maps `pipe_fwd_in` to `pipe_fwd_out` and `pipe_bwd_in` to `pipe_bwd_out`, so that both ends of a wire have one role.
/// Returns roles that work in both directions unchanged.
constexpr Role wire_of(Role role) {
  return role == Role::pipe_fwd_in ? Role::pipe_fwd_out : role == Role::pipe_bwd_in ? Role::pipe_bwd_out : role;
}
/// Returns true if gradients or parameters travel on the channel. The ZeRO paper counts their bytes.
constexpr bool carries_states(Role role) {
  return role == Role::reduce || role == Role::gather || role == Role::reduce_across;
}

/// The part of a machine that moves the bytes of a channel.
enum class Engine : uint8_t {
  sm,    // blocks of kernels on multiprocessors, which local work then lacks
  copy,  // a GPU's copy engines
  nic,   // a network adapter or the host; this is the default
};
const char* name_of(Engine engine);

/// One in-order stream in addition to compute. A communication channel connects the group of `axis`. A local channel
/// has Axis::self.
struct Channel {
  Role role = Role::compute;
  Axis axis = Axis::self;
  std::string name = name_of(role);
  Engine engine = Engine::nic;
  int blocks = 0;  // the multiprocessors that a transfer occupies; 0: none, or a number that NCCL chooses

  /// Returns true if the channel's stream runs kernels, which may need scratch memory of their own.
  bool runs_kernels() const { return axis == Axis::self && role != Role::save && role != Role::keep; }
};

/// The common part of spine items and tasks. Accesses are resolved to buffers with storage and absolute bytes.
struct Item {
  std::string name;
  ChannelId channel = kComputeChannel;
  Op op = Op::compute;
  Cost cost;  // of compute and local work; a communication op is priced by its bytes
  std::vector<Slice> reads;
  std::vector<Slice> writes;
  std::vector<Point> after;     // the item begins when all are complete, in its channel's order; pruned by finish()
  std::vector<Rebind> rebinds;  // the location of buffers for this item only
  int32_t bucket = -1;          // of a reduction or an update; -1: no bucket, or all buckets of its group
  int32_t group = -1;           // for an update; -1: the item is none
};

/// A piece of the model for one micro-batch. Pieces run in order on the compute stream.
struct SpineItem : Item {
  uint32_t piece = 0;  // an index into ModelSpec::pieces
  int32_t micro_batch = 0;
  int32_t slot = 0;
  bool accumulate = false;  // it adds to the gradients of earlier micro-batches
  /// The multiprocessors for which its products are planned, because transfers occupy the others; 0: all.
  int32_t multiprocessors = 0;
};

/// How a host collective moves its bytes. The plan decides this, and a run never does.
enum class Algorithm : uint8_t {
  direct,  // every rank exchanges with every other at once: 1 round (all_reduce: 2), additions in rank order
  ring,    // only neighbours exchange: n-1 rounds (all_reduce: 2(n-1))
};

/// The bounds of an all_to_all_v, equal on all ranks of the group. The rows that travel are counted in memory when the
/// work runs (see Communicator::all_to_all_v).
struct Route {
  int32_t experts = 0;      // of each rank of the group; 0: the op is another one
  int64_t row_elems = 0;    // of the type on the wire
  int64_t source_rows = 0;  // that the memory of a source holds
  int64_t bound_rows = 0;   // that the memory of an owner of experts holds
  int64_t begin_rows = 0;   // the rows of an owner that travel in earlier rounds
  int32_t round = 0;        // of `rounds`, which together move all rows
  int32_t rounds = 1;
  bool reverse = false;  // false: from sources to owners; true: back
  bool operator==(const Route&) const = default;
};
/// Pure. The elements that one rank sends to one other rank at balanced load.
int64_t balanced_elems(const Route& route, int ranks);

/// Work off the spine: communication, or local work that communication causes.
struct Task : Item {
  int16_t peer = 0;             // send/recv/exchange: offset along the axis
  std::optional<Point> before;  // the earliest spine item that waits for it; none if only tasks do
  DType dtype = DType::f32;     // the type of the elements on the wire, or of a local op
  Format format;                // encode, decode, sum_parts: the format of the encoded side
  /// The part of a rank: all_reduce: all; reduce_scatter: received; all_gather: contributed; all_to_all_v:
  /// balanced_elems(), for prices.
  int64_t elems = 0;
  Algorithm algorithm = Algorithm::direct;
  Route route = {};  // all_to_all_v, whose `reads` are the rows and the counts
};

struct ModelSpec;

/// One kind of step. It is immutable once it is finished.
struct Plan {
  std::string kind;  // "train", "evaluate", "prime", "save", "keep"
  std::vector<SpineItem> spine;
  std::vector<Task> tasks;
  std::vector<ItemId> order;  // the host order of all items, equal to the global order's projection; set by finish()

  size_t size() const { return spine.size() + tasks.size(); }
  bool is_spine(ItemId item) const { return item < spine.size(); }
  const Item& operator[](ItemId item) const {
    return is_spine(item) ? static_cast<const Item&>(spine[item]) : tasks[item - spine.size()];
  }
  Item& operator[](ItemId item) {
    return is_spine(item) ? static_cast<Item&>(spine[item]) : tasks[item - spine.size()];
  }
  const Task& task(ItemId item) const { return tasks[item - spine.size()]; }
  Task& task(ItemId item) { return tasks[item - spine.size()]; }
};

/// A wait between plans: `to` of the next plan waits for `from` of run `run` of the history.
struct SeamWait {
  uint32_t run = 0;  // an index into the history that was given to link()
  ItemId from = 0;
  ItemId to = 0;
  bool operator==(const SeamWait&) const = default;
};

}  // namespace slipstream
