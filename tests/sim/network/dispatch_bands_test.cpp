#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "sim/base/no_answer.hpp"
#include "sim/cluster/rank_placement.hpp"
#include "sim/network/exchange/dispatch_place.hpp"
#include "sim/profile/moe_exchange_law.hpp"
#include "sim/profile/profile.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

namespace {

struct Answer {
  Estimate estimate;
  double wire_us = 0;  // at line rate
};

// A dispatcher's stage among GPUs of a profile's usual cluster, 256 experts, 8 for each token.
class Asker {
 public:
  Asker(const std::string& dispatcher, const Profile& profile, DispatcherStage stage, int gpus)
      : dispatcher_(Dispatcher::load(dispatcher)), stage_(stage) {
    const cluster::Cluster cluster = cluster::Cluster::load(profile.device().usual_cluster);
    const int each = cluster::usual_ranks_per_domain(cluster, gpus);
    place_ = network::dispatch_place(profile.device().name, cluster, {gpus, each}, "");
  }

  Answer at(double tokens, double hidden) const {
    const DispatchLoad load =
        balanced_load(dispatcher_.sent, stage_, {256, 8}, place_.group, tokens);
    const double row = dispatched_row_bytes(dispatcher_, stage_, hidden, false);
    const DispatchCall call{place_.device, stage_,       place_.group,         load,
                            row,           place_.rates, dispatcher_.usual_sms};
    Answer answer{dispatch_time(dispatcher_, call)};
    widen_beyond_measured(dispatcher_, call, hidden, answer.estimate);
    answer.wire_us = load.link_rows * row / place_.rates.link_bytes_per_us;
    if (load.nic_rows > 0) {
      answer.wire_us =
          std::max(answer.wire_us, load.nic_rows * row / place_.rates.nic_bytes_per_us);
    }
    return answer;
  }

 private:
  Dispatcher dispatcher_;
  DispatcherStage stage_;
  network::DispatchPlace place_;
};

void for_each_place(const std::function<void(const Asker&)>& check) {
  for (const char* name :
       {"a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm", "gb200", "gb300"}) {
    const Profile profile = Profile::load(name);
    for (const char* dispatcher : {"deepep", "hybridep", "low-latency", "trtllm"}) {
      for (const DispatcherStage stage : {DispatcherStage::dispatch, DispatcherStage::combine}) {
        for (const int gpus : {2, 8, 16, 64, 128}) {
          CAPTURE(name, dispatcher, name_of(stage), gpus);
          try {
            check(Asker(dispatcher, profile, stage, gpus));
          } catch (const NoAnswer&) {  // inside one domain alone
          }
        }
      }
    }
  }
}

const std::vector<double> counts = {1,    2,    8,    16,   64,    128,   256, 512,
                                    1024, 2048, 4096, 8192, 16384, 65536, 1e6};
const std::vector<double> sizes = {64, 128, 512, 1024, 2048, 4096, 7168, 8192, 16384, 65536};

}  // namespace

TEST_CASE("no lower end of a dispatcher lies below its bytes at line rate", "[property]") {
  for_each_place([](const Asker& asker) {
    for (const double hidden : {2048.0, 7168.0}) {
      for (const double tokens : counts) {
        CAPTURE(hidden, tokens);
        const Answer answer = asker.at(tokens, hidden);
        CHECK(answer.estimate.time_us_p05 >= answer.wire_us * (1 - 1e-12));
        CHECK(answer.estimate.time_us_p05 <= answer.estimate.time_us);
        CHECK(answer.estimate.time_us_p95 >= answer.estimate.time_us);
        // The start of a kernel alone takes as long.
        CHECK(answer.estimate.time_us_p05 > 5);
      }
    }
  });
}

TEST_CASE("more tokens or values of a row end no dispatcher's exchange earlier", "[property]") {
  constexpr double rounding = 1e-3;  // of the rows that the law looks at
  for_each_place([](const Asker& asker) {
    const auto check_rise = [](const Estimate& less, const Estimate& more) {
      CHECK(more.time_us >= less.time_us * (1 - rounding));
      CHECK(more.time_us_p05 >= less.time_us_p05 * (1 - rounding));
      CHECK(more.time_us_p95 >= less.time_us_p95 * (1 - rounding));
    };
    for (const double hidden : sizes) {
      for (std::size_t next = 1; next < counts.size(); ++next) {
        CAPTURE(hidden, counts[next]);
        check_rise(asker.at(counts[next - 1], hidden).estimate,
                   asker.at(counts[next], hidden).estimate);
      }
    }
    for (const double tokens : counts) {
      for (std::size_t next = 1; next < sizes.size(); ++next) {
        CAPTURE(tokens, sizes[next]);
        check_rise(asker.at(tokens, sizes[next - 1]).estimate,
                   asker.at(tokens, sizes[next]).estimate);
      }
    }
  });
}

TEST_CASE("the start of an exchange has no wider band with fewer tokens than were measured") {
  // HybridEP was measured with 4,096 tokens of 7,168 values; one token takes its start alone.
  const Asker asker("hybridep", Profile::load("h100-sxm"), DispatcherStage::dispatch, 8);
  const Estimate one = asker.at(1, 7168).estimate;
  const Dispatcher hybrid = Dispatcher::load("hybridep");
  const StageCost& cost = hybrid.on("NVIDIA H100").inside[0];
  const double of_token_us = one.time_us - cost.fixed_us;
  CHECK(of_token_us < 0.02 * cost.fixed_us);
  const double wide = 1 + std::log2(4096) / 2;
  CHECK(one.time_us_p05 ==
        Approx(cost.factor.low * cost.fixed_us + std::pow(cost.factor.low, wide) * of_token_us)
            .epsilon(0.005));
  CHECK(one.time_us_p95 ==
        Approx(cost.factor.high * cost.fixed_us + std::pow(cost.factor.high, wide) * of_token_us)
            .epsilon(0.005));
  CHECK(one.support == Support::extrapolated);
}
