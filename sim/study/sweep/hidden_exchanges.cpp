#include "sim/study/sweep/hidden_exchanges.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/step/program/part.hpp"

namespace moesim::study {
namespace {

using engine::StreamKind;

constexpr std::size_t link_kinds = 2;  // inside domains, and across

class HiddenStep {
 public:
  HiddenStep(const scenario::Scenario& scenario, const engine::Program& program,
             const engine::Execution& execution)
      : gathers_weights_(scenario.zero >= 3),
        program_(program),
        execution_(execution),
        rank_(execution.slowest_rank()) {
    for (const engine::Partition& partition : program.partitions) {
      const std::vector<int>& members = partition.groups.front();
      const int domain = scenario.cluster->domain_of(members.front());
      crosses_.push_back(std::any_of(members.begin(), members.end(), [&](int member) {
        return scenario.cluster->domain_of(member) != domain;
      }));
    }
    lost_to_others_.resize(program.operations.size());
    for (const engine::LostTime& lost : execution.lost) {
      if (!share_links(lost.operation, lost.to)) {
        lost_to_others_[static_cast<std::size_t>(lost.operation)] += lost.time;
      }
    }
  }

  Picoseconds time() {
    for (int op = 0; op < static_cast<int>(program_.operations.size()); ++op) {
      if (is_gather(op)) {
        gather(op);
      } else if (operation(op).stream == StreamKind::gradients) {
        reduce(op);
      } else {
        run(op);
      }
    }
    return std::max(now_, reduced_);
  }

 private:
  const engine::Operation& operation(int op) const {
    return program_.operations[static_cast<std::size_t>(op)];
  }
  Picoseconds start(int op) const { return execution_.start[execution_.at(op, rank_)]; }
  Picoseconds finish(int op) const { return execution_.finish[execution_.at(op, rank_)]; }
  bool is_gather(int op) const {
    return gathers_weights_ &&
           operation(op).category == static_cast<int>(step::StepPart::gradient) &&
           operation(op).name == std::string_view("nccl:all_gather");
  }
  std::size_t links_of(int op) const {
    return crosses_[static_cast<std::size_t>(operation(op).groups)] ? 1 : 0;
  }
  bool share_links(int one, int other) const {
    return operation(one).groups >= 0 && operation(other).groups >= 0 &&
           links_of(one) == links_of(other);
  }

  // Gathers of one layer follow each other: what hid the first cannot hide the second.
  void gather(int op) {
    const Picoseconds time = finish(op) - start(op);
    const Picoseconds hides = std::max(Picoseconds(0), beside_[links_of(op)] - hidden_);
    const Picoseconds hidden = std::min(time, hides);
    hidden_ += hidden;
    now_ += time - hidden;
    ended_ = std::max(ended_, finish(op));
    gathered_ = true;
  }

  // In a queue of their own; lost time is what they lost to exchanges on their links alone.
  void reduce(int op) {
    const Picoseconds time = finish(op) - execution_.began[execution_.at(op, rank_)] -
                             lost_to_others_[static_cast<std::size_t>(op)];
    reduced_ = std::max(reduced_, now_) + std::max(Picoseconds(0), time);
  }

  void run(int op) {
    if (gathered_) {
      beside_ = {};
      hidden_ = Picoseconds(0);
      gathered_ = false;
    }
    const std::vector<int>& after = operation(op).after;
    const bool waits = std::any_of(after.begin(), after.end(), [&](int before) {
      return operation(before).stream == StreamKind::gradients;
    });
    if (waits) now_ = std::max(now_, reduced_);
    // What ran beside others, as rectification does beside an exchange, counts once.
    const Picoseconds from = std::max(ended_, start(op));
    if (finish(op) <= from) return;
    const Picoseconds time = finish(op) - from;
    now_ += time;
    ended_ = finish(op);
    for (std::size_t links = 0; links < link_kinds; ++links) {
      if (operation(op).groups < 0 || links_of(op) != links) beside_[links] += time;
    }
  }

  bool gathers_weights_;
  const engine::Program& program_;
  const engine::Execution& execution_;
  int rank_;
  std::vector<bool> crosses_;                // [partition]
  std::vector<Picoseconds> lost_to_others_;  // [operation] than exchanges on the same links
  Picoseconds ended_;                        // as it was executed: what has run so far
  Picoseconds now_;                          // the same with exchanges hidden
  Picoseconds reduced_;                      // likewise: the reductions so far
  // Since weights were last gathered: what may hide exchanges on these links, and what of it has.
  std::array<Picoseconds, link_kinds> beside_{};
  Picoseconds hidden_;
  bool gathered_ = false;
};

}  // namespace

double hidden_gain(const scenario::Scenario& scenario, const engine::Program& program,
                   const engine::Execution& execution) {
  if (scenario.zero < 2 || scenario.mode != scenario::Mode::train) return 0;
  const double step = execution.end_of(execution.slowest_rank()).us();
  const double hidden = HiddenStep(scenario, program, execution).time().us();
  return hidden > 0 ? std::max(0.0, std::log(step / hidden)) : 0;
}

}  // namespace moesim::study
