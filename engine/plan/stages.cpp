// SPDX-License-Identifier: Apache-2.0
// Sorts pieces into parts by layer. Liveness determines the transfers between parts and the data to keep.

#include "engine/plan/stages.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_map>

#include "engine/base/check.h"

namespace slipstream {
namespace {

using Pieces = std::vector<uint32_t>;
using Set = std::set<BufferId>;

bool is_weight_gradient(const Buffers& buffers, BufferId buffer) { return buffers[buffer].owner == Owner::gradients; }

class Cutter {
 public:
  Cutter(ModelSpec& model, Buffers& buffers, const PipelineSchedule& schedule, const std::vector<int>& layers)
      : model_(model), buffers_(buffers), schedule_(schedule) {
    const int parts = schedule.parts();
    const int total = std::accumulate(layers.begin(), layers.end(), 0);
    if (static_cast<int>(layers.size()) != parts || total != model.layers)
      throw PlanError("[plan] {} parts with {} layers were requested, but the model has {} layers for {} parts.",
                      layers.size(), total, model.layers, parts);
    for (int part = 0; part < parts; ++part) {
      part_of_layer_.insert(part_of_layer_.end(), static_cast<size_t>(layers[static_cast<size_t>(part)]), part);
      if (layers[static_cast<size_t>(part)] < 1 && part > 0 && part + 1 < parts)
        throw PlanError("[plan] part {} of {} would have no layer. Only the first and the last have other work.", part,
                        parts);
    }
    parts_.resize(static_cast<size_t>(parts));
    for (int part = 0; part < parts; ++part) this->part(part).part = part;
  }

  std::vector<Chunk> cut(int stage) {
    const uint32_t take_batch = model_.forward.front();
    sort_pieces(take_batch);
    if (schedule_.splits_backward) {
      std::vector<Set> wanted(1);  // by the part before each one, whose backward pass comes next
      for (const Chunk& chunk : parts_) wanted.push_back(exposed(chunk.backward));
      for (size_t p = 0; p < parts_.size(); ++p) split_backward(parts_[p], wanted[p]);
    }
    for (Chunk& chunk : parts_) {
      // The result keeps only this stage's parts. Their neighbours are needed to complete their lists.
      if (schedule_.placement.is_near(chunk.part, stage, 1)) find_crossings(chunk);
    }
    std::vector<Chunk> chunks;
    for (int c = 0; c < schedule_.shape.virtual_stages; ++c) {
      chunks.push_back(part(schedule_.placement.part(stage, c)));
      chunks.back().slots = peak_in_flight(schedule_, stage, c);
      keep(chunks.back());
    }
    keep_only(chunks, take_batch);
    return chunks;
  }

 private:
  Chunk& part(int index) { return parts_[static_cast<size_t>(index)]; }

  void sort_pieces(uint32_t take_batch) {
    const auto chunk_of = [this](uint32_t piece) -> Chunk& {
      const int layer = model_.pieces[piece].layer;
      return layer < 0                ? parts_.front()
             : layer >= model_.layers ? parts_.back()
                                      : part(part_of_layer_[static_cast<size_t>(layer)]);
    };
    for (uint32_t piece : model_.forward)
      if (piece != take_batch) chunk_of(piece).forward.push_back(piece);
    for (uint32_t piece : model_.backward) chunk_of(piece).backward.push_back(piece);
    for (uint32_t piece : model_.evaluate) chunk_of(piece).evaluate.push_back(piece);
  }

  /// The works of a backward pass that may be delayed, by piece. They are works whose results are gradients of
  /// parameters, which only the update needs, and works and communication that produce only inputs of such works.
  struct Waiting {
    std::map<uint32_t, std::vector<bool>> works, communications;
  };
  Waiting find_waiting(const Chunk& chunk, const Set& wanted) const {
    const auto is_scratch = [&](BufferId buffer) {
      return buffers_[buffer].owner == Owner::scratch && is_temporary(buffer);
    };
    Waiting waiting;
    for (uint32_t index : chunk.backward) {
      const Piece& piece = model_.pieces[index];
      for (const Work& work : piece.works)
        waiting.works[index].push_back(!work.writes.empty() &&
                                       std::all_of(work.writes.begin(), work.writes.end(), [&](const Slice& slice) {
                                         return is_weight_gradient(buffers_, slice.buffer) || is_scratch(slice.buffer);
                                       }));
      for (const Communication& c : piece.communications)
        waiting.communications[index].push_back(c.to.size_bytes > 0 && is_scratch(c.to.buffer));
    }
    // A work that writes data which an immediate work uses is immediate too, and so on.
    for (bool changed = true; changed;) {
      changed = false;
      Set touched = wanted;
      for (uint32_t index : chunk.backward) {
        const Piece& piece = model_.pieces[index];
        for (size_t i = 0; i < piece.works.size(); ++i)
          for (const std::vector<Slice>* slices : {&piece.works[i].reads, &piece.works[i].writes})
            for (const Slice& slice : *slices)
              if (!waiting.works.at(index)[i]) touched.insert(slice.buffer);
        for (size_t i = 0; i < piece.communications.size(); ++i)
          if (!waiting.communications.at(index)[i])
            piece.communications[i].for_accesses([&](const Slice& slice, bool) { touched.insert(slice.buffer); });
      }
      const auto stop = [&](std::vector<bool>::reference waits, const Slice& written) {
        if (!waits || !touched.contains(written.buffer) || is_weight_gradient(buffers_, written.buffer)) return;
        waits = false;
        changed = true;
      };
      for (uint32_t index : chunk.backward) {
        const Piece& piece = model_.pieces[index];
        for (size_t i = 0; i < piece.works.size(); ++i)
          for (const Slice& write : piece.works[i].writes) stop(waiting.works.at(index)[i], write);
        for (size_t i = 0; i < piece.communications.size(); ++i)
          stop(waiting.communications.at(index)[i], piece.communications[i].to);
      }
    }
    return waiting;
  }

  /// Moves the delayed works from one list to the other, in order.
  template <typename T>
  static void move_waiting(std::vector<T>& from, const std::vector<bool>& waits, std::vector<T>& to) {
    std::vector<T> stay;
    for (size_t i = 0; i < from.size(); ++i) (waits[i] ? to : stay).push_back(std::move(from[i]));
    from = std::move(stay);
  }

  void split_backward(Chunk& chunk, const Set& wanted) {
    Waiting waiting = find_waiting(chunk, wanted);
    Pieces inputs;
    for (uint32_t index : chunk.backward) {
      Piece weight{.name = model_.pieces[index].name + ".weight", .layer = model_.pieces[index].layer};
      Piece& piece = model_.pieces[index];
      move_waiting(piece.works, waiting.works[index], weight.works);
      move_waiting(piece.communications, waiting.communications[index], weight.communications);
      Set written;
      for (const Work& work : weight.works)
        for (const Slice& slice : work.writes) written.insert(slice.buffer);
      const auto moved = std::stable_partition(piece.ready.begin(), piece.ready.end(), [&](const GradientPart& part) {
        return !written.contains(model_.parameters[part.parameter].gradient);
      });
      weight.ready.assign(moved, piece.ready.end());
      piece.ready.erase(moved, piece.ready.end());
      if (!piece.works.empty() || !piece.communications.empty()) inputs.push_back(index);
      if (weight.works.empty() && weight.communications.empty()) continue;
      chunk.weight.push_back(static_cast<uint32_t>(model_.pieces.size()));
      model_.pieces.push_back(std::move(weight));  // invalidates `piece`
    }
    require_kept(chunk, inputs);
    chunk.backward = inputs;
  }

  /// Checks that the rest of the backward pass does not overwrite the inputs of a weight gradient.
  void require_kept(const Chunk& chunk, const Pieces& inputs) const {
    size_t done = 0;  // the pieces of `inputs` that ran before the weight piece was split off
    for (uint32_t weight : chunk.weight) {
      const auto at = std::find_if(chunk.backward.begin(), chunk.backward.end(), [&](uint32_t b) {
        return model_.pieces[weight].name == model_.pieces[b].name + ".weight" &&
               model_.pieces[weight].layer == model_.pieces[b].layer;
      });
      done = static_cast<size_t>(std::count_if(inputs.begin(), inputs.end(), [&](uint32_t i) {
        return std::find(chunk.backward.begin(), chunk.backward.end(), i) <= at;
      }));
      model_.for_accesses(weight, [&](const Slice& read, bool writes) {
        for (size_t i = done; !writes && i < inputs.size() && is_temporary(read.buffer); ++i)
          model_.for_accesses(inputs[i], [&](const Slice& slice, bool is_write) {
            if (is_write && slice.buffer == read.buffer)
              throw PlanError(
                  "[plan] {} reads {}, which {} overwrites before the schedule runs it. Build the model with "
                  "split_backward.",
                  model_.pieces[weight].name, buffers_[read.buffer].name, model_.pieces[inputs[i]].name);
          });
      });
    }
  }

  bool is_temporary(BufferId buffer) const {
    const Owner owner = buffers_[buffer].owner;
    return (owner == Owner::activations || owner == Owner::scratch) && buffer != model_.loss &&
           std::none_of(model_.constants.begin(), model_.constants.end(),
                        [&](const Constant& c) { return c.buffer == buffer; });
  }
  /// Returns the temporaries that `pieces` read before they write them.
  Set exposed(const Pieces& pieces) const {
    Set written, read;
    for (uint32_t piece : pieces)
      model_.for_accesses(piece, [&](const Slice& slice, bool is_write) {
        if (is_write)
          written.insert(slice.buffer);
        else if (is_temporary(slice.buffer) && !written.contains(slice.buffer))
          read.insert(slice.buffer);
      });
    return read;
  }
  Set written(const Pieces& pieces) const {
    Set result;
    for (uint32_t piece : pieces)
      model_.for_accesses(piece, [&](const Slice& slice, bool is_write) {
        if (is_write) result.insert(slice.buffer);
      });
    return result;
  }

  /// The parts that write a buffer in a pass, in order.
  using Writers = std::unordered_map<BufferId, std::vector<int>>;
  const Writers& writers(Pass pass) {
    Writers& writers = pass == Pass::forward ? forward_writers_ : backward_writers_;
    if (writers.empty())
      for (const Chunk& chunk : parts_)
        for (BufferId buffer : written(chunk.pieces(pass))) writers[buffer].push_back(chunk.part);
    return writers;
  }

  /// Adds the data that crosses: data that `reader` reads and that part `from` has written. Data that no other part
  /// writes accumulates here.
  void cross(Chunk& reader, const Set& wanted, int from, Pass pass) {
    for (BufferId buffer : wanted) {
      const auto found = writers(pass).find(buffer);
      if (found == writers(pass).end()) continue;
      int other = -1;
      bool crosses = false;
      for (int part : found->second) {
        crosses = crosses || part == from;
        if (other < 0 && (pass == Pass::forward ? part < reader.part : part > reader.part)) other = part;
      }
      if (crosses) {
        (pass == Pass::forward ? reader.activations_in : reader.gradients_in).push_back(buffer);
        (pass == Pass::forward ? part(from).activations_out : part(from).gradients_out).push_back(buffer);
      } else if (other >= 0) {
        throw PlanError("[plan] part {} reads {} of part {}, which is not its neighbour.", reader.part,
                        buffers_[buffer].name, other);
      }
    }
  }

  void find_crossings(Chunk& chunk) {
    cross(chunk, exposed(chunk.forward), chunk.part - 1, Pass::forward);
    Set gradients = exposed(chunk.backward);
    for (BufferId buffer : written(chunk.forward)) gradients.erase(buffer);
    for (BufferId buffer : chunk.activations_in) gradients.erase(buffer);
    cross(chunk, gradients, chunk.part + 1, Pass::backward);
  }

  /// Gives data that is written in one pass and read in a later one a copy for every micro-batch in between.
  void keep(const Chunk& chunk) {
    const Set of_forward = written(chunk.forward), of_backward = written(chunk.backward);
    const Set backward = exposed(chunk.backward), weight = exposed(chunk.weight);
    const auto keep_all = [&](const Set& made, const Set& wanted) {
      for (BufferId buffer : wanted)
        if (made.contains(buffer)) buffers_.set_slots(buffer, chunk.slots);
    };
    keep_all(of_forward, backward);
    keep_all(of_forward, weight);
    keep_all(of_backward, weight);
  }

  /// Makes the lists of `model_` those of the chunks. Backward has later parts first, which is the order in which
  /// gradients complete.
  void keep_only(const std::vector<Chunk>& chunks, uint32_t take_batch) {
    model_.forward.clear();
    model_.backward.clear();
    model_.evaluate.clear();
    for (const Chunk& chunk : chunks) {
      model_.forward.insert(model_.forward.end(), chunk.forward.begin(), chunk.forward.end());
      model_.evaluate.insert(model_.evaluate.end(), chunk.evaluate.begin(), chunk.evaluate.end());
    }
    for (size_t c = chunks.size(); c-- > 0;)
      for (const Pieces* pieces : {&chunks[c].backward, &chunks[c].weight})
        model_.backward.insert(model_.backward.end(), pieces->begin(), pieces->end());
    Set used;
    for (const Pieces* pieces : {&model_.forward, &model_.backward, &model_.evaluate})
      for (uint32_t piece : *pieces)
        model_.for_accesses(piece, [&](const Slice& slice, bool) { used.insert(slice.buffer); });
    if (used.contains(model_.ids)) model_.forward.insert(model_.forward.begin(), take_batch);
    keep_parameters(used);
  }

  void keep_parameters(const Set& used) {
    std::vector<uint32_t> moved(model_.parameters.size(), UINT32_MAX);
    std::vector<ParameterSpec> kept;
    for (uint32_t p = 0; p < model_.parameters.size(); ++p) {
      if (!used.contains(model_.parameters[p].value) && !used.contains(model_.parameters[p].gradient)) continue;
      moved[p] = static_cast<uint32_t>(kept.size());
      kept.push_back(model_.parameters[p]);
    }
    model_.parameters = std::move(kept);
    for (Piece& piece : model_.pieces) {
      std::erase_if(piece.ready, [&](const GradientPart& part) { return moved[part.parameter] == UINT32_MAX; });
      for (GradientPart& part : piece.ready) part.parameter = moved[part.parameter];
    }
    if (!model_.tied.split) return;
    model_.tied.parameter = moved[model_.tied.parameter];
    if (model_.tied.parameter == UINT32_MAX) model_.tied = {};  // the table is on another stage
  }

  ModelSpec& model_;
  Buffers& buffers_;
  const PipelineSchedule& schedule_;
  std::vector<int> part_of_layer_;
  std::vector<Chunk> parts_;
  Writers forward_writers_, backward_writers_;
};

}  // namespace

std::vector<Chunk> cut_stage(ModelSpec& model, Buffers& buffers, const PipelineSchedule& schedule,
                             const std::vector<int>& layers, int stage) {
  return Cutter(model, buffers, schedule, layers).cut(stage);
}

void drop_untouched(const ModelSpec& model, Buffers& buffers, const std::vector<char>& is_touched) {
  for (BufferId id = 0; id < buffers.size(); ++id) {
    const Owner owner = buffers[id].owner;
    const bool constant =
        std::any_of(model.constants.begin(), model.constants.end(), [&](const Constant& c) { return c.buffer == id; });
    if (!is_touched[id] && !buffers[id].is_view && !constant &&
        (owner == Owner::activations || owner == Owner::scratch))
      buffers.drop(id);
  }
}

std::vector<int> cuts_of(const std::vector<int>& layers) {
  std::vector<int> cuts;
  int first = 0;
  for (size_t part = 0; part + 1 < layers.size(); ++part) cuts.push_back(first += layers[part]);
  return cuts;
}

std::vector<int> balanced_layers(const ModelSpec& model, int parts, const std::function<double(const Cost&)>& cost) {
  const int layers = model.layers;
  if (layers < parts)
    throw ConfigError(
        "[pipeline] {} layers cannot be cut into {} parts (parallel.pipeline x pipeline.virtual_stages). Use at most "
        "{}.",
        layers, parts, layers);
  // sums[i] is the cost of everything before layer i. The embedding is before layer 0, and the head after the last
  // layer.
  std::vector<double> sums(static_cast<size_t>(layers) + 1, 0), own(static_cast<size_t>(layers), 0);
  double embedding = 0, head = 0;
  for (const std::vector<uint32_t>* list : {&model.forward, &model.backward})
    for (uint32_t piece : *list)
      for (const Work& work : model.pieces[piece].works) {
        const int layer = model.pieces[piece].layer;
        (layer < 0 ? embedding : layer >= layers ? head : own[static_cast<size_t>(layer)]) += cost(work.cost);
      }
  for (int l = 0; l < layers; ++l)
    sums[static_cast<size_t>(l) + 1] = sums[static_cast<size_t>(l)] + own[static_cast<size_t>(l)];
  const auto cost_of = [&](int part, int begin, int end) {
    return sums[static_cast<size_t>(end)] - sums[static_cast<size_t>(begin)] + (part == 0 ? embedding : 0) +
           (part + 1 == parts ? head : 0);
  };
  // best[end] is the cost of the slowest of the parts so far if they hold the layers [0, end). choice is the first
  // layer of the last of these parts.
  constexpr double kNever = 1e300;
  std::vector<double> best(static_cast<size_t>(layers) + 1, kNever);
  std::vector<std::vector<int>> choice(static_cast<size_t>(parts),
                                       std::vector<int>(static_cast<size_t>(layers) + 1, 0));
  for (int end = 1; end <= layers; ++end) best[static_cast<size_t>(end)] = cost_of(0, 0, end);
  for (int part = 1; part < parts; ++part) {
    std::vector<double> next(static_cast<size_t>(layers) + 1, kNever);
    for (int end = part + 1; end <= layers; ++end)
      for (int begin = part; begin < end; ++begin) {
        const double slowest = std::max(best[static_cast<size_t>(begin)], cost_of(part, begin, end));
        if (slowest >= next[static_cast<size_t>(end)]) continue;
        next[static_cast<size_t>(end)] = slowest;
        choice[static_cast<size_t>(part)][static_cast<size_t>(end)] = begin;
      }
    best = std::move(next);
  }
  std::vector<int> result(static_cast<size_t>(parts));
  for (int part = parts - 1, end = layers; part >= 0; --part) {
    const int begin = part == 0 ? 0 : choice[static_cast<size_t>(part)][static_cast<size_t>(end)];
    result[static_cast<size_t>(part)] = end - begin;
    end = begin;
  }
  return result;
}

}  // namespace slipstream
