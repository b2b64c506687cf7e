#include "tools/moesim/auxiliary_losses.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "sim/report/formats.hpp"
#include "sim/routing/simulation/job_losses.hpp"

namespace moesim::tool {

Flag losses_flag() {
  return {"losses", "", "off",
          "also balance losses, by first and by all choices and of each sequence, and z-loss, "
          "before drops"};
}

nlohmann::ordered_json auxiliary_detail(const scenario::Scenario& scenario) {
  const auto of = [](const routing::AuxiliaryLosses& losses) {
    return nlohmann::ordered_json{
        {"balance", report::json_figure(losses.balance)},
        {"balance_all_choices", report::json_figure(losses.balance_all)},
        {"balance_sequence", report::json_figure(losses.balance_sequence)},
        {"z", report::json_figure(losses.z)}};
  };
  const std::vector<routing::AuxiliaryLosses> layers =
      routing::auxiliary_losses(scenario.routing_job(), 0, scenario.sequence_length);
  routing::AuxiliaryLosses mean;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const routing::AuxiliaryLosses& layer : layers) {
    const auto share = 1.0 / static_cast<double>(layers.size());
    mean.balance += share * layer.balance;
    mean.balance_all += share * layer.balance_all;
    mean.balance_sequence += share * layer.balance_sequence;
    mean.z += share * layer.z;
    list.push_back(of(layer));
  }
  nlohmann::ordered_json result = of(mean);
  result["layers"] = list;
  return result;
}

std::string auxiliary_lines(const nlohmann::ordered_json& losses) {
  return fmt::format(
      "\nbalance loss   {:.6g} by first choices, {:.6g} by all k, {:.6g} of sequences; mean over "
      "layers of one replica\n"
      "z-loss         {:.6g}\n",
      losses["balance"].get<double>(), losses["balance_all_choices"].get<double>(),
      losses["balance_sequence"].get<double>(), losses["z"].get<double>());
}

}  // namespace moesim::tool
