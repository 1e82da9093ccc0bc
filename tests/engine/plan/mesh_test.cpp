// SPDX-License-Identifier: Apache-2.0
// The laws of the mesh, checked exhaustively up to 64 ranks.

#include <algorithm>
#include <set>

#include "engine/base/check.h"
#include "engine/plan/mesh.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

constexpr Axis kEveryAxis[] = {Axis::self,    Axis::data,        Axis::context,     Axis::pipeline, Axis::tensor,
                               Axis::replica, Axis::data_inner,  Axis::data_outer,  Axis::world,    Axis::hosts,
                               Axis::expert,  Axis::expert_data, Axis::expert_inner};

/// Returns false at the first broken law: one CHECK for each mesh keeps a hundred thousand ranks cheap.
bool groups_partition(const Mesh& mesh, Axis axis) {
  std::vector<int> times_seen(static_cast<size_t>(mesh.world()), 0);
  for (int rank = 0; rank < mesh.world(); ++rank) {
    const std::vector<int> group = mesh.group(axis, rank);
    if (group.size() != static_cast<size_t>(mesh.group_size(axis))) return false;
    if (group[static_cast<size_t>(mesh.index_in_group(axis, rank))] != rank) return false;
    for (int member : group)
      if (mesh.group(axis, member) != group) return false;
    for (int member : group) ++times_seen[static_cast<size_t>(member)];
  }
  // Every rank is listed once by each member of its only group.
  return std::all_of(times_seen.begin(), times_seen.end(), [&](int times) { return times == mesh.group_size(axis); });
}

/// An axis joins stages if the first rank's group has ranks of different stages.
bool joins_its_stages(const Mesh& mesh, Axis axis) {
  std::set<int> stages;
  for (int rank : mesh.group(axis, 0)) stages.insert(mesh.coordinates(rank).pipeline);
  return mesh.joins_stages(axis) == (stages.size() > 1) && stages.size() <= static_cast<size_t>(mesh.stages());
}

bool ranks_round_trip(const Mesh& mesh) {
  std::set<int> ranks;
  for (int rank = 0; rank < mesh.world(); ++rank) {
    if (mesh.rank(mesh.coordinates(rank)) != rank) return false;
    ranks.insert(rank);
  }
  return ranks.size() == static_cast<size_t>(mesh.world());
}

/// The groups of two axes share only one rank, and together they span a group of `product`.
bool are_factors(const Mesh& mesh, Axis one, Axis other, Axis product) {
  for (int rank = 0; rank < mesh.world(); ++rank) {
    std::set<int> spanned;
    for (int member : mesh.group(one, rank))
      for (int both : mesh.group(other, member)) spanned.insert(both);
    const std::vector<int> whole = mesh.group(product, rank);
    if (spanned != std::set<int>(whole.begin(), whole.end())) return false;
    if (mesh.group_size(one) * mesh.group_size(other) != mesh.group_size(product)) return false;
  }
  return true;
}

template <typename F>
void for_each_mesh(int world_max, F&& f) {
  for (int d = 1; d <= world_max; ++d)
    for (int c = 1; d * c <= world_max; ++c)
      for (int p = 1; d * c * p <= world_max; ++p)
        for (int t = 1; d * c * p * t <= world_max; ++t) f(MeshSizes{d, c, p, t});
}

}  // namespace

TEST_CASE("every rank is in exactly one group of every axis, up to 64 ranks") {
  int meshes = 0;
  for_each_mesh(64, [&](const MeshSizes& sizes) {
    const Mesh mesh(sizes);
    bool ok = ranks_round_trip(mesh);
    for (Axis axis : kEveryAxis) ok = ok && groups_partition(mesh, axis) && joins_its_stages(mesh, axis);
    meshes += ok;
    if (!ok) FAIL_CHECK(sizes.data << "x" << sizes.context << "x" << sizes.pipeline << "x" << sizes.tensor);
  });
  CHECK(meshes > 1000);
}

TEST_CASE("data_inner x data_outer = data x context, for every divisor and every order of the axes") {
  std::string names[] = {"cp", "dp", "pp", "tp"};
  do {
    const std::string order = names[0] + "-" + names[1] + "-" + names[2] + "-" + names[3];
    for_each_mesh(16, [&](MeshSizes sizes) {
      for (sizes.data_inner = 0; sizes.data_inner <= sizes.data * sizes.context; ++sizes.data_inner) {
        if (sizes.data_inner > 0 && sizes.data * sizes.context % sizes.data_inner != 0) continue;
        const Mesh mesh(sizes, order);
        const bool ok = ranks_round_trip(mesh) && are_factors(mesh, Axis::data, Axis::context, Axis::replica) &&
                        are_factors(mesh, Axis::data_inner, Axis::data_outer, Axis::replica) &&
                        groups_partition(mesh, Axis::data_inner) && groups_partition(mesh, Axis::data_outer) &&
                        groups_partition(mesh, Axis::replica) && groups_partition(mesh, Axis::pipeline);
        if (!ok) FAIL_CHECK(order << " with " << sizes.data_inner << " of " << sizes.data * sizes.context);
      }
    });
  } while (std::next_permutation(std::begin(names), std::end(names)));
}

TEST_CASE("ranks that shard together and ranks that divide experts are factors of each other, or are refused") {
  int meshes = 0, refused = 0;
  for_each_mesh(16, [&](MeshSizes sizes) {
    for (sizes.expert = 1; sizes.expert <= sizes.replicas(); ++sizes.expert)
      for (sizes.data_inner = 0; sizes.data_inner <= sizes.replicas(); ++sizes.data_inner) {
        if (sizes.replicas() % sizes.expert != 0) continue;
        if (sizes.data_inner > 0 && sizes.replicas() % sizes.data_inner != 0) continue;
        const int inner = sizes.data_inner == 0 ? sizes.replicas() : sizes.data_inner;
        if (inner % sizes.expert != 0 && sizes.expert % inner != 0) {
          CHECK_THROWS_WITH(Mesh(sizes), Catch::Contains("neither a multiple nor a divisor of expert"));
          ++refused;
          continue;
        }
        const Mesh mesh(sizes);
        bool ok = groups_partition(mesh, Axis::expert) && groups_partition(mesh, Axis::expert_data) &&
                  groups_partition(mesh, Axis::expert_inner) &&
                  are_factors(mesh, Axis::expert, Axis::expert_data, Axis::replica);
        // With fewer ranks in a group of shards than divide the experts, no two of its ranks have the same experts.
        if (inner >= sizes.expert)
          ok = ok && are_factors(mesh, Axis::expert, Axis::expert_inner, Axis::data_inner) &&
               are_factors(mesh, Axis::expert_inner, Axis::data_outer, Axis::expert_data);
        else
          ok = ok && mesh.group_size(Axis::expert_inner) == 1;
        if (!ok) FAIL_CHECK(sizes.expert << " and " << sizes.data_inner << " of " << sizes.replicas());
        ++meshes;
      }
  });
  CHECK(meshes > 1000);
  CHECK(refused > 10);
}

TEST_CASE("an axis contains another if and only if its groups consist of whole groups of the other") {
  for (Axis axis : kEveryAxis)
    for (Axis part : kEveryAxis) {
      bool always = true;  // on meshes with at least two ranks on every axis
      for (const auto& [inner, expert] : {std::pair{2, 4}, {3, 6}, {4, 2}, {6, 3}})
        for (const char* order : {"tp-cp-pp-dp", "dp-pp-cp-tp", "cp-dp-tp-pp"}) {
          const Mesh mesh({.data = 4, .context = 3, .pipeline = 2, .tensor = 2, .data_inner = inner, .expert = expert},
                          order);
          for (int rank = 0; rank < mesh.world() && always; ++rank) {
            const std::vector<int> outer = mesh.group(axis, rank);
            const std::set<int> members(outer.begin(), outer.end());
            for (int other : mesh.group(part, rank)) always = always && members.contains(other);
          }
        }
      if (Mesh::contains(axis, part) != always) FAIL_CHECK(name_of(axis) << " and " << name_of(part));
    }
  CHECK(Mesh::contains(Axis::replica, Axis::data_inner));
  CHECK_FALSE(Mesh::contains(Axis::data_inner, Axis::data));
}

TEST_CASE("the mesh order decides which ranks are adjacent") {
  CHECK(Mesh({2, 1, 2, 2}, "tp-cp-pp-dp").group(Axis::tensor, 0) == std::vector<int>{0, 1});
  CHECK(Mesh({2, 1, 2, 2}, "tp-cp-pp-dp").group(Axis::data, 1) == std::vector<int>{1, 5});
  CHECK(Mesh({2, 1, 2, 2}, "dp-tp-cp-pp").group(Axis::data, 0) == std::vector<int>{0, 1});
  CHECK(Mesh({2, 1, 2, 2}, "dp-tp-cp-pp").group(Axis::pipeline, 3) == std::vector<int>{3, 7});
  CHECK(Mesh({.data = 6, .data_inner = 3}).group(Axis::data_outer, 1) == std::vector<int>{1, 4});
}

TEST_CASE("a group crosses nodes when, and only when, two of its ranks are on different ones") {
  const Mesh inner(
      {.data = 4, .context = 1, .pipeline = 4, .tensor = 4});  // 8 ranks to a node: tensor 4 x half of the pipeline
  CHECK_FALSE(inner.crosses_nodes(Axis::tensor, 8));
  CHECK(inner.crosses_nodes(Axis::pipeline, 8));
  CHECK_FALSE(inner.crosses_nodes(Axis::pipeline, 16));
  CHECK(inner.crosses_nodes(Axis::data, 16));
  CHECK(inner.crosses_nodes(Axis::world, 16));
  CHECK_FALSE(inner.crosses_nodes(Axis::world, 64));
  CHECK(Mesh({.data = 2, .tensor = 3}).crosses_nodes(Axis::tensor, 4));  // ranks 3, 4, 5
  CHECK_FALSE(Mesh({.data = 4, .pipeline = 2}, "dp-tp-cp-pp").crosses_nodes(Axis::data, 4));
  CHECK_FALSE(Mesh({.data = 8, .data_inner = 4}).crosses_nodes(Axis::data_inner, 4));
  CHECK(Mesh({.data = 8, .data_inner = 4}).crosses_nodes(Axis::data_outer, 4));
}

TEST_CASE("impossible meshes are refused with an error") {
  CHECK_THROWS_AS(Mesh({0, 1, 1, 1}), ConfigError);
  CHECK_THROWS_AS(Mesh({1, 1, 1, -4}), ConfigError);
  CHECK_THROWS_AS(Mesh({65536, 65536, 1, 1}), ConfigError);
  CHECK_THROWS_AS(Mesh({.data = 6, .data_inner = 4}), ConfigError);
  CHECK_THROWS_AS(Mesh({.data = 6, .data_inner = -1}), ConfigError);
  for (const char* order :
       {"", "tp", "tp-cp-pp", "tp-cp-pp-pp", "tp-cp-pp-dp-", "tp-cp-pp-xx", "-tp-cp-pp-dp", "tpcpppdp"})
    CHECK_THROWS_AS(Mesh({1, 1, 1, 1}, order), ConfigError);
}
