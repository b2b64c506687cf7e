#include "tools/moesim/scenario/auxiliary_losses.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "sim/base/parallel.hpp"
#include "sim/report/formats.hpp"
#include "sim/routing/simulation/job_losses.hpp"

namespace moesim::tool {

Flag losses_flag() {
  return {"losses", "", "off",
          "also balance losses, by first and by all choices and of each sequence, and z-loss, "
          "before drops"};
}

routing::AuxiliaryLosses mean_of(const std::vector<routing::AuxiliaryLosses>& losses) {
  routing::AuxiliaryLosses mean;
  const auto share = 1.0 / static_cast<double>(losses.size());
  for (const routing::AuxiliaryLosses& each : losses) {
    mean.balance += share * each.balance;
    mean.balance_all += share * each.balance_all;
    mean.balance_sequence += share * each.balance_sequence;
    mean.z += share * each.z;
  }
  return mean;
}

std::vector<routing::AuxiliaryLosses> losses_of_layers(const routing::RoutingJob& job, int replicas,
                                                       int jobs, std::int64_t sequence_tokens) {
  std::vector<std::vector<routing::AuxiliaryLosses>> found(static_cast<std::size_t>(replicas));
  parallel_for(found.size(), jobs, [&](std::size_t replica) {
    found[replica] = routing::auxiliary_losses(job, static_cast<int>(replica), sequence_tokens);
  });
  std::vector<routing::AuxiliaryLosses> layers;
  for (std::size_t layer = 0; layer < found.front().size(); ++layer) {
    std::vector<routing::AuxiliaryLosses> of_layer;
    for (const auto& replica : found) of_layer.push_back(replica[layer]);
    layers.push_back(mean_of(of_layer));
  }
  return layers;
}

nlohmann::ordered_json auxiliary_detail(const scenario::Scenario& scenario, int jobs) {
  const auto of = [](const routing::AuxiliaryLosses& losses) {
    return nlohmann::ordered_json{
        {"balance", report::json_figure(losses.balance)},
        {"balance_all_choices", report::json_figure(losses.balance_all)},
        {"balance_sequence", report::json_figure(losses.balance_sequence)},
        {"z", report::json_figure(losses.z)}};
  };
  const std::vector<routing::AuxiliaryLosses> layers =
      losses_of_layers(scenario.routing_job(), scenario.replicas, jobs, scenario.sequence_length);
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const routing::AuxiliaryLosses& layer : layers) list.push_back(of(layer));
  nlohmann::ordered_json result = of(mean_of(layers));
  result["layers"] = list;
  return result;
}

std::string auxiliary_lines(const nlohmann::ordered_json& losses) {
  return fmt::format(
      "\nbalance loss   {:.6g} by first choices, {:.6g} by all k, {:.6g} of sequences; mean over "
      "layers and replicas\n"
      "z-loss         {:.6g}\n",
      losses["balance"].get<double>(), losses["balance_all_choices"].get<double>(),
      losses["balance_sequence"].get<double>(), losses["z"].get<double>());
}

}  // namespace moesim::tool
