#include "sim/engine/dataflow.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <stdexcept>
#include <utility>

#include "sim/engine/fold.hpp"

namespace moesim::engine {
namespace {

class Pass {
 public:
  Pass(const Program& program, const Durations& durations, const Exchanges& exchanges, Fold fold)
      : program_(program), durations_(durations), exchanges_(exchanges), fold_(std::move(fold)) {
    columns_ = fold_.representative.size();
    const std::size_t cells = program.operations.size() * columns_;
    execution_.ranks = program.ranks;
    execution_.columns = static_cast<int>(columns_);
    execution_.start.resize(cells);
    execution_.finish.resize(cells);
    execution_.began.resize(cells);
  }

  Execution run() {
    std::array<int, stream_count> before{-1, -1};
    for (std::size_t op = 0; op < program_.operations.size(); ++op) {
      const Operation& operation = program_.operations[op];
      int& last = before[static_cast<std::size_t>(operation.stream)];
      const int number = static_cast<int>(op);
      make_ready(number, last);
      if (durations_.skips(number)) {
        pass_by(number);
      } else if (operation.groups < 0) {
        compute(number);
      } else if (exchanges_.traffic != nullptr && exchanges_.traffic->is_uneven(number)) {
        exchange(number);
      } else {
        collective(number);
      }
      last = number;
    }
    execution_.column_of = std::move(fold_.column_of);
    return std::move(execution_);
  }

 private:
  Picoseconds* row(std::vector<Picoseconds>& times, int op) const {
    return times.data() + static_cast<std::size_t>(op) * columns_;
  }
  bool folded() const { return !fold_.column_of.empty(); }
  // The number of the partition whose groups run an operation.
  std::size_t partition_number(int op) const {
    return static_cast<std::size_t>(program_.operations[static_cast<std::size_t>(op)].groups);
  }
  const Partition& partition_of(int op) const {
    const std::size_t number = partition_number(op);
    return folded() ? fold_.partitions[number].columns : program_.partitions[number];
  }
  int whole_group(int op, std::size_t group) const {
    const std::size_t number = partition_number(op);
    return folded() ? fold_.partitions[number].whole_groups[group] : static_cast<int>(group);
  }
  int rank_of(std::size_t column) const { return fold_.representative[column]; }

  // A rank is ready for an operation when its stream is free and all dependencies have finished.
  void make_ready(int op, int last) {
    Picoseconds* start = row(execution_.start, op);
    if (last >= 0) {
      std::copy_n(row(execution_.finish, last), columns_, start);
    }
    for (const int before : program_.operations[static_cast<std::size_t>(op)].after) {
      if (before >= op) {
        throw std::logic_error(
            fmt::format("operation {} ({}) waits for operation {}, which comes later", op,
                        program_.operations[static_cast<std::size_t>(op)].name, before));
      }
      if (before == last) continue;
      const Picoseconds* finish = row(execution_.finish, before);
      for (std::size_t column = 0; column < columns_; ++column) {
        start[column] = std::max(start[column], finish[column]);
      }
    }
  }

  void pass_by(int op) {
    const Picoseconds* start = row(execution_.start, op);
    std::copy_n(start, columns_, row(execution_.began, op));
    std::copy_n(start, columns_, row(execution_.finish, op));
  }

  void compute(int op) {
    const Picoseconds* start = row(execution_.start, op);
    Picoseconds* finish = row(execution_.finish, op);
    std::copy_n(start, columns_, row(execution_.began, op));
    const std::vector<Picoseconds>& each = durations_.per_rank[static_cast<std::size_t>(op)];
    const Picoseconds all = durations_.uniform[static_cast<std::size_t>(op)];
    for (std::size_t column = 0; column < columns_; ++column) {
      const auto rank = static_cast<std::size_t>(rank_of(column));
      finish[column] = start[column] + (each.empty() ? all : each[rank]);
    }
  }

  void collective(int op) {
    const Partition& partition = partition_of(op);
    const Picoseconds* start = row(execution_.start, op);
    latest_.assign(partition.groups.size(), Picoseconds(0));
    for (std::size_t column = 0; column < columns_; ++column) {
      Picoseconds& latest = latest_[static_cast<std::size_t>(partition.group_of[column])];
      latest = std::max(latest, start[column]);
    }
    ends_.resize(latest_.size());
    for (std::size_t group = 0; group < latest_.size(); ++group) {
      const auto whole = static_cast<std::size_t>(whole_group(op, group));
      const Partition& all = program_.partitions[partition_number(op)];
      ends_[group] = latest_[group] + durations_.of(op, all.groups[whole].front());
    }
    Picoseconds* began = row(execution_.began, op);
    Picoseconds* finish = row(execution_.finish, op);
    for (std::size_t column = 0; column < columns_; ++column) {
      const auto group = static_cast<std::size_t>(partition.group_of[column]);
      began[column] = latest_[group];
      finish[column] = ends_[group];
    }
  }

  void exchange(int op) {
    const std::size_t number = partition_number(op);
    const Partition& partition = partition_of(op);
    const Picoseconds* start = row(execution_.start, op);
    Picoseconds* began = row(execution_.began, op);
    Picoseconds* finish = row(execution_.finish, op);
    for (std::size_t group = 0; group < partition.groups.size(); ++group) {
      const std::vector<int>& columns = partition.groups[group];
      const int whole = whole_group(op, group);
      if (bytes_.ranks() != static_cast<int>(columns.size())) {
        bytes_ = ByteMatrix(static_cast<int>(columns.size()));
      }
      latest_.resize(columns.size());
      ends_.resize(columns.size());
      exchanges_.traffic->fill(op, whole, bytes_);
      for (std::size_t member = 0; member < columns.size(); ++member) {
        latest_[member] = start[static_cast<std::size_t>(columns[member])];
      }
      const auto& members = program_.partitions[number].groups[static_cast<std::size_t>(whole)];
      exchanges_.clock->finish(members, bytes_, latest_, ends_);
      for (std::size_t member = 0; member < columns.size(); ++member) {
        const auto column = static_cast<std::size_t>(columns[member]);
        began[column] = start[column];
        finish[column] = ends_[member];
      }
    }
  }

  const Program& program_;
  const Durations& durations_;
  const Exchanges& exchanges_;
  Fold fold_;
  std::size_t columns_ = 0;
  Execution execution_;
  ByteMatrix bytes_;
  std::vector<Picoseconds> latest_, ends_;  // by group, or by member of a group
};

Fold unfolded(int ranks) {
  Fold fold;
  for (int rank = 0; rank < ranks; ++rank) fold.representative.push_back(rank);
  return fold;
}

}  // namespace

Execution run_alone(const Program& program, const Durations& durations, const Exchanges& exchanges,
                    Folding folding) {
  assert(durations.uniform.size() == program.operations.size());
  assert(exchanges.traffic == nullptr || exchanges.clock != nullptr);
  return Pass(program, durations, exchanges,
              folding == Folding::on ? fold(program, durations, exchanges.traffic, exchanges.clock)
                                     : unfolded(program.ranks))
      .run();
}

}  // namespace moesim::engine
