#include "sim/scenario/options.hpp"

#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "sim/scenario/exchange.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using moesim::scenario::DocumentCache;
using moesim::scenario::OptionValues;
using moesim::scenario::Use;

namespace {

DocumentCache& documents() {
  static DocumentCache cache;  // read once for all cases
  return cache;
}

scenario::Scenario resolved(const OptionValues& values, Use use = Use::step) {
  return scenario::resolve(values, documents(), use);
}

std::string refusal(const OptionValues& values, Use use = Use::step) {
  try {
    resolved(values, use);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("options left out have the documented defaults") {
  const scenario::Scenario scenario = resolved({});
  CHECK(scenario.profile_name == "a100-sxm-80gb");
  CHECK(scenario.model_name == "llama2-7b-moe8");
  CHECK(scenario.cluster_name == "dgx-a100");
  CHECK(scenario.gpus == 32);
  CHECK(scenario.experts == 8);
  CHECK(scenario.expert_parallel == 8);
  CHECK(scenario.router.name() == "top2");
  CHECK(scenario.router.capacity_factor.text() == "2");
  CHECK(scenario.router.capacity_convention == routing::CapacityConvention::paper);
  CHECK(scenario.router.capacity_scope == routing::CapacityScope::source);
  CHECK(scenario.router.min_capacity == 0);
  CHECK(scenario.router.priority == routing::Priority::token_max);
  CHECK(scenario.router.weights == routing::Weights::kept);
  CHECK(scenario.router.fill_order == routing::FillOrder::nominee_score);
  CHECK(scenario.router.ir_compute == routing::IrCompute::separate);
  CHECK(scenario.router.ir_duplicates == routing::IrDuplicates::allow);
  CHECK(scenario.dispatch == scenario::Dispatch::index);
  CHECK(scenario.mode == scenario::Mode::train);
  CHECK(scenario.sequence_length == 2048);
  CHECK(scenario.micro_batch == 8);
  CHECK(scenario.tokens_per_gpu == 16384);
  CHECK(scenario.micro_steps == 1);
  CHECK(scenario.checkpointing == scenario::Checkpointing::none);
  CHECK(scenario.zero == 1);
  CHECK(scenario.gradient_overlap == scenario::GradientOverlap::none);
  CHECK(scenario.scores.name() == "gaussian:0.1");
  CHECK(scenario.network == scenario::Network::automatic);
  CHECK(scenario.replicas == 16);
  CHECK(scenario.seed == 1);
}

TEST_CASE("the capacity factor defaults to the balanced load in either convention") {
  CHECK(resolved({{"router", "top1"}}).router.capacity_factor.text() == "1");
  CHECK(resolved({{"router", "top2+fr"}}).router.capacity_factor.text() == "2");
  const scenario::Scenario library = resolved({{"capacity-convention", "library"}});
  CHECK(library.router.capacity_factor.text() == "1");
  CHECK(library.router.capacity(16384, 8) == resolved({}).router.capacity(16384, 8));
}

TEST_CASE("expert parallelism defaults to the largest size inside a node that divides") {
  CHECK(resolved({{"experts", "4"}}).expert_parallel == 4);
  CHECK(resolved({{"experts", "32"}}).expert_parallel == 8);  // one node
  CHECK(resolved({{"experts", "6"}}).expert_parallel == 2);   // 6 does not divide 32, nor does 3
  CHECK(resolved({{"gpus", "12"}}).expert_parallel == 4);
  CHECK(resolved({{"gpus", "7"}}).expert_parallel == 1);
}

TEST_CASE("given tokens stand for the micro-batch that makes them") {
  const scenario::Scenario scenario = resolved({{"tokens-per-gpu", "4096"}});
  CHECK(scenario.micro_batch == 2);
  CHECK(scenario.tokens_per_gpu == 4096);
  CHECK(resolved({{"sequence-length", "512"}, {"tokens-per-gpu", "1024"}}).micro_batch == 2);
  CHECK(resolved({{"micro-batch", "2"}, {"tokens-per-gpu", "4096"}}).micro_batch == 2);
  CHECK(has(refusal({{"tokens-per-gpu", "1000"}}), "no whole number of sequences of 2048"));
  CHECK(has(refusal({{"micro-batch", "4"}, {"tokens-per-gpu", "4096"}}), "leave one of them out"));
}

TEST_CASE("routing alone takes any number of tokens") {
  CHECK(resolved({{"tokens-per-gpu", "1000"}}, Use::routing).tokens_per_gpu == 1000);
  CHECK(resolved({{"global-batch", "100"}}, Use::routing).micro_steps == 1);
}

TEST_CASE("the global batch is a whole number of micro-steps") {
  CHECK(resolved({{"global-batch", "1024"}}).micro_steps == 4);  // 32 GPUs x 8 sequences at a time
  CHECK(has(refusal({{"global-batch", "100"}}), "--global-batch: 100 sequences are no whole"));
  CHECK(resolved({{"global-batch", "100"}, {"mode", "prefill"}}).micro_steps == 1);
}

TEST_CASE("a dense router has neither experts nor an expert-parallel group") {
  const scenario::Scenario scenario = resolved({{"router", "dense"}, {"gpus", "7"}});
  CHECK_FALSE(scenario.has_moe());
  CHECK(scenario.expert_parallel == 1);
  CHECK(resolved({{"model", "llama2-7b"}}).router.is_dense());
  CHECK(has(refusal({{"model", "llama2-7b"}, {"router", "top1"}}), "has no MoE layers"));
}

TEST_CASE("combinations that cannot be say what to change") {
  CHECK(has(refusal({{"experts", "10"}, {"expert-parallel", "4"}, {"gpus", "20"}}),
            "use one of 1, 2, 5, 10"));
  CHECK(refusal({{"experts", "10"}, {"expert-parallel", "4"}}).ends_with("use one of 1, 2"));
  CHECK(has(refusal({{"gpus", "10"}, {"expert-parallel", "8"}}), "--expert-parallel 1, 2"));
  CHECK(has(refusal({{"router", "top9"}}), "9 experts per token, but there are 8"));
  CHECK(has(refusal({{"router", "top8+fr"}}), "fill-in needs one more than k"));
  CHECK(has(refusal({{"router", "top2"}, {"top-k", "4"}}), "--top-k"));
  CHECK(resolved({{"router", "topk"}}).router.top_k == 2);  // the k of llama2-7b-moe8
  CHECK(resolved({{"router", "topk"}, {"top-k", "3"}}).router.top_k == 3);
  CHECK(resolved({{"router", "top2"}, {"top-k", "2"}}).router.top_k == 2);
}

TEST_CASE("groups on a part of one rack are aligned, and the message says which others are") {
  const auto on_racks = [](const std::string& gpus, const std::string& ranks) {
    return OptionValues{{"model", "deepseek-v3"}, {"cluster", "gb200-nvl72"},
                        {"profile", "gb200"},     {"router", "dropless"},
                        {"gpus", gpus},           {"expert-parallel", ranks},
                        {"dedup", "node"}};
  };
  CHECK(resolved(on_racks("64", "64")).has_aligned_groups());
  CHECK(resolved(on_racks("64", "32")).has_aligned_groups());
  CHECK(resolved(on_racks("128", "64")).has_aligned_groups());
  CHECK(resolved(on_racks("128", "128")).has_aligned_groups());
  const std::string cut = refusal(on_racks("96", "32"));  // 48 GPUs of two racks
  CHECK(has(cut, "groups of 32 GPUs have parts of NVLink domains of 48"));
  CHECK(has(cut, "choose --expert-parallel 1, 2, 4, 8, 16, or --gpus 64, or --dedup gpu"));
  for (const char* ranks : {"1", "2", "4", "8", "16"}) {
    CHECK(resolved(on_racks("96", ranks)).has_aligned_groups());
  }
}

TEST_CASE("sizes of groups that are offered are taken, also where parts are no whole nodes") {
  const auto on_racks = [](const std::string& gpus, const std::string& ranks) {
    return OptionValues{{"model", "deepseek-v3-4layers"},
                        {"cluster", "gb200-nvl72"},
                        {"profile", "gb200"},
                        {"router", "top1"},
                        {"padding", "none"},
                        {"mode", "prefill"},
                        {"gpus", gpus},
                        {"experts", gpus},
                        {"expert-parallel", ranks},
                        {"dedup", "node"}};
  };
  const auto offered = [&](const std::string& gpus, const std::string& ranks) {
    const std::string cut = refusal(on_racks(gpus, ranks));
    const std::string_view start = "choose --expert-parallel ";
    REQUIRE(has(cut, std::string(start)));
    const std::size_t begin = cut.find(start) + start.size();
    return cut.substr(begin, cut.find(", or --gpus", begin) - begin);
  };
  CHECK(offered("74", "37") == "1, 2");  // 72 and 2 GPUs of two racks
  CHECK(offered("100", "25") == "1, 2, 4");
  CHECK(offered("96", "32") == "1, 2, 3, 4, 6, 8, 12, 16, 24, 48, 96");  // 48 of each
  for (const auto& [gpus, ranks] : {std::pair{"74", "37"}, {"100", "25"}, {"96", "32"}}) {
    const std::string sizes = offered(gpus, ranks);
    for (const std::string_view size : split(sizes, ',')) {
      CAPTURE(gpus, size);
      const std::size_t digit = size.find_first_not_of(' ');
      CHECK(refusal(on_racks(gpus, std::string(size.substr(digit)))) == "accepted");
    }
  }
}

TEST_CASE("the model's router has the model's k unless another is typed") {
  CHECK(resolved({{"model", "deepseek-v3"}}).router.top_k == 8);
  CHECK(resolved({{"model", "deepseek-v3"}, {"top-k", "4"}}).router.top_k == 4);
  CHECK(resolved({{"top-k", "1"}}).router.name() == "top1");
  CHECK(resolved({{"model", "mixtral-8x7b"}}).router.name() == "dropless");
  CHECK(resolved({{"model", "mixtral-8x7b"}}).router.top_k == 2);
  const auto capped = resolved({{"model", "mixtral-8x7b"}, {"capacity-factor", "1.5"}}).router;
  CHECK(capped.name() == "top2");
  CHECK(capped.has_capacity());
  CHECK(resolved({{"model", "deepseek-v3"}}).router.groups == 8);
  CHECK(resolved({{"top-k", "1"}}).router.capacity_factor.text() == "1");
}

TEST_CASE("every shipped model has a default scenario, but for those with linear attention") {
  for (const std::string& name : shipped_names("models")) {
    CAPTURE(name);
    if (!model::Model::load(name).linear) {
      CHECK(refusal({{"model", name}}) == "accepted");
      continue;
    }
    CHECK(refusal({{"model", name}}) ==
          "--model " + name +
              ": its linear attention is not known to a simulated step: use moesim train, layout "
              "or recommend, which price it (a measured step: moesim train --measured)");
  }
}

TEST_CASE("the dispatchers of help texts are those that ship") {
  const std::vector<scenario::NamedValue>& forms = scenario::dispatcher_forms();
  std::vector<std::string> names;
  for (const scenario::NamedValue& form : forms) names.push_back(form.name);
  REQUIRE_FALSE(names.empty());
  CHECK(names.front() == scenario::nccl_dispatcher);  // no document
  names.erase(names.begin());
  CHECK(names == shipped_names("dispatchers"));
}

TEST_CASE("values that make no sense are refused by flag, value and reason") {
  CHECK(has(refusal({{"gpus", "0"}}), "--gpus: 0 is too small: at least 1"));
  CHECK(has(refusal({{"gpus", "-4"}}), "--gpus: -4 is too small"));
  CHECK(has(refusal({{"gpus", "1e-3"}}), "--gpus: '1e-3' is not a whole number"));
  CHECK(resolved({{"tokens-per-gpu", "4.096e3"}, {"sequence-length", "1024"}}).micro_batch == 4);
  CHECK(has(refusal({{"gpus", "99999999999999999999"}}),
            "--gpus: 99999999999999999999 is too large"));
  CHECK(has(refusal({{"gpus", ""}}), "--gpus: "));
  CHECK(has(refusal({{"capacity-factor", "0"}}), "--capacity-factor: 0 "));
  CHECK(has(refusal({{"capacity-factor", "0.000"}}), "--capacity-factor: 0 "));
  CHECK(has(refusal({{"capacity-factor", "-1"}}), "--capacity-factor: -1 is negative"));
  CHECK(has(refusal({{"capacity-factor", "nan"}}), "--capacity-factor: 'nan'"));
  CHECK(has(refusal({{"zero", "4"}}), "--zero: 4 is too large: at most 3"));
  CHECK(has(refusal({{"mode", "prefil"}}), "did you mean 'prefill'?"));
  CHECK(has(refusal({{"routing", "gaussian:-1"}}), "--routing"));
  CHECK(has(refusal({{"model", "lama2-7b"}}), "llama2-7b"));
}

TEST_CASE("a list where one value belongs points to the sweep") {
  CHECK(has(refusal({{"capacity-factor", "0.5:2:0.5"}}), "'moesim sweep' takes both"));
  CHECK(has(refusal({{"router", "top1,top2"}}), "'moesim sweep' takes both"));
}

TEST_CASE("documents are read once") {
  CHECK(documents().profile("a100-sxm-80gb") == documents().profile("a100-sxm-80gb"));
  CHECK(documents().model("mixtral-8x7b") == documents().model("mixtral-8x7b"));
}

TEST_CASE("options that do not exist are refused with the nearest that does") {
  CHECK(has(refusal({{"gpu", "3"}}), "there is no scenario option gpu (did you mean 'gpus'?)"));
  CHECK(has(refusal({{"expert_parallel", "3"}}), "(did you mean 'expert-parallel'?)"));
}

TEST_CASE("a scenario of no replicas is refused") {
  scenario::Scenario none = resolved({});
  none.replicas = 0;
  CHECK_THROWS_AS(scenario::check(none), UsageError);
}
