#include "sim/routing/jobs/routing_job.hpp"

#include <span>
#include <type_traits>
#include <utility>

#include "sim/base/digest.hpp"
#include "sim/routing/rules/expert_bias.hpp"
#include "sim/routing/scores/score_model.hpp"

namespace moesim::routing {

namespace {

// Two files with the same name may differ (edited between two loads): their contents are compared.
std::uint64_t digest(const ScoreSource& source) {
  if (source.trace != nullptr) return source.trace->digest();
  if (source.model != nullptr) return source.model->digest();
  Digest digest;
  if (source.popularity != nullptr) {
    for (const std::vector<double>& layer : source.popularity->layers())
      digest.add(std::span(layer));
  }
  return digest.value();
}

// Separated values: equal texts have equal values.
class Key {
 public:
  template <class... Values>
  Key& add(const Values&... values) {
    ((text_ += text_of(values) + "|"), ...);
    return *this;
  }
  std::string take() { return std::move(text_); }

 private:
  static std::string text_of(const std::string& text) { return text; }
  static std::string text_of(const Decimal& value) { return value.text(); }
  template <class Value>
  static std::string text_of(Value value) {
    if constexpr (std::is_enum_v<Value>) {
      return std::to_string(static_cast<int>(value));
    } else {
      return std::to_string(value);
    }
  }
  std::string text_;
};

// For fields that routing does not depend on.
template <class... Values>
void leave_out(const Values&...) {}

// Here and below every field is named: a new field of the struct does not compile until it is added
// to the key or excluded.
void add_router(const RouterConfig& router, Key& key) {
  const auto& [kind, parameters, groups, kept_groups, top_k, fill_in, rectification,
               capacity_factor, capacity_convention, capacity_scope, min_capacity,
               capacity_alignment, padding, drops, group_score, score_function, second_expert,
               router_dtype, expert_bias, priority, weights, weight_scale, fill_order, ir_compute,
               ir_duplicates, dialect, trained_name] = router;
  const bool pads_to_busiest = padding == Padding::busiest;
  key.add(kind->name(router), groups, kept_groups);
  for (const Decimal& parameter : parameters) key.add(parameter);
  key.add(top_k, fill_in, rectification, capacity_factor, capacity_convention, capacity_scope,
          min_capacity, capacity_alignment, drops, pads_to_busiest, priority, dialect);
  if (groups > 1) key.add(group_score);
  key.add(score_function, second_expert, router_dtype,
          expert_bias == nullptr ? std::uint64_t{0} : expert_bias->digest());
  if (fill_in) key.add(fill_order);
  if (rectification != Rectification::none) key.add(ir_duplicates);
  leave_out(weights, weight_scale, ir_compute, trained_name);
}

// Not a member function, in which the names would shadow the members.
std::string logits_key_of(const RoutingJob& job) {
  const auto& [router, scores, experts, gpus, expert_parallel, slices, expert_placement,
               gpus_per_domain, tokens_per_gpu, layers, seed, fidelity, count_copies, with_losses] =
      job;
  leave_out(count_copies, with_losses);
  // Counts are of as many choices.
  const int counted_choices = scores.popularity == nullptr ? 0 : router.top_k;
  return Key()
      .add(scores.name(), digest(scores), counted_choices,
           expert_placement == nullptr ? 0 : expert_placement->digest(), experts, gpus,
           expert_parallel, scores.trace == nullptr ? 1 : slices, gpus_per_domain, tokens_per_gpu,
           layers, seed, fidelity)
      .take();
}

}  // namespace

std::string scores_key(const ScoreSource& scores) {
  return Key().add(scores.name(), digest(scores)).take();
}

std::string RoutingJob::logits_key() const { return logits_key_of(*this); }

void RoutingJob::place(std::shared_ptr<const ExpertPlacement> placement) {
  expert_placement = std::move(placement);
  if (expert_placement && router.expert_bias) {
    router.expert_bias =
        std::make_shared<const ExpertBias>(router.expert_bias->placed(expert_placement));
  }
}

std::string RoutingJob::key() const {
  Key key;
  key.add(logits_key(), count_copies, with_losses);
  add_router(router, key);
  return key.take();
}

}  // namespace moesim::routing
