#pragma once

#include <string>
#include <vector>

#include "sim/report/formats.hpp"
#include "sim/routing/tokens/losses.hpp"
#include "sim/study/sweep/result_row.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// The columns of `moesim route`, with the losses of router training if asked for.
std::vector<study::Column> loss_columns(bool with_training_losses);
// Appends the column `loss_basis` (routing::loss_basis(), a cell per row) where a row has one: of
// recorded routing without weights.
void add_basis(const std::vector<std::string>& bases, std::vector<study::Column>& columns,
               std::vector<report::CellRow>& rows);
// Appends the cells of these losses.
void add_losses(const routing::AuxiliaryLosses& losses, report::CellRow& row);
// Leaves out rows that repeat one before, and says how many: a grid has dropless once for each
// capacity factor.
void leave_repeats_out(std::vector<report::CellRow>& rows);
std::string render_rows(const std::vector<study::Column>& columns,
                        const std::vector<report::CellRow>& rows, report::Format format);

// `moesim route --logits`: every loss at each router and capacity factor; with --out FILE.npy the
// routes of one. Throws UsageError.
ExitCode route_file(const CommandLine& line);

}  // namespace moesim::tool
