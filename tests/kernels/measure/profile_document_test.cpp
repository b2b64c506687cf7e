#include "kernels/measure/documents/profile_document.hpp"

#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <vector>

#include "kernels/measure/sessions/plan.hpp"
#include "kernels/measure/sessions/trial.hpp"
#include "kernels/measure/suites/launch.hpp"
#include "kernels/measure/suites/suites.hpp"
#include "kernels/measure/suites/sustained.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/statistics.hpp"
#include "sim/profile/profile.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/outcome.hpp"
#include "tests/kernels/measure/fake_device.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
namespace fs = std::filesystem;
using measure::testing::FakeDevice;
using measure::testing::simple_law;
using moesim::profile::Profile;

namespace {

measure::RunFacts facts_of(const FakeDevice& device, const std::string& name) {
  measure::RunFacts facts;
  facts.name = name;
  facts.tool_version = "0.1.0";
  facts.device = device.facts();
  facts.versions = device.versions();
  facts.arguments = {"--out", "node.json"};
  return facts;
}

// All suites on one fake GPU, and the exchanges of 8 from its law.
std::vector<measure::Point> measured(FakeDevice& device) {
  measure::TrialOptions quick;
  quick.warm_up.least_s = 0;
  std::vector<measure::Point> points;
  measure::SoloGroup group;
  for (const measure::Suite& suite : measure::all_suites()) {
    for (measure::PointSpec spec : suite.points(8)) {
      spec.collective = false;  // one thread stands for all ranks
      points.push_back(measure::measure_point(device, group, spec, suite.name, 1, quick));
    }
  }
  return points;
}

class ProfileFile {
 public:
  explicit ProfileFile(const nlohmann::ordered_json& document)
      : path_((fs::temp_directory_path() /
               ("moesim-test-profile-" + std::to_string(::getpid()) + ".json"))
                  .string()) {
    moesim::write_file_atomically(path_, document.dump(1));
  }
  ~ProfileFile() { fs::remove(path_); }
  ProfileFile(const ProfileFile&) = delete;  // a second owner would remove it early
  ProfileFile& operator=(const ProfileFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

// Points of a machine with a known law -> curves -> a document -> the profile that a simulation
// reads: its answers are the law's.
TEST_CASE("a measured profile answers with the laws of its machine, and a simulation runs on it") {
  FakeDevice device(simple_law);
  const auto points = measured(device);
  const ProfileFile file(
      measure::profile_document(facts_of(device, "fake-node"), points, measure::always_missing()));
  const Profile profile = Profile::load(file.path());
  CHECK(profile.name() == "fake-node");
  CHECK(profile.device().sms == 132);

  // Memory-bound kernels: 3 us and 4.2 TB/s.
  for (const double bytes : {3e6, 7e7, 1.5e9}) {
    const auto estimate = profile.memory(bytes);
    CHECK(estimate.time_us == Approx(3 + bytes / 4.2e6).epsilon(0.01));
    CHECK(estimate.origin == moesim::profile::Origin::measured);
  }
  // Products that fill the machine: 3 us and 700 TFLOP/s, from a prior whose tiles know other
  // waves: within its own held-out error, at a shape it has not seen.
  const auto product = profile.gemm(6000, 8192, 5120);
  CHECK(product.origin == moesim::profile::Origin::measured);
  CHECK(product.time_us == Approx(3 + 2.0 * 6000 * 8192 * 5120 / 700e6).epsilon(0.08));
  // In FP8 twice as fast, and no cast in it; training prices such products by their curves.
  for (const char* dtype : {"fp8", "fp8_block"}) {
    const auto narrow = profile.gemm(6000, 8192, 5120, dtype);
    CHECK(narrow.origin == moesim::profile::Origin::measured);
    CHECK(narrow.time_us == Approx(3 + 1.0 * 6000 * 8192 * 5120 / 700e6).epsilon(0.08));
    CHECK(profile.gemm_cast_us(6000, 5120, dtype) == 0);
  }
  // permute and combine run at the full memory bandwidth under this law.
  const double moved = 2.0 * 4096 * (16384 + 32768);
  CHECK(profile.permute(16384, 4096, 2).time_us == Approx(3 + moved / 4.2e6).epsilon(0.02));
  CHECK(profile.permute(16384, 4096, 2).origin == moesim::profile::Origin::measured);
  // Exchanges of 8: 12 us and 380 GB/s, 7/8 of the buffer sent.
  for (const double bytes : {1e6, 5e7}) {
    const auto estimate = profile.collective(moesim::profile::Collective::all_to_all, 8, bytes);
    CHECK(estimate.time_us == Approx(12 + bytes * 7 / 8 / 0.38e6).epsilon(0.01));
    CHECK(estimate.origin == moesim::profile::Origin::measured);
  }
  // Attention at shapes it has not seen: two products over half of the scores at 700 TFLOP/s. The
  // prior's last tile is partly empty, this law's never.
  std::vector<double> off;
  for (const auto& [batch, length, kv_heads] : {std::array{2, 3000, 32},
                                                {1, 3000, 8},
                                                {2, 5000, 32},
                                                {4, 1500, 8},
                                                {8, 700, 32},
                                                {1, 6144, 32},
                                                {4, 3072, 8},
                                                {2, 12000, 8}}) {
    const auto attention = profile.attention({batch, length, 32, kv_heads, 128}, false);
    CHECK(attention.origin == moesim::profile::Origin::measured);
    const double law = 3 + 2.0 * batch * 32 * length * length * 128 / 700e6;
    off.push_back(std::abs(attention.time_us / law - 1));
  }
  CHECK(moesim::median(off) < 0.07);  // 0.079 with the prior's cost of a cache
  // What products hold without a rest: the law's rate, whatever the base says.
  CHECK(profile.device().sustained_bf16_flops == Approx(700e12).epsilon(0.01));
  CHECK(profile.device().sustained_fp8_flops == Approx(1400e12).epsilon(0.01));
  CHECK(profile.device().sustained_fp8_block_flops == Approx(1400e12).epsilon(0.01));
  // Copies to and from the host at the law's rate, an eighth of its links'.
  CHECK(profile.device().host_copy_bandwidth.bytes_per_second == Approx(380e9 / 8).epsilon(0.01));
  CHECK(profile.device().host_bandwidth.bytes_per_second == 64e9);  // the datasheet's
  // What was not measured stays published.
  CHECK(profile.attention({1, 2048, 32, 4, 192}, false).origin ==
        moesim::profile::Origin::published);
  CHECK(profile.collective(moesim::profile::Collective::all_to_all, 4, 1e6).origin ==
        moesim::profile::Origin::published);

  // And a whole step: faster exchanges than the shipped profile's show in it.
  moesim::scenario::DocumentCache documents;
  moesim::routing::RoutingCache cache;
  const moesim::scenario::OptionValues options{
      {"profile", file.path()}, {"gpus", "8"},       {"replicas", "3"},
      {"micro-batch", "1"},     {"mode", "prefill"}, {"sequence-length", "1024"}};
  const auto outcome =
      moesim::study::evaluate(moesim::scenario::resolve(options, documents), cache);
  CHECK(outcome.step_ms > 1);
  CHECK_THAT(outcome.provenance, ContainsSubstring("measured"));
}

TEST_CASE("exchanges across nodes are points, no curve of the node") {
  FakeDevice device(simple_law);
  const auto points = measured(device);  // among 8
  device.device_facts.gpus_in_node = 4;  // so they left the node
  const auto document = measure::profile_document(facts_of(device, "half"), points, {});
  CHECK(document["points"].size() == points.size());
  REQUIRE(document["missing"].size() == 1);
  CHECK(document["missing"][0]["suite"] == "collectives across nodes");
  for (const auto& curve : document["curves"]) {
    if (curve.contains("branches")) CHECK(curve["origin"] != "measured");
  }
}

TEST_CASE("a document says what it rests on") {
  FakeDevice device(simple_law);
  const auto document =
      measure::profile_document(facts_of(device, "empty-node"), {}, measure::always_missing());
  CHECK(document["conditions"]["base"] == "h200-sxm");
  CHECK(document["conditions"]["nccl"] == "2.28.3");
  CHECK(document["conditions"]["cupti"].is_null());
  CHECK(document["devices"][0]["uuid"] == device.device_facts.uuid);
  CHECK(document["missing"].size() == measure::always_missing().size());
  // Nothing measured: every curve is the base's, as it was, and what products hold.
  for (const auto& curve : document["curves"]) CHECK(curve["origin"] != "measured");
  CHECK(document["devices"][0]["sustained_bf16_flops"]["origin"] == "derived");
  CHECK(document["devices"][0]["sustained_fp8_flops"]["origin"] == "derived");
}

TEST_CASE("what products hold without a rest is said of each data type") {
  const auto dtype = [](const measure::PointSpec& spec) {
    return spec.params.at("dtype").get<std::string>();
  };
  FakeDevice device([&](const measure::PointSpec& spec) {
    return simple_law(spec) * (dtype(spec) == "fp8_block" ? 1.25 : 1);
  });
  measure::SoloGroup group;
  std::vector<measure::Point> points;
  for (const measure::PointSpec& spec : measure::sustained_suite().points(1)) {
    points.push_back(measure::measure_point(device, group, spec, "sustained", 1));
  }
  const auto document = measure::profile_document(facts_of(device, "held"), points, {});
  const auto rate = [&](const char* name) {
    CHECK(document["devices"][0][name]["origin"] == "measured");
    return document["devices"][0][name]["value"].get<double>() / 1e12;
  };
  CHECK(rate("sustained_bf16_flops") == Approx(700).epsilon(0.01));
  CHECK(rate("sustained_fp8_flops") == Approx(1400).epsilon(0.01));
  CHECK(rate("sustained_fp8_block_flops") == Approx(1120).epsilon(0.01));
}

TEST_CASE("what products hold without a rest is said with its clock and power") {
  FakeDevice device(simple_law);
  measure::SoloGroup group;
  const measure::PointSpec spec = measure::sustained_suite().points(1).at(0);
  measure::Point point = measure::measure_point(device, group, spec, "sustained", 1);
  point.details = {{"power_w", 690.5}, {"throttled_by", "power limit"}};
  const auto document = measure::profile_document(facts_of(device, "held"), {point}, {});
  const auto& held = document["devices"][0]["sustained_bf16_flops"];
  CHECK(held["origin"] == "measured");
  CHECK_THAT(held["source"].get<std::string>(),
             ContainsSubstring("products of 8192 x 8192 x 8192 back to back, 1980 MHz, 690 W"));
  CHECK(document["points"][0]["details"]["throttled_by"] == "power limit");
}

TEST_CASE("what copies to the host hold is that of the slower direction's longest copy") {
  FakeDevice device([](const measure::PointSpec& spec) {
    const double bytes = spec.params.at("bytes");
    const double rate = spec.params.at("direction") == "to-host" ? 50e3 : 55e3;
    return 8 + bytes / rate;
  });
  measure::SoloGroup group;
  const auto point = [&](const char* direction, std::int64_t bytes) {
    return measure::measure_point(device, group, measure::host_copy_point(direction, bytes),
                                  "launch", 1);
  };
  std::vector<measure::Point> points = {point("to-device", 64 << 20), point("to-device", 256 << 20),
                                        point("to-host", 1 << 20)};
  // The rate is not known by one direction alone, or by short copies.
  const auto unknown = measure::profile_document(facts_of(device, "half"), points, {});
  CHECK_FALSE(unknown["devices"][0].contains("host_copy_bytes_per_second"));
  points.push_back(point("to-host", 64 << 20));
  const auto document = measure::profile_document(facts_of(device, "copies"), points, {});
  const auto& rate = document["devices"][0]["host_copy_bytes_per_second"];
  CHECK(rate["value"].get<double>() == Approx(50e9).epsilon(0.01));
  CHECK(rate["origin"] == "measured");
  CHECK_THAT(rate["source"].get<std::string>(), ContainsSubstring("pinned memory"));
}

TEST_CASE("another device takes the nearest base, and its curves count as assumed") {
  FakeDevice device(simple_law);
  device.device_facts.name = "NVIDIA H800";
  const ProfileFile file(measure::profile_document(facts_of(device, "h800"), {}, {}));
  const Profile profile = Profile::load(file.path());
  CHECK(profile.gemm(4096, 4096, 4096).origin == moesim::profile::Origin::assumed);
  CHECK(profile.collective(moesim::profile::Collective::all_reduce, 8, 1e6).origin ==
        moesim::profile::Origin::assumed);
  CHECK(measure::usual_base(device.device_facts) == "h100-sxm");
  device.device_facts.compute_major = 8;
  CHECK(measure::usual_base(device.device_facts) == "a100-sxm-80gb");
  device.device_facts.compute_major = 12;
  CHECK(measure::usual_base(device.device_facts) == "h200-sxm");
  device.device_facts.name = "NVIDIA H200 NVL";  // the name counts before the capability
  device.device_facts.compute_major = 9;
  CHECK(measure::usual_base(device.device_facts) == "h200-sxm");
}

// A shipped profile that has exchanges only takes its kernels from the nearest one that has them.
TEST_CASE("a base without kernel curves is filled up from another, marked assumed") {
  FakeDevice device(simple_law);
  device.device_facts.name = "NVIDIA RTX PRO 6000 Blackwell Server Edition";
  device.device_facts.compute_major = 12;
  device.device_facts.sms = 188;
  REQUIRE(measure::usual_base(device.device_facts) == "rtx-pro-6000");
  const ProfileFile file(measure::profile_document(facts_of(device, "rtx"), {}, {}));
  const Profile profile = Profile::load(file.path());
  CHECK(profile.gemm(4096, 4096, 4096).origin == moesim::profile::Origin::assumed);
  CHECK(profile.collective(moesim::profile::Collective::all_to_all, 8, 1e6).origin !=
        moesim::profile::Origin::assumed);
}

TEST_CASE("only the environment that matters is kept") {
  std::string shown = "NCCL_DEBUG=INFO", cuda = "CUDA_VISIBLE_DEVICES=0,1", secret = "TOKEN=x",
              odd = "NCCL";
  char* environment[] = {shown.data(), cuda.data(), secret.data(), odd.data(), nullptr};
  const auto listed = measure::listed_environment(environment);
  CHECK(listed.dump() == R"({"NCCL_DEBUG":"INFO","CUDA_VISIBLE_DEVICES":"0,1"})");
}

TEST_CASE("a device's name becomes a profile's name") {
  CHECK(measure::as_name("NVIDIA H200") == "nvidia-h200");
  CHECK(measure::as_name("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb");
  CHECK(measure::as_name(" (R) ") == "r");
  CHECK(measure::as_name("") == "node");
}

TEST_CASE("a base that is no profile of hardware is refused") {
  FakeDevice device(simple_law);
  auto facts = facts_of(device, "x");
  facts.base = "a100-sxm-80gb-deepspeed";
  CHECK_THROWS_WITH(measure::profile_document(facts, {}, {}), ContainsSubstring("--base"));
  facts.base = "h2oo";
  CHECK_THROWS_AS(measure::profile_document(facts, {}, {}), moesim::UsageError);
}
