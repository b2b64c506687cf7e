#include "tools/moesim/bands/capacity_pair.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>

#include "sim/base/text.hpp"
#include "sim/cluster/measured_between.hpp"
#include "sim/job/job_options.hpp"
#include "sim/report/formats.hpp"
#include "sim/routing/rules/router_config.hpp"
#include "sim/study/sweep/step_band.hpp"
#include "sim/training/job/stage_division.hpp"

namespace moesim::tool {

std::string plain_number(const std::string& text) {
  const std::optional<double> value = parse_number<double>(text);
  return value ? report::figure(*value) : text;
}

std::optional<std::string> all_but_capacity(
    const std::function<std::string(const std::string& column)>& text_in) {
  if (text_in("padding") != routing::name_of(routing::Padding::capacity)) return std::nullopt;
  // A dispatcher sends the rows that a block keeps, whatever it is padded to.
  const std::string dispatcher = text_in("dispatcher");
  if (!dispatcher.empty() && dispatcher != "all-to-all") return std::nullopt;
  std::string text;
  for (const job::JobOption& option : job::job_options()) {
    if (uncertainty::is_capacity_choice(option.name)) continue;
    text += fmt::format("{}={}\n", option.name, plain_number(text_in(option.column())));
  }
  return text;
}

std::optional<std::string> all_but_capacity(const training::TrainingJob& job) {
  if (!job.routing || !job.routing->router.has_capacity()) return std::nullopt;
  const training::DrawnRouting& drawn = *job.routing;
  // What its row has of options of routing that are no choices.
  const std::map<std::string, std::string> of_routing = {
      {"padding", routing::name_of(drawn.router.padding)},
      {"top_k", fmt::format("{}", drawn.router.top_k)},
      {"capacity_scope", routing::name_of(drawn.router.capacity_scope)},
      {"expert_placement", drawn.placement_name}};
  return all_but_capacity([&](const std::string& column) {
    const auto routed = of_routing.find(column);
    if (routed != of_routing.end()) return routed->second;
    for (const job::JobOption& option : job::job_options()) {
      if (option.column() == column && option.in_rows_of(job)) {
        return report::text_of(option.value(job));
      }
    }
    return std::string();
  });
}

std::optional<int> layout_size(const std::string& text) {
  constexpr int most = 1 << 20;
  // pandas writes 64.0 where a cell of the column is empty.
  const std::optional<double> size = parse_number<double>(text);
  if (!size || !(*size >= 1 && *size <= most) || std::floor(*size) != *size) return std::nullopt;
  return static_cast<int>(*size);
}

std::optional<uncertainty::StepExchanges> step_exchanges(
    const std::function<std::optional<int>(const std::string& column)>& size_in,
    const cluster::Cluster& cluster) {
  const auto gpus = size_in("gpus");
  const auto tensor = size_in("tensor_parallel");
  const auto context = size_in("context_parallel");
  const auto pipeline = size_in("pipeline_parallel");
  const auto expert = size_in("expert_parallel");
  const auto expert_tensor = size_in("expert_tensor_parallel");
  const auto ranks_per_domain = size_in("ranks_per_domain");
  if (!gpus || !tensor || !context || !pipeline || !expert || !expert_tensor || !ranks_per_domain) {
    return std::nullopt;
  }
  // No group is larger than the cluster.
  const auto group = [&](int one, int other) {
    return static_cast<int>(std::min<std::int64_t>(std::int64_t{one} * other, *gpus));
  };
  return uncertainty::StepExchanges{.tensor = *tensor,
                                    .context = group(*tensor, *context),
                                    .experts = group(*expert, *expert_tensor),
                                    .gradients = std::max(1, *gpus / *pipeline),
                                    .ranks_per_domain = *ranks_per_domain,
                                    .are_measured = cluster::measured_between_domains(cluster)};
}

uncertainty::StepExchanges step_exchanges(const training::TrainingJob& job) {
  const parallel::ParallelLayout& layout = job.layout.sizes;
  return {.tensor = layout.tensor,
          .context = layout.tensor * layout.context,
          .experts = layout.expert * layout.expert_tensor,
          .gradients = training::stage_ranks(layout),
          .ranks_per_domain = job.placed_ranks(),
          .are_measured = cluster::measured_between_domains(*job.cluster)};
}

uncertainty::Band capacity_pair_band(const std::vector<double>& one,
                                     const std::vector<double>& other,
                                     const uncertainty::StepExchanges& exchanges) {
  const study::CapacityPairs published = study::published_capacity_pairs();
  uncertainty::Band band;
  band.held_out = static_cast<std::size_t>(published.pairs);
  band.levels = uncertainty::capacity_ratio_levels(one, other, published.scatter, exchanges);
  return band;
}

std::string capacity_pairs_text() {
  return fmt::format("{} published pairs that differ in router and capacity alone",
                     study::published_capacity_pairs().pairs);
}

}  // namespace moesim::tool
