#include "sim/engine/contended.hpp"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>
#include <utility>

#include "sim/base/check_range.hpp"
#include "sim/base/numbers.hpp"
#include "sim/engine/program_queues.hpp"

namespace moesim::engine {
namespace {

// Work that takes another `left` picoseconds at full speed, counted from `since`.
struct Work {
  double left = 0;
  Picoseconds since;
  double slowdown = 1;
  int version = 0;  // of its end event: queued ends of earlier versions are ignored
  bool active = false;
};

struct Event {
  Picoseconds time;
  bool is_exchange = false;
  int number = 0;  // rank, or exchange
  int version = 0;
  bool operator>(const Event& other) const {
    return std::tie(time, is_exchange, number, version) >
           std::tie(other.time, other.is_exchange, other.number, other.version);
  }
};

struct Gathering {
  int operation = 0;
  int group = 0;
  int missing = 0;
  int computing = 0;  // members that compute during it
  Work work;
};

class Run {
 public:
  Run(const Program& program, const Durations& durations, const Slowdowns& slowdowns)
      : program_(program),
        durations_(durations),
        slowdowns_(slowdowns),
        execution_(unset_execution(program)),
        queues_(program),
        compute_(index_of(program.ranks)),
        under_way_(index_of(program.ranks), {none, none, none}) {
    for (std::size_t op = 0; op < program.operations.size(); ++op) list(static_cast<int>(op));
  }

  Execution run() {
    for (int rank = 0; rank < program_.ranks; ++rank) advance(rank, Picoseconds(0));
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.is_exchange) {
        if (event.version == exchanges_[index_of(event.number)].work.version) end_exchange(event);
      } else if (event.version == compute_[index_of(event.number)].version) {
        end_compute(event.number, event.time);
      }
    }
    queues_.check_finished();
    return std::move(execution_);
  }

 private:
  static constexpr int none = -1;
  const Operation& operation(int op) const { return program_.operations[index_of(op)]; }
  const Partition& partition_of(int op) const {
    return program_.partitions[index_of(operation(op).groups)];
  }
  const std::vector<int>& members_of(const Gathering& exchange) const {
    return partition_of(exchange.operation).groups[index_of(exchange.group)];
  }

  std::size_t stream_of(const Gathering& exchange) const {
    return static_cast<std::size_t>(operation(exchange.operation).stream);
  }

  void list(int op) {
    first_exchange_.push_back(static_cast<int>(exchanges_.size()));
    if (operation(op).groups < 0) return;
    int group = 0;
    for (const std::vector<int>& members : partition_of(op).groups) {
      Gathering exchange;
      exchange.operation = op;
      exchange.group = group++;
      exchange.missing = static_cast<int>(members.size());
      exchanges_.push_back(exchange);
    }
  }

  // Starts what can start on a rank: at most one operation per stream, since only skipped
  // collectives end at once.
  void advance(int rank, Picoseconds now) {
    for (std::size_t stream = 0; stream < stream_count; ++stream) {
      const int op = queues_.head(rank, stream);
      if (op == ProgramQueues::none) continue;
      const std::size_t cell = execution_.at(op, rank);
      if (execution_.start[cell] != unset || !is_ready(op, rank)) continue;
      execution_.start[cell] = now;
      if (durations_.skips(op)) {
        execution_.began[cell] = now;
        finish(rank, operation(op).stream, now);
        return advance(rank, now);  // other operations may have waited for it
      }
      if (operation(op).groups >= 0) {
        arrive(op, rank, now);
      } else {
        execution_.began[cell] = now;
        start_compute(op, rank, now);
      }
    }
  }

  bool is_ready(int op, int rank) const {
    const std::vector<int>& after = operation(op).after;
    return std::all_of(after.begin(), after.end(), [&](int before) {
      return execution_.finish[execution_.at(before, rank)] != unset;
    });
  }

  void start(Work& work, double duration, double slowdown, Picoseconds now) {
    work.left = duration;
    work.slowdown = slowdown;
    work.since = now;
    work.active = true;
  }
  // Continues at another speed.
  static void change(Work& work, double slowdown, Picoseconds now) {
    work.left =
        std::max(0.0, work.left - static_cast<double>((now - work.since).count) / work.slowdown);
    work.since = now;
    work.slowdown = slowdown;
  }
  void announce(Work& work, bool is_exchange, int number) {
    const auto rest = Picoseconds::rounded(work.left * work.slowdown);
    events_.push({work.since + rest, is_exchange, number, ++work.version});
  }

  void start_compute(int op, int rank, Picoseconds now) {
    Work& work = compute_[index_of(rank)];
    start(work, static_cast<double>(durations_.of(op, rank).count),
          is_exchanging(rank) ? slowdowns_.compute : 1, now);
    announce(work, false, rank);
    count_computing(rank, +1, now);
  }

  void end_compute(int rank, Picoseconds now) {
    compute_[index_of(rank)].active = false;
    count_computing(rank, -1, now);
    finish(rank, StreamKind::compute, now);
    advance(rank, now);
  }

  bool is_exchanging(int rank) const {
    const Numbers& numbers = under_way_[index_of(rank)];
    return std::any_of(numbers.begin(), numbers.end(), [](int number) { return number != none; });
  }

  void count_computing(int rank, int more, Picoseconds now) {
    for (const int number : under_way_[index_of(rank)]) {
      if (number != none) count_computing_in(number, more, now);
    }
  }
  void count_computing_in(int number, int more, Picoseconds now) {
    Gathering& exchange = exchanges_[index_of(number)];
    const bool before = exchange.computing > 0;
    exchange.computing += more;
    const bool after = exchange.computing > 0;
    if (before == after || !exchange.work.active) return;
    change(exchange.work, after ? slowdowns_.exchange : 1, now);
    announce(exchange.work, true, number);
  }

  void arrive(int op, int rank, Picoseconds now) {
    const int number = first_exchange_[index_of(op)] + partition_of(op).group_of[index_of(rank)];
    Gathering& exchange = exchanges_[index_of(number)];
    if (--exchange.missing > 0) return;
    const std::vector<int>& members = members_of(exchange);
    for (const int member : members) {
      execution_.began[execution_.at(op, member)] = now;
      under_way_[index_of(member)][stream_of(exchange)] = number;
      Work& work = compute_[index_of(member)];
      if (!work.active) continue;
      ++exchange.computing;
      change(work, slowdowns_.compute, now);
      announce(work, false, member);
    }
    start(exchange.work, static_cast<double>(durations_.of(op, members.front()).count),
          exchange.computing > 0 ? slowdowns_.exchange : 1, now);
    announce(exchange.work, true, number);
  }

  void end_exchange(const Event& event) {
    Gathering& exchange = exchanges_[index_of(event.number)];
    exchange.work.active = false;
    for (const int member : members_of(exchange)) {
      under_way_[index_of(member)][stream_of(exchange)] = none;
      Work& work = compute_[index_of(member)];
      if (work.active && !is_exchanging(member)) {
        change(work, 1, event.time);
        announce(work, false, member);
      }
      finish(member, operation(exchange.operation).stream, event.time);
    }
    for (const int member : members_of(exchange)) advance(member, event.time);
  }

  void finish(int rank, StreamKind kind, Picoseconds now) {
    const int op = queues_.pop(rank, static_cast<std::size_t>(kind));
    execution_.finish[execution_.at(op, rank)] = now;
  }

  const Program& program_;
  const Durations& durations_;
  const Slowdowns slowdowns_;
  Execution execution_;
  ProgramQueues queues_;
  std::vector<Work> compute_;  // [rank]
  using Numbers = std::array<int, stream_count>;
  std::vector<Numbers> under_way_;   // [rank][stream]: exchange, or none
  std::vector<int> first_exchange_;  // [operation]
  std::vector<Gathering> exchanges_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace

Execution run_contended(const Program& program, const Durations& durations,
                        const Slowdowns& slowdowns) {
  check_range("Slowdowns::compute", slowdowns.compute, 1, Slowdowns::most);
  check_range("Slowdowns::exchange", slowdowns.exchange, 1, Slowdowns::most);
  return Run(program, durations, slowdowns).run();
}

}  // namespace moesim::engine
