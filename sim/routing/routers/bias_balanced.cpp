// bias-balanced: the k best by score + bias, weighted by score, which is a sigmoid (Wang et al.
// 2024); dropless unless a capacity factor is given. With "+groups" only among the experts of the
// groups with the highest sum of their two best score + bias: DeepSeek-V3's router
// (arXiv:2412.19437, sections 2.1.2 and 5.4; its factor on all weights does not affect routing).
// Capacity drops after the choice, as in Megatron-Core
// (megatron/core/transformer/moe/moe_utils.py): the bias is trained on all choices, and priorities
// and weights are of scores without it. Parameters: u, the change of an expert's bias per step, and
// the number of training steps before.
#include <fmt/format.h>

#include "sim/routing/routers/bias_chooser.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"

namespace moesim::routing {

namespace {

constexpr const char* default_update_speed = "0.001";
constexpr int default_update_steps = 1000;

void read(const RouterReading& in, RouterConfig& config) {
  in.expect(0, 2, "bias-balanced:SPEED:STEPS, such as bias-balanced:0.001:1000");
  config.top_k = in.k_beside();
  config.group_score = GroupScore::top2;
  // Published codes normalise only the weights of several experts.
  if (config.top_k == 1) config.weights = Weights::raw;
  int steps = default_update_steps;
  if (in.parts.size() > 2) steps = in.parts[2] == "0" ? 0 : in.count(in.parts[2], "steps");
  config.parameters = {in.number(in.parts.size() > 1 ? in.parts[1] : default_update_speed),
                       Decimal(steps)};
}

void read_groups(const RouterReading& in, std::span<const std::string_view> parts,
                 RouterConfig& config) {
  if (parts.size() != 2) in.refuse("write the groups as +groups:GROUPS:KEPT, as +groups:8:4");
  if (config.groups > 1) in.refuse("+groups is there twice");
  in.read_groups(parts, config);
}

std::string name(const RouterConfig& config) {
  std::string text =
      fmt::format("bias-balanced:{}:{}", config.parameters[0].text(), config.parameters[1].text());
  if (config.groups > 1) text += fmt::format("+groups:{}:{}", config.groups, config.kept_groups);
  return text;
}

bool trains_biases(const RouterConfig& config) {
  return config.expert_bias == nullptr && !config.parameters[1].is_zero();
}

std::unique_ptr<KindRouter> make(const KindShape& shape) {
  return make_chosen_router(shape, std::make_unique<BiasChooser>(shape));
}

LayerSample sample(const KindShape& shape, const GroupLogits& logits, const StreamKey& stream,
                   std::int64_t tokens) {
  return BiasChooser(shape).sample(logits, stream, tokens);
}

// Bias added, scores gathered; in training counts, their mean, sign and step (Wang et al. 2024,
// arXiv:2408.15664, algorithm 1).
constexpr double bias_kernels = 2;
constexpr double bias_update_kernels = 4;

GateWorkList price(const RouterConfig& config, const GateShape& shape) {
  const double grouping = config.groups > 1 ? group_kernels : 0;
  return library_gate(config, shape,
                      gate_kernels + gate_kernels_per_choice * config.choices() + grouping +
                          bias_kernels + (shape.train ? bias_update_kernels : 0));
}

}  // namespace

constinit const RouterDescriptor bias_balanced_router{
    .head = "bias-balanced",
    .form = "bias-balanced[:SPEED[:STEPS]]",
    .short_form = "bias-balanced",
    .help =
        "the k best by score + bias, after STEPS steps in which the bias moved by SPEED against "
        "the load [0.001:1000]",
    .suffix = {.head = "groups",
               .form = "+groups:GROUPS:KEPT",
               .help = "behind bias-balanced: inside the best groups, as DeepSeek-V3",
               .elsewhere = "+groups goes with bias-balanced alone: group-limited:GROUPS:KEPT "
                            "limits top-k",
               .read = read_groups},
    .chooses_top_k = true,
    .scores_by_sigmoid = true,
    .capacity = CapacityRule::by_factor_if_set,
    .read = read,
    .name = name,
    .make = make,
    .sample = sample,
    .price = price,
    .trains_biases = trains_biases};

}  // namespace moesim::routing
