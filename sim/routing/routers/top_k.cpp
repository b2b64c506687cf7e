// topK: each token goes to its k best experts, and an overflowing expert keeps C of the routes (see
// groups/group_router.hpp). FR and IR as in Zeng et al. 2024.
#include <fmt/format.h>

#include "sim/base/text.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"

namespace moesim::routing {

namespace {

// "top2" is 2; "topk" takes --top-k, or the model's value.
void read(const RouterReading& in, RouterConfig& config) {
  in.expect(0, 0, "top1, top2, ... or topk with --top-k");
  const std::string_view digits = in.parts[0].substr(3);
  if (digits == "k") {
    config.top_k = in.k_beside();
    return;
  }
  const auto value = parse_number<int>(digits);
  if (!value || *value < 0 || digits.size() > 4) {
    in.refuse_unknown();
  }
  if (*value < 1) in.refuse("a token needs at least one expert");
  if (in.top_k > 0 && in.top_k != *value) {
    in.refuse(fmt::format("it says {} experts per token, --top-k says {}: give one of the two",
                          *value, in.top_k));
  }
  config.top_k = *value;
}

std::string name(const RouterConfig& config) { return fmt::format("top{}", config.top_k); }

}  // namespace

constinit const RouterDescriptor top_k_router{.head = "top",
                                              .head_is_prefix = true,
                                              .form = "top1, ..., topk",
                                              .short_form = "topK",
                                              .help =
                                                  "the k best experts of each token; topk: k is "
                                                  "--top-k",
                                              .chooses_top_k = true,
                                              .takes_best = true,
                                              .can_rectify = true,
                                              .read = read,
                                              .name = name,
                                              .price = top_k_gate};

}  // namespace moesim::routing
