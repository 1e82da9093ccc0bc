// SPDX-License-Identifier: Apache-2.0
// Runs slipstream bench step: whole training steps by the host's clock, compared with a plain loop over the same works.
//
// Each step is timed from before its issue to its end, one step at a time, as a loop in another framework would measure
// it, or several in a row, as in training. With the plain loop, the same number of loops follows. The weights and the
// batch can be exported, so that another program starts from the same values.

#include "trainer/bench/bench.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/parallel.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/checkpoint/weights.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/device/clock.h"
#include "engine/report/bounds.h"
#include "kernels/matmul/product.h"
#include "models/hugging_face.h"
#include "trainer/bench/csv_file.h"
#include "trainer/bench/harness.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"
#include "trainer/runtime/weights/shared_weights.h"

namespace slipstream::bench {
namespace {

double ms(double ns) { return ns / 1e6; }

/// The times at which the forward pass and the first gradient are complete, from the times of the spine.
struct Front {
  int64_t forward_ns = 0, first_gradient_ns = 0;
};

Front front_of(const Job& job, const std::vector<int64_t>& spine_ns) {
  const auto holds = [](const std::vector<uint32_t>& pieces, uint32_t piece) {
    return std::find(pieces.begin(), pieces.end(), piece) != pieces.end();
  };
  Front front;
  int64_t now = 0;
  for (size_t i = 0; i < spine_ns.size(); ++i) {
    const SpineItem& item = job.train().spine[i];
    now += spine_ns[i];
    if (item.op != Op::compute || item.micro_batch + 1 < job.buffers.micro_batches) continue;
    if (holds(job.model.forward, item.piece)) front.forward_ns = now;
    if (front.first_gradient_ns == 0 && holds(job.model.backward, item.piece) &&
        !job.model.pieces[item.piece].ready.empty())
      front.first_gradient_ns = now;
  }
  return front;
}

class StepBench : WorldBench {
 public:
  StepBench(const StepOptions& options, const Setting& setting)
      : WorldBench(setting), options_(options), machine_(bench_machine(world_, assignment_, config_, threads_)) {}

  void run() {
    const bool plain = world_.size() == 1 && options_.plain_loop;
    const double link = static_cast<double>(config_.comm.emulate.bandwidth_bytes_per_second);
    planner::FinishedJob finished = build_bench_job(assignment_, machine_, config_, world_.size(), world_.rank());
    const std::vector<std::shared_ptr<const Job>> stages = finished.stages;
    Candidate c("step", world_, assignment_, config_, std::move(finished), link);
    if (!options_.export_dir.empty()) write_start(c, stages);
    c.run(1, false);
    const double tokens = static_cast<double>(c.job->model.batch * c.job->model.tokens * c.job->buffers.micro_batches *
                                              c.job->mesh.group_size(Axis::replica));
    const double loss = c.rank->report(1).loss_sum / tokens;
    // Runs until every further step is a replay, because a step that is being recorded takes longer.
    const int more = c.replayed ? runtime::Rank::kEagerSteps + static_cast<int>(kStepPeriod) - 1 : 1;
    for (int i = 0; i < more; ++i) c.run(1, false);
    std::unique_ptr<ThreadPool> pool;
    if (plain) pool = std::make_unique<ThreadPool>(threads_);
    std::vector<double> step_ns, loop_ns;
    if (plain) c.rank->run_plainly(*pool);
    world_.barrier();
    const int in_a_row = plain ? kInARow : options_.in_a_row;
    for (int i = 0; i < options_.steps; ++i) {
      const int64_t begin = monotonic_ns();
      c.compute(in_a_row);
      const int64_t end = monotonic_ns();
      c.measure(in_a_row, true);
      step_ns.push_back(static_cast<double>(end - begin) / in_a_row);
      if (!plain) continue;
      const int64_t from = monotonic_ns();
      for (int loop = 0; loop < in_a_row; ++loop) c.rank->run_plainly(*pool);
      loop_ns.push_back(static_cast<double>(monotonic_ns() - from) / in_a_row);
    }
    c.means = runtime::gather_steps(world_, c.times, {}, runtime::PlanItems(world_, *c.job)).means;
    const std::vector<std::vector<int64_t>> spine_ns = runtime::largest_of_stages(world_, c.job->mesh, c.spine_ns());
    if (world_.rank() == 0) report(c, loss, step_ns, loop_ns, spine_ns[0]);
  }

 private:
  static constexpr int kInARow = 8;

  /// Writes the weights as one safetensors file, and the batch of every rank: int32, ids then targets.
  void write_start(Candidate& c, const std::vector<std::shared_ptr<const Job>>& stages) {
    const Job& job = *c.job;
    world_.together([&] {
      const int64_t sequences = job.model.batch * job.share().ranks;
      if (job.buffers.micro_batches > 1)
        throw ConfigError(
            "[bench] --export needs one micro-batch, got {}. Set train.global_batch_size to micro_batch_size x data "
            "ranks = {}.",
            job.buffers.micro_batches, sequences);
    });
    world_.together([&] {
      runtime::with_weights(world_, *c.rank, stages, [&](const std::vector<runtime::ReadWeights>& reads) {
        models::ModelOptions options =
            planner::model_options({.config = resolve_bench(config_, world_.size()), .machine = machine_});
        options.dtype = DType::f32;
        checkpoint::write_final(options_.export_dir, runtime::tensors_to_save(stages, reads),
                                models::hugging_face_config(options), {});
      });
    });
    world_.together([&] {
      // Masks of documents and the numbers of sequences follow ids and targets, and are not exported.
      std::vector<std::byte> batch(static_cast<size_t>(job.buffers[job.ids.batch_next].size_bytes));
      const size_t ids_bytes = static_cast<size_t>(2 * job.model.batch * job.model.tokens) * sizeof(int32_t);
      SLIP_ASSERT(ids_bytes <= batch.size());
      std::vector<float> scalars(static_cast<size_t>(job.scalars()));
      load_random(job, world_.rank(), {.batch = batch.data(), .scalars = scalars});
      const std::string path = fmt::format("{}/batch_{}.bin", options_.export_dir, world_.rank());
      const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "wb"), std::fclose);
      if (!file || std::fwrite(batch.data(), 1, ids_bytes, file.get()) != ids_bytes)
        throw ResourceError("[bench] {} cannot be written. Give --export a writable folder.", path);
    });
  }

  void report(const Candidate& c, double loss, const std::vector<double>& step_ns, const std::vector<double>& loop_ns,
              const std::vector<int64_t>& spine_ns) {
    const double step = ms(median(step_ns)), best = ms(*std::min_element(step_ns.begin(), step_ns.end()));
    const double other = c.median_of(&runtime::StepMeans::other_ms),
                 compute = c.median_of(&runtime::StepMeans::compute_ms);
    print_result("{}: {} rank{} x {} thread{}, {}, medians of {} steps\n", c.job->model.description, world_.size(),
                 world_.size() == 1 ? "" : "s", threads_, threads_ == 1 ? "" : "s", kernels::product_library(),
                 options_.steps);
    print_result("loss at step 1  {:.8f}\nstep            {:.3f} ms (fastest {:.3f})\n", loss, step, best);
    print_result("  compute {:.3f} ms, communication {:.3f} ms, exposed {:.3f} ms, other {:.3f} ms\n", compute,
                 c.median_of(&runtime::StepMeans::comm_ms), c.median_of(&runtime::StepMeans::exposed_ms), other);
    double loop = 0, overhead = 0;
    if (!loop_ns.empty()) {
      // Compares measurements that are adjacent in time, so that a busy machine slows both.
      std::vector<double> longer;
      for (size_t i = 0; i < loop_ns.size(); ++i) longer.push_back(step_ns[i] / loop_ns[i] - 1);
      loop = ms(median(loop_ns)), overhead = median(longer);
      print_result("plain loop      {:.3f} ms; the step takes {:.2f} % longer (median of pairs)\n", loop,
                   100 * overhead);
    }
    double bound = 0;
    int64_t wire = 0;
    if (options_.line_rate > 0) {
      const int ranks = std::max(options_.ranks, world_.size());
      RunConfig config = config_;
      config.train.global_batch_size = config.train.micro_batch_size * ranks * c.job->buffers.micro_batches;
      const planner::FinishedJob many = build_bench_job(assignment_, machine_, config, ranks, 0);
      const std::vector<int64_t> ns = ItemTimes(c.job->train(), spine_ns).of(many.job->train());
      const IdealBound ideal = ideal_bound(
          *many.job, {.bytes_per_second = options_.line_rate, .latency_ns = 0, .ranks = ranks, .spine_ns = ns});
      const Front front = front_of(*many.job, ns);
      bound = ms(static_cast<double>(ideal.bound_ns)), wire = ideal.wire_ns;
      print_result(
          "bound on {} ranks at {:.3g} Gbit/s: {:.1f} ms (forward {:.1f}, first gradient after {:.1f}, wire {:.1f})\n",
          ranks, options_.line_rate * 8e-9, bound, ms(static_cast<double>(front.forward_ns)),
          ms(static_cast<double>(front.first_gradient_ns)), ms(static_cast<double>(wire)));
    }
    CsvFile csv;
    csv.open(options_.csv,
             "ranks,threads,steps,loss,step_ms,fastest_ms,plain_loop_ms,overhead,compute_ms,comm_ms,exposed_ms,other_"
             "ms,bound_ms,wire_ms\n");
    csv.row("{},{},{},{:.9g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g},{:.6g}\n", world_.size(),
            threads_, options_.steps, loss, step, best, loop, overhead, compute,
            c.median_of(&runtime::StepMeans::comm_ms), c.median_of(&runtime::StepMeans::exposed_ms), other, bound,
            ms(static_cast<double>(wire)));
  }

  const StepOptions& options_;
  Machine machine_;
};

}  // namespace

int bench_step(const StepOptions& options) {
  return on_world(options, [&](const Setting& setting) {
    setting.world.together([&] {
      if (setting.assignment.kind == DeviceKind::cuda && options.plain_loop)
        throw ConfigError(
            "[bench] --plain-loop runs on a CPU only, but device.kind is \"cuda\". Leave it out, or use \"cpu\".");
      if (const Parallel& p = setting.config.parallel;
          options.line_rate > 0 && (p.pipeline > 1 || p.tensor > 1 || p.context > 1))
        throw ConfigError(
            "[bench] --line-rate bounds the steps of data ranks, but parallel.pipeline x parallel.tensor x "
            "parallel.context = {} x {} x {} ranks share a sequence. Use 1 for each, or leave --line-rate out.",
            p.pipeline, p.tensor, p.context);
    });
    StepBench(options, setting).run();
  });
}

}  // namespace slipstream::bench
