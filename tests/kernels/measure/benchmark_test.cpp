#include "kernels/measure/benchmarks/run_benchmarks.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "sim/base/error.hpp"
#include "tests/kernels/measure/fake_device.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
using measure::Bar;
using measure::BarKind;
using measure::Benchmark;
using measure::BenchmarkReport;
using measure::Verdict;
using measure::testing::FakeDevice;

namespace {

// 1 GB in `time_us`.
measure::Point timed(double time_us) {
  measure::Point point;
  point.op = "permute";
  point.verify = "passed";
  measure::Figures figures;
  figures.samples = {0.9 * time_us, time_us, 1.2 * time_us};
  figures.summary = measure::summarise(figures.samples);
  point.cold = figures;
  return point;
}

Verdict verdict(Bar bar, double time_us, double copy, double peak,
                const std::vector<measure::Peer>& peers = {}) {
  Benchmark benchmark;
  benchmark.id = "permute";
  benchmark.bar = bar;
  benchmark.spec.bytes = 1e9;
  return measure::judge(benchmark, timed(time_us), copy, peak, peers).verdict;
}

std::size_t place_of(const std::string& id) {
  const auto& all = measure::kernel_benchmarks();
  for (std::size_t place = 0; place < all.size(); ++place) {
    if (all[place].id == id) return place;
  }
  FAIL("no benchmark " << id);
  return 0;
}

// A copy at 4.0 TB/s; every other kernel at `share` of that, a capacity assignment `assign_us`.
FakeDevice device(double share, double assign_us) {
  return FakeDevice([=](const measure::PointSpec& spec) {
    if (spec.op == "assign") return assign_us;
    return spec.bytes / 4e6 / (spec.op == "memory" ? 1 : share);
  });
}

const measure::BenchmarkRow& row(const BenchmarkReport& report, const std::string& id) {
  return report.rows.at(place_of(id));
}

}  // namespace

TEST_CASE("a benchmark is met on the right side of its bar only") {
  CHECK(verdict({BarKind::microseconds, 10}, 9.9, 0, 0) == Verdict::met);
  CHECK(verdict({BarKind::microseconds, 10}, 10.1, 0, 0) == Verdict::unmet);
  // 1 GB in 300 us: 3.33 TB/s, 1.44 times what it takes at 4.8 TB/s.
  CHECK(verdict({BarKind::times_byte_floor, 1.5}, 300, 0, 4.8e12) == Verdict::met);
  CHECK(verdict({BarKind::times_byte_floor, 1.4}, 300, 0, 4.8e12) == Verdict::unmet);
  CHECK(verdict({BarKind::share_of_copy, 0.8}, 300, 4.1e12, 0) == Verdict::met);
  CHECK(verdict({BarKind::share_of_copy, 0.8}, 300, 4.2e12, 0) == Verdict::unmet);
  CHECK(verdict({}, 300, 0, 0) == Verdict::none);
}

TEST_CASE("a bar without what it is held against is not met") {
  CHECK(verdict({BarKind::times_byte_floor, 1.5}, 300, 4e12, 0) == Verdict::unmet);
  CHECK(verdict({BarKind::share_of_copy, 0.8}, 300, 0, 4e12) == Verdict::unmet);
}

TEST_CASE("a faster peer is a bar not met, another benchmark's is not looked at") {
  const measure::Peer slow{"permute", "slow", 600, {}};
  CHECK(verdict({}, 300, 0, 0, {slow}) == Verdict::met);
  CHECK(verdict({}, 300, 0, 0, {slow, {"permute", "fast", 299, {}}}) == Verdict::unmet);
  CHECK(verdict({}, 300, 0, 0, {{"combine", "fast", 1, {}}}) == Verdict::none);
  CHECK(verdict({BarKind::microseconds, 100}, 300, 0, 0, {slow}) == Verdict::unmet);
}

TEST_CASE("a peer is compared like with like: hot with hot, cold with cold") {
  // 15 us cold, 10 us hot: below 20 us the row's time is the hot one.
  measure::Point point = timed(15);
  measure::Figures hot;
  hot.samples = {10, 10, 10};
  hot.summary = measure::summarise(hot.samples);
  point.hot = hot;
  Benchmark benchmark;
  benchmark.id = "permute";
  benchmark.spec.bytes = 1e9;
  const auto row = [&](const measure::Peer& peer) {
    return measure::judge(benchmark, point, 0, 0, {peer});
  };
  // Its cold time is above our hot one, which says nothing.
  const auto faster = row({"permute", "both", 14, 9});
  CHECK(faster.hot);
  CHECK(faster.verdict == Verdict::unmet);
  CHECK(faster.bar_met);
  measure::BenchmarkReport report;
  report.rows = {faster};
  CHECK(report.table().find("UNMET: a peer is faster") != std::string::npos);
  CHECK(report.csv().find("UNMET: a peer is faster") != std::string::npos);
  CHECK(faster.peers[0].cold == Approx(14.0 / 15));
  CHECK(faster.peers[0].hot == Approx(0.9));
  CHECK(faster.peers[0].judged() == Approx(0.9));
  CHECK(row({"permute", "slower hot", 14, 11}).verdict == Verdict::met);
  // One that no graph can hold is compared cold.
  const auto cold = row({"permute", "cold only", 12, {}});
  CHECK_FALSE(cold.peers[0].by_hot);
  CHECK(cold.verdict == Verdict::unmet);
  CHECK(row({"permute", "cold only", 16, {}}).verdict == Verdict::met);

  point.hot.reset();
  CHECK_FALSE(row({"permute", "both", 16, 1}).peers[0].by_hot);
  CHECK(row({"permute", "both", 16, 1}).verdict == Verdict::met);
  CHECK(row({"permute", "both", 14, 100}).verdict == Verdict::unmet);
  // With nothing of the same kind there is no verdict.
  const auto apart = row({"permute", "hot only", {}, 1});
  CHECK_FALSE(apart.peers[0].judged());
  CHECK(apart.verdict == Verdict::none);
}

TEST_CASE("the table says how a peer was judged, who is missing, and what others published") {
  Benchmark benchmark;
  benchmark.id = "choose-top8-e256";
  benchmark.spec.bytes = 1e9;
  BenchmarkReport report;
  report.peers = "PyTorch 2.11";
  report.missing_peers = {{"choose-top8-e256", "SGLang: moe_fused_gate", "no --wheels"},
                          {"permute-top1", "TE: permute", "out of memory"}};
  const std::vector<measure::Peer> peers = {{"choose-top8-e256", "PyTorch: topk", 45, 50}};
  report.rows = {measure::judge(benchmark, timed(30), 0, 0, peers)};
  const std::string table = report.table();
  CHECK_THAT(table, ContainsSubstring("peers: PyTorch 2.11\n"));
  CHECK_THAT(table, ContainsSubstring("30.00 cold"));
  CHECK_THAT(table,
             ContainsSubstring("cold 45.00 us (1.50 times ours), hot 50.00 us, judged cold\n"));
  CHECK_THAT(table, ContainsSubstring("missing: no --wheels\n"));
  CHECK_THAT(table, ContainsSubstring("22.50 us, not judged: "));
  CHECK(table.find("out of memory") == std::string::npos);
  const auto json = report.json();
  CHECK(json.at("missing_peers").size() == 2);
  const auto& peer = json.at("rows")[0].at("peers")[0];
  CHECK(peer.at("cold_us") == 45);
  CHECK(peer.at("cold_ratio") == Approx(1.5));
  CHECK_FALSE(peer.contains("hot_ratio"));
  CHECK(peer.at("judged") == "cold");
  CHECK(json.at("rows")[0].at("timed") == "cold");
}

TEST_CASE("a published time is never a bar") {
  for (const measure::PublishedTime& published : measure::published_times()) {
    Benchmark benchmark;
    benchmark.id = published.benchmark;
    benchmark.spec.bytes = 1e9;
    CHECK(measure::judge(benchmark, timed(1000 * published.time_us), 0, 0, {}).verdict ==
          Verdict::none);
    CHECK_FALSE(published.source.empty());
  }
}

TEST_CASE("benchmarks have names of their own, bytes, and the copy comes first") {
  std::set<std::string> ids;
  for (const Benchmark& benchmark : measure::kernel_benchmarks()) {
    CHECK(ids.insert(benchmark.id).second);
    CHECK(benchmark.spec.bytes > 0);
  }
  CHECK(place_of("device-copy") == 0);
  const auto& permute = measure::kernel_benchmarks()[place_of("permute-top2")].spec;
  CHECK(permute.bytes == 3.0 * 16384 * 4096 * 2);  // a row read, two written
  CHECK(permute.params.at("rows") == 2 * 16384);
  const auto& gate = measure::kernel_benchmarks()[place_of("gate-bf16")].spec;
  CHECK(gate.bytes == Approx(139e6).epsilon(0.01));  // as kernels/README.md reckons it
}

TEST_CASE("all is met on a fast device, and the table carries figures of its samples") {
  FakeDevice fast = device(0.95, 4.5);
  const auto report = measure::run_benchmarks(fast, measure::kernel_benchmarks(), {}, 1, {});
  CHECK(report.all_right());
  CHECK(report.all_met());
  CHECK(row(report, "permute-top1").of_copy == Approx(0.95).epsilon(0.01));
  // At 3.8 of 4.9 TB/s.
  CHECK(row(report, "gate-bf16").of_floor == Approx(4.9 / 3.8).epsilon(0.01));
  CHECK(row(report, "assign-random").time_us == Approx(4.5).epsilon(0.01));
  CHECK(row(report, "assign-random").p05_us < row(report, "assign-random").p95_us);
  CHECK(report.table().find("UNMET") == std::string::npos);
  CHECK(report.json().at("rows").size() == measure::kernel_benchmarks().size());
}

TEST_CASE("what falls short is said where it does") {
  FakeDevice slow = device(0.7, 12);
  const auto report = measure::run_benchmarks(slow, measure::kernel_benchmarks(), {}, 1, {});
  CHECK(report.all_right());
  CHECK_FALSE(report.all_met());
  CHECK(row(report, "combine-top2").verdict == Verdict::unmet);
  CHECK(row(report, "assign-position").verdict == Verdict::unmet);
  CHECK(row(report, "gate-bf16").verdict == Verdict::unmet);  // 4.9 / 2.8 times its floor
  CHECK(row(report, "route-top2").verdict == Verdict::none);
}

TEST_CASE("a wrong result is a row without figures, and so is one that does not fit") {
  FakeDevice broken = device(0.9, 6);
  const auto& all = measure::kernel_benchmarks();
  broken.wrong_before[all[place_of("permute-top1")].spec.label()] = "row 3 is not token 5";
  broken.wrong_after[all[place_of("assign-random")].spec.label()] = "token 9 goes to row 4";
  broken.no_memory[all[place_of("combine-top2")].spec.label()] = "400 MB do not fit";
  const auto report = measure::run_benchmarks(broken, all, {}, 1, {});
  CHECK_FALSE(report.all_right());
  CHECK(row(report, "permute-top1").trouble == "row 3 is not token 5");
  CHECK(row(report, "assign-random").trouble == "token 9 goes to row 4");
  CHECK(row(report, "combine-top2").trouble == "400 MB do not fit");
  CHECK(row(report, "combine-top1").trouble.empty());
  CHECK(report.csv().find("combine-top2,\"NVIDIA H200\",\"13.0\",,,,,,,,,\"\",,\"400 MB do not "
                          "fit\"") != std::string::npos);
}

TEST_CASE("rows are told one by one; those without time left are late, not wrong") {
  FakeDevice fast = device(0.95, 6);
  std::vector<std::string> told;
  std::size_t begun = 0;
  measure::BenchmarkOptions options;
  options.date = "2026-11-26T14:00:00Z";
  options.on_benchmark = [&begun](const std::string&) { ++begun; };
  options.on_row = [&](const BenchmarkReport& so_far) {
    told.push_back(so_far.rows.back().id);
    CHECK(so_far.rows.size() == told.size());
    CHECK(so_far.json().at("date") == options.date);
  };
  // Each takes at least its warm-up of 0.1 s.
  options.timeout_s = 0.25;
  const auto& all = measure::kernel_benchmarks();
  const auto report = measure::run_benchmarks(fast, all, {}, 1, options);
  CHECK(begun >= 1);
  CHECK(begun <= 3);
  REQUIRE(told.size() == all.size());
  for (std::size_t place = 0; place < all.size(); ++place) {
    CHECK(told[place] == all[place].id);
    CHECK(report.rows[place].late == (place >= begun));
    CHECK(report.rows[place].trouble ==
          (place >= begun ? "the time limit of 0.25 s was over" : ""));
  }
  CHECK(report.any_late());
  CHECK(report.all_right());
  CHECK(report.all_met());
  CHECK(report.table().find("not measured: the time limit") != std::string::npos);
}

TEST_CASE("a device that is lost leaves the rows before it") {
  FakeDevice lost = device(0.9, 6);
  lost.dies_at = 3;
  measure::BenchmarkOptions options;
  std::size_t rows = 0;
  options.on_row = [&rows](const BenchmarkReport& so_far) { rows = so_far.rows.size(); };
  CHECK_THROWS_AS(measure::run_benchmarks(lost, measure::kernel_benchmarks(), {}, 1, options),
                  measure::DeviceFailed);
  CHECK(rows == 2);
}

TEST_CASE("without a copy to hold it to, permute is unmet") {
  FakeDevice broken = device(0.9, 6);
  const auto& all = measure::kernel_benchmarks();
  broken.wrong_before[all[0].spec.label()] = "element 0 differs";
  const auto report = measure::run_benchmarks(broken, all, {}, 1, {});
  CHECK(row(report, "permute-top1").verdict == Verdict::unmet);
}

TEST_CASE("peers are read, joined by benchmark, and refused from another device") {
  const auto path = (std::filesystem::temp_directory_path() / "moesim-peers.json").string();
  std::ofstream(path) << R"({"format": "moesim-gpu-peers", "device": "NVIDIA H200",
    "version": "PyTorch 2.9", "peers": [
      {"benchmark": "choose-top2-e64", "name": "PyTorch: softmax, topk",
       "cold": {"median_us": 310, "n": 30}, "hot": {"median_us": 300}},
      {"benchmark": "permute-top1", "name": "not in a graph", "cold": {"median_us": 900},
       "hot": null}],
    "missing": [{"benchmark": "permute-top1", "name": "one-hot einsum", "reason": "no memory"}]})";
  const measure::PeerRun peers = measure::load_peers(path);
  CHECK_FALSE(peers.peers[1].hot_us);
  FakeDevice fast = device(0.9, 4.5);
  const auto report = measure::run_benchmarks(fast, measure::kernel_benchmarks(), peers, 1, {});
  const auto choose = row(report, "choose-top2-e64");
  REQUIRE(choose.peers.size() == 1);
  CHECK(choose.hot);
  CHECK(choose.peers[0].judged() == Approx(300 / choose.time_us));
  CHECK(choose.verdict == Verdict::met);
  CHECK(report.table().find("softmax, topk") != std::string::npos);
  CHECK(report.table().find("missing: no memory") != std::string::npos);
  FakeDevice other = device(0.9, 6);
  other.device_facts.name = "NVIDIA A100";
  CHECK_THROWS_WITH(measure::run_benchmarks(other, measure::kernel_benchmarks(), peers, 1, {}),
                    ContainsSubstring("measured on NVIDIA H200, this is NVIDIA A100"));
  std::ofstream(path) << R"({"format": "something"})";
  CHECK_THROWS_WITH(measure::load_peers(path), ContainsSubstring("gpu_peers.py"));
  const auto with = [&path](const std::string& peer) {
    std::ofstream(path) << R"({"format": "moesim-gpu-peers", "device": "a", "version": "b",
      "missing": [], "peers": [{"benchmark": "c", "name": "d", )"
                        << peer << "}]}";
  };
  with(R"("cold": null, "hot": null)");
  CHECK_THROWS_WITH(measure::load_peers(path), ContainsSubstring("cold or hot"));
  with(R"("cold": {"median_us": 0})");
  CHECK_THROWS_WITH(measure::load_peers(path), ContainsSubstring("median_us"));
  std::filesystem::remove(path);
}

TEST_CASE("a peer that is measured in the same run is joined to the benchmark it is a peer of") {
  // The library's gate takes 40 us, ours what `ours` says.
  const auto verdict = [](double ours) {
    FakeDevice device([ours](const measure::PointSpec& spec) {
      return spec.op == "gate" && !spec.params.contains("cublas") ? ours : 40.0;
    });
    const auto report = measure::run_benchmarks(device, measure::kernel_benchmarks(), {}, 1, {});
    const auto& rows = report.rows;
    const auto gate = std::find_if(rows.begin(), rows.end(),
                                   [](const auto& row) { return row.id == "gate-bf16"; });
    REQUIRE(gate->peers.size() == 1);
    CHECK(gate->peers[0].peer.name == "cublas-gate-bf16");
    CHECK_FALSE(gate->peers[0].by_hot);  // above 20 us
    CHECK(gate->peers[0].judged() == Approx(40 / gate->time_us).epsilon(0.01));
    CHECK(gate->peers[0].hot == Approx(40.0 / ours).epsilon(0.01));
    return gate->verdict;
  };
  CHECK(verdict(30) == measure::Verdict::met);
  CHECK(verdict(41) == measure::Verdict::unmet);
}

TEST_CASE("a sanitizer watches every kernel that is benchmarked, at 200 tokens, and no library") {
  const std::vector<measure::PointSpec> points = measure::sanitizer_points();
  std::set<std::string> ops;
  for (const measure::PointSpec& spec : points) {
    ops.insert(spec.op);
    CHECK_FALSE(spec.params.value("cublas", false));
    CHECK(spec.params.value(spec.op == "memory" ? "rows" : "tokens", std::int64_t{0}) == 200);
    for (const char* limit : {"most_looks", "most_listed"}) {
      if (spec.params.contains(limit)) ops.insert(limit);
    }
  }
  CHECK(ops.count("most_looks") == 1);  // both other ways to assign capacity
  CHECK(ops.count("most_listed") == 1);
  for (const measure::Benchmark& benchmark : measure::kernel_benchmarks()) {
    CHECK(ops.count(benchmark.spec.op) == 1);
  }
}
