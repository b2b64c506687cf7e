#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/profile/estimate.hpp"
#include "sim/profile/predict.hpp"
#include "sim/profile/profile.hpp"
#include "sim/uncertainty/software/step_software.hpp"
#include "tools/moesim/predict/predict_exchange.hpp"

namespace moesim::tool {

// Parameters of a query, texts as users type them.
using QueryParams = std::map<std::string, std::string>;

struct QueryAnswer {
  std::string op;
  QueryParams params;  // with what followed from the others
  profile::Estimate estimate;
  std::string provenance;
  // Of an exchange whose ranks end at different times: when each does. Empty: all take time_us.
  std::vector<double> rank_finish_us;
  double lower_us = 0;   // of an exchange by the port bound: the time is certain to lie between;
  double upper_us = 0;   // else 0
  bool crosses = false;  // of an exchange: its ranks lie in several domains
  uncertainty::ExchangeSize size;  // of an exchange
  std::string refusal;             // why there is no answer; empty: there is one
  // The columns note and id of a file of queries, in their order, with the cells of this row.
  std::vector<std::pair<std::string, std::string>> passed_through;
};

// The columns that answers add to their queries, and the cells of one: shortest texts that read
// back to the same doubles.
const std::vector<std::string>& answer_columns();
std::vector<std::string> answer_cells(const QueryAnswer& answer);

// The bus bandwidth as nccl-tests prints it, in GB/s, for an exchange of equal blocks whose time is
// one number. Its column comes last of those of answers, where one of them has it.
std::optional<double> bus_bandwidth(const QueryAnswer& answer);
bool has_bus_bandwidth(const std::vector<QueryAnswer>& answers);
inline constexpr const char* bus_column = "busbw_gb_per_s";
std::string bus_cell(const QueryAnswer& answer);  // "": it has none

// Whether an operation, asked with these parameters, exchanges between GPUs.
bool is_exchange(const std::string& op, const QueryParams& params);
// What an operation takes: its own parameters, an exchange those of a cluster, and "profile".
std::vector<std::string> parameters_of(const profile::PredictedOperation& op);
// The parameters of all operations, without "profile".
std::set<std::string> all_parameters();
bool is_text_parameter(const std::string& parameter);
// Throws UsageError under the name of the flag or cell that the text came from.
void check_parameter(const std::string& name, const std::string& text, const std::string& what);

// What answers queries: profiles, and for exchanges on a cluster a predictor beside each.
class QuerySource {
 public:
  // `profile` answers queries that name none; "": the default one.
  explicit QuerySource(const std::string& profile);

  // Throws UsageError and Error as profile::predict(), ExchangePredictor and predict_dispatch().
  QueryAnswer ask(const std::string& op, QueryParams params);

 private:
  struct Answering {
    std::shared_ptr<const profile::Profile> profile;
    ExchangePredictor exchanges;
    // A document of moesim calibrate with measured exchanges: these are scaled by it.
    std::optional<uncertainty::StepSoftware> software;
  };
  Answering& answering(const std::string& profile);

  std::string profile_;
  std::map<std::string, Answering> opened_;
};

}  // namespace moesim::tool
