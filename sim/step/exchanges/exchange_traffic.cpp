#include "sim/step/exchanges/exchange_traffic.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace moesim::step {
namespace {

ByteMatrix transposed(const ByteMatrix& bytes) {
  ByteMatrix result(bytes.ranks());
  for (int source = 0; source < bytes.ranks(); ++source) {
    const std::int64_t* const row = bytes.row(source);
    for (int destination = 0; destination < bytes.ranks(); ++destination) {
      result.at(destination, source) = row[destination];
    }
  }
  return result;
}

}  // namespace

void PaddedTraffic::fill(int operation, int group, ByteMatrix& bytes) const {
  const std::int64_t experts = model_.scenario().experts / model_.scenario().expert_parallel;
  const std::int64_t block =
      routed(operation).block_of(group) * experts * std::llround(model_.row_bytes(operation));
  for (int source = 0; source < bytes.ranks(); ++source) {
    std::fill_n(bytes.row(source), bytes.ranks(), block);
  }
}

// The size itself: rows of a block are counts of kept_rows and fit.
int PaddedTraffic::pattern(int operation, int group) const {
  const routing::LayerRouting& layer = routed(operation);
  return layer.group_blocks.empty() ? 0 : static_cast<int>(layer.block_of(group));
}

UnpaddedTraffic::UnpaddedTraffic(const StepModel& model, const routing::ReplicaRouting& routing)
    : model_(model),
      routing_(routing),
      experts_(model.scenario().experts),
      members_(model.scenario().expert_parallel),
      sent_(static_cast<std::size_t>(members_)),
      patterns_(routing.layers.size()) {}

bool UnpaddedTraffic::is_uneven(int operation) const {
  return model_.direction(operation) != Direction::none;
}

// Sends each GPU the rows of a source's tokens that its experts keep: directly from the source, or,
// inside another node, from the GPU with the source's local rank, which receives each token once
// over the NIC.
void UnpaddedTraffic::fill_copies(int layer, int group, std::uint32_t row_bytes,
                                  ByteMatrix& bytes) const {
  const int in_domain = model_.scenario().cluster->gpus_per_domain;
  const bool forwarded =
      model_.scenario().dedup == scenario::Deduplication::node && members_ > in_domain;
  const int node = forwarded ? in_domain : members_;
  const int nodes = members_ / node;
  const routing::GpuRows to_gpus(routed(layer).copies.to_gpu, members_);
  const routing::GpuRows to_nodes(routed(layer).copies.to_node, nodes);
  for (int source = 0; source < members_; ++source) std::fill_n(bytes.row(source), members_, 0);
  for (int source = 0; source < members_; ++source) {
    const std::int32_t* to_gpu = to_gpus.of(group * members_ + source);
    const std::int32_t* to_node = to_nodes.of(group * members_ + source);
    for (int number = 0; number < nodes; ++number) {
      const int gate = number * node + source % node;
      for (int member = number * node; member < (number + 1) * node; ++member) {
        if (gate != source && gate == member) continue;  // there already
        bytes.at(gate, member) += std::int64_t{to_gpu[member]} * row_bytes;
      }
      if (gate != source) bytes.at(source, gate) += std::int64_t{to_node[number]} * row_bytes;
    }
  }
}

void UnpaddedTraffic::fill(int operation, int group, ByteMatrix& bytes) const {
  const int layer = model_.moe_layer(operation);
  const bool to_tokens = model_.direction(operation) == Direction::to_tokens;
  const auto row_bytes = static_cast<std::uint32_t>(std::llround(model_.row_bytes(operation)));
  if (model_.scenario().dedup != scenario::Deduplication::none) {
    fill_copies(layer, group, row_bytes, bytes);
    if (to_tokens) bytes = transposed(bytes);
    return;
  }
  const routing::GpuRows kept = kept_rows(layer);
  const int local = experts_ / members_;
  for (int source = 0; source < members_; ++source) {
    const std::int32_t* rows = kept.of(group * members_ + source);
    std::int64_t* sent = to_tokens ? sent_.data() : bytes.row(source);
    if (local == 1) {
      // 32 x 32 to 64 bits: every vector unit has this product.
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

// The rows of a group, as bytes to compare.
std::string UnpaddedTraffic::copies_of(int layer, int first_gpu) const {
  const routing::TokenCopies& copies = routed(layer).copies;
  const std::size_t gpus = kept_rows(layer).gpus();
  std::string bytes;
  for (const std::vector<std::int32_t>* all : {&copies.to_gpu, &copies.to_node}) {
    const std::size_t columns = all->size() / gpus;
    const std::size_t size = static_cast<std::size_t>(members_) * columns * sizeof(std::int32_t);
    const routing::GpuRows rows(*all, static_cast<int>(columns));
    bytes.append(reinterpret_cast<const char*>(rows.of(first_gpu)), size);
  }
  return bytes;
}

int UnpaddedTraffic::pattern(int operation, int group) const {
  const int layer = model_.moe_layer(operation);
  std::vector<int>& pattern = patterns_[static_cast<std::size_t>(layer)];
  const routing::GpuRows kept = kept_rows(layer);
  const auto members = static_cast<std::size_t>(members_);
  if (kept.gpus() == members) return 0;
  if (pattern.empty()) {
    const std::size_t bytes = sizeof(std::int32_t) * members * static_cast<std::size_t>(experts_);
    std::unordered_map<std::string_view, int> known;
    std::map<std::pair<int, std::string>, int> known_with_copies;
    for (int first = 0; first < model_.scenario().gpus; first += members_) {
      const std::string_view rows(reinterpret_cast<const char*>(kept.of(first)), bytes);
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

}  // namespace moesim::step
