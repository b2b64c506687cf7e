#include "sim/report/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "sim/report/formats.hpp"

namespace moesim::report {
namespace {

using Lines = std::vector<std::vector<std::string>>;

constexpr std::array<const char*, study::part_count> part_names{"attention",
                                                                "dense FFN",
                                                                "router",
                                                                "dispatch and combine",
                                                                "expert FFN",
                                                                "rectify",
                                                                "exposed exchange (with waiting)",
                                                                "gradient",
                                                                "optimizer",
                                                                "other"};

// 13270 as "13,270".
std::string grouped(double value) {
  std::string digits = fmt::format("{:.0f}", value);
  for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<std::size_t>(at), ",");
  }
  return digits;
}

std::string percent(double share) { return fmt::format("{:.2f} %", share * 100); }

// As many digits as tell neighbours apart, never more than matter.
std::string milliseconds(double value) {
  return fmt::format("{:.{}f}", value, value >= 100 ? 1 : value >= 10 ? 2 : 3);
}

std::string what_it_is(const scenario::Scenario& scenario) {
  const routing::RouterConfig& router = scenario.router;
  std::string text = fmt::format("{} on {} x {} ({}), {}, router {}", scenario.model_name,
                                 scenario.gpus, scenario.profile_name, scenario.cluster_name,
                                 scenario::name_of(scenario.mode), router.name());
  if (!router.is_dense()) {
    const std::string capacity =
        router.has_capacity()
            ? fmt::format("capacity factor {} ({} convention)", router.capacity_factor.text(),
                          routing::name_of(router.capacity_convention))
            : "no capacity";
    text += fmt::format("\n{} experts over {} GPUs, {}, {} dispatch, routing {}", scenario.experts,
                        scenario.expert_parallel, capacity, scenario::name_of(scenario.dispatch),
                        scenario.scores.name());
    if (scenario.dedup != scenario::Deduplication::none) {
      text += fmt::format("\na token is sent once to each {}", scenario::name_of(scenario.dedup));
    }
    if (scenario.expert_placement != "contiguous") {
      text += fmt::format("\nexperts placed {}", scenario.expert_placement);
    }
  }
  text += fmt::format("\n{} sequences of {} tokens per GPU and micro-step", scenario.micro_batch,
                      scenario.sequence_length);
  if (scenario.is_ragged()) {
    text +=
        fmt::format(" on the fullest GPU, {} tokens in the mean", grouped(scenario.mean_tokens()));
  }
  return text + fmt::format(", {} micro-step{}\n", scenario.micro_steps,
                            scenario.micro_steps == 1 ? "" : "s");
}

std::string loss_lines(const Cells& cells) {
  const std::vector<std::pair<const char*, const char*>> names{
      {"residual_loss",
       "token loss: share of a token's top-k probability that nobody processes, mean over tokens"},
      {"failed", "routes not kept, before rectification"},
      {"partial", "tokens with fewer than k routes kept"},
      {"lost_mass",
       "of the top-k probability of all tokens together, not kept, before rectification"},
      {"fill_failed", "fill-in nominations that found no slot"},
      {"failed_attempted", "failed of all attempted routes, fill-in included"},
      {"unrouted", "tokens without any expert, in the end"},
      {"padded", "expert slots that stay empty"},
      {"duplicate_ir", "IR rows whose expert had the token already, per token"},
  };
  Lines lines;
  for (const auto& [name, meaning] : names) {
    const auto cell = cells.find(name);
    if (cell == cells.end() || cell->second.empty()) continue;
    lines.push_back({name, percent(std::strtod(cell->second.c_str(), nullptr)), meaning});
  }
  return align(lines, {false, true, false});
}

std::string imbalance_lines(const nlohmann::ordered_json& detail) {
  const std::vector<std::pair<const char*, const char*>> names{
      {"expert_demand_busiest_over_mean", "the most wanted expert over the mean, before drops"},
      {"gpu_rows_busiest_over_mean", "rows of the GPU that computes most over the mean"},
      {"pair_rows_busiest_over_mean", "rows kept between two GPUs, the most over the mean"},
      {"ir_rows_busiest_over_mean", "IR rows of the GPU that has most over the mean"},
      {"expert_demand_gini", "Gini coefficient of the demand, 0 is balanced"}};
  const auto cell = [](const nlohmann::ordered_json& value) {
    return fmt::format("{:.3f}", value.get<double>());
  };
  Lines lines{{"how uneven, over layers and replicas", "median", "p95", "max", ""}};
  for (const auto& [name, meaning] : names) {
    const auto found = detail.at("imbalance").find(name);
    if (found == detail.at("imbalance").end()) continue;
    lines.push_back(
        {name, cell(found->at("median")), cell(found->at("p95")), cell(found->at("max")), meaning});
  }
  return align(lines, {false, true, true, true, false});
}

std::string part_lines(const study::Outcome& outcome) {
  Lines lines{{"where the time goes", "ms", "share"}};
  for (std::size_t part = 0; part < study::part_count; ++part) {
    const double time = outcome.parts_ms[part];
    if (time == 0) continue;
    lines.push_back({part_names[part], milliseconds(time), percent(time / outcome.step_ms)});
  }
  return align(lines, {false, true, true});
}

double number(const study::Row& row, std::size_t column) {
  return std::strtod(row[column].c_str(), nullptr);
}

std::size_t column_index(const std::string& name) {
  const std::vector<Column>& columns = result_columns();
  const auto found = std::find_if(columns.begin(), columns.end(),
                                  [&](const Column& column) { return column.name == name; });
  return static_cast<std::size_t>(found - columns.begin());
}

// Router and capacity factor always, other options where rows differ in them.
std::vector<std::size_t> shown_options(const std::vector<study::Row>& rows) {
  std::vector<std::size_t> shown{column_index("router"), column_index("capacity_factor")};
  // These mostly say again what the router's name says.
  const std::vector<std::string> implied{"top_k",      "capacity",      "fill_order",
                                         "ir_compute", "ir_duplicates", "global_batch"};
  for (std::size_t column = 2; column < result_columns().size(); ++column) {
    const std::string& name = result_columns()[column].name;
    const bool is_option = column < column_index("step_ms") || column > column_index("provenance");
    if (!is_option || std::find(shown.begin(), shown.end(), column) != shown.end()) continue;
    std::string first;
    bool varies = false;
    for (const study::Row& row : rows) {
      if (row[column].empty()) continue;  // does not apply
      if (first.empty()) first = row[column];
      varies = varies || row[column] != first;
    }
    if (varies && std::find(implied.begin(), implied.end(), name) == implied.end()) {
      shown.push_back(column);
    }
  }
  return shown;
}

std::string share_cell(const study::Row& row, const std::string& name) {
  const std::size_t column = column_index(name);
  return row[column].empty() ? "" : fmt::format("{:.2f}", number(row, column) * 100);
}

std::vector<std::string> figure_cells(const study::Row& row) {
  const bool refused = row[column_index("status")] != "ok";
  if (refused) return {"", "", "", "", "", "", "", "refused: " + row[column_index("reason")]};
  const auto time = [&](const char* name) { return milliseconds(number(row, column_index(name))); };
  const bool fits = row[column_index("fits_memory")] == "true";
  return {time("step_ms"),
          time("step_ms_p05") + " to " + time("step_ms_p95"),
          grouped(number(row, column_index("tokens_per_s_per_gpu"))),
          share_cell(row, "failed"),
          share_cell(row, "residual_loss"),
          share_cell(row, "padded"),
          fmt::format("{:.1f}", number(row, column_index("memory_gib"))),
          fits ? "" : "does not fit"};
}

std::string row_line(const scenario::Scenario& scenario, const study::Outcome& outcome) {
  std::string text;
  if (scenario.router.has_capacity() || scenario.router.pads_exchange()) {
    text = fmt::format("capacity {} slots per expert and source GPU\n", outcome.capacity);
  }
  if (scenario.router.pads_exchange()) {
    if (outcome.empty_rows_sent == 0) return text;
    return text + fmt::format("{} of the rows that travel are padding to the largest block\n",
                              percent(outcome.empty_rows_sent));
  }
  const auto rows = [](std::int64_t count) { return grouped(static_cast<double>(count)); };
  text += fmt::format("the busiest GPU of a layer computes {} rows in the mean, {} at most",
                      grouped(outcome.busiest_rows), rows(outcome.rows.most));
  if (scenario.router.has_capacity()) return text + "\n";
  return text + fmt::format(", where an even load is {}\n",
                            grouped(scenario.mean_tokens() * scenario.router.top_k));
}

}  // namespace

std::string simulate_summary(const scenario::Scenario& scenario, const study::Outcome& outcome) {
  std::string text = what_it_is(scenario) + "\n";
  text += align(
      {{"step", milliseconds(outcome.step_ms) + " ms",
        scenario.replicas == 1
            ? "one replica: no error bar; --replicas 16 draws one"
            : fmt::format("{} to {} (p05 to p95 of {} replicas)", milliseconds(outcome.step_ms_p05),
                          milliseconds(outcome.step_ms_p95), scenario.replicas)},
       {"speed", grouped(outcome.tokens_per_s_per_gpu), "tokens/s per GPU"},
       {"exchange", milliseconds(outcome.exchange_ms) + " ms",
        "busy, hidden or not, without waiting for other GPUs"},
       {"memory", fmt::format("{:.1f} GiB", outcome.memory_gib),
        outcome.fits_memory ? "per GPU, fits" : "per GPU, DOES NOT FIT"}},
      {false, true, false});
  text += "\n" + part_lines(outcome);
  if (scenario.has_moe()) {
    text += "\n" + row_line(scenario, outcome);
    text += loss_lines(loss_cells(outcome.loss));
  }
  return text + "\nrests on: " + outcome.provenance + "\n";
}

std::string route_summary(const Cells& cells, const nlohmann::ordered_json& detail) {
  const auto cell = [&](const char* name) {
    const auto found = cells.find(name);
    return found == cells.end() ? std::string() : found->second;
  };
  std::string capacity = "no capacity: each expert takes all that comes";
  if (!cell("capacity_factor").empty()) {
    capacity = fmt::format("capacity factor {} ({} convention): {} slots per expert and source GPU",
                           cell("capacity_factor"), cell("capacity_convention"), cell("capacity"));
  } else if (!cell("capacity").empty()) {
    capacity = fmt::format("{} slots per expert and source GPU", cell("capacity"));
  }
  return fmt::format(
             "router {}, {} experts over {} of {} GPUs, {} tokens per GPU\n"
             "{}\n"
             "scores {}, {} replicas, {} layers each routed by itself\n\n",
             cell("router"), cell("experts"), cell("expert_parallel"), cell("gpus"),
             cell("tokens_per_gpu"), capacity, cell("routing"), cell("replicas"), cell("layers")) +
         loss_lines(cells) + "\n" + imbalance_lines(detail);
}

std::string sweep_summary(const std::vector<study::Row>& rows) {
  const std::vector<std::size_t> options = shown_options(rows);
  Lines lines(1);
  std::vector<bool> right;
  for (const std::size_t column : options) {
    lines[0].push_back(result_columns()[column].name);
    right.push_back(result_columns()[column].kind == ColumnKind::number);
  }
  for (const char* heading : {"step ms", "p05 to p95", "tokens/s/GPU", "failed %", "token loss %",
                              "padded %", "memory GiB", ""}) {
    lines[0].push_back(heading);
    right.push_back(*heading != '\0');
  }
  for (const study::Row& row : rows) {
    std::vector<std::string> line;
    for (const std::size_t column : options) line.push_back(row[column]);
    for (std::string& cell : figure_cells(row)) line.push_back(std::move(cell));
    lines.push_back(std::move(line));
  }
  return align(lines, right);
}

nlohmann::ordered_json outcome_detail(const study::Outcome& outcome) {
  const auto one = [](double value) {
    const std::string text = figure(value);
    return nlohmann::ordered_json::parse(text.empty() ? "null" : text);
  };
  const auto numbers = [&](const std::vector<double>& values) {
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (const double value : values) array.push_back(one(value));
    return array;
  };
  const auto rows = [](std::int64_t count) {
    return count > 0 ? nlohmann::ordered_json(count) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json memory = nlohmann::ordered_json::object();
  for (const auto& [name, gib] : outcome.memory_parts_gib) memory[name] = one(gib);
  return {{"network_used", outcome.network_used},
          {"network_why", outcome.network_why},
          {"replica_step_ms", numbers(outcome.replica_step_ms)},
          {"layer_failed", numbers(outcome.layer_failed)},
          {"ir_rows_mean", one(outcome.ir_rows_mean)},
          {"ir_rows_spread", one(outcome.ir_rows_spread)},
          {"busiest_rows_mean", one(outcome.busiest_rows)},
          {"busiest_rows_most", rows(outcome.rows.most)},
          {"tokens_per_gpu_mean", one(outcome.tokens_per_gpu_mean)},
          {"empty_rows_sent",
           outcome.empty_rows_sent > 0 ? one(outcome.empty_rows_sent) : nlohmann::ordered_json()},
          {"memory_parts_gib", memory}};
}

}  // namespace moesim::report
