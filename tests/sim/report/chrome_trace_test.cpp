#include "sim/report/chrome_trace.hpp"

#include <nlohmann/json.hpp>

#include "tests/support/catch.hpp"

using namespace moesim;

TEST_CASE("bars that meet in time meet in the trace") {
  // 1.4 ns and 1.4 ns: 1 ns each and 3 ns in all, had each time been rounded by itself.
  const engine::Timeline timeline{
      {0, "compute", "first", "expert", 0, Picoseconds(0), Picoseconds(1'400)},
      {0, "compute", "second", "expert", 0, Picoseconds(1'400), Picoseconds(1'400)},
      {0, "compute", "third", "expert", 0, Picoseconds(2'800), Picoseconds(200)}};
  const std::string text = report::chrome_trace(timeline, "");
  CHECK(text.find("\"ts\": 0.000, \"dur\": 0.001,") != std::string::npos);
  CHECK(text.find("\"ts\": 0.001, \"dur\": 0.002,") != std::string::npos);
  CHECK(text.find("\"ts\": 0.003, \"dur\": 0.000,") != std::string::npos);
}

TEST_CASE("a trace has one process per rank and whole nanoseconds") {
  const engine::Timeline timeline{
      {0, "compute", "expert_ffn", "expert", 3, Picoseconds(1'234'567), Picoseconds(1)},
      {1, "communication", "nccl:all_to_all", "exposed_exchange", -1, Picoseconds(0),
       Picoseconds(2'000'000'000'001)}};
  const std::string text = report::chrome_trace(timeline, "a \"title\"");
  CHECK(text.find("\"ts\": 1.235, \"dur\": 0.000,") != std::string::npos);
  CHECK(text.find("\"dur\": 2000000.000,") != std::string::npos);

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
