// SPDX-License-Identifier: Apache-2.0
// The names in a plan as text, and the load of a route.

#include "engine/plan/plan.h"

#include <algorithm>

#include "engine/base/units.h"

namespace slipstream {

int64_t balanced_elems(const Route& route, int ranks) {
  // Equal loads give an owner as many rows as a source has.
  const int64_t rows = std::max<int64_t>(std::min(route.source_rows - route.begin_rows, route.bound_rows), 0);
  return ceil_div(rows, ranks) * route.row_elems;
}

const char* name_of(Op op) {
  switch (op) {
    case Op::compute:
      return "compute";
    case Op::all_reduce:
      return "all_reduce";
    case Op::reduce_scatter:
      return "reduce_scatter";
    case Op::all_gather:
      return "all_gather";
    case Op::all_to_all:
      return "all_to_all";
    case Op::send:
      return "send";
    case Op::recv:
      return "recv";
    case Op::exchange:
      return "exchange";
    case Op::sum_squares:
      return "sum_squares";
    case Op::clip:
      return "clip";
    case Op::update:
      return "update";
    case Op::add:
      return "add";
    case Op::add_rows:
      return "add_rows";
    case Op::encode:
      return "encode";
    case Op::decode:
      return "decode";
    case Op::sum_parts:
      return "sum_parts";
    case Op::copy:
      return "copy";
    case Op::load:
      return "load";
    case Op::report:
      return "report";
    case Op::snapshot:
      return "snapshot";
    case Op::seal:
      return "seal";
    case Op::all_to_all_v:
      return "all_to_all_v";
  }
  return "?";
}

const char* name_of(Engine engine) {
  switch (engine) {
    case Engine::sm:
      return "sm";
    case Engine::copy:
      return "copy";
    case Engine::nic:
      return "nic";
  }
  return "?";
}

const char* name_of(Role role) {
  switch (role) {
    case Role::compute:
      return "compute";
    case Role::h2d:
      return "h2d";
    case Role::update:
      return "update";
    case Role::pipe_fwd_in:
      return "pipe_fwd_in";
    case Role::pipe_fwd_out:
      return "pipe_fwd_out";
    case Role::pipe_bwd_in:
      return "pipe_bwd_in";
    case Role::pipe_bwd_out:
      return "pipe_bwd_out";
    case Role::tied:
      return "tied";
    case Role::align:
      return "align";
    case Role::scalars:
      return "scalars";
    case Role::norm:
      return "norm";
    case Role::tensor_reduce:
      return "tensor_reduce";
    case Role::tensor_gather:
      return "tensor_gather";
    case Role::experts:
      return "experts";
    case Role::ring:
      return "ring";
    case Role::ring_gradients:
      return "ring_gradients";
    case Role::reduce:
      return "reduce";
    case Role::gather:
      return "gather";
    case Role::reduce_across:
      return "reduce_across";
    case Role::save:
      return "save";
    case Role::keep:
      return "keep";
    case Role::peer:
      return "peer";
  }
  return "?";
}

}  // namespace slipstream
