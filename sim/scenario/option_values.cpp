#include "sim/scenario/option_values.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <limits>
#include <utility>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"
#include "sim/scenario/expert_placements.hpp"
#include "sim/scenario/options.hpp"

namespace moesim::scenario {
namespace {

struct Bounds {
  const char* option;
  std::int64_t low;
  std::int64_t high;
};

// The upper bounds keep products of sizes inside 64 bits and the counters of the random streams
// (rank and replica below 2^24) inside theirs.
constexpr std::array<Bounds, 11> whole_bounds{{
    {"gpus", 1, 1 << 20},
    {"expert-parallel", 1, 1 << 20},
    {"experts", 1, 1 << 16},
    {"top-k", 1, 1 << 16},
    {"min-capacity", 0, std::int64_t{1} << 31},
    {"sequence-length", 1, std::int64_t{1} << 27},
    {"micro-batch", 1, 1 << 20},
    {"global-batch", 1, std::int64_t{1} << 40},
    {"tokens-per-gpu", 1, std::int64_t{1} << 31},
    {"zero", 0, 3},
    {"replicas", 1, 1 << 20},
}};

template <class Value>
Value choose(const std::string& flag, const std::string& text,
             const std::vector<std::pair<std::string, Value>>& choices) {
  std::vector<std::string> names;
  for (const auto& [name, value] : choices) {
    if (name == text) return value;
    names.push_back(name);
  }
  std::string listed;
  for (const std::string& name : names) listed += (listed.empty() ? "" : ", ") + name;
  throw UsageError(fmt::format("{}: unknown value '{}'{}; choose from {}", flag, text,
                               suggestion(text, names), listed));
}

bool is_negative(const std::string& text) { return text.size() > 1 && text[0] == '-'; }

std::vector<OptionSpec> all_options() {
  using enum OptionKind;
  return {
      {"profile", text, "NAME|FILE", default_profile,
       "GPU and node, as measured; an unknown name lists those that ship"},
      {"model", text, "NAME|FILE", default_model,
       "transformer and its MoE layers; names as of profiles"},
      {"cluster", text, "NAME|FILE", "the profile's usual node",
       "nodes, NICs and fabric; names as of profiles"},
      {"gpus", whole, "N", "32", "GPUs in all"},
      {"expert-parallel", whole, "P", "as many as divide both, in one node",
       "GPUs that share one set of experts: a group; divides GPUs and experts"},
      {"experts", whole, "E", "the model's", "experts per MoE layer"},
      {"expert-placement",
       text,
       "NAME|FILE",
       "contiguous",
       "which of a group's GPUs has expert e; its own ones (+ir) and exchanges follow:",
       {{"contiguous", "GPU e / (E / P)"},
        {"round-robin", "GPU e modulo P"},
        {"balanced:FILE", "by load: a CSV of layer, expert, count"},
        {"FILE", "a CSV of expert, rank, and layer if these differ"}}},
      {"top-k", whole, "K", "the router's, else the model's",
       "experts per token, for routers whose name does not say"},
      {"router", text, "NAME", "the model's",
       "which experts a token goes to:", routing::router_forms()},
      {"capacity-factor", decimal, "CF", "k (1 with the library convention)",
       "of S tokens of a GPU an expert takes at most C = ceil(CF S / E)"},
      {"capacity-convention",
       text,
       "NAME",
       "paper",
       "what a balanced load needs:",
       {{"paper", "CF = k"}, {"library", "CF = 1, and C = ceil(k CF S / E)"}}},
      {"capacity-scope",
       text,
       "NAME",
       "source",
       "whose tokens compete for an expert's slots:",
       {{"source", "those of each GPU for C slots"},
        {"group", "those of all P GPUs of a group for P C slots"}}},
      {"min-capacity", whole, "C", "0", "C is at least that"},
      {"router-dialect", text, "NAME", "paper",
       "paper, deepspeed, megatron, tutel or switch: how C is rounded, and the defaults of "
       "convention, least capacity, priority, weights and padding, as that software has them"},
      {"padding",
       text,
       "NAME",
       "capacity",
       "what is exchanged for each expert:",
       {{"capacity", "C rows, empty ones too"}, {"none", "the rows kept, after their counts"}}},
      {"priority",
       text,
       "NAME",
       "token-max",
       "which routes a full expert keeps:",
       {{"token-max", "first choices first, then tokens by their best score"},
        {"own-score", "of all choices those that score it best"},
        {"own-weight", "the same, by score over the sum of the token's k"},
        {"position", "first choices first, then tokens in order"},
        {"random", "first choices first, then any tokens"}}},
      {"weights",
       text,
       "NAME",
       "kept",
       "what an expert's output is multiplied by: its score",
       {{"kept", "over the sum of the experts kept"},
        {"before-drop", "over the sum of the k chosen"},
        {"raw", "as it is"}}},
      {"fill-order",
       text,
       "NAME",
       "nominee-score",
       "of +fr, who gets the free slots:",
       {{"nominee-score", "tokens that score the expert best"},
        {"priority", "tokens in the order of --priority"}}},
      {"ir-compute",
       text,
       "NAME",
       "separate",
       "of +ir, when the expert computes the extra rows:",
       {{"separate", "in a call of their own"},
        {"grouped", "with the rows received"},
        {"overlap", "while those travel"}}},
      {"ir-duplicates",
       text,
       "NAME",
       "allow",
       "of +ir, an expert that has the token already:",
       {{"allow", "computes it again"}, {"exclude", "the GPU's next best takes its place"}}},
      {"dispatch",
       text,
       "NAME",
       "index",
       "how tokens get into the blocks of experts:",
       {{"index", "gathered"}, {"einsum", "by products with one-hot masks"}}},
      {"dedup",
       text,
       "NAME",
       "none",
       "without padding, a token whose experts share a place is sent once to each:",
       {{"none", "expert"}, {"gpu", "GPU"}, {"node", "node, and on over NVLink, as DeepEP does"}}},
      {"mode", text, "NAME", "train", "train, or prefill: forward only"},
      {"sequence-length", whole, "N", "the model's", "tokens per sequence"},
      {"micro-batch", whole, "N", "8", "sequences per GPU and micro-step"},
      {"global-batch", whole, "N", "what one micro-step gives",
       "sequences per step; more accumulates gradients"},
      {"tokens-per-gpu", whole, "S", "sequence length times micro-batch",
       "tokens per GPU and micro-step"},
      {"checkpointing", text, "NAME", "none", "none, or full: repeat the forward in the backward"},
      {"zero", whole, "STAGE", "1",
       "ZeRO stage, 0 to 3: optimizer, then gradients, then parameters spread over the GPUs"},
      {"overlap", text, "NAME", "none", "none, or gradient: reduce gradients during the backward"},
      {"routing", text, "SOURCE", default_routing,
       "which experts are popular, or what was recorded:", routing::score_source_forms()},
      {"fidelity",
       text,
       "NAME",
       "auto",
       "how routing is drawn:",
       {{"tokens", "each token"},
        {"counts", "how many tokens of each GPU an expert gets; losses are estimated"},
        {"auto", "tokens up to 1e9 logits a replica, then counts where offered"}}},
      {"network",
       text,
       "NAME",
       "auto",
       "how long exchanges take:",
       {{"fast", "each by itself, by its busiest port"},
        {"flows", "all at a time share the cluster's links"},
        {"auto",
         "fast where that is exact, flows where expert groups share links, if affordable"}}},
      {"slow-gpu", text, "GPU:FACTOR", "none",
       "kernels of that GPU take longer; of more: 3:1.5+7:2"},
      {"slow-link", text, "GPU:FACTOR", "none",
       "ports of that GPU have 1/FACTOR of their bandwidth"},
      {"jitter", decimal, "SIGMA", "0", "log-normal spread of each kernel on each GPU"},
      {"overlap-slowdown", text, "A:B", "the profile's, else 1:1",
       "compute beside an exchange takes A times as long, the exchange B times"},
      {"replicas", whole, "N", "16", "repetitions with other random numbers"},
      {"seed", whole, "N", "1", "of the random numbers"},
  };
}

}  // namespace

const std::vector<OptionSpec>& scenario_options() {
  static const std::vector<OptionSpec> options = all_options();
  return options;
}

std::int64_t parse_whole(const std::string& flag, const std::string& text, std::int64_t low,
                         std::int64_t high) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, code] = std::from_chars(text.data(), end, value);
  if (code == std::errc::result_out_of_range ||
      (code == std::errc() && stopped == end && value > high)) {
    throw UsageError(fmt::format("{}: {} is too large: at most {}", flag, text, high));
  }
  if (text.empty() || code != std::errc() || stopped != end) {
    throw UsageError(fmt::format("{}: '{}' is not a whole number: give one from {} to {}", flag,
                                 text, low, high));
  }
  if (value < low) {
    throw UsageError(fmt::format("{}: {} is too small: at least {}", flag, text, low));
  }
  return value;
}

std::int64_t parse_whole_option(const std::string& option, const std::string& text) {
  for (const Bounds& bounds : whole_bounds) {
    if (bounds.option == option) return parse_whole("--" + option, text, bounds.low, bounds.high);
  }
  throw Error(fmt::format("no bounds for option {}", option));
}

std::uint64_t parse_seed(const std::string& text) {
  return static_cast<std::uint64_t>(
      parse_whole("--seed", text, 0, std::numeric_limits<std::int64_t>::max()));
}

Decimal parse_capacity_factor(const std::string& text) {
  if (is_negative(text)) {
    throw UsageError(fmt::format(
        "--capacity-factor: {} is negative: give a number above 0, such as 1.25", text));
  }
  const Decimal value = Decimal::parse(text, "--capacity-factor");
  if (value.is_zero()) {
    throw UsageError(
        "--capacity-factor: 0 leaves the experts no slot: give a number above 0, such as 1.25");
  }
  return value;
}

Mode parse_mode(const std::string& text) {
  return choose<Mode>("--mode", text, {{"train", Mode::train}, {"prefill", Mode::prefill}});
}

Dispatch parse_dispatch(const std::string& text) {
  return choose<Dispatch>("--dispatch", text,
                          {{"index", Dispatch::index}, {"einsum", Dispatch::einsum}});
}

Checkpointing parse_checkpointing(const std::string& text) {
  return choose<Checkpointing>("--checkpointing", text,
                               {{"none", Checkpointing::none}, {"full", Checkpointing::full}});
}

Overlap parse_overlap(const std::string& text) {
  return choose<Overlap>("--overlap", text,
                         {{"none", Overlap::none}, {"gradient", Overlap::gradient}});
}

Network parse_network(const std::string& text) {
  return choose<Network>(
      "--network", text,
      {{"auto", Network::automatic}, {"fast", Network::fast}, {"flows", Network::flows}});
}

Deduplication parse_deduplication(const std::string& text) {
  return choose<Deduplication>(
      "--dedup", text,
      {{"none", Deduplication::none}, {"gpu", Deduplication::gpu}, {"node", Deduplication::node}});
}

namespace {

// "A:B" at its colon; both parts as they are.
std::pair<std::string, std::string> halves(const std::string& flag, const std::string& text,
                                           const char* example) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos || colon == 0 || colon + 1 == text.size()) {
    throw UsageError(fmt::format("{}: '{}' is not of the form {}", flag, text, example));
  }
  return {text.substr(0, colon), text.substr(colon + 1)};
}

double parse_slowdown(const std::string& flag, const std::string& text) {
  constexpr double most = 1e6;
  const double factor = Decimal::parse(text, flag).to_double();
  if (factor >= 1 && factor <= most) return factor;
  throw UsageError(fmt::format("{}: a factor of {}: give one from 1 (as fast as ever) to {:g}",
                               flag, text, most));
}

}  // namespace

GpuFactors parse_gpu_factors(const std::string& flag, const std::string& text) {
  GpuFactors factors;
  if (text == "none") return factors;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('+', begin), text.size());
    const auto [gpu, factor] =
        halves(flag, text.substr(begin, end - begin), "GPU:FACTOR, such as 3:1.5 or 3:1.5+7:2");
    factors.push_back(
        {static_cast<int>(parse_whole(flag, gpu, 0, (1 << 20) - 1)), parse_slowdown(flag, factor)});
    for (std::size_t other = 0; other + 1 < factors.size(); ++other) {
      if (factors[other].gpu != factors.back().gpu) continue;
      throw UsageError(fmt::format("{}: GPU {} is named twice", flag, gpu));
    }
    begin = end + 1;
  }
  return factors;
}

Decimal parse_jitter(const std::string& text) {
  const Decimal sigma = Decimal::parse(text, "--jitter");
  if (is_negative(text) || sigma.to_double() > 1) {
    throw UsageError(fmt::format(
        "--jitter: a spread of {}: give 0 to 1, such as 0.02 for kernels that vary by 2 %", text));
  }
  return sigma;
}

engine::Slowdowns parse_overlap_slowdown(const std::string& text) {
  const auto [compute, exchange] =
      halves("--overlap-slowdown", text, "COMPUTE:EXCHANGE, such as 1.1:1.3");
  return {parse_slowdown("--overlap-slowdown", compute),
          parse_slowdown("--overlap-slowdown", exchange)};
}

void check_value(const std::string& option, const std::string& text, DocumentCache& documents) {
  const std::string flag = "--" + option;
  if (text.empty()) throw UsageError(fmt::format("{}: the value is empty", flag));
  for (const Bounds& bounds : whole_bounds) {
    if (bounds.option == option) {
      parse_whole(flag, text, bounds.low, bounds.high);
      return;
    }
  }
  if (option == "profile") documents.profile(text);
  if (option == "model") documents.model(text);
  if (option == "cluster") documents.cluster(text);
  if (option == "routing") documents.scores(text);
  // Whether "topk" has its k is for the whole scenario to say.
  if (option == "router") routing::parse_router(text, text.starts_with("topk") ? 1 : 0, 1);
  if (option == "capacity-factor") parse_capacity_factor(text);
  if (option == "capacity-convention") routing::parse_capacity_convention(text, flag);
  if (option == "capacity-scope") routing::parse_capacity_scope(text, flag);
  if (option == "router-dialect") routing::parse_dialect(text, flag);
  if (option == "padding") routing::parse_padding(text, flag);
  if (option == "priority") routing::parse_priority(text, flag);
  if (option == "weights") routing::parse_weights(text, flag);
  if (option == "fill-order") routing::parse_fill_order(text, flag);
  if (option == "ir-compute") routing::parse_ir_compute(text, flag);
  if (option == "ir-duplicates") routing::parse_ir_duplicates(text, flag);
  if (option == "dispatch") parse_dispatch(text);
  if (option == "expert-placement") check_expert_placement(text);
  if (option == "dedup") parse_deduplication(text);
  if (option == "mode") parse_mode(text);
  if (option == "checkpointing") parse_checkpointing(text);
  if (option == "overlap") parse_overlap(text);
  if (option == "network") parse_network(text);
  if (option == "fidelity") routing::parse_fidelity(text, "--fidelity");
  if (option == "slow-gpu" || option == "slow-link") parse_gpu_factors(flag, text);
  if (option == "jitter") parse_jitter(text);
  if (option == "overlap-slowdown") parse_overlap_slowdown(text);
  if (option == "seed") parse_seed(text);
}

}  // namespace moesim::scenario
