#include "sim/engine/critical_path.hpp"

#include <algorithm>
#include <stdexcept>

namespace moesim::engine {
namespace {

// The operation of a rank that ends last, the first of equal ones.
int last_of(const Program& program, const Execution& execution, int rank) {
  int op = 0;
  for (int candidate = 1; candidate < static_cast<int>(program.operations.size()); ++candidate) {
    if (execution.finish[execution.at(candidate, rank)] > execution.finish[execution.at(op, rank)])
      op = candidate;
  }
  return op;
}

// What an operation that started at `start` waited for: a dependency, or the operation before it on
// its stream.
int cause_of(const Program& program, const Execution& execution, int op, int rank) {
  const Picoseconds start = execution.start[execution.at(op, rank)];
  const auto ends_then = [&](int before) {
    return execution.finish[execution.at(before, rank)] == start;
  };
  int cause = -1;
  const Operation& operation = program.operations[static_cast<std::size_t>(op)];
  for (const int before : operation.after) {
    if (ends_then(before)) cause = before;
  }
  for (int before = op - 1; cause < 0 && before >= 0; --before) {
    const bool same_stream =
        program.operations[static_cast<std::size_t>(before)].stream == operation.stream;
    if (same_stream && ends_then(before)) cause = before;
  }
  if (cause < 0) throw std::logic_error("an operation starts without a cause");
  return cause;
}

// The member of a rank's group that a collective waits for; the rank itself for compute, and where
// it was done before the last member came.
int waited_for(const Program& program, const Execution& execution, int op, int rank) {
  const int groups = program.operations[static_cast<std::size_t>(op)].groups;
  if (groups < 0) return rank;
  const Partition& partition = program.partitions[static_cast<std::size_t>(groups)];
  const auto group = static_cast<std::size_t>(partition.group_of[static_cast<std::size_t>(rank)]);
  const auto start = [&](int member) { return execution.start[execution.at(op, member)]; };
  int last = rank;
  for (const int member : partition.groups[group]) {
    if (start(member) > start(last)) last = member;
  }
  return start(last) <= execution.finish[execution.at(op, rank)] ? last : rank;
}

// The step of an operation, and before it what it lost to others.
void add(const Execution& execution, PathStep step, std::vector<PathStep>& path) {
  const auto before = [](const LostTime& lost, int op) { return lost.operation < op; };
  auto lost =
      std::lower_bound(execution.lost.begin(), execution.lost.end(), step.operation, before);
  for (; lost != execution.lost.end() && lost->operation == step.operation; ++lost) {
    const Picoseconds time = std::min(lost->time, step.duration);
    step.duration -= time;
    path.push_back({lost->to, step.rank, time});
  }
  path.push_back(step);
}

// Calls visit(op, from, rank) for each operation of the critical path, latest first: `from` is the
// rank whose end of it the path comes from, `rank` the one that it waited for.
template <typename Visit>
void walk(const Program& program, const Execution& execution, Visit visit) {
  if (program.operations.empty()) return;
  int rank = execution.slowest_rank();
  for (int op = last_of(program, execution, rank);; op = cause_of(program, execution, op, rank)) {
    const int from = rank;
    rank = waited_for(program, execution, op, from);
    visit(op, from, rank);
    if (execution.start[execution.at(op, rank)] == Picoseconds(0)) return;
  }
}

}  // namespace

std::vector<PathStep> path_of_rank(const Program& program, const Execution& execution, int rank) {
  std::vector<PathStep> path;
  if (program.operations.empty()) return path;
  for (int op = last_of(program, execution, rank);; op = cause_of(program, execution, op, rank)) {
    const std::size_t at = execution.at(op, rank);
    add(execution, {op, rank, execution.finish[at] - execution.start[at]}, path);
    if (execution.start[at] == Picoseconds(0)) return path;
  }
}

std::vector<PathStep> critical_path(const Program& program, const Execution& execution) {
  std::vector<PathStep> path;
  walk(program, execution, [&](int op, int from, int rank) {
    const Picoseconds finish = execution.finish[execution.at(op, from)];
    add(execution, {op, rank, finish - execution.start[execution.at(op, rank)]}, path);
  });
  return path;
}

std::vector<int> ranks_of_path(const Program& program, const Execution& execution) {
  std::vector<int> ranks(program.operations.size());
  auto open = ranks.end();  // those before it have no rank yet
  int last = 0;
  walk(program, execution, [&](int op, int from, int rank) {
    const auto own = ranks.begin() + op;
    std::fill(own, open, from);
    open = own;
    last = rank;
  });
  std::fill(ranks.begin(), open, last);
  return ranks;
}

}  // namespace moesim::engine
