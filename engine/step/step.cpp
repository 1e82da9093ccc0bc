// SPDX-License-Identifier: Apache-2.0
// Walks the spine of a plan in its order.

#include "engine/step/step.h"

#include "engine/base/check.h"

namespace slipstream {

Step::Step(const Job& job, const Memory& memory, Stream& compute, PointListener& listener)
    : job_(job), memory_(memory), compute_(compute), listener_(listener) {}

void Step::bind(const Plan& plan, const BoundWorks& works, uint32_t first_item) {
  SLIP_ASSERT(works.size() == plan.size());
  bound_[&plan] = {&works, first_item};
}

void Step::run(const Plan& plan, uint32_t step) {
  const Bound& bound = bound_.at(&plan);
  const BoundWorks& works = *bound.works;
  Frame frame{.memory = &memory_, .step = step};
  listener_.begin(plan, frame);
  for (ItemId i = 0; i < plan.spine.size(); ++i) {
    const SpineItem& item = plan.spine[i];
    frame.item = bound.first_item + i;
    frame.micro_batch = item.micro_batch;
    frame.slot = item.slot;
    frame.accumulate = item.accumulate;
    frame.multiprocessors = item.multiprocessors;
    frame.rebinds = item.rebinds.data();
    frame.rebind_count = static_cast<uint32_t>(item.rebinds.size());
    listener_.before(i, compute_, frame);
    if (item.op == Op::compute && !works[i].fn)
      for (const Work& work : job_.model.pieces[item.piece].works) compute_.launch(work, frame);
    else
      compute_.launch(works[i], frame);
    listener_.reached(i, compute_, frame);
  }
}

}  // namespace slipstream
