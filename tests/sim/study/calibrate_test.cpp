#include "sim/study/validation/paper/calibrate.hpp"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "sim/base/error.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "sim/study/validation/layers/validate_layer.hpp"
#include "sim/study/validation/paper/speed_bands.hpp"
#include "sim/study/validation/paper/validate_speeds.hpp"
#include "sim/study/validation/training/validate_steps.hpp"
#include "tests/support/catch.hpp"

namespace moesim::study {
namespace {

constexpr const char* shipped = "zeng2024-speeds";

}  // namespace

TEST_CASE("a fit finds the multipliers that made the figures") {
  // Speeds of a made-up machine: the simulator with known multipliers. Three rows, two unknowns.
  scenario::DocumentCache documents;
  routing::RoutingCache cache;
  PublishedStudy study = PublishedStudy::load(shipped);
  study.options["replicas"] = "1";
  study.options["micro-batch"] = "1";
  study.rows.clear();
  const std::vector<double> truth = {1.7, 0.6};
  for (const char* factor : {"1", "2", "3"}) {
    PublishedRow row;
    row.role = RowRole::fit;
    row.options = {{"router", "top2"}, {"capacity-factor", factor}};
    scenario::OptionValues values = study.options;
    for (const auto& [name, text] : row.options) values[name] = text;
    EvaluateSettings settings;
    for (std::size_t index = 0; index < truth.size(); ++index) {
      for (const step::KernelClass kind : study.unknowns[index].classes) {
        settings.calibration.multiplier[static_cast<std::size_t>(kind)] = truth[index];
      }
    }
    row.tokens_per_s_per_gpu =
        evaluate(scenario::resolve(values, documents), settings, cache).tokens_per_s_per_gpu;
    study.rows.push_back(row);
  }
  const StudyResult result = calibrate(study, documents, cache);
  REQUIRE(result.multipliers.size() == 2);
  CHECK(result.multipliers[0] == Approx(truth[0]).epsilon(1e-6));
  CHECK(result.multipliers[1] == Approx(truth[1]).epsilon(1e-6));
  CHECK(result.in_sample.worst < 1e-6);
  CHECK(result.leave_one_out.worst < 1e-6);
}

TEST_CASE("rows that do not tell two multipliers apart are refused") {
  // A dense model knows nothing of the gate.
  scenario::DocumentCache documents;
  routing::RoutingCache cache;
  PublishedStudy study = PublishedStudy::load(shipped);
  study.options["micro-batch"] = "1";
  study.rows.resize(2);
  for (PublishedRow& row : study.rows) row.options = {{"router", "dense"}};
  study.options.erase("capacity-factor");
  CHECK_THROWS_AS(calibrate(study, documents, cache), Error);
}

TEST_CASE("the paper's speeds are met with two multipliers, and training without any more",
          "[slow]") {
  scenario::DocumentCache documents;
  routing::RoutingCache cache;
  const PublishedStudy study = PublishedStudy::load(shipped);
  CHECK(study.unknowns.size() <= 2);
  const StudyResult result = calibrate(study, documents, cache);
  CHECK(result.in_sample.rows == 10);
  CHECK(result.in_sample.mean <= 0.012);
  CHECK(result.in_sample.worst <= 0.025);
  CHECK(result.leave_one_out.mean <= 0.013);
  CHECK(result.leave_one_out.worst <= 0.026);
  CHECK(result.unfitted.rows == 2);
  CHECK(result.unfitted.worst <= 0.03);
  CHECK(result.excluded.rows == 2);
  // Bands of a calibrated profile hold the rows that they have not seen.
  Validation bands;
  report_speed_bands(result, bands);
  REQUIRE(bands.calibration.size() == 9);
  CHECK(bands.calibration.front().points == 12);
  CHECK(bands.calibration.front().observed >= 0.85);
  // The shipped software profile carries this very fit, to the digits it shows.
  const profile::Profile software = profile::Profile::load("a100-sxm-80gb-deepspeed");
  for (std::size_t index = 0; index < study.unknowns.size(); ++index) {
    for (const step::KernelClass kind : study.unknowns[index].classes) {
      CHECK(software.software_multiplier(name_of(kind)) ==
            Approx(result.multipliers[index]).epsilon(0.002));
    }
  }
}

TEST_CASE("a software profile multiplies the curves of its hardware") {
  scenario::DocumentCache documents;
  routing::RoutingCache cache;
  const scenario::OptionValues values = {{"mode", "prefill"},  {"gpus", "8"},
                                         {"micro-batch", "1"}, {"dispatch", "einsum"},
                                         {"router", "top1"},   {"replicas", "1"}};
  scenario::OptionValues on_software = values;
  on_software["profile"] = "a100-sxm-80gb-deepspeed";
  const Outcome plain = evaluate(scenario::resolve(values, documents), cache);
  const Outcome slower = evaluate(scenario::resolve(on_software, documents), cache);
  CHECK(slower.step_ms > plain.step_ms);
  const auto attention = static_cast<std::size_t>(StepPart::attention);
  const profile::Profile software = profile::Profile::load("a100-sxm-80gb-deepspeed");
  CHECK(slower.parts_ms[attention] ==
        Approx(plain.parts_ms[attention] * software.software_multiplier("gemm")).epsilon(1e-6));
  CHECK(slower.provenance.find("calibrated") != std::string::npos);
}

TEST_CASE("a study that does not say what it measured is refused with file and key") {
  const std::string path = "broken-study.json";
  std::ofstream(path) << R"({"format": "moesim study 1", "name": "x", "title": "x", "source": "x",
    "options": {}, "unknowns": [], "bars": {"in_sample": {"mean": 1, "worst": 1},
    "leave_one_out": {"mean": 1, "worst": 1}, "unfitted": {"mean": 1, "worst": 1}},
    "rows": [{"role": "fit", "options": {}}]})";
  CHECK_THROWS_WITH(PublishedStudy::load("./" + path),
                    ContainsSubstring("/rows/0/tokens_per_s_per_gpu"));
  std::remove(path.c_str());
}

TEST_CASE("published layers are held against their times part by part") {
  const Validation validation = validate_layer();
  double sum_ms = 0;
  std::vector<double> errors;
  for (const ValidationRow& row : validation.rows) {
    if (row.role == "part") {
      sum_ms += row.predicted * 1e-3;
      continue;
    }
    CHECK(row.predicted == Approx(sum_ms));
    errors.push_back(*row.error);
    sum_ms = 0;
  }
  REQUIRE(errors.size() == 12);  // of NCCL, DeepEP, HybridEP, each in bf16 and FP8, each two passes
  REQUIRE(validation.verdicts.size() == 13);
  for (std::size_t pass = 0; pass < errors.size(); ++pass) {
    const double bar = pass % 2 == 0 ? 0.05 : 0.1;
    CHECK(validation.verdicts[pass].met == (std::abs(errors[pass]) <= bar));
  }
}

TEST_CASE("SmartMoE's steps are predicted or left out with a reason") {
  const std::filesystem::path data = MOESIM_SHARED_DATA;
  if (!std::filesystem::exists(data / "smartmoe_gpt_step_times.csv")) {
    MOESIM_SKIP("the SmartMoE logs are not there: " + data.string());
  }
  // Alone: beside the table of trainings the paper's speeds are predicted, too, half a minute.
  const std::filesystem::path folder = std::filesystem::absolute("smartmoe_logs");
  std::filesystem::remove_all(folder);
  std::filesystem::create_directory(folder);
  for (const auto& file : std::filesystem::directory_iterator(data)) {
    const std::string name = file.path().filename().string();
    if (name.starts_with("smartmoe")) {
      std::filesystem::create_symlink(std::filesystem::canonical(file.path()), folder / name);
    }
  }
  scenario::DocumentCache documents;
  routing::RoutingCache cache;
  const Validation validation = validate_steps(folder.string(), documents, cache);
  std::filesystem::remove_all(folder);
  CHECK(validation.rows.size() >= 3);
  CHECK(validation.passed());
  for (const ValidationRow& row : validation.rows) {
    CHECK(row.predicted > 0);
    // Two factors fitted to the other steps of FastMoE, routing as in recorded trainings or,
    // without a capacity, as recorded of another model.
    if (row.role == "fit" && row.subject.starts_with("fastmoe")) {
      const bool dropped = row.subject.find("inf") == std::string::npos;
      CHECK(std::abs(row.left_out_error.value()) < (dropped ? 0.1 : 0.15));
    }
  }
}

}  // namespace moesim::study
