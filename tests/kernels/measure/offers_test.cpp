#include "kernels/measure/sessions/offers.hpp"

#include <algorithm>
#include <map>

#include "kernels/measure/suites/suites.hpp"
#include "tests/kernels/measure/fake_device.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
using measure::testing::FakeDevice;
using measure::testing::simple_law;

namespace {

// suite and kind -> trouble
std::map<std::pair<std::string, std::string>, std::string> offers_of(FakeDevice& device, int gpus) {
  std::map<std::pair<std::string, std::string>, std::string> found;
  for (const measure::Offer& offer : measure::examine(device, gpus)) {
    CHECK(found.emplace(std::pair(offer.suite, offer.kind), offer.trouble).second);
  }
  return found;
}

// The first point of a suite that has such an operation and data type.
std::string label_of_smallest(const std::string& suite, const std::string& dtype) {
  std::string label;
  double least = 0;
  for (const measure::PointSpec& spec : measure::find_suite(suite).points(1)) {
    if (spec.params.at("dtype") != dtype) continue;
    const double size = spec.flops + spec.bytes;
    if (!label.empty() && size >= least) continue;
    label = spec.label();
    least = size;
  }
  return label;
}

}  // namespace

TEST_CASE("every suite that one GPU can measure offers each of its kinds once") {
  FakeDevice device(simple_law);
  const auto found = offers_of(device, 1);
  std::vector<std::string> begun;
  measure::examine(device, 1, [&](const std::string& kind) { begun.push_back(kind); });
  CHECK(begun.size() == found.size());
  for (const measure::Suite& suite : measure::all_suites()) {
    const bool there = std::any_of(found.begin(), found.end(), [&](const auto& entry) {
      return entry.first.first == suite.name;
    });
    CHECK(there == (suite.fewest_gpus == 1));
  }
  for (const auto& [kind, trouble] : found) CHECK(trouble.empty());
  CHECK(found.count({"gemm-fp8", "gemm fp8"}) == 1);
  CHECK(found.count({"gemm-fp8", "gemm fp8_block"}) == 1);
  CHECK(found.count({"experts", "expert-ffn bf16 backward"}) == 1);
  CHECK(device.prepared == 2 * found.size());
}

TEST_CASE("a kind that is refused or wrong says why, and the others are examined") {
  FakeDevice device(simple_law);
  device.no_memory[label_of_smallest("gemm-fp8", "fp8_block")] = "no scales by block";
  device.wrong_before[label_of_smallest("gemm", "bf16")] = "row 3 is wrong";
  for (const auto& [kind, trouble] : offers_of(device, 1)) {
    if (kind == std::pair<std::string, std::string>{"gemm-fp8", "gemm fp8_block"}) {
      CHECK(trouble == "no scales by block");
    } else if (kind == std::pair<std::string, std::string>{"gemm", "gemm bf16"}) {
      CHECK(trouble == "row 3 is wrong");
    } else {
      INFO(kind.first << ": " << kind.second);
      CHECK(trouble.empty());
    }
  }
}

TEST_CASE("a device that is lost is asked nothing more") {
  FakeDevice device(simple_law);
  device.dies_at = 3;
  const std::vector<measure::Offer> offers = measure::examine(device, 1);
  REQUIRE(offers.size() > 3);
  for (std::size_t at = 0; at < offers.size(); ++at) {
    CHECK(offers[at].trouble == (at < 2 ? "" : "an illegal address was read: the device is lost"));
  }
  CHECK(device.prepared == 3);
}
