// SPDX-License-Identifier: Apache-2.0
// The threads of the ranks of a layout, and the model assembled from their results.

#include "tests/equivalence/trained.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "comm/thread/thread_world.h"
#include "comm/wiring.h"
#include "engine/base/check.h"
#include "engine/plan/build_job.h"
#include "engine/plan/keeping.h"
#include "tests/held.h"
#include "trainer/runtime/weights/weights.h"

namespace slipstream::equivalence {

namespace detail {

namespace {

std::string hash_of(const Trained& trained) {
  data::Xxh3 hash;
  for (const std::vector<float>& tensor : trained.weights)
    hash.update(tensor.data(), static_cast<int64_t>(4 * tensor.size()));
  return hash.hex();
}

/// Reads from the flat orders of a stage, by index on the tensor axis and then on the expert axis. `expert` is the
/// index whose other tensors are read.
runtime::ReadWeights read_parts(std::shared_ptr<const Job> job, std::vector<std::vector<std::vector<float>>> flats,
                                int expert) {
  return [job = std::move(job), flats = std::move(flats), expert](size_t p, size_t t, int64_t begin,
                                                                  std::span<float> out) {
    const NamedTensor& named = job->model.parameters[p].tensor(t);
    const auto holder = static_cast<size_t>(named.expert_rank < 0 ? expert : named.expert_rank);
    const int64_t end = begin + static_cast<int64_t>(out.size());
    for (int part = 0; part < named.split.parts; ++part) {
      const std::span<const float> held = tests::tensor_of(*job, flats[static_cast<size_t>(part)][holder], p, t);
      named.for_runs(part, 0, named.elems(), [&](int64_t from, int64_t whole, int64_t count) {
        const int64_t first = std::max(begin, whole), last = std::min(end, whole + count);
        if (first < last) std::copy_n(held.begin() + from + first - whole, last - first, out.begin() + first - begin);
      });
    }
  };
}

/// Returns the flat order of what `rank` and the ranks that share its shards hold.
std::vector<float> flat_at(const Job& job, const std::vector<Outcome>& outcomes, int rank,
                           std::vector<float> Held::*what) {
  std::vector<float> flat(static_cast<size_t>(job.layout.flat_elems));
  int64_t at = 0;
  for (size_t b = 0; b < job.storage.size(); ++b) {
    const int64_t elems = job.storage[b].shard_elems;
    float* to = flat.data() + job.layout.buckets[b].offset_elems;
    for (const int holder : job.mesh.group(job.placement_of(b).sharded_over, rank)) {
      std::copy_n((outcomes[static_cast<size_t>(holder)].held.*what).data() + at, elems, to);
      to += elems;
    }
    at += elems;
  }
  return flat;
}

/// Assembles the named tensors as `replica` and the ranks that complete its copy of the model hold them.
void collect(const std::vector<std::shared_ptr<const Job>>& stages, const std::vector<Outcome>& outcomes, int replica,
             Trained& trained) {
  const Mesh& mesh = stages[0]->mesh;
  const auto reads_of = [&](std::vector<float> Held::*what) {
    std::vector<runtime::ReadWeights> reads;
    for (size_t s = 0; s < stages.size(); ++s) {
      std::vector<std::vector<std::vector<float>>> flats(static_cast<size_t>(mesh.group_size(Axis::tensor)));
      Coordinates at = mesh.coordinates(replica);
      at.pipeline = static_cast<int>(s);
      for (at.tensor = 0; at.tensor < std::ssize(flats); ++at.tensor)
        for (const int rank : mesh.group(Axis::expert, mesh.rank(at)))
          flats[static_cast<size_t>(at.tensor)].push_back(flat_at(*stages[s], outcomes, rank, what));
      reads.push_back(read_parts(stages[s], std::move(flats), mesh.index_in_group(Axis::expert, replica)));
    }
    return reads;
  };
  const std::vector<runtime::ReadWeights> weights = reads_of(&Held::weights), gradients = reads_of(&Held::gradients);
  for (const auto& [name, at] : runtime::tensors_of(stages)) {
    trained.names.push_back(name);
    const int64_t elems = stages[at.stage]->model.parameters[at.parameter].tensor(at.tensor).whole_elems();
    const auto copy = [&](const runtime::ReadWeights& read) {
      std::vector<float> tensor(static_cast<size_t>(elems));
      read(at.parameter, at.tensor, 0, tensor);
      return tensor;
    };
    trained.weights.push_back(copy(weights[at.stage]));
    trained.gradients.push_back(copy(gradients[at.stage]));
  }
  trained.hash = hash_of(trained);
}

/// This rank's share of the mean: the number of its tokens, divided by that of whole sequences.
double evaluate(runtime::Rank& rank, const Layout& layout, int context_rank) {
  const ContextChunks chunks = layout.chunks(context_rank);
  std::vector<int32_t> ids, targets, begins;
  for (int64_t row = 0; row < layout.micro_batch; ++row)
    for (int64_t t = 0; t < chunks.local_tokens(); ++t) {
      const int64_t i = row * chunks.tokens + chunks.position(t);
      ids.push_back(token_of(0, i, 0, layout.model.vocab));
      targets.push_back(token_of(0, i, 1, layout.model.vocab));
      begins.push_back(document_begin_of(layout, row, chunks.position(t)));
    }
  double sum = 0;
  for (float loss : rank.evaluate(
           ids, targets, layout.model.documents ? std::span<const int32_t>(begins) : std::span<const int32_t>()))
    sum += loss;  // a stage without the head has none
  rank.drain();
  return sum / static_cast<double>(layout.micro_batch * chunks.tokens);
}

/// Records in `used` the weights that every work of the model reads, when it reads them. For works of a CPU.
void follow_weights(Job& job, UsedWeights& used) {
  std::set<BufferId> weights;
  for (const ParameterSpec& parameter : job.model.parameters) weights.insert(parameter.value);
  for (Piece& piece : job.model.pieces)
    for (Work& work : piece.works)
      for (const Slice& slice : work.reads) {
        if (!weights.contains(slice.buffer)) continue;
        data::Xxh3& hash = used[{static_cast<int64_t>(slice.buffer), slice.begin_bytes, slice.size_bytes}];
        work.fn = [fn = std::move(work.fn), slice, &hash](LaunchContext& c) {
          hash.update(c.at(slice), slice.size_bytes);
          fn(c);
        };
      }
}

UpdateOptions update_of(const Layout& layout) {
  return {.beta1 = 0.9,
          .beta2 = 0.95,
          .eps = layout.eps,
          .weight_decay = 0.1,
          .grad_clip = layout.max_norm,
          .muon_scaling = layout.muon_scaling};
}

}  // namespace

runtime::LoadBatch loader(const Layout& layout, int rank, int64_t& step, int context_rank) {
  return [&layout, rank, &step, chunks = layout.chunks(context_rank)](const runtime::StagedBatch& staged) {
    ++step;
    const int64_t T = chunks.local_tokens();
    ModelSpec model;
    model.batch = layout.micro_batch, model.tokens = T;
    model.documents = layout.model.documents, model.numbers_sequences = layout.model.dropout.any();
    for (int m = 0; m < layout.micro_batches; ++m) {
      auto* ids = reinterpret_cast<int32_t*>(staged.batch + m * staged.stride_bytes);
      int64_t number = layout.same_batch ? 1 : step, first = (m * layout.ranks + rank) * layout.micro_batch;
      if (layout.renumbers) layout.renumbers(number, first);
      runtime::number_sequences(model, staged.batch + m * staged.stride_bytes, number, first);
      auto* targets = ids + layout.micro_batch * T;
      for (int64_t row = 0; row < layout.micro_batch; ++row) {
        const int64_t index = (m * layout.ranks + rank) * layout.micro_batch + row;
        for (int64_t t = 0; t < T; ++t) {
          const int64_t position = chunks.position(t);
          ids[row * T + t] = token_of(layout.same_batch ? 1 : step, index, position, layout.model.vocab);
          targets[row * T + t] = token_of(layout.same_batch ? 1 : step, index, position + 1, layout.model.vocab);
          if (layout.model.documents)
            targets[(layout.micro_batch + row) * T + t] = document_begin_of(layout, index, position);
        }
      }
    }
    size_t first = 0;
    for (const GroupRule& group : layout.groups)
      for (int i = 0; i < (layout.expert > 1 ? 2 : 1); ++i) {  // divided experts are a group of their own
        const size_t count = group.optimizer->scalars.size();
        group.optimizer->write_scalars(update_of(layout), layout.learning_rate * group.rate_factor, step,
                                       staged.scalars.subspan(first, count));
        first += count;
      }
    for (size_t i = 0; first + i < staged.scalars.size(); ++i)
      staged.scalars[first + i] = layout.limits ? layout.limits(step)[i] : std::numeric_limits<float>::infinity();
  };
}

runtime::RankOptions rank_options(const Layout& layout, size_t r) {
  return {.threads = layout.threads,
          .update = update_of(layout),
          .delay_seed = layout.delay_seed + (layout.delay_seed ? r : 0),
          .delay_max_ns = layout.delay_seed ? 400'000 : 0,
          .check_hazards = layout.check_hazards,
          .graph = layout.graph};
}

Outcome run_steps(runtime::Rank& rank, const Layout& layout, const Coordinates& at, int steps) {
  Outcome outcome;
  rank.initialise(3);
  rank.prime();
  const double tokens =
      static_cast<double>(layout.ranks * layout.micro_batch * layout.micro_batches * layout.model.tokens);
  const auto report = [&](int step) {
    const runtime::Rank::Report seen = rank.report(static_cast<uint32_t>(step));
    outcome.seen.losses.push_back(seen.loss_sum / tokens);
    outcome.seen.norms.push_back(seen.norm);
    outcome.seen.skipped.push_back(seen.skipped != 0);
    outcome.seen.first_not_finite.push_back(static_cast<int64_t>(seen.first_not_finite));
  };
  if (layout.at_rest) layout.at_rest(rank, 0);
  for (int step = 1; step <= steps; ++step) {
    const bool saves = layout.save_interval > 0 && step % layout.save_interval == 0;
    std::vector<runtime::Asked> asked;
    if (saves) asked.push_back({PlanKind::save});
    if (layout.keeps) asked.push_back({PlanKind::keep, kept_slot(rank.job().keeping, 1, step)});
    rank.issue(static_cast<uint32_t>(step), asked);
    if (saves && layout.saved) {
      while (!rank.snapshot_done()) std::this_thread::yield();
      layout.saved(rank, step - 1);
    }
    rank.wait_for_all_but(1);
    if (layout.at_rest) layout.at_rest(rank, step);
    if (step > 1) report(step - 1);
    if (layout.evaluate_between) outcome.seen.evaluations.push_back(evaluate(rank, layout, at.context));
  }
  rank.synchronize();
  if (steps > 0) report(steps);
  for (int step = steps; layout.kept && step > std::max(0, steps - rank.job().keeping.slots); --step)
    layout.kept(rank, step - 1, kept_slot(rank.job().keeping, 1, step));
  if (layout.inspect) layout.inspect(rank);
  outcome.held = {tests::shards_of(rank, &BucketStorage::master), tests::shards_of(rank, &BucketStorage::gradient)};
  if (!layout.device) evaluate(rank, layout, at.context);  // reads all weights, including those of the last update
  return outcome;
}

/// Are the values equal to the bit? NaN counts as equal too.
bool same_bits(const std::vector<double>& a, const std::vector<double>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0;
}

Trained combine(const Layout& layout, std::vector<Outcome> outcomes) {
  std::vector<std::shared_ptr<const Job>> stages;
  for (auto& job : make_jobs(layout, 0)) stages.push_back(std::move(job));
  const Mesh mesh = stages[0]->mesh;
  Trained& all = outcomes[0].seen;
  // By stage, by index on the tensor and on the expert axis, and by slice.
  std::map<std::tuple<int, int, int, std::array<int64_t, 3>>, std::string> first_used;
  for (int replica : mesh.group(Axis::replica, 0)) {
    std::string drifted;
    for (size_t r = 0; r < outcomes.size(); ++r) {
      Coordinates at = mesh.coordinates(static_cast<int>(r));
      at.data = mesh.coordinates(replica).data;
      at.context = mesh.coordinates(replica).context;
      if (mesh.rank(at) != static_cast<int>(r)) continue;
      const int expert = mesh.index_in_group(Axis::expert, static_cast<int>(r));
      for (const auto& [slice, hash] : outcomes[r].used) {
        const std::string hex = hash.hex();
        if (first_used.try_emplace({at.pipeline, at.tensor, expert, slice}, hex).first->second != hex) drifted = hex;
      }
    }
    Trained& seen = outcomes[static_cast<size_t>(replica)].seen;
    collect(stages, outcomes, replica, seen);
    all.rank_hashes.push_back(drifted.empty() ? seen.hash : drifted);
  }
  std::vector<double> evaluations(all.evaluations.size(), 0);
  for (int c = 0; c < layout.context; ++c)
    for (int stage = 0; stage < layout.stages; ++stage)  // stages without the head report zeros
      for (size_t i = 0; i < evaluations.size(); ++i)
        evaluations[i] +=
            outcomes[static_cast<size_t>(mesh.rank({.context = c, .pipeline = stage}))].seen.evaluations[i];
  all.evaluations = evaluations;
  // Every rank reports the same loss and norm, whatever its part of the model.
  for (const Outcome& other : outcomes)
    if (!same_bits(other.seen.losses, all.losses) || !same_bits(other.seen.norms, all.norms) ||
        other.seen.skipped != all.skipped || other.seen.first_not_finite != all.first_not_finite)
      throw PlanError("{}: ranks report different losses, norms or verdicts.", layout.name);
  return all;
}

}  // namespace detail

std::vector<Communicators> make_communicators(std::span<const std::unique_ptr<Job>> jobs, bool reverse_ranks) {
  const Mesh& mesh = jobs[0]->mesh;
  const size_t ranks = jobs.size();
  // [rank][connection]: there is a thread world for every group of every connection, and its members are distributed to
  // the ranks.
  std::vector<Communicators> connections(ranks), communicators(ranks);
  for (Axis axis : comm::wire_up(*jobs[0]).connections) {
    for (size_t r = 0; r < ranks; ++r) connections[r].emplace_back();
    for (size_t r = 0; r < ranks; ++r) {
      const std::vector<int> group = mesh.group(axis, static_cast<int>(r));
      if (group[0] != static_cast<int>(r)) continue;
      auto world = comm::make_thread_world(static_cast<int>(group.size()), {.timeout_seconds = 60});
      if (reverse_ranks && axis != Axis::pipeline && axis != Axis::world && axis != Axis::hosts)
        std::reverse(world.begin(), world.end());
      for (size_t i = 0; i < group.size(); ++i) connections[static_cast<size_t>(group[i])].back() = std::move(world[i]);
    }
  }
  for (size_t r = 0; r < ranks; ++r)
    for (int connection : comm::wire_up(*jobs[r]).connection_of)
      communicators[r].push_back(connection < 0 ? nullptr : std::move(connections[r][static_cast<size_t>(connection)]));
  return communicators;
}

Trained train(const Layout& layout, int steps) {
  const size_t ranks = static_cast<size_t>(layout.world());
  std::vector<std::unique_ptr<Job>> jobs;
  std::vector<detail::UsedWeights> used(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    jobs.push_back(make_job(layout, static_cast<int>(r)));
    if (!layout.device) detail::follow_weights(*jobs.back(), used[r]);
    if (layout.mutate) {
      layout.mutate(*jobs.back());
      if (layout.double_buffer) swap_buffers(*jobs.back());
    }
  }
  const Mesh mesh = jobs[0]->mesh;
  std::vector<Communicators> communicators = make_communicators(jobs, layout.reverse_ranks);
  std::vector<detail::Outcome> outcomes(ranks);
  std::vector<runtime::Rank*> running(ranks, nullptr);
  std::mutex mutex;
  std::exception_ptr failure;
  const auto body = [&](size_t r) {
    const Coordinates at = mesh.coordinates(static_cast<int>(r));
    int64_t staged = 0;
    try {
      std::unique_ptr<Device> device = layout.device ? layout.device(*jobs[r]) : make_cpu_device();
      runtime::Rank rank(std::move(jobs[r]), std::move(device), std::move(communicators[r]),
                         detail::rank_options(layout, r), detail::loader(layout, at.data, staged, at.context));
      {
        std::lock_guard lock(mutex);
        running[r] = &rank;
      }
      try {
        outcomes[r] = detail::run_steps(rank, layout, at, steps);
        outcomes[r].used = std::move(used[r]);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        for (runtime::Rank* other : running)
          if (other) other->abort("[test] another rank has failed.");
      }
      std::lock_guard lock(mutex);
      running[r] = nullptr;
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks; ++r) threads.emplace_back(body, r);
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  return detail::combine(layout, std::move(outcomes));
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double largest = 0, difference = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
    difference = std::max(difference, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return largest > 0 ? difference / largest : difference;
}

double difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b, double floor) {
  double all = 0, worst = 0;
  for (const auto& tensor : b)
    for (float x : tensor) all = std::max(all, std::abs(static_cast<double>(x)));
  for (size_t t = 0; t < b.size(); ++t) {
    double largest = floor * all, difference = 0;
    for (size_t i = 0; i < b[t].size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(b[t][i])));
      difference = std::max(difference, std::abs(static_cast<double>(a[t][i]) - static_cast<double>(b[t][i])));
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

}  // namespace slipstream::equivalence
