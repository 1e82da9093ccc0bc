// SPDX-License-Identifier: Apache-2.0
// The rules of attention whose keys travel around a ring of context ranks.

#include <algorithm>

#include "comm/rehearse/stage_types.h"
#include "engine/base/format.h"

namespace slipstream::comm {

Share StageTypes::joined_window(const Share& a, const Share& b, const std::string& name) {
  const auto n = static_cast<int16_t>(size_of_axis(Axis::context));
  const auto end = [&](const Share& s) { return (s.first + s.terms) % n; };
  if (a.dim != b.dim || a.shift != b.shift || a.is_complete() || b.is_complete() || a.terms + b.terms > n ||
      (end(a) != b.first && end(b) != a.first))
    refuse(name, name_of(Axis::context),
           fmt::format("is a sum of {} terms from rank +{} and {} terms from rank +{}, of keys of ranks +{} and +{}",
                       a.terms, a.first, b.terms, b.first, a.shift, b.shift));
  Share sum = end(a) == b.first ? a : b;
  sum.terms = static_cast<int16_t>(a.terms + b.terms);
  if (sum.terms == n) sum.first = sum.terms = 0;
  return sum;
}

void StageTypes::ring_block(const SpineItem& item, const Work& work) {
  Type out;
  take(out, operand(item, work, 0), buffer_name(work.reads[0]));
  const int step = work.meaning.step;
  Share window{.dim = Dim::tokens, .first = static_cast<int16_t>(step), .terms = 1};
  if (step > 0) {
    const size_t last = work.reads.size() - 1;
    const Type keys = operand(item, work, last - 1), carried = operand(item, work, last);
    if (keys.context.dim != Dim::tokens || keys.context.shift != step || keys.micro_batch != out.micro_batch ||
        keys.layer != out.layer || keys.tensor != out.tensor)
      refuse(buffer_name(work.reads[last - 1]), name_of(Axis::context),
             fmt::format("has the keys of rank +{} in step {}: {}", keys.context.shift, step, words(keys)));
    window = joined_window(carried.context, window, buffer_name(work.reads[last]));
  }
  out.context = window;
  if (work.meaning.results == 2 && !window.is_complete())
    refuse(buffer_name(work.writes[0]), name_of(Axis::context),
           fmt::format("is attention to the keys of {} of {} ranks", window.terms, size_of_axis(Axis::context)));
  results(item, work, out);
}

void StageTypes::ring_gradient(const SpineItem& item, const Work& work) {
  const int step = work.meaning.step;
  const size_t first = 0, sum = 4;  // dout, qkv, out, lse, and the sum of the gradients of q so far
  Type d;
  for (size_t i = first; i < sum; ++i) take(d, operand(item, work, i), buffer_name(work.reads[i]));
  const Type qkv = operand(item, work, 1), carried = operand(item, work, sum);
  if (step > 0) {
    const Type keys = operand(item, work, work.reads.size() - 1);
    if (keys.context.dim != Dim::tokens || keys.context.shift != step || keys.micro_batch != qkv.micro_batch ||
        keys.layer != qkv.layer || keys.tensor != d.tensor)
      refuse(buffer_name(work.reads.back()), name_of(Axis::context),
             fmt::format("has the keys of rank +{} in step {}: {}", keys.context.shift, step, words(keys)));
  }
  d.layer = job_.model.pieces[item.piece].layer;
  Type keys = d, q = d;

  keys.context = {.dim = Dim::tokens, .shift = static_cast<int16_t>(step), .terms = 1};
  const Share own{.dim = Dim::tokens, .first = static_cast<int16_t>(step), .terms = 1};
  q.context = carried.kind == Kind::zero ? own : joined_window(carried.context, own, buffer_name(work.reads[sum]));
  if (step == 0 && !q.context.is_complete())
    refuse(buffer_name(work.writes[1]), name_of(Axis::context),
           fmt::format("has the terms of {} of {} ranks' keys", q.context.terms, size_of_axis(Axis::context)));
  map_.write(at(item, work.writes[0]), keys);
  map_.write(at(item, work.writes[1]), q);
  for (size_t i = 2; i < work.writes.size(); ++i) map_.erase(at(item, work.writes[i]));
}

}  // namespace slipstream::comm
