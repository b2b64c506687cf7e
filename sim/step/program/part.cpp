#include "sim/step/program/part.hpp"

namespace moesim::step {

const std::vector<std::string>& part_names() {
  static const std::vector<std::string> names = {
      "attention", "dense_ffn",        "router",   "dispatch_combine", "expert",
      "rectify",   "exposed_exchange", "gradient", "optimizer",        "other"};
  return names;
}

}  // namespace moesim::step
