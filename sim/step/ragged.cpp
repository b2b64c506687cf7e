#include "sim/step/ragged.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <unordered_map>

#include "sim/base/error.hpp"
#include "sim/cluster/expert_placement.hpp"

namespace moesim::step {

using Direction = StepModel::Direction;

RaggedTraffic::RaggedTraffic(const StepModel& model, const routing::ReplicaRouting& routing)
    : model_(model),
      routing_(routing),
      experts_(model.scenario().experts),
      members_(model.scenario().expert_parallel),
      sent_(static_cast<std::size_t>(members_)),
      patterns_(routing.layers.size()) {}

bool RaggedTraffic::is_uneven(int operation) const {
  return model_.direction(operation) != Direction::none;
}

const std::int32_t* RaggedTraffic::rows_of(int layer, int gpu) const {
  const routing::LayerRouting& routed = routing_.layers[static_cast<std::size_t>(layer)];
  // One group may stand for all.
  const std::size_t cell = static_cast<std::size_t>(gpu) * static_cast<std::size_t>(experts_);
  return routed.kept_rows.data() + cell % routed.kept_rows.size();
}

// To each GPU what its experts keep of a source's tokens: straight from the source, or inside
// another node from the GPU there in the source's place, which has it once over the NIC.
void RaggedTraffic::fill_copies(int layer, int group, std::uint32_t row_bytes,
                                ByteMatrix& bytes) const {
  const routing::TokenCopies& copies = routing_.layers[static_cast<std::size_t>(layer)].copies;
  const int in_domain = model_.scenario().cluster->gpus_per_domain;
  const bool forwarded =
      model_.scenario().dedup == scenario::Deduplication::node && members_ > in_domain;
  const int node = forwarded ? in_domain : members_;
  const int nodes = members_ / node;
  const auto cell = [](std::size_t size, int gpu, int columns) {
    return static_cast<std::size_t>(gpu) * static_cast<std::size_t>(columns) % size;
  };
  for (int source = 0; source < members_; ++source) std::fill_n(bytes.row(source), members_, 0);
  for (int source = 0; source < members_; ++source) {
    const int gpu = group * members_ + source;
    const std::int32_t* to_gpu = copies.to_gpu.data() + cell(copies.to_gpu.size(), gpu, members_);
    for (int to_node = 0; to_node < nodes; ++to_node) {
      const int gate = to_node * node + source % node;
      for (int member = to_node * node; member < (to_node + 1) * node; ++member) {
        if (gate != source && gate == member) continue;  // there already
        bytes.at(gate, member) += std::int64_t{to_gpu[member]} * row_bytes;
      }
      if (gate == source) continue;
      const std::size_t across = cell(copies.to_node.size(), gpu, nodes);
      bytes.at(source, gate) +=
          std::int64_t{copies.to_node[across + static_cast<std::size_t>(to_node)]} * row_bytes;
    }
  }
}

void RaggedTraffic::fill(int operation, int group, ByteMatrix& bytes) const {
  const int layer = model_.moe_layer(operation);
  const bool to_tokens = model_.direction(operation) == Direction::to_tokens;
  const auto row_bytes = static_cast<std::uint32_t>(std::llround(model_.row_bytes(operation)));
  if (model_.scenario().dedup != scenario::Deduplication::none) {
    fill_copies(layer, group, row_bytes, bytes);
    if (to_tokens) bytes = cluster::transposed(bytes);
    return;
  }
  const int local = experts_ / members_;
  for (int source = 0; source < members_; ++source) {
    const std::int32_t* rows = rows_of(layer, group * members_ + source);
    std::int64_t* sent = to_tokens ? sent_.data() : bytes.row(source);
    if (local == 1) {
      // 32 x 32 to 64 bits, which every vector unit can.
      for (int owner = 0; owner < members_; ++owner) {
        sent[owner] = static_cast<std::int64_t>(
            std::uint64_t{static_cast<std::uint32_t>(rows[owner])} * row_bytes);
      }
    } else {
      for (int owner = 0; owner < members_; ++owner) {
        std::uint64_t sum = 0;
        for (int expert = 0; expert < local; ++expert) sum += static_cast<std::uint32_t>(*rows++);
        sent[owner] = static_cast<std::int64_t>(sum * row_bytes);
      }
    }
    if (!to_tokens) continue;
    std::int64_t* column = bytes.row(0) + source;
    for (int owner = 0; owner < members_; ++owner, column += members_) *column = sent[owner];
  }
}

// Those of a group, as bytes to compare.
std::string RaggedTraffic::copies_of(int layer, int first_gpu) const {
  const routing::LayerRouting& routed = routing_.layers[static_cast<std::size_t>(layer)];
  const std::size_t gpus = routed.kept_rows.size() / static_cast<std::size_t>(experts_);
  std::string bytes;
  for (const std::vector<std::int32_t>* all : {&routed.copies.to_gpu, &routed.copies.to_node}) {
    const std::size_t columns = all->size() / gpus;
    const std::size_t begin = static_cast<std::size_t>(first_gpu) * columns;
    const std::size_t size = static_cast<std::size_t>(members_) * columns * sizeof(std::int32_t);
    bytes.append(reinterpret_cast<const char*>(all->data() + begin), size);
  }
  return bytes;
}

int RaggedTraffic::pattern(int operation, int group) const {
  const int layer = model_.moe_layer(operation);
  std::vector<int>& pattern = patterns_[static_cast<std::size_t>(layer)];
  const auto cells = static_cast<std::size_t>(experts_) * static_cast<std::size_t>(members_);
  if (routing_.layers[static_cast<std::size_t>(layer)].kept_rows.size() == cells) return 0;
  if (pattern.empty()) {
    const std::size_t bytes = sizeof(std::int32_t) * cells;
    std::unordered_map<std::string_view, int> known;
    std::map<std::pair<int, std::string>, int> known_with_copies;
    for (int first = 0; first < model_.scenario().gpus; first += members_) {
      const std::string_view rows(reinterpret_cast<const char*>(rows_of(layer, first)), bytes);
      const int same_rows = known.try_emplace(rows, static_cast<int>(known.size())).first->second;
      if (model_.scenario().dedup == scenario::Deduplication::none) {
        pattern.push_back(same_rows);
        continue;
      }
      const auto next = static_cast<int>(known_with_copies.size());
      const std::pair key(same_rows, copies_of(layer, first));
      pattern.push_back(known_with_copies.try_emplace(key, next).first->second);
    }
  }
  return pattern[static_cast<std::size_t>(group)];
}

// Of StepModel: what rows cost.

Direction StepModel::direction(int operation) const {
  const Spec& spec = specs_[static_cast<std::size_t>(operation)];
  if (spec.role != Role::exchange) return Direction::none;
  return spec.to_tokens ? Direction::to_tokens : Direction::to_experts;
}

int StepModel::moe_layer(int operation) const {
  return specs_[static_cast<std::size_t>(operation)].moe_layer;
}

Picoseconds StepModel::price_of_rows(Role role, Pass pass, std::int64_t rows, Load load,
                                     int replica) {
  std::vector<Picoseconds>& prices = row_prices_[{role, pass, load}];
  const auto at = static_cast<std::size_t>(rows);
  if (prices.size() <= at) prices.resize(at + at / 2 + 1, Picoseconds(-1));
  if (prices[at] >= Picoseconds(0)) return prices[at];
  // A product's time is smooth but where its tiles run over, which they do past multiples of 16
  // rows (smaller tiles are for few rows): between those it is interpolated, to 0.1 %.
  constexpr std::int64_t few = 512;
  constexpr std::int64_t tile = 16;
  const std::int64_t low = (rows - 1) / tile * tile + 1;
  const std::int64_t high = low + tile - 1;
  if (role != Role::expert_rows || rows <= few || rows == low || rows == high) {
    return prices[at] = price(recipe(role, pass, 0, rows, load), replica);
  }
  const Picoseconds least = price_of_rows(role, pass, low, load, replica);
  const Picoseconds most = price_of_rows(role, pass, high, load, replica);
  const std::int64_t part = (most - least).count * (rows - low) / (tile - 1);
  return row_prices_[{role, pass, load}][at] = least + Picoseconds(part);
}

// What the GPUs of a layer send and their experts receive, in one pass over the counts.
StepModel::RowLoads StepModel::loads_of(const routing::LayerRouting& layer) const {
  const auto experts = static_cast<std::size_t>(scenario_.experts);
  const auto members = static_cast<std::size_t>(scenario_.expert_parallel);
  const std::size_t gpus = layer.kept_rows.size() / experts;
  RowLoads loads;
  loads.sent.reserve(gpus);
  loads.received.resize(gpus / members * experts);
  const std::int32_t* rows = layer.kept_rows.data();
  for (std::size_t gpu = 0; gpu < gpus; ++gpu, rows += experts) {
    std::int32_t* received = loads.received.data() + gpu / members * experts;
    std::int32_t sum = 0;
    for (std::size_t expert = 0; expert < experts; ++expert) {
      sum += rows[expert];
      received[expert] += rows[expert];
    }
    loads.sent.push_back(sum);
  }
  return loads;
}

// Permutation and combination go by the rows a GPU sends, expert FFNs by what all GPUs of the group
// send to each expert of the GPU.
void StepModel::price_loads(const Spec& spec, const RowLoads& loads, int replica,
                            std::vector<Picoseconds>& per_rank) {
  per_rank.reserve(static_cast<std::size_t>(scenario_.gpus));
  if (spec.role == Role::experts) {
    const auto local = static_cast<std::size_t>(scenario_.experts / scenario_.expert_parallel);
    for (std::size_t first = 0; first < loads.received.size(); first += local) {
      Picoseconds sum;
      for (std::size_t expert = first; expert < first + local; ++expert) {
        if (loads.received[expert] == 0) continue;
        sum += price_of_rows(Role::expert_rows, spec.pass, loads.received[expert], 0, replica);
      }
      per_rank.push_back(sum);
    }
  } else {
    const Role role = spec.role == Role::dispatch ? Role::dispatch_rows : Role::combine_rows;
    for (std::size_t gpu = 0; gpu < loads.sent.size(); ++gpu) {
      const Load load = load_of(static_cast<int>(gpu));
      per_rank.push_back(price_of_rows(role, spec.pass, loads.sent[gpu], load, replica));
    }
  }
  // Where one group stands for all.
  const std::size_t given = per_rank.size();
  while (per_rank.size() < static_cast<std::size_t>(scenario_.gpus)) {
    per_rank.push_back(per_rank[per_rank.size() - given]);
  }
}

void StepModel::check_copies(const routing::ReplicaRouting& routing) const {
  const auto members = static_cast<std::size_t>(scenario_.expert_parallel);
  const auto nodes = static_cast<std::size_t>(routing::group_nodes(scenario_.routing_job()));
  for (const routing::LayerRouting& layer : routing.layers) {
    const std::size_t gpus = layer.kept_rows.size() / static_cast<std::size_t>(scenario_.experts);
    const routing::TokenCopies& copies = layer.copies;
    if (copies.to_gpu.size() == gpus * members && copies.to_node.size() == gpus * nodes) continue;
    throw Error("an exchange without duplicates needs the copies of tokens that routing counts");
  }
}

void StepModel::check_ragged(const routing::ReplicaRouting& routing) const {
  if (scenario_.dispatch == scenario::Dispatch::einsum) {
    throw UsageError("--dispatch einsum: one-hot products need blocks of equal size; use index");
  }
  if (scenario_.router.rectification != routing::Rectification::none &&
      scenario_.router.ir_compute == routing::IrCompute::grouped) {
    throw UsageError("--ir-compute grouped: needs blocks of equal size; use separate or overlap");
  }
  if (scenario_.dedup != scenario::Deduplication::none) check_copies(routing);
  const auto experts = static_cast<std::size_t>(scenario_.experts);
  for (const routing::LayerRouting& layer : routing.layers) {
    const std::size_t cells = layer.kept_rows.size();
    const bool all = cells == experts * static_cast<std::size_t>(scenario_.gpus);
    const bool group = cells == experts * static_cast<std::size_t>(scenario_.expert_parallel);
    if (!all && !group) {
      throw Error(fmt::format(
          "a step without padding needs the rows of {} GPUs or of one expert-parallel group of {} "
          "to {} experts, but a layer has {} counts",
          scenario_.gpus, scenario_.expert_parallel, experts, cells));
    }
  }
}

engine::Durations StepModel::ragged_durations(const routing::ReplicaRouting& routing, int replica) {
  check_ragged(routing);
  if (priced_replica_ != replica) row_prices_.clear();
  priced_replica_ = replica;
  engine::Durations durations;
  durations.uniform.resize(specs_.size());
  durations.per_rank.resize(specs_.size());
  durations.skipped = skipped(routing);
  std::vector<RowLoads> loads(routing.layers.size());
  for (std::size_t op = 0; op < specs_.size(); ++op) {
    const Spec& spec = specs_[op];
    if (spec.role == Role::fixed) {
      if (goes_by_tokens(spec)) {
        price_tokens(op, &routing, replica, durations);
      } else {
        durations.uniform[op] = price(recipe_of(spec, &routing), replica);
      }
      continue;
    }
    if (spec.role == Role::exchange) continue;
    const routing::LayerRouting& layer = routing.layers[static_cast<std::size_t>(spec.moe_layer)];
    std::vector<Picoseconds>& per_rank = durations.per_rank[op];
    if (spec.role == Role::experts || spec.role == Role::dispatch || spec.role == Role::combine) {
      RowLoads& of_layer = loads[static_cast<std::size_t>(spec.moe_layer)];
      if (of_layer.sent.empty()) of_layer = loads_of(layer);
      price_loads(spec, of_layer, replica, per_rank);
    } else if (spec.role == Role::rectify) {
      price_rows(spec, layer, replica, per_rank);
    } else {
      const std::int64_t rows = *std::max_element(layer.ir_rows.begin(), layer.ir_rows.end());
      durations.uniform[op] = price(recipe(spec.role, spec.pass, 0, rows), replica);
    }
    // Equal on all ranks: say so, for the sake of folding and memory.
    const bool equal = std::all_of(per_rank.begin(), per_rank.end(),
                                   [&](Picoseconds time) { return time == per_rank.front(); });
    if (!per_rank.empty() && equal) {
      durations.uniform[op] = per_rank.front();
      std::vector<Picoseconds>().swap(per_rank);
    }
  }
  return durations;
}

}  // namespace moesim::step
