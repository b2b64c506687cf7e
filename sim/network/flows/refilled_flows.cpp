#include "sim/network/flows/refilled_flows.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::network {
namespace {

// Flows to list: fewer are listed too often, more cost time at each event.
constexpr double wanted_flows = 64;
constexpr std::size_t block = 8;  // links or flows that kernels take at once

}  // namespace

RefilledFlows::RefilledFlows(FlowMatrix matrix)
    : matrix_(std::move(matrix)), width_(matrix_.width()), kernels_(&refill_kernels()) {
  const std::size_t links = 2 * width_;
  level_.assign(links, 1);
  inverse_.assign(links, 1);
  held_.assign(links, 0);
  flow_count_.assign(links, 0);
  order_.assign(links, 0);
  where_.assign(links, 0);
  reciprocal_.assign(width_ + 1, std::numeric_limits<double>::quiet_NaN());
  for (std::size_t count = 1; count <= width_; ++count) {
    reciprocal_[count] = 1 / static_cast<double>(count);
  }
  alive_.assign(links * matrix_.words, 0);
  bytes_.assign(width_ * width_, never);
  left_.assign(2 * (width_ + 1) * width_, 0);
  std::copy_n(matrix_.capacity.data(), width_, left_.data());
  std::copy_n(matrix_.capacity.data() + width_, width_, left_.data() + (width_ + 1) * width_);
  highest_.assign(2 * (width_ + 1), 0);
  firsts_.assign(links + 1, 0);
  records_.assign(links * RefillKernels::most_records, 0);
  listed_.resize(matrix_.entries.size());
}

RefillLinks RefilledFlows::links() {
  return {matrix_.words,  matrix_.capacity.data(), reciprocal_.data(), alive_.data(), level_.data(),
          held_.data(),   order_.data(),           where_.data(),      count_,        full_,
          firsts_.data(), highest_.data(),         left_.data()};
}

SoonFlows RefilledFlows::soon() {
  return {soon_ends_[0].data(), soon_ends_[1].data(), soon_bytes_.data(),
          soon_rate_.data(),    soon_wait_.data(),    soon_count_};
}

std::optional<FlowMatrix::End> RefilledFlows::step() {
  for (;;) {
    const bool entering = entered_ < matrix_.entries.size();
    if (active_ == 0) {
      if (!entering) return std::nullopt;
      admit();
      continue;
    }
    const RefillKernels::Soonest next =
        kernels_->soonest(soon(), level_.data(), std::exchange(passed_, 0));
    const double entry =
        entering ? static_cast<double>(matrix_.entries[entered_].time - epoch_) - now_ : never;
    const double time = std::max(0.0, std::min(entry, next.wait));
    if (soon_count_ == 0 || !wait(time)) {
      look_ahead();
    } else if (entry <= next.wait) {
      admit();
    } else {
      return complete(next.place);
    }
  }
}

// Lets time pass; false, and nothing is done, if other flows than those listed may end in it.
bool RefilledFlows::wait(double time) {
  constexpr double rounding = 1e-9;
  if (record_count_ == RefillKernels::most_records) return false;
  const double grown = kernels_->record(level_.data(), inverse_.data(), time, 2 * width_,
                                        records_.data() + block * record_count_);
  growth_ = std::max(growth_, grown);
  if (!((since_ + time) * growth_ * (1 + rounding) <= horizon_)) return false;
  since_ += time;
  now_ += time;
  passed_ = time;
  ++record_count_;
  return true;
}

RefillKernels::Listed RefilledFlows::serve(double horizon) {
  return kernels_->serve(bytes_.data(), records_.data(), std::exchange(record_count_, 0),
                         inverse_.data(), horizon, width_, listed_.data());
}

// Serves all flows and lists those that may end next.
void RefilledFlows::look_ahead() {
  if (soon_count_ > 0 && record_count_ == 0) aim_ *= 2;  // the last list was of no use
  for (std::size_t link = 0; link < 2 * width_; ++link) inverse_[link] = 1 / level_[link];
  RefillKernels::Listed found = serve(aim_);
  while (found.count == 0) {
    aim_ = 2 * found.least;
    found = serve(aim_);
  }
  list(found.count);
  since_ = passed_ = 0;
  growth_ = 1;
  horizon_ = found.count == active_ ? never : aim_;
  const double wanted = wanted_flows / static_cast<double>(found.count);
  aim_ *= std::clamp(wanted, 0.25, found.count == active_ ? 1.0 : 4.0);
}

void RefilledFlows::list(std::size_t count) {
  soon_count_ = count;
  const std::size_t room = (count + block - 1) / block * block;
  soon_ends_[0].assign(room, 0);
  soon_ends_[1].assign(room, static_cast<std::uint32_t>(width_));
  soon_bytes_.assign(room, never);
  soon_rate_.assign(room, 0);
  soon_wait_.assign(room, never);
  for (std::size_t soon = 0; soon < count; ++soon) {
    soon_ends_[0][soon] = static_cast<std::uint32_t>(listed_[soon] / width_);
    soon_ends_[1][soon] = static_cast<std::uint32_t>(width_ + listed_[soon] % width_);
    soon_bytes_[soon] = bytes_[listed_[soon]];
  }
}

// Lets in the flows of the next entry time.
void RefilledFlows::admit() {
  const std::int64_t time = matrix_.entries[entered_].time;
  if (active_ == 0) {
    epoch_ = time;
    now_ = 0;
    record_count_ = 0;
  }
  serve(0);
  soon_count_ = 0;
  const bool first = active_ == 0;
  const std::vector<FlowMatrix::Entry>& entries = matrix_.entries;
  for (; entered_ < entries.size() && entries[entered_].time == time; ++entered_) {
    add(entries[entered_]);
  }
  if (first) {  // about the order of their levels
    std::stable_sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(count_),
                     [&](std::uint32_t a, std::uint32_t b) {
                       return matrix_.capacity[a] * flow_count_[b] <
                              matrix_.capacity[b] * flow_count_[a];
                     });
  }
  hold_in_order();
  fill(0);
  ++result_.events;
  ++result_.fillings;
}

void RefilledFlows::add(const FlowMatrix::Entry& entry) {
  const auto second = static_cast<std::uint32_t>(width_ + entry.second);
  flip(entry.first, second);
  flip(second, entry.first);
  bytes_[entry.first * width_ + entry.second] = entry.bytes;
  ++active_;
  for (const std::uint32_t link : {entry.first, second}) {
    if (flow_count_[link]++ == 0) order_[count_++] = link;
  }
}

// Every flow is held back by that of its links which comes first in the order.
void RefilledFlows::hold_in_order() {
  const std::size_t words = matrix_.words;
  std::vector<std::uint64_t> later(2 * words);
  for (std::size_t at = count_; at-- > 0;) {
    const std::uint32_t link = order_[at];
    const std::size_t side = link < width_ ? 0 : 1;
    held_[link] = 0;
    for (std::size_t word = 0; word < words; ++word) {
      const std::uint64_t held = alive_[link * words + word] & later[(1 - side) * words + word];
      held_[link] += static_cast<std::uint32_t>(std::popcount(held));
    }
    later[side * words + place(link) / 64] |= std::uint64_t{1} << (place(link) % 64);
  }
  full_ = count_;
}

FlowMatrix::End RefilledFlows::complete(std::size_t soon) {
  constexpr double latest = 9.2e18;
  if (!(now_ + static_cast<double>(epoch_) < latest)) {
    throw Error("network: a transfer ends later than simulated time reaches (106 days)");
  }
  const std::uint32_t first = soon_ends_[0][soon];
  const std::uint32_t second = soon_ends_[1][soon];
  const std::size_t pair = first * width_ + place(second);
  bytes_[pair] = never;
  soon_bytes_[soon] = never;
  remove(first, second);
  ++result_.events;
  return {matrix_.flow_at[pair], epoch_ + std::llround(now_)};
}

// Takes the flow between two links away.
void RefilledFlows::remove(std::uint32_t first, std::uint32_t second) {
  flip(first, second);
  flip(second, first);
  --active_;
  const auto [low, high] =
      where_[first] < where_[second] ? std::pair(first, second) : std::pair(second, first);
  const std::size_t from = where_[low];
  const double left = held_[low] * level_[low];
  if (where_[high] < full_) lift(where_[high], held_[high] * level_[high] + level_[low]);
  --held_[low];
  lift(from, left);
  for (const std::uint32_t link : {first, second}) {
    if (--flow_count_[link] == 0) retire(link);
  }
  fill(from);
}

// Puts a link that has more left than before behind those that it passes, by their old levels.
void RefilledFlows::lift(std::size_t at, double left) {
  const std::uint32_t link = order_[at];
  std::uint32_t held = held_[link];
  for (; at + 1 < full_; ++at) {
    const std::uint32_t next = order_[at + 1];
    if (held > 0 && level_[next] >= left * reciprocal_[held]) break;
    const std::uint32_t met = meets(link, next) ? 1 : 0;
    held -= met;
    held_[next] += met;
    left -= met * level_[next];
    result_.moves += met;
    order_[at] = next;
    where_[next] = static_cast<std::uint32_t>(at);
  }
  order_[at] = link;
  where_[link] = static_cast<std::uint32_t>(at);
  held_[link] = held;
}

// Takes a link without flows out of the order.
void RefilledFlows::retire(std::uint32_t link) {
  const std::size_t at = where_[link];
  if (at < full_) --full_;
  --count_;
  for (std::size_t next = at; next < count_; ++next) {
    order_[next] = order_[next + 1];
    where_[order_[next]] = static_cast<std::uint32_t>(next);
  }
}

void RefilledFlows::fill(std::size_t from) {
  RefillLinks found = links();
  const RefillKernels::Filled filled = kernels_->fill(found, std::min(from, full_));
  full_ = found.full;
  result_.levels += filled.levels;
  result_.moves += filled.moves;
}

}  // namespace moesim::network
