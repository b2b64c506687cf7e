#include "sim/study/validation/training/smartmoe_rows.hpp"

#include <fmt/format.h>

namespace moesim::study {

bool has_no_capacity(const CsvTable& table, std::size_t row) {
  return table.text(row, "capacity_factor") == "inf";
}

SmartMoeRow smartmoe_row(const CsvTable& table, std::size_t row) {
  const std::string system = table.text(row, "system");
  const std::string factor = table.text(row, "capacity_factor");
  SmartMoeRow made;
  made.subject = fmt::format("{}, {}, library CF {}", system, table.text(row, "gate"), factor);
  if (table.text(row, "pp") != "1") {
    made.refusal = "pipeline parallelism is not simulated";
  } else if (has_no_capacity(table, row)) {
    made.refusal = "no capacity: the load of each expert is not in the logs";
  } else if (table.text(row, "smart_sched") == "ON") {
    made.refusal = "its scheduler overlaps exchanges with expert compute";
  }
  const bool deepspeed = system == "deepspeed";
  made.options = {
      {"profile", "a100-sxm-80gb"},
      {"cluster", "dgx-a100"},
      {"model", deepspeed ? "gpt-l16-h2560-moe16-alternate" : "gpt-l16-h2560-moe16"},
      {"gpus", "16"},
      {"expert-parallel", "16"},
      {"router", "top" + table.text(row, "topk")},
      {"capacity-factor", factor},
      {"capacity-convention", "library"},
      {"priority", "position"},
      {"dispatch", deepspeed ? "einsum" : "index"},
      {"sequence-length", table.text(row, "seq")},
      {"micro-batch", table.text(row, "mbs")},
      {"global-batch", table.text(row, "gbs")},
      {"padding", deepspeed ? "capacity" : "none"},  // FastMoE sends the rows it kept
      {"zero", deepspeed ? "1" : "0"},
      {"replicas", "4"},
  };
  return made;
}

}  // namespace moesim::study
