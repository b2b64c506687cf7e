#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/profile/predict.hpp"
#include "sim/profile/unfused_ffn.hpp"
#include "sim/step/kernels/kernels.hpp"
#include "sim/step/kernels/operation_kernels.hpp"
#include "sim/step/step_model.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/scenarios.hpp"

using namespace moesim;

// What `predict --op expert-ffn --kernel separate` answers is what a step charges: the same kernels
// of the same shapes.
TEST_CASE("separate expert FFNs take what a step's experts take") {
  const scenario::Scenario scenario = support::scenario_of("mixtral-8x7b", 2);
  const step::KernelPricer pricer(scenario);
  const std::vector<std::int64_t> load{4096, 0, 517, 1, 4096};
  double expected = 0;
  for (const std::int64_t rows : load) {
    for (const step::Kernel& kernel : pricer.expert_rows(step::Pass::forward, rows)) {
      expected += kernel.count * kernel.estimate.time_us;
    }
  }
  const model::Model& model = *scenario.model;
  const std::int64_t ffn = model.moe->expert_ffn;
  const profile::Estimate separate =
      profile::separate_expert_ffn(*scenario.profile, load, model.hidden, ffn);
  CHECK(separate.time_us == Approx(expected).epsilon(1e-12));
  CHECK(separate.time_us_p05 < separate.time_us);
  const profile::Estimate asked = profile::predict(*scenario.profile, "expert-ffn",
                                                   {{"hidden", std::to_string(model.hidden)},
                                                    {"ffn", std::to_string(ffn)},
                                                    {"rows-per-expert", "4096,0,517,1,4096"},
                                                    {"kernel", "separate"}});
  CHECK(asked.time_us == separate.time_us);
  // Padded blocks of a capacity: every expert with as many rows.
  double padded = 0;
  for (const step::Kernel& kernel : pricer.experts(step::Pass::forward, 512, 0)) {
    padded += kernel.count * kernel.estimate.time_us;
  }
  const int experts = scenario.experts / scenario.expert_parallel;
  const std::vector<std::int64_t> even(static_cast<std::size_t>(experts),
                                       std::int64_t{512} * scenario.expert_parallel);
  CHECK(profile::separate_expert_ffn(*scenario.profile, even, model.hidden, ffn).time_us ==
        Approx(padded).epsilon(1e-12));
}

TEST_CASE("batched expert FFNs take what a step's experts take in one call") {
  scenario::Scenario scenario = support::scenario_of("mixtral-8x7b", 2);
  scenario.expert_products = scenario::ExpertProducts::batched;
  constexpr std::size_t local = 4;
  scenario.experts = static_cast<int>(local) * scenario.expert_parallel;
  const step::KernelPricer pricer(scenario);
  const model::Model& model = *scenario.model;
  const auto sum = [](const step::Kernels& kernels) {
    double time_us = 0;
    for (const step::Kernel& kernel : kernels) time_us += kernel.count * kernel.estimate.time_us;
    return time_us;
  };
  const auto batched = [&](const std::vector<std::int64_t>& load) {
    return profile::batched_expert_ffn(*scenario.profile, load, model.hidden, model.moe->expert_ffn)
        .time_us;
  };
  // Padded blocks of a capacity, and the rows of all experts together where there is none.
  const std::vector<std::int64_t> even(local, std::int64_t{512} * scenario.expert_parallel);
  CHECK(sum(pricer.experts(step::Pass::forward, 512, 0)) == Approx(batched(even)).epsilon(1e-12));
  std::vector<std::int64_t> uneven(local, 0);
  uneven.front() = 700;
  uneven.back() += 324;
  CHECK(sum(pricer.expert_rows(step::Pass::forward, 1024)) ==
        Approx(batched(uneven)).epsilon(1e-12));
  // With few rows the weights of all experts are read once.
  scenario::Scenario separate = scenario;
  separate.expert_products = scenario::ExpertProducts::separate;
  const step::KernelPricer apart(separate);
  for (const step::Pass pass : {step::Pass::forward, step::Pass::backward}) {
    CHECK(sum(pricer.experts(pass, 8, 0)) < sum(apart.experts(pass, 8, 0)));
  }
}

namespace {

double time_us(const step::Kernels& kernels) {
  double sum = 0;
  for (const step::Kernel& kernel : kernels) sum += kernel.count * kernel.estimate.time_us;
  return sum;
}

}  // namespace

TEST_CASE("rows of several experts on a GPU are sorted behind an all-to-all, and back") {
  scenario::Scenario scenario = support::scenario_of("mixtral-8x7b", 2);
  scenario.experts = 16;
  const auto sorts = [&] {
    int found = 0;
    const step::StepModel model(scenario);
    for (const engine::Operation& operation : model.program().operations) {
      found += operation.name.rfind("sort", 0) == 0 || operation.name.rfind("unsort", 0) == 0;
    }
    return found;
  };
  CHECK(sorts() == 2 * 2 * 2);                  // two layers, forward and backward
  scenario.experts = scenario.expert_parallel;  // one each
  CHECK(sorts() == 0);
  scenario.experts = 16;
  scenario.dispatcher = std::make_shared<profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  CHECK(sorts() == 0);  // its rows are made where the experts are
  // Read and written.
  const step::KernelPricer pricer(scenario);
  CHECK(time_us(pricer.sort_rows(4096)) ==
        Approx(scenario.profile->memory(2.0 * 2 * 4096 * 4096).time_us));
}

TEST_CASE("queries and keys of a model that has norms of them are normalised") {
  const scenario::Scenario with = support::scenario_of("qwen3-30b-a3b", 1);
  scenario::Scenario without = with;
  auto plain = std::make_shared<model::Model>(*with.model);
  plain->query_key_norm = false;
  without.model = plain;
  for (const step::Pass pass : {step::Pass::forward, step::Pass::backward}) {
    const double norm_us = time_us(step::KernelPricer(with).attention(pass, true)) -
                           time_us(step::KernelPricer(without).attention(pass, true));
    const double heads = static_cast<double>(plain->heads + plain->kv_heads);
    const double values = 4096 * heads * static_cast<double>(plain->head_dim);
    const double bytes = (pass == step::Pass::forward ? 2 : 4) * 2 * values;
    CHECK(norm_us ==
          Approx(with.profile->memory(bytes, profile::MemoryKernel::normalization).time_us));
  }
}

TEST_CASE("fused experts take the published call, and its moves of rows are priced once") {
  scenario::Scenario scenario = support::scenario_of("mixtral-8x7b", 2);
  constexpr int local = 4;
  scenario.mode = scenario::Mode::prefill;
  scenario.expert_products = scenario::ExpertProducts::fused;
  scenario.experts = local * scenario.expert_parallel;
  const model::Model& model = *scenario.model;
  const auto published = [&](std::int64_t rows) {
    return scenario.profile->expert_ffn(rows, model.hidden, model.moe->expert_ffn, local).time_us;
  };
  const auto forward = step::Pass::forward;
  const auto phase = [&](step::MoePhase which) {
    step::StepOperation operation;  // of a forward pass
    operation.phase = which;
    return time_us(kernels_of(operation, {false, 1024, 0}, step::KernelPricer(scenario), {}));
  };
  {
    const step::KernelPricer pricer(scenario);
    CHECK(time_us(pricer.expert_rows(forward, 1024)) == published(1024));
    const std::int64_t received = std::int64_t{512} * scenario.expert_parallel * local;
    CHECK(time_us(pricer.experts(forward, 512, 0)) == published(received));
    CHECK(time_us(pricer.expert_rows(forward, 0)) == 0);
    // Rows of IR: gathered in the call, blended behind it.
    CHECK(pricer.rectify_moves(forward, 8).size() == 1);
  }
  const auto sorts = [&] {
    int found = 0;
    const step::StepModel built(scenario);
    for (const engine::Operation& operation : built.program().operations) {
      found += operation.name.rfind("sort", 0) == 0 || operation.name.rfind("unsort", 0) == 0;
    }
    return found;
  };
  // Behind NCCL's all-to-all the call gathers what would be sorted; the sender's rows are packed.
  const double residual = time_us(step::KernelPricer(scenario).residual(forward));
  CHECK(sorts() == 0);
  CHECK(phase(step::MoePhase::dispatch) > 0);
  CHECK(phase(step::MoePhase::combine) > residual);
  const auto moves_in_call = [&] {
    return phase(step::MoePhase::dispatch) == 0 && phase(step::MoePhase::combine) == residual;
  };
  CHECK_FALSE(moves_in_call());
  scenario.dispatcher = std::make_shared<profile::Dispatcher>(profile::Dispatcher::load("deepep"));
  CHECK(moves_in_call());
  scenario.dispatcher = nullptr;
  scenario.expert_parallel = 1;
  scenario.experts = local;
  CHECK(moves_in_call());
  // No other products hold them.
  scenario.expert_products = scenario::ExpertProducts::batched;
  CHECK_FALSE(moves_in_call());
}
