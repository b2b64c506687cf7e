#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "sim/base/file.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/shipped.hpp"
#include "sim/report/formats.hpp"
#include "sim/study/validation/exchanges/validate_exchanges.hpp"
#include "sim/study/validation/layers/validate_layer.hpp"
#include "sim/study/validation/layers/validate_measured_layers.hpp"
#include "sim/study/validation/paper/validate_speeds.hpp"
#include "sim/study/validation/routing/validate_routing.hpp"
#include "sim/study/validation/tables/validation.hpp"
#include "sim/study/validation/training/validate_steps.hpp"
#include "sim/study/validation/training/validate_training.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/scenario/prefetch.hpp"

namespace moesim::tool {
namespace {

const std::vector<std::string> columns{
    "study",       "subject",        "role",         "unit",      "measured",         "predicted",
    "error",       "left_out_error", "median_error", "p90_error", "equal_bytes_sent", "alpha_beta",
    "nearest_row", "repeats",        "note"};

Cell optional_figure(const std::optional<double>& value) {
  return value ? figure_cell(*value) : Cell();
}

std::vector<report::CellRow> cells(const std::vector<study::Validation>& validations) {
  std::vector<report::CellRow> rows;
  for (const study::Validation& validation : validations) {
    for (const study::ValidationRow& row : validation.rows) {
      report::CellRow line = {row.study, row.subject, row.role, row.unit,
                              optional_figure(row.measured)};
      line.push_back(row.medians ? Cell() : figure_cell(row.predicted));
      line.push_back(optional_figure(row.error));
      line.push_back(optional_figure(row.left_out_error));
      if (const auto& medians = row.medians) {
        line.push_back(figure_cell(medians->law));
        line.push_back(figure_cell(medians->p90));
        for (const auto& share :
             {medians->equal_bytes, medians->alpha_beta, medians->nearest_row, medians->repeats}) {
          line.push_back(optional_figure(share));
        }
      } else {
        line.resize(line.size() + 6);
      }
      line.push_back(row.note);
      rows.push_back(std::move(line));
    }
  }
  return rows;
}

std::string percent(const std::optional<double>& share) {
  return share ? fmt::format("{:+.1f} %", *share * 100) : "";
}

std::string rounded(double value) {
  return value < 100 ? fmt::format("{:.3f}", value) : fmt::format("{:.0f}", value);
}

// The table of a study whose rows each stand for many predictions.
std::string medians_table(const study::Validation& validation) {
  const auto cell = [](const std::optional<double>& share) {
    return share ? fmt::format("{:.1f}", *share * 100) : "";
  };
  std::vector<std::vector<std::string>> lines = {{"median error in %", "law", "equal bytes sent",
                                                  "alpha-beta", "nearest row", "repeats",
                                                  "law's p90", "note"}};
  for (const study::ValidationRow& row : validation.rows) {
    const study::MedianErrors& medians = *row.medians;
    lines.push_back({row.subject, cell(medians.law), cell(medians.equal_bytes),
                     cell(medians.alpha_beta), cell(medians.nearest_row), cell(medians.repeats),
                     cell(medians.p90), row.note});
  }
  return report::align(lines, {false, true, true, true, true, true, true, false}) +
         "\n  Medians of |predicted / measured - 1|. Beside the law: the most GPUs measured, at as "
         "many bytes sent by each;\n  one line over the bytes sent; the same row as it was among "
         "the most GPUs measured. repeats: |row / median of its\n  repeats - 1|, which no "
         "prediction can go below.\n";
}

std::string predictions_table(const study::Validation& validation) {
  std::vector<std::vector<std::string>> lines = {
      {"", "role", "unit", "measured", "predicted", "error", "left out", "note"}};
  for (const study::ValidationRow& row : validation.rows) {
    lines.push_back({row.subject, row.role, row.unit, row.measured ? rounded(*row.measured) : "",
                     rounded(row.predicted), percent(row.error), percent(row.left_out_error),
                     row.note});
  }
  return report::align(lines, {false, false, false, true, true, true, true, false});
}

// How bands did on points that they were made without; all levels are in the JSON.
std::string bands_table(const study::Validation& validation) {
  const auto printed = [](double level) { return level == 0.9 || level == 0.8 || level == 0.5; };
  std::vector<std::vector<std::string>> lines = {{"bands", "level", "points", "groups", "inside",
                                                  "mean width", "constant's", "score",
                                                  "constant's"}};
  for (const study::CalibrationPoint& point : validation.calibration) {
    if (!printed(point.nominal)) continue;
    lines.push_back(
        {point.question, fmt::format("{:.0f} %", 100 * point.nominal),
         fmt::format("{}", point.points), point.groups ? fmt::format("{}", *point.groups) : "",
         fmt::format("{:.0f} %", 100 * point.observed),
         fmt::format("x {:.2f}", std::exp(point.width)),
         fmt::format("x {:.2f}", std::exp(point.constant_width)),
         fmt::format("{:.2f}", point.interval_score), fmt::format("{:.2f}", point.constant_score)});
  }
  if (lines.size() == 1) return "";
  return report::align(lines, {false, true, true, true, true, true, true, true, true}) +
         "\n  mean width: upper end over lower end. score: interval score of logs, less is better. "
         "constant's: of the best band of\n  constant width, chosen on these points. groups: how "
         "many were left out in turn.\n\n";
}

std::string as_table(const study::Validation& validation) {
  const bool medians = !validation.rows.empty() && validation.rows.front().medians;
  std::string text = fmt::format("{}\n  source: {}\n\n", validation.title, validation.source);
  text += medians ? medians_table(validation) : predictions_table(validation);
  text += "\n" + bands_table(validation);
  for (const study::Verdict& verdict : validation.verdicts) {
    const char* mark = !verdict.met ? "      " : *verdict.met ? "met   " : "UNMET ";
    text += fmt::format("  {}{}\n", mark, verdict.text);
  }
  return text;
}

nlohmann::ordered_json as_json(const std::vector<study::Validation>& validations) {
  nlohmann::ordered_json object;
  object["rows"] = nlohmann::ordered_json::array();
  for (const auto& row : cells(validations)) {
    object["rows"].push_back(report::to_json(columns, row));
  }
  object["verdicts"] = nlohmann::ordered_json::array();
  for (const study::Validation& validation : validations) {
    for (const study::Verdict& verdict : validation.verdicts) {
      nlohmann::ordered_json item;
      item["study"] = verdict.study;
      item["text"] = verdict.text;
      item["met"] = verdict.met ? nlohmann::ordered_json(*verdict.met) : nullptr;
      object["verdicts"].push_back(item);
    }
  }
  object["bands"] = nlohmann::ordered_json::array();
  for (const study::Validation& validation : validations) {
    for (const study::CalibrationPoint& point : validation.calibration) {
      object["bands"].push_back({{"left_out", point.question},
                                 {"level", point.nominal},
                                 {"points", point.points},
                                 {"inside", point.observed},
                                 {"log_width", point.width},
                                 {"interval_score", point.interval_score},
                                 {"constant_band_score", point.constant_score},
                                 {"constant_band_log_width", point.constant_width}});
      if (point.groups) object["bands"].back()["groups"] = *point.groups;
    }
  }
  return object;
}

std::string rendered(const std::vector<study::Validation>& validations, report::Format format) {
  if (format == report::Format::csv) return report::to_csv(columns, cells(validations));
  if (format == report::Format::json) return json_text(as_json(validations), 2) + "\n";
  std::string text;
  for (const study::Validation& validation : validations) {
    if (!text.empty()) text += "\n";
    text += as_table(validation);
  }
  return text;
}

study::Validation validate_layer(const CommandLine& line, scenario::DocumentCache& documents) {
  if (!line.has("measured")) {
    if (line.has("profile")) {
      throw UsageError(
          "validate: --profile goes with --measured FILE: published layers name theirs");
    }
    return study::validate_layer();
  }
  if (!line.has("profile")) {
    throw UsageError(
        "validate layer: --measured needs --profile: the profile that moesim profile wrote on the "
        "same machine");
  }
  return study::validate_measured_layers(line.get("measured"), line.get("profile"), documents);
}

// Throws UsageError for options that the wanted study does not take.
void check_options(const CommandLine& line, const std::string& wanted) {
  if (line.has("measured") && wanted != "layer") {
    throw UsageError(
        "validate: --measured FILE goes with layer: moesim validate layer --measured FILE");
  }
  if (line.has("residuals") && wanted != "training" && wanted != "steps") {
    throw UsageError(
        "validate: --residuals FILE goes with training or steps: moesim validate training --data "
        "FOLDER --residuals FILE");
  }
  if (line.has("residuals")) check_writable(line.get("residuals"));
}

// Throws UsageError where there is no --data, which `study` needs: `what` says which folder.
void check_folder(const std::string& folder, const std::string& study, const std::string& what) {
  if (!folder.empty()) return;
  throw UsageError(fmt::format("validate {}: --data FOLDER is missing: {}", study, what));
}

void prefetch_speeds(const CommandLine& line, scenario::DocumentCache& documents,
                     routing::RoutingCache& cache) {
  const study::StudyRouting routing = study::speeds_routing(documents);
  prefetch_routing(routing.jobs, routing.replicas, chosen_jobs(line), cache);
}

std::vector<study::Validation> validate(const CommandLine& line, const std::string& wanted) {
  check_options(line, wanted);
  const std::string folder = line.get("data");
  const bool has_training = std::filesystem::exists(folder + "/moe_training_steps.csv");
  const bool all = wanted.empty();
  const bool all_of_folder = all && !folder.empty();
  scenario::DocumentCache documents;
  routing::RoutingCache cache;
  std::vector<study::Validation> validations;
  if (all || wanted == "speeds") {
    prefetch_speeds(line, documents, cache);
    validations.push_back(study::validate_speeds(documents, cache));
  }
  if (all || wanted == "layer") validations.push_back(validate_layer(line, documents));
  if (all_of_folder || wanted == "steps") {
    check_folder(folder, "steps",
                 "the logs are not shipped, give the folder that holds "
                 "smartmoe_gpt_step_times.csv");
    if (has_training) prefetch_speeds(line, documents, cache);  // with the paper's speeds
    validations.push_back(study::validate_steps(folder, documents, cache, line.get("residuals")));
  }
  if (all_of_folder || wanted == "exchanges") {
    check_folder(folder, "exchanges",
                 "give the folder that holds nccl_intranode.csv or nccl_intranode.csv.gz; "
                 "tests/data of moesim's source is one");
    validations.push_back(study::validate_exchanges(folder));
  }
  if (all_of_folder || wanted == "routing") {
    check_folder(folder, "routing",
                 "give the folder that holds routing_bench_drop_rate.csv, expert_counts.csv or "
                 "smartmoe_routing_trace.npz; tests/data of moesim's source has the first two");
    prefetch_routing(study::random_draw_jobs(folder), 1, chosen_jobs(line), cache);
    validations.push_back(study::validate_routing(folder, cache));
  }
  if ((all && has_training) || wanted == "training") {
    check_folder(folder, "training",
                 "the table is not shipped, give the folder that holds moe_training_steps.csv");
    validations.push_back(study::validate_training(folder, line.get("residuals")));
  }
  return validations;
}

const std::vector<std::string> studies{"speeds",    "layer",   "steps",
                                       "exchanges", "routing", "training"};

ExitCode run(const CommandLine& line) {
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  const std::string wanted = line.positionals.empty() ? "" : line.positionals.front();
  const bool is_known = std::find(studies.begin(), studies.end(), wanted) != studies.end();
  if (!wanted.empty() && !is_known) {
    throw UsageError(fmt::format("validate: unknown study '{}'{}: give {}, or nothing for all",
                                 wanted, suggestion(wanted, studies), fmt::join(studies, ", ")));
  }
  const std::vector<study::Validation> validations = validate(line, wanted);
  out.write(rendered(validations, format));
  for (const study::Validation& validation : validations) {
    if (!validation.passed()) {
      note(fmt::format("validate: a bar is not met: {}", validation.title));
      return ExitCode::quality_bar_not_met;
    }
  }
  return ExitCode::ok;
}

}  // namespace

Command validate_command() {
  return {"validate",
          "predictions against measurements: error table, bars, claims",
          fmt::format("[{}] [options]", fmt::join(studies, "|")),
          "moesim validate speeds --format csv --out speeds.csv",
          {{"data", "FOLDER", "none",
            "where the public tables are: smartmoe_gpt_step_times.csv for steps, with more from "
            "smartmoe_routing_trace.npz and moe_training_steps.csv; nccl_intranode.csv[.gz] for "
            "exchanges, with more from internode_alltoall.csv, simai_ata_ratio.csv, "
            "simai_nic_ratio.csv, deepep_normal.csv, deepep_lowlatency.csv, "
            "trtllm_moe_alltoall_gb200.csv and vidur_network_allreduce_sendrecv.csv; "
            "routing_bench_drop_rate.csv, expert_counts.csv and smartmoe_routing_trace.npz for "
            "routing; moe_training_steps.csv for training, with more from "
            "deepseek_train_kernels.csv; some are in tests/data of moesim's source"},
           {"measured", "FILE", "none",
            "for layer: what bench_layer_gpu measured, instead of the published layers"},
           {"profile", "NAME|FILE", "none", "for --measured: the profile of the same machine"},
           {"residuals", "FILE", "none",
            "for training or steps: write how far steps are off by group, what the bands of train "
            "or of simulate are made of"},
           format_flag(),
           out_flag(),
           jobs_flag()},
          false,
          1,
          run,
          "",
          false,
          [] { return studies; }};
}

}  // namespace moesim::tool
