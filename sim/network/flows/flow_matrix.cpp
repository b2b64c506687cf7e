#include "sim/network/flows/flow_matrix.hpp"

#include <algorithm>
#include <limits>

namespace moesim::network {
namespace {

constexpr std::size_t fewest_flows = 512;
constexpr std::size_t most_links = 4096;

// Whether most of some 4,096 flows have sizes of their own.
bool many_sizes(const FlowTable& flows) {
  const std::size_t stride = std::max<std::size_t>(1, flows.size() / 4096);
  std::vector<std::int64_t> sizes;
  for (std::size_t flow = 0; flow < flows.size(); flow += stride)
    sizes.push_back(flows.bytes[flow]);
  const std::size_t count = sizes.size();
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return 2 * sizes.size() > count;
}

// Links by side, each with its place there.
struct Sides {
  static constexpr std::uint32_t unused = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::uint32_t> place;  // [link]
  std::vector<std::uint8_t> side;    // [link]
  std::size_t count[2] = {0, 0};
};

// Whether each link is the first or the second of its flows; nothing if a link is the first of one
// flow and the second of another, or a route has not two.
std::optional<Sides> sides_of(const FlowTable& flows) {
  Sides sides;
  sides.place.assign(flows.capacity.size(), Sides::unused);
  sides.side.resize(flows.capacity.size());
  for (std::size_t flow = 0; flow < flows.size(); ++flow) {
    if (flows.hops[flow] != 2) return std::nullopt;
    for (std::size_t hop = 0; hop < 2; ++hop) {
      const std::uint32_t link = flows.route(flow)[hop];
      if (sides.place[link] == Sides::unused) {
        sides.place[link] = static_cast<std::uint32_t>(sides.count[hop]++);
        sides.side[link] = static_cast<std::uint8_t>(hop);
      }
      if (sides.side[link] != hop) return std::nullopt;
    }
  }
  return sides;
}

}  // namespace

std::optional<FlowMatrix> FlowMatrix::of(const FlowTable& flows) {
  if (flows.size() < fewest_flows || !many_sizes(flows)) return std::nullopt;
  const std::optional<Sides> sides = sides_of(flows);
  if (!sides) return std::nullopt;
  const std::size_t links = std::max(sides->count[0], sides->count[1]);
  if (links > most_links) return std::nullopt;
  if (flows.size() * 8 < sides->count[0] * sides->count[1]) return std::nullopt;
  FlowMatrix matrix;
  matrix.words = (links + 63) / 64;
  const std::size_t width = matrix.width();
  matrix.capacity.assign(2 * width, 1);
  for (std::size_t link = 0; link < sides->place.size(); ++link) {
    if (sides->place[link] == Sides::unused) continue;
    matrix.capacity[sides->side[link] * width + sides->place[link]] = flows.capacity[link];
  }
  std::vector<bool> taken(width * width);
  matrix.flow_at.resize(width * width);
  matrix.entries.reserve(flows.size());
  for (std::uint32_t flow = 0; flow < flows.size(); ++flow) {
    const std::uint32_t first = sides->place[flows.route(flow)[0]];
    const std::uint32_t second = sides->place[flows.route(flow)[1]];
    const std::size_t pair = first * width + second;
    if (taken[pair]) return std::nullopt;
    taken[pair] = true;
    matrix.flow_at[pair] = flow;
    matrix.entries.push_back(
        {flows.entry[flow], first, second, flow, static_cast<double>(flows.bytes[flow])});
  }
  std::stable_sort(matrix.entries.begin(), matrix.entries.end(),
                   [](const Entry& a, const Entry& b) { return a.time < b.time; });
  return matrix;
}

}  // namespace moesim::network
