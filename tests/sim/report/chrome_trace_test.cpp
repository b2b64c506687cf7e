#include "sim/report/chrome_trace.hpp"

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"

using namespace moesim;

TEST_CASE("a trace has one process per rank and exact times") {
  const engine::Timeline timeline{
      {0, "compute", "expert_ffn", "expert", 3, Picoseconds(1'234'567), Picoseconds(1)},
      {1, "communication", "nccl:all_to_all", "exposed_exchange", -1, Picoseconds(0),
       Picoseconds(2'000'000'000'001)}};
  const std::string text = report::chrome_trace(timeline, "a \"title\"");
  CHECK(text.find("\"ts\": 1.234567, \"dur\": 0.000001,") != std::string::npos);
  CHECK(text.find("\"dur\": 2000000.000001,") != std::string::npos);

  const nlohmann::json trace = nlohmann::json::parse(text);
  CHECK(trace["traceName"] == "a \"title\"");
  std::vector<nlohmann::json> bars;
  std::vector<std::string> names;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") bars.push_back(event);
    if (event["ph"] == "M") names.push_back(event["args"]["name"]);
  }
  REQUIRE(bars.size() == 2);
  CHECK(names ==
        std::vector<std::string>{"GPU 0", "stream 7 compute", "GPU 1", "stream 20 communication"});
  CHECK(bars[0]["cat"] == "kernel");
  CHECK(bars[0]["name"] == "expert_ffn");
  CHECK(bars[0]["pid"] == 0);
  CHECK(bars[0]["args"]["layer"] == 3);
  CHECK(bars[0]["args"]["part"] == "expert");
  CHECK_FALSE(bars[1]["args"].contains("layer"));
  CHECK(bars[1]["tid"] != bars[0]["tid"]);
}

TEST_CASE("a trace without bars is a trace") {
  CHECK(nlohmann::json::parse(report::chrome_trace({}, "empty"))["traceEvents"].empty());
}
