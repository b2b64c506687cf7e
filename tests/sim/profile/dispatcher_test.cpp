#include "sim/profile/dispatcher.hpp"

#include <nlohmann/json.hpp>
#include <string>

#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

namespace {

nlohmann::json stage() {
  return {{"fixed_us", 10},
          {"link_efficiency", {{"value", 0.7}, {"low", 0.6}, {"high", 0.8}}},
          {"factor", {{"low", 0.9}, {"high", 1.2}}}};
}

nlohmann::json minimal() {
  return {{"format", "moesim dispatcher 1"},
          {"name", "mine"},
          {"help", "of mine"},
          {"source", "a test"},
          {"sent_once_per", "gpu"},
          {"machines",
           {{{"gpus", {"H100"}},
             {"origin", "assumed: a test"},
             {"inside", {{"dispatch", stage()}, {"combine", stage()}}}}}}};
}

Dispatcher read(const nlohmann::json& json) {
  return Dispatcher::read(Document::parse(json.dump(), "mine.json"));
}

}  // namespace

TEST_CASE("every shipped dispatcher reads, and answers under its own name") {
  const std::vector<std::string> names = shipped_names("dispatchers");
  CHECK(names == std::vector<std::string>{"deepep", "hybridep", "low-latency", "trtllm"});
  for (const std::string& name : names) {
    const Dispatcher dispatcher = Dispatcher::load(name);
    CHECK(dispatcher.name == name);
    CHECK(dispatcher.on("some other GPU").gpus.empty());  // the last entry is for all others
    CHECK_FALSE(dispatcher.on("NVIDIA B200").gpus.empty());
  }
}

TEST_CASE("the first machine that a device's name contains answers") {
  const Dispatcher dispatcher = read(minimal());
  CHECK(dispatcher.on("NVIDIA H100 80GB HBM3").gpus.front() == "H100");
  CHECK_THROWS_WITH(dispatcher.on("NVIDIA A100"), ContainsSubstring("no figures for NVIDIA A100"));
  CHECK_FALSE(dispatcher.crosses_nodes());
}

TEST_CASE("a document that contradicts itself is refused by file and key") {
  nlohmann::json upside_down = minimal();
  upside_down["machines"][0]["inside"]["combine"]["link_efficiency"]["low"] = 0.75;
  CHECK_THROWS_WITH(read(upside_down), ContainsSubstring("mine.json: /machines/0/inside/combine"));
  nlohmann::json across_without_nic = minimal();
  across_without_nic["machines"][0]["across"] = minimal()["machines"][0]["inside"];
  CHECK_THROWS_WITH(read(across_without_nic), ContainsSubstring("both or neither"));
  nlohmann::json unknown = minimal();
  unknown["sent_once_per"] = "rack";
  CHECK_THROWS_AS(read(unknown), UsageError);
}

TEST_CASE("rows are 8-bit floats with a scale for each 128 on dispatch, else 16-bit ones") {
  Dispatcher dispatcher = read(minimal());
  CHECK(dispatched_row_bytes(dispatcher, DispatcherStage::dispatch, 7168, true) == 7168 + 56 * 4);
  CHECK(dispatched_row_bytes(dispatcher, DispatcherStage::dispatch, 7168, false) == 14336);
  CHECK(dispatched_row_bytes(dispatcher, DispatcherStage::combine, 7168, true) == 14336);
  dispatcher.header_bytes = 16;
  CHECK(dispatched_row_bytes(dispatcher, DispatcherStage::dispatch, 7168, true) == 7408);
  CHECK(dispatched_row_bytes(dispatcher, DispatcherStage::combine, 7168, false) == 14336);
}

TEST_CASE("numbers of SMs that copy as fast as fewer are read, and have to be fewer") {
  nlohmann::json slow = minimal();
  slow["machines"][0]["inside"]["dispatch"]["slow_sms"] = {{{"sms", 12}, {"as", 8.5}}};
  slow["measured_sms"] = {{"inside", {8, 12}}};
  const Dispatcher dispatcher = read(slow);
  const StageCost& cost = dispatcher.on("NVIDIA H100").inside[0];
  REQUIRE(cost.slow_sms.size() == 1);
  CHECK(cost.slow_sms[0].sms == 12);
  CHECK(cost.slow_sms[0].as == 8.5);
  CHECK(dispatcher.measured[0].sms == std::vector<int>{8, 12});
  CHECK(dispatcher.measured[1].sms.empty());
  slow["machines"][0]["inside"]["dispatch"]["slow_sms"][0]["as"] = 12;
  CHECK_THROWS_WITH(read(slow), ContainsSubstring("expected fewer SMs than 'sms'"));
}
