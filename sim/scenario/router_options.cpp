#include "sim/scenario/router_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "sim/routing/routers/router_name.hpp"
#include "sim/routing/rules/dialect.hpp"
#include "sim/routing/rules/routing_refusal.hpp"
#include "sim/routing/simulation/trace_routing.hpp"
#include "sim/scenario/idle_rules.hpp"

namespace moesim::scenario {
namespace {

using routing::RouterConfig;

constexpr std::int64_t most_choices = 1 << 16;

int typed_top_k(const Resolution& at) {
  const std::string* text = at.find("top-k");
  return text == nullptr ? 0 : static_cast<int>(parse_whole("--top-k", *text, 1, most_choices));
}

// The k of a trace without a typed model: the model's k is nobody's choice then. 0: no such trace.
int recorded_top_k(const Resolution& at) {
  const routing::TraceShape* recorded = at.scenario.recorded();
  return recorded == nullptr || at.find("model") != nullptr ? 0 : recorded->top_k;
}

void use_router(const std::string& name, int top_k, Resolution& at) {
  const model::Model& model = *at.scenario.model;
  RouterConfig& router = at.scenario.router;
  const int recorded_k = recorded_top_k(at);
  const int usual_k = recorded_k > 0 ? recorded_k : model.moe ? model.moe->top_k : 0;
  router = routing::parse_router(name, top_k, usual_k);
  const auto infer = router.kind->infer;
  if (infer == nullptr || at.scenario.mode != Mode::prefill) return;
  router.trained_name = router.name();
  infer(router);
}

// Whether "topk" has its k is decided with the other options.
void check_router_name(const std::string& text, DocumentCache&) {
  routing::parse_router(text, text.starts_with("topk") ? 1 : 0, 1);
}

void set_router(const std::string& name, Resolution& at) { use_router(name, typed_top_k(at), at); }

// The model's own router; with another k if one is typed or recorded. Who types a capacity factor
// for a dropless model asks for a capacity: the same choice of experts, and what exceeds it is
// dropped.
void use_router_of_model(Resolution& at) {
  const model::Model& model = *at.scenario.model;
  const int typed_k = typed_top_k(at);
  const int other_k = typed_k > 0 ? typed_k : recorded_top_k(at);
  if (!model.moe) return use_router("dense", other_k, at);
  const bool capped = model.moe->router == "dropless" && at.find("capacity-factor") != nullptr;
  const std::string name = capped ? "topk" : model.moe->router;
  try {
    if (other_k == 0) return use_router(name, model.moe->top_k, at);
    if (!name.starts_with("top")) return use_router(name, other_k, at);
    const std::size_t suffix = name.find('+');
    use_router("topk" + (suffix == std::string::npos ? "" : name.substr(suffix)), other_k, at);
  } catch (const UsageError& error) {
    throw UsageError(
        fmt::format("--model {}: its own router: {}", at.scenario.model_name, error.what()));
  }
}

std::string router_name(const Scenario& scenario) { return scenario.router.name(); }

void check_choices(const Scenario& scenario, Use use) {
  const RouterConfig& router = scenario.router;
  if (has_experts(scenario) && router.choices() > scenario.experts) {
    throw routing::RoutingRefusal([&](const routing::RoutingTerms& terms) {
      return fmt::format(
          "--router: {} asks for {} experts per token{}, but there are {}: use a smaller k or {}",
          router.asked_name(), router.choices(),
          router.fill_in ? " (fill-in needs one more than k)" : "", scenario.experts,
          terms.more_experts);
    });
  }
  if (use == Use::step && !scenario.has_moe() && scenario.model->ffn == 0) {
    throw UsageError(fmt::format(
        "--router dense: every layer of model {} holds experts, and it names no dense FFN to put "
        "in their place: choose another router, or a model with a dense ffn",
        scenario.model_name));
  }
}

void leave_to_router(Resolution&) {}

void check_top_k(std::int64_t top_k, Resolution& at) {
  const RouterConfig& router = at.scenario.router;
  if (router.is_dense() || router.top_k == top_k) return;
  throw UsageError(fmt::format(
      "--top-k: {} contradicts --router {}, which has k = {}: leave --top-k out, or use "
      "--router topk --top-k {}",
      top_k, at.find("router") != nullptr ? *at.find("router") : router.asked_name(), router.top_k,
      top_k));
}

std::int64_t top_k_of(const Scenario& scenario) { return scenario.router.top_k; }

// Sets the defaults of the options that come after it.
void apply_dialect(Resolution& at) {
  RouterConfig& router = at.scenario.router;
  if (router.is_dense()) return;
  routing::apply_dialect(router.dialect, router);
  if (router.dialect == routing::Dialect::paper || router.chooses_top_k()) return;
  throw UsageError(fmt::format(
      "--router-dialect: {} has no {}: dialects are of routers that choose the k best experts",
      routing::name_of(router.dialect), router.asked_name()));
}

void leave_to_dialect(Resolution&) {}

// The balanced load either way: C = k S / E.
void use_balanced_capacity(Resolution& at) {
  RouterConfig& router = at.scenario.router;
  const bool paper = router.capacity_convention == routing::CapacityConvention::paper;
  router.capacity_factor = Decimal(paper ? router.top_k : 1);
}

void settle_capacity(Resolution& at) {
  RouterConfig& router = at.scenario.router;
  if (router.is_dense()) return;
  const bool typed = at.find("capacity-factor") != nullptr;
  if (typed && router.kind->capacity == routing::CapacityRule::by_factor_if_set) {
    router.drops = !router.pads_to_busiest();
  }
  router.capacity(0, 1);  // refuses a dialect with the other convention
}

// Blocks as long as the longest: nothing is dropped, whatever the capacity factor.
void settle_padding(Resolution& at) {
  RouterConfig& router = at.scenario.router;
  if (!router.pads_to_busiest()) return;
  if (router.kind->blocks != routing::ExchangeBlocks::kept || !router.moves_tokens() ||
      router.kind->capacity == routing::CapacityRule::equal_shares) {
    throw UsageError(fmt::format(
        "--padding busiest: router {} has blocks of a size of its own: leave --padding out",
        router.asked_name()));
  }
  if (router.fill_in || router.rectification != routing::Rectification::none) {
    throw UsageError(fmt::format(
        "--padding busiest: nothing is dropped, so {} has nothing to rectify: leave +fr and +ir "
        "out, or use --padding capacity",
        router.asked_name()));
  }
  router.drops = false;
}

void check_ir_compute(const Scenario& scenario, Use use) {
  const RouterConfig& router = scenario.router;
  if (use == Use::routing || !scenario.has_moe() || router.pads_exchange()) return;
  if (!rectifies(scenario) || router.ir_compute != routing::IrCompute::grouped) return;
  throw UsageError(fmt::format(
      "--ir-compute grouped: router {} without padding has no blocks of equal size to append "
      "rows to; use separate or overlap",
      router.asked_name()));
}

// The name of any enumeration of sim/routing.
constexpr auto name_of = [](auto value) { return routing::name_of(value); };

void declare_kind(OptionTable& table) {
  table.whole("top-k", "K", 1, most_choices, check_top_k, top_k_of)
      .by_default("the router's, else the model's; without --model a trace's", leave_to_router)
      .help("experts per token, for routers whose name does not say")
      .affects(Affects::routing)
      .after({"router"})
      .applies(has_experts)
      .idle(without_experts);
  table.text("router", "NAME", check_router_name, set_router, router_name)
      .by_default("the model's", use_router_of_model)
      .help("which experts a token goes to:")
      .forms(named_values(routing::router_forms()))
      .affects(Affects::routing)
      .after({"model", "mode", "routing"})
      .checked(check_choices);
}

void declare_capacity(OptionTable& table) {
  table.decimal("capacity-factor", "CF", parse_capacity_factor, &RouterConfig::capacity_factor)
      .by_default("k (1 with the library convention)", use_balanced_capacity)
      .help("of S tokens of a GPU an expert takes at most C = ceil(CF S / E)")
      .affects(Affects::routing)
      .after({"capacity-convention"})
      .then(settle_capacity)
      .applies(has_capacity)
      .idle(without_capacity);
  table
      .choice("capacity-convention",
              {{"paper", "CF = k, and C = ceil(CF S / E)"},
               {"library", "CF = 1, and C = ceil(k CF S / E)"}},
              routing::parse_capacity_convention, name_of, &RouterConfig::capacity_convention)
      .by_default("paper", leave_to_dialect)
      .help("what a balanced load needs:")
      .affects(Affects::routing)
      .after({"router-dialect"})
      .applies(has_capacity)
      .idle(without_capacity);
  table
      .choice("capacity-scope",
              {{"source", "those of each GPU for C slots"},
               {"group", "those of all P GPUs of a group for P C slots"}},
              routing::parse_capacity_scope, name_of, &RouterConfig::capacity_scope)
      .by_default("source")
      .help("whose tokens compete for an expert's slots:")
      .affects(Affects::routing)
      .after({"router"})
      .applies(has_capacity)
      .idle(without_capacity);
  table.whole("min-capacity", "C", 0, std::int64_t{1} << 31, &RouterConfig::min_capacity)
      .by_default("0", leave_to_dialect)
      .help("C is at least that")
      .affects(Affects::routing)
      .after({"router-dialect"})
      .applies(has_capacity)
      .idle(without_capacity);
  table
      .choice("router-dialect",
              {{"paper", "C exactly as above"},
               {"deepspeed", "in fp32, at least 4"},
               {"megatron", "in fp64, no padding"},
               {"tutel", "C = k int(CF ceil(S / E))"},
               {"switch", "rounded down, at least 4"},
               {"megablocks", "rounded down, no padding"}},
              routing::parse_dialect, name_of, &RouterConfig::dialect)
      .by_default("paper")
      .help(
          "the software that rounds C, and whose defaults convention, least capacity, priority, "
          "weights and padding have:")
      .affects(Affects::routing)
      .after({"top-k"})
      .then(apply_dialect)
      .applies(has_dialect)
      .idle(without_dialect);
  table
      .choice("padding",
              {{"capacity", "C rows, empty ones too"},
               {"busiest", "as many as any has, and nothing is dropped"},
               {"none", "the rows kept, after their counts"}},
              routing::parse_padding, name_of, &RouterConfig::padding)
      .by_default("capacity", leave_to_dialect)
      .help("what is exchanged for each expert:")
      .affects(Affects::routing)
      .after({"router-dialect"})
      .then(settle_padding)
      .applies(has_blocks)
      .idle(without_blocks);
  table
      .whole("capacity-alignment", "ROWS", 1, std::int64_t{1} << 20,
             &RouterConfig::capacity_alignment)
      .by_default("1")
      .help("C is rounded up to a multiple of it, as is the longest block of --padding busiest")
      .affects(Affects::routing)
      .after({"router"})
      .applies(has_blocks)
      .idle(without_slots);
}

void declare_overflow(OptionTable& table) {
  table
      .choice("priority",
              {{"token-max", "first choices first, then tokens by their best score"},
               {"own-score", "of all choices those that score it best"},
               {"own-weight", "the same, by score over the sum of the token's k"},
               {"position", "first choices first, then tokens in order"},
               {"token-order", "tokens in order, all choices of each together"},
               {"random", "first choices first, then any tokens"}},
              routing::parse_priority, name_of, &RouterConfig::priority)
      .by_default("token-max", leave_to_dialect)
      .help("which routes a full expert keeps:")
      .affects(Affects::routing)
      .after({"router-dialect"})
      .applies(has_capacity)
      .idle(without_overflow);
  table
      .choice("weights",
              {{"kept", "over the sum of the experts kept"},
               {"before-drop", "over the sum of the k chosen"},
               {"raw", "as it is"}},
              routing::parse_weights, name_of, &RouterConfig::weights)
      .by_default("kept", leave_to_dialect)
      .help("what an expert's output is multiplied by: its score")
      .affects(Affects::written_routes)
      .after({"router-dialect"})
      .applies(has_experts)
      .idle(without_weights);
  table.decimal("weight-scale", "X", Decimal(0), Decimal(1000), &RouterConfig::weight_scale)
      .by_default("1")
      .help("all weights are multiplied by it (routed_scaling_factor of DeepSeek)")
      .affects(Affects::written_routes)
      .after({"router"})
      .applies(has_experts)
      .idle(without_weights);
}

void declare_rectification(OptionTable& table) {
  table
      .choice("fill-order",
              {{"nominee-score", "tokens that score the expert best"},
               {"priority", "tokens in the order of --priority"}},
              routing::parse_fill_order, name_of, &RouterConfig::fill_order)
      .by_default("nominee-score")
      .help("of +fr, who gets the free slots:")
      .affects(Affects::routing)
      .after({"router"})
      .applies(fills_in)
      .idle(without_fill_in);
  table
      .choice("ir-compute",
              {{"separate", "in a call of their own"},
               {"grouped", "with the rows received"},
               {"overlap", "while those travel"}},
              routing::parse_ir_compute, name_of, &RouterConfig::ir_compute)
      .by_default("separate")
      .help("of +ir, when the expert computes the extra rows:")
      .after({"router"})
      .applies(rectifies)
      .idle(without_rectified_step)
      .checked(check_ir_compute);
  table
      .choice("ir-duplicates",
              {{"allow", "computes it again"}, {"exclude", "the GPU's next best takes its place"}},
              routing::parse_ir_duplicates, name_of, &RouterConfig::ir_duplicates)
      .by_default("allow")
      .help("of +ir, an expert that has the token already:")
      .affects(Affects::routing)
      .after({"router"})
      .applies(rectifies)
      .idle(without_rectification);
}

}  // namespace

Decimal parse_capacity_factor(const std::string& text) {
  if (text.size() > 1 && text[0] == '-') {
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

void declare_router(OptionTable& table) {
  declare_kind(table);
  declare_router_scores(table);
  declare_capacity(table);
  declare_overflow(table);
  declare_rectification(table);
}

namespace {

// Whether no --top-k and no model gives it another k.
bool names_its_k(std::string_view router) {
  return routing::parse_router(router, 0, 1).top_k == routing::parse_router(router, 0, 2).top_k;
}

}  // namespace

bool takes_recorded_k(const OptionValues& typed, const routing::ScoreSource& scores) {
  return scores.trace != nullptr && !typed.contains("model") && takes_models_k(typed);
}

bool takes_models_k(const OptionValues& typed) {
  if (typed.contains("top-k")) return false;
  const auto routers = typed.find("router");
  if (routers == typed.end()) return true;
  const std::vector<std::string_view> names = split(routers->second, ',');
  return !std::all_of(names.begin(), names.end(), names_its_k);
}

namespace {

// Whether a trace is read with another k than was recorded; of choices more may be recorded for
// fill-in, and counts with another k are refused.
bool has_other_k(const routing::ScoreSource& scores, const RouterConfig& router) {
  if (scores.trace == nullptr) return false;
  const routing::Trace& trace = *scores.trace;
  const int recorded = trace.shape().top_k;
  if (!router.scores_experts() || router.top_k == recorded) return false;
  if (trace.kind() == routing::Trace::Kind::choices) return router.choices() < recorded;
  const bool is_exact = trace.kind() == routing::Trace::Kind::counts && router.takes_best() &&
                        scores.kind == routing::ScoreSource::Kind::trace;
  return !is_exact;
}

std::string note_of_basis(const routing::ScoreSource& scores, std::string_view basis) {
  if (basis == "equal weights") {
    return fmt::format("note: {}: no probabilities were recorded: token loss is from {}",
                       scores.name(), basis);
  }
  const bool is_exact = scores.kind == routing::ScoreSource::Kind::trace;
  return fmt::format(
      "note: {}: counts tell neither which routes are of one token nor their weights: token loss "
      "is estimated from {}{}",
      scores.name(), basis, is_exact ? ", failed is exact" : "");
}

// "topk+fr" of "top2+fr".
std::string with_open_k(const std::string& router) {
  constexpr std::string_view top = "top";
  if (!router.starts_with(top)) return router;
  return "topk" +
         router.substr(std::min(router.find_first_not_of("0123456789", top.size()), router.size()));
}

}  // namespace

std::vector<std::string> notes_of_recorded(const routing::ScoreSource& scores,
                                           std::span<const RouterConfig> routers) {
  std::vector<std::string> others;
  std::set<std::string> named;  // with the k left open
  std::set<std::string> bases;
  for (const RouterConfig& router : routers) {
    const std::string name = fmt::format("{} has k = {}", router.asked_name(), router.top_k);
    const bool is_new = std::find(others.begin(), others.end(), name) == others.end();
    if (is_new && has_other_k(scores, router)) {
      others.push_back(name);
      if (names_its_k(router.asked_name())) named.insert(with_open_k(router.asked_name()));
    }
    bases.insert(routing::loss_basis(scores, router));
  }
  bases.erase("");
  std::vector<std::string> notes;
  if (!others.empty()) {
    const int recorded = scores.trace->shape().top_k;
    notes.push_back(fmt::format(
        "note: {}: recorded with k = {}, but {}: to route as recorded, {}--top-k {}", scores.name(),
        recorded, fmt::join(others, ", "),
        named.empty() ? "" : fmt::format("--router {} ", fmt::join(named, ",")), recorded));
  }
  for (const std::string& basis : bases) notes.push_back(note_of_basis(scores, basis));
  return notes;
}

std::string note_of_empty_slots(const RouterConfig& router, std::int64_t tokens,
                                std::int64_t experts) {
  if (!router.overflows() || router.pads_to_busiest() || !router.pads_exchange()) return "";
  const std::int64_t slots = router.capacity(tokens, experts);
  if (slots <= tokens) return "";
  const char* const by = router.min_capacity >= slots ? "--min-capacity" : "--capacity-factor";
  return fmt::format(
      "note: {}: C = {} slots of an expert for the {} tokens of a source, which choose an expert "
      "once: {} of them ({:.3g} %) are always empty, but sent and computed: give a smaller one",
      by, slots, tokens, slots - tokens,
      100.0 * static_cast<double>(slots - tokens) / static_cast<double>(slots));
}

std::string note_of_equal_weights(const RouterConfig& router) {
  const bool alike = router.priority == routing::Priority::own_weight && router.top_k == 1;
  if (!alike || !router.overflows()) return "";
  return fmt::format(
      "note: --priority own-weight: a token of {} has one expert, whose weight over their sum is "
      "1: "
      "full experts keep tokens in order, as by position; own-score takes those that score it best",
      router.asked_name());
}

std::string note_of_trained_biases(const routing::ScoreSource& scores, const RouterConfig& router) {
  if (!router.trains_biases() || scores.has_even_popularity()) return "";
  return fmt::format(
      "note: router {}: its biases are trained on this popularity before it routes, which evens "
      "the load of the experts; to route with frozen biases, as in serving: --expert-bias zeros, "
      "trained:SCENARIO for another popularity than this, or FILE.npy of a checkpoint",
      router.asked_name());
}

}  // namespace moesim::scenario
