// SPDX-License-Identifier: Apache-2.0
#pragma once
// The types of the memory of one rank while its stage's plan runs, and the rules by which works and tasks change them.

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "comm/rehearse/reductions.h"
#include "comm/rehearse/value_types.h"
#include "engine/plan/saved_state.h"

namespace slipstream::comm {

/// Ends the walk through a plan.
struct Refused {
  Incomplete what;
};

/// The facts of a job that all stages share.
struct Shared {
  TermPool pool;
  std::map<std::string, std::set<int32_t>> uses;  // of each parameter, by all works that the model declares
  int64_t tokens = 0;                             // of a step, over all ranks and micro-batches
  // The transfers between stages that have been sent, by wire, with the sending and the receiving stage.
  struct Sent {
    Runs runs;
    std::string tensor;  // of gradients: the tensor
  };
  std::map<std::pair<Role, std::pair<int, int>>, std::deque<Sent>> sent;
};

/// The axis of the ranks that have other tokens. The sum of their terms belongs to the batch of a step.
constexpr Axis kTokenRanks = Axis::replica;

/// What divides values beside the axes of the mesh, for messages.
constexpr const char *kSteps = "steps", *kMicroBatches = "micro-batches", *kTokens = "tokens", *kUses = "uses",
                     *kElements = "elements", *kAllAxes = "all axes";

class StageTypes {
 public:
  StageTypes(const Job& job, const PlanRow& row, Shared& shared);

  /// Types the memory that the plan before must have left.
  void begin();
  /// Continues until the plan ends, or until the next item needs another stage. Returns whether any item was typed.
  bool advance();
  bool is_done() const { return at_ == plan_.order.size(); }
  /// The collective over all stages at which the walk stands, and what this stage contributes to it.
  const Task* meeting() const { return meeting_; }
  Axis meeting_axis() const { return job_.channels[meeting_->channel].axis; }

  const Runs& offered() const { return offered_; }
  [[noreturn]] void refuse_meeting() const;
  /// The sum of what all stages contribute.
  Runs added(const std::vector<Runs>& lists);
  /// Ends the collective with its result on every stage.
  void meet(const Runs& sum);
  /// Checks what every plan must leave.
  void end();
  int64_t arrays_of_a_checkpoint() { return std::ssize(saved()); }

  int64_t works = 0, tasks = 0;

 private:
  // stage_types.cpp
  [[noreturn]] void refuse(const std::string& tensor, const std::string& axis, const std::string& fault) const;
  const std::string& buffer_name(const Slice& slice) const { return job_.buffers[slice.buffer].name; }
  std::string tensor_at(int64_t flat_elem) const;
  /// The storage of this rank's shard of a tensor that is alone in its bucket, or null.
  const BucketStorage* storage_of(const std::string& tensor) const;

  Runs padding_of(const BucketStorage& storage) const;
  int size_of_axis(Axis axis) const { return job_.mesh.group_size(axis); }
  int index_on(Axis axis) const { return job_.mesh.index_in_group(axis, job_.options.rank); }

  static uint16_t bit_of(Axis axis) { return static_cast<uint16_t>(1 << static_cast<int>(axis)); }  // in Type::summed
  bool meet_twice(Axis a, Axis b);
  bool is_complete(const Type& type, Axis over) const;
  std::string sum_text(const Type& type);
  Share partial(Axis axis) const { return {.terms = static_cast<int16_t>(size_of_axis(axis) > 1 ? 1 : 0)}; }
  Share part(Axis axis, Dim dim) const { return {.dim = size_of_axis(axis) > 1 ? dim : Dim::whole}; }
  std::string words(const Type& type);
  Slice swapped(Slice slice) const;
  Slice next(const Slice& slice) const;
  void item();

  // work_rules.cpp
  void spine_item(const SpineItem& item);
  void work(const SpineItem& item, const Work& work);
  Slice at(const SpineItem& item, const Slice& slice) const;
  Type operand(const SpineItem& item, const Work& work, size_t i);
  bool is_own_part(const Slice& named) const;
  Type uniform(const Slice& where);
  Type weight(const Slice& named, const Slice& where);
  Type joined(const SpineItem& item, const Work& work, size_t first, size_t end = SIZE_MAX);
  void statistics(const SpineItem& item, const Work& work);
  void tally(const SpineItem& item, const Work& work);
  void take_tally(const Type& all, const Type& counts, const std::string& name);
  void take(Type& all, const Type& next, const std::string& name);
  void results(const SpineItem& item, const Work& work, Type type);
  void rows(const SpineItem& item, const Work& work);
  void product(const SpineItem& item, const Work& work);
  void input_gradient(const SpineItem& item, const Work& work);
  void weight_gradient(const SpineItem& item, const Work& work);
  void lookup(const SpineItem& item, const Work& work);
  void scatter(const SpineItem& item, const Work& work);
  void losses(const SpineItem& item, const Work& work);
  void count(const SpineItem& item, const Work& work);
  void add_operands(const SpineItem& item, const Work& work);
  Term term_of(const SpineItem& item, const Work& work, const Slice& rows) const;
  Type sum_over_rows(const Type& of, const Term& term);
  void sums(const SpineItem& item, const Work& work, const Type& type, size_t first = 0);
  void add_to(const SpineItem& item, const Work& work, const Slice& named, Type type);
  bool adds(const SpineItem& item, const Work& work) const;

  // ring_rules.cpp
  void ring_block(const SpineItem& item, const Work& work);
  void ring_gradient(const SpineItem& item, const Work& work);
  Share joined_window(const Share& a, const Share& b, const std::string& name);

  // route_rules.cpp. Tokens that are gathered are taken once, and terms of a token's sum are summed once.
  void gathered_tokens(const Task& task, Axis axis);
  void summed_tokens(const Task& task, Axis axis);
  void routed(const Task& task, Axis axis);
  void returned(const Task& task, Type& type);
  void late_rows(const SpineItem& item, const Work& work);
  void order(const SpineItem& item, const Work& work);
  void reorder(const SpineItem& item, const Work& work);
  void leave_terms(const SpineItem& item, const Work& work);
  void require_no_terms() const;
  bool is_own_part_of_tokens(const Slice& named, Axis axis) const;
  void require_routed(const Type& rows, const Type& weight, const std::string& name);

  // task_rules.cpp
  void task(const Item& item, const Task* task);
  /// A number that is different for every slice.
  static int64_t place_of(const Slice& slice) {
    constexpr int64_t kLargestBuffer = int64_t{1} << 40;
    return slice.buffer * kLargestBuffer + slice.begin_bytes;
  }
  void collective(const Task& task, Axis axis);
  Runs flat_runs(const Slice& slice, int32_t bucket);
  Runs summed(Runs runs, Axis axis);
  Type summed(Type type, Axis axis);
  Runs own_part(const Runs& runs, Axis axis, int64_t elems);
  Type gathered(Type type, Axis axis, bool nested);
  Runs all_parts(const Runs& runs, Axis axis, int64_t elems);
  Type sum(const Type& a, const Type& b);
  void encode(const Task& task);
  void decode(const Task& task);
  void sum_parts(const Task& task);
  void send(const Task& task);
  bool recv(const Task& task);

  // update_rules.cpp
  void require_complete(size_t bucket);
  void sum_squares(const Item& item);
  void clip(const Item& item);
  void update(const Item& item);
  void require_counted_once(const Type& squares, Axis axis);
  void require_losses(const Slice& slice);
  void require_values(const Runs& runs, const Slice& slice, int64_t first, int32_t version, const char* name);

  // checkpoint_rules.cpp
  /// An array of a checkpoint, and where plans keep copies of it.
  struct Saved {
    SavedArray array;
    Type claimed;  // what the checkpoint takes it for
    Slice snapshot, kept;
  };
  const std::vector<Saved>& saved();
  Type held_type(size_t bucket, int state, DType dtype) const;
  Type residual_type(size_t bucket, bool of_sum) const;
  void require_saved(const Saved& saved, const Runs& runs);
  void require_saved_once();
  void require_saved_once(size_t bucket, const ParameterSpec& parameter);
  void require_kept(BufferId slot);
  void require_both_kept();
  void snapshot(const Item& item);
  void seal(const Item& item);
  void keep(const Task& task);

  const Job& job_;
  const Plan& plan_;
  PlanKind kind_;
  bool is_swapped_;  // the copies of the weights have changed places
  Shared& shared_;
  TypeMap map_;
  std::map<std::pair<BufferId, int64_t>, Runs> wires_;  // encoded parts, by their begin; the runs are in elements
  // Sums that travel encoded: the parts of all ranks, by the place of this rank's own part. The parts of others have
  // other tensors.
  using Parts = std::vector<Runs>;
  std::map<std::pair<BufferId, int64_t>, Parts> parts_;
  std::vector<int64_t> value_of_, gradient_of_;  // by buffer: the index of its parameter, or -1
  std::vector<char> is_neutral_;                 // by buffer: it holds the batch or constants
  std::vector<Saved> saved_;
  std::map<int64_t, Slice> terms_;  // by place: terms of the sums of tokens that no task has summed yet
  size_t at_ = 0;
  const Task* meeting_ = nullptr;
  Runs offered_;
  const Work* work_ = nullptr;  // for messages
  Slice left_;                  // the same: what the plan must leave, after its last item
  std::set<std::tuple<Axis, int16_t, bool>> counted_once_;
  std::map<std::pair<Axis, Axis>, bool> meet_twice_;
};

}  // namespace slipstream::comm
