#include "tests/support/count_distance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "sim/base/file.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/routing/counts/count_router.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/simulation/imbalance.hpp"
#include "sim/routing/simulation/layer_router.hpp"

namespace moesim::routing {

namespace {

constexpr double loss_bar = 0.2;  // percentage points
constexpr double rows_bar = 1.0;  // per cent of the busiest GPU's rows

std::string title(const RouterConfig& router) {
  std::string text = fmt::format("{} CF {} k {} {}", router.name(), router.capacity_factor.text(),
                                 name_of(router.priority), name_of(router.capacity_scope));
  if (router.fill_in) text += " " + name_of(router.fill_order);
  if (router.ir_duplicates == IrDuplicates::exclude) text += " exclude";
  return text;
}

constexpr const char* names[] = {
    "failed",   "partial",        "lost_mass",   "fill_failed",  "failed_attempted",
    "unrouted", "residual_loss",  "padded",      "duplicate_ir", "busiest GPU",
    "copies",   "busiest copies", "node copies", "busiest NIC"};
constexpr std::size_t metrics = std::size(names);
constexpr std::size_t losses = 9;  // the first ones; then rows, relative

// By `names`: shares, and rows of the busiest GPU.
using Figures = std::vector<double>;

// Tokens that GPUs need once: all, and the most of one; tokens that nodes need once: all, and the
// most that one GPU receives for its node, from the GPUs in its place in their nodes.
void add_copies(const RoutingJob& job, const TokenCopies& copies, Figures& figures) {
  const auto ranks = static_cast<std::size_t>(job.expert_parallel);
  const auto node = static_cast<std::size_t>(job.gpus_per_domain);
  const std::size_t nodes = static_cast<std::size_t>(group_nodes(job));
  std::vector<double> to_gpu(static_cast<std::size_t>(job.gpus)), to_gate(to_gpu.size());
  if (copies.to_gpu.empty()) {
    figures.insert(figures.end(), 4, 0.0);
    return;
  }
  for (std::size_t gpu = 0; gpu < to_gpu.size(); ++gpu) {
    const std::size_t first = gpu / ranks * ranks;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      to_gpu[first + rank] += copies.to_gpu[gpu * ranks + rank];
    }
    for (std::size_t at = 0; at < nodes; ++at) {
      to_gate[first + std::min(ranks - 1, at * node + gpu % node)] +=
          copies.to_node[gpu * nodes + at];
    }
  }
  for (const std::vector<double>& rows : {to_gpu, to_gate}) {
    figures.push_back(std::accumulate(rows.begin(), rows.end(), 0.0));
    figures.push_back(*std::max_element(rows.begin(), rows.end()));
  }
}

Figures figures_of(const RoutingJob& job, const LayerRouting& layer) {
  const TokenLoss& loss = layer.loss;
  const std::vector<std::int64_t> rows = computed_rows(job, layer);
  Figures figures{loss.failed,
                  loss.partial,
                  loss.lost_mass,
                  loss.fill_failed.value_or(0),
                  loss.failed_attempted.value_or(0),
                  loss.unrouted,
                  loss.residual_loss,
                  loss.padded,
                  loss.duplicate_ir.value_or(0),
                  static_cast<double>(*std::max_element(rows.begin(), rows.end()))};
  add_copies(job, layer.copies, figures);
  return figures;
}

bool has_metric(const RouterConfig& router, std::size_t metric) {
  const std::string name = names[metric];
  if (!router.drops) return name == "residual_loss" || metric >= losses;
  if (metric > losses) return false;
  if (name == "fill_failed" || name == "failed_attempted") return router.fill_in;
  return name != "duplicate_ir" || router.rectification != Rectification::none;
}

using JobFigures = std::vector<Figures>;  // [layer]

// Every layer is of a replica of its own: hashed tokens keep their ids through a replica's layers.
template <typename Router>
std::vector<JobFigures> route_all(const std::vector<RoutingJob>& jobs, int layers) {
  std::vector<JobFigures> figures(jobs.size());
  Router router;
  std::vector<LayerRouting> routed(jobs.size());
  for (int layer = 0; layer < layers; ++layer) {
    router.route(jobs, layer, layer, routed);
    for (std::size_t job = 0; job < jobs.size(); ++job) {
      figures[job].push_back(figures_of(jobs[job], routed[job]));
    }
  }
  return figures;
}

// False where the file is absent or of other routers or layers.
bool read_figures(const std::string& path, const std::vector<RoutingJob>& jobs, int layers,
                  std::vector<JobFigures>& figures) {
  if (!std::filesystem::exists(path)) return false;
  const CsvTable table = CsvTable::load(path);
  if (table.rows.size() != jobs.size() * static_cast<std::size_t>(layers)) return false;
  figures.assign(jobs.size(), {});
  std::size_t row = 0;
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    for (int layer = 0; layer < layers; ++layer, ++row) {
      const std::vector<std::string>& cells = table.rows[row];
      if (cells.size() != metrics + 1 || cells[0] != title(jobs[job].router)) return false;
      Figures& held = figures[job].emplace_back();
      for (std::size_t at = 1; at <= metrics; ++at) held.push_back(std::stod(cells[at]));
    }
  }
  return true;
}

void write_figures(const std::string& path, const std::vector<RoutingJob>& jobs,
                   const std::vector<JobFigures>& figures) {
  std::vector<std::string> cells{"router"};
  cells.insert(cells.end(), std::begin(names), std::end(names));
  std::string text = csv_line(cells);
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    for (const Figures& layer : figures[job]) {
      cells.assign(1, title(jobs[job].router));
      for (const double value : layer) cells.push_back(fmt::format("{}", value));
      text += csv_line(cells);
    }
  }
  write_file_atomically(path, text);
}

// At token level, which takes most of the time: kept in the folder, if there is one.
std::vector<JobFigures> token_figures(const DistanceShape& shape,
                                      const std::vector<RoutingJob>& jobs,
                                      const std::string& folder) {
  std::vector<JobFigures> figures;
  const std::string path = folder.empty() ? "" : folder + "/" + shape.name() + ".csv";
  if (!path.empty() && read_figures(path, jobs, shape.layers, figures)) return figures;
  figures = route_all<LayerRouter>(jobs, shape.layers);
  if (!path.empty()) write_figures(path, jobs, figures);
  return figures;
}

struct Mean {
  double sum = 0, squares = 0, count = 0;

  void add(double value) {
    sum += value;
    squares += value * value;
    count += 1;
  }
  double mean() const { return sum / count; }
  double error() const {
    const double variance = std::max(0.0, squares / count - mean() * mean());
    return std::sqrt(variance / std::max(1.0, count - 1));
  }
};

}  // namespace

std::string DistanceShape::name() const {
  return fmt::format("{}, E {}, S {}, {} GPUs, P {}", scores, experts, tokens, gpus,
                     expert_parallel);
}

std::vector<RouterConfig> distance_routers(int experts) {
  std::vector<RouterConfig> routers;
  const auto add = [&](const std::string& name, const char* factor, Priority priority,
                       CapacityScope scope, FillOrder order, IrDuplicates duplicates) {
    RouterConfig router = parse_router(name, 0);
    router.capacity_convention = CapacityConvention::library;
    router.capacity_factor = Decimal::parse(factor, "factor");
    router.priority = priority;
    router.capacity_scope = scope;
    router.fill_order = order;
    router.ir_duplicates = duplicates;
    routers.push_back(router);
  };
  using enum Priority;
  constexpr auto source = CapacityScope::source;
  constexpr auto group = CapacityScope::group;
  constexpr auto nominee = FillOrder::nominee_score;
  constexpr auto by_priority = FillOrder::priority;
  constexpr auto allow = IrDuplicates::allow;
  constexpr auto exclude = IrDuplicates::exclude;
  for (const int top_k : {1, 2, 4, 8}) {
    if (top_k >= experts) continue;
    const std::string top = fmt::format("top{}", top_k);
    for (const char* factor : {"0.5", "1", "1.25", "3"}) {
      add(top, factor, token_max, source, nominee, allow);
    }
    for (const Priority priority : {own_score, position, random}) {
      add(top, "1", priority, source, nominee, allow);
      add(top, "1", priority, group, nominee, allow);
    }
    add(top, "1", token_max, group, nominee, allow);
    add(top, "1", own_weight, source, nominee, allow);
    add(top + "+fr", "1", token_max, source, nominee, allow);
    add(top + "+fr", "1", token_max, source, by_priority, allow);
    add(top + "+fr", "1.25", own_score, source, nominee, allow);
    add(top + "+fr", "1", position, group, by_priority, allow);
    add(top + "+ir", "1", token_max, source, nominee, allow);
    add(top + "+ir", "1", position, source, nominee, exclude);
    add(top + "+ir", "1", position, group, nominee, allow);
    add(top + "+ir@node", "1", token_max, source, nominee, allow);
    add(top + "+fr+ir", "1", token_max, source, nominee, allow);
    add(top + "+fr+ir", "0.5", token_max, source, by_priority, allow);
    add(top + "+fr+ir@node", "1", token_max, group, nominee, exclude);
  }
  for (const char* name : {"random", "random:balanced", "hash:0.5", "hash:1"}) {
    for (const char* factor : {"0.5", "1", "1.25", "3"}) {
      add(name, factor, token_max, source, nominee, allow);
    }
    add(name, "1", token_max, group, nominee, allow);
    add(name, "1", random, group, nominee, allow);
  }
  return routers;
}

std::vector<RouterConfig> kept_routers(int experts) {
  std::vector<RouterConfig> routers;
  const auto add = [&](const std::string& name, int top_k) -> RouterConfig& {
    return routers.emplace_back(parse_router(name, top_k));
  };
  for (const int top_k : {1, 2, 8}) {
    if (top_k * 2 > experts) continue;
    add("dropless", top_k);
    add("group-limited:4:2", top_k).group_score = GroupScore::max;
    if (experts < 32) continue;
    add("group-limited:8:3", top_k).group_score = GroupScore::top2;
    add("group-limited:8:4", top_k).group_score = GroupScore::topk;
    add("bias-balanced:0.001:1000", top_k);
    add("bias-balanced:0.001:1000+groups:8:4", top_k);
    add("dropless", top_k).score_function = ScoreFunction::sigmoid;
  }
  return routers;
}

std::vector<Distance> count_distances(const DistanceShape& shape,
                                      const std::vector<RouterConfig>& routers,
                                      const std::string& folder) {
  std::vector<RoutingJob> jobs;
  for (const RouterConfig& router : routers) {
    RoutingJob job;
    job.router = router;
    job.scores = parse_score_source(shape.scores, "scores");
    job.experts = shape.experts;
    job.gpus = shape.gpus;
    job.expert_parallel = shape.expert_parallel;
    job.gpus_per_domain = 8;
    job.tokens_per_gpu = shape.tokens;
    job.layers = shape.layers;
    job.count_copies = !router.drops;
    if (counts_refusal(job).empty()) jobs.push_back(job);
  }
  const std::vector<JobFigures> exact = token_figures(shape, jobs, folder);
  const std::vector<JobFigures> fast = route_all<CountRouter>(jobs, shape.layers);
  std::vector<Distance> distances;
  for (std::size_t job = 0; job < jobs.size(); ++job) {
    Distance& distance = distances.emplace_back();
    distance.router = title(jobs[job].router);
    for (std::size_t at = 0; at < metrics; ++at) {
      if (!has_metric(jobs[job].router, at)) continue;
      const bool rows = at >= losses;
      Mean tokens, off;
      for (std::size_t layer = 0; layer < exact[job].size(); ++layer) {
        const double want = exact[job][layer][at];
        const double got = fast[job][layer][at];
        tokens.add(rows ? want : 100 * want);
        off.add(100 * (rows ? got / want - 1 : got - want));
      }
      distance.metrics.push_back(
          {names[at], tokens.mean(), off.mean(), off.error(), rows ? rows_bar : loss_bar});
    }
  }
  return distances;
}

std::vector<DistanceShape> quick_shapes() {
  return {{"gaussian:0.1", 8, 16, 8, 2048, 8},
          {"zipf:0.8", 64, 8, 8, 1024, 8},
          {"dirichlet:0.3", 16, 16, 8, 1024, 8}};
}

std::vector<DistanceShape> kept_shapes() {
  std::vector<DistanceShape> shapes;
  for (const char* scores : {"gaussian:0", "gaussian:0.1", "gaussian:1", "zipf:0.5",
                             "dirichlet:0.3", "ragged-source:3"}) {
    for (const int experts : {16, 64, 256}) {
      for (const std::int64_t tokens : {600, 4096}) {
        const std::int64_t logits = tokens * 16 * experts;
        const auto layers = static_cast<int>(std::clamp<std::int64_t>((1 << 28) / logits, 16, 64));
        shapes.push_back({scores, experts, 16, 16, tokens, layers});
      }
    }
  }
  return shapes;
}

std::vector<DistanceShape> all_shapes() {
  std::vector<DistanceShape> shapes;
  for (const char* scores :
       {"gaussian:0.1", "gaussian:1", "zipf:0.5", "zipf:1.2", "dirichlet:0.3", "dirichlet:2"}) {
    for (const int experts : {8, 32, 64, 256}) {
      for (const std::int64_t tokens : {1024, 4096, 16384}) {
        const std::int64_t logits = tokens * 16 * experts;
        const auto layers = static_cast<int>(std::clamp<std::int64_t>((1 << 29) / logits, 16, 96));
        shapes.push_back({scores, experts, 16, experts == 8 ? 8 : 16, tokens, layers});
      }
    }
  }
  return shapes;
}

}  // namespace moesim::routing
