// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank at run time: memory, streams, communicators, scheduler and step, wired from a finished job.

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/scheduler.h"
#include "comm/watchdog.h"
#include "engine/device/device.h"
#include "engine/plan/job.h"
#include "engine/report/overlap.h"
#include "engine/step/step.h"
#include "runtime/works.h"

namespace slipstream::runtime {

struct RankOptions {
  int threads = 1;  // of the compute stream
  UpdateOptions update;
  uint64_t delay_seed = 0;
  int64_t delay_max_ns = 0;    // of random pauses before works; 0: none
  bool check_hazards = false;  // follow every launch with the hazard checker; see comm/rehearse/checked_device.h
  bool graph = true;           // replay steps as graphs, on a device that has them
  /// Blocks. Collective: do all ranks say yes? `awaited` names what it is about.
  std::function<bool(bool mine, const std::string& awaited)> all_agree = [](bool mine, const std::string&) {
    return mine;
  };
  double timeout_seconds = 600;  // that the host waits at one place for a GPU whose ranks communicate
  std::function<void(const std::string& sentence, ExitCode code)> leave =
      {};                              // the process, with a GPU that no abort frees; see comm/watchdog.h
  std::vector<int64_t> paced_item_ns;  // per spine item of the training plan: sleep so long instead of computing
};

class Rank {
 public:
  /// Allocates all memory of the job, binds all works. `communicators[c]` serves channel c; null for local channels.
  Rank(std::shared_ptr<const Job> job, std::unique_ptr<Device> device,
       std::vector<std::unique_ptr<comm::Communicator>> communicators, const RankOptions& options, LoadBatch load);
  ~Rank();

  const Job& job() const { return *job_; }
  Device& device() { return *device_; }
  const Memory& memory() const { return memory_; }

  /// Blocks. Weights as a function of (seed, tensor name, element index); moments zero.
  void initialise(uint64_t seed);
  /// Blocks. Sets elements [begin, begin + values.size()) of a named tensor, masters and what this rank holds of the
  /// rounded weights.
  void write(size_t parameter, size_t tensor, int64_t begin, std::span<const float> values);
  /// Blocks. From the values of the whole tensor, of which tensor-parallel ranks hold parts.
  void set_tensor(size_t parameter, size_t tensor, std::span<const float> values);
  /// Blocks, as everything here that reads does until what was issued has ended. What this rank's shards have of
  /// elements [begin, end) of the flat order, bucket by bucket: `what` is a member of BucketStorage.
  std::vector<float> held(Slice BucketStorage::*what, int64_t begin, int64_t end);
  /// Blocks. Elements [begin, begin + out.size()) of a named tensor: its weights as trained (&BucketStorage::master),
  /// its gradient or a moment. Without ZeRO, where a rank has them all.
  void read(Slice BucketStorage::*what, size_t parameter, size_t tensor, int64_t begin, std::span<float> out);

  /// Enqueues. Stages the first batch, and gathers parameters that travel encoded; call once, before the first step and
  /// after the weights are set. Collective.
  void prime();
  /// Enqueues one training step and returns; waits for nothing. On a device with graphs the first steps run as they
  /// are, the next kStepPeriod are recorded, for which ranks meet, and all after are replayed. Where one is refused,
  /// steps stay as they are.
  void issue(uint32_t step);
  /// Blocks. The works of one training step in the plan's order on the calling thread and `pool`: no streams, no
  /// events, no schedule. For benchmarks of one rank, when nothing is in flight.
  void run_plainly(ThreadPool& pool);
  /// Blocks until the latest issued step but `behind` (0 or 1) has ended. Throws the first error of a stream.
  void wait_behind(int behind);

  struct Report {
    double loss_sum = 0;  // over all ranks' tokens of the step
    double norm = 0;      // 0 when the plan does not clip
  };
  /// Of one of the last kReportSlots - 1 steps that have ended. Pure: it came to the host with the step.
  Report report(uint32_t step) const;

  /// Bytes that this rank has sent so far for gradients and parameters, in whatever format; none where the library does
  /// not say.
  std::optional<int64_t> sent_bytes() const;

  /// Blocks. Runs the evaluation plan on [batch, tokens] ids and targets; returns the loss of each row x token, or
  /// nothing on a pipeline stage that has no head. Collective over stages.
  std::vector<float> evaluate(std::span<const int32_t> ids, std::span<const int32_t> targets);
  /// Blocks. Logits of one position of the last evaluation.
  std::vector<float> logits(int64_t row);

  /// Blocks. Waits for everything issued.
  void synchronize();
  /// Makes every collective in flight fail, so that no thread waits for ever. On cuda it returns at once, and waits
  /// then throw `reason`; `code` is what the process is left with if nothing frees the GPU.
  void abort(const std::string& reason, ExitCode code = ExitCode::communication);

  /// Spans finished so far, by channel; moves them out.
  std::vector<std::vector<Span>> drain();
  std::vector<ChannelKind> channel_kinds() const;
  int64_t allocation_count() const { return device_->allocation_count(); }
  /// By name of a channel that communicates: why its wire does without registered memory; empty where it knows the
  /// memory.
  const std::map<std::string, std::string>& unregistered() const { return unregistered_; }

 private:
  /// Are the weights of the next step in the second buffer?
  bool is_swapped() const;
  std::byte* weights_at(const Slice& slice) const;
  /// Blocks. As held, each shard's share to where `take`(first element, elements) says.
  template <typename Take>
  void for_held(Slice BucketStorage::*what, int64_t begin, int64_t end, const Take& take);
  std::byte* address(BufferId buffer) const { return memory_.entry(buffer).base; }
  /// The host's part of a run of `works`.
  void prepare(const BoundWorks& works, uint32_t step);
  /// Blocks until all ranks have recorded. Null, after a warning and with graph_ off, where the device of one of them
  /// refuses.
  std::unique_ptr<Graph> record(const Plan& plan, uint32_t step);
  /// Blocks. Collective. Tells every wire of the arenas that its tasks name, or none where a rank cannot.
  void register_arenas();
  /// Blocks. Runs `wait` under the watchdog where there is one.
  void watch(const std::function<void()>& wait);
  /// Blocks where a stream takes no more commands. The same for what enqueues.
  void watch_issue(const std::function<void()>& issue);

  std::shared_ptr<const Job> job_;
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Allocation>> arenas_;
  std::vector<std::unique_ptr<comm::Communicator>> communicators_;  // they let go of the arenas that they know
  Memory memory_;
  BoundWorks train_works_, evaluate_works_, prime_works_;
  Work prepare_stream_, release_stream_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::unique_ptr<comm::Scheduler> scheduler_;
  std::unique_ptr<Step> step_;
  std::vector<Event*> ends_;  // of the last two steps
  std::unique_ptr<Allocation> reports_;
  std::map<std::string, std::string> unregistered_;
  std::unique_ptr<comm::Watchdog> watchdog_;  // on cuda, where ranks communicate
  std::function<bool(bool, const std::string&)> all_agree_;
  bool graph_ = false;
  int64_t issued_ = 0;
  std::array<std::unique_ptr<Graph>, kStepPeriod> graphs_;  // by step modulo kStepPeriod
};

/// Where a named tensor is: of which stage, which parameter, which of its tensors.
struct TensorLocation {
  size_t stage = 0, parameter = 0, tensor = 0;
};
/// Every tensor of the model by name; of a table in two copies, the embedding's. Pure.
std::map<std::string, TensorLocation> tensors_of(const std::vector<std::shared_ptr<const Job>>& stages);

}  // namespace slipstream::runtime
