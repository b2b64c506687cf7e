#include "sim/routing/groups/logits_file.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"

namespace moesim::routing {

namespace {

constexpr std::size_t kind_letters = 7;

// NumPy's <U7: seven UTF-32 code points, padded with zeros.
std::array<std::uint32_t, kind_letters> kind_text(RouteKind kind) {
  const std::string_view text = kind == RouteKind::primary ? "primary"
                                : kind == RouteKind::fill  ? "fill"
                                                           : "ir";
  std::array<std::uint32_t, kind_letters> letters{};
  for (std::size_t index = 0; index < text.size(); ++index) {
    letters[index] = static_cast<unsigned char>(text[index]);
  }
  return letters;
}

template <typename Value>
void append(std::string& bytes, const Value& value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

void write_routes(const std::string& path, const RoutedGroup& group) {
  const std::vector<Route> routes = group.routes();
  std::string records;
  records.reserve(routes.size() * (6 + kind_letters) * 4);
  for (const Route& route : routes) {
    append(records, route.rank);
    append(records, route.token);
    append(records, route.choice);
    append(records, route.expert);
    append(records, route.slot);
    append(records, route.weight);
    append(records, kind_text(route.kind));
  }
  write_npy_records(path,
                    {{"rank", "<i4"},
                     {"token", "<i4"},
                     {"choice", "<i4"},
                     {"expert", "<i4"},
                     {"slot", "<i4"},
                     {"weight", "<f4"},
                     {"kind", fmt::format("<U{}", kind_letters)}},
                    static_cast<std::int64_t>(routes.size()), records);
}

AuxiliaryLosses auxiliary_losses(const RouterConfig& config, const NpyArray& array) {
  if (array.shape.size() != 3 || config.top_k > array.shape[2]) {
    throw UsageError(fmt::format("{}: shape {}: expected [P, S, E] with at least {} experts",
                                 array.name, array.shape_text(), config.top_k));
  }
  const std::vector<float> logits = array.float32();
  AuxiliarySums sums(static_cast<int>(array.shape[2]), config.top_k);
  const auto size = static_cast<std::size_t>(array.shape[1] * array.shape[2]);
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(array.shape[0]); ++rank) {
    sums.add(std::span<const float>(logits).subspan(rank * size, size), array.shape[1],
             static_cast<int>(rank));
  }
  return sums.losses();
}

RoutedGroup route_logits(const RouterConfig& config, const NpyArray& array,
                         const std::string& out_path, const RouterContext& context) {
  if (array.shape.size() != 3) {
    throw UsageError(
        fmt::format("{}: shape {} instead of [P, S, E] (ranks, tokens per rank, experts)",
                    array.name, array.shape_text()));
  }
  const std::vector<float> logits = array.float32();
  const std::int64_t ranks = array.shape[0];
  const std::int64_t tokens = array.shape[1];
  const std::int64_t experts = array.shape[2];
  if (ranks < 1 || experts < 1 || ranks > experts || experts > max_experts) {
    throw UsageError(fmt::format(
        "{}: shape {}: there has to be at least one rank and an expert on each, and at most {} "
        "experts",
        array.name, array.shape_text(), max_experts));
  }
  check_writable(out_path);
  std::vector<RankLogits> sources;
  const auto size = static_cast<std::size_t>(tokens * experts);
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(ranks); ++rank) {
    sources.push_back({std::span<const float>(logits).subspan(rank * size, size), tokens});
  }
  RoutedGroup group;
  try {
    group = route_group(config, static_cast<int>(experts), sources, context);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", array.name, error.what()));
  }
  write_routes(out_path, group);
  return group;
}

}  // namespace moesim::routing
