#include "sim/routing/decision.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace moesim::routing {

namespace {

constexpr std::size_t sum_lanes = tile_tokens;

// Sums in a fixed order, whatever the instruction set: lane = token of the rank modulo 16.
struct LaneSum {
  double lane[sum_lanes] = {};
  void add(std::size_t token, float value) { lane[token % sum_lanes] += value; }
  double total() const {
    double sum = 0;
    for (const double value : lane) sum += value;
    return sum;
  }
};

double share(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

}  // namespace

LossSums& LossSums::operator+=(const LossSums& other) {
  tokens += other.tokens;
  primary_routes += other.primary_routes;
  primary_kept += other.primary_kept;
  nominations += other.nominations;
  filled += other.filled;
  partial += other.partial;
  unrouted += other.unrouted;
  slots += other.slots;
  ir_rows += other.ir_rows;
  duplicate_ir += other.duplicate_ir;
  top_mass += other.top_mass;
  lost_mass += other.lost_mass;
  residual += other.residual;
  return *this;
}

TokenLoss LossSums::loss(const RouterConfig& config) const {
  const auto count = [](std::int64_t value) { return static_cast<double>(value); };
  TokenLoss loss;
  loss.failed = share(count(primary_routes - primary_kept), count(primary_routes));
  loss.partial = share(count(partial), count(tokens));
  loss.lost_mass = share(lost_mass, top_mass);
  if (config.fill_in) {
    loss.fill_failed = share(count(nominations - filled), count(nominations));
    loss.failed_attempted = share(count(primary_routes + nominations - primary_kept - filled),
                                  count(primary_routes + nominations));
  }
  loss.unrouted = share(count(unrouted), count(tokens));
  loss.residual_loss = share(residual, count(tokens));
  loss.padded = share(count(slots - primary_kept - filled), count(slots));
  if (config.rectification != Rectification::none) {
    loss.duplicate_ir = share(count(duplicate_ir), count(tokens));
  }
  return loss;
}

LocalExperts local_experts(const RouterConfig& config, int experts, int ranks, int rank,
                           const GroupPlace& place) {
  if (config.rectification == Rectification::none) return {};
  const int per_rank = experts / ranks;
  int first = rank;
  int last = rank + 1;
  if (config.rectification == Rectification::node) {
    if (place.gpus_per_domain <= 0) {
      first = 0;
      last = ranks;
    } else {
      const int domain = (place.first_gpu + rank) / place.gpus_per_domain;
      first = std::max(0, domain * place.gpus_per_domain - place.first_gpu);
      last = std::min(ranks, (domain + 1) * place.gpus_per_domain - place.first_gpu);
    }
  }
  LocalExperts local{first * per_rank, last * per_rank, 1};
  if (config.ir_duplicates == IrDuplicates::exclude) {
    local.wanted = std::min(local.last - local.first, config.top_k);  // at most k - 1 are taken
  }
  return local;
}

void Decision::decide(const RouterConfig& config, const ChoiceTable& table, int local_set,
                      RouteOrders& orders, std::span<const std::int64_t> capacity,
                      bool want_tokens) {
  local_set_ = local_set;
  const auto ranks = static_cast<std::size_t>(table.ranks());
  const auto experts = static_cast<std::size_t>(table.experts());
  sums_ = {};
  kept_rows_.assign(ranks * experts, 0);
  ir_rows_.assign(ranks, 0);
  kept_.clear();
  ir_place_.clear();
  if (want_tokens) {
    kept_.assign(static_cast<std::size_t>(table.tokens()), 0);
    ir_place_.assign(static_cast<std::size_t>(table.tokens()), -1);
  }
  set_limits(config, table, orders, capacity);
  const bool by_source = config.capacity_scope == CapacityScope::source;
  for (int rank = 0; rank < table.ranks(); ++rank) {
    visit_tokens(config, table, rank, by_source ? rank : 0, want_tokens);
  }
  count_rows(config, table, orders);
  exchanged_capacity_ =
      by_source ? *std::max_element(capacity.begin(), capacity.end())
                : std::int64_t{*std::max_element(kept_rows_.begin(), kept_rows_.end())};
  sums_.tokens = table.tokens();
  sums_.primary_routes = table.tokens() * config.top_k;
  if (config.fill_in) sums_.nominations = table.tokens();
  for (const std::int64_t slots : capacity) sums_.slots += slots * table.experts();
}

void Decision::set_limits(const RouterConfig& config, const ChoiceTable& table,
                          RouteOrders& orders, std::span<const std::int64_t> capacity) {
  const CapacityScope scope = config.capacity_scope;
  const auto experts = static_cast<std::size_t>(table.experts());
  const auto domains = static_cast<std::size_t>(orders.domains(scope));
  const bool own = config.priority == Priority::own_score;
  queues_.clear();
  for (int choice = 0; choice < config.top_k; ++choice) {
    queues_.push_back(own ? &orders.by_own_score(scope, config.top_k, choice)
                          : &orders.by_priority(scope, config.priority, choice));
  }
  if (config.fill_in) {
    const bool by_nominee = own || config.fill_order == FillOrder::nominee_score;
    queues_.push_back(by_nominee ? &orders.by_nominee(scope, config.top_k)
                                 : &orders.by_priority(scope, config.priority, config.top_k));
  }
  limits_.assign(queues_.size() * domains * experts, 0);
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  for (std::size_t domain = 0; domain < domains; ++domain) {
    std::int64_t slots = 0;
    if (scope == CapacityScope::source) {
      slots = capacity[domain];
    } else {
      for (const std::int64_t source : capacity) slots += std::min(source, most);
    }
    for (std::size_t expert = 0; expert < experts; ++expert) {
      std::int64_t left = std::min(slots, most);
      std::int64_t primary_kept = 0;
      for (std::size_t choice = 0; choice < queues_.size(); ++choice) {
        const bool fill = choice == static_cast<std::size_t>(config.top_k);
        const std::int64_t waiting = queues_[choice]->length[domain * experts + expert];
        limits_[(choice * domains + domain) * experts + expert] = static_cast<std::int32_t>(left);
        // Under own_score all primary choices stand in one queue, so they have one limit and are
        // taken off together, after the last of them.
        const bool settled = !own || fill || choice + 1 == static_cast<std::size_t>(config.top_k);
        if (!settled) continue;
        const std::int64_t kept = std::min(left, waiting);
        left -= kept;
        if (fill) {
          sums_.filled += kept;
        } else {
          primary_kept += kept;
        }
      }
      sums_.primary_kept += primary_kept;
    }
  }
}

void Decision::visit_tokens(const RouterConfig& config, const ChoiceTable& table, int rank,
                            int domain, bool want_tokens) {
  const auto experts = static_cast<std::size_t>(table.experts());
  const std::size_t choices = queues_.size();
  const auto top_k = static_cast<std::size_t>(config.top_k);
  const std::size_t domains = limits_.size() / (choices * experts);
  const std::uint64_t primary_mask = (std::uint64_t{1} << top_k) - 1;
  const bool rectified = config.rectification != Rectification::none;
  const auto begin = static_cast<std::size_t>(table.rank_begin(rank));
  const auto end = static_cast<std::size_t>(table.rank_begin(rank + 1));
  LaneSum top_mass, lost_mass, residual;
  for (std::size_t token = begin; token < end; ++token) {
    std::uint64_t kept = 0;
    float top = 0, lost = 0, processed = 0;
    for (std::size_t choice = 0; choice < choices; ++choice) {
      const std::uint16_t expert = table.expert(static_cast<int>(choice))[token];
      const float probability = table.probability(static_cast<int>(choice))[token];
      const std::size_t limit =
          (choice * domains + static_cast<std::size_t>(domain)) * experts + expert;
      const bool keep = queues_[choice]->place[token] < limits_[limit];
      kept |= std::uint64_t{keep} << choice;
      processed += keep ? probability : 0.0F;
      if (choice >= top_k) continue;
      top += probability;
      lost += keep ? 0.0F : probability;
    }
    if ((kept & primary_mask) != primary_mask) ++sums_.partial;
    if (want_tokens) kept_[token] = kept;
    const auto rows_before = sums_.ir_rows;
    if (rectified && static_cast<std::size_t>(std::popcount(kept)) < top_k) {
      rectify(config, table, token, rank, kept, processed);
    }
    if (kept == 0 && sums_.ir_rows == rows_before) ++sums_.unrouted;
    top_mass.add(token - begin, top);
    lost_mass.add(token - begin, lost);
    const float missing = 1.0F - processed / top;
    residual.add(token - begin, missing > 0.0F ? missing : 0.0F);
  }
  sums_.top_mass += top_mass.total();
  sums_.lost_mass += lost_mass.total();
  sums_.residual += residual.total();
}

void Decision::rectify(const RouterConfig& config, const ChoiceTable& table, std::size_t token,
                       int rank, std::uint64_t kept, float& processed) {
  const bool exclude = config.ir_duplicates == IrDuplicates::exclude;
  const auto has_token = [&](std::uint16_t expert) {
    for (std::size_t choice = 0; choice < queues_.size(); ++choice) {
      const bool keep = (kept >> choice & 1) != 0;
      if (keep && table.expert(static_cast<int>(choice))[token] == expert) return true;
    }
    return false;
  };
  for (int place = 0; place < table.local_places(local_set_, rank); ++place) {
    const std::uint16_t expert = table.local_expert(local_set_, place)[token];
    const bool duplicate = has_token(expert);
    if (duplicate && exclude) continue;
    ++sums_.ir_rows;
    const int per_rank = table.experts() / table.ranks();
    ++ir_rows_[static_cast<std::size_t>(expert / per_rank)];
    if (duplicate) {
      ++sums_.duplicate_ir;
    } else {
      processed += table.local_probability(local_set_, place)[token];
    }
    if (!ir_place_.empty()) ir_place_[token] = static_cast<std::int8_t>(place);
    return;
  }
}

void Decision::count_rows(const RouterConfig& config, const ChoiceTable& table,
                          RouteOrders& orders) {
  const auto experts = static_cast<std::size_t>(table.experts());
  const std::size_t domains = limits_.size() / (queues_.size() * experts);
  if (config.capacity_scope == CapacityScope::source) {
    // Queue lengths and limits say it all.
    const bool own = config.priority == Priority::own_score;
    for (std::size_t choice = 0; choice < queues_.size(); ++choice) {
      if (own && choice > 0 && choice < static_cast<std::size_t>(config.top_k)) continue;
      for (std::size_t at = 0; at < domains * experts; ++at) {
        kept_rows_[at] += std::min(queues_[choice]->length[at],
                                   limits_[choice * domains * experts + at]);
      }
    }
    return;
  }
  for (std::size_t choice = 0; choice < queues_.size(); ++choice) {
    const std::uint16_t* expert = table.expert(static_cast<int>(choice));
    const std::int32_t* limit = limits_.data() + choice * experts;
    for (int rank = 0; rank < orders.domains(CapacityScope::source); ++rank) {
      std::int32_t* rows = kept_rows_.data() + static_cast<std::size_t>(rank) * experts;
      const auto end = static_cast<std::size_t>(table.rank_begin(rank + 1));
      for (auto token = static_cast<std::size_t>(table.rank_begin(rank)); token < end; ++token) {
        rows[expert[token]] += queues_[choice]->place[token] < limit[expert[token]] ? 1 : 0;
      }
    }
  }
}

}  // namespace moesim::routing
