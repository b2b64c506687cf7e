// Exchanges as they are measured, on stand-ins for the CUDA runtime and NCCL: what they move, and
// where the ranks meet.
#include <fmt/ranges.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "kernels/measure/ranks/group.hpp"
#include "kernels/measure/suites/collectives.hpp"
#include "tests/kernels/measure/cuda/in_process.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/fake_cuda/runtime.hpp"

namespace measure = moesim::kernels::measure;
using measure::cuda::Context;

extern "C" __attribute__((visibility("default"))) void on_fake_nccl() {
  fake_runtime().calls.emplace_back("exchange");
}

namespace {

// A member of a group whose meetings stand among the calls of the runtime.
class Meeting : public measure::Group {
 public:
  explicit Meeting(measure::Group& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::vector<std::string> all_gather(const std::string& own) override {
    fake_runtime().calls.emplace_back("meet");
    return group_.all_gather(own);
  }

 private:
  measure::Group& group_;
};

using Body = std::function<void(measure::Workload&)>;

// What `body` calls on the last of `ranks` threads, each of which has the exchange, or what went
// wrong.
std::string calls(int ranks, const measure::PointSpec& spec, const Body& body) {
  ::setenv("MOESIM_CUBLAS_LIBRARY", MOESIM_FAKE_CUBLAS, 1);
  ::setenv("MOESIM_CUPTI_LIBRARY", "/no/such/libcupti.so", 1);
  return in_process("MOESIM_NCCL_LIBRARY", MOESIM_FAKE_NCCL, [&] {
    std::string said;
    measure::run_in_threads(ranks, [&](measure::Group& group) {
      Meeting meeting(group);
      Context context(group.rank(), meeting);
      const auto workload = measure::cuda::collective_workload(context, spec, 1);
      fake_runtime().calls.clear();
      body(*workload);
      if (group.rank() == ranks - 1) {
        said = fmt::format("{}", fmt::join(fake_runtime().calls, " "));
      }
      group.barrier();
    });
    return said;
  });
}

void verified(measure::Workload& exchange) {
  const std::string wrong = exchange.verify();
  if (!wrong.empty()) throw std::runtime_error(wrong);
}

void timed(measure::Workload& exchange) {
  const measure::Run run = exchange.cold();
  // The stand-in's events are 1 ms apart.
  if (run.calls != 4 || run.time_us != 250) throw std::runtime_error("another time");
}

}  // namespace

TEST_CASE("ranks that verify an exchange are idle before it, and go on when all have queued it") {
  for (const std::size_t count : {std::size_t{2}, std::size_t{4}}) {
    const int ranks = static_cast<int>(count);
    CAPTURE(ranks);
    const std::int64_t bytes = 1024 * ranks;
    const std::vector<std::string> patterns(count, "pattern"), compares(count, "compare");
    const std::string met = "synchronise meet exchange meet";
    for (const char* pattern : {"equal", "uneven"}) {
      CHECK(calls(ranks, measure::exchange_point("all-to-all", pattern, ranks, bytes), verified) ==
            fmt::format("{} {} {} synchronise", fmt::join(patterns, " "), met,
                        fmt::join(compares, " ")));
    }
    CHECK(calls(ranks, measure::exchange_point("all-gather", "equal", ranks, bytes), verified) ==
          fmt::format("pattern {} {} synchronise", met, fmt::join(compares, " ")));
    for (const char* op : {"all-reduce", "reduce-scatter"}) {
      CHECK(calls(ranks, measure::exchange_point(op, "equal", ranks, bytes), verified) ==
            fmt::format("synchronise {} synchronise", met));
    }
  }
}

TEST_CASE("ranks that time exchanges meet once, when all have queued theirs") {
  measure::PointSpec spec = measure::exchange_point("all-to-all", "equal", 2, 2048);
  spec.calls = 4;
  CHECK(calls(2, spec, timed) ==
        "clocks read hold exchange event exchange exchange exchange exchange event clocks meet "
        "synchronise");
}
