#include "sim/engine/engine.hpp"

#include <algorithm>
#include <array>
#include <cassert>
#include <queue>

#include "sim/engine/program_queues.hpp"

namespace moesim::engine {
namespace {

constexpr std::array<const char*, stream_count> stream_names{"compute", "communication",
                                                             "gradients"};

// One group of one collective, while its members arrive.
struct Gathering {
  int missing = 0;
  Picoseconds last_arrival;
};

// An exchange begins, or one of its members arrives.
struct Begin {
  static constexpr int all_members = -1;
  Picoseconds time;
  int exchange = 0;
  int member = all_members;
};
struct Later {
  bool operator()(const Begin& a, const Begin& b) const {
    if (a.time != b.time) return a.time > b.time;
    return a.exchange != b.exchange ? a.exchange > b.exchange : a.member > b.member;
  }
};

class Run {
 public:
  Run(const Program& program, const Durations& durations, network::Fabric& fabric,
      const Traffic* traffic)
      : program_(program),
        durations_(durations),
        fabric_(fabric),
        traffic_(traffic),
        execution_(unset_execution(program)),
        queues_(program) {
    free_.resize(static_cast<std::size_t>(program.ranks));
    list_exchanges();
  }

  Execution run() {
    for (int rank = 0; rank < program_.ranks; ++rank) advance(rank);
    while (true) {
      const std::optional<network::Completion> completion = fabric_.next();
      if (!begins_.empty() && (!completion || begins_.top().time <= completion->time)) {
        begin_next();
      } else if (completion) {
        fabric_.take();
        complete(*completion);
      } else {
        break;
      }
    }
    queues_.check_finished();
    return std::move(execution_);
  }

 private:
  void list_exchanges() {
    first_exchange_.resize(program_.operations.size(), -1);
    for (std::size_t op = 0; op < program_.operations.size(); ++op) {
      const int groups = program_.operations[op].groups;
      if (groups < 0) continue;
      first_exchange_[op] = static_cast<int>(gatherings_.size());
      for (const auto& group : program_.partitions[static_cast<std::size_t>(groups)].groups) {
        gatherings_.push_back({static_cast<int>(group.size()), Picoseconds(0)});
        operation_of_.push_back(static_cast<int>(op));
      }
    }
  }

  const Partition& partition_of(int op) const {
    const int groups = program_.operations[static_cast<std::size_t>(op)].groups;
    return program_.partitions[static_cast<std::size_t>(groups)];
  }
  const std::vector<int>& members_of(int exchange) const {
    const int op = operation_of_[static_cast<std::size_t>(exchange)];
    const int group = exchange - first_exchange_[static_cast<std::size_t>(op)];
    return partition_of(op).groups[static_cast<std::size_t>(group)];
  }

  // Advances the streams of a rank until each waits for an exchange or is done.
  void advance(int rank) {
    bool moved = true;
    while (moved) {
      moved = false;
      for (std::size_t stream = 0; stream < stream_count; ++stream) {
        while (step(rank, stream)) moved = true;
      }
    }
  }

  bool step(int rank, std::size_t stream) {
    const int op = queues_.head(rank, stream);
    if (op == ProgramQueues::none) return false;
    const std::size_t cell = execution_.at(op, rank);
    if (execution_.start[cell] != unset) return false;  // a collective in progress
    Picoseconds ready = free_[static_cast<std::size_t>(rank)][stream];
    for (const int before : program_.operations[static_cast<std::size_t>(op)].after) {
      const Picoseconds finish = execution_.finish[execution_.at(before, rank)];
      if (finish == unset) return false;
      ready = std::max(ready, finish);
    }
    execution_.start[cell] = ready;
    const bool skipped = durations_.skips(op);
    if (first_exchange_[static_cast<std::size_t>(op)] >= 0 && !skipped) {
      arrive(op, rank, ready);
      return false;
    }
    execution_.began[cell] = ready;
    finish(op, rank, skipped ? ready : ready + durations_.of(op, rank));
    return true;
  }

  void finish(int op, int rank, Picoseconds time) {
    const auto stream =
        static_cast<std::size_t>(program_.operations[static_cast<std::size_t>(op)].stream);
    execution_.finish[execution_.at(op, rank)] = time;
    free_[static_cast<std::size_t>(rank)][stream] = time;
    queues_.pop(rank, stream);
  }

  void arrive(int op, int rank, Picoseconds time) {
    const int group = partition_of(op).group_of[static_cast<std::size_t>(rank)];
    const int exchange = first_exchange_[static_cast<std::size_t>(op)] + group;
    Gathering& gathering = gatherings_[static_cast<std::size_t>(exchange)];
    if (traffic_ != nullptr && traffic_->is_uneven(op)) {
      const std::vector<int>& members = members_of(exchange);
      if (gathering.missing-- == static_cast<int>(members.size())) {
        ByteMatrix bytes(static_cast<int>(members.size()));
        traffic_->fill(op, group, bytes);
        fabric_.announce(exchange, members, std::move(bytes));
      }
      const auto place = std::find(members.begin(), members.end(), rank) - members.begin();
      begins_.push({time, exchange, static_cast<int>(place)});
      return;
    }
    gathering.last_arrival = std::max(gathering.last_arrival, time);
    if (--gathering.missing == 0) begins_.push({gathering.last_arrival, exchange});
  }

  void begin_next() {
    const Begin begin = begins_.top();
    begins_.pop();
    const int op = operation_of_[static_cast<std::size_t>(begin.exchange)];
    const std::vector<int>& members = members_of(begin.exchange);
    if (begin.member != Begin::all_members) {
      const int rank = members[static_cast<std::size_t>(begin.member)];
      execution_.began[execution_.at(op, rank)] = begin.time;
      return fabric_.arrive(begin.exchange, begin.member, begin.time);
    }
    for (const int rank : members) execution_.began[execution_.at(op, rank)] = begin.time;
    fabric_.begin(begin.exchange, begin.time, durations_.of(op, members.front()));
  }

  void complete(const network::Completion& completion) {
    const int op = operation_of_[static_cast<std::size_t>(completion.exchange)];
    const std::vector<int>& members = members_of(completion.exchange);
    if (completion.member == network::Completion::nobody) return;
    if (completion.member != network::Completion::all_members) {
      const int rank = members[static_cast<std::size_t>(completion.member)];
      finish(op, rank, completion.time);
      return advance(rank);
    }
    for (const int rank : members) finish(op, rank, completion.time);
    for (const int rank : members) advance(rank);
  }

  const Program& program_;
  const Durations& durations_;
  network::Fabric& fabric_;
  const Traffic* traffic_;
  Execution execution_;
  ProgramQueues queues_;
  std::vector<std::array<Picoseconds, stream_count>> free_;  // [rank][stream]
  std::vector<int> first_exchange_;                          // [operation], -1 for compute
  std::vector<Gathering> gatherings_;                        // [exchange]
  std::vector<int> operation_of_;                            // [exchange]
  std::priority_queue<Begin, std::vector<Begin>, Later> begins_;
};

}  // namespace

Picoseconds Execution::end_of(int rank) const {
  Picoseconds end;
  for (std::size_t cell = at(0, rank); cell < finish.size();
       cell += static_cast<std::size_t>(columns)) {
    end = std::max(end, finish[cell]);
  }
  return end;
}

int Execution::slowest_rank() const {
  // Row by row, in memory order.
  std::vector<Picoseconds> end(static_cast<std::size_t>(columns));
  for (std::size_t row = 0; row < finish.size(); row += end.size()) {
    for (std::size_t column = 0; column < end.size(); ++column) {
      end[column] = std::max(end[column], finish[row + column]);
    }
  }
  int slowest = 0;
  for (int rank = 1; rank < ranks; ++rank) {
    if (end[at(0, rank)] > end[at(0, slowest)]) slowest = rank;
  }
  return slowest;
}

Execution run(const Program& program, const Durations& durations, network::Fabric& fabric,
              const Traffic* traffic) {
  assert(durations.uniform.size() == program.operations.size());
  return Run(program, durations, fabric, traffic).run();
}

Timeline timeline(const Program& program, const Execution& execution,
                  const std::vector<std::string>& categories) {
  Timeline bars;
  for (int rank = 0; rank < program.ranks; ++rank) {
    for (std::size_t op = 0; op < program.operations.size(); ++op) {
      const Operation& operation = program.operations[op];
      const std::size_t cell = execution.at(static_cast<int>(op), rank);
      bars.push_back({rank, stream_names[static_cast<std::size_t>(operation.stream)],
                      operation.name, categories[static_cast<std::size_t>(operation.category)],
                      operation.layer, execution.start[cell],
                      execution.finish[cell] - execution.start[cell]});
      if (operation.groups < 0) continue;
      const Partition& partition = program.partitions[static_cast<std::size_t>(operation.groups)];
      TimelineEvent& bar = bars.back();
      bar.partition = operation.groups;
      bar.group = partition.group_of[static_cast<std::size_t>(rank)];
      bar.group_size =
          static_cast<int>(partition.groups[static_cast<std::size_t>(bar.group)].size());
    }
  }
  return bars;
}

}  // namespace moesim::engine
