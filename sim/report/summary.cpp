#include "sim/report/summary.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/base/enum_names.hpp"
#include "sim/base/text.hpp"
#include "sim/report/formats.hpp"
#include "sim/report/machine_lines.hpp"
#include "sim/report/slot_share.hpp"
#include "sim/routing/simulation/trace_routing.hpp"
#include "sim/study/sweep/counted_loss.hpp"
#include "sim/study/sweep/efficiency.hpp"

namespace moesim::report {
namespace {

using Lines = std::vector<std::vector<std::string>>;

// As columns are named, but for dispatch_combine_ms, the movement of rows on the GPU: "dispatch"
// and "combine" of `train` are the exchange.
constexpr EnumNames<step::StepPart, step::part_count> part_labels{
    {{step::StepPart::attention, "attention"},
     {step::StepPart::dense_ffn, "dense FFN"},
     {step::StepPart::router, "router"},
     {step::StepPart::dispatch_combine, "permute, unpermute"},
     {step::StepPart::expert, "expert FFN"},
     {step::StepPart::rectify, "rectify"},
     {step::StepPart::exposed_exchange, "exposed exchange"},
     {step::StepPart::gradient, "gradient"},
     {step::StepPart::optimizer, "optimizer"},
     {step::StepPart::other, "other"}}};

std::string percent(double share) { return fmt::format("{:.2f} %", share * 100); }

// As many digits as tell neighbours apart, never more than matter.
std::string milliseconds(double value) {
  return fmt::format("{:.{}f}", value, value >= 100 ? 1 : value >= 10 ? 2 : 3);
}

// A unit in which a time has few digits: 83.90 s, not 83904.4 ms.
struct TimeUnit {
  const char* name = "ms";
  double ms = 1;
  std::string text(double time_ms) const { return milliseconds(time_ms / ms); }
};

TimeUnit unit_of(double most_ms) {
  constexpr double readable_ms = 10000;
  return most_ms < readable_ms ? TimeUnit{} : TimeUnit{"s", 1000};
}

std::string memory_line(const study::Outcome& outcome, bool train) {
  const study::MemoryParts parts = study::memory_parts(outcome);
  if (!train) {
    return fmt::format("weights {:.1f}, activations {:.1f}, keys and values {:.1f}, buffers {:.1f}",
                       parts.parameters, parts.activations, parts.kv_cache, parts.buffers);
  }
  return fmt::format(
      "weights {:.1f}, gradients {:.1f}, optimizer {:.1f}, activations {:.1f}, buffers {:.1f}",
      parts.parameters, parts.gradients, parts.optimizer, parts.activations, parts.buffers);
}

std::string what_it_is(const scenario::Scenario& scenario) {
  const routing::RouterConfig& router = scenario.router;
  std::string text = fmt::format("{} on {} x {} ({}), {}, router {}", scenario.model_name,
                                 scenario.gpus, scenario.gpu_name(), scenario.cluster_name,
                                 name_in(scenario::mode_names, scenario.mode), router.name());
  if (!router.is_dense()) {
    const std::string capacity =
        router.has_capacity()
            ? fmt::format("capacity factor {} ({} convention)", router.capacity_factor.text(),
                          routing::name_of(router.capacity_convention))
            : "no capacity";
    text +=
        fmt::format("\n{} experts over {} GPUs, {}, {} dispatch, routing {}", scenario.experts,
                    scenario.expert_parallel, capacity,
                    name_in(scenario::dispatch_names, scenario.dispatch), scenario.scores.name());
    if (scenario.dispatcher != nullptr) {
      text += fmt::format("\nrows carried by {}", scenario.dispatcher->name);
    } else if (scenario.dedup != scenario::Deduplication::none) {
      text += fmt::format("\na token is sent once to each {}",
                          name_in(scenario::deduplication_names, scenario.dedup));
    }
    if (scenario.expert_placement != "contiguous") {
      text += fmt::format("\nexperts placed {}", scenario.expert_placement);
    }
  }
  text += fmt::format("\n{} sequences of {} tokens per GPU and micro-step", scenario.micro_batch,
                      scenario.sequence_length);
  if (scenario.is_ragged()) {
    text +=
        fmt::format(" on the fullest GPU, {} tokens on average", grouped(scenario.mean_tokens()));
  }
  return text + fmt::format(", {} micro-step{}\n", scenario.micro_steps,
                            scenario.micro_steps == 1 ? "" : "s");
}

// How sure a token loss is, in percent.
std::string band_text(const uncertainty::LossBand& band) {
  return fmt::format(
      "mean of {} steps, +- {:.2g} (standard error); of one step {:.2f} to {:.2f} % "
      "(p05 to p95)",
      band.steps, band.error * 100, band.p05 * 100, band.p95 * 100);
}

// The loss that matters most comes first.
std::string loss_lines(const scenario::Scenario& scenario, const study::Outcome& outcome) {
  const routing::TokenLoss& loss = outcome.loss;
  const routing::RouterConfig& router = scenario.router;
  const double counted = study::counted_loss(loss, router, *scenario.model);
  const bool is_all = counted >= loss.residual_loss;
  const bool has_slots = router.has_capacity() || router.pads_exchange();
  const std::string basis = routing::loss_basis(scenario.scores, router);
  constexpr double least_shown = 0.5e-4;  // of a percentage with two decimals
  Lines lines;
  for (const study::LossFigure& figure : study::loss_figures()) {
    const Cell cell = figure.cell(loss);
    if (is_absent(cell)) continue;
    const bool first = figure.name == std::string_view("residual_loss");
    const bool of_slots = figure.name == std::string_view("padded");
    if (of_slots && !has_slots) continue;
    // The model's own choice, besides what its capacity drops.
    const std::string own_choice =
        (counted > 0 ? fmt::format("counted_loss and {} ", percent(loss.residual_loss - counted))
                     : "no token loss: ") +
        fmt::format("of the weight of a token's {} best experts, {}", router.top_k,
                    study::not_chosen);
    lines.insert(
        first ? lines.begin() : lines.end(),
        {of_slots && !router.pads_exchange() ? "empty" : figure.name, percent(number_in(cell)),
         (first && !is_all ? own_choice : figure.meaning) +
             (first && !basis.empty() ? "; from " + basis : "")});
  }
  if (outcome.loss_band && outcome.loss_band->p95 >= least_shown) {
    lines.insert(lines.begin() + 1, {"", "", band_text(*outcome.loss_band)});
  }
  if (counted > 0 && !is_all) {
    lines.insert(lines.begin(), {study::counted_loss_column, percent(counted),
                                 "token loss: what capacity drops of a token's top-k probability, "
                                 "mean over tokens"});
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
  const TimeUnit unit = unit_of(outcome.step_ms);
  Lines lines{{"where the time goes", unit.name, "share"}};
  for (std::size_t part = 0; part < step::part_count; ++part) {
    const double time = outcome.parts_ms[part];
    if (time == 0) continue;
    lines.push_back({part_label(static_cast<step::StepPart>(part)), unit.text(time),
                     percent(time / outcome.step_ms)});
  }
  return align(lines, {false, true, true});
}

const Cell& cell_of(const study::Row& row, const char* column) {
  return row[study::column_index(column)];
}

// The value of an option. A row without a dispatcher of its own leaves the cell to the default:
// beside others it has a name.
Cell option_of(const study::Row& row, std::size_t column) {
  static const std::size_t dispatcher = study::column_index("dispatcher");
  const bool exchanges = !is_absent(cell_of(row, "dispatch"));
  if (column == dispatcher && is_absent(row[column]) && exchanges) {
    return std::string(scenario::nccl_dispatcher);
  }
  return row[column];
}

// Router and capacity factor always, other options where rows differ in them.
std::vector<std::size_t> shown_options(const std::vector<study::Row>& rows) {
  std::vector<std::size_t> shown{study::column_index("router"),
                                 study::column_index("capacity_factor")};
  // These mostly say again what the router's name says.
  const std::vector<std::string> implied{"top_k", "fill_order", "ir_compute", "ir_duplicates",
                                         "global_batch"};
  const std::vector<study::Column>& columns = study::result_columns();
  for (std::size_t column = 0; column < columns.size(); ++column) {
    if (columns[column].role != study::ColumnRole::option) continue;
    if (std::find(shown.begin(), shown.end(), column) != shown.end()) continue;
    if (std::find(implied.begin(), implied.end(), columns[column].name) != implied.end()) continue;
    Cell first;
    bool varies = false;
    for (const study::Row& row : rows) {
      const Cell value = option_of(row, column);
      if (is_absent(value)) continue;  // does not apply
      if (is_absent(first)) first = value;
      varies = varies || value != first;
    }
    if (varies) shown.push_back(column);
  }
  return shown;
}

std::string baseline_text(const study::Row& row) {
  if (is_absent(cell_of(row, "speed_over_baseline"))) return "";
  const auto number = [&](const char* column) { return number_in(cell_of(row, column)); };
  const bool is_itself =
      number("speed_over_baseline_p05") == 1 && number("speed_over_baseline_p95") == 1;
  if (is_itself) return "1  the baseline";
  return fmt::format("{:.3f}  {:.3f} to {:.3f}{}", number("speed_over_baseline"),
                     number("speed_over_baseline_p05"), number("speed_over_baseline_p95"),
                     std::get<bool>(cell_of(row, "within_noise")) ? "  within the noise" : "");
}

bool has_slots(const study::Row& row) {
  return SlotShares::has_slots(cell_of(row, "padding"), cell_of(row, "capacity"));
}

// `slots`, `compares`: whether the table has these columns.
std::vector<std::string> figure_cells(const study::Row& row, const TimeUnit& unit, bool slots,
                                      bool compares) {
  const bool refused = text_of(cell_of(row, "status")) != "ok";
  if (refused) {
    std::vector<std::string> cells(std::size_t{7} + (slots ? 1 : 0) + (compares ? 1 : 0));
    cells.push_back("refused: " + text_of(cell_of(row, "reason")));
    return cells;
  }
  const auto number = [&](const char* column) { return number_in(cell_of(row, column)); };
  const auto share = [&](const char* column) {
    return is_absent(cell_of(row, column)) ? "" : fmt::format("{:.2f}", number(column) * 100);
  };
  const bool fits = std::get<bool>(cell_of(row, "fits_memory"));
  std::vector<std::string> cells = {
      unit.text(number("step_ms")),
      unit.text(number("step_ms_p05")) + " to " + unit.text(number("step_ms_p95")),
      grouped(number("tokens_per_s_per_gpu")),
      grouped(number("tokens_per_s_per_gpu") * number("step_ms") / number("step_ms_p50")),
      share("failed"),
      share(study::counted_loss_column),
  };
  if (slots) cells.push_back(has_slots(row) ? share("padded") : "");
  cells.push_back(fmt::format("{:.1f}", number("memory_gib")));
  if (compares) cells.push_back(baseline_text(row));
  cells.push_back(fits ? "" : "does not fit");
  return cells;
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
  text += fmt::format("the busiest GPU of a layer computes {} rows on average, {} at most",
                      grouped(outcome.busiest_rows), rows(outcome.rows.most));
  if (scenario.router.has_capacity()) return text + "\n";
  return text + fmt::format(", where an even load is {}\n",
                            grouped(scenario.mean_tokens() * scenario.router.top_k));
}

bool drops_routes(const study::Outcome& outcome) {
  return std::any_of(outcome.layer_failed.begin(), outcome.layer_failed.end(),
                     [](double share) { return share > 0; });
}

// Below MFU, where routes are dropped; `slower`: if measured.
std::string kept_mfu_text(double mfu, double slower) {
  return fmt::format("{:.1f} % of the peak with the kept routes alone, {:.1f} % if measured",
                     100 * mfu, 100 * mfu / slower);
}

// The share of a band's variance that its two largest terms have, and what makes it smaller.
std::string width_lines(const std::vector<uncertainty::Term>& terms) {
  double variance = 0;
  for (const uncertainty::Term& term : terms) variance += term.deviation * term.deviation;
  if (variance <= 0) return "";
  const auto share = [&](const uncertainty::Term& term) {
    return 100 * term.deviation * term.deviation / variance;
  };
  const uncertainty::Term& widest = terms.front();
  std::string text =
      fmt::format("\nwide most of all because: {} ({:.0f} % of the variance)\nnarrower with: {}\n",
                  widest.name, share(widest), widest.remedy);
  constexpr double worth_saying = 5;  // %
  if (terms.size() > 1 && share(terms[1]) >= worth_saying) {
    text +=
        fmt::format("then: {} ({:.0f} %): {}\n", terms[1].name, share(terms[1]), terms[1].remedy);
  }
  return text;
}

}  // namespace

const char* part_label(step::StepPart part) { return name_in(part_labels, part); }

std::string simulate_summary(const scenario::Scenario& scenario, const study::Outcome& outcome) {
  const double slower = outcome.band.p50_ms / outcome.step_ms;  // if measured
  const TimeUnit unit = unit_of(outcome.step_ms);
  const study::Efficiency efficiency = study::efficiency(scenario, outcome);
  std::string text = what_it_is(scenario) + "\n";
  Lines lines = {
      {"step", fmt::format("{} {}", unit.text(outcome.step_ms), unit.name),
       fmt::format("{} to {} (p05 to p95) beside steps of the same software and machine",
                   unit.text(outcome.band.same_p05_ms), unit.text(outcome.band.same_p95_ms))},
      {"if measured", fmt::format("{} {}", unit.text(outcome.band.p50_ms), unit.name),
       fmt::format("{} to {} (p05 to p95), what a measurement is expected to say",
                   unit.text(outcome.band.p05_ms), unit.text(outcome.band.p95_ms))},
      {"speed", grouped(outcome.tokens_per_s_per_gpu),
       fmt::format("tokens/s per GPU; {} if measured",
                   grouped(outcome.tokens_per_s_per_gpu / slower))},
      {"", fmt::format("{:.3g}", efficiency.tokens_per_day),
       fmt::format("tokens per day on {} GPUs; {} GPU hours per 1e12 tokens, {} if measured{}",
                   scenario.gpus, grouped(efficiency.gpu_hours_per_1e12_tokens),
                   grouped(efficiency.gpu_hours_per_1e12_tokens * slower),
                   scenario.replicas == 1
                       ? ""
                       : fmt::format("; by the mean step, {} {}",
                                     unit.text(study::mean_step_ms(outcome)), unit.name))},
      {"FLOPs", fmt::format("{:.1f}", efficiency.tflops_per_gpu),
       fmt::format("model TFLOP/s per GPU, {:.1f} % of its bf16 peak (MFU), {:.1f} % if measured{}",
                   100 * efficiency.mfu, 100 * efficiency.mfu / slower,
                   drops_routes(outcome) ? "; counted as if no route were dropped" : "")},
      {"exchange", fmt::format("{} {}", unit.text(outcome.exchange_ms), unit.name),
       "busy, hidden or not, without waiting for other GPUs"},
      {"memory", fmt::format("{:.1f} GiB", outcome.memory_gib),
       outcome.fits_memory
           ? "per GPU, fits"
           : fmt::format("per GPU, DOES NOT FIT the {:.0f} GiB of {}",
                         scenario.profile->device().hbm_bytes.gib(), scenario.profile_name)},
      {"", "", memory_line(outcome, scenario.mode == scenario::Mode::train)}};
  if (efficiency.mfu_kept.value_or(efficiency.mfu) < efficiency.mfu) {
    const auto flops = std::find_if(lines.begin(), lines.end(),
                                    [](const auto& line) { return line.front() == "FLOPs"; });
    lines.insert(flops + 1, {"", "", kept_mfu_text(*efficiency.mfu_kept, slower)});
  }
  text += align(lines, {false, true, false});
  text += "\n" + part_lines(outcome);
  if (scenario.replicas > 1) {
    text += "  of the replica with the median step; of another scenario it can be another one\n";
  }
  if (scenario.has_moe()) {
    text += "\n" + row_line(scenario, outcome);
    text += loss_lines(scenario, outcome);
  }
  return text + width_lines(outcome.band.terms) + "based on: " + outcome.provenance + "\n";
}

std::string route_summary(const scenario::Scenario& scenario, const study::Outcome& outcome,
                          std::size_t layers, const nlohmann::ordered_json& detail) {
  const routing::RouterConfig& router = scenario.router;
  std::string capacity = "no capacity: each expert takes all that comes";
  if (router.has_capacity()) {
    capacity = fmt::format("capacity factor {} ({} convention): {} slots per expert and source GPU",
                           router.capacity_factor.text(),
                           routing::name_of(router.capacity_convention), outcome.capacity);
  } else if (router.pads_exchange()) {
    capacity = fmt::format("{} slots per expert and source GPU", outcome.capacity);
  }
  return fmt::format(
             "router {}, {} experts over {} of {} GPUs, {} tokens per GPU\n"
             "{}\n"
             "scores {}, {} replicas, {} layers each routed by itself\n\n",
             router.name(), scenario.experts, scenario.expert_parallel, scenario.gpus,
             scenario.tokens_per_gpu, capacity, scenario.scores.name(), scenario.replicas, layers) +
         loss_lines(scenario, outcome) + "\n" + imbalance_lines(detail);
}

// Where all rows have one: the factors of different conventions look alike.
static std::string convention_line(const std::vector<study::Row>& rows) {
  std::set<std::string> conventions;
  for (const study::Row& row : rows) {
    if (is_absent(cell_of(row, "capacity_factor"))) continue;
    conventions.insert(text_of(cell_of(row, "capacity_convention")));
  }
  if (conventions.size() != 1) return "";
  const std::string& name = *conventions.begin();
  return fmt::format("capacity_factor: {} convention, a balanced load needs {}\n", name,
                     name == "library" ? "1" : "k");
}

static std::string not_counted_line(const std::vector<study::Row>& rows) {
  std::vector<study::StatedLoss> losses;
  for (const study::Row& row : rows) {
    losses.push_back({number_in(cell_of(row, "residual_loss")),
                      number_in(cell_of(row, study::counted_loss_column))});
  }
  return study::not_counted_text(losses);
}

std::string sweep_summary(const std::vector<study::Row>& rows) {
  const std::vector<std::size_t> options = shown_options(rows);
  double longest = 0;
  bool compares = false;
  for (const study::Row& row : rows) {
    compares = compares || !is_absent(cell_of(row, "speed_over_baseline"));
    longest = std::max(longest, number_in(cell_of(row, "step_ms")));
  }
  const TimeUnit unit = unit_of(longest);
  Lines lines(1);
  std::vector<bool> right;
  for (const std::size_t column : options) {
    lines[0].push_back(study::result_columns()[column].name);
    right.push_back(study::result_columns()[column].type == study::ColumnType::number);
  }
  const auto head = [&](const std::string& heading, bool is_number) {
    lines[0].push_back(heading);
    right.push_back(is_number);
  };
  head(fmt::format("step {}", unit.name), true);
  SlotShares slots;
  for (const study::Row& row : rows) slots.add(cell_of(row, "padding"), cell_of(row, "capacity"));
  for (const char* heading :
       {"if measured, p05 to p95", "tokens/s/GPU", "if measured", "failed %", "token loss %"}) {
    head(heading, true);
  }
  if (slots.any()) head(slots.heading(), true);
  head("memory GiB", true);
  if (compares) head("speed over baseline", false);
  head("", false);
  for (const study::Row& row : rows) {
    std::vector<std::string> line;
    for (const std::size_t column : options) line.push_back(text_of(option_of(row, column)));
    for (std::string& cell : figure_cells(row, unit, slots.any(), compares)) {
      line.push_back(std::move(cell));
    }
    lines.push_back(std::move(line));
  }
  return align(lines, right) + convention_line(rows) + not_counted_line(rows) +
         (compares ? machine_lines(rows, options) : "");
}

nlohmann::ordered_json outcome_detail(const study::Outcome& outcome) {
  const auto numbers = [&](const std::vector<double>& values) {
    nlohmann::ordered_json array = nlohmann::ordered_json::array();
    for (const double value : values) array.push_back(json_figure(value));
    return array;
  };
  const auto rows = [](std::int64_t count) {
    return count > 0 ? nlohmann::ordered_json(count) : nlohmann::ordered_json();
  };
  nlohmann::ordered_json memory = nlohmann::ordered_json::object();
  for (const auto& [name, gib] : outcome.memory_parts_gib) memory[name] = json_figure(gib);
  return {{"network_used", outcome.network_used},
          {"network_why", outcome.network_why},
          {"replica_step_ms", numbers(outcome.replica_step_ms)},
          {"layer_failed", numbers(outcome.layer_failed)},
          {"ir_rows_mean", json_figure(outcome.ir_rows_mean)},
          {"ir_rows_spread", json_figure(outcome.ir_rows_spread)},
          {"busiest_rows_mean", json_figure(outcome.busiest_rows)},
          {"busiest_rows_most", rows(outcome.rows.most)},
          {"tokens_per_gpu_mean", json_figure(outcome.tokens_per_gpu_mean)},
          {"empty_rows_sent", outcome.empty_rows_sent > 0 ? json_figure(outcome.empty_rows_sent)
                                                          : nlohmann::ordered_json()},
          {"memory_parts_gib", memory}};
}

}  // namespace moesim::report
