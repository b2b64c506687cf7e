#include "sim/network/flows/dense_flows.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::network {
namespace {

constexpr double filled = 1e-12;
constexpr std::size_t most_due = 16;            // a share of the links: more are looked at in order
constexpr int most_turns = 50;                  // per event, before all levels are recomputed
constexpr std::int64_t trusted_events = 16384;  // residuals are recomputed after that many

template <typename Visit>
void for_each(const std::uint64_t* bits, std::size_t words, Visit&& visit) {
  for (std::size_t word = 0; word < words; ++word) {
    for (std::uint64_t rest = bits[word]; rest != 0; rest &= rest - 1) {
      visit(64 * word + static_cast<std::size_t>(std::countr_zero(rest)));
    }
  }
}

}  // namespace

DenseFlows::DenseFlows(FlowMatrix matrix, double tolerance)
    : kernels_(&dense_kernels()),
      words_(matrix.words),
      width_(matrix.width()),
      capacity_(std::move(matrix.capacity)),
      flow_at_(std::move(matrix.flow_at)),
      entries_(std::move(matrix.entries)),
      tolerance_(tolerance) {
  const std::size_t links = 2 * width_;
  level_.assign(links, slack_level);
  passed_.assign(links, 0);
  since_.assign(links, 0);
  least_.assign(links, never);
  end_.assign(links, never);
  rho_.assign(links, 0);
  eta_.assign(links, 0);
  least_at_.assign(links, 0);
  held_count_.assign(links, 0);
  flow_count_.assign(links, 0);
  due_.assign(links + 1, 0);
  rank_.assign(links, 0);
  by_level_.resize(links);
  std::iota(by_level_.begin(), by_level_.end(), 0U);
  alive_.assign(links * words_, 0);
  held_.assign(links * words_, 0);
  filled_.assign(2 * words_, 0);
  wanted_.assign(words_, 0);
  leaves_.assign(links * width_, never);
  overfull_ = -filled * *std::max_element(capacity_.begin(), capacity_.end());
  if (!entries_.empty()) epoch_ = entries_.front().time;
}

std::optional<FlowMatrix::End> DenseFlows::step() {
  for (;;) {
    const DenseKernels::Least next = kernels_->least(end_.data(), 2 * words_);
    const bool entering = entered_ < entries_.size();
    if (!entering && active_ == 0) return std::nullopt;
    if (entering && (active_ == 0 || static_cast<double>(entries_[entered_].time - epoch_) <=
                                         std::max(now_, next.value))) {
      admit();
      continue;
    }
    return complete(static_cast<std::uint32_t>(next.place));
  }
}

// Lets in the flows of the next entry time.
void DenseFlows::admit() {
  const std::int64_t time = entries_[entered_].time;
  if (active_ == 0) {
    epoch_ = time;
    now_ = base_ = 0;
  } else {
    now_ = std::max(now_, static_cast<double>(time - epoch_));
  }
  const std::size_t first = entered_;
  for (; entered_ < entries_.size() && entries_[entered_].time == time; ++entered_) {
    const FlowMatrix::Entry& entry = entries_[entered_];
    const auto second = static_cast<std::uint32_t>(width_ + entry.second);
    flip(alive_, entry.first, entry.second);
    flip(alive_, second, entry.first);
    ++flow_count_[entry.first];
    ++flow_count_[second];
    ++active_;
  }
  fill();
  for (std::size_t index = first; index < entered_; ++index) {
    const FlowMatrix::Entry& entry = entries_[index];
    const auto second = static_cast<std::uint32_t>(width_ + entry.second);
    const bool by_first = rank_[entry.first] < rank_[second];
    const std::uint32_t holder = by_first ? entry.first : second;
    const std::uint32_t other = by_first ? second : entry.first;
    hold(holder, place(other), service(holder) + entry.bytes);
  }
  assign_holders();
  for (const std::uint32_t link : order_) update_end(link);
  ++result_.events;
}

void DenseFlows::hold(std::uint32_t link, std::uint32_t other, double leaves) {
  flip(held_, link, other);
  ++held_count_[link];
  leaves_[link * width_ + other] = leaves;
  if (leaves < least_[link]) {
    least_[link] = leaves;
    least_at_[link] = other;
  }
}

// Returns the service at which the flow would have ended.
double DenseFlows::drop(std::uint32_t link, std::uint32_t other) {
  flip(held_, link, other);
  --held_count_[link];
  return std::exchange(leaves_[link * width_ + other], never);
}

void DenseFlows::find_least(std::uint32_t link) {
  const DenseKernels::Least found = kernels_->least(leaves_.data() + link * width_, words_);
  least_[link] = found.value;
  least_at_[link] = static_cast<std::uint32_t>(found.place);
}

// The flow between two links is held back by `to` from now on. Leaves update_end() to the caller.
void DenseFlows::move(std::uint32_t from, std::uint32_t to) {
  const double bytes = drop(from, place(to)) - service(from);
  hold(to, place(from), service(to) + bytes);
  if (least_at_[from] == place(to)) find_least(from);
  ++result_.moves;
}

void DenseFlows::update_end(std::uint32_t link) {
  end_[link] =
      held_count_[link] == 0 ? never : since_[link] + (least_[link] - passed_[link]) / level_[link];
}

FlowMatrix::End DenseFlows::complete(std::uint32_t link) {
  constexpr double latest = 9.2e18;
  now_ = std::max(now_, end_[link]);
  if (!(now_ + static_cast<double>(epoch_) < latest)) {
    throw Error("network: a transfer ends later than simulated time reaches (106 days)");
  }
  const std::uint32_t other = across(link, least_at_[link]);
  const std::uint32_t first = side(link) == 0 ? link : other;
  const std::uint32_t second = side(link) == 0 ? other : link;
  const std::uint32_t flow = flow_at_[first * width_ + place(second)];
  drop(link, place(other));
  find_least(link);
  flip(alive_, link, place(other));
  flip(alive_, other, place(link));
  --flow_count_[link];
  --flow_count_[other];
  --active_;
  add_residual(link, level_[link]);
  add_residual(other, level_[link]);
  relax(link);
  relax(other);
  ++result_.events;
  settle();
  if (result_.events % trusted_events == 0) measure_residuals();
  return {flow, epoch_ + std::llround(now_)};
}

// Fits the links that would otherwise have missed too much by the next event.
void DenseFlows::settle() {
  for (int turn = 0; turn < most_turns; ++turn) {
    const double next = kernels_->least(end_.data(), 2 * words_).value;
    if (next == never) return;
    const double time = std::max(next, now_) - base_;
    const std::size_t count =
        kernels_->exceeding(rho_.data(), eta_.data(), level_.data(), held_count_.data(), time,
                            tolerance_, overfull_, 2 * words_, due_.data());
    if (count == 0) return;
    if (most_due * count > 2 * width_) {
      relax_due(time);
      continue;
    }
    std::sort(due_.begin(), due_.begin() + static_cast<std::ptrdiff_t>(count),
              [&](std::uint32_t a, std::uint32_t b) { return level_[a] < level_[b]; });
    fit(due_.data(), count, time);
  }
  fill();
  assign_holders();
  for (const std::uint32_t link : order_) update_end(link);
  ++result_.fillings;
}

// Fits links from the lowest level up: one changes what those above it have left, so that also
// those are fitted which become due on the way. Levels keep nearly the same order from event to
// event.
void DenseFlows::relax_due(double time) {
  for (std::size_t at = 1; at < by_level_.size(); ++at) {
    const std::uint32_t link = by_level_[at];
    const double level = level_[link];
    std::size_t to = at;
    for (; to > 0 && level_[by_level_[to - 1]] > level; --to) by_level_[to] = by_level_[to - 1];
    by_level_[to] = link;
  }
  fit(by_level_.data(), by_level_.size(), time);
}

// Fits those of a list of links anew that would have missed too much at a time since the base.
void DenseFlows::fit(const std::uint32_t* list, std::size_t count, double time) {
  const DenseClock clock{now_, base_, time, tolerance_, overfull_};
  for (std::size_t at = 0; at < count; ++at) {
    at = kernels_->fit(links(), list, at, count, clock, result_.correction);
    if (at < count) relax(list[at]);
  }
}

DenseLinks DenseFlows::links() {
  return {capacity_.data(),   level_.data(), passed_.data(), since_.data(),
          end_.data(),        rho_.data(),   eta_.data(),    least_.data(),
          held_count_.data(), alive_.data(), held_.data(),   words_};
}

// Fits one link to the levels of all others, and the residuals of those it holds back to it.
void DenseFlows::relax(std::uint32_t link) {
  if (flow_count_[link] == 0) {
    level_[link] = slack_level;
    rho_[link] = capacity_[link];
    end_[link] = never;
    return;
  }
  ++result_.level_changes;
  passed_[link] = service(link);
  since_[link] = now_;
  double made_up = 0;
  if (held_count_[link] > 0) {
    made_up = missed(link) / held_count_[link];
    passed_[link] += made_up;
    if (std::abs(made_up) > result_.correction * level_[link]) {
      result_.correction = std::abs(made_up) / level_[link];
    }
  }
  eta_[link] = rho_[link] * (now_ - base_);
  const double before = level_[link];
  const double level = kernels_->wanted_level(links(), link, wanted_.data());
  release(link, made_up);
  if (level == slack_level) {
    level_[link] = slack_level;
    end_[link] = never;
    return;
  }
  const std::size_t others = (1 - side(link)) * width_;
  const double change = level - before;
  kernels_->push(row(held_, link), change, change * (now_ - base_) - made_up, rho_.data() + others,
                 eta_.data() + others, words_);
  rho_[link] = 0;
  eta_[link] = 0;
  level_[link] = level;
  capture(link);
  update_end(link);
}

// Leaves the flows that are not in wanted_ to their other links.
void DenseFlows::release(std::uint32_t link, double made_up) {
  const std::uint64_t* const held = row(held_, link);
  for (std::size_t word = 0; word < words_; ++word) {
    const std::uint64_t gone = held[word] & ~wanted_[word];
    for_each(&gone, 1, [&](std::size_t bit) {
      const std::uint32_t other = across(link, 64 * word + bit);
      eta_[other] += made_up;
      add_residual(link, level_[link] - level_[other]);
      add_residual(other, level_[link] - level_[other]);
      move(link, other);
      update_end(other);
    });
  }
}

// Takes over the flows that are in wanted_.
void DenseFlows::capture(std::uint32_t link) {
  const std::uint64_t* const held = row(held_, link);
  for (std::size_t word = 0; word < words_; ++word) {
    const std::uint64_t come = wanted_[word] & ~held[word];
    for_each(&come, 1, [&](std::size_t bit) {
      const std::uint32_t other = across(link, 64 * word + bit);
      add_residual(other, level_[other] - level_[link]);
      const bool last = held_count_[other] == 1;
      if (last) {
        passed_[other] = service(other);
        since_[other] = now_;
      }
      move(other, link);
      if (last) level_[other] = slack_level;
      update_end(other);
    });
  }
}

// The residuals by their definition; what the links have missed stays.
void DenseFlows::measure_residuals() {
  for (std::uint32_t link = 0; link < 2 * width_; ++link) {
    if (flow_count_[link] == 0) continue;
    const double* levels = level_.data() + (1 - side(link)) * width_;
    eta_[link] = held_count_[link] > 0 ? -missed(link) : 0;
    double left = capacity_[link];
    if (held_count_[link] > 0) left -= held_count_[link] * level_[link];
    const std::uint64_t* const alive = row(alive_, link);
    const std::uint64_t* const held = row(held_, link);
    for (std::size_t word = 0; word < words_; ++word) {
      const std::uint64_t elsewhere = alive[word] & ~held[word];
      for_each(&elsewhere, 1, [&](std::size_t bit) { left -= levels[64 * word + bit]; });
    }
    rho_[link] = left;
  }
  base_ = now_;
}

// Progressive filling: recomputes all levels, for the current flows. Sets order_ and rank_.
void DenseFlows::fill() {
  order_.clear();
  std::vector<std::uint32_t> open;
  left_ = capacity_;
  waiting_.assign(2 * width_, 0);
  for (std::uint32_t link = 0; link < 2 * width_; ++link) {
    if (flow_count_[link] == 0) continue;
    open.push_back(link);
    waiting_[link] = flow_count_[link];
    eta_[link] = held_count_[link] > 0 ? -missed(link) : 0;
    passed_[link] = service(link);
    since_[link] = now_;
  }
  base_ = now_;
  std::fill(filled_.begin(), filled_.end(), 0);
  while (!open.empty()) {
    std::size_t best = 0;
    double least = never;
    for (std::size_t which = 0; which < open.size(); ++which) {
      const std::uint32_t link = open[which];
      const double level = waiting_[link] > 0 ? left_[link] / waiting_[link] : slack_level;
      if (level < least) {
        least = level;
        best = which;
      }
    }
    const std::uint32_t link = open[best];
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(best));
    saturate(link, least);
  }
}

void DenseFlows::saturate(std::uint32_t link, double level) {
  level_[link] = level;
  rho_[link] = level == slack_level ? left_[link] : 0;
  rank_[link] = static_cast<std::uint32_t>(order_.size());
  order_.push_back(link);
  filled_[side(link) * words_ + place(link) / 64] |= std::uint64_t{1} << (place(link) % 64);
  if (level == slack_level) return;
  const std::uint64_t* const filled_across = filled_.data() + (1 - side(link)) * words_;
  for_each(row(alive_, link), words_, [&](std::size_t other) {
    if ((filled_across[other / 64] >> (other % 64) & 1U) != 0) return;
    left_[across(link, other)] -= level;
    waiting_[across(link, other)] -= 1;
  });
}

// Moves flows to the one of their links that had its turn first.
void DenseFlows::assign_holders() {
  for (std::uint32_t link = 0; link < 2 * width_; ++link) {
    if (held_count_[link] == 0) continue;
    std::copy_n(row(held_, link), words_, wanted_.begin());
    for_each(wanted_.data(), words_, [&](std::size_t other) {
      const std::uint32_t far = across(link, other);
      if (rank_[far] < rank_[link]) move(link, far);
    });
  }
}

}  // namespace moesim::network
