#include "kernels/measure/sessions/layer_session.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/document.hpp"
#include "tests/kernels/measure/fake_machine.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::kernels;
using namespace moesim::kernels::measure;
using measure::testing::FakeDevice;
using measure::testing::FakeMachine;
using measure::testing::Folder;

namespace {

LayerSessionOptions quick(const std::string& out) {
  LayerSessionOptions options;
  options.out = out;
  options.model = "llama2-7b-moe8";
  options.cases = {{"top2", "2", "index"}, {"top2+ir", "1", "einsum"}};
  options.trial.warm_up.least_s = 0;
  options.now = [] { return std::string("2024-01-02T03:04:05Z"); };
  return options;
}

void check_schema(const std::string& path) {
  Document::load(path).validate("measured-layer.schema");
}

// The label of a quick() layer: case, pass.
std::string label(const LayerSessionOptions& options, std::size_t which, layer::Pass pass) {
  return layer_point(options.cases[which], options.size, pass).label();
}

}  // namespace

TEST_CASE("layers are measured forward and backward into a document of their own") {
  const Folder folder;
  for (const int gpus : {1, 4}) {
    FakeMachine machine(gpus);
    LayerSessionOptions options = quick(folder.file("layer.json"));
    options.size.gpus = gpus;
    const LayerSessionReport report = measure_layers(machine, options);
    check_schema(options.out);
    CHECK(report.voided == 0);
    CHECK(report.missing == 0);
    REQUIRE(report.document["points"].size() == 4);
    const auto& first = report.document["points"][0];
    CHECK(first["params"]["pass"] == "forward");
    CHECK(first["params"]["gpus"] == gpus);
    CHECK(first["cold"]["samples"].size() >= 30);
    // simple_law: 3 us and FLOPs at 700 TFLOP/s, which bound a layer of 16,384 padded rows; with
    // links 12 us.
    const double flops = layer_point(options.cases[0], options.size, layer::Pass::forward).flops;
    CHECK(first["cold"]["median"].get<double>() ==
          Approx(flops / 700e6 + (gpus > 1 ? 12 : 3)).epsilon(0.01));
    CHECK(Document::load(options.out).root().text("date") == "2024-01-02T03:04:05Z");
  }
}

TEST_CASE("the version of NCCL is of the session's end: ranks join with the first exchange") {
  const Folder folder;
  FakeMachine machine(2);
  std::vector<FakeDevice*> devices(2);
  machine.prepare = [&devices](int index, FakeDevice& device) {
    device.nccl_version = "";
    devices[static_cast<std::size_t>(index)] = &device;
  };
  machine.law = [&devices](int index, const PointSpec& spec) {
    devices[static_cast<std::size_t>(index)]->nccl_version = "2.28.9";
    return measure::testing::simple_law(spec);
  };
  LayerSessionOptions options = quick(folder.file("layer.json"));
  options.size.gpus = 2;
  CHECK(measure_layers(machine, options).document["nccl"] == "2.28.9");
}

TEST_CASE("a layer's point counts what the plan does") {
  LayerSize size;
  size.gpus = 4;
  const PointSpec spec = layer_point({"top2", "2", "index"}, size, layer::Pass::forward);
  // C = 2 * 8192 / 8 = 2048 slots for each of 8 experts: 6 h f each, and the gate's 2 S h E.
  CHECK(spec.flops == 6.0 * 4096 * 11008 * 16384 + 2.0 * 8192 * 4096 * 8);
  // Two all-to-alls of E C h bf16, three quarters of which leave the GPU.
  CHECK(spec.sent_bytes == 2 * 0.75 * 2 * 16384 * 4096);
  CHECK(spec.collective);
  CHECK(layer_of(spec, 2).router.rank == 2);
  CHECK(pass_of(spec) == layer::Pass::forward);
  CHECK_THROWS_AS(layer_point({"top2", "2", "sideways"}, size, layer::Pass::forward), UsageError);
  CHECK_THROWS_AS(layer_point({"dense", "2", "index"}, size, layer::Pass::forward), UsageError);
  // All shipped cases can be, with the sizes that the benchmark takes unless told otherwise.
  for (const LayerCase& layer : layer_cases()) {
    CHECK(layer_point(layer, {}, layer::Pass::backward).held_bytes < 60e9);
  }
}

TEST_CASE("wrong, too large and late layers are said to be, and the rest is kept") {
  const Folder folder;
  LayerSessionOptions options = quick(folder.file("layer.json"));
  FakeMachine machine(1);
  machine.prepare = [&](int, FakeDevice& device) {
    device.wrong_before[label(options, 0, layer::Pass::backward)] = "token 7 is off";
    device.no_memory[label(options, 1, layer::Pass::forward)] = "out of device memory: 1 MiB";
  };
  std::vector<std::string> notes;
  options.on_note = [&](const std::string& text) { notes.push_back(text); };
  LayerSessionReport report = measure_layers(machine, options);
  check_schema(options.out);
  CHECK(report.voided == 1);
  CHECK(report.missing == 1);
  CHECK(report.late == 0);
  CHECK(report.document["points"][1]["verify"] == "token 7 is off");
  CHECK(report.document["points"][1]["cold"].is_null());
  CHECK(report.document["missing"][0]["reason"] == "out of device memory: 1 MiB");
  CHECK(notes.size() == 6);  // four layers, two troubles

  options.timeout_s = 1e-3;
  FakeMachine healthy(1);
  report = measure_layers(healthy, options);
  CHECK(report.document["points"].size() == 1);
  CHECK(report.missing == 3);
  CHECK(report.late == 3);
  CHECK_THAT(report.document["missing"][0]["reason"].get<std::string>(),
             ContainsSubstring("time limit of 0.001 s was over"));
}

TEST_CASE("a lost device ends the run; more GPUs than there are, are refused") {
  const Folder folder;
  LayerSessionOptions options = quick(folder.file("layer.json"));
  FakeMachine machine(2);
  options.size.gpus = 4;
  CHECK_THROWS_WITH(measure_layers(machine, options), ContainsSubstring("--gpus 4"));
  options.size.gpus = 2;
  machine.prepare = [](int index, FakeDevice& device) { device.dies_at = index == 1 ? 2 : 0; };
  CHECK_THROWS_WITH(measure_layers(machine, options), ContainsSubstring("the device is lost"));
  CHECK(Document::load(options.out).root().items("points").size() == 1);
}

namespace {

// The exit code of a process that measures quick() layers on two GPUs and gives up as
// bench_layer_gpu does; what it says goes to the file "log".
int exit_code_of_two(const Folder& folder, const std::function<void(int, FakeDevice&)>& prepare) {
  LayerSessionOptions options = quick(folder.file("layer.json"));
  options.size.gpus = 2;
  options.silence_s = 0.4;
  options.stall_s = 5;
  options.lost_s = 0.5;
  const auto write = [log = folder.file("log")](const std::string& text) {
    std::ofstream(log, std::ios::app) << text + "\n" << std::flush;
  };
  options.on_note = write;
  options.give_up = [write](const std::string& text, ExitCode code) {
    write(text);
    ::_exit(static_cast<int>(code));
  };
  const pid_t child = ::fork();
  if (child == 0) {  // nothing else ends a thread that hangs
    FakeMachine machine(2);
    machine.prepare = prepare;
    measure_layers(machine, options);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

TEST_CASE("a layer that never ends is given up: it is said where, and layers before it are kept") {
  const Folder folder;
  const int code = exit_code_of_two(
      folder, [](int index, FakeDevice& device) { device.hangs_at = index == 1 ? 2 : 0; });
  CHECK(code == 124);
  LayerSessionOptions options = quick("");
  options.size.gpus = 2;
  const std::string where = label(options, 0, layer::Pass::backward) + ": warm-up'";
  const std::string log = read_file(folder.file("log"));
  CHECK_THAT(log, ContainsSubstring("no end of it in sight: rank ") && ContainsSubstring(where));
  CHECK_THAT(log, ContainsSubstring("rank 0 of 2: ") && ContainsSubstring("waiting for rank 1"));
  CHECK(Document::load(folder.file("layer.json")).root().items("points").size() == 1);
}

TEST_CASE("a GPU that never opens is said to, and so is a rank stuck beside one that failed") {
  const auto hang = [] {
    while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
  };
  {
    const Folder folder;
    CHECK(exit_code_of_two(folder, [&](int index, FakeDevice&) {
            if (index == 1) hang();
          }) == 124);
    CHECK_THAT(read_file(folder.file("log")), ContainsSubstring("in 'opening the device'"));
  }
  const Folder folder;
  CHECK(exit_code_of_two(folder, [](int index, FakeDevice& device) {
          (index == 1 ? device.out_of_memory_at : device.hangs_at) = 1;
        }) == 1);
  CHECK_THAT(read_file(folder.file("log")), ContainsSubstring("rank 1 is gone"));
}
