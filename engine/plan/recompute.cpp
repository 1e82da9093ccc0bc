// SPDX-License-Identifier: Apache-2.0
// Slices the forward works of a layer by what its backward reads, and packs what is made again by lifetime.

#include "engine/plan/recompute.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/units.h"

namespace slipstream {
namespace {

using Pieces = std::vector<uint32_t>;
using Set = std::set<BufferId>;

bool touches(const std::vector<Slice>& slices, BufferId buffer) {
  return std::any_of(slices.begin(), slices.end(), [&](const Slice& slice) { return slice.buffer == buffer; });
}

/// One layer of a chunk: its forward works in order, what is kept of them and what is made again.
class Layer {
 public:
  Layer(const ModelSpec& model, const Buffers& buffers, const Chunk& chunk, int layer, Recomputation how) : model_(model), buffers_(buffers), layer_(layer) {
    for (const Work* work : works_of(chunk.forward)) {
      for (const Slice& write : work->writes) last_writer_[write.buffer] = works_.size();
      works_.push_back(work);
    }
    Set wanted;
    for (Pass pass : {Pass::backward, Pass::weight})
      for (const Work* work : works_of(chunk.pieces(pass)))
        for (const Slice& read : work->reads) wanted.insert(read.buffer);
    Set fixed(chunk.activations_in.begin(), chunk.activations_in.end());
    fixed.insert(chunk.activations_out.begin(), chunk.activations_out.end());
    for (Pass pass : {Pass::backward, Pass::weight})
      for (uint32_t piece : chunk.pieces(pass))
        for (const Work& work : model.pieces[piece].works)
          for (const Slice& read : work.reads)
            if (model.pieces[piece].layer != layer) fixed.insert(read.buffer);
    for (BufferId buffer : wanted) {
      if (!is_activation(buffer)) continue;
      const bool may_go = made(buffer) && !fixed.contains(buffer) &&
                          (how == Recomputation::full || std::find(model.cheap.begin(), model.cheap.end(), buffer) != model.cheap.end());
      (may_go ? again_ : kept_).insert(buffer);
    }
    keep_what_cannot_be_made();
  }

  const Set& again() const { return again_; }

  /// The works that make again what `piece` reads and nobody has made in this pass yet, in order.
  std::vector<Work> before(const Piece& piece, Set& there) const {
    Set needed;
    for (const Work& work : piece.works)
      for (const Slice& read : work.reads)
        if (again_.contains(read.buffer) && !there.contains(read.buffer)) needed.insert(read.buffer);
    std::vector<Work> chosen;
    for (size_t i = works_.size(); i-- > 0;) {
      const Work* work = works_[i];
      Set hit;
      for (const Slice& write : work->writes)
        if (needed.contains(write.buffer)) hit.insert(write.buffer);
      if (hit.empty()) continue;
      if (const Work* replay = replay_of(hit)) work = replay;
      for (const Slice& write : work->writes) {
        if (!touches(work->reads, write.buffer) && covers(write)) needed.erase(write.buffer);
        if (again_.contains(write.buffer) && (work != works_[i] || last_writer_.at(write.buffer) == i)) there.insert(write.buffer);
      }
      for (const Slice& read : work->reads)
        if (is_temporary(read.buffer) && !kept_.contains(read.buffer) && (!there.contains(read.buffer) || touches(work->writes, read.buffer))) needed.insert(read.buffer);
      chosen.push_back(*work);
    }
    if (!needed.empty())
      throw PlanError("[plan] {} of layer {} reads {}, which cannot be made again from what is kept.", piece.name, layer_, buffers_[*needed.begin()].name);
    std::reverse(chosen.begin(), chosen.end());
    return chosen;
  }

 private:
  std::vector<const Work*> works_of(const Pieces& pieces) const {
    std::vector<const Work*> works;
    for (uint32_t piece : pieces)
      if (model_.pieces[piece].layer == layer_)
        for (const Work& work : model_.pieces[piece].works) works.push_back(&work);
    return works;
  }
  bool is_activation(BufferId buffer) const { return buffers_[buffer].owner == Owner::activations; }
  bool is_temporary(BufferId buffer) const {
    return is_activation(buffer) || (buffers_[buffer].owner == Owner::scratch && std::none_of(model_.constants.begin(), model_.constants.end(), [&](const Constant& c) { return c.buffer == buffer; }));
  }
  bool made(BufferId buffer) const { return last_writer_.contains(buffer); }
  bool covers(const Slice& write) const { return write.size_bytes == buffers_[write.buffer].size_bytes; }

  /// A work that makes all of `hit` from what is kept.
  const Work* replay_of(const Set& hit) const {
    for (const Work& work : model_.replays)
      if (std::all_of(hit.begin(), hit.end(), [&](BufferId b) { return touches(work.writes, b); }) &&
          std::all_of(work.reads.begin(), work.reads.end(), [&](const Slice& read) { return !is_temporary(read.buffer) || kept_.contains(read.buffer); }))
        return &work;
    return nullptr;
  }

  /// A work can run again if what it reads is kept as it was when it ran, or is made again before it, and if it overwrites nothing that is
  /// kept. A layer's input, the sum that its first norm forms of another layer's results, thereby stays.
  void keep_what_cannot_be_made() {
    Set there;  // scratch and activations that works before this one make again
    for (size_t i = 0; i < works_.size(); ++i) {
      const Work& work = *works_[i];
      const bool can = std::all_of(work.reads.begin(), work.reads.end(), [&](const Slice& read) {
                         if (!is_temporary(read.buffer) || there.contains(read.buffer)) return true;
                         return kept_.contains(read.buffer) && (!made(read.buffer) || last_writer_.at(read.buffer) < i);
                       }) && std::none_of(work.writes.begin(), work.writes.end(), [&](const Slice& write) { return kept_.contains(write.buffer); });
      if (can) {
        for (const Slice& write : work.writes) there.insert(write.buffer);
        continue;
      }
      const auto has_replay = [&](BufferId buffer) { return std::any_of(model_.replays.begin(), model_.replays.end(), [&](const Work& w) { return touches(w.writes, buffer); }); };
      for (const Slice& write : work.writes)
        if (again_.contains(write.buffer) && !has_replay(write.buffer)) keep(write.buffer);
      for (const Slice& write : work.writes) {
        there.erase(write.buffer);
        if (!again_.contains(write.buffer)) continue;
        if (replay_of({write.buffer}))
          there.insert(write.buffer);
        else
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
  std::vector<const Work*> works_;
  std::map<BufferId, size_t> last_writer_;
  Set kept_, again_;
};

/// When a buffer is alive: from its first touch to its last in each of the lists that run without a break.
struct Lives {
  BufferId buffer = 0;
  std::map<size_t, std::pair<size_t, size_t>> in;  // list -> first and last work
};

bool meet(const Lives& a, const Lives& b) {
  return std::any_of(a.in.begin(), a.in.end(), [&](const auto& life) {
    const auto other = b.in.find(life.first);
    return other != b.in.end() && life.second.first <= other->second.second && other->second.first <= life.second.second;
  });
}

/// Bytes of all of them when those that never meet share: each at the first place where it meets nobody, the largest first.
int64_t pack(std::vector<Lives>& lives, const Buffers& buffers, std::vector<int64_t>& begins) {
  const auto bytes = [&](size_t i) { return buffers.stride_bytes(lives[i].buffer); };
  std::stable_sort(lives.begin(), lives.end(), [&](const Lives& a, const Lives& b) { return buffers.stride_bytes(a.buffer) > buffers.stride_bytes(b.buffer); });
  int64_t total = 0;
  begins.assign(lives.size(), 0);
  for (size_t i = 0; i < lives.size(); ++i) {
    std::vector<std::pair<int64_t, int64_t>> taken;
    for (size_t other = 0; other < i; ++other)
      if (meet(lives[i], lives[other])) taken.push_back({begins[other], begins[other] + bytes(other)});
    std::sort(taken.begin(), taken.end());
    int64_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (at + bytes(i) <= begin) break;
      at = std::max(at, end);
    }
    begins[i] = at;
    total = std::max(total, at + bytes(i));
  }
  return total;
}

}  // namespace

const char* name_of(Recomputation how) {
  switch (how) {
    case Recomputation::none: return "none";
    case Recomputation::selective: return "selective";
    case Recomputation::full: return "full";
  }
  return "?";
}

Recomputed recompute(ModelSpec& model, Buffers& buffers, std::vector<Chunk>& chunks, Recomputation how) {
  Recomputed result{.how = how, .saved_bytes = 0, .paid = {}};
  if (how == Recomputation::none) return result;
  std::map<BufferId, Lives> lives;
  size_t lists = 0;
  for (Chunk& chunk : chunks) {
    Set again;
    std::map<int, Layer> layers;
    for (uint32_t piece : chunk.forward)
      if (const int l = model.pieces[piece].layer; l >= 0 && l < model.layers) layers.try_emplace(l, model, buffers, chunk, l, how);
    std::vector<Piece> made;  // new pieces; layers_ point into the works of old ones
    for (Pieces* list : {&chunk.backward, &chunk.weight}) {
      Set there;
      Pieces with;
      for (uint32_t index : *list) {
        const Piece& piece = model.pieces[index];
        if (const auto layer = layers.find(piece.layer); layer != layers.end())
          if (std::vector<Work> works = layer->second.before(piece, there); !works.empty()) {
            for (const Work& work : works) {
              const int64_t times = buffers.micro_batches;
              result.paid += {work.cost.flops * times, work.cost.bytes * times};
            }
            with.push_back(static_cast<uint32_t>(model.pieces.size() + made.size()));
            made.push_back({.name = "recompute." + piece.name, .layer = piece.layer, .works = std::move(works), .ready = {}});
          }
        with.push_back(index);
      }
      *list = std::move(with);
    }
    for (const auto& [l, layer] : layers) again.insert(layer.again().begin(), layer.again().end());
    layers.clear();
    model.pieces.insert(model.pieces.end(), std::make_move_iterator(made.begin()), std::make_move_iterator(made.end()));
    for (const Pieces* list : {&chunk.forward, &chunk.evaluate, &chunk.backward, &chunk.weight}) {
      size_t at = 0;
      for (uint32_t piece : *list)
        for (const Work& work : model.pieces[piece].works) {
          for (const std::vector<Slice>* slices : {&work.reads, &work.writes})
            for (const Slice& slice : *slices) {
              if (!again.contains(slice.buffer)) continue;
              Lives& life = lives[slice.buffer];
              life.buffer = slice.buffer;
              life.in.try_emplace(lists, at, at).first->second.second = at;
            }
          ++at;
        }
      ++lists;
    }
    for (BufferId buffer : again) result.saved_bytes += buffers.stride_bytes(buffer) * chunk.slots;
  }
  model.backward.clear();
  for (size_t c = chunks.size(); c-- > 0;)
    for (const Pieces* list : {&chunks[c].backward, &chunks[c].weight}) model.backward.insert(model.backward.end(), list->begin(), list->end());
  if (lives.empty()) return result;
  std::vector<Lives> all;
  for (auto& [buffer, life] : lives) all.push_back(std::move(life));
  std::vector<int64_t> begins;
  const int64_t size_bytes = pack(all, buffers, begins);
  const BufferId shared = buffers.add({.name = "recomputed", .size_bytes = size_bytes, .owner = Owner::activations});
  for (size_t i = 0; i < all.size(); ++i) buffers.set_view(all[i].buffer, {shared, begins[i], buffers[all[i].buffer].size_bytes});
  result.saved_bytes -= buffers.stride_bytes(shared);
  return result;
}

}  // namespace slipstream
