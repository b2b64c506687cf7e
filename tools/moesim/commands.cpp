#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

std::vector<Command> all_commands() {
  return {profile_command(),   simulate_command(), sweep_command(),     merge_command(),
          plot_command(),      explain_command(),  route_command(),     predict_command(),
          layout_command(),    train_command(),    recommend_command(), calibrate_command(),
          validate_command(),  import_command(),   doctor_command(),    options_command(),
          completion_command()};
}

}  // namespace moesim::tool
