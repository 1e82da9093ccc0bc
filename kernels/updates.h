// SPDX-License-Identifier: Apache-2.0
#pragma once
// The update tasks of a plan as works: the table of every optimizer's kernel.

#include <functional>

#include "engine/plan/job.h"

namespace slipstream::kernels {

/// The work of an update task, by the optimizer of its group. Copies what it needs of `job`.
std::function<void(LaunchContext&)> update_work(const Job& job, const Item& item, const UpdateOptions& update);

}  // namespace slipstream::kernels
