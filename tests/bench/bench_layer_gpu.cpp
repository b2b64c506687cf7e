// Whole MoE layers on the GPUs of this process, forward and backward: medians with all samples,
// and, given a profile of the same machine, what that profile predicts for them.

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <string>

#include "kernels/measure/ranks/launch.hpp"
#include "kernels/measure/sessions/layer_session.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "sim/model/model.hpp"
#include "sim/study/validation/layers/validate_measured_layers.hpp"
#include "tests/support/utc.hpp"

namespace measure = moesim::kernels::measure;

namespace {

constexpr const char* usage =
    "usage: bench_layer_gpu [options]\n"
    "  --out FOLDER     gets measured-layer.json (default: the current one)\n"
    "  --profile FILE   then hold them against this profile, measured on the same machine\n"
    "  --model NAME     sizes and experts of the layer (default: llama2-7b-moe8)\n"
    "  --tokens N       tokens of each GPU (default: 8192)\n"
    "  --gpus N         one expert-parallel group of N GPUs (default: 1)\n"
    "  --seed N         of inputs and weights (default: 1)\n"
    "  --timeout S      begin no layer after so many seconds (default: 120; 0: no limit)\n"
    "  --stall S        end after so many seconds without progress (default: 180)\n"
    "  --list           the layers, without measuring\n"
    "Exit code: 0 measured, and within the bars if there is a profile; 2 a wrong option, 3 no "
    "GPU,\n"
    "4 a result was wrong, 5 a bar is not met, 124 there was no time for all layers; 1 a layer "
    "hung\n"
    "or the device failed.\n";

std::map<std::string, std::string> parse(int count, char** words) {
  std::map<std::string, std::string> given = {
      {"--out", "."},  {"--profile", ""}, {"--model", "llama2-7b-moe8"}, {"--tokens", "8192"},
      {"--gpus", "1"}, {"--seed", "1"},   {"--timeout", "120"},          {"--stall", "180"}};
  for (int at = 1; at < count; ++at) {
    const std::string word = words[at];
    if (word == "--help" || word == "--list") {
      given[word] = "yes";
      continue;
    }
    if (given.count(word) == 0 || at + 1 == count) {
      throw moesim::UsageError(fmt::format(
          "unknown option '{}', or its value is missing; see bench_layer_gpu --help", word));
    }
    given[word] = words[++at];
  }
  return given;
}

int number(const std::map<std::string, std::string>& given, const std::string& option, int least) {
  const std::string& text = given.at(option);
  std::size_t used = 0;
  int value = 0;
  try {
    value = std::stoi(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || value < least) {
    throw moesim::UsageError(
        fmt::format("{} '{}': expected a whole number of at least {}", option, text, least));
  }
  return value;
}

measure::LayerSessionOptions options_of(const std::map<std::string, std::string>& given) {
  measure::LayerSessionOptions options;
  options.out = given.at("--out") + "/measured-layer.json";
  options.model = given.at("--model");
  const moesim::model::Model model = moesim::model::Model::load(options.model);
  if (!model.moe) {
    throw moesim::UsageError(fmt::format("--model {}: it has no experts", options.model));
  }
  options.size = {number(given, "--tokens", 1), static_cast<int>(model.hidden),
                  static_cast<int>(model.moe->expert_ffn), static_cast<int>(model.moe->experts),
                  number(given, "--gpus", 1)};
  options.seed = static_cast<std::uint64_t>(number(given, "--seed", 0));
  options.timeout_s = number(given, "--timeout", 0);
  options.now = moesim::testing::utc_now;
  options.stall_s = number(given, "--stall", 1);
  options.on_note = [](const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); };
  // A rank hangs in a call that never returns: there is nothing to unwind to. A failure, unlike
  // layers for which there was no time.
  options.give_up = [](const std::string& where, moesim::ExitCode) {
    std::fprintf(stderr, "bench_layer_gpu: %s; the layers before it are kept\n", where.c_str());
    ::_exit(static_cast<int>(moesim::ExitCode::failure));
  };
  return options;
}

moesim::ExitCode compare(const std::string& measured, const std::string& profile) {
  moesim::scenario::DocumentCache documents;
  const auto validation = moesim::study::validate_measured_layers(measured, profile, documents);
  for (const auto& row : validation.rows) {
    if (row.role != "check") continue;
    std::printf("%s\n", fmt::format("{:36} measured {:8.3f} ms, predicted {:8.3f} ms, {:+.1f} %",
                                    row.subject, *row.measured, row.predicted, *row.error * 100)
                            .c_str());
  }
  for (const auto& verdict : validation.verdicts) {
    std::printf("%s %s\n", verdict.met.value_or(true) ? "met  " : "UNMET", verdict.text.c_str());
  }
  return validation.passed() ? moesim::ExitCode::ok : moesim::ExitCode::quality_bar_not_met;
}

moesim::ExitCode run(int count, char** words) {
  const auto given = parse(count, words);
  if (given.count("--help") != 0) {
    std::fputs(usage, stdout);
    return moesim::ExitCode::ok;
  }
  const measure::LayerSessionOptions options = options_of(given);
  if (given.count("--list") != 0) {
    for (const measure::LayerCase& layer : options.cases) {
      for (const auto pass :
           {moesim::kernels::layer::Pass::forward, moesim::kernels::layer::Pass::backward}) {
        const measure::PointSpec spec = measure::layer_point(layer, options.size, pass);
        std::printf("%s\n", fmt::format("{}: {:.2f} TFLOP, {:.1f} GiB held", spec.label(),
                                        spec.flops * 1e-12, spec.held_bytes / (1 << 30))
                                .c_str());
      }
    }
    return moesim::ExitCode::ok;
  }
  moesim::check_writable(options.out);
  measure::load_kernels_early(options.size.gpus);
  const auto machine = measure::open_machine();
  const measure::LayerSessionReport report = measure::measure_layers(*machine, options);
  if (report.voided > 0) return moesim::ExitCode::verification_failed;
  moesim::ExitCode code = moesim::ExitCode::ok;
  if (!given.at("--profile").empty()) code = compare(options.out, given.at("--profile"));
  if (report.missing == 0) return code;
  std::printf("%zu layers were not measured: see missing in %s\n", report.missing,
              options.out.c_str());
  if (code != moesim::ExitCode::ok) return code;
  return report.late > 0 ? moesim::ExitCode::timeout : moesim::ExitCode::missing_hardware;
}

}  // namespace

int main(int count, char** words) {
  try {
    return static_cast<int>(run(count, words));
  } catch (const moesim::Error& error) {
    std::fprintf(stderr, "bench_layer_gpu: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_layer_gpu: %s\n", error.what());
    return static_cast<int>(moesim::ExitCode::failure);
  }
}
