// SPDX-License-Identifier: Apache-2.0
// Rank 0 requests a range of a stage's flat order, and every rank answers with its part.

#include "trainer/runtime/weights/shared_weights.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "engine/base/check.h"

namespace slipstream::runtime {
namespace {

/// The elements [begin, end) of the flat order of a part of a stage, which belong to one parameter; empty: no further
/// request follows.
struct Request {
  int64_t stage = 0, part = 0;  // the index on the tensor axis
  int64_t expert_rank = -1;     // as NamedTensor::expert_rank
  int64_t begin = 0, end = 0;
};

/// Returns the ranks that together hold what is requested, in the order of their shards. Other ranks hold replicas.
std::vector<int> holders_of(const Job& job, const Request& request) {
  int first = job.mesh.rank({.pipeline = static_cast<int>(request.stage), .tensor = static_cast<int>(request.part)});
  if (request.expert_rank >= 0) first = job.mesh.group(Axis::expert, first)[static_cast<size_t>(request.expert_rank)];
  const auto bucket = std::find_if(job.layout.buckets.begin(), job.layout.buckets.end(),
                                   [&](const Bucket& each) { return request.begin < each.offset_elems + each.elems; });
  SLIP_ASSERT(bucket != job.layout.buckets.end());
  return job.mesh.group(job.groups[bucket->group].placement.sharded_over, first);
}

class SharedWeights {
 public:
  SharedWeights(World& world, Rank& rank, const std::vector<std::shared_ptr<const Job>>& stages)
      : world_(world), rank_(rank), stages_(stages) {}

  /// Reads the whole tensor. Each part holds runs of it, which are stored one after another.
  void read(size_t stage, size_t parameter, size_t tensor, int64_t begin, std::span<float> out) {
    const NamedTensor& named = stages_[stage]->model.parameters[parameter].tensor(tensor);
    const int64_t end = begin + static_cast<int64_t>(out.size());
    for (int part = 0; part < named.split.parts; ++part) {
      const auto for_wanted = [&](const auto& visit) {
        named.for_runs(part, 0, named.elems(), [&](int64_t held, int64_t whole, int64_t count) {
          const int64_t first = std::max(begin, whole), last = std::min(end, whole + count);
          if (first < last) visit(held + first - whole, first - begin, last - first);
        });
      };
      int64_t low = named.elems(), high = 0;
      for_wanted([&](int64_t held, int64_t, int64_t count) {
        low = std::min(low, held), high = std::max(high, held + count);
      });
      if (low >= high) continue;
      std::vector<float> held(static_cast<size_t>(high - low));
      read_part({static_cast<int64_t>(stage), part, named.expert_rank}, parameter, tensor, low, held);
      for_wanted([&](int64_t from, int64_t to, int64_t count) {
        std::copy_n(held.begin() + (from - low), count, out.begin() + to);
      });
    }
  }

  void stop() { ask({}); }

  /// Answers requests until rank 0 stops.
  void answer() {
    std::exception_ptr failure;
    for (;;) {
      Request request;
      const std::string asked = world_.all_gather("", "weights")[0];
      SLIP_ASSERT(asked.size() == sizeof request);
      std::memcpy(&request, asked.data(), sizeof request);
      if (request.begin == request.end) break;
      std::string part;
      try {
        part = held(request);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
      world_.all_gather(part, "weights");
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  /// Reads the tensor in the layout of one part.
  void read_part(Request request, size_t parameter, size_t tensor, int64_t begin, std::span<float> out) {
    const Job& job = *stages_[static_cast<size_t>(request.stage)];
    const int64_t from =
        job.layout.parameter_offsets[parameter] + job.model.parameters[parameter].tensor(tensor).begin_elems + begin;
    request.begin = from, request.end = from + static_cast<int64_t>(out.size());
    const std::vector<int> holders = holders_of(job, request);
    const std::vector<std::string> answers = ask(request);
    std::vector<size_t> taken(answers.size(), 0);
    // Every rank answers bucket by bucket.
    for (size_t b = 0; b < job.storage.size(); ++b)
      for (size_t i = 0; i < holders.size(); ++i) {
        const int64_t shard = job.layout.buckets[b].offset_elems + static_cast<int64_t>(i) * job.storage[b].shard_elems;
        const int64_t first = std::max(from, shard),
                      last = std::min(from + static_cast<int64_t>(out.size()), shard + job.storage[b].shard_elems);
        if (first >= last) continue;
        const auto holder = static_cast<size_t>(holders[i]);
        const auto size_bytes = static_cast<size_t>(4 * (last - first));
        if (taken[holder] + size_bytes > answers[holder].size())
          throw CommError("[weights] rank {} did not send its part of stage {}.", holder, request.stage);
        std::memcpy(out.data() + (first - from), answers[holder].data() + taken[holder], size_bytes);
        taken[holder] += size_bytes;
      }
  }

  std::vector<std::string> ask(const Request& request) {
    world_.all_gather({reinterpret_cast<const char*>(&request), sizeof request}, "weights");
    return request.begin == request.end ? std::vector<std::string>{} : world_.all_gather(held(request), "weights");
  }

  /// Returns this rank's part of the range, if the request addresses it.
  std::string held(const Request& request) {
    const std::vector<int> holders = holders_of(*stages_[static_cast<size_t>(request.stage)], request);
    if (std::find(holders.begin(), holders.end(), world_.rank()) == holders.end()) return {};
    const std::vector<float> values = rank_.held(&BucketStorage::master, request.begin, request.end);
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }

  World& world_;
  Rank& rank_;
  const std::vector<std::shared_ptr<const Job>>& stages_;
};

}  // namespace

void with_weights(World& world, Rank& rank, const std::vector<std::shared_ptr<const Job>>& stages,
                  const std::function<void(const std::vector<ReadWeights>&)>& use) {
  if (!rank.job().sharding().states && stages.size() == 1 && rank.job().mesh.group_size(Axis::tensor) == 1 &&
      rank.job().mesh.group_size(Axis::expert) == 1) {
    if (world.rank() == 0)
      use({[&rank](size_t p, size_t t, int64_t begin, std::span<float> out) {
        rank.read(&BucketStorage::master, p, t, begin, out);
      }});
    return;
  }
  SharedWeights shared(world, rank, stages);
  if (world.rank() != 0) return shared.answer();
  std::vector<ReadWeights> reads;
  for (size_t stage = 0; stage < stages.size(); ++stage)
    reads.push_back([&shared, stage](size_t p, size_t t, int64_t begin, std::span<float> out) {
      shared.read(stage, p, t, begin, out);
    });
  try {
    use(reads);
  } catch (...) {
    shared.stop();
    throw;
  }
  shared.stop();
}

}  // namespace slipstream::runtime
