#include "sim/engine/program_queues.hpp"

#include <fmt/format.h>

#include <stdexcept>

namespace moesim::engine {

Execution unset_execution(const Program& program) {
  const std::size_t cells = program.operations.size() * static_cast<std::size_t>(program.ranks);
  Execution execution;
  execution.ranks = program.ranks;
  execution.columns = program.ranks;
  execution.start.assign(cells, unset);
  execution.finish.assign(cells, unset);
  execution.began.assign(cells, unset);
  return execution;
}

ProgramQueues::ProgramQueues(const Program& program)
    : program_(program), places_(static_cast<std::size_t>(program.ranks)) {
  for (std::size_t op = 0; op < program.operations.size(); ++op) {
    const auto stream = static_cast<std::size_t>(program.operations[op].stream);
    streams_[stream].push_back(static_cast<int>(op));
  }
}

void ProgramQueues::check_finished() const {
  for (int rank = 0; rank < program_.ranks; ++rank) {
    for (std::size_t stream = 0; stream < stream_count; ++stream) {
      const int op = head(rank, stream);
      if (op == none) continue;
      throw std::logic_error(fmt::format("rank {} never runs operation {} ({})", rank, op,
                                         program_.operations[static_cast<std::size_t>(op)].name));
    }
  }
}

}  // namespace moesim::engine
