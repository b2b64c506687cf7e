#include "sim/profile/gpu_count_law.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "sim/base/no_answer.hpp"
#include "sim/base/units.hpp"

namespace moesim::profile {

namespace {

// The constants of the law, chosen once for all machines behind NVLink switches (4 GPUs from 2 and
// 8 from 4): profiles/EXCHANGES.md says what errors come out when a machine is left out of the
// choice. tools/fit/gpu_count_law.py holds the same.
constexpr double exponent = 4;                      // sharpness of the soft maximum
constexpr double port_share = 0.70;                 // of the line rate, grouped send and receive
constexpr double us_per_peer = 0.075;               // of each further peer at small sizes
constexpr double one_channel_bytes = 32.0 * 1024;   // per peer: up to here one channel serves it
constexpr double all_channels_bytes = 64.0 * 1024;  // per peer: from here all of them do
constexpr double streaming_bytes = bytes_per_mib;   // bandwidths, not latencies, from here on
constexpr int largest_chain = 8;  // GPUs of a node: an all-reduce among more takes a tree of nodes

// How far the law's bands reach, in logs, below each of these sizes (exchange_coverage.hpp has the
// rule): of the machines behind NVLink switches, and over PCIe of all machines.
constexpr std::array<double, 4> error_regions = {64 * 1024.0 + 1, bytes_per_mib + 1,
                                                 16 * bytes_per_mib + 1,
                                                 std::numeric_limits<double>::infinity()};
constexpr std::array<double, 4> grouped_nvlink = {0.29, 0.14, 0.14, 0.10};
constexpr std::array<double, 4> grouped_pcie = {0.76, 1.07, 0.39, 0.23};
constexpr std::array<double, 4> gathering_nvlink = {0.19, 0.16, 0.33, 0.10};
constexpr std::array<double, 4> gathering_pcie = {0.22, 0.46, 0.29, 0.05};
constexpr std::array<double, 4> reducing_nvlink = {0.41, 0.71, 0.29, 0.13};
constexpr std::array<double, 4> reducing_pcie = {0.37, 0.64, 0.31, 0.13};

using Curves = std::vector<CountCurve>;

// Sizes from the smallest knot on, each twice the one before, until the bytes per peer are those of
// the largest knot among `many`.
std::vector<double> octaves(const CountCurve& many, int gpus) {
  const double high = many.curve.largest() * gpus / many.gpus;
  std::vector<double> sizes = {many.curve.smallest()};
  while (sizes.back() < high * (1 - 1e-9)) sizes.push_back(2 * sizes.back());
  return sizes;
}

// Equal bytes per peer, and as much for each further GPU as the last ones measured took.
double further_peers_us(const Curves& fewer, int gpus, double size) {
  const CountCurve& few = fewer.front();
  const CountCurve& many = fewer.back();
  const double at_many = many.curve.time_us(size * many.gpus / gpus);
  const double slope =
      (at_many - few.curve.time_us(size * few.gpus / gpus)) / (many.gpus - few.gpus);
  return at_many + (gpus - many.gpus) * std::max(slope, 0.0);
}

// Further steps of the same latency, among so many GPUs instead of `many`. Between nodes of one
// domain an all-reduce goes through NCCL's trees: two steps, up and down, for each doubling, as
// many as the ring takes for one GPU more.
double further_steps(Collective kind, int many, int gpus) {
  if (kind != Collective::all_reduce || gpus <= largest_chain) return gpus - many;
  const int chain = std::max(many, largest_chain);
  return chain - many + std::log2(static_cast<double>(gpus) / chain);
}

// A fixed part and equal steps: 2 (n - 1) of them for all-reduce, n - 1 for the others, each of a
// chunk of size / n. Never more than the same bytes sent, further_steps() aside.
double ring_us(Collective kind, const NodeLinks& links, const Curves& fewer, int gpus,
               double size) {
  const CountCurve& few = fewer.front();
  const CountCurve& many = fewer.back();
  const double rise = many.curve.time_us(0) - few.curve.time_us(0);
  const double step_us = std::max(rise / (many.gpus - few.gpus), 0.0);
  const double ratio = sent_share(kind, gpus, links.switch_reduces) /
                       sent_share(kind, many.gpus, links.switch_reduces);
  const double as_sent =
      many.curve.time_us(size * ratio) + step_us * further_steps(kind, many.gpus, gpus);
  return std::min(further_peers_us(fewer, gpus, size), as_sent);
}

// The time of `size` bytes of all-to-all over the link between two groups of GPUs: a group's bytes
// for the others, each direction. 0 where none is crossed.
double crossing_us(const NodeLinks& links, int gpus, double size) {
  if (links.group <= 0 || gpus <= links.group) return 0;
  return static_cast<double>(links.group) * (gpus - links.group) / gpus * size /
         links.group_bytes_per_us;
}

// All-to-all before the bandwidths of ports and channels take over. A peer's message keeps to one
// channel up to a size, and is spread over all of them from twice that on. Over PCIe the link
// between groups takes its time from the first byte on.
double start_us(const NodeLinks& links, const Curves& fewer, int gpus, double size) {
  const CountCurve& many = fewer.back();
  const double ratio = sent_share(Collective::all_to_all, gpus, false) /
                       sent_share(Collective::all_to_all, many.gpus, false);
  const double spread = many.curve.time_us(size * ratio);
  if (links.kind == NodeLinks::Kind::pcie) {
    const double as_fewer = fewer.size() == 1 ? spread : further_peers_us(fewer, gpus, size);
    return std::max(as_fewer, many.curve.time_us(0) + crossing_us(links, gpus, size));
  }
  const double single =
      many.curve.time_us(size * many.gpus / gpus) + us_per_peer * (gpus - many.gpus);
  const double octave = std::log2(size / gpus / one_channel_bytes);
  const double share =
      std::clamp(octave / std::log2(all_channels_bytes / one_channel_bytes), 0.0, 1.0);
  return std::pow(single, 1 - share) * std::pow(spread, share);
}

// The time of `size` more bytes of all-to-all among `gpus`, where they took `took` among `many`.
// Behind a switch: the channels copy a GPU's own part and all peers' parts side by side, which
// takes as long among any number; the port carries what leaves the GPU. The slower of the two
// decides, softly: T^4 = channels^4 + port^4.
double further_us(const NodeLinks& links, int many, int gpus, double size, double took) {
  const double before = sent_share(Collective::all_to_all, many, false);
  const double after = sent_share(Collective::all_to_all, gpus, false);
  if (links.kind == NodeLinks::Kind::pcie) {
    return std::max(took * after / before, crossing_us(links, gpus, size));
  }
  const double port = size / (port_share * links.port_bytes_per_us);
  const double channels =
      std::max(std::pow(took, exponent) - std::pow(before * port, exponent), 0.0);
  return std::max(std::pow(channels + std::pow(after * port, exponent), 1 / exponent), took);
}

void check(Collective kind, const NodeLinks& links, const Curves& fewer, int gpus) {
  const char* name = name_of(kind);
  if (fewer.empty() || fewer.back().gpus >= gpus) {
    throw NotMeasured(fmt::format("{} among {} GPUs: no curve of fewer GPUs to go by", name, gpus));
  }
  if (kind != Collective::all_to_all && fewer.size() < 2) {
    throw NotMeasured(
        fmt::format("{} among {} GPUs: a ring's latency per step takes curves of two GPU "
                    "counts, and there is one, of {} GPUs: measure another count",
                    name, gpus, fewer.front().gpus));
  }
  if (links.kind == NodeLinks::Kind::unknown) {
    throw NotMeasured(
        fmt::format("{} among {} GPUs: how the GPUs are joined is not said: give the "
                    "profile's topology a kind (nvswitch or pcie)",
                    name, gpus));
  }
}

}  // namespace

Residual errors_of_law(Collective kind, NodeLinks::Kind links) {
  const bool pcie = links == NodeLinks::Kind::pcie;
  const auto& reaches = [&]() -> const std::array<double, 4>& {
    if (kind == Collective::all_to_all) return pcie ? grouped_pcie : grouped_nvlink;
    if (kind == Collective::all_reduce) return pcie ? reducing_pcie : reducing_nvlink;
    return pcie ? gathering_pcie : gathering_nvlink;
  }();
  std::vector<Residual::Region> regions;
  for (std::size_t at = 0; at < reaches.size(); ++at) {
    const double high = std::expm1(reaches.at(at));
    regions.push_back(
        {"", error_regions.at(at), high / 2, high, std::expm1(-reaches.at(at)), high});
  }
  return Residual("bytes", std::move(regions));
}

double sent_share(Collective kind, int gpus, bool switch_reduces) {
  const double share = static_cast<double>(gpus - 1) / gpus;
  if (kind != Collective::all_reduce) return share;
  return switch_reduces ? 1 : 2 * share;
}

SizeCurve among_more_gpus(Collective kind, const NodeLinks& links, const Curves& fewer, int gpus) {
  check(kind, links, fewer, gpus);
  const CountCurve& many = fewer.back();
  const std::vector<double> sizes = octaves(many, gpus);
  std::vector<double> times;
  for (std::size_t knot = 0; knot < sizes.size(); ++knot) {
    const double size = sizes[knot];
    double time = 0;
    if (kind != Collective::all_to_all) {
      time = ring_us(kind, links, fewer, gpus, size);
    } else if (knot == 0 || size <= streaming_bytes) {
      time = start_us(links, fewer, gpus, size);
    } else {
      const double took = many.curve.time_us(size) - many.curve.time_us(sizes[knot - 1]);
      time = times.back() + further_us(links, many.gpus, gpus, size - sizes[knot - 1], took);
    }
    times.push_back(times.empty() ? time : std::max(time, times.back()));
  }
  return SizeCurve(sizes, times);
}

}  // namespace moesim::profile
