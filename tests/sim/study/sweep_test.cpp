#include "sim/study/sweep/sweep.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/grid.hpp"
#include "sim/study/sweep/journal.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/other_values.hpp"

using namespace moesim;
using study::Outcome;
using study::Row;
using study::SweepPoint;
using study::SweepSettings;

namespace {

namespace fs = std::filesystem;

// An own empty folder, gone at the end of the case.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "moesim-sweep-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;  // a second owner would remove the folder early
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

std::vector<SweepPoint> points(const std::string& factors = "0.5:2:0.5") {
  static scenario::DocumentCache documents;
  return study::plan(study::grid({{"router", "top1,top2+fr+ir"}, {"capacity-factor", factors}}),
                     documents);
}

Outcome speed_of_factor(const scenario::Scenario& scenario, routing::RoutingCache&) {
  Outcome outcome;
  outcome.step_ms = 100 * scenario.router.capacity_factor.to_double() + scenario.router.top_k;
  return outcome;
}

study::SweepResult sweep_by(const std::vector<SweepPoint>& points,
                            decltype(SweepSettings::evaluate) evaluate, SweepSettings settings) {
  settings.evaluate = std::move(evaluate);
  return study::sweep(points, settings);
}

using Texts = std::vector<std::string>;

// The router and its step, or why there is none.
Texts short_row(const Row& row) {
  const auto text = [&](const char* column) {
    return std::get<std::string>(row[study::column_index(column)]);
  };
  return {text("router"), text("status") == "ok"
                              ? std::to_string(number_in(row[study::column_index("step_ms")]))
                              : "refused: " + text("reason")};
}

std::vector<Texts> rows_of(const study::SweepResult& result) {
  REQUIRE(result.complete());
  std::vector<Texts> rows;
  for (const auto& row : result.rows) rows.push_back(short_row(*row));
  return rows;
}

}  // namespace

TEST_CASE("rows come in grid order for any number of threads") {
  SweepSettings settings;
  const std::vector<Texts> alone = rows_of(sweep_by(points(), speed_of_factor, settings));
  REQUIRE(alone.size() == 8);
  CHECK(alone[0] == Texts{"top1", "51.000000"});
  CHECK(alone[7] == Texts{"top2+fr+ir", "202.000000"});
  for (const int jobs : {2, 5, 64}) {
    settings.jobs = jobs;
    CHECK(rows_of(sweep_by(points(), speed_of_factor, settings)) == alone);
  }
}

TEST_CASE("a scenario that cannot be is a row with a reason") {
  scenario::DocumentCache documents;
  const auto planned =
      study::plan(study::grid({{"router", "top1,top2"}, {"experts", "1,8"}}), documents);
  REQUIRE(planned.size() == 4);  // experts vary slower than the router
  CHECK(planned[0].refusal.empty());
  CHECK_THAT(planned[1].refusal, ContainsSubstring("2 experts per token, but there are 1"));
  CHECK(planned[1].scenario.has_value());
  const auto rows = rows_of(sweep_by(planned, speed_of_factor, {}));
  CHECK(rows[1][1].starts_with("refused: --router: top2 asks for 2"));
  CHECK(rows[3][1] == "202.000000");
}

TEST_CASE("a value that makes no sense ends the sweep before it starts") {
  scenario::DocumentCache documents;
  CHECK_THROWS_AS(study::plan(study::grid({{"gpus", "8,x"}}), documents), UsageError);
  CHECK_THROWS_AS(study::plan(study::grid({{"profile", "a100-sxm-80gb,nosuch"}}), documents),
                  UsageError);
}

TEST_CASE("an error of one evaluation is its row's reason, anything else ends the sweep") {
  const auto fussy = [](const scenario::Scenario& scenario, routing::RoutingCache& cache) {
    if (scenario.router.top_k == 2) throw Error("the profile has no such curve");
    return speed_of_factor(scenario, cache);
  };
  const auto rows = rows_of(sweep_by(points(), fussy, {}));
  CHECK(rows[0][1] == "51.000000");
  CHECK(rows[4][1] == "refused: the profile has no such curve");
  const auto broken = [](const scenario::Scenario&, routing::RoutingCache&) -> Outcome {
    throw std::logic_error("a bug");
  };
  CHECK_THROWS_AS(sweep_by(points(), broken, {}), std::logic_error);
}

// It shares its logits with the row behind it.
TEST_CASE("the routing of a row that fails is not done, and not counted as left") {
  scenario::DocumentCache documents;
  const auto planned = study::plan(study::grid({{"router", "top1,top2"},
                                                {"gpus", "8"},
                                                {"tokens-per-gpu", "64"},
                                                {"sequence-length", "64"},
                                                {"replicas", "1"}}),
                                   documents);
  std::optional<double> left;
  const auto fussy = [&](const scenario::Scenario& scenario, routing::RoutingCache& cache) {
    if (scenario.router.top_k == 1) throw Error("the profile has no such curve");
    cache.get(scenario.routing_job(), 0);
    left = cache.seconds_left();
    return speed_of_factor(scenario, cache);
  };
  const auto rows = rows_of(sweep_by(planned, fussy, {}));
  CHECK(rows[0][1] == "refused: the profile has no such curve");
  CHECK_FALSE(rows[1][1].starts_with("refused"));
  CHECK(left == 0.0);
}

TEST_CASE("an interrupted sweep resumes with the rows it has") {
  const Folder folder;
  SweepSettings settings;
  settings.journal = folder.file("rows.partial");
  settings.fingerprint = study::fingerprint(points(), "1");
  const auto whole = rows_of(sweep_by(points(), speed_of_factor, {}));

  std::atomic<bool> stop{false};
  std::atomic<int> evaluated{0};
  const auto counting = [&](const scenario::Scenario& scenario, routing::RoutingCache& cache) {
    if (++evaluated == 3) stop = true;
    return speed_of_factor(scenario, cache);
  };
  settings.stop = &stop;
  const study::SweepResult part = sweep_by(points(), counting, settings);
  CHECK_FALSE(part.complete());
  CHECK(evaluated == 3);

  int left = 8 - 3;
  SECTION("the rest is evaluated once, and the rows are the same") {}
  SECTION("a line cut short by a kill is evaluated again") {
    const std::string journal = read_file(settings.journal);
    write_file_atomically(settings.journal, journal.substr(0, journal.size() - 5));
    left = 6;
  }
  std::atomic<int> again{0};
  const auto resumed = [&](const scenario::Scenario& scenario, routing::RoutingCache& cache) {
    ++again;
    return speed_of_factor(scenario, cache);
  };
  settings.stop = nullptr;
  settings.resume = true;
  settings.jobs = 2;
  CHECK(rows_of(sweep_by(points(), resumed, settings)) == whole);
  CHECK(again == left);
}

// With all rows of one pass, which may take minutes, in front of them.
TEST_CASE("a stopped sweep does not finish its pass of routing") {
  scenario::DocumentCache documents;
  const auto one = study::plan(
      study::grid({{"router", "top1"}, {"sequence-length", "64"}, {"replicas", "1"}}), documents);
  std::atomic<bool> stop{false};
  SweepSettings settings;
  settings.stop = &stop;
  const auto stopping = [&](const scenario::Scenario& scenario, routing::RoutingCache& cache) {
    stop = true;
    return study::evaluate(scenario, cache);
  };
  const study::SweepResult none = sweep_by(one, stopping, settings);
  CHECK(none.total == 1);
  CHECK_FALSE(none.rows[0].has_value());
  settings.stop = nullptr;
  const study::SweepResult whole = sweep_by(one, stopping, settings);
  REQUIRE(whole.complete());
  CHECK((*whole.rows[0])[0] == Cell("ok"));
}

TEST_CASE("scenarios that differ only in what does not apply to them are one row") {
  scenario::DocumentCache documents;
  const auto all = study::plan(
      study::grid({{"router", "dropless,top2"}, {"capacity-factor", "1,1.5,2"}}), documents);
  std::vector<SweepPoint> once = all;
  study::mark_repeats(once);
  REQUIRE(once.size() == 6);
  CHECK_FALSE(once[0].repeats.has_value());
  CHECK(once[1].repeats == 0U);
  CHECK(once[2].repeats == 0U);
  for (const std::size_t index : {3U, 4U, 5U}) CHECK_FALSE(once[index].repeats.has_value());

  std::atomic<int> evaluated{0};
  const auto counting = [&](const scenario::Scenario& scenario, routing::RoutingCache&) {
    ++evaluated;
    Outcome outcome;
    outcome.step_ms =
        scenario.router.has_capacity() ? 100 * scenario.router.capacity_factor.to_double() : 7;
    return outcome;
  };
  const auto check_rows = [](const study::SweepResult& result) {
    CHECK(result.complete());
    CHECK(result.total == 4);
    REQUIRE(result.rows.size() == 6);
    CHECK(short_row(*result.rows[0]) == Texts{"dropless", "7.000000"});
    CHECK_FALSE(result.rows[1].has_value());
    CHECK_FALSE(result.rows[2].has_value());
    CHECK(short_row(*result.rows[3]) == Texts{"top2", "100.000000"});
    CHECK(short_row(*result.rows[5]) == Texts{"top2", "200.000000"});
  };
  SECTION("evaluated once, counted once") {
    SweepSettings settings;
    settings.jobs = 3;
    settings.progress = [](const study::SweepProgress& progress) { CHECK(progress.total == 4); };
    check_rows(sweep_by(once, counting, settings));
    CHECK(evaluated == 4);
  }
  SECTION("resumed without the repeats") {
    const Folder folder;
    SweepSettings settings;
    settings.journal = folder.file("rows.partial");
    std::atomic<bool> stop{false};
    settings.stop = &stop;
    sweep_by(
        once,
        [&](const scenario::Scenario& scenario, routing::RoutingCache& cache) {
          if (evaluated == 1) stop = true;
          return counting(scenario, cache);
        },
        settings);
    REQUIRE(evaluated == 2);  // dropless, top2 at 1
    settings.stop = nullptr;
    settings.resume = true;
    check_rows(sweep_by(once, counting, settings));
    CHECK(evaluated == 4);
  }
}

// Figures that no short text says, an exact decimal, a flag, nothing: all as they were.
TEST_CASE("a resumed row is the same to the bit") {
  const Folder folder;
  SweepSettings settings;
  settings.journal = folder.file("rows.partial");
  const auto awkward = [](const scenario::Scenario& scenario, routing::RoutingCache&) {
    Outcome outcome;
    outcome.step_ms = scenario.router.capacity_factor.to_double() / 3;
    outcome.exchange_ms = 5;
    outcome.memory_gib = std::numeric_limits<double>::quiet_NaN();
    outcome.provenance = "\"quoted\", as typed";
    return outcome;
  };
  const study::SweepResult first = sweep_by(points(), awkward, settings);
  settings.resume = true;
  const study::SweepResult again = sweep_by(
      points(),
      [](const scenario::Scenario&, routing::RoutingCache&) -> Outcome {
        throw std::logic_error("nothing is left to evaluate");
      },
      settings);
  CHECK(again.rows == first.rows);
  CHECK(is_absent((*again.rows[0])[study::column_index("memory_gib")]));
  CHECK((*again.rows[0])[study::column_index("capacity_factor")] ==
        Cell(Decimal::parse("0.5", "the factor")));
}

TEST_CASE("the journal of another sweep is not resumed") {
  const Folder folder;
  SweepSettings settings;
  settings.journal = folder.file("rows.partial");
  settings.fingerprint = study::fingerprint(points(), "1");
  sweep_by(points(), speed_of_factor, settings);
  settings.resume = true;
  CHECK_NOTHROW(sweep_by(points(), speed_of_factor, settings));
  settings.fingerprint = study::fingerprint(points("1,2"), "1");
  CHECK_THROWS_WITH(sweep_by(points("1,2"), speed_of_factor, settings),
                    ContainsSubstring("rows of a run with other options"));
}

TEST_CASE("a journal lies beside the results, if these have a place") {
  CHECK(study::journal_path("out/sweep.csv") == "out/sweep.csv.partial");
  CHECK(study::journal_path("").empty());             // stdout
  CHECK(study::journal_path("/dev/stdout").empty());  // a device
  CHECK(study::journal_path("/dev/null").empty());
  CHECK(study::journal_path("/dev/shm/moesim.csv") == "/dev/shm/moesim.csv.partial");  // a file
}

TEST_CASE("the fingerprint knows options, order and build") {
  const std::string one = study::fingerprint(points(), "1");
  CHECK(one == study::fingerprint(points(), "1"));
  CHECK(one != study::fingerprint(points(), "2"));
  CHECK(one != study::fingerprint(points("0.5,1.5,1,2"), "1"));
}

TEST_CASE("the fingerprint changes with every option") {
  scenario::DocumentCache documents;
  const auto fingerprint_of = [&](const scenario::OptionValues& values) {
    return study::fingerprint(study::plan({values}, documents), "1");
  };
  const std::string plain = fingerprint_of(support::usual_values());
  for (const scenario::Option& option : scenario::scenario_options()) {
    for (const std::string& value : support::other_values(option)) {
      scenario::OptionValues values = support::usual_values();
      values[option.name] = value;
      CAPTURE(option.name, value);
      CHECK(fingerprint_of(values) != plain);
    }
  }
}

// The file has the same name in both sweeps, but another expert on rank 0.
TEST_CASE("the fingerprint knows what a table of expert placement holds") {
  const Folder folder;
  const std::string table = folder.file("placement.csv");
  const auto fingerprint_of = [&](const std::string& rows) {
    write_file_atomically(table, "expert,rank\n" + rows);
    scenario::DocumentCache documents;
    return study::fingerprint(study::plan(study::grid({{"experts", "2"},
                                                       {"expert-parallel", "2"},
                                                       {"gpus", "2"},
                                                       {"expert-placement", table}}),
                                          documents),
                              "1");
  };
  const std::string first = fingerprint_of("0,0\n1,1\n");
  CHECK(first == fingerprint_of("0,0\n1,1\n"));
  CHECK(first != fingerprint_of("0,1\n1,0\n"));
}

TEST_CASE("progress counts every row once") {
  std::mutex mutex;
  std::vector<std::size_t> counts;
  SweepSettings settings;
  settings.jobs = 3;
  settings.progress = [&](const study::SweepProgress& progress) {
    const std::lock_guard lock(mutex);
    counts.push_back(progress.done);
    CHECK(progress.total == 8);
  };
  sweep_by(points(), speed_of_factor, settings);
  CHECK(counts == std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6, 7, 8});
}

TEST_CASE("there is a forecast from the first row on") {
  std::vector<bool> forecasts;
  SweepSettings settings;
  settings.progress = [&](const study::SweepProgress& progress) {
    forecasts.push_back(progress.seconds_left.has_value());
    if (progress.done == 8) CHECK(progress.seconds_left == 0.0);
  };
  sweep_by(points(), speed_of_factor, settings);
  CHECK(forecasts == std::vector<bool>{false, true, true, true, true, true, true, true, true});
}

// The routing, which takes nearly all of the time, is then still to come.
TEST_CASE("a row that needs no routing is no ground for a forecast of those that do") {
  scenario::DocumentCache documents;
  const auto planned = study::plan(
      study::grid({{"router", "dense,top1"}, {"experts", "1,8"}, {"top-k", "1"}}), documents);
  std::vector<bool> forecasts;
  SweepSettings settings;
  settings.progress = [&](const study::SweepProgress& progress) {
    forecasts.push_back(progress.seconds_left.has_value());
  };
  const study::SweepResult result = sweep_by(planned, speed_of_factor, settings);
  std::vector<bool> expected{false};
  bool routed = false;
  for (std::size_t row = 0; row < planned.size(); ++row) {
    routed = routed || (planned[row].refusal.empty() && planned[row].scenario->has_moe());
    expected.push_back(routed || row + 1 == planned.size());
  }
  CHECK(result.complete());
  CHECK(forecasts == expected);
}

// Passes of a nanosecond: the row of the first scenario is there before the last ones are routed.
TEST_CASE("the first row does not wait until all scenarios are routed") {
  scenario::DocumentCache documents;
  const auto planned = study::plan(study::grid({{"router", "expert-choice"},
                                                {"capacity-factor", "1:2.9:0.1"},
                                                {"gpus", "8"},
                                                {"sequence-length", "64"},
                                                {"replicas", "4"}}),
                                   documents);
  std::vector<Row> rows;
  for (const double seconds : {0.0, 1e-9}) {
    std::vector<double> left;
    SweepSettings settings;
    settings.seconds_of_pass = seconds;
    const study::SweepResult result = sweep_by(
        planned,
        [&](const scenario::Scenario& scenario, routing::RoutingCache& cache) {
          Outcome outcome = study::evaluate(scenario, cache);
          left.push_back(cache.seconds_left().value());
          return outcome;
        },
        settings);
    REQUIRE(left.size() == 20);
    CHECK((left.front() > 0) == (seconds > 0));
    CHECK(left.back() == 0);
    for (std::size_t row = 0; row < planned.size(); ++row) {
      if (rows.size() < planned.size()) rows.push_back(*result.rows[row]);
      CHECK(result.rows[row] == rows[row]);
    }
  }
}
