// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cost of items in virtual time. Local work is priced by roofline or by measurement, communication by its link.

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "comm/link.h"
#include "comm/rehearse/kernel_price.h"
#include "comm/rehearse/nccl_price.h"
#include "engine/config/host_times.h"
#include "engine/plan/plan.h"

namespace slipstream::comm {

/// The cores of a host that its ranks share. The threads of compute and of transfers in flight divide them.
struct SharedCores {
  int cores = 0;    // 0: every rank has its own
  int ranks = 1;    // the number of ranks of the host
  int threads = 1;  // the threads of a rank's compute
};

/// Pure: the same plan, item and axis always have the same cost, on every rank.
class Price {
 public:
  virtual ~Price() = default;
  /// The time of a compute item or local task.
  virtual int64_t local_ns(const Plan& plan, ItemId item) const = 0;
  /// The time that the host needs to launch an item's kernels one by one, ahead of the card; 0: it is hidden. The host
  /// reads each message between stages, and the loss of a step, before it continues.
  virtual int64_t host_ns(const Plan& /*plan*/, ItemId /*item*/) const { return 0; }
  virtual Link link(Axis axis) const = 0;
  /// Channels whose axes have the same port share the bandwidth of the port. 0 for all axes, or one number per level of
  /// links.
  virtual uint32_t port(Axis /*axis*/) const { return 0; }
  /// The multiprocessors of a rank's card. While transfers of channels on Engine::sm occupy c of these m, local work of
  /// the rank proceeds at (m - c) / m of its speed, with at least one left. 0: transfers do not slow local work.
  ///
  /// Source: a block of NCCL's collectives has 512 to 640 threads of 91 to 96 registers (kernels/hold/hold.h) and
  /// leaves no room for blocks of products or attention. The share assumes products that are planned for the rest of
  /// the card (SpineItem::multiprocessors), and attention whose blocks spread over it.
  virtual int64_t multiprocessors() const { return 0; }
  virtual SharedCores shared_cores() const { return {}; }
  /// The time of a core that a communication task takes from its rank's host.
  virtual int64_t core_ns(const Plan& /*plan*/, ItemId /*item*/, int /*ranks*/) const { return 0; }
  /// The cost of a communication task in a group of `ranks`: wire_cost() on link(axis), unless overridden.
  virtual WireCost wire(const Plan& plan, ItemId item, Axis axis, int ranks) const;
};

/// Upper limits of the speed of a rank.
struct Rates {
  double flops_per_second = 0;              // 0: unlimited
  double bytes_per_second = 0;              // 0: unlimited
  int64_t launch_ns = 0;                    // added to every local item
  int64_t multiprocessors = 0;              // as Price::multiprocessors()
  double snapshot_bytes_per_second = 0;     // of the bytes that snapshots read and write together; 0: bytes_per_second
  double seal_bytes_per_second = 0;         // of the hashes of snapshots; 0: bytes_per_second
  std::optional<KernelRates> kernels = {};  // if set, they price every kernel by its shape, and a launch for each
  int64_t host_ns = 0;                      // the host's time for one kernel of an item on the compute stream
  std::shared_ptr<const HostTimes> measured = {};  // on a host of CPUs; they replace all rates
  SharedCores shared = {};
  bool emulated = false;  // transfers also pass an emulated link
};

/// A roofline: max(flops / F, bytes / B) + launch (Williams, Waterman, Patterson 2009). With Rates::kernels it is the
/// sum over kernels by shape. Copies to host memory have a rate of their own.
class RooflinePrice : public Price {
 public:
  RooflinePrice(const Rates& rates, const Link& link) : rates_(rates) { links_.fill(link); }
  void set_link(Axis axis, const Link& link, uint32_t port);
  /// Groups of `axis` communicate by NCCL.
  void set_group(Axis axis, const GroupSpan& span, const Fabric& fabric);
  /// Pure. Time without the launch.
  double seconds(const Cost& cost) const;
  int64_t local_ns(const Plan& plan, ItemId item) const override;
  int64_t host_ns(const Plan& plan, ItemId item) const override;
  Link link(Axis axis) const override { return links_[static_cast<size_t>(axis)]; }
  uint32_t port(Axis axis) const override { return ports_[static_cast<size_t>(axis)]; }
  int64_t multiprocessors() const override { return rates_.multiprocessors; }
  SharedCores shared_cores() const override { return rates_.shared; }
  int64_t core_ns(const Plan& plan, ItemId item, int ranks) const override;
  WireCost wire(const Plan& plan, ItemId item, Axis axis, int ranks) const override;
  /// Pure. The price of one task without a plan.
  WireCost wire(Op op, Algorithm algorithm, Axis axis, int ranks, int64_t elems, DType dtype) const;

 private:
  struct KernelHash {
    size_t operator()(const KernelCost& kernel) const;
  };

  int64_t launches(const Cost& cost) const;
  double seconds(const KernelCost& kernel) const;
  double measured_seconds(const Cost& cost) const;
  const WorkTimes& works() const { return rates_.measured->at(rates_.shared.threads); }

  // A step has few shapes and many kernels. The cache is not for several threads, so each copies the price.
  mutable std::unordered_map<KernelCost, double, KernelHash> known_;
  Rates rates_;
  std::array<Link, kAxes> links_;
  std::array<uint32_t, kAxes> ports_{};
  std::array<GroupSpan, kAxes> spans_{};  // one rank: NCCL does not price it
  Fabric fabric_;
};

/// Measured durations where they exist, and another price elsewhere. Measured local work has met the transfers of its
/// run, so it is not slowed again: multiprocessors() is 0. Borrows `otherwise`.
class MeasuredPrice : public Price {
 public:
  explicit MeasuredPrice(const Price& otherwise) : otherwise_(otherwise) {}
  /// One duration per item of `plan`; negative: not measured. The duration of a communication task is its wire time.
  void set(const Plan& plan, std::vector<int64_t> item_ns) { measured_[&plan] = std::move(item_ns); }
  int64_t local_ns(const Plan& plan, ItemId item) const override;
  Link link(Axis axis) const override { return otherwise_.link(axis); }
  uint32_t port(Axis axis) const override { return otherwise_.port(axis); }
  WireCost wire(const Plan& plan, ItemId item, Axis axis, int ranks) const override;

 private:
  int64_t measured_ns(const Plan& plan, ItemId item) const;

  const Price& otherwise_;
  std::map<const Plan*, std::vector<int64_t>> measured_;
};

}  // namespace slipstream::comm
