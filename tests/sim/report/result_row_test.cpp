#include "sim/study/sweep/result_row.hpp"

#include <nlohmann/json.hpp>

#include "sim/base/error.hpp"
#include "sim/base/formats/csv.hpp"
#include "sim/report/formats.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/sweep.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

namespace {

scenario::Scenario resolved(const scenario::OptionValues& values) {
  static scenario::DocumentCache documents;
  return scenario::resolve(values, documents);
}

study::Outcome outcome() {
  study::Outcome result;
  result.step_ms = 1234.5678901234;
  result.loss.failed = 0.0625;
  result.loss.unrouted = 0;
  result.capacity = 4096;
  result.fits_memory = false;
  result.provenance = "published, \"derived\"";
  return result;
}

std::string cell(const study::Row& row, const std::string& name) {
  REQUIRE(row.size() == study::result_columns().size());
  return report::text_of(row[study::column_index(name)]);
}

study::Row refused(const study::SweepPoint& point) {
  return study::refused_row(point.scenario ? &*point.scenario : nullptr, point.values,
                            point.refusal);
}

study::Row row_of(const scenario::Scenario& scenario) {
  return study::result_row(scenario, outcome());
}

}  // namespace

TEST_CASE("the columns are those of the contract, in its order") {
  const std::string contract =
      "status reason model profile cluster router priority weights fill_order ir_compute dispatch "
      "mode routing gpus expert_parallel experts top_k capacity_factor capacity_convention "
      "capacity_scope capacity sequence_length micro_batch tokens_per_gpu checkpointing zero "
      "network "
      "replicas seed step_ms step_ms_p05 step_ms_p95 tokens_per_s_per_gpu failed partial lost_mass "
      "fill_failed failed_attempted unrouted residual_loss padded duplicate_ir attention_ms "
      "dense_ffn_ms router_ms dispatch_combine_ms expert_ms rectify_ms exposed_exchange_ms "
      "gradient_ms optimizer_ms other_ms exchange_ms memory_gib fits_memory provenance ";
  std::string names;
  for (const study::Column& column : study::result_columns()) names += column.name + " ";
  CHECK(names.substr(0, contract.size()) == contract);
}

TEST_CASE("figures have nine digits and blanks stay blank") {
  const study::Row row = row_of(resolved({{"router", "top2"}}));
  CHECK(cell(row, "status") == "ok");
  CHECK(cell(row, "reason").empty());
  CHECK(cell(row, "step_ms") == "1234.56789");
  CHECK(cell(row, "failed") == "0.0625");
  CHECK(cell(row, "unrouted") == "0");
  CHECK(cell(row, "fits_memory") == "false");
  CHECK(cell(row, "fill_order").empty());  // no fill-in
  CHECK(cell(row, "ir_compute").empty());  // no IR
  CHECK(cell(row, "fill_failed").empty());
  CHECK(cell(row, "duplicate_ir").empty());
}

TEST_CASE("a dense row says nothing of experts") {
  const study::Row row = row_of(resolved({{"router", "dense"}}));
  for (const char* name : {"experts", "expert_parallel", "top_k", "capacity_factor", "capacity",
                           "priority", "weights", "dispatch", "routing", "failed", "padded"}) {
    CAPTURE(name);
    CHECK(cell(row, name).empty());
  }
  CHECK(cell(row, "router") == "dense");
}

TEST_CASE("a row reproduces itself") {
  const scenario::Scenario first = resolved({{"router", "top2+ir+fr"},
                                             {"capacity-factor", "1.250"},
                                             {"experts", "16"},
                                             {"expert-parallel", "4"},
                                             {"min-capacity", "3"},
                                             {"ir-duplicates", "exclude"},
                                             {"ir-compute", "grouped"},
                                             {"global-batch", "512"},
                                             {"dispatch", "einsum"},
                                             {"routing", "zipf:1.2"},
                                             {"overlap", "gradient"},
                                             {"zero", "2"},
                                             {"seed", "77"}});
  const study::Row row = row_of(first);
  scenario::OptionValues typed;
  for (const scenario::Option& option : scenario::scenario_options()) {
    const std::string text = cell(row, option.column);  // every option has its column
    if (!text.empty()) typed[option.name] = text;
  }
  CHECK(row_of(resolved(typed)) == row);
  CHECK(typed.at("capacity-factor") == "1.25");
  CHECK(typed.at("router") == "top2+fr+ir");
}

TEST_CASE("a refused scenario keeps its options and has no figures") {
  scenario::DocumentCache documents;
  const auto points = study::plan(
      {{{"router", "top9"}}, {{"router", "top2"}, {"top-k", "4"}, {"gpus", "8"}}}, documents);
  const study::Row known = refused(points[0]);
  CHECK(cell(known, "status") == "refused");
  CHECK(cell(known, "experts") == "8");
  CHECK(cell(known, "step_ms").empty());
  CHECK_FALSE(cell(known, "reason").empty());
  const study::Row typed = refused(points[1]);
  CHECK(cell(typed, "router") == "top2");
  CHECK(cell(typed, "gpus") == "8");
  CHECK(cell(typed, "experts").empty());
}

TEST_CASE("a refused row tells an option that does not apply where the reason names it itself") {
  const auto told = [](const scenario::Scenario& scenario, const scenario::OptionValues& typed,
                       const std::string& option, const std::string& reason) {
    return cell(study::refused_row(&scenario, typed, reason), option);
  };
  const scenario::Scenario dense = resolved({{"router", "dense"}});
  const scenario::OptionValues dispatch = {{"dispatch", "einsum"}};
  CHECK(told(dense, dispatch, "dispatch", "--dispatch einsum has no experts") == "einsum");
  CHECK(told(dense, dispatch, "dispatch", "--dispatcher deepep has no experts").empty());
  const scenario::Scenario prefill = resolved({{"mode", "prefill"}});
  const scenario::OptionValues overlap = {{"overlap", "gradient"}};
  CHECK(told(prefill, overlap, "overlap", "no step for --overlap") == "gradient");
  CHECK(told(prefill, overlap, "overlap", "--overlap-slowdown 2:1 is not for it").empty());
}

TEST_CASE("CSV and JSON hold the same cells") {
  const study::Row row = row_of(resolved({{"router", "top1"}}));
  const std::vector<std::string> columns = study::names_of(study::result_columns());
  const CsvTable table = CsvTable::parse(report::to_csv(columns, {row}), "t.csv");
  REQUIRE(table.rows.size() == 1);
  for (const std::string& name : columns) {
    CHECK(table.rows[0][study::column_index(name)] == cell(row, name));
  }
  const nlohmann::ordered_json object = report::to_json(columns, row);
  CHECK(object.size() == columns.size());
  CHECK(object["step_ms"] == 1234.56789);
  CHECK(object["gpus"] == 32);
  CHECK(object["gpus"].is_number_integer());
  CHECK(object["capacity_factor"] == 1);
  CHECK(object["fits_memory"] == false);
  CHECK(object["fill_failed"].is_null());
  CHECK(object["provenance"] == "published, \"derived\"");
}

TEST_CASE("an unknown format lists the formats") {
  CHECK_THROWS_WITH(report::parse_format("yaml"),
                    ContainsSubstring("choose from table, csv, json"));
  CHECK(report::parse_format("json") == report::Format::json);
}

TEST_CASE("aligned columns keep to their side") {
  CHECK(report::align({{"name", "ms"}, {"attention", "1.5"}}, {false, true}) ==
        "name        ms\nattention  1.5\n");
  // Two bytes, one character.
  CHECK(report::align({{"é", "1"}, {"ab", "2"}}, {false, true}) == "é   1\nab  2\n");
}
