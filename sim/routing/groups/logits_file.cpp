#include "sim/routing/groups/logits_file.hpp"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/routing/groups/check_router.hpp"
#include "sim/routing/rules/expert_bias.hpp"

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

// Turns positions into the numbers of the experts.
void to_experts(const ExpertPlacement& placement, RoutedGroup& group) {
  const std::vector<std::uint16_t>& expert_at = placement.expert_at(0);
  for (std::size_t choice = 0; choice < static_cast<std::size_t>(group.choices); ++choice) {
    for (std::size_t token = 0; token < group.tokens; ++token) {
      std::uint16_t& expert = group.expert[choice * group.stride + token];
      if (expert != no_expert) expert = expert_at[expert];
    }
  }
  for (std::int32_t& expert : group.ir_expert) {
    if (expert >= 0) expert = expert_at[static_cast<std::size_t>(expert)];
  }
  put_in_placement(placement.position_of(0), group.kept_rows);
}

// False: an expert's GPU decides nothing, and routes are found in the order of the experts'
// numbers, by which their ties go. Others are routed by position, by which theirs go then.
bool heeds_places(const RouterConfig& config) {
  return !config.kind->takes_best || config.rectification != Rectification::none;
}

// Whole numbers, whatever their shape, are often choices.
void refuse_choices(const NpyArray& array) {
  if (array.dtype.find_first_of("iu") != 1 || array.is_floating()) return;
  try {
    array.floating();
  } catch (const UsageError& error) {
    throw UsageError(fmt::format(
        "{}; of choices of experts make a trace: moesim import --axes rank,token,choice",
        error.what()));
  }
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

GroupOfFile group_of(const NpyArray& array) {
  refuse_choices(array);
  const std::size_t axes = array.shape.size();
  if (axes != 2 && axes != 3) {
    throw UsageError(fmt::format(
        "{}: shape {} instead of [P, S, E] (ranks, tokens per rank, experts) or [S, E]{}",
        array.name, array.shape_text(),
        axes == 4 ? ": make a trace of it with moesim import --axes" : ""));
  }
  GroupOfFile group;
  group.name = array.name;
  group.ranks = axes == 3 ? array.shape[0] : 1;
  group.tokens = array.shape[axes - 2];
  group.experts = array.shape[axes - 1];
  if (group.ranks < 1 || group.experts < 1 || group.ranks > group.experts ||
      group.experts > max_experts) {
    throw UsageError(fmt::format(
        "{}: shape {}: there has to be at least one rank and an expert on each, and at most {} "
        "experts",
        array.name, array.shape_text(), max_experts));
  }
  group.logits = array.floating();
  return group;
}

AuxiliaryLosses auxiliary_losses(const RouterConfig& config, const GroupOfFile& group,
                                 const RoutedGroup& routed) {
  const ScoreFunction scores =
      config.kind->scores_by_sigmoid ? ScoreFunction::sigmoid : config.score_function;
  AuxiliarySums sums(static_cast<int>(group.experts), routed.top_k, 0, scores);
  const auto size = static_cast<std::size_t>(group.tokens * group.experts);
  std::vector<float> rounded;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(group.ranks); ++rank) {
    std::span<const float> logits = std::span(group.logits).subspan(rank * size, size);
    if (config.router_dtype == RouterDtype::bf16) {
      rounded.assign(logits.begin(), logits.end());
      round_to_bf16(rounded);
      logits = rounded;
    }
    const auto begin = static_cast<std::size_t>(routed.rank_begin[rank]);
    sums.add(logits, group.tokens, static_cast<int>(rank),
             {routed.expert.data() + begin, routed.stride});
  }
  return sums.losses();
}

RoutedGroup route_logits(const RouterConfig& config, const GroupOfFile& group,
                         const RouterContext& context,
                         const std::shared_ptr<const ExpertPlacement>& placement) {
  RouterConfig router = config;
  std::vector<float> placed;
  std::span<const float> logits = group.logits;
  if (router.expert_bias && router.expert_bias->trained_on()) {
    throw UsageError(
        fmt::format("--expert-bias {}: goes with generated or recorded routing; beside --logits "
                    "give the biases "
                    "themselves, FILE.npy, or leave the option out to train them on these logits",
                    router.expert_bias->name()));
  }
  if (placement) check_placement(config, *placement, static_cast<int>(group.experts));
  const bool by_position = placement && heeds_places(config);
  if (by_position) {
    if (router.expert_bias) {
      router.expert_bias =
          std::make_shared<const ExpertBias>(router.expert_bias->placed(placement));
    }
    placed = group.logits;
    put_in_placement(placement->expert_at(0), placed);
    logits = placed;
  }
  std::vector<RankLogits> sources;
  const auto size = static_cast<std::size_t>(group.tokens * group.experts);
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(group.ranks); ++rank) {
    sources.push_back({logits.subspan(rank * size, size), group.tokens});
  }
  try {
    RoutedGroup routed = route_group(router, static_cast<int>(group.experts), sources, context);
    if (by_position) to_experts(*placement, routed);
    return routed;
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("{}: {}", group.name, error.what()));
  }
}

}  // namespace moesim::routing
