#include "sim/routing/groups/chooser.hpp"

#include <algorithm>

namespace moesim::routing {

void Chooser::start_layer(const GroupLogits& /*logits*/, const RouterContext& /*context*/) {}
void Chooser::reweigh(RoutedGroup& /*group*/) const {}

namespace {

class ChosenRouter final : public KindRouter {
 public:
  ChosenRouter(const KindShape& shape, std::unique_ptr<Chooser> chooser)
      : shape_(shape), chooser_(std::move(chooser)) {}

  void start_layer(const GroupLogits& logits, const RouterContext& context) override {
    chooser_->start_layer(logits, context);
  }
  void decide(const GroupLogits& logits, const RouterContext& context) override;
  void collect(RoutedGroup& group) override;

 private:
  DecisionInput input() {
    return {rules_.config,
            table_,
            orders_,
            shape_.kernels,
            0,
            capacity_,
            reference_mass_.empty() ? nullptr : reference_mass_.data()};
  }

  KindShape shape_;
  std::unique_ptr<Chooser> chooser_;
  KeepingRules rules_;
  ChoiceTable table_;
  RouteOrders orders_;
  Decision decision_;
  std::vector<std::int64_t> capacity_;  // [rank]
  std::vector<float> reference_mass_;   // [token]
};

void ChosenRouter::decide(const GroupLogits& logits, const RouterContext& context) {
  rules_ = chooser_->rules(context);
  const RouterConfig& config = rules_.config;
  std::vector<StreamKey> keys;
  int places = 0;
  capacity_.clear();
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    keys.push_back({context.seed, Purpose::drop_priority, context.replica, context.layer,
                    static_cast<std::uint32_t>(context.place.first_gpu + rank)});
    places = std::max(
        places, local_experts(config, shape_.experts, shape_.ranks, rank, context.place).wanted);
    capacity_.push_back(config.capacity(logits.tokens(rank), rules_.capacity_experts));
  }
  table_.reset(shape_.experts, config.choices(), 1, places, logits.all_tokens());
  reference_mass_.clear();
  Choices choices{table_, reference_mass_};
  chooser_->choose(logits, context, choices);
  orders_.reset(table_, std::move(keys));
  decision_.decide(input());
  outcome_.sums = decision_.sums();
  if (rules_.own_experts_only && config.has_capacity()) {
    outcome_.sums.slots = 0;  // slots on other GPUs cannot be reached
    for (const std::int64_t slots : capacity_)
      outcome_.sums.slots += slots * rules_.capacity_experts;
  }
  outcome_.capacity = *std::max_element(capacity_.begin(), capacity_.end());
  outcome_.exchanged_capacity = decision_.exchanged_capacity();
  outcome_.exchanged = rules_.exchanged;
  outcome_.kept_rows = decision_.kept_rows();
  outcome_.ir_rows = decision_.ir_rows();
  outcome_.demand = decision_.demand();
  if (shape_.nodes == 0) return;
  count_copies(table_, decision_, config.choices(), context.place, shape_.nodes, outcome_.copies);
}

void ChosenRouter::collect(RoutedGroup& group) {
  group.top_k = rules_.config.top_k;
  group.choices = rules_.config.choices();
  group.capacity = capacity_;
  collect_routes(input(), decision_, group);
  const std::size_t size = static_cast<std::size_t>(group.choices) * group.stride;
  group.expert.assign(table_.expert(0), table_.expert(0) + size);
  group.probability.assign(table_.probability(0), table_.probability(0) + size);
  chooser_->reweigh(group);
}

}  // namespace

std::unique_ptr<KindRouter> make_chosen_router(const KindShape& shape,
                                               std::unique_ptr<Chooser> chooser) {
  return std::make_unique<ChosenRouter>(shape, std::move(chooser));
}

}  // namespace moesim::routing
