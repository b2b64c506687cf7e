#include "sim/scenario/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "sim/base/error.hpp"
#include "sim/routing/rules/dialect.hpp"
#include "sim/scenario/expert_placements.hpp"
#include "sim/scenario/option_values.hpp"

namespace moesim::scenario {
namespace {

using routing::RouterConfig;

// A typed value or nothing, with the flag's name for messages.
struct Typed {
  const OptionValues& values;

  const std::string* find(const std::string& name) const {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : &found->second;
  }
  std::string text_or(const std::string& name, const std::string& fallback) const {
    const std::string* text = find(name);
    return text == nullptr ? fallback : *text;
  }
  std::int64_t whole_or(const std::string& name, std::int64_t fallback) const {
    const std::string* text = find(name);
    return text == nullptr ? fallback : parse_whole_option(name, *text);
  }
};

// The largest P that divides both the experts and the GPUs, at most one node.
int usual_expert_parallel(int experts, int gpus, int gpus_per_node) {
  int best = 1;
  for (int size = 1; size <= std::min({experts, gpus, gpus_per_node}); ++size) {
    if (experts % size == 0 && gpus % size == 0) best = size;
  }
  return best;
}

void load_documents(const Typed& typed, DocumentCache& documents, Scenario& scenario) {
  scenario.profile_name = typed.text_or("profile", default_profile);
  scenario.profile = documents.profile(scenario.profile_name);
  scenario.model_name = typed.text_or("model", default_model);
  scenario.model = documents.model(scenario.model_name);
  scenario.cluster_name = typed.text_or("cluster", scenario.profile->device().usual_cluster);
  if (scenario.cluster_name.empty()) {
    throw UsageError(
        fmt::format("--cluster: profile {} does not name its usual cluster: give --cluster NAME",
                    scenario.profile_name));
  }
  scenario.cluster = documents.cluster(scenario.cluster_name);
}

// The model's own router; with another k if one is typed.
std::string usual_router(const Scenario& scenario, bool other_k) {
  if (!scenario.model->moe) return "dense";
  const std::string& name = scenario.model->moe->router;
  if (!other_k) return name;
  return "topk" + (name.find('+') == std::string::npos ? "" : name.substr(name.find('+')));
}

RouterConfig router_options(const Typed& typed, const Scenario& scenario) {
  const std::string* typed_k = typed.find("top-k");
  int top_k = static_cast<int>(typed.whole_or("top-k", 0));
  std::string name = typed.text_or("router", "");
  if (name.empty()) {
    name = usual_router(scenario, typed_k != nullptr);
    if (typed_k == nullptr && scenario.model->moe) top_k = scenario.model->moe->top_k;
  }
  RouterConfig router =
      routing::parse_router(name, top_k, scenario.model->moe ? scenario.model->moe->top_k : 0);
  if (router.is_dense()) return router;
  if (typed.text_or("mode", "train") == "prefill") {
    // BASE layers assign greedily when nothing is trained (Lewis et al. 2021, section 3.2); a
    // dropout regularises training (Liu et al. 2022).
    router.greedy = router.kind == routing::RouterKind::base;
    router.dropout = Decimal(0);
  }
  if (typed_k != nullptr && router.top_k != top_k) {
    throw UsageError(fmt::format(
        "--top-k: {} contradicts --router {}, which has k = {}: leave --top-k out, or use "
        "--router topk --top-k {}",
        top_k, name, router.top_k, top_k));
  }
  routing::apply_dialect(
      routing::parse_dialect(typed.text_or("router-dialect", "paper"), "--router-dialect"), router);
  if (router.dialect != routing::Dialect::paper && !router.chooses_top_k()) {
    throw UsageError(fmt::format(
        "--router-dialect: {} has no {}: dialects are of routers that choose the k best experts",
        routing::name_of(router.dialect), router.name()));
  }
  router.capacity_convention = routing::parse_capacity_convention(
      typed.text_or("capacity-convention", routing::name_of(router.capacity_convention)),
      "--capacity-convention");
  // The balanced load either way: C = k S / E.
  router.capacity_factor =
      Decimal(router.capacity_convention == routing::CapacityConvention::paper ? router.top_k : 1);
  if (const std::string* text = typed.find("capacity-factor"); text != nullptr) {
    router.capacity_factor = parse_capacity_factor(*text);
    if (router.kind == routing::RouterKind::group_limited) router.drops = true;
  }
  router.capacity_scope =
      routing::parse_capacity_scope(typed.text_or("capacity-scope", "source"), "--capacity-scope");
  router.min_capacity = typed.whole_or("min-capacity", router.min_capacity);
  if (const std::string* text = typed.find("padding"); text != nullptr) {
    router.pad_to_capacity = routing::parse_padding(*text, "--padding");
  }
  router.priority = routing::parse_priority(
      typed.text_or("priority", routing::name_of(router.priority)), "--priority");
  router.weights = routing::parse_weights(
      typed.text_or("weights", routing::name_of(router.weights)), "--weights");
  router.fill_order =
      routing::parse_fill_order(typed.text_or("fill-order", "nominee-score"), "--fill-order");
  router.ir_compute =
      routing::parse_ir_compute(typed.text_or("ir-compute", "separate"), "--ir-compute");
  router.ir_duplicates =
      routing::parse_ir_duplicates(typed.text_or("ir-duplicates", "allow"), "--ir-duplicates");
  router.capacity(0, 1);  // a dialect with the other convention is refused here
  return router;
}

void layout_options(const Typed& typed, Scenario& scenario) {
  scenario.gpus = static_cast<int>(typed.whole_or("gpus", default_gpus));
  if (scenario.router.is_dense()) {
    scenario.experts = 1;
    scenario.expert_parallel = 1;
    return;
  }
  if (!scenario.model->moe) {
    throw UsageError(fmt::format(
        "--router: model {} has no MoE layers for {} to route: use --router dense or a model with "
        "experts",
        scenario.model_name, scenario.router.name()));
  }
  scenario.experts = static_cast<int>(typed.whole_or("experts", scenario.model->moe->experts));
  scenario.expert_parallel = static_cast<int>(typed.whole_or(
      "expert-parallel",
      usual_expert_parallel(scenario.experts, scenario.gpus, scenario.cluster->gpus_per_node)));
}

// Tokens of one micro-step: sequence length times micro-batch, or as given. Given tokens stand for
// the micro-batch that makes them.
void token_options(const Typed& typed, Use use, Scenario& scenario) {
  scenario.sequence_length = typed.whole_or("sequence-length", scenario.model->sequence_length);
  scenario.micro_batch = typed.whole_or("micro-batch", default_micro_batch);
  scenario.tokens_per_gpu = scenario.sequence_length * scenario.micro_batch;
  const std::string* tokens = typed.find("tokens-per-gpu");
  if (tokens == nullptr) return;
  scenario.tokens_per_gpu = parse_whole_option("tokens-per-gpu", *tokens);
  if (use == Use::routing) return;
  const std::int64_t per_batch = scenario.tokens_per_gpu / scenario.sequence_length;
  if (scenario.tokens_per_gpu % scenario.sequence_length != 0) {
    throw UsageError(
        fmt::format("--tokens-per-gpu: {} tokens are no whole number of sequences of {}: give "
                    "--sequence-length "
                    "too, or a multiple",
                    scenario.tokens_per_gpu, scenario.sequence_length));
  }
  if (typed.find("micro-batch") != nullptr && per_batch != scenario.micro_batch) {
    throw UsageError(fmt::format(
        "--tokens-per-gpu: {} is not --sequence-length {} times --micro-batch {}, which is {}: "
        "leave one of them out",
        scenario.tokens_per_gpu, scenario.sequence_length, scenario.micro_batch,
        scenario.sequence_length * scenario.micro_batch));
  }
  scenario.micro_batch = per_batch;
}

// Whether exchanges beside compute can be slowed down: what is only the profile's default must not
// refuse a step that has them uneven or as flows.
bool slows_exchanges(const Scenario& scenario) {
  const bool uneven = scenario.has_moe() && !scenario.router.pads_exchange();
  return !uneven && scenario.network != Network::flows;
}

void training_options(const Typed& typed, Use use, Scenario& scenario) {
  scenario.mode = parse_mode(typed.text_or("mode", "train"));
  scenario.dispatch = parse_dispatch(typed.text_or("dispatch", "index"));
  scenario.dedup = parse_deduplication(typed.text_or("dedup", "none"));
  scenario.checkpointing = parse_checkpointing(typed.text_or("checkpointing", "none"));
  scenario.zero = static_cast<int>(typed.whole_or("zero", 1));
  scenario.overlap = parse_overlap(typed.text_or("overlap", "none"));
  scenario.network = parse_network(typed.text_or("network", "auto"));
  if (const std::string* text = typed.find("slow-gpu")) {
    scenario.conditions.slow_gpus = parse_gpu_factors("--slow-gpu", *text);
  }
  if (const std::string* text = typed.find("slow-link")) {
    scenario.conditions.slow_links = parse_gpu_factors("--slow-link", *text);
  }
  scenario.conditions.jitter = parse_jitter(typed.text_or("jitter", "0")).to_double();
  if (const std::string* text = typed.find("overlap-slowdown")) {
    scenario.conditions.overlap = parse_overlap_slowdown(*text);
  } else if (scenario.profile->overlap() && slows_exchanges(scenario)) {
    scenario.conditions.overlap = {scenario.profile->overlap()->compute,
                                   scenario.profile->overlap()->exchange};
  }
  scenario.replicas = static_cast<int>(typed.whole_or("replicas", default_replicas));
  scenario.seed = parse_seed(typed.text_or("seed", "1"));
  const std::string* global = typed.find("global-batch");
  // A forward pass accumulates nothing: its global batch is what one pass gives.
  if (global == nullptr || scenario.mode == Mode::prefill || use == Use::routing) return;
  const std::int64_t one_step = scenario.micro_batch * scenario.gpus;
  const std::int64_t wanted = parse_whole_option("global-batch", *global);
  if (wanted % one_step != 0) {
    throw UsageError(
        fmt::format("--global-batch: {} sequences are no whole number of micro-steps: {} GPUs with "
                    "--micro-batch {} take {} at a time",
                    wanted, scenario.gpus, scenario.micro_batch, one_step));
  }
  scenario.micro_steps = wanted / one_step;
}

std::string divisors(std::int64_t number, std::int64_t at_most) {
  std::string text;
  for (std::int64_t size = 1; size <= std::min(number, at_most); ++size) {
    if (number % size == 0) text += fmt::format("{}{}", text.empty() ? "" : ", ", size);
  }
  return text;
}

// One scenario takes one value of each option: a list is a likely slip, with an answer.
void refuse_list(const std::string& option, const std::string& text) {
  const std::vector<OptionSpec>& options = scenario_options();
  const auto spec = std::find_if(options.begin(), options.end(), [&](const OptionSpec& candidate) {
    return candidate.name == option;
  });
  const bool is_number = spec != options.end() && spec->kind != OptionKind::text;
  const bool is_list = is_number ? text.find_first_of(",:") != std::string::npos
                                 : option == "router" && text.find(',') != std::string::npos;
  if (!is_list) return;
  throw UsageError(
      fmt::format("--{}: '{}' is a list or a range, and here is room for one value: "
                  "'moesim sweep' takes both",
                  option, text));
}

template <class Value, class Load>
Value remembered(std::mutex& mutex, std::map<std::string, Value>& known, const std::string& name,
                 Load load) {
  const std::lock_guard lock(mutex);
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  return known.emplace(name, load()).first->second;
}

}  // namespace

std::shared_ptr<const profile::Profile> DocumentCache::profile(const std::string& name) {
  return remembered(mutex_, profiles_, name, [&] {
    return std::make_shared<const profile::Profile>(profile::Profile::load(name));
  });
}

std::shared_ptr<const model::Model> DocumentCache::model(const std::string& name) {
  return remembered(mutex_, models_, name,
                    [&] { return std::make_shared<const model::Model>(model::Model::load(name)); });
}

std::shared_ptr<const cluster::Cluster> DocumentCache::cluster(const std::string& name) {
  return remembered(mutex_, clusters_, name, [&] {
    return std::make_shared<const cluster::Cluster>(cluster::Cluster::load(name));
  });
}

routing::ScoreSource DocumentCache::scores(const std::string& text) {
  return remembered(mutex_, scores_, text,
                    [&] { return routing::parse_score_source(text, "--routing"); });
}

Scenario fill_in(const OptionValues& values, DocumentCache& documents, Use use) {
  const Typed typed{values};
  Scenario scenario;
  load_documents(typed, documents, scenario);
  scenario.router = router_options(typed, scenario);
  layout_options(typed, scenario);
  if (const std::string* text = typed.find("expert-placement")) {
    scenario.expert_placement = *text;
    scenario.order = scenario.router.is_dense() ? nullptr
                                                : parse_expert_placement(*text, scenario.experts,
                                                                         scenario.expert_parallel);
  }
  token_options(typed, use, scenario);
  training_options(typed, use, scenario);
  scenario.scores = documents.scores(typed.text_or("routing", default_routing));
  scenario.fidelity = routing::parse_fidelity(typed.text_or("fidelity", "auto"), "--fidelity");
  return scenario;
}

void check_together(const Scenario& scenario, Use use) {
  if (!scenario.router.is_dense()) {
    const int experts = scenario.experts;
    const int ranks = scenario.expert_parallel;
    if (scenario.router.choices() > experts) {
      throw UsageError(fmt::format(
          "--router: {} asks for {} experts per token{}, but there are {}: use a smaller k or more "
          "--experts",
          scenario.router.name(), scenario.router.choices(),
          scenario.router.fill_in ? " (fill-in needs one more than k)" : "", experts));
    }
    if (experts % ranks != 0) {
      throw UsageError(fmt::format(
          "--expert-parallel: {} experts cannot be spread evenly over {} GPUs: use one of {}",
          experts, ranks, divisors(experts, scenario.gpus)));
    }
    if (scenario.gpus % ranks != 0) {
      throw UsageError(fmt::format(
          "--gpus: {} GPUs are no whole number of expert-parallel groups of {}: use a multiple of "
          "{}, or --expert-parallel {}",
          scenario.gpus, ranks, ranks, divisors(std::gcd(experts, scenario.gpus), scenario.gpus)));
    }
  }
  if (use == Use::step) check(scenario);
}

Scenario resolve(const OptionValues& values, DocumentCache& documents, Use use) {
  for (const auto& [option, text] : values) {
    refuse_list(option, text);
    check_value(option, text, documents);
  }
  Scenario scenario = fill_in(values, documents, use);
  check_together(scenario, use);
  return scenario;
}

}  // namespace moesim::scenario
