#include "tools/moesim/train/replicas.hpp"

#include "sim/study/training_prediction.hpp"

namespace moesim::tool {

int requested_replicas(const CommandLine& line) {
  return line.has("replicas") ? study::parse_replicas(line.get("replicas")) : 1;
}

}  // namespace moesim::tool
