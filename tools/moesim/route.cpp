#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "sim/report/summary.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/prefetch.hpp"

namespace moesim::tool {
namespace {

using routing::ReplicaRouting;
using Replicas = std::vector<std::shared_ptr<const ReplicaRouting>>;

void add(std::optional<double>& sum, const std::optional<double>& value) {
  if (value) sum = sum.value_or(0) + *value;
}

template <class Change>
void each_figure(routing::TokenLoss& loss, Change change) {
  for (double* figure : {&loss.failed, &loss.partial, &loss.lost_mass, &loss.unrouted,
                         &loss.residual_loss, &loss.padded}) {
    change(*figure);
  }
  for (std::optional<double>* figure : {&loss.fill_failed, &loss.failed_attempted,
                                        &loss.duplicate_ir}) {
    if (*figure) change(**figure);
  }
}

routing::TokenLoss mean_loss(const Replicas& replicas) {
  routing::TokenLoss sum;
  for (const auto& replica : replicas) {
    const routing::TokenLoss& loss = replica->loss;
    sum.failed += loss.failed;
    sum.partial += loss.partial;
    sum.lost_mass += loss.lost_mass;
    sum.unrouted += loss.unrouted;
    sum.residual_loss += loss.residual_loss;
    sum.padded += loss.padded;
    add(sum.fill_failed, loss.fill_failed);
    add(sum.failed_attempted, loss.failed_attempted);
    add(sum.duplicate_ir, loss.duplicate_ir);
  }
  each_figure(sum, [&](double& figure) { figure /= static_cast<double>(replicas.size()); });
  return sum;
}

struct IrRows {
  double mean = 0;    // per GPU and layer
  double spread = 0;  // standard deviation over GPUs / mean, averaged over layers with IR rows
};

IrRows ir_rows(const Replicas& replicas) {
  IrRows result;
  double layers = 0;
  double with_rows = 0;
  for (const auto& replica : replicas) {
    for (const routing::LayerRouting& layer : replica->layers) {
      double sum = 0;
      double squares = 0;
      for (const std::int32_t rows : layer.ir_rows) {
        sum += rows;
        squares += static_cast<double>(rows) * rows;
      }
      const double gpus = static_cast<double>(std::max<std::size_t>(1, layer.ir_rows.size()));
      const double mean = sum / gpus;
      result.mean += mean;
      layers += 1;
      if (mean == 0) continue;
      with_rows += 1;
      result.spread += std::sqrt(std::max(0.0, squares / gpus - mean * mean)) / mean;
    }
  }
  if (layers > 0) result.mean /= layers;
  if (with_rows > 0) result.spread /= with_rows;
  return result;
}

nlohmann::ordered_json detail(const Replicas& replicas) {
  const auto number = [](double value) {
    return nlohmann::ordered_json::parse(report::figure(value));
  };
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (std::size_t layer = 0; layer < replicas[0]->layers.size(); ++layer) {
    double failed = 0;
    for (const auto& replica : replicas) failed += replica->layers[layer].loss.failed;
    layers.push_back(number(failed / static_cast<double>(replicas.size())));
  }
  const IrRows rows = ir_rows(replicas);
  return {{"layer_failed", layers},
          {"ir_rows_mean", number(rows.mean)},
          {"ir_rows_spread", number(rows.spread)}};
}

Replicas route_all(const step::Scenario& scenario, int jobs) {
  const routing::RoutingJob job = scenario.routing_job();
  routing::check(job);
  // Every replica is kept below, so the cache must not drop one before it is read.
  routing::RoutingCache cache(std::size_t{4} << 30);
  prefetch_routing(job, scenario.replicas, jobs, cache);
  Replicas replicas;
  for (int replica = 0; replica < scenario.replicas; ++replica) {
    replicas.push_back(cache.get(job, replica));
  }
  return replicas;
}

ExitCode run(const CommandLine& line) {
  const report::Format format = chosen_format(line, report::Format::table);
  const int jobs = chosen_jobs(line);
  study::DocumentCache documents;
  const step::Scenario scenario =
      study::resolve(line.scenario(), documents, study::Use::routing);
  if (!scenario.has_moe()) {
    throw UsageError(fmt::format("--router: {} routes nothing: choose top1, top2, ... and a model "
                                 "with experts",
                                 scenario.router.name()));
  }
  const Output out(line.get("out"));
  const Replicas replicas = route_all(scenario, jobs);

  report::Cells cells = report::option_cells(scenario);
  cells["status"] = "ok";
  cells["capacity"] = fmt::format("{}", replicas[0]->layers.at(0).capacity);
  const report::Cells losses = report::loss_cells(mean_loss(replicas));
  cells.insert(losses.begin(), losses.end());
  const std::vector<report::Column>& columns = report::route_columns();
  const std::vector<std::string> row = report::row_of(cells, columns);
  if (format == report::Format::table) {
    cells["layers"] = fmt::format("{}", replicas[0]->layers.size());
    out.write(report::route_summary(cells));
  } else if (format == report::Format::csv) {
    out.write(report::to_csv(columns, {row}));
  } else {
    nlohmann::ordered_json object = report::to_json(columns, row);
    object["detail"] = detail(replicas);
    out.write(object.dump(2) + "\n");
  }
  return ExitCode::ok;
}

}  // namespace

Command route_command() {
  return {"route",
          "run a router alone: token loss, or logits .npy in -> routes .npy out",
          "[options]",
          "moesim route --router top2+fr+ir --capacity-factor 1 --replicas 4",
          {format_flag(), out_flag(), jobs_flag()},
          true,
          0,
          run};
}

}  // namespace moesim::tool
