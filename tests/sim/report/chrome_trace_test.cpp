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

// Readers count what has the category "kernel", and know kernels by device and stream too: a range
// around kernels has neither, as Kineto writes it.
TEST_CASE("a range is an annotation and no kernel") {
  engine::TimelineEvent pass{0, "pipeline", "forward", "", -1, Picoseconds(0), Picoseconds(3'000)};
  pass.is_range = true;
  engine::TimelineEvent receive{0,  "p2p",          "nccl:recv",       "p2p",
                                -1, Picoseconds(0), Picoseconds(2'000)};
  receive.group_name = "pipeline_parallel";
  receive.detail = "of stage 1";
  const nlohmann::json trace = nlohmann::json::parse(report::chrome_trace({pass, receive}, ""));
  std::vector<nlohmann::json> bars;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") bars.push_back(event);
  }
  REQUIRE(bars.size() == 2);
  CHECK(bars[0]["cat"] == "gpu_user_annotation");
  CHECK(bars[0]["name"] == "forward");
  CHECK(bars[0]["args"].empty());
  CHECK(bars[1]["cat"] == "kernel");
  CHECK(bars[1]["name"] == "ncclDevKernel_SendRecv");
  CHECK(bars[1]["args"]["Collective name"] == "recv");
  CHECK(bars[1]["args"]["Process Group Description"] == "pipeline_parallel");
  CHECK(bars[1]["args"]["detail"] == "of stage 1");
}

// NCCL has a kernel for each type that it adds, and one for all that it moves.
TEST_CASE("kernels that add are named after the type that they add") {
  engine::Timeline timeline;
  for (const char* const element : {"Float", "BFloat16"}) {
    for (const char* const name : {"nccl:reduce_scatter", "nccl:all_reduce", "nccl:all_gather"}) {
      engine::TimelineEvent event{
          0, "gradients", name, "gradients", -1, Picoseconds(0), Picoseconds(1'000)};
      event.element = element;
      timeline.push_back(event);
    }
  }
  const nlohmann::json trace = nlohmann::json::parse(report::chrome_trace(timeline, ""));
  std::vector<std::string> names;
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") names.push_back(event["name"]);
  }
  CHECK(names == std::vector<std::string>{"ncclDevKernel_ReduceScatter_Sum_f32_RING_LL",
                                          "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                                          "ncclDevKernel_AllGather_RING_LL",
                                          "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
                                          "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
                                          "ncclDevKernel_AllGather_RING_LL"});
}

TEST_CASE("a trace without bars is a trace") {
  CHECK(nlohmann::json::parse(report::chrome_trace({}, "empty"))["traceEvents"].empty());
}
