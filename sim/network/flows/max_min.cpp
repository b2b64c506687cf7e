#include "sim/network/flows/max_min.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

namespace moesim::network {
namespace {

// Sums of thousands of rates differ by this much, relatively, when their order does.
constexpr double rounding = 1e-13;
// Rates that fill a link but for this share of its capacity fill it.
constexpr double filled = 1e-12;
// A link with this share of its capacity to spare is not full: rounding loses less in a billion
// changes of the bound of its load.
constexpr double spare = 1e-6;

bool same(double level, double before) {
  if (level == before) return true;
  return std::isfinite(level) && std::isfinite(before) &&
         std::abs(level - before) <= rounding * before;
}

}  // namespace

MaxMin::MaxMin(std::vector<double> capacities, std::size_t route_links)
    : capacity_(std::move(capacities)),
      level_(capacity_.size() + 1, unlimited),
      load_(capacity_.size()),
      users_(capacity_.size()),
      route_links_(route_links),
      others_(route_links - 1),
      is_marked_(capacity_.size() + 1),
      is_changed_(capacity_.size()) {
  is_marked_[links()] = 1;  // the link beyond all is not looked at
}

void MaxMin::mark(std::uint32_t link) {
  if (is_marked_[link] != 0) return;
  is_marked_[link] = 1;
  marked_.push_back(link);
}

void MaxMin::add(std::uint32_t flow, std::span<const Hop> route) {
  assert(!route.empty() && route.size() <= route_links_);
  if (flow >= length_.size()) {
    const std::size_t room = std::max<std::size_t>(flow + 1, length_.size() * 3 / 2);
    length_.resize(room);
    places_.resize(room * route_links_);
  }
  length_[flow] = static_cast<std::uint8_t>(route.size());
  Place* places = places_.data() + flow * route_links_;
  for (std::size_t hop = 0; hop < route.size(); ++hop) {
    const auto link = static_cast<std::uint32_t>(route[hop].link);
    Users& users = users_[link];
    places[hop] = {link, static_cast<std::uint32_t>(users.flow.size())};
    users.flow.push_back(flow);
    users.weight.push_back(route[hop].weight);
    all_weigh_one_ = all_weigh_one_ && route[hop].weight == 1;
    for (std::size_t other = 0; other < route.size(); ++other) {
      if (other != hop) users.others.push_back(static_cast<std::uint32_t>(route[other].link));
    }
    users.others.resize(users.flow.size() * others_, static_cast<std::uint32_t>(links()));
    users.total += static_cast<double>(route[hop].weight);
    mark(link);
  }
  ++flows_;
  ++touched_;
}

void MaxMin::remove(std::uint32_t flow) {
  Place* places = places_.data() + flow * route_links_;
  const double its_rate = rate(flow);
  for (std::size_t hop = 0; hop < length_[flow]; ++hop) {
    const Place at = places[hop];
    Users& users = users_[at.link];
    const std::int32_t weight = users.weight[at.place];
    users.total -= static_cast<double>(weight);
    const std::uint32_t last = users.flow.back();
    Place* moved = places_.data() + last * route_links_;
    while (moved->link != at.link) ++moved;
    moved->place = at.place;
    users.flow[at.place] = last;
    std::copy_n(users.others.end() - static_cast<std::ptrdiff_t>(others_), others_,
                users.others.begin() + static_cast<std::ptrdiff_t>(at.place * others_));
    users.weight[at.place] = users.weight.back();
    users.flow.pop_back();
    users.others.resize(users.others.size() - others_);
    users.weight.pop_back();
    // A link that was not full does not become so by carrying less.
    if (level_[at.link] != unlimited) {
      mark(at.link);
    } else if (its_rate != unlimited) {
      load_[at.link] -= static_cast<double>(weight) * its_rate;
    }
  }
  length_[flow] = 0;
  --flows_;
  ++touched_;
}

int MaxMin::bottleneck(std::uint32_t flow, int preferred) const {
  const Place* places = places_.data() + flow * route_links_;
  std::uint32_t best = places[0].link;
  for (std::size_t hop = 1; hop < length_[flow]; ++hop) {
    if (level_[places[hop].link] < level_[best]) best = places[hop].link;
  }
  if (preferred >= 0 && level(preferred) <= level_[best] * (1 + rounding)) return preferred;
  return static_cast<int>(best);
}

double MaxMin::rate(std::uint32_t flow) const {
  const Place* places = places_.data() + flow * route_links_;
  double least = unlimited;
  for (std::size_t hop = 0; hop < length_[flow]; ++hop) {
    least = std::min(least, level_[places[hop].link]);
  }
  return least;
}

// `known` is how many other links a route has, 0 for any number.
template <std::size_t known>
void MaxMin::find_elsewhere(const Users& users) {
  const std::size_t count = users.flow.size();
  const std::size_t others = known != 0 ? known : others_;
  if (elsewhere_.size() < count) elsewhere_.resize(count + count / 2);
  const double* const level = level_.data();
  const std::uint32_t* other = users.others.data();
  for (std::size_t place = 0; place < count; ++place, other += others) {
    double least = unlimited;
    for (std::size_t each = 0; each < others; ++each) least = std::min(least, level[other[each]]);
    elsewhere_[place] = least;
  }
}

// Newton's method on a concave, piecewise linear sum: from the second step on it comes from below
// and stops at the root after as many steps as there are pieces, mostly one or two.
double MaxMin::evaluate(std::uint32_t link) {
  ++counts_.evaluations;
  const Users& users = users_[link];
  const std::size_t count = users.flow.size();
  if (count == 0) {
    load_[link] = 0;
    return unlimited;
  }
  if (others_ == 1) {
    find_elsewhere<1>(users);
  } else if (others_ == 3) {
    find_elsewhere<3>(users);
  } else {
    find_elsewhere<0>(users);
  }
  const double* const others = elsewhere_.data();
  const double capacity = capacity_[link];
  double level = level_[link] != unlimited ? level_[link] : capacity / users.total;
  for (bool from_below = false;;) {
    double carried = 0;  // by flows that other links hold back
    double held = 0;     // weights of those this link holds back
    for (std::size_t place = 0; place < count; ++place) {
      const auto weight = static_cast<double>(users.weight[place]);
      const bool elsewhere = others[place] < level;
      carried += elsewhere ? weight * others[place] : 0.0;
      held += elsewhere ? 0.0 : weight;
    }
    if (held == 0) {
      if (carried <= capacity * (1 + filled)) {
        load_[link] = carried;
        return unlimited;
      }
      level = *std::max_element(others, others + count);
      from_below = false;
      continue;
    }
    const double next = (capacity - carried) / held;
    if (from_below && next <= level) return next;
    level = next;
    from_below = true;
  }
}

void MaxMin::set_level(std::uint32_t link, double level) {
  if (is_changed_[link] == 0) {
    is_changed_[link] = 1;
    changes_.push_back({static_cast<int>(link), level_[link]});
  }
  level_[link] = level;
}

void MaxMin::settle() {
  for (const Change& change : changes_) is_changed_[static_cast<std::size_t>(change.link)] = 0;
  changes_.clear();
  const bool large = touched_ > flows_ / 4 && flows_ + touched_ > links() / 4;
  touched_ = 0;
  if (large || !repair()) fill();
  for (const std::uint32_t link : marked_) is_marked_[link] = 0;
  marked_.clear();
  counts_.changes += static_cast<std::int64_t>(changes_.size());
}

// The key of a link without a level is the least it can get.
void MaxMin::push(std::uint32_t link) {
  const double level = level_[link];
  const double key = level != unlimited ? level : capacity_[link] / users_[link].total;
  heap_.push_back({key, link});
  std::push_heap(heap_.begin(), heap_.end());
}

bool MaxMin::repair() {
  heap_.clear();
  for (const std::uint32_t link : marked_) push(link);
  const std::int64_t most =
      counts_.evaluations + 64 + 8 * static_cast<std::int64_t>(std::min(links(), 2 * flows_));
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const std::uint32_t link = heap_.back().link;
    heap_.pop_back();
    is_marked_[link] = 0;
    const double before = level_[link];
    const double level = evaluate(link);
    if (same(level, before)) continue;
    set_level(link, level);
    spread(link, before);
    if (counts_.evaluations > most) return false;
  }
  marked_.clear();
  return true;
}

bool MaxMin::may_fill(std::uint32_t link) const {
  return !(load_[link] <= capacity_[link] * (1 - spare));
}

// Marks the links whose flows are held back below their level by `link`, or were; those without a
// level only if the level rose and that may fill them. `link` was the last to be evaluated.
void MaxMin::spread(std::uint32_t link, double before) {
  const double level = level_[link];
  const double lower = std::min(level, before);
  const Users& users = users_[link];
  const std::uint32_t* other = users.others.data();
  for (std::size_t place = 0; place < users.flow.size(); ++place, other += others_) {
    const double least = elsewhere_[place];
    if (least <= lower) continue;  // another link holds it back, before and now
    const double more = std::min(level, least) - std::min(before, least);
    for (std::size_t each = 0; each < others_; ++each) {
      if (is_marked_[other[each]] != 0) continue;
      if (level_[other[each]] == unlimited) {
        if (more < 0) continue;
        load_[other[each]] += weight_on(other[each], users.flow[place]) * more;
        if (!may_fill(other[each])) continue;
      }
      mark(other[each]);
      push(other[each]);
    }
  }
}

double MaxMin::weight_on(std::uint32_t link, std::uint32_t flow) const {
  if (all_weigh_one_) return 1;
  const Place* at = places_.data() + flow * route_links_;
  while (at->link != link) ++at;
  return static_cast<double>(users_[link].weight[at->place]);
}

// Progressive filling: the link whose remaining capacity gives its remaining flows the least is
// saturated next. Shares only grow as it goes on, so a key that is out of date is too low.
void MaxMin::fill() {
  ++counts_.fillings;
  std::vector<double> levels(level_);
  std::fill(level_.begin(), level_.end(), unlimited);
  left_ = capacity_;
  waiting_.resize(links());
  heap_.clear();
  for (std::uint32_t link = 0; link < links(); ++link) {
    waiting_[link] = users_[link].total;
    if (!users_[link].flow.empty()) heap_.push_back({left_[link] / waiting_[link], link});
  }
  std::make_heap(heap_.begin(), heap_.end());
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate next = heap_.back();
    heap_.pop_back();
    if (!(waiting_[next.link] > 0)) continue;  // all its flows are held back elsewhere
    const double share = left_[next.link] / waiting_[next.link];
    if (share > next.key * (1 + 4e-16)) {
      heap_.push_back({share, next.link});
      std::push_heap(heap_.begin(), heap_.end());
      continue;
    }
    saturate(next.link);
  }
  for (std::uint32_t link = 0; link < links(); ++link) load_[link] = capacity_[link] - left_[link];
  std::swap(levels, level_);  // those before again
  std::swap(levels, left_);   // the new ones
  list_changes();
}

void MaxMin::saturate(std::uint32_t link) {
  const double level = evaluate(link);
  const Users& users = users_[link];
  const auto pass = [&](Place at) {
    const auto weight = static_cast<double>(users_[at.link].weight[at.place]);
    left_[at.link] = std::max(0.0, left_[at.link] - weight * level);
    waiting_[at.link] -= weight;
  };
  for (std::size_t place = 0; place < users.flow.size(); ++place) {
    const std::uint32_t flow = users.flow[place];
    if (elsewhere_[place] != unlimited) continue;
    const Place* places = places_.data() + flow * route_links_;
    for (std::size_t hop = 0; hop < length_[flow]; ++hop) {
      if (places[hop].link != link) pass(places[hop]);
    }
  }
  waiting_[link] = 0;
  level_[link] = level;
}

void MaxMin::list_changes() {
  for (std::uint32_t link = 0; link < links(); ++link) {
    if (!same(left_[link], level_[link])) set_level(link, left_[link]);
  }
}

}  // namespace moesim::network
