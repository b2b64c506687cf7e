#include "sim/network/flows/flow_folding.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace moesim::network {
namespace {

using Color = std::uint64_t;
constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
Color mix(Color value) {
  value += 0x9e3779b97f4a7c15U;
  value = (value ^ (value >> 30U)) * 0xbf58476d1ce4e5b9U;
  value = (value ^ (value >> 27U)) * 0x94d049bb133111ebU;
  return value ^ (value >> 31U);
}

// Numbers colors 0, 1, ... in the order in which they appear.
class Numbering {
 public:
  explicit Numbering(std::size_t most) : most_(most), slots_(64) {}
  // `none` once there are more than `most` colors.
  std::uint32_t operator()(Color color) {
    if (!colors_.empty() && color == last_) return last_number_;
    last_number_ = number(color);
    last_ = color;
    return last_number_;
  }
  std::size_t count() const { return colors_.size(); }

 private:
  std::uint32_t number(Color color) {
    if (2 * colors_.size() >= slots_.size()) grow();
    for (std::size_t slot = color & (slots_.size() - 1);; slot = (slot + 1) & (slots_.size() - 1)) {
      if (slots_[slot] == 0) {
        if (colors_.size() == most_) return none;
        colors_.push_back(color);
        slots_[slot] = static_cast<std::uint32_t>(colors_.size());
        return slots_[slot] - 1;
      }
      if (colors_[slots_[slot] - 1] == color) return slots_[slot] - 1;
    }
  }
  void grow() {
    slots_.assign(2 * slots_.size(), 0);
    for (std::uint32_t number = 0; number < colors_.size(); ++number) {
      std::size_t slot = colors_[number] & (slots_.size() - 1);
      while (slots_[slot] != 0) slot = (slot + 1) & (slots_.size() - 1);
      slots_[slot] = number + 1;
    }
  }

  std::size_t most_;
  Color last_ = 0;
  std::uint32_t last_number_ = none;
  std::vector<std::uint32_t> slots_;  // number + 1, or 0
  std::vector<Color> colors_;
};

class Refinement {
 public:
  explicit Refinement(const FlowTable& flows)
      : flows_(flows), links_(flows.capacity.size()), sums_(flows.capacity.size()) {
    for (std::size_t link = 0; link < links_.size(); ++link) {
      links_[link] = mix(std::bit_cast<Color>(flows.capacity[link]));
    }
    own_.reserve(flows.size());
    for (std::size_t index = 0; index < flows.size(); ++index) {
      own_.push_back(mix(static_cast<Color>(flows.bytes[index]) ^
                         mix(static_cast<Color>(flows.entry[index]))));
    }
  }

  Color flow(std::size_t flow) const {
    Color sum = 0;
    for (const std::uint32_t link : flows_.route(flow)) sum += links_[link];
    return mix(sum ^ own_[flow]);
  }
  const std::vector<Color>& links() const { return links_; }

  // Refines until no class of links splits any more.
  void run() {
    for (std::size_t before = 0, classes = count(); before != classes;) {
      std::fill(sums_.begin(), sums_.end(), 0);
      for (std::size_t index = 0; index < flows_.size(); ++index) {
        const Color color = flow(index);
        for (const std::uint32_t link : flows_.route(index)) sums_[link] += color;
      }
      for (std::size_t link = 0; link < links_.size(); ++link) {
        links_[link] = mix(links_[link] ^ mix(sums_[link]));
      }
      before = classes;
      classes = count();
    }
  }

 private:
  std::size_t count() const {
    std::vector<Color> sorted(links_);
    std::sort(sorted.begin(), sorted.end());
    return static_cast<std::size_t>(std::unique(sorted.begin(), sorted.end()) - sorted.begin());
  }

  const FlowTable& flows_;
  std::vector<Color> links_;
  std::vector<Color> sums_;
  std::vector<Color> own_;  // [flow] of bytes and entry
};

// Colors are hashes: what they say is checked, and the flows of a class on a link counted.
class Checker {
 public:
  Checker(const FlowTable& flows, Folding& folding, const std::vector<std::uint32_t>& class_of_link)
      : flows_(flows), folding_(folding), class_of_link_(class_of_link) {}

  bool run(const std::vector<std::uint32_t>& first_of_class) {
    if (!check_flows(first_of_class)) return false;
    if (folding_.classes.size() * class_of_link_.size() <= 2 * flows_.size()) return count_table();
    list_flows_by_link();
    return count_flows();
  }

 private:
  std::vector<std::uint32_t> link_classes(std::size_t flow) const {
    std::vector<std::uint32_t> classes;
    for (const std::uint32_t link : flows_.route(flow)) classes.push_back(class_of_link_[link]);
    std::sort(classes.begin(), classes.end());
    return classes;
  }

  bool check_flows(const std::vector<std::uint32_t>& first_of_class) {
    std::vector<std::vector<std::uint32_t>> routes;
    for (const std::uint32_t first : first_of_class) routes.push_back(link_classes(first));
    std::array<std::uint32_t, 8> classes{};
    for (std::size_t flow = 0; flow < flows_.size(); ++flow) {
      const std::uint32_t which = folding_.class_of[flow];
      const std::uint32_t first = first_of_class[which];
      if (flows_.bytes[flow] != flows_.bytes[first] || flows_.entry[flow] != flows_.entry[first]) {
        return false;
      }
      const auto route = flows_.route(flow);
      if (route.size() != routes[which].size()) return false;
      for (std::size_t hop = 0; hop < route.size(); ++hop) {
        std::size_t place = hop;  // insertion sort
        const std::uint32_t link = class_of_link_[route[hop]];
        for (; place > 0 && classes[place - 1] > link; --place) classes[place] = classes[place - 1];
        classes[place] = link;
      }
      for (std::size_t hop = 0; hop < route.size(); ++hop) {
        if (classes[hop] != routes[which][hop]) return false;
      }
    }
    for (std::size_t which = 0; which < first_of_class.size(); ++which) {
      Folding::Class& one = folding_.classes[which];
      one.bytes = flows_.bytes[first_of_class[which]];
      one.entry = flows_.entry[first_of_class[which]];
    }
    return true;
  }

  // As count_flows(), for few classes: the flows of every class on every link in a table.
  bool count_table() {
    const std::size_t classes = folding_.classes.size();
    std::vector<std::uint32_t> counts(class_of_link_.size() * classes);
    for (std::size_t flow = 0; flow < flows_.size(); ++flow) {
      const std::uint32_t which = folding_.class_of[flow];
      for (const std::uint32_t link : flows_.route(flow)) ++counts[link * classes + which];
    }
    std::vector<std::uint32_t> first(folding_.capacity.size(), none);
    for (std::uint32_t link = 0; link < class_of_link_.size(); ++link) {
      const std::uint32_t link_class = class_of_link_[link];
      if (flows_.capacity[link] != folding_.capacity[link_class]) return false;
      const std::uint32_t* const mine = counts.data() + link * classes;
      if (first[link_class] != none) {
        const std::uint32_t* const theirs = counts.data() + first[link_class] * classes;
        if (!std::equal(mine, mine + classes, theirs)) return false;
        continue;
      }
      first[link_class] = link;
      for (std::size_t which = 0; which < classes; ++which) {
        if (mine[which] == 0) continue;
        folding_.classes[which].route.push_back(
            {static_cast<int>(link_class), static_cast<std::int32_t>(mine[which])});
      }
    }
    return true;
  }

  void list_flows_by_link() {
    begin_.assign(class_of_link_.size() + 1, 0);
    for (std::size_t flow = 0; flow < flows_.size(); ++flow) {
      for (const std::uint32_t link : flows_.route(flow)) ++begin_[link + 1];
    }
    for (std::size_t link = 1; link < begin_.size(); ++link) begin_[link] += begin_[link - 1];
    listed_.resize(begin_.back());
    std::vector<std::uint32_t> next(begin_.begin(), begin_.end() - 1);
    for (std::size_t flow = 0; flow < flows_.size(); ++flow) {
      for (const std::uint32_t link : flows_.route(flow)) {
        listed_[next[link]++] = folding_.class_of[flow];
      }
    }
  }

  // Every link of a class carries as many flows of each class as the first of them.
  bool count_flows() {
    std::vector<std::uint32_t> first(folding_.capacity.size(), none);
    std::vector<std::uint32_t> counts(folding_.classes.size(), 0);
    for (std::uint32_t link = 0; link < class_of_link_.size(); ++link) {
      const std::uint32_t which = class_of_link_[link];
      if (flows_.capacity[link] != folding_.capacity[which]) return false;
      if (first[which] == none) {
        first[which] = link;
        count_on(link, which);
        continue;
      }
      if (!same_counts(link, first[which], counts)) return false;
    }
    return true;
  }

  void count_on(std::uint32_t link, std::uint32_t which) {
    for (std::uint32_t at = begin_[link]; at < begin_[link + 1]; ++at) {
      std::vector<Hop>& route = folding_.classes[listed_[at]].route;
      if (route.empty() || route.back().link != static_cast<int>(which)) {
        route.push_back({static_cast<int>(which), 0});
      }
      route.back().weight += 1;
    }
  }

  bool same_counts(std::uint32_t link, std::uint32_t first, std::vector<std::uint32_t>& counts) {
    if (begin_[link + 1] - begin_[link] != begin_[first + 1] - begin_[first]) return false;
    for (std::uint32_t at = begin_[first]; at < begin_[first + 1]; ++at) ++counts[listed_[at]];
    bool same = true;
    for (std::uint32_t at = begin_[link]; at < begin_[link + 1]; ++at) {
      if (counts[listed_[at]] == 0) {
        same = false;
      } else {
        --counts[listed_[at]];
      }
    }
    for (std::uint32_t at = begin_[first]; at < begin_[first + 1]; ++at) counts[listed_[at]] = 0;
    return same;
  }

  const FlowTable& flows_;
  Folding& folding_;
  const std::vector<std::uint32_t>& class_of_link_;
  std::vector<std::uint32_t> begin_;   // [link + 1] in listed_
  std::vector<std::uint32_t> listed_;  // classes of the flows of each link
};

}  // namespace

std::optional<Folding> fold(const FlowTable& flows) {
  const std::size_t most = flows.size() / 2;
  Refinement colors(flows);
  const auto number_flows = [&](Folding& folding, std::vector<std::uint32_t>& first) {
    Numbering numbers(most);
    folding.class_of.resize(flows.size());
    for (std::uint32_t flow = 0; flow < flows.size(); ++flow) {
      const std::uint32_t number = numbers(colors.flow(flow));
      if (number == none) return false;
      folding.class_of[flow] = number;
      if (number == first.size()) first.push_back(flow);
    }
    return true;
  };
  Folding folding;
  std::vector<std::uint32_t> first;
  if (!number_flows(folding, first)) return std::nullopt;  // too many sizes as it is
  colors.run();
  first.clear();
  if (!number_flows(folding, first)) return std::nullopt;
  folding.classes.resize(first.size());

  std::vector<std::uint32_t> class_of_link(flows.capacity.size());
  Numbering numbers(flows.capacity.size());
  for (std::size_t link = 0; link < class_of_link.size(); ++link) {
    class_of_link[link] = numbers(colors.links()[link]);
    if (numbers.count() > folding.capacity.size()) folding.capacity.push_back(flows.capacity[link]);
  }
  if (!Checker(flows, folding, class_of_link).run(first)) return std::nullopt;
  return folding;
}

}  // namespace moesim::network
