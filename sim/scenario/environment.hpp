#pragma once

#include "sim/base/enum_names.hpp"
#include "sim/scenario/conditions.hpp"
#include "sim/scenario/idle_rules.hpp"
#include "sim/scenario/option.hpp"

namespace moesim::scenario {

enum class Network { automatic, fast, flows };
inline constexpr EnumNames<Network, 3> network_names{
    {{Network::fast, "fast", "each by itself, by its busiest port"},
     {Network::flows, "flows", "all at a time share the cluster's links"},
     {Network::automatic, "auto",
      "fast where that is exact, flows where expert groups share links, if affordable"}}};

// What a step meets besides its own work: the network, and GPUs that are not alike.
struct Environment {
  Network network = Network::automatic;
  Conditions conditions;
};

void check_slow_gpus(const Scenario& scenario, Use use);
void check_slow_links(const Scenario& scenario, Use use);
void use_slowdowns_of_profile(Resolution& at);
void check_slowdowns(const Scenario& scenario, Use use);

template <class Table>
void declare_environment(Table& table) {
  table.choice("network", network_names, &Environment::network)
      .by_default("auto")
      .help("how long exchanges take:")
      .idle(without_links);
  const auto factors_text = [](const GpuFactors& factors) { return text_of(factors); };
  table.text("slow-gpu", "GPU:FACTOR", parse_gpu_factors, factors_text, &Conditions::slow_gpus)
      .by_default("none")
      .help("kernels of that GPU take longer; of more: 3:1.5+7:2")
      .idle(without_step)
      .checked(check_slow_gpus);
  table.text("slow-link", "GPU:FACTOR", parse_gpu_factors, factors_text, &Conditions::slow_links)
      .by_default("none")
      .help("ports of that GPU have 1/FACTOR of their bandwidth")
      .idle(without_step)
      .checked(check_slow_links);
  table.decimal("jitter", "SIGMA", Decimal(0), Decimal(1), &Conditions::jitter)
      .by_default("0")
      .help(
          "log-normal spread of each operation (attention, all experts, ...: not of each of its "
          "kernels) on each GPU; 0.02 is 2 %")
      .idle(without_step);
  const auto slowdowns_text = [](const engine::Slowdowns& slowdowns) { return text_of(slowdowns); };
  table.text("overlap-slowdown", "A:B", parse_slowdowns, slowdowns_text, &Conditions::slowdowns)
      .by_default("the profile's, else 1:1", use_slowdowns_of_profile)
      .help("compute beside an exchange takes A times as long, the exchange B times")
      .after({"profile", "router", "padding", "network"})
      .idle(without_overlap)
      .checked(check_slowdowns);
}

}  // namespace moesim::scenario
