#include "sim/routing/tokens/decision.hpp"

#include <algorithm>
#include <functional>
#include <limits>

namespace moesim::routing {

namespace {

constexpr std::int64_t most_slots = std::numeric_limits<std::int32_t>::max();

double share(double part, double whole) { return whole > 0 ? part / whole : 0.0; }

bool excludes(const RouterConfig& config) {
  return config.rectification != Rectification::none &&
         config.ir_duplicates == IrDuplicates::exclude;
}

}  // namespace

LossSums& LossSums::operator+=(const LossSums& other) {
  tokens += other.tokens;
  primary_routes += other.primary_routes;
  primary_kept += other.primary_kept;
  nominations += other.nominations;
  filled += other.filled;
  slots += other.slots;
  others += other.others;
  not_chosen += other.not_chosen;
  totals.top_mass += other.totals.top_mass;
  totals.lost_mass += other.totals.lost_mass;
  totals.residual += other.totals.residual;
  totals.partial += other.totals.partial;
  totals.unrouted += other.totals.unrouted;
  totals.ir_rows += other.totals.ir_rows;
  totals.duplicate_ir += other.totals.duplicate_ir;
  return *this;
}

TokenLoss LossSums::loss(const RouterConfig& config) const {
  const auto count = [](std::int64_t value) { return static_cast<double>(value); };
  TokenLoss loss;
  loss.failed = share(count(primary_routes - primary_kept), count(primary_routes));
  loss.partial = share(count(totals.partial), count(tokens));
  loss.lost_mass = share(totals.lost_mass, totals.top_mass);
  if (config.fill_in) {
    loss.fill_failed = share(count(nominations - filled), count(nominations));
    loss.failed_attempted = share(count(primary_routes + nominations - primary_kept - filled),
                                  count(primary_routes + nominations));
  }
  loss.unrouted = share(count(totals.unrouted), count(tokens));
  loss.residual_loss = share(totals.residual, count(tokens));
  loss.not_chosen = share(not_chosen, count(tokens));
  loss.padded = share(count(slots - primary_kept - filled - others), count(slots));
  if (config.rectification != Rectification::none) {
    loss.duplicate_ir = share(count(totals.duplicate_ir), count(tokens));
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
    first = 0;
    last = ranks;
    if (place.gpus_per_domain > 0) {
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

void find_untaken_locals(const LocalSearch& search, std::vector<std::uint16_t>& expert,
                         std::vector<float>& probability) {
  const ChoiceTable& table = search.table;
  const auto tokens = static_cast<std::size_t>(table.tokens());
  const auto choices = static_cast<std::size_t>(search.config.choices());
  expert.assign(tokens + tile_tokens, no_expert);
  probability.assign(tokens + tile_tokens, 0.0F);
  const auto is_kept = [&](std::size_t choice, std::size_t token) {
    return search.keep[choice * search.keep_stride + token] != 0;
  };
  for (int rank = 0; rank < table.ranks(); ++rank) {
    const int places = table.local_places(search.local_set, rank);
    const auto end = static_cast<std::size_t>(table.rank_begin(rank + 1));
    for (auto token = static_cast<std::size_t>(table.rank_begin(rank)); token < end; ++token) {
      int kept = 0;
      for (std::size_t choice = 0; choice < choices; ++choice) kept += is_kept(choice, token);
      if (kept >= search.config.top_k) continue;
      for (int place = 0; place < places && expert[token] == no_expert; ++place) {
        const std::uint16_t candidate = table.local_expert(search.local_set, place)[token];
        bool taken = false;
        for (std::size_t choice = 0; choice < choices; ++choice) {
          taken = taken || (is_kept(choice, token) &&
                            table.expert(static_cast<int>(choice))[token] == candidate);
        }
        if (taken) continue;
        expert[token] = candidate;
        probability[token] = table.local_probability(search.local_set, place)[token];
      }
    }
  }
}

void Decision::decide(const DecisionInput& input) {
  const RouterConfig& config = input.config;
  const ChoiceTable& table = input.table;
  experts_ = static_cast<std::size_t>(table.experts());
  domains_ = static_cast<std::size_t>(input.orders.domains(config.capacity_scope));
  sums_ = {};
  sums_.tokens = table.tokens();
  sums_.primary_routes = table.tokens() * config.top_k;
  if (config.fill_in) sums_.nominations = table.tokens();
  find_queues(input);
  set_limits(input);
  flag_kept(input);
  sums_.slots = sums_.primary_kept + sums_.filled;
  if (config.has_capacity()) {
    sums_.slots = 0;
    for (const std::int64_t slots : input.capacity) sums_.slots += slots * table.experts();
  }
  if (config.rectification != Rectification::none) find_ir(input);
  ir_rows_.assign(static_cast<std::size_t>(table.ranks()), 0);
  for (int rank = 0; rank < table.ranks(); ++rank) {
    const std::int64_t rows_before = sums_.totals.ir_rows;
    std::uint8_t* has_ir = config.rectification == Rectification::none
                               ? nullptr
                               : has_ir_.data() + table.rank_begin(rank);
    input.kernels.add_losses(kept_tokens(input, rank), has_ir, sums_.totals);
    ir_rows_[static_cast<std::size_t>(rank)] =
        static_cast<std::int32_t>(sums_.totals.ir_rows - rows_before);
  }
  if (input.reference_mass != nullptr) {
    sums_.totals.residual = 0;
    for (int rank = 0; rank < table.ranks(); ++rank) {
      sums_.totals.residual += residual(input, rank);
    }
    sums_.not_chosen = config.has_capacity() ? not_chosen(input) : sums_.totals.residual;
  }
  count_rows(input);
  if (config.pads_to_busiest()) {
    exchanged_capacity_ = config.aligned(exchanged_capacity_);
    sums_.slots = exchanged_capacity_ * static_cast<std::int64_t>(kept_rows_.size());
  }
  count_ir_rows(input);
  count_demand(input);
}

KeptTokens Decision::kept_tokens(const DecisionInput& input, int rank) const {
  const ChoiceTable& table = input.table;
  const auto begin = static_cast<std::size_t>(table.rank_begin(rank));
  KeptTokens run;
  run.tokens = static_cast<std::size_t>(table.rank_begin(rank + 1)) - begin;
  run.top_k = input.config.top_k;
  run.choices = input.config.choices();
  run.keep = keep_.data() + begin;
  run.keep_stride = keep_stride_;
  run.expert = table.expert(0) + begin;
  run.probability = table.probability(0) + begin;
  run.stride = table.stride();
  if (input.config.rectification == Rectification::none) return run;
  const bool excluding = excludes(input.config);
  run.ir_expert = (excluding ? ir_expert_.data() : table.local_expert(input.local_set, 0)) + begin;
  run.ir_probability =
      (excluding ? ir_probability_.data() : table.local_probability(input.local_set, 0)) + begin;
  return run;
}

void Decision::find_queues(const DecisionInput& input) {
  const RouterConfig& config = input.config;
  const CapacityScope scope = config.capacity_scope;
  const bool own = config.has_one_queue();
  queues_.clear();
  for (int choice = 0; choice < config.top_k; ++choice) {
    queues_.push_back(own ? &input.orders.by_own_key(scope, config.priority, config.top_k, choice)
                          : &input.orders.by_priority(scope, config.priority, choice));
  }
  if (!config.fill_in) return;
  // A nominee's share of the k choices says no more than its score.
  const bool by_nominee = config.sorts_own_queue() || config.fill_order == FillOrder::nominee_score;
  const Priority one_choice =
      config.priority == Priority::token_order ? Priority::position : config.priority;
  queues_.push_back(by_nominee ? &input.orders.by_nominee(scope, config.top_k)
                               : &input.orders.by_priority(scope, one_choice, config.top_k));
}

void Decision::set_limits(const DecisionInput& input) {
  limits_.assign(queues_.size() * domains_ * experts_, 0);
  for (std::size_t domain = 0; domain < domains_; ++domain) {
    std::int64_t slots = 0;
    if (!input.config.has_capacity()) {
      slots = most_slots;
    } else if (input.config.capacity_scope == CapacityScope::source) {
      slots = input.capacity[domain];
    } else {
      for (const std::int64_t source : input.capacity) slots += std::min(source, most_slots);
    }
    for (std::size_t expert = 0; expert < experts_; ++expert) {
      settle_expert(input.config, domain, expert, std::min(slots, most_slots));
    }
  }
}

// Choices are processed one after another, each with the slots left by earlier ones. With
// own_score, own_weight and token_order all primary choices are in one queue: they have a common
// limit and are subtracted together, after the last.
void Decision::settle_expert(const RouterConfig& config, std::size_t domain, std::size_t expert,
                             std::int64_t slots) {
  const auto top_k = static_cast<std::size_t>(config.top_k);
  std::int64_t left = slots;
  for (std::size_t choice = 0; choice < queues_.size(); ++choice) {
    const bool fill = choice == top_k;
    limits_[(choice * domains_ + domain) * experts_ + expert] = static_cast<std::int32_t>(left);
    if (config.has_one_queue() && choice + 1 < top_k) continue;
    const std::int64_t waiting = queues_[choice]->length[domain * experts_ + expert];
    const std::int64_t kept = std::min(left, waiting);
    left -= kept;
    (fill ? sums_.filled : sums_.primary_kept) += kept;
  }
}

void Decision::flag_kept(const DecisionInput& input) {
  const CapacityScope scope = input.config.capacity_scope;
  keep_stride_ = static_cast<std::size_t>(input.table.tokens()) + tile_tokens;
  if (keep_.size() < queues_.size() * keep_stride_) keep_.resize(queues_.size() * keep_stride_);
  for (std::size_t choice = 0; choice < queues_.size(); ++choice) {
    const Queue& queue = *queues_[choice];
    std::uint8_t* keep = keep_.data() + choice * keep_stride_;
    for (std::size_t domain = 0; domain < domains_; ++domain) {
      const std::size_t at = domain * experts_;
      const std::int32_t* limit = limits_.data() + choice * domains_ * experts_ + at;
      const std::int32_t* length = queue.length.data() + at;
      const int index = static_cast<int>(domain);
      if (std::equal(length, length + experts_, limit, std::less_equal<>())) {
        std::fill(keep + input.orders.domain_begin(scope, index),
                  keep + input.orders.domain_end(scope, index), std::uint8_t{1});
        continue;  // no queue exceeds its limit
      }
      input.orders.flag_first(queue, index, limit, keep, input.kernels);
    }
  }
}

// With IrDuplicates::allow it is the best local expert, for all tokens. Otherwise tokens that need
// IR get the best one that does not have them yet.
void Decision::find_ir(const DecisionInput& input) {
  has_ir_.resize(static_cast<std::size_t>(input.table.tokens()));
  if (!excludes(input.config)) return;
  find_untaken_locals({input.table, input.local_set, input.config, keep_.data(), keep_stride_},
                      ir_expert_, ir_probability_);
}

// The kernels only use the mass of the choices; if these are not the best of all experts, the loss
// is relative to the mass of the best.
double Decision::residual(const DecisionInput& input, int rank) const {
  const auto begin = static_cast<std::size_t>(input.table.rank_begin(rank));
  const KeptTokens run = kept_tokens(input, rank);
  const auto choices = static_cast<std::size_t>(run.choices);
  constexpr std::size_t block = 64;
  float processed[block];
  double missing[block];
  double sum = 0;
  for (std::size_t first = 0; first < run.tokens; first += block) {
    const std::size_t count = std::min(block, run.tokens - first);
    std::fill_n(processed, count, 0.0F);
    for (std::size_t choice = 0; choice < choices; ++choice) {
      const std::uint8_t* keep = run.keep + choice * run.keep_stride + first;
      const float* probability = run.probability + choice * run.stride + first;
      for (std::size_t at = 0; at < count; ++at) {
        processed[at] += keep[at] != 0 ? probability[at] : 0.0F;
      }
    }
    if (run.ir_expert != nullptr) add_rectified(run, begin, first, count, processed);
    const float* whole = input.reference_mass + begin + first;
    for (std::size_t at = 0; at < count; ++at) {
      const double lack = 1.0 - static_cast<double>(processed[at]) / whole[at];
      missing[at] = lack > 0.0 ? lack : 0.0;
    }
    for (std::size_t at = 0; at < count; ++at) sum += missing[at];
  }
  return sum;
}

// As residual() of all ranks, if all primary choices were kept.
double Decision::not_chosen(const DecisionInput& input) const {
  double sum = 0;
  for (std::size_t token = 0; token < static_cast<std::size_t>(input.table.tokens()); ++token) {
    float chosen = 0;
    for (int choice = 0; choice < input.config.top_k; ++choice) {
      chosen += input.table.probability(choice)[token];
    }
    sum += std::max(0.0, 1.0 - static_cast<double>(chosen) / input.reference_mass[token]);
  }
  return sum;
}

// Adds the IR rows of tokens [first, first + count) of a rank, of experts that did not process them
// yet.
void Decision::add_rectified(const KeptTokens& run, std::size_t begin, std::size_t first,
                             std::size_t count, float* processed) const {
  for (std::size_t at = 0; at < count; ++at) {
    const std::size_t token = first + at;
    if (has_ir_[begin + token] == 0) continue;
    bool there = false;
    for (std::size_t choice = 0; choice < static_cast<std::size_t>(run.choices); ++choice) {
      there = there || (run.keep[choice * run.keep_stride + token] != 0 &&
                        run.expert[choice * run.stride + token] == run.ir_expert[token]);
    }
    if (!there) processed[at] += run.ir_probability[token];
  }
}

void Decision::count_rows(const DecisionInput& input) {
  const ChoiceTable& table = input.table;
  kept_rows_.assign(static_cast<std::size_t>(table.ranks()) * experts_, 0);
  const bool by_source = input.config.capacity_scope == CapacityScope::source;
  const bool own = input.config.has_one_queue();
  for (std::size_t choice = 0; choice < queues_.size(); ++choice) {
    if (by_source) {  // queue lengths and limits are sufficient
      if (own && choice + 1 < static_cast<std::size_t>(input.config.top_k)) continue;
      for (std::size_t at = 0; at < domains_ * experts_; ++at) {
        kept_rows_[at] +=
            std::min(queues_[choice]->length[at], limits_[choice * domains_ * experts_ + at]);
      }
      continue;
    }
    const std::uint16_t* expert = table.expert(static_cast<int>(choice));
    const std::uint8_t* keep = keep_.data() + choice * keep_stride_;
    for (int rank = 0; rank < table.ranks(); ++rank) {
      std::int32_t* rows = kept_rows_.data() + static_cast<std::size_t>(rank) * experts_;
      const auto end = static_cast<std::size_t>(table.rank_begin(rank + 1));
      for (auto token = static_cast<std::size_t>(table.rank_begin(rank)); token < end; ++token) {
        rows[expert[token]] += keep[token];
      }
    }
  }
  exchanged_capacity_ = by_source && input.config.has_capacity()
                            ? *std::max_element(input.capacity.begin(), input.capacity.end())
                            : std::int64_t{*std::max_element(kept_rows_.begin(), kept_rows_.end())};
}

// With a single queue, the queue of every choice counts the routes of all primary choices.
void Decision::count_demand(const DecisionInput& input) {
  demand_.assign(experts_, 0);
  const bool own = input.config.has_one_queue();
  const int first = own ? input.config.top_k - 1 : 0;
  for (int choice = first; choice < input.config.top_k; ++choice) {
    const std::vector<std::int32_t>& length = queues_[static_cast<std::size_t>(choice)]->length;
    for (std::size_t at = 0; at < domains_ * experts_; ++at) demand_[at % experts_] += length[at];
  }
}

// Counts the rows that each rank computes for IR: those of its own tokens, unless they go to other
// ranks of its domain.
void Decision::count_ir_rows(const DecisionInput& input) {
  if (input.config.rectification != Rectification::node) return;
  const ChoiceTable& table = input.table;
  ir_rows_.assign(static_cast<std::size_t>(table.ranks()), 0);
  const auto per_rank = experts_ / static_cast<std::size_t>(table.ranks());
  for (int rank = 0; rank < table.ranks(); ++rank) {
    const KeptTokens run = kept_tokens(input, rank);
    const std::uint8_t* has_ir = has_ir_.data() + table.rank_begin(rank);
    for (std::size_t token = 0; token < run.tokens; ++token) {
      if (has_ir[token] != 0) ++ir_rows_[run.ir_expert[token] / per_rank];
    }
  }
}

}  // namespace moesim::routing
