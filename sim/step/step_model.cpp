#include "sim/step/step_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "sim/base/digest.hpp"
#include "sim/base/random.hpp"
#include "sim/base/statistics.hpp"

namespace moesim::step {
namespace {

constexpr double quantile_95 = 1.6448536269514722;  // of the standard normal

// Folded to the 24 bits a stream's rank has.
std::uint32_t stream_of(const std::string& label) {
  const std::uint32_t hash = fnv1a_32(label);
  return (hash >> 24 ^ hash) & 0xffffffu;
}

// The estimate `error` standard deviations off: below the median by its 5 % quantile, above by its
// 95 % quantile, log-normal on either side.
double with_error(const profile::Estimate& estimate, double error) {
  const double bound = error < 0 ? estimate.time_us_p05 : estimate.time_us_p95;
  if (error == 0 || bound <= 0 || estimate.time_us <= 0) return estimate.time_us;
  return estimate.time_us * std::pow(bound / estimate.time_us, std::abs(error) / quantile_95);
}

// Groups of one partition may lie differently on the nodes (expert groups of 6 on nodes of 8). All
// are taken to need as long as the slowest: over the most nodes, the fewest members on one of them.
std::vector<int> farthest_group(const engine::Partition& partition,
                                const cluster::Cluster& cluster) {
  const auto farther = [&](const std::vector<int>& first, const std::vector<int>& second) {
    const network::Span a = network::span_of(first, cluster);
    const network::Span b = network::span_of(second, cluster);
    return a.domains != b.domains ? a.domains > b.domains : a.smallest_share < b.smallest_share;
  };
  const std::vector<int>* chosen = &partition.groups.front();
  for (const std::vector<int>& group : partition.groups) {
    if (farther(group, *chosen)) chosen = &group;
  }
  return *chosen;
}

}  // namespace

StepModel::StepModel(const scenario::Scenario& scenario, const Calibration& calibration)
    : scenario_(scenario), calibration_(calibration), pricer_(scenario_) {
  for (std::size_t kind = 0; kind < kernel_class_count; ++kind) {
    calibration_.multiplier[kind] *=
        scenario_.profile->software_multiplier(name_of(static_cast<KernelClass>(kind)));
  }
  program_.ranks = scenario_.gpus;
  program_.partitions = {
      engine::blocks(scenario_.gpus, scenario_.expert_parallel),
      engine::strided(scenario_.gpus, scenario_.expert_parallel),
      engine::blocks(scenario_.gpus, scenario_.gpus),
      // Rows of ir@node stay in their expert group and in the NVLink domain.
      engine::blocks(scenario_.gpus,
                     std::gcd(scenario_.expert_parallel, scenario_.cluster->gpus_per_domain))};
  for (const engine::Partition& partition : program_.partitions) {
    priced_groups_.push_back(farthest_group(partition, *scenario_.cluster));
  }
  expert_group_ = 0;
  replica_group_ = 1;
  world_ = 2;
  domain_ = 3;
  find_loads();
  build();
}

void StepModel::find_loads() {
  load_tokens_ = {scenario_.tokens_per_gpu};
  if (!scenario_.is_ragged()) return;
  for (int gpu = 0; gpu < scenario_.gpus; ++gpu) {
    const std::int64_t tokens = scenario_.tokens_of(gpu);
    const auto found = std::find(load_tokens_.begin(), load_tokens_.end(), tokens);
    load_of_.push_back(static_cast<Load>(found - load_tokens_.begin()));
    if (found == load_tokens_.end()) load_tokens_.push_back(tokens);
  }
  for (std::size_t load = 1; load < load_tokens_.size(); ++load) {
    smaller_.emplace_back(scenario_, load_tokens_[load]);
  }
}

Recipe StepModel::intern(const Kernels& kernels) {
  Recipe recipe;
  for (const Kernel& kernel : kernels) {
    const auto [found, added] =
        label_of_.try_emplace(kernel.label, static_cast<int>(errors_.size()));
    if (added) errors_.push_back(draw_errors(kernel.label));
    recipe.push_back(
        {found->second, kernel.kernel_class, kernel.estimate, kernel.count, kernel.latency_us});
  }
  return recipe;
}

StepModel::Spec StepModel::fixed(const Kernels& kernels) {
  Spec spec;
  spec.recipe = intern(kernels);
  return spec;
}

int StepModel::add_compute(const std::string& name, Part part, int layer, const Spec& spec) {
  engine::Operation operation;
  operation.name = name;
  operation.category = static_cast<int>(part);
  operation.layer = layer;
  operation.after = pending_;
  pending_.clear();
  specs_.push_back(spec);
  last_compute_ = program_.add(std::move(operation));
  return last_compute_;
}

int StepModel::add_exchange(const std::string& name, Part part, int layer, int partition,
                            const Spec& spec) {
  engine::Operation operation;
  operation.name = name;
  operation.stream = engine::StreamKind::communication;
  operation.category = static_cast<int>(part);
  operation.layer = layer;
  operation.groups = partition;
  if (last_compute_ >= 0) operation.after = {last_compute_};
  specs_.push_back(spec);
  pending_.push_back(program_.add(std::move(operation)));
  return pending_.back();
}

Picoseconds StepModel::price(const Recipe& recipe, int replica) const {
  double microseconds = 0;
  for (const PricedKernel& kernel : recipe) {
    const double error =
        replica == no_errors
            ? 0
            : errors_[static_cast<std::size_t>(kernel.label)][static_cast<std::size_t>(replica)];
    microseconds +=
        kernel.count * calibration_.of(kernel.kernel_class) * with_error(kernel.estimate, error);
  }
  // Calls with appended rows less those without may come out below 0 where a curve dips.
  return Picoseconds::from_us(std::max(0.0, microseconds));
}

// What follows the combination of `rows` rows.
Kernels StepModel::ending(Kernels combination, Pass pass, std::int64_t rows, Load load) const {
  const auto append = [&](Kernels more) {
    for (Kernel& kernel : more) combination.push_back(std::move(kernel));
  };
  if (scenario_.router.kind == routing::RouterKind::base) {
    append(pricer_.gated_residual(pass, rows));
  }
  append(pricer_of(load).residual(pass));
  return combination;
}

Kernels StepModel::kernels(Role role, Pass pass, std::int64_t capacity, std::int64_t rows,
                           Load load) const {
  const KernelPricer& pricer = pricer_of(load);
  switch (role) {
    case Role::dispatch:
      return pricer.dispatch(pass, capacity);
    case Role::combine: {
      return ending(pricer.combine(pass, capacity), pass, scenario_.experts * capacity, load);
    }
    case Role::experts:
      return pricer.experts(pass, capacity, 0);
    case Role::rectify:
      return pricer.rectify(pass, rows);
    case Role::exchange: {
      if (capacity == 0) return {};
      return {pricer.exchange(profile::Collective::all_to_all, members(expert_group_),
                              pricer.dispatch_bytes(capacity), "all-to-all")};
    }
    case Role::probability_exchange: {
      if (capacity == 0) return {};
      const double share = probability_bytes / row_bytes();
      return {pricer.exchange(profile::Collective::all_to_all, members(expert_group_),
                              pricer.dispatch_bytes(capacity) * share,
                              "all-to-all of probabilities")};
    }
    case Role::node_exchange:
      if (rows == 0) return {};
      return {pricer.exchange(profile::Collective::all_to_all, members(domain_),
                              pricer.row_bytes(rows), "all-to-all of rectified rows")};
    case Role::grouped: {
      // The same calls with the IR rows appended, less the calls without them.
      if (rows == 0) return {};
      const std::int64_t local = scenario_.experts / scenario_.expert_parallel;
      Kernels with = pricer.experts(pass, capacity, (rows + local - 1) / local);
      for (Kernel kernel : pricer.experts(pass, capacity, 0)) {
        kernel.count = -kernel.count;
        with.push_back(std::move(kernel));
      }
      for (Kernel& kernel : pricer.rectify_moves(pass, rows)) with.push_back(std::move(kernel));
      return with;
    }
    case Role::dispatch_rows:
      return pricer.dispatch_rows(rows);
    case Role::combine_rows: {
      return ending(pricer.combine_rows(pass, rows), pass, rows, load);
    }
    case Role::expert_rows:
      return pricer.expert_rows(pass, rows);
    case Role::fixed:
      break;
  }
  return {};
}

const Recipe& StepModel::recipe(Role role, Pass pass, std::int64_t capacity, std::int64_t rows,
                                Load load) {
  Table& table = tables_[{role, pass}];
  const bool by_rows_alone = role == Role::rectify || role == Role::node_exchange;
  const Key key{by_rows_alone ? 0 : capacity, rows, load};
  const auto found = table.find(key);
  if (found != table.end()) return found->second;
  return table.emplace(key, intern(kernels(role, pass, capacity, rows, load))).first->second;
}

// C, rows per source GPU and expert. In a layer without exchange a GPU's own experts have all the
// slots that it would fill on those of its group.
std::int64_t StepModel::block_rows(const routing::LayerRouting& layer, Load load) const {
  if (layer.exchanged) return layer.exchanged_capacity;
  const std::int64_t sources = scenario_.expert_parallel;
  const int own = scenario_.experts / scenario_.expert_parallel;
  const std::int64_t slots =
      load == 0 ? layer.exchanged_capacity : scenario_.router.own_capacity(load_tokens_[load], own);
  return (slots + sources - 1) / sources;
}

void StepModel::price_rows(const Spec& spec, const routing::LayerRouting& layer, int replica,
                           std::vector<Picoseconds>& per_rank) {
  std::map<std::pair<Load, std::int64_t>, Picoseconds> priced;
  per_rank.reserve(layer.ir_rows.size());
  for (std::size_t gpu = 0; gpu < layer.ir_rows.size(); ++gpu) {
    const std::int64_t rows = layer.ir_rows[gpu];
    const Load load = load_of(static_cast<int>(gpu));
    const auto [found, added] = priced.try_emplace({load, rows});
    if (added) {
      const std::int64_t capacity = block_rows(layer, load);
      found->second = price(recipe(spec.role, spec.pass, capacity, rows, load), replica);
    }
    per_rank.push_back(found->second);
  }
}

// Whether an operation takes longer on GPUs with more tokens, whatever rows are routed.
bool StepModel::goes_by_tokens(const Spec& spec) const {
  if (load_of_.empty()) return false;
  return !spec.smaller.empty() || spec.role == Role::dispatch || spec.role == Role::combine ||
         spec.role == Role::experts;  // of those in layers without exchange
}

void StepModel::price_tokens(std::size_t operation, const routing::ReplicaRouting* routing,
                             int replica, engine::Durations& durations) {
  std::vector<Picoseconds> prices;
  for (Load load = 0; load < load_tokens_.size(); ++load) {
    prices.push_back(price(recipe_of(specs_[operation], routing, load), replica));
  }
  if (std::all_of(prices.begin(), prices.end(), [&](Picoseconds p) { return p == prices[0]; })) {
    durations.uniform[operation] = prices[0];
    return;
  }
  std::vector<Picoseconds>& per_rank = durations.per_rank[operation];
  per_rank.reserve(load_of_.size());
  for (const Load load : load_of_) per_rank.push_back(prices[load]);
}

// The recipe of an operation that takes equally long on all ranks of one load.
const Recipe& StepModel::recipe_of(const Spec& spec, const routing::ReplicaRouting* routing,
                                   Load load) {
  if (spec.role == Role::fixed && !spec.announces) {
    return load == 0 || spec.smaller.empty() ? spec.recipe : spec.smaller[load - 1];
  }
  assert(routing != nullptr);
  const routing::LayerRouting& layer = routing->layers[static_cast<std::size_t>(spec.moe_layer)];
  static const Recipe nothing;
  if ((spec.role == Role::exchange || spec.announces) && !layer.exchanged) return nothing;
  if (spec.role == Role::fixed) return spec.recipe;
  if (spec.role == Role::node_exchange) {
    // The busiest GPU sets the time of its domain; that of all domains is taken for each.
    const std::int64_t rows = *std::max_element(layer.ir_rows.begin(), layer.ir_rows.end());
    return recipe(spec.role, spec.pass, 0, rows);
  }
  const Role role = spec.probabilities ? Role::probability_exchange : spec.role;
  return recipe(role, spec.pass, block_rows(layer, load), 0, load);
}

std::vector<double> StepModel::latency_shares(const routing::ReplicaRouting* routing) {
  std::vector<double> shares(specs_.size());
  if (scenario_.conditions.slow_links.empty()) return shares;
  for (std::size_t op = 0; op < specs_.size(); ++op) {
    if (program_.operations[op].groups < 0) continue;
    double time_us = 0;
    double latency_us = 0;
    for (const PricedKernel& kernel : recipe_of(specs_[op], routing)) {
      time_us += kernel.count * kernel.estimate.time_us;
      latency_us += kernel.count * kernel.latency_us;
    }
    if (time_us > 0) shares[op] = latency_us / time_us;
  }
  return shares;
}

double StepModel::row_bytes(int operation) const {
  return specs_[static_cast<std::size_t>(operation)].probabilities ? probability_bytes
                                                                   : row_bytes();
}

double StepModel::exchange_error(int replica) {
  const std::int64_t routes = scenario_.tokens_per_gpu * scenario_.router.top_k;
  const std::int64_t even = std::max<std::int64_t>(1, routes / scenario_.experts);
  const Recipe& exchange = recipe(Role::exchange, Pass::forward, even, 0);
  if (replica == no_errors) return 1;
  return price(exchange, replica).us() / price(exchange, no_errors).us();
}

// The collectives in which nothing would be sent; empty where there is none.
std::vector<bool> StepModel::skipped(const routing::ReplicaRouting& routing) const {
  const auto is_skipped = [&](const Spec& spec) {
    if (spec.moe_layer < 0) return false;
    const routing::LayerRouting& layer = routing.layers[static_cast<std::size_t>(spec.moe_layer)];
    if (spec.role == Role::exchange || spec.announces) return !layer.exchanged;
    return spec.role == Role::node_exchange &&
           *std::max_element(layer.ir_rows.begin(), layer.ir_rows.end()) == 0;
  };
  std::vector<bool> marks;
  for (std::size_t op = 0; op < specs_.size(); ++op) {
    if (program_.operations[op].groups < 0 || !is_skipped(specs_[op])) continue;
    marks.resize(specs_.size());
    marks[op] = true;
  }
  return marks;
}

engine::Durations StepModel::durations(const routing::ReplicaRouting* routing, int replica) {
  if (routing != nullptr && !scenario_.router.pads_exchange()) {
    return ragged_durations(*routing, replica);
  }
  engine::Durations durations;
  durations.uniform.resize(specs_.size());
  durations.per_rank.resize(specs_.size());
  if (routing != nullptr) durations.skipped = skipped(*routing);
  for (std::size_t op = 0; op < specs_.size(); ++op) {
    const Spec& spec = specs_[op];
    if (spec.role == Role::rectify || spec.role == Role::grouped) {
      assert(routing != nullptr);
      price_rows(spec, routing->layers[static_cast<std::size_t>(spec.moe_layer)], replica,
                 durations.per_rank[op]);
    } else if (goes_by_tokens(spec)) {
      price_tokens(op, routing, replica, durations);
    } else {
      durations.uniform[op] = price(recipe_of(spec, routing), replica);
    }
  }
  return durations;
}

std::vector<double> StepModel::draw_errors(const std::string& label) const {
  // Replicas in the order of their random keys take the strata of the normal distribution.
  const int replicas = scenario_.replicas;
  std::vector<std::pair<PhiloxBlock, std::size_t>> keys;
  for (int replica = 0; replica < replicas; ++replica) {
    const StreamKey key{scenario_.seed, Purpose::curve_residual,
                        static_cast<std::uint32_t>(replica), 0, stream_of(label)};
    keys.emplace_back(philox_block(key, 0), static_cast<std::size_t>(replica));
  }
  std::sort(keys.begin(), keys.end());
  std::vector<double> errors(keys.size());
  for (std::size_t stratum = 0; stratum < keys.size(); ++stratum) {
    errors[keys[stratum].second] = normal_quantile((static_cast<double>(stratum) + 0.5) / replicas);
  }
  return errors;
}

std::string StepModel::assumptions() const {
  const routing::RouterConfig& router = scenario_.router;
  if (!scenario_.has_moe()) return "";
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  const bool ragged = scenario_.is_ragged();
  const bool counts = std::any_of(
      program_.operations.begin(), program_.operations.end(),
      [](const engine::Operation& operation) { return operation.name == "counts_to_host"; });
  if (ragged) add("GPUs with fewer tokens hold fewer sequences, as long");
  if (ragged && router.pads_exchange()) {
    add("blocks padded to the group's largest after an all-reduce");
  }
  if (counts) {
    add(fmt::format("{:g} us for the host to read counts", host_read_us));
  }
  if (scenario_.dedup == scenario::Deduplication::node &&
      scenario_.expert_parallel > scenario_.cluster->gpus_per_domain) {
    add("tokens forwarded inside a node without delay");
  }
  if (router.kind == routing::RouterKind::base && !router.greedy) {
    add("assignment by fairseq's auction, 13 rounds");
  }
  if (router.kind == routing::RouterKind::expert_choice) add("column top-k by radix passes");
  if (router.kind == routing::RouterKind::soft) add("unfused softmaxes over slots and tokens");
  return text;
}

std::string StepModel::provenance() const {
  // The weakest origin and support per kind of kernel, in the order of KernelClass.
  std::vector<profile::Estimate> weakest(kernel_class_count);
  std::vector<bool> seen(kernel_class_count);
  const auto look_at = [&](const Recipe& recipe) {
    for (const PricedKernel& kernel : recipe) {
      const auto kind = static_cast<std::size_t>(kernel.kernel_class);
      profile::Estimate& worst = weakest[kind];
      worst.origin =
          seen[kind] ? std::max(worst.origin, kernel.estimate.origin) : kernel.estimate.origin;
      worst.support =
          seen[kind] ? std::max(worst.support, kernel.estimate.support) : kernel.estimate.support;
      seen[kind] = true;
    }
  };
  for (const Spec& spec : specs_) {
    look_at(spec.recipe);
    for (const Recipe& recipe : spec.smaller) look_at(recipe);
  }
  for (const auto& [role, table] : tables_) {
    for (const auto& [key, recipe] : table) look_at(recipe);
  }
  std::string text;
  for (std::size_t kind = 0; kind < kernel_class_count; ++kind) {
    if (!seen[kind]) continue;
    if (!text.empty()) text += "; ";
    text += std::string(name_of(static_cast<KernelClass>(kind))) + " " + describe(weakest[kind]);
    if (calibration_.multiplier[kind] != 1) text += ", calibrated";
  }
  const std::string assumed = assumptions();
  return assumed.empty() ? text : text + "; assumed: " + assumed;
}

}  // namespace moesim::step
