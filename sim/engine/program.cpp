#include "sim/engine/program.hpp"

#include <cassert>
#include <utility>

namespace moesim::engine {
namespace {

Partition from_group_of(int ranks, int groups, int (*group)(int rank, int parameter),
                        int parameter) {
  Partition partition;
  partition.groups.resize(static_cast<std::size_t>(groups));
  for (int rank = 0; rank < ranks; ++rank) {
    const int index = group(rank, parameter);
    partition.groups[static_cast<std::size_t>(index)].push_back(rank);
    partition.group_of.push_back(index);
  }
  return partition;
}

}  // namespace

Partition blocks(int ranks, int size) {
  assert(size > 0 && ranks % size == 0);
  return from_group_of(
      ranks, ranks / size, [](int rank, int width) { return rank / width; }, size);
}

Partition strided(int ranks, int stride) {
  assert(stride > 0 && ranks % stride == 0);
  return from_group_of(
      ranks, stride, [](int rank, int step) { return rank % step; }, stride);
}

int Program::add(Operation operation) {
  operations.push_back(std::move(operation));
  return static_cast<int>(operations.size()) - 1;
}

}  // namespace moesim::engine
