// SPDX-License-Identifier: Apache-2.0
#pragma once
// The training loop of one rank: issues steps, reads finished ones, evaluates, and writes metrics.

#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/resolve.h"
#include "engine/data/datasets/dataset.h"
#include "engine/data/datasets/loader.h"
#include "engine/report/metrics.h"
#include "engine/report/overlap.h"
#include "engine/report/trace.h"
#include "trainer/planner/planner.h"
#include "trainer/runtime/durability/checkpoints.h"
#include "trainer/runtime/durability/peer_memory.h"
#include "trainer/runtime/durability/resume.h"
#include "trainer/runtime/loop/metric_sinks.h"
#include "trainer/runtime/loop/numerics.h"
#include "trainer/runtime/loop/planned_run.h"
#include "trainer/runtime/loop/start_point.h"
#include "trainer/runtime/loop/step_means.h"
#include "trainer/runtime/loop/stop_signals.h"
#include "trainer/runtime/loop/straggler_report.h"
#include "trainer/runtime/loop/train_options.h"
#include "trainer/runtime/rank/device_assignment.h"
#include "trainer/runtime/rank/rank.h"
#include "trainer/runtime/rank/world.h"
#include "trainer/runtime/run_folder/run_dir.h"
#include "trainer/runtime/weights/text_files.h"
#include "trainer/runtime/weights/weights.h"

namespace slipstream::runtime {

/// A loss, a norm or a weight is not finite, or train.on_nan = "rollback" found a spike. All ranks throw the same
/// error.
class Diverged : public NumericsError {
 public:
  Diverged(int64_t at_step, const std::string& sentence) : NumericsError("{}", sentence), step(at_step) {}
  const int64_t step;
};

class Trainer {
 public:
  /// Builds everything that a step needs, without training. Collective.
  /// Borrows the world and the run's dataset.
  Trainer(World& world, const TrainOptions& options, const PlannedRun& run, const StartPoint& start);
  ~Trainer();

  /// Blocks. Collective. Trains the steps that are left, evaluates, and writes metrics, traces, checkpoints and final
  /// weights into `run_dir`, and metrics into `sinks`, which is null on ranks other than 0. Returns ok, or preempted if
  /// a signal ended the run after a checkpoint.
  /// If `signals` ask for it, even before the call, it saves and ends after a step.
  /// Throws: Diverged. Then the lines of earlier steps are written, and with rollback, saves of earlier steps are
  /// complete.
  /// Calls `chosen` when libraries have made their choices: after issuing the first step, and at the end.
  ExitCode run(RunDir& run_dir, MetricSinks* sinks, StopSignals& signals, const std::function<void()>& chosen);

  /// Blocks. Collective. Replaces run(): runs the steps up to `step`, runs that one twice from the same state, and
  /// prints that both executions left the same bits. Writes no file. Throws: NumericsError on all ranks with the first
  /// rank and tensor that differ.
  void replay(int64_t step);

  Rank& rank() { return *rank_; }

 private:
  /// A finished step whose line is not written yet.
  struct Pending {
    StepTimes times;
    std::optional<OwnTimes> own;
    Rank::Report report;
    std::optional<double> val_loss;
    std::string params_hash;
  };

  std::unique_ptr<data::Loader> make_loader(const PlannedRun& run) const;
  /// The loader's next batch, the scalars of its step, and the limits of its gradients.
  void load_batch(const Job& job, const StagedBatch& staged);
  RankOptions rank_options(const TrainOptions& options, const PlannedRun& run);
  /// Blocks. Sets the weights from model.init.
  void load_initial();
  /// Sets weights and optimizer states from a verified checkpoint. Collective.
  void restore(const ResumePoint& point);
  /// Everything before the first step.
  void begin(RunDir& run_dir, MetricSinks* sinks, StopSignals& signals);
  /// Everything after the last step.
  ExitCode end(bool stopped, const std::function<void()>& chosen);
  /// Takes the times of an ended step, and judges its loss and norm. `next_begins`: the next step has begun.
  void look_back(int64_t step, bool next_begins);
  /// Waits for the end of `step` and takes its times.
  void come_to_rest(int64_t step);
  /// Collective, at rest. Adds the hash of the weights and the validation loss to the step's line.
  /// Throws: Diverged if they are not finite; NumericsError if ranks have different copies of the weights.
  void check_weights(int64_t step, bool evaluates);
  void flush(bool print);
  void write_line(int64_t step, const Pending& pending, const StepMeans& times, bool print);
  double evaluate();
  /// Returns the hash of all weights on rank 0, and an empty text elsewhere. `not_finite` becomes the name of the first
  /// tensor with a NaN or an infinity, on all ranks. Collective.
  std::string params_hash(std::string& not_finite);
  /// Writes the lines of the finished steps and throws Diverged. All ranks call it with the same values.
  [[noreturn]] void diverged(int64_t step, const std::string& what);
  /// Writes the files beside the weights that text generation from a checkpoint needs. A resumed run keeps those that
  /// exist, because model.init may be gone.
  void save_model_files();
  std::string hugging_face_config() const;
  void save_final();
  /// Saves a checkpoint at rest. The metrics of its steps are on disk before it. A failure is a warning if training
  /// continues, otherwise a ResourceError on all ranks.
  void save(int64_t step, bool goes_on);
  /// Begins to save the state after `step` while the next steps run. Returns true if that step must copy it.
  bool save_beside(int64_t step);
  /// Commits the save in flight, for which all ranks have written their files, or will write them.
  void finish_save();
  /// Collective. Throws: CheckpointError if a folder of the run is no longer in its place.
  void require_in_place();
  /// `commit` receives the problem of rank 0, and returns the reason of a failure.
  void end_save(int64_t step, bool goes_on, const std::function<std::string(const std::string&)>& commit);
  /// Returns the loss and norm of an ended step before its times are known, or none if the run will not continue after
  /// it.
  std::optional<checkpoint::KeptMark> mark_of(int64_t step) const;
  /// Writes the line, without times, of the step from which this run continues in memory, if that line was not written.
  void write_lost_line();
  /// Returns the sentence of a first signal. `saved` is what a resume would find if the process is killed before it has
  /// saved.
  static std::string sentence_of_signal(const std::string& saved);
  /// Reports the end of a save.
  void saved(int64_t step, const std::string& failure, bool goes_on);
  /// Whether a checkpoint is due after `step`, by the number of steps or by the votes of all ranks. Collective.
  struct Due {
    bool save = false;
    bool stop = false;     // the run stops after the checkpoint
    bool written = false;  // all ranks have written their files of the save in flight
  };
  Due checkpoint_due(int64_t step);
  /// Ends the save in flight, which may still be writing.
  void end_save_in_flight(int64_t step, const Due& checkpoint);
  void rehearse_bound();
  void print_summary(std::optional<int64_t> sent) const;
  bool due(int64_t interval, int64_t step) const;

  World& world_;
  const ResolvedConfig resolved_;
  const RunConfig& config_ = *resolved_;
  const data::Dataset& dataset_;
  Machine machine_;
  std::unique_ptr<data::Loader> loader_;
  std::vector<std::shared_ptr<const Job>> stages_;
  bool replayed_ = false;  // steps are launched as graphs
  bool paced_ = false;     // works sleep, so that the weights are not trained
  int64_t resumed_ = 0;    // the step of the checkpoint that this run continues; 0: there is none
  std::optional<std::array<double, 4>> resumed_results_;
  int64_t skipped_batches_ = 0;        // see checkpoint::Manifest
  std::unique_ptr<PeerMemory> peers_;  // with checkpoint.peer_interval; outlives the rank, which writes into it
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<Checkpoints> checkpoints_;
  TextFiles texts_;  // on rank 0
  StopSignals* signals_ = nullptr;
  int64_t saved_ns_ = 0;  // when the last checkpoint was due
  std::unique_ptr<OverlapMeter> meter_;
  std::unique_ptr<TraceWriter> trace_;
  std::vector<Pending> pending_;
  std::optional<PlanItems> items_;
  std::unique_ptr<StragglerReport> stragglers_;
  std::vector<int64_t> item_ns_;                                 // the fastest times seen, by item of a timeline
  std::optional<double> bound_ms_;                               // rehearsed, and at most the fastest step
  double fastest_ms_ = std::numeric_limits<double>::infinity();  // of the steps that were written
  double model_flops_ = 0;                                       // for a step on all ranks
  double peak_flops_per_second_ = 0;                             // for a rank, from the machine file; 0 without one
  std::optional<int64_t> sent_before_;                           // by the first step, and by evaluations
  int64_t global_batch_ = 0;
  NumericsGuard guard_;
  checkpoint::NumericsHistory history_in_flight_;  // the history after the step that is being saved
  int64_t started_ns_ = 0;
  int64_t seen_ = 0;  // the last step whose times have been taken: they wait for the next one's first work
  RunDir* run_dir_ = nullptr;
  MetricSinks* sinks_ = nullptr;  // null on ranks other than 0
  struct Totals {
    double step_ms = 0, compute_ms = 0, comm_ms = 0, exposed_ms = 0, hidden_ms = 0, bubble_ms = 0;
    std::map<std::string, double> exposed_by;
    int64_t steps = 0;
  } totals_;
};

}  // namespace slipstream::runtime
