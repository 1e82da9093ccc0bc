// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank at run time: memory, streams, communicators, scheduler and step, connected as a finished job describes.

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/monitor.h"
#include "comm/scheduler.h"
#include "comm/watchdog.h"
#include "engine/device/device.h"
#include "engine/plan/job.h"
#include "engine/report/overlap.h"
#include "engine/step/step.h"
#include "trainer/runtime/rank/works.h"

namespace slipstream::runtime {

struct RankOptions {
  int threads = 1;  // the threads of the compute stream
  UpdateOptions update;
  uint64_t delay_seed = 0;
  int64_t delay_max_ns = 0;    // the longest random pause before a work; 0: none
  bool check_hazards = false;  // check every launch with the hazard checker; see comm/rehearse/checked_device.h
  bool graph = true;           // replay steps as graphs, if the device supports them
  bool times_works = false;    // the spans of replayed steps are those of works; false: of items
  /// Blocks. Collective: returns true if `mine` is true on all ranks. `awaited` names the exchange in the
  /// watchdog's sentence.
  std::function<bool(bool mine, const std::string& awaited)> all_agree = [](bool mine, const std::string&) {
    return mine;
  };
  double timeout_seconds = 600;      // the limit of one host wait for a GPU whose ranks communicate
  comm::Monitor* monitor = nullptr;  // reports this rank's works while the rank exists; null: none
  std::function<void(const std::string& sentence, ExitCode code)> leave =
      {};  // ends the process if no abort frees the GPU; see comm/watchdog.h
  /// The slots of Job::keeping, this rank's own and the peer's, in memory that outlives this process. Null: the rank
  /// allocates them.
  std::array<std::byte*, 2> kept = {};
  std::vector<int64_t> paced_item_ns;  // by spine item of the training plan: sleep instead of computing
};

/// A plan that a run asks for beside a step, and the slot of Job::keeping that it writes.
struct Asked {
  PlanKind kind = PlanKind::save;
  int slot = 0;
};

class Rank {
 public:
  /// Allocates all memory of the job and binds all works. `communicators[c]` serves channel c, and is null for local
  /// channels.
  Rank(std::shared_ptr<const Job> job, std::unique_ptr<Device> device,
       std::vector<std::unique_ptr<comm::Communicator>> communicators, const RankOptions& options, LoadBatch load);
  ~Rank();

  const Job& job() const { return *job_; }
  Device& device() { return *device_; }
  const Memory& memory() const { return memory_; }
  /// Returns the address of a slice. For weights, it is in the copy that the next step reads. Pure.
  std::byte* weights_at(const Slice& slice) const;

  /// Blocks. Sets weights as a function of (seed, tensor name, element index), and moments to zero.
  void initialise(uint64_t seed);
  /// Blocks. Sets the elements [begin, begin + values.size()) of a named tensor: masters and this rank's rounded
  /// weights.
  void write(size_t parameter, size_t tensor, int64_t begin, std::span<const float> values);
  /// Pure. Returns the elements of a named tensor, as held, that write() stores on this rank: ascending ranges [begin,
  /// end).
  std::vector<std::pair<int64_t, int64_t>> stored(size_t parameter, size_t tensor) const;
  /// Blocks. Sets this rank's part from the values of the whole tensor.
  void set_tensor(size_t parameter, size_t tensor, std::span<const float> values);
  /// Blocks until all issued work has ended, as every read here does. Returns this rank's shards of the elements
  /// [begin, end) of the flat order, bucket by bucket. `what` is a member of BucketStorage.
  std::vector<float> held(Slice BucketStorage::*what, int64_t begin, int64_t end);
  /// Blocks. Reads the elements [begin, begin + out.size()) of a named tensor: its weights as trained
  /// (&BucketStorage::master), its gradient or a moment. Works only without ZeRO.
  void read(Slice BucketStorage::*what, size_t parameter, size_t tensor, int64_t begin, std::span<float> out);
  /// Blocks. Reads the elements [begin, begin + out.size()) of saved_arrays(job(), bucket)[array], counted from its
  /// first element. The caller has called synchronize(): if it ran for each piece, it would cost a save more than the
  /// bytes.
  void read_state(size_t bucket, size_t array, int64_t begin, std::span<float> out);
  /// Blocks. Sets the elements [begin, begin + values.size()) of the flat order of `slice`, a state or a residual of a
  /// bucket, whose first element is `first`.
  void write_state(const Slice& slice, int64_t first, int64_t begin, std::span<const float> values);

  /// Blocks. Runs what the calendar has before the first step: stages the first batch and gathers encoded parameters.
  /// Must be called once, after setting the weights and before the first step. Collective.
  void prime();
  /// The steps before the recording, in which libraries choose their algorithms, NCCL connects, and kernels are loaded.
  static constexpr int kEagerSteps = 2;
  /// Enqueues one training step and returns without waiting. On a device with graphs, the first kEagerSteps steps run
  /// task by task, the next kStepPeriod are recorded after a collective agreement, and later ones are replayed. If a
  /// rank refuses a graph, all steps run task by task. Throws: InternalError if it would replay a graph whose previous
  /// run, kStepPeriod steps ago, has not ended.
  ///
  /// `asked` has the plans that run first, among those that the calendar has on request. They are the same on all ranks
  /// and run beside the step, which is then issued task by task. PlanKind::save and PlanKind::keep copy the state
  /// before this step, which is the state after the previous step. The snapshot of the previous save must be complete
  /// and no longer in use. No run of keep overwrites a slot before all ranks have completed the previous run of keep.
  void issue(uint32_t step, std::span<const Asked> asked = {});
  /// Does not wait. Returns true if all bytes of the latest snapshot are in host memory, or if there was none. From
  /// then until the next issue() that asks for one, any thread may read them. Must be called on the thread that issues.
  bool snapshot_done() const;
  /// Returns this rank's part of an array of the latest snapshot, which must be complete. The bytes are those of
  /// saved_arrays(job(), bucket)[array]. Pure.
  std::span<const std::byte> snapshot(size_t bucket, size_t array) const;
  /// Returns a slot of Job::keeping, of this rank or of the rank whose second copy it holds. Pure.
  std::span<const std::byte> kept(BufferId buffer, int slot) const;
  /// Blocks until all issued work has ended. Returns the same array of the state at rest.
  std::vector<std::byte> saved(size_t bucket, size_t array);
  /// Everything that a step reads from the steps before it, in host memory.
  struct State {
    std::vector<std::vector<std::byte>> arenas;  // by owner; empty where no step reads what another one has left
    int64_t issued = 0;
  };
  /// Blocks until all issued work has ended.
  State state();
  /// Blocks until all issued work has ended. The next issue() repeats the step that followed state(), with the batch
  /// that was staged for it.
  void set_state(const State& state);
  /// Blocks. Runs the works of one training step in the plan's order on the calling thread and `pool`, without streams,
  /// events and schedule. It is for benchmarks of one rank while nothing is in flight.
  void run_plainly(ThreadPool& pool);
  /// Blocks until all issued steps except the `latest` (0 or 1) last ones have ended. Throws: the first error of a
  /// stream.
  void wait_for_all_but(int latest);

  struct Report {
    double loss_sum = 0;          // over all ranks' tokens of the step
    double norm = 0;              // 0 if the plan does not clip
    double first_not_finite = 0;  // the number of the first gradient part that is not finite, counted from 1; 0: none
    double skipped = 0;           // 1: the update kept weights and states
  };
  static_assert(sizeof(Report) == 8 * (1 + kNormDoubles));
  /// Returns the report of one of the last kReportSlots - 1 ended steps. Pure, because the step copied it to the host.
  Report report(uint32_t step) const;

  /// Returns the bytes that this rank has sent so far for gradients and parameters, in their wire format, or none if
  /// the library does not count them.
  std::optional<int64_t> sent_bytes() const;

  /// Blocks. Runs the evaluation plan on [batch, tokens] ids and targets. Returns the loss of each row x token, or
  /// nothing on a pipeline stage without the head. Collective over stages.
  std::vector<float> evaluate(std::span<const int32_t> ids, std::span<const int32_t> targets,
                              std::span<const int32_t> document_begins = {});
  /// Blocks. Returns the logits of one position of the last evaluation.
  std::vector<float> logits(int64_t row);

  /// Blocks. Waits for everything that was issued.
  void synchronize();
  /// Makes every collective in flight fail, so that no thread waits forever. On cuda it returns immediately, and waits
  /// throw `reason`. `code` is the process's exit code if the GPU stays blocked.
  void abort(const std::string& reason, ExitCode code = ExitCode::communication);

  /// Returns the works of the communication channels; empty if asking would disturb the host. Any thread may call this.
  comm::FlightState flight();

  /// Returns the spans finished so far, by channel, and removes them.
  std::vector<std::vector<Span>> drain();
  std::vector<ChannelKind> channel_kinds() const;
  int64_t allocation_count() const { return device_->allocation_count(); }
  /// For each communicating channel, the reason why its wire has no registered memory; empty if it has.
  const std::map<std::string, std::string>& unregistered() const { return unregistered_; }

 private:
  /// Blocks. Does the same as held(), but copies each shard's part to `take`(first element, elements).
  template <typename Take>
  void for_held(Slice BucketStorage::*what, int64_t begin, int64_t end, const Take& take);
  std::byte* address(BufferId buffer) const { return memory_.entry(buffer).base; }
  /// Does the host's part of running a plan of the kind.
  void prepare(PlanKind kind, uint32_t step);
  /// Blocks until all ranks have recorded. If a device refuses, returns null, turns graph_ off and prints a warning.
  std::unique_ptr<Graph> record(const Plan& plan, uint32_t step);
  /// On a GPU: binds what only the host can do, hashes and transfers between hosts, to threads beside the streams.
  void run_on_host(const Plan& plan, BoundWorks& works);
  /// Blocks. Collective. Registers the arenas of its tasks with every wire, or with none if a rank cannot.
  void register_arenas();
  /// Blocks. Runs `wait` under the watchdog, if there is one.
  void watch(const std::function<void()>& wait);
  /// Blocks while a stream's queue is full. Does the same for functions that enqueue.
  void watch_issue(const std::function<void()>& issue);

  std::shared_ptr<const Job> job_;
  std::unique_ptr<Device> device_;
  std::vector<std::unique_ptr<Allocation>> arenas_;
  std::vector<Owner> arena_owners_;
  std::vector<std::shared_ptr<void>> pinned_;                       // RankOptions::kept, for copies of the device
  std::vector<std::unique_ptr<comm::Communicator>> communicators_;  // released before the arenas that they registered
  Memory memory_;
  int threads_;
  std::vector<Memory> memories_;  // by slot of Job::keeping: memory_, with the kept buffers at that slot
  std::map<PlanKind, BoundWorks> works_;
  Work prepare_stream_, release_stream_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::unique_ptr<comm::Scheduler> scheduler_;
  std::vector<Step> steps_;   // by slot; the first one serves all plans without slots
  std::vector<Event*> ends_;  // the ends of the last two steps
  std::unique_ptr<Allocation> reports_;
  std::map<std::string, std::string> unregistered_;
  std::unique_ptr<comm::Watchdog> watchdog_;  // on cuda, if ranks communicate
  comm::Monitor* monitor_ = nullptr;
  std::mutex look_;     // on cuda, held by flight() and where a wait of the host begins or ends
  bool waits_ = false;  // guarded by look_: the host waits for the GPU
  std::function<bool(bool, const std::string&)> all_agree_;
  bool graph_ = false;
  bool times_works_ = false;
  int64_t issued_ = 0;
  std::atomic<uint32_t> latest_step_{0};
  std::array<std::unique_ptr<Graph>, kStepPeriod> graphs_;  // by step modulo kStepPeriod
};

/// The position of a named tensor: stage, parameter, and index within the parameter.
struct TensorLocation {
  size_t stage = 0, parameter = 0, tensor = 0;
};
/// Returns every tensor of the model by name. For a table with two copies, it is the embedding's copy. Pure.
std::map<std::string, TensorLocation> tensors_of(const std::vector<std::shared_ptr<const Job>>& stages);

}  // namespace slipstream::runtime
