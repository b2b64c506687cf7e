#include "tools/moesim/megatron/megatron_routing.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/model/model.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/study/sweep/grid.hpp"
#include "tools/moesim/base/output.hpp"

namespace moesim::tool {
namespace {

using model::MegatronArguments;

// The k of the models, that of the script where none is typed.
std::vector<int> usual_choices(const MegatronInput& input) {
  std::vector<int> usual;
  const std::string models = input.line.get("model");
  for (const std::string_view name : split(models, ',')) {
    try {
      const model::Model model = model::Model::load(std::string(name));
      usual.push_back(model.moe ? model.moe->top_k : 0);
    } catch (const Error&) {  // of the model, said where it is resolved
    }
  }
  if (!models.empty()) return usual;
  return {static_cast<int>(input.given.size("moe-router-topk").value_or(2))};
}

std::vector<std::string> typed_values(const MegatronInput& input, const char* option,
                                      bool is_number) {
  if (!input.typed(option)) return {""};
  return study::expand(fmt::format("--{}", option), input.line.get(option), is_number);
}

// How many experts a token chooses, of each router typed that has a capacity, else of the models'.
std::set<int> choices_with_capacity(const MegatronInput& input) {
  std::set<int> choices;
  for (const int usual : usual_choices(input)) {
    for (const std::string& typed : typed_values(input, "top-k", true)) {
      const int top_k = parse_number<int>(typed).value_or(0);
      for (const std::string& router : typed_values(input, "router", false)) {
        try {
          const routing::RouterConfig config =
              routing::parse_router(router.empty() ? "topk" : router, top_k, usual);
          const bool takes_factor =
              config.kind->capacity == routing::CapacityRule::by_factor_if_set;
          if (config.overflows() || takes_factor) choices.insert(config.top_k);
        } catch (const Error&) {  // of this point, said where it is resolved
        }
      }
    }
  }
  return choices;
}

// The priority of all points, which is one for k = 1 and another above.
std::string priority_by_weight(const MegatronInput& input) {
  const std::set<int> choices = choices_with_capacity(input);
  if (!choices.contains(1)) return "own-weight";
  if (choices.size() == 1) return "own-score";
  std::vector<std::string> lists;
  for (const char* option : {"model", "router", "top-k"}) {
    const std::string text = input.line.get(option);
    const bool is_range = option == std::string_view("top-k") && text.find(':') != text.npos;
    if (!is_range && text.find(',') == text.npos) continue;
    lists.push_back(fmt::format("--{} {}", option, text));
  }
  throw UsageError(fmt::format(
      "{}: with a capacity Megatron-LM drops by --priority own-score where a token chooses one "
      "expert, else by own-weight: type a --priority for all, or run them one by one",
      fmt::join(lists, ", ")));
}

// Whether the file has a capacity, or one is typed: how it drops and pads is the file's in both
// cases.
bool has_capacity(const MegatronInput& input) {
  return input.given.has("moe-expert-capacity-factor") || input.typed("capacity-factor");
}

bool draws_routing(const MegatronInput& input) {
  const bool draws = input.typed("routing-draws") && input.line.get("routing-draws") != "balanced";
  return has_capacity(input) || input.typed("routing") || draws;
}

// What decides an expert, or a group of them, of the model's own router, where routing is drawn:
// sigmoids of logits, in the place of a softmax, matter to what an expert's capacity drops, and
// groups are kept by the sum of their k / KEPT best experts
// (megatron/core/transformer/moe/moe_utils.py, group_limited_topk), of logits where the softmax
// comes after the choice.
void take_scores(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  const std::string scores = given.text("moe-router-score-function").value_or("softmax");
  const bool is_softmax_after = scores == "softmax" && !given.has("moe-router-pre-softmax");
  const bool has_groups = given.size("moe-router-num-groups").value_or(1) > 1;
  // The expert bias is added to sigmoids; the choice is the router's, what drops its routes their
  // scores without the bias.
  const bool has_bias = given.has("moe-router-enable-expert-bias");
  if (input.typed("router") || input.typed("model") || !draws_routing(input)) return;
  if (has_groups) {
    // Devices are chosen by their best expert (DeepSeek-V2, device_limited_topk).
    const bool is_by_best = given.has("moe-router-topk-limited-devices");
    input.options["group-score"] = is_by_best                      ? "max"
                                   : is_softmax_after && !has_bias ? "topk-logits"
                                                                   : "topk";
  } else if (scores == "sigmoid" && !has_bias && has_capacity(input)) {
    input.options["score-function"] = "sigmoid";
  }
}

// `probs` drops by a route's weight (megatron/core/transformer/moe/moe_utils.py): of a softmax over
// the k chosen, with --moe-router-pre-softmax, which k = 1 needs, of one over all experts; of other
// score functions, which take no notice of that argument, over the sum of the k, for k = 1 the
// score itself. `position` knows a token's place, not which of its choices an expert is.
void take_drops(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  const bool pads = given.has("moe-pad-expert-input-to-capacity");
  const std::string scores = given.text("moe-router-score-function").value_or("softmax");
  const bool is_share_of_all = given.has("moe-router-pre-softmax") && scores == "softmax";
  const std::string policy = given.text("moe-token-drop-policy").value_or("probs");
  if (policy != "probs" && policy != "position") {
    given.fail("moe-token-drop-policy", fmt::format("'{}': known are position, probs", policy));
  }
  const auto least = given.count("moe-min-capacity");
  if (pads && !has_capacity(input)) {
    note(
        fmt::format("note: {}: --moe-pad-expert-input-to-capacity has no effect, and Megatron-Core "
                    "refuses it, without --moe-expert-capacity-factor",
                    given.name()));
  }
  // A dialect that is typed says both.
  if (!has_capacity(input) || input.typed("router-dialect")) return;
  if (given.drops_as_deepspeed()) {
    input.options["router-dialect"] = "deepspeed";
    if (least) input.options["min-capacity"] = fmt::format("{}", *least);
    return;
  }
  input.options["padding"] = pads ? "capacity" : "none";
  if (!pads && !given.has("moe-expert-capacity-factor") && !input.typed("padding")) {
    note(
        fmt::format("note: {}: --padding none, as it has no --moe-pad-expert-input-to-capacity: "
                    "--padding capacity drops and pads",
                    given.name()));
  }
  if (input.typed("priority")) return;
  input.options["priority"] = policy == "position" ? "token-order"
                              : is_share_of_all    ? "own-score"
                                                   : priority_by_weight(input);
}

// Megatron-Core then routes by random logits (moe_utils.py, RandomSTE).
void take_random_logits(MegatronInput& input) {
  if (!input.given.has("moe-router-force-load-balancing") || input.typed("routing")) return;
  if (draws_routing(input)) input.options["routing"] = "balanced";
}

}  // namespace

void take_routing(MegatronInput& input) {
  take_drops(input);
  take_random_logits(input);
  take_scores(input);
}

}  // namespace moesim::tool
