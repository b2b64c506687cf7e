// bias-balanced: the k best by score + bias, weighted by score, which is a sigmoid; dropless (Wang
// et al. 2024). With "+groups" only among the experts of the groups with the highest sum of their
// two best score + bias: DeepSeek-V3's router (arXiv:2412.19437, sections 2.1.2 and 5.4; its factor
// on all weights does not affect routing). Parameters: u, the change of an expert's bias per step,
// and the number of training steps before.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "sim/routing/groups/chooser.hpp"
#include "sim/routing/groups/tile_chooser.hpp"
#include "sim/routing/routers/router_reading.hpp"
#include "sim/routing/routers/router_table.hpp"
#include "sim/routing/tokens/kept_groups.hpp"

namespace moesim::routing {

namespace {

constexpr const char* default_update_speed = "0.001";
constexpr int default_update_steps = 1000;

double update_speed(const RouterConfig& config) { return config.parameters[0].to_double(); }
int update_steps(const RouterConfig& config) {
  return static_cast<int>(config.parameters[1].floor_of_product(1));
}

// Loss-free balancing (Wang et al. 2024): the score is a sigmoid, as there and in DeepSeek-V3,
// whose update speed 0.001 is relative to it. The bias is the result of `update_steps` steps of
// training, each on a new batch of the same source (GroupLogits::fill_training_tile). Groups limit
// the choices as in DeepSeek-V3's published model code, which sets all but the best groups' scores
// to -inf.
class BiasChooser final : public Chooser {
 public:
  explicit BiasChooser(const KindShape& shape)
      : shape_(shape),
        tile_(shape.experts, shape.kernels),
        per_group_(shape.experts / shape.config.groups),
        kept_(shape.config.groups, shape.config.kept_groups, shape.kernels) {
    const auto choices = static_cast<std::size_t>(shape.config.top_k);
    expert_.resize(choices * tile_tokens);
    key_.resize(choices * tile_tokens);
    score_.resize(static_cast<std::size_t>(shape.experts) * tile_tokens);
  }

  KeepingRules rules(const RouterContext& /*context*/) const override {
    return {shape_.config, shape_.experts};
  }

  void start_layer(const GroupLogits& logits, const RouterContext& /*context*/) override {
    const auto experts = static_cast<std::size_t>(shape_.experts);
    bias_.assign(experts, 0.0F);
    const int steps = update_steps(shape_.config);
    std::int64_t tile = 0;
    int step = 0;
    if (steps > 2 * last_steps && settle(logits, tile)) step = steps - last_steps;
    for (; step < steps; ++step) train(logits, tile);
  }

  void choose(const GroupLogits& logits, const RouterContext& /*context*/, Choices& out) override {
    out.reference_mass.resize(static_cast<std::size_t>(logits.all_tokens()) + tile_tokens);
    const auto top_k = static_cast<std::size_t>(shape_.config.top_k);
    std::int64_t begin = 0;
    for (int rank = 0; rank < logits.ranks(); ++rank) {
      out.table.append_chosen(logits.tokens(rank), [&](std::int64_t token, const ChoiceOutput& to) {
        logits.fill_tile(rank, token, tile_.tile());
        select();
        for (std::size_t choice = 0; choice < top_k; ++choice) {
          for (std::size_t place = 0; place < tile_tokens; ++place) {
            const std::uint16_t expert = expert_[choice * tile_tokens + place];
            to.expert[choice * to.stride + place] = expert;
            to.probability[choice * to.stride + place] =
                score_[std::size_t{expert} * tile_tokens + place];
          }
        }
        // The k best scores without the bias.
        shape_.kernels.largest(score_.data(), 0, shape_.experts, shape_.config.top_k,
                               {expert_.data(), key_.data(), tile_tokens});
        float* mass = out.reference_mass.data() + begin + token;
        std::fill_n(mass, tile_tokens, 0.0F);
        for (std::size_t at = 0; at < key_.size(); ++at) mass[at % tile_tokens] += key_[at];
      });
      begin += logits.tokens(rank);
    }
  }

 private:
  // A step of training on the tiles from `tile` on; advances `tile`.
  void train(const GroupLogits& logits, std::int64_t& tile) {
    const auto speed = static_cast<float>(update_speed(shape_.config));
    load_.assign(bias_.size(), 0);
    std::int64_t tokens = 0;
    for (std::int64_t left = tiles_per_step(); left > 0; --left) {
      const int valid = logits.fill_training_tile(tile++, tile_.tile());
      select();
      for (std::size_t at = 0; at < expert_.size(); ++at) {
        if (static_cast<int>(at % tile_tokens) < valid) ++load_[expert_[at]];
      }
      tokens += valid;
    }
    for (std::size_t expert = 0; expert < bias_.size(); ++expert) {
      const std::int64_t above = load_[expert] * shape_.experts - tokens * shape_.config.top_k;
      if (above != 0) bias_[expert] += above > 0 ? -speed : speed;
    }
  }

  // The result of a converged training does not depend on its start: a wrong bias changes by the
  // update speed in each step until its load fluctuates around the mean, which takes about 20 steps
  // for an error of 5 speeds. Long trainings therefore start from biases with which score + bias
  // exceeds a common threshold for a share k / E of a sample's tokens at every expert, and run only
  // the last steps. Returns false, with biases 0, if the steps might not have been enough to
  // converge.
  static constexpr int last_steps = 128;

  bool settle(const GroupLogits& logits, std::int64_t& tile) {
    constexpr std::int64_t sample_tiles = 256;
    std::vector<std::vector<float>> scores(bias_.size());
    for (std::int64_t left = sample_tiles; left > 0; --left) {
      const auto valid =
          static_cast<std::ptrdiff_t>(logits.fill_training_tile(tile++, tile_.tile()));
      select();
      for (std::size_t expert = 0; expert < scores.size(); ++expert) {
        const float* row = score_.data() + expert * tile_tokens;
        scores[expert].insert(scores[expert].end(), row, row + valid);
      }
    }
    const std::size_t tokens = scores.front().size();
    const std::size_t above =
        tokens * static_cast<std::size_t>(shape_.config.top_k) / scores.size();
    if (above == 0 || above == tokens) return false;
    std::vector<float> thresholds;
    for (std::vector<float>& of_expert : scores) {
      const auto threshold = of_expert.begin() + static_cast<std::ptrdiff_t>(above);
      std::nth_element(of_expert.begin(), threshold, of_expert.end(), std::greater<>());
      thresholds.push_back(*threshold);
    }
    const auto [least, most] = std::minmax_element(thresholds.begin(), thresholds.end());
    const double reach = update_speed(shape_.config) * update_steps(shape_.config);
    if (*most - *least > reach / 2) return false;
    for (std::size_t expert = 0; expert < bias_.size(); ++expert) {
      bias_[expert] = (*most + *least) / 2 - thresholds[expert];
    }
    return true;
  }

  // Enough tokens for a mean load of 32 routes per step, so that the sign of its error is rarely
  // random.
  std::int64_t tiles_per_step() const {
    constexpr std::int64_t least_tokens = 512;
    constexpr std::int64_t mean_load = 32;
    const std::int64_t tokens =
        std::max<std::int64_t>(least_tokens, mean_load * shape_.experts / shape_.config.top_k);
    return (tokens + tile_tokens - 1) / tile_tokens;
  }

  // score_ from the tile's logits, then the choices by score + bias.
  void select() {
    float* logit = tile_.tile();
    shape_.kernels.biased_sigmoids(logit, shape_.experts, bias_.data(), score_.data());
    if (shape_.config.kept_groups < shape_.config.groups) mask_groups();
    shape_.kernels.largest(logit, 0, shape_.experts, shape_.config.top_k,
                           {expert_.data(), key_.data(), tile_tokens});
  }

  // Converts the tile to scores plus bias, with -inf in all groups except the `kept_groups` best by
  // the sum of their two best; ties: the lower group first.
  void mask_groups() {
    const auto groups = static_cast<std::size_t>(shape_.config.groups);
    const int listed = std::min(per_group_, 2);
    for (std::size_t group = 0; group < groups; ++group) {
      const int first = static_cast<int>(group) * per_group_;
      shape_.kernels.largest(tile_.tile(), first, first + per_group_, listed,
                             {pair_expert_, pair_key_, tile_tokens});
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        float& sum = kept_.scores(group)[place];
        sum = pair_key(place);
        if (listed > 1) sum += pair_key(place + tile_tokens);
      }
    }
    kept_.find();
    for (std::size_t group = 0; group < groups; ++group) mask(group);
  }

  // An expert with logit -inf has score 0, as in the published code.
  float pair_key(std::size_t at) const {
    return pair_key_[at] == hopeless ? bias_[pair_expert_[at]] : pair_key_[at];
  }

  void mask(std::size_t group) {
    constexpr float infinite = std::numeric_limits<float>::infinity();
    float most[tile_tokens];
    for (std::size_t place = 0; place < tile_tokens; ++place) {
      most[place] = kept_.keeps(group, place) ? infinite : -infinite;
    }
    const auto experts = static_cast<std::size_t>(per_group_);
    float* row = tile_.tile() + group * experts * tile_tokens;
    for (std::size_t left = experts; left > 0; --left, row += tile_tokens) {
      for (std::size_t place = 0; place < tile_tokens; ++place) {
        row[place] = row[place] < most[place] ? row[place] : most[place];
      }
    }
  }

  // For an expert with logit -inf: below every value of a finite logit, above those of other
  // groups.
  static constexpr float hopeless = std::numeric_limits<float>::lowest();

  KindShape shape_;
  TileChooser tile_;
  int per_group_;  // experts
  KeptGroups kept_;
  std::uint16_t pair_expert_[2 * tile_tokens] = {};  // a group's two best
  float pair_key_[2 * tile_tokens] = {};
  std::vector<float> bias_;            // [expert]
  std::vector<std::int64_t> load_;     // [expert]
  std::vector<float> score_;           // [expert, 16]
  std::vector<std::uint16_t> expert_;  // [choice, 16]
  std::vector<float> key_;             // [choice, 16]
};

void read(const RouterReading& in, RouterConfig& config) {
  in.expect(0, 2, "bias-balanced:SPEED:STEPS, such as bias-balanced:0.001:1000");
  config.top_k = in.k_beside();
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

std::unique_ptr<KindRouter> make(const KindShape& shape) {
  return make_chosen_router(shape, std::make_unique<BiasChooser>(shape));
}

// Bias added, scores gathered; in training counts, their mean, sign and step (Wang et al. 2024,
// arXiv:2408.15664, algorithm 1).
constexpr double bias_kernels = 2;
constexpr double bias_update_kernels = 4;

GateWorkList price(const RouterConfig& config, const GateShape& shape) {
  const int choices = config.choices();
  const double grouping = config.groups > 1 ? group_kernels : 0;
  return library_gate(shape,
                      gate_kernels + gate_kernels_per_choice * choices + grouping + bias_kernels +
                          (shape.train ? bias_update_kernels : 0),
                      choices);
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
    .capacity = CapacityRule::none,
    .no_counts = "the shares of experts that its bias leaves are not worked out",
    .read = read,
    .name = name,
    .make = make,
    .price = price};

}  // namespace moesim::routing
