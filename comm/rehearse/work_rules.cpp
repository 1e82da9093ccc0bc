// SPDX-License-Identifier: Apache-2.0
// The rules of works (engine/device/meaning.h), which derive the types of their results from those of their operands.

#include <algorithm>
#include <tuple>

#include "comm/rehearse/stage_types.h"

namespace slipstream::comm {

Slice StageTypes::at(const SpineItem& item, const Slice& slice) const {
  return job_.buffers.resolve(slice, item.rebinds, item.micro_batch, item.slot);
}

void StageTypes::spine_item(const SpineItem& item) {
  for (const Work& each : job_.model.pieces[item.piece].works) {
    work_ = &each;
    work(item, each);
    ++works;
  }
  work_ = nullptr;
}

/// The type of all bytes, which must be one.
Type StageTypes::uniform(const Slice& where) {
  if (const Type* type = map_.only(where)) return *type;
  const Runs runs = map_.read(where);
  int64_t end = 0;
  for (const Run& run : runs) {
    if (run.begin > end) break;
    end = run.end;
    Type expected = moved(runs[0].type, run.begin);
    if (run.type != expected)
      refuse(buffer_name(where), kElements,
             fmt::format("has parts of different types: {}; {}", words(runs[0].type), words(run.type)));
  }
  if (end < where.size_bytes)
    refuse(buffer_name(where), kAllAxes, "is read although nothing complete was written there");
  return runs[0].type;
}

/// The weight that a work names. It must be there, whole, and of this step.
Type StageTypes::weight(const Slice& named, const Slice& where) {
  const auto p = static_cast<size_t>(value_of_[named.buffer]);
  const ParameterSpec& parameter = job_.model.parameters[p];
  const int64_t elem_bytes = size_of(job_.model.dtype),
                first = job_.layout.parameter_offsets[p] + named.begin_bytes / elem_bytes;
  int64_t end = 0;
  for (const Run& run : map_.read(where)) {
    const Type& type = run.type;
    if (run.begin > end) break;
    end = run.end;
    if (type.kind != Kind::weight || type.first != first + run.begin / elem_bytes)
      refuse(parameter.name(), kElements,
             fmt::format("is read where memory has {} of {}", words(type),
                         type.first < 0 ? "no tensor" : tensor_at(type.first)));
    if (type.shard != Axis::self || type.version != 0)
      refuse(parameter.name(), name_of(kTokenRanks), fmt::format("is read where memory has {}", words(type)));
  }
  if (end < where.size_bytes) refuse(parameter.name(), kElements, "is read although its memory has no weights");
  const Split& split = parameter.tensors.front().split;
  Type type{.kind = Kind::weight};
  if (split.parts > 1) type.tensor = part(Axis::tensor, split.dim == 0 ? Dim::rows : Dim::columns);
  if (parameter.is_of_experts()) type.routed = Axis::expert, type.rows = Rows::of_experts;
  return type;
}

Type StageTypes::operand(const SpineItem& item, const Work& work, size_t i) {
  const Slice& named = work.reads[i];
  if (is_neutral_[named.buffer]) return {.kind = Kind::neutral};
  const Slice where = at(item, named);
  if (is_neutral_[where.buffer]) return {.kind = Kind::neutral};
  if (value_of_[named.buffer] >= 0) return weight(named, where);
  Type type = uniform(where);
  if (type.rows == Rows::of_tokens && is_own_part_of_tokens(named, type.routed))
    type.rows = Rows::own, type.routed = Axis::self;
  return type;
}

/// If every rank has the rows, the operand may be the rank's own part: `named` then lies there in a chunk of all
/// tokens.
bool StageTypes::is_own_part(const Slice& named) const {
  return named.begin_bytes % named.size_bytes == 0 &&
         named.begin_bytes / named.size_bytes % size_of_axis(Axis::tensor) == index_on(Axis::tensor);
}

/// Adds an operand to `all`. It must belong to the same rows.
void StageTypes::take(Type& all, const Type& next, const std::string& name) {
  if (next.kind == Kind::neutral || next.kind == Kind::weight) return;
  if (next.kind == Kind::tally) return take_tally(all, next, name);
  if (next.kind != Kind::activation && next.kind != Kind::derivative)
    refuse(name, kAllAxes, fmt::format("is {}, which is no operand of a row", words(next)));
  if (next.tensor.is_partial())
    refuse(name, name_of(Axis::tensor), fmt::format("is {}: its sum over tensor is missing", words(next)));
  if (next.rows == Rows::partial)
    refuse(name, name_of(next.routed),
           fmt::format("is {}: its sum over {} is missing", words(next), name_of(next.routed)));
  if (next.context.is_partial()) refuse(name, name_of(Axis::context), fmt::format("is {}", words(next)));
  if (next.returned != 0)
    refuse(name, name_of(Axis::expert), fmt::format("is {}: the others are missing", words(next)));
  if (all.kind == Kind::none) {
    all = next;
    return;
  }
  if (all.tensor != next.tensor)
    refuse(name, name_of(Axis::tensor), fmt::format("is {}, but the other operand is {}", words(next), words(all)));
  if (all.context != next.context)
    refuse(name, name_of(Axis::context), fmt::format("is {}, but the other operand is {}", words(next), words(all)));
  if (all.rows != next.rows || all.routed != next.routed || all.routed_by != next.routed_by || all.round != next.round)
    refuse(name, name_of(Axis::expert), fmt::format("is {}, but the other operand is {}", words(next), words(all)));
  if (all.micro_batch != next.micro_batch)
    refuse(name, kMicroBatches,
           fmt::format("is of micro-batch {}, but the other operand is of micro-batch {}", next.micro_batch,
                       all.micro_batch));
  if (next.kind != Kind::derivative) return;
  if (all.kind == Kind::derivative && all.mean_over != next.mean_over)
    refuse(name, kTokens,
           fmt::format("belongs to a mean over {} tokens, but the other operand to one over {}", next.mean_over,
                       all.mean_over));
  all.kind = Kind::derivative;
  all.mean_over = next.mean_over;
}

/// The type of the operands [first, end), without the gradients to which sums add.
Type StageTypes::joined(const SpineItem& item, const Work& work, size_t first, size_t end) {
  Type all;
  Slice first_read;  // of the first operand
  const Meaning& meaning = work.meaning;
  for (size_t i = first; i < std::min(end, work.reads.size()); ++i) {
    const Slice& read = work.reads[i];
    bool is_sum = gradient_of_[read.buffer] >= 0;
    for (size_t s = 0; s < meaning.sums; ++s) is_sum |= work.writes[meaning.results + s] == read;
    if (is_sum) continue;
    Type next = operand(item, work, i);
    if (all.kind != Kind::none && next.tensor != all.tensor)
      for (const auto& [whole, other, slice] : {std::tuple{&next, &all, &read}, {&all, &next, &first_read}})
        if (whole->tensor == Share{} && other->tensor == Share{.dim = Dim::tokens} && is_own_part(*slice))
          whole->tensor = other->tensor;
    if (all.kind == Kind::none) first_read = read;
    take(all, next, buffer_name(read));
  }
  return all;
}

void StageTypes::results(const SpineItem& item, const Work& work, Type type) {
  if (type.micro_batch >= 0) type.layer = job_.model.pieces[item.piece].layer;

  for (size_t i = 0; i < work.meaning.results; ++i) map_.write(at(item, work.writes[i]), type);
  for (size_t i = size_t{work.meaning.results} + work.meaning.sums; i < work.writes.size(); ++i)
    map_.erase(at(item, work.writes[i]));
}

bool StageTypes::adds(const SpineItem& item, const Work& work) const {
  const Adds adds = work.meaning.adds;
  return adds == Adds::always || (adds == Adds::as_planned && item.accumulate) ||
         (adds == Adds::later_passes && item.micro_batch > 0);
}

/// The rows of `rows`, which is a part of its buffer, in this micro-batch.
Term StageTypes::term_of(const SpineItem& item, const Work& work, const Slice& rows) const {
  int64_t of = job_.buffers[rows.buffer].size_bytes;
  for (const Rebind& rebind : item.rebinds)
    if (rebind.from == rows.buffer) of = rebind.to.size_bytes;
  Term term{.use = work.meaning.use,
            .micro_batch = item.micro_batch,
            .micro_batch_end = item.micro_batch + 1,
            .begin = rows.begin_bytes,
            .end = rows.end_bytes(),
            .of = of};
  if (term.is_whole()) term.begin = 0, term.end = term.of = 1;
  return term;
}

/// A gradient from derivatives. Every rank that has other tokens has a term.
Type StageTypes::sum_over_rows(const Type& of, const Term& term) {
  Type type{.kind = Kind::gradient, .terms = shared_.pool.intern({term}), .mean_over = of.mean_over};
  if (of.routed != Axis::self) {  // the rows of all ranks of the axis
    type.summed = bit_of(of.routed);
    if (is_complete(type, kTokenRanks)) type.summed = bit_of(kTokenRanks);
  }
  if (size_of_axis(Axis::context) > 1 && (of.context.dim != Dim::tokens || of.context.shift != 0))
    refuse(buffer_name(work_->writes[0]), name_of(Axis::context),
           fmt::format("has operands that are {}, and needs parts over tokens", words(of)));
  type.tensor = of.tensor.dim == Dim::tokens     ? partial(Axis::tensor)
                : of.tensor.dim == Dim::features ? Share{.dim = Dim::rows}
                                                 : of.tensor;
  if (work_->meaning.over_heads && type.tensor.dim != Dim::whole) type.tensor = partial(Axis::tensor);
  return type;
}

void StageTypes::sums(const SpineItem& item, const Work& work, const Type& type, size_t first) {
  for (size_t i = first; i < work.meaning.sums; ++i) add_to(item, work, work.writes[work.meaning.results + i], type);
}

void StageTypes::add_to(const SpineItem& item, const Work& work, const Slice& named, Type type) {
  const Slice where = at(item, named);
  const TiedEmbedding& tied = job_.model.tied;
  const int64_t p = gradient_of_[named.buffer] >= 0                             ? gradient_of_[named.buffer]
                    : tied.split && !tied.as_rows && named.buffer == tied.dense ? int64_t{tied.parameter}
                                                                                : -1;
  if (p >= 0) {
    type.first = job_.layout.parameter_offsets[static_cast<size_t>(p)] + named.begin_bytes / 4;
    type.elem_bytes = 4;
  }
  if (!adds(item, work)) return map_.write(where, type);
  Runs old = map_.read(where);
  int64_t end = 0;
  for (Run& run : old) {
    if (run.begin > end) break;
    end = run.end;
    run.type = sum(run.type, moved(type, run.begin));
  }
  if (end < where.size_bytes)
    refuse(p >= 0 ? job_.model.parameters[static_cast<size_t>(p)].name() : buffer_name(named), kElements,
           "is added to memory that has no gradient");
  map_.write(where, old);
}

void StageTypes::product(const SpineItem& item, const Work& work) {
  const Type w = operand(item, work, 1);
  Type y = joined(item, work, 0, 1);
  const std::string& x = buffer_name(work.reads[0]);
  require_routed(y, w, x);
  const auto mismatch = [&] {
    refuse(x, name_of(Axis::tensor), fmt::format("is {}, but the weight is {}", words(y), words(w)));
  };
  if (w.tensor.dim == Dim::rows) {
    if (y.tensor.dim != Dim::whole) mismatch();
    y.tensor = {.dim = Dim::features};
  } else if (w.tensor.dim == Dim::columns) {
    if (y.tensor.dim != Dim::features) mismatch();
    y.tensor = partial(Axis::tensor);
  } else if (y.tensor.dim == Dim::features) {
    mismatch();
  }
  const Type bias = work.reads.size() > 2 ? operand(item, work, 2) : Type{};
  if (bias.kind == Kind::activation) {  // the order of the rows of experts
    Type order = y;
    order.tensor = {};
    take(order, bias, buffer_name(work.reads[2]));
  } else if (bias.kind != Kind::none) {
    const bool once = work.meaning.once == 2 && size_of_axis(Axis::tensor) > 1;
    if (y.tensor.is_partial() != once)
      refuse(buffer_name(work.reads[2]), name_of(Axis::tensor),
             once ? "is added by one rank only to values that are complete on every rank"
                  : "is added to a partial sum by every rank: it would count as many times");
    if ((y.tensor.dim == Dim::features) != (bias.tensor.dim == Dim::rows))
      refuse(buffer_name(work.reads[2]), name_of(Axis::tensor),
             fmt::format("is {}, but is added to {}", words(bias), words(y)));
  }
  results(item, work, y);
}

void StageTypes::input_gradient(const SpineItem& item, const Work& work) {
  const Type dy = operand(item, work, 0), w = operand(item, work, 1);
  Type dx = joined(item, work, 0, 1);
  require_routed(dx, w, buffer_name(work.reads[0]));
  if ((w.tensor.dim == Dim::rows) != (dy.tensor.dim == Dim::features) ||
      (w.tensor.dim == Dim::columns && dy.tensor.dim != Dim::whole))
    refuse(buffer_name(work.reads[0]), name_of(Axis::tensor),
           fmt::format("is {}, but the weight is {}", words(dy), words(w)));
  if (w.tensor.dim == Dim::rows) dx.tensor = partial(Axis::tensor);
  if (w.tensor.dim == Dim::columns) dx.tensor = {.dim = Dim::features};
  if (work.reads.size() > 2 && dx.tensor.is_complete()) {
    Type other = joined(item, work, 2);
    if (other.kind != Kind::none) take(other, dx, buffer_name(work.reads[2]));
  }
  results(item, work, dx);
  if (work.meaning.sums > 0) sums(item, work, sum_over_rows(dx, term_of(item, work, work.reads[0])));
}

void StageTypes::weight_gradient(const SpineItem& item, const Work& work) {
  const Type x = operand(item, work, 0), dy = operand(item, work, 1);
  Type of_x, of_dy;
  take(of_x, x, buffer_name(work.reads[0]));
  take(of_dy, dy, buffer_name(work.reads[1]));
  const bool tokens = x.tensor.dim == Dim::tokens;
  if (x.micro_batch != dy.micro_batch)
    refuse(buffer_name(work.reads[1]), kMicroBatches,
           fmt::format("is of micro-batch {}, but its input of micro-batch {}", dy.micro_batch, x.micro_batch));
  if (x.routed != dy.routed || x.rows != dy.rows || x.round != dy.round)
    refuse(buffer_name(work.reads[1]), name_of(Axis::expert),
           fmt::format("is {}, but its input is {}", words(dy), words(x)));
  if (x.context != dy.context || tokens != (dy.tensor.dim == Dim::tokens) ||
      (x.tensor.dim == Dim::features && dy.tensor.dim == Dim::features))
    refuse(buffer_name(work.reads[1]), name_of(x.context != dy.context ? Axis::context : Axis::tensor),
           fmt::format("is {}, but its input is {}", words(dy), words(x)));
  Term term = term_of(item, work, work.reads[work.meaning.rows_of]);
  if (x.rounds > 1) term.begin = x.round, term.end = x.round + 1, term.of = x.rounds;
  Type type = sum_over_rows(dy, term);
  if (x.tensor.dim == Dim::features) type.tensor = {.dim = Dim::columns};
  results(item, work, {});
  if (work.meaning.sums > 0) add_to(item, work, work.writes[work.meaning.results], type);
  sums(item, work, sum_over_rows(dy, term), 1);  // of the bias
}

void StageTypes::lookup(const SpineItem& item, const Work& work) {
  Type y{.kind = Kind::activation, .micro_batch = item.micro_batch};
  y.context = part(Axis::context, Dim::tokens);
  const Type table = operand(item, work, 1);
  if (table.tensor.dim == Dim::rows) y.tensor = partial(Axis::tensor);
  const bool once = work.meaning.once == 2 && size_of_axis(Axis::tensor) > 1;
  if (work.reads.size() > 2) {
    operand(item, work, 2);
    if (y.tensor.is_partial() != once)
      refuse(buffer_name(work.reads[2]), name_of(Axis::tensor),
             once ? "is added by one rank only to values that are complete on every rank"
                  : "is added to a partial sum by every rank: it would count as many times");
  }
  results(item, work, y);
}

void StageTypes::scatter(const SpineItem& item, const Work& work) {
  const Type dx = operand(item, work, work.meaning.rows_of);
  Type type;
  take(type, dx, buffer_name(work.reads[work.meaning.rows_of]));
  if (type.tensor.dim != Dim::whole)
    refuse(buffer_name(work.reads[work.meaning.rows_of]), name_of(Axis::tensor),
           fmt::format("is {}, but words are looked up for all tokens", words(type)));
  Type sum = sum_over_rows(type, term_of(item, work, work.reads[work.meaning.rows_of]));
  const Slice& to = work.writes[work.meaning.results];
  const int64_t p = gradient_of_[to.buffer] >= 0                    ? gradient_of_[to.buffer]
                    : work.meaning.use > 0 && job_.model.tied.split ? int64_t{job_.model.tied.parameter}
                                                                    : -1;
  if (p >= 0 && job_.model.parameters[static_cast<size_t>(p)].is_split()) sum.tensor = part(Axis::tensor, Dim::rows);
  results(item, work, sum);  // the words of the rows that travel
  return sums(item, work, sum);
}

void StageTypes::losses(const SpineItem& item, const Work& work) {
  const bool merged = work.meaning.rule == Rule::merged_losses;
  Type parts = operand(item, work, 0), logits = merged && work.reads.size() > 1 ? operand(item, work, 1) : parts;
  if (merged ? parts.kind != Kind::statistics || parts.tensor != Share{}
             : parts.tensor != Share{} || parts.kind != Kind::activation)
    refuse(buffer_name(work.reads[0]), name_of(Axis::tensor),
           fmt::format("is {}, but a loss needs all columns of its rows", words(parts)));
  Type rows = parts;
  rows.kind = Kind::activation;
  results(item, work, rows);
  Type loss = sum_over_rows(rows, term_of(item, work, work.writes[0]));
  loss.kind = Kind::losses;
  sums(item, work, loss);
  if (work.writes.size() < 3) return;
  logits.kind = Kind::derivative;
  logits.mean_over = work.meaning.mean_over;
  map_.write(at(item, work.writes[2]), logits);
}

void StageTypes::count(const SpineItem& item, const Work& work) {
  Type loss = operand(item, work, 0);
  if (loss.kind != Kind::losses)
    refuse(buffer_name(work.reads[0]), kAllAxes, fmt::format("is {}, and no sum of losses", words(loss)));
  if (work.meaning.once == 0) loss.tensor = partial(Axis::tensor);
  sums(item, work, loss);
}

void StageTypes::add_operands(const SpineItem& item, const Work& work) {
  if (work.meaning.sums > 0) {
    const Type from = operand(item, work, 0);
    if (from.kind != Kind::gradient)
      refuse(buffer_name(work.reads[0]), kAllAxes, fmt::format("is {}, and no gradient", words(from)));
    return sums(item, work, from);
  }
  Type all = operand(item, work, 0);
  const Type other = operand(item, work, 1);
  if (all.kind != Kind::derivative || other.kind != all.kind || all.tensor != other.tensor ||
      all.micro_batch != other.micro_batch || all.layer != other.layer || all.mean_over != other.mean_over)
    refuse(buffer_name(work.reads[1]),
           all.tensor != other.tensor             ? name_of(Axis::tensor)
           : all.micro_batch != other.micro_batch ? kMicroBatches
           : all.mean_over != other.mean_over     ? kTokens
                                                  : kAllAxes,
           fmt::format("is {}, and is added to {}", words(other), words(all)));
  all.context = joined_window(all.context, other.context, buffer_name(work.writes[0]));
  results(item, work, all);
}

void StageTypes::statistics(const SpineItem& item, const Work& work) {
  Type type = joined(item, work, 0);
  type.kind = Kind::statistics;
  results(item, work, type);
}

void StageTypes::rows(const SpineItem& item, const Work& work) {
  const Meaning& meaning = work.meaning;
  const Type type = joined(item, work, 0);
  const std::string& name = buffer_name(work.writes[0]);
  if (meaning.whole_rows && type.tensor.dim == Dim::features)
    refuse(name, name_of(Axis::tensor), "needs whole rows, but every rank has some of their columns");
  if (meaning.rule == Rule::sequences && (type.tensor.dim == Dim::tokens || type.context.dim != Dim::whole))
    refuse(name, name_of(type.tensor.dim == Dim::tokens ? Axis::tensor : Axis::context),
           "needs whole sequences, but every rank has some of their tokens");
  if (meaning.first_row >= 0 &&
      work.reads[0].begin_bytes * meaning.rows != meaning.first_row * work.reads[0].size_bytes)
    refuse(name, kTokens, fmt::format("is masked from row {}, but begins with another row", meaning.first_row));
  results(item, work, type);
  if (meaning.sums > 0) sums(item, work, sum_over_rows(type, term_of(item, work, work.reads[meaning.rows_of])));
}

void StageTypes::work(const SpineItem& item, const Work& work) {
  const Meaning& meaning = work.meaning;
  switch (meaning.rule) {
    case Rule::undeclared:
      for (const Slice& write : work.writes) map_.erase(at(item, write));
      return;
    case Rule::rows:
    case Rule::sequences:
      return rows(item, work);
    case Rule::order:
      return order(item, work);
    case Rule::reorder:
      return reorder(item, work);
    case Rule::product:
      return product(item, work);
    case Rule::input_gradient:
      return input_gradient(item, work);
    case Rule::weight_gradient:
      return weight_gradient(item, work);
    case Rule::lookup:
      return lookup(item, work);
    case Rule::scatter:
      return scatter(item, work);
    case Rule::losses:
    case Rule::merged_losses:
      return losses(item, work);
    case Rule::tally:
      return tally(item, work);
    case Rule::statistics:
      return statistics(item, work);
    case Rule::count:
      return count(item, work);
    case Rule::copy: {
      const Type type = operand(item, work, 0);
      for (size_t i = 1; i < work.reads.size(); ++i) operand(item, work, i);
      if (type.kind == Kind::neutral && is_neutral_[work.writes[0].buffer]) return;
      return results(item, work, type);
    }
    case Rule::own_part:
      for (size_t i = 0; i < work.writes.size(); ++i) {
        Type type = operand(item, work, i);
        if (type.kind != Kind::weight || type.tensor.dim == Dim::columns)
          refuse(buffer_name(work.reads[i]), name_of(Axis::tensor), fmt::format("is {}", words(type)));
        type.tensor = part(Axis::tensor, Dim::rows);
        map_.write(at(item, work.writes[i]), type);
      }
      return;
    case Rule::add:
      return add_operands(item, work);
    case Rule::late_rows:
      return late_rows(item, work);
    case Rule::clear:
      return results(item, work, {.kind = Kind::zero});
    case Rule::attention_block:
      return ring_block(item, work);
    case Rule::attention_block_gradient:
      return ring_gradient(item, work);
  }
}

}  // namespace slipstream::comm
