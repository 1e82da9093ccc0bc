// SPDX-License-Identifier: Apache-2.0
// Slices the forward works of a layer by what its backward reads, and packs recomputed buffers by lifetime.

#include "engine/plan/recompute.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/plan/lifetimes.h"

namespace slipstream {
namespace {

using Pieces = std::vector<uint32_t>;
using Set = std::set<BufferId>;

bool touches(const std::vector<Slice>& slices, BufferId buffer) {
  return std::any_of(slices.begin(), slices.end(), [&](const Slice& slice) { return slice.buffer == buffer; });
}

bool overlaps(const std::vector<Slice>& slices, const Slice& slice) {
  return std::any_of(slices.begin(), slices.end(), [&](const Slice& s) { return s.overlaps(slice); });
}

/// Returns `slices` without `hole`.
std::vector<Slice> without(const std::vector<Slice>& slices, const Slice& hole) {
  std::vector<Slice> rest;
  for (const Slice& s : slices) {
    if (!s.overlaps(hole)) {
      rest.push_back(s);
      continue;
    }
    if (s.begin_bytes < hole.begin_bytes) rest.push_back({s.buffer, s.begin_bytes, hole.begin_bytes - s.begin_bytes});
    if (hole.end_bytes() < s.end_bytes())
      rest.push_back({s.buffer, hole.end_bytes(), s.end_bytes() - hole.end_bytes()});
  }
  return rest;
}

/// A forward work, or communication after one, that can run again.
struct Action {
  std::vector<Slice> reads, writes;
  const Work* work = nullptr;
  const Communication* communication = nullptr;

  explicit Action(const Work& w) : reads(w.reads), writes(w.writes), work(&w) {}
  explicit Action(const Communication& c) : communication(&c) {
    c.for_accesses([&](const Slice& slice, bool is_write) { (is_write ? writes : reads).push_back(slice); });
  }
};

/// One layer of a chunk: its forward actions in order, and which results are kept and which are recomputed.
class Layer {
 public:
  Layer(const ModelSpec& model, const Buffers& buffers, const Chunk& chunk, int layer, Recomputation how)
      : model_(model), buffers_(buffers), layer_(layer) {
    for (uint32_t piece : chunk.forward) {
      if (model.pieces[piece].layer != layer) continue;
      for (const Work& work : model.pieces[piece].works) actions_.emplace_back(work);
      for (const Communication& c : model.pieces[piece].communications) actions_.emplace_back(c);
    }
    for (const Work& work : model.replays)
      if (std::any_of(work.writes.begin(), work.writes.end(), [&](const Slice& write) { return made(write.buffer); }))
        replays_.emplace_back(work);
    Set wanted, fixed(chunk.activations_in.begin(), chunk.activations_in.end());
    fixed.insert(chunk.activations_out.begin(), chunk.activations_out.end());
    for (Pass pass : {Pass::backward, Pass::weight})
      for (uint32_t piece : chunk.pieces(pass))
        model.for_accesses(piece, [&](const Slice& slice, bool is_write) {
          if (!is_write) (model.pieces[piece].layer == layer ? wanted : fixed).insert(slice.buffer);
        });
    for (BufferId buffer : wanted) {
      if (!is_activation(buffer)) continue;
      const bool may_go = made(buffer) && !fixed.contains(buffer) &&
                          (how == Recomputation::full ||
                           std::find(model.cheap.begin(), model.cheap.end(), buffer) != model.cheap.end());
      (may_go ? again_ : kept_).insert(buffer);
    }
    keep_what_cannot_be_made();
  }

  const Set& again() const { return again_; }

  /// Returns the actions, in order, that recompute what `piece` reads and what this pass has not recomputed yet.
  /// `there` is what it has recomputed so far.
  std::vector<Action> before(uint32_t piece, std::vector<Slice>& there) const {
    std::vector<Slice> needed;
    const auto need = [&](const Slice& read) {
      std::vector<Slice> missing{read};
      for (const Slice& made : there) missing = without(missing, made);
      needed.insert(needed.end(), missing.begin(), missing.end());
    };
    model_.for_accesses(piece, [&](const Slice& slice, bool is_write) {
      if (!is_write && again_.contains(slice.buffer)) need(slice);
    });
    std::vector<Action> chosen;
    for (size_t i = actions_.size(); i-- > 0;) {
      const Action* action = &actions_[i];
      std::vector<Slice> hit;
      for (const Slice& write : action->writes)
        if (overlaps(needed, write)) hit.push_back(write);
      if (hit.empty()) continue;
      const Action* replay = replay_of(*action, hit);
      if (replay) action = replay;
      for (const Slice& write : action->writes) {
        std::vector<Slice> made{write};  // the part that is not also read; for a gather in place, the part that arrives
        for (const Slice& read : action->reads) made = without(made, read);
        for (const Slice& slice : made) needed = without(needed, slice);
        if (again_.contains(write.buffer) && (replay || last_writer(write) == static_cast<std::ptrdiff_t>(i)))
          there.push_back(write);
      }
      for (const Slice& read : action->reads)
        if (is_temporary(read.buffer) && !kept_.contains(read.buffer))
          overlaps(action->writes, read) ? needed.push_back(read) : need(read);
      chosen.push_back(*action);
    }
    if (!needed.empty())
      throw PlanError("[plan] {} of layer {} reads {}, which cannot be recomputed from the kept activations.",
                      model_.pieces[piece].name, layer_, buffers_[needed[0].buffer].name);
    std::reverse(chosen.begin(), chosen.end());
    return chosen;
  }

 private:
  bool is_activation(BufferId buffer) const { return buffers_[buffer].owner == Owner::activations; }
  bool is_temporary(BufferId buffer) const {
    const auto is_it = [&](const Constant& c) { return c.buffer == buffer; };
    return is_activation(buffer) || (buffers_[buffer].owner == Owner::scratch &&
                                     std::none_of(model_.constants.begin(), model_.constants.end(), is_it));
  }
  bool made(BufferId buffer) const {
    return std::any_of(actions_.begin(), actions_.end(),
                       [&](const Action& action) { return touches(action.writes, buffer); });
  }
  /// Returns the index of the last action that writes any part of it, or -1 if there is none.
  std::ptrdiff_t last_writer(const Slice& slice) const {
    for (size_t i = actions_.size(); i-- > 0;)
      if (overlaps(actions_[i].writes, slice)) return static_cast<std::ptrdiff_t>(i);
    return -1;
  }

  /// Returns a work that repeats `action`, or its part `hit`, from kept data. If several norms write to the same
  /// memory, each has a replay of its own.
  const Action* replay_of(const Action& action, const std::vector<Slice>& hit) const {
    const auto within = [](const std::vector<Slice>& some, const std::vector<Slice>& all) {
      return std::all_of(some.begin(), some.end(),
                         [&](const Slice& s) { return std::find(all.begin(), all.end(), s) != all.end(); });
    };
    for (const Action& replay : replays_)
      if (within(hit, replay.writes) && within(replay.writes, action.writes) &&
          std::all_of(replay.reads.begin(), replay.reads.end(),
                      [&](const Slice& read) { return !is_temporary(read.buffer) || kept_.contains(read.buffer); }))
        return &replay;
    return nullptr;
  }

  /// An action can run again if its inputs are kept unchanged or recomputed before it, and if it overwrites nothing
  /// that is kept. So a layer's input, the sum that its first norm computes from another layer's results, is kept.
  void keep_what_cannot_be_made() {
    Set there;  // scratch, and activations that earlier actions recompute
    for (size_t i = 0; i < actions_.size(); ++i) {
      const Action& action = actions_[i];
      const bool can =
          std::all_of(action.reads.begin(), action.reads.end(),
                      [&](const Slice& read) {
                        if (!is_temporary(read.buffer) || there.contains(read.buffer)) return true;
                        return kept_.contains(read.buffer) && last_writer(read) < static_cast<std::ptrdiff_t>(i);
                      }) &&
          std::none_of(action.writes.begin(), action.writes.end(),
                       [&](const Slice& write) { return kept_.contains(write.buffer); });
      if (can) {
        for (const Slice& write : action.writes) there.insert(write.buffer);
        continue;
      }
      const auto has_replay = [&](BufferId buffer) {
        return std::any_of(replays_.begin(), replays_.end(),
                           [&](const Action& r) { return touches(r.writes, buffer); });
      };
      for (const Slice& write : action.writes)
        if (again_.contains(write.buffer) && !has_replay(write.buffer)) keep(write.buffer);
      for (const Slice& write : action.writes) {
        there.erase(write.buffer);
        if (replay_of(action, {write}))
          there.insert(write.buffer);
        else if (again_.contains(write.buffer))
          keep(write.buffer);
      }
    }
  }
  void keep(BufferId buffer) {
    again_.erase(buffer);
    kept_.insert(buffer);
  }

  const ModelSpec& model_;
  const Buffers& buffers_;
  int layer_;
  std::vector<Action> actions_, replays_;
  Set kept_, again_;
};

/// Makes pieces before `reader` of works and the communication after them. A piece waits before its first work, so
/// works that wait for communication begin another piece. Communication then overlaps with the works before them.
std::vector<Piece> pieces_of(const std::vector<Action>& actions, const Piece& reader) {
  std::vector<Piece> pieces;
  std::vector<const Action*> travelling;
  for (const Action& action : actions) {
    const size_t awaited = std::erase_if(travelling, [&](const Action* other) {
      const auto meets = [](const std::vector<Slice>& slices, const std::vector<Slice>& others) {
        return std::any_of(others.begin(), others.end(), [&](const Slice& slice) { return overlaps(slices, slice); });
      };
      return action.work && (meets(action.reads, other->writes) || meets(action.writes, other->writes) ||
                             meets(action.writes, other->reads));
    });
    if (pieces.empty() || (action.work && (awaited > 0 || !pieces.back().communications.empty())))
      pieces.push_back({.name = "recompute." + reader.name + (pieces.empty() ? "" : fmt::format(".{}", pieces.size())),
                        .layer = reader.layer});
    if (action.communication) travelling.push_back(&action);
    if (action.work) {
      pieces.back().works.push_back(*action.work);
    } else {
      pieces.back().communications.push_back(*action.communication);
      pieces.back().communications.back().name.insert(0, "recompute.");
    }
  }
  return pieces;
}

/// Adds to `packed` when each buffer of `again` is used by a list of pieces, which begins at position `at`. Then `at`
/// is the end of the list.
void add_lives(std::map<BufferId, Packed>& packed, const ModelSpec& model, const Buffers& buffers, const Set& again,
               const Pieces& list, Position& at) {
  const Position begin = at;
  const auto touch = [&](const Slice& slice) {
    if (!again.contains(slice.buffer)) return;
    Packed& buffer = packed[slice.buffer];
    buffer.buffer = slice.buffer;
    buffer.size_bytes = buffers.stride_bytes(slice.buffer);
    if (buffer.lives.empty() || buffer.lives.back().last_use < begin) buffer.lives.push_back({slice.buffer, at, at});
    buffer.lives.back().last_use = at;
  };
  for (uint32_t piece : list) {
    for (const Work& work : model.pieces[piece].works) {
      for (const Slice& slice : work.reads) touch(slice);
      for (const Slice& slice : work.writes) touch(slice);
      ++at;
    }
    for (const Communication& c : model.pieces[piece].communications) {
      c.for_accesses([&](const Slice& slice, bool) { touch(slice); });
      ++at;
    }
  }
}

}  // namespace

Recomputed recompute(ModelSpec& model, Buffers& buffers, std::vector<Chunk>& chunks, Recomputation how, int layers_max,
                     bool takes_turns) {
  Recomputed result{.how = how, .saved_bytes = 0, .paid = {}};
  if (how == Recomputation::none) return result;
  std::map<BufferId, Packed> packed;
  Position at = 0;  // the position of works, counted over all lists; each list runs without a break
  for (Chunk& chunk : chunks) {
    Set again;
    std::map<int, Layer> layers;
    for (uint32_t piece : chunk.forward)
      if (const int l = model.pieces[piece].layer;
          l >= 0 && l < model.layers && (layers_max == 0 || std::ssize(layers) < layers_max))
        layers.try_emplace(l, model, buffers, chunk, l, how);
    std::vector<Piece> made;  // new pieces; layers point into the old ones
    for (Pieces* list : {&chunk.backward, &chunk.weight}) {
      std::map<int, std::vector<Slice>> there;  // by layer: what this pass has recomputed so far
      Pieces with;
      for (uint32_t index : *list) {
        if (const auto layer = layers.find(model.pieces[index].layer); layer != layers.end())
          for (Piece& piece : pieces_of(layer->second.before(index, there[layer->first]), model.pieces[index])) {
            for (const Work& work : piece.works)
              result.paid += {work.cost.flops * buffers.micro_batches, work.cost.bytes * buffers.micro_batches};
            with.push_back(static_cast<uint32_t>(model.pieces.size() + made.size()));
            made.push_back(std::move(piece));
          }
        with.push_back(index);
      }
      *list = std::move(with);
    }
    for (const auto& [l, layer] : layers) again.insert(layer.again().begin(), layer.again().end());
    layers.clear();
    model.pieces.insert(model.pieces.end(), std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
    for (const Pieces* list : {&chunk.forward, &chunk.evaluate, &chunk.backward, &chunk.weight})
      add_lives(packed, model, buffers, again, *list, at);
    for (BufferId buffer : again) result.saved_bytes += buffers.stride_bytes(buffer) * chunk.slots;
  }
  model.backward.clear();
  for (size_t c = chunks.size(); c-- > 0;)
    for (const Pieces* list : {&chunks[c].backward, &chunks[c].weight})
      model.backward.insert(model.backward.end(), list->begin(), list->end());
  if (packed.empty()) return result;
  std::vector<Packed> all;
  for (auto& [id, buffer] : packed) all.push_back(std::move(buffer));
  const int64_t size_bytes = pack(all);
  const BufferId shared = buffers.add({.name = "recomputed", .size_bytes = size_bytes, .owner = Owner::activations});
  for (const Packed& each : all)
    buffers.set_view(each.buffer, {shared, each.begin_bytes, buffers[each.buffer].size_bytes});
  if (takes_turns) buffers.set_slots(shared, chunks.front().slots);
  result.saved_bytes -= buffers.stride_bytes(shared) * buffers[shared].slots;
  return result;
}

}  // namespace slipstream
