// SPDX-License-Identifier: Apache-2.0
#pragma once
// Chooses the engine of each communication channel and its share of the card. This happens once per job, from the run
// file, comm.nccl and the table of the card.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/nccl_table.h"
#include "comm/rehearse/rehearse.h"
#include "engine/base/json.h"
#include "engine/plan/job.h"
#include "trainer/planner/options/job_request.h"

namespace slipstream::planner {

struct ChannelEngine {
  ChannelId channel = 0;
  std::string name;
  Engine engine = Engine::nic;
  int blocks = 0;         // see Channel::blocks
  int cluster_size = -1;  // of the blocks; -1: NCCL chooses
  std::string why;        // the origin of the choice, such as "H100, NVLink"
};

/// The engines of a job on GPUs. Empty on CPUs, where the rehearsal has no price for what transfers occupy.
struct Engines {
  std::vector<ChannelEngine> channels;  // those with several ranks
  comm::NcclTable nccl;                 // for each of these channels: comm.nccl, completed from the table of the card
  int64_t products = 0;                 // the smallest SpineItem::multiprocessors of the training step; 0: none is set
  int64_t products_planned = 0;         // the number of spine items with a value

  bool occupy_multiprocessors() const;
};

/// Pure except for NCCL_* in the environment, which take precedence over tables.
///
/// An emulated link takes what comm.emulate.form names. The real transfer behind it is short and takes nothing here.
Engines choose_engines(const JobRequest& request, const Mesh& mesh, const std::vector<Channel>& channels);

/// Writes the choice to the channels of a job, and the multiprocessors of products to its training plans. An item is
/// planned for the rest of the card if transfers by blocks accompany it for at least a quarter of its rehearsed time:
/// beside 16 of 132, products for the whole card take 30 to 40 % longer (PyTorch issue 179937), and those for the rest
/// take 14 % longer when they are alone.
void set_engines(const Engines& engines, Job& job);
/// `rehearsal` has three steps of these stages in a row, on cards of `multiprocessors`.
void plan_products(const std::vector<std::shared_ptr<Job>>& stages, const comm::Rehearsal& rehearsal,
                   int64_t multiprocessors, Engines& engines);

/// Returns by channel the engine, its reason, and blocks and cluster_size if they are set. "products" are those beside
/// transfers. Pure.
Json engines_json(const Engines& engines);

/// Returns "reduce: sm, at most 16 blocks in clusters of 2 (H100, NVLink)" for each channel, and a line about products.
/// Pure.
std::vector<std::string> engine_lines(const Engines& engines, const Machine& machine);

}  // namespace slipstream::planner
