#pragma once

#include <string>
#include <vector>

namespace moesim::tool {

// Runs a plotter, `words` with --out FILE behind them, which draws the chart `out`. A pipe, a
// device or a descriptor (/dev/stdout) is written to, not replaced. Returns what run_process()
// does. Throws Error where the chart is drawn and cannot be written there.
int draw_chart(std::vector<std::string> words, const std::string& out);

}  // namespace moesim::tool
