#include "tools/moesim/base/drawn_chart.hpp"

#include <filesystem>

#include "sim/base/file.hpp"
#include "tools/moesim/base/process.hpp"
#include "tools/moesim/base/temporary_file.hpp"

namespace moesim::tool {

int draw_chart(std::vector<std::string> words, const std::string& out) {
  words.emplace_back("--out");
  if (!is_special_file(out)) {
    words.push_back(out);
    return run_process(words, false);
  }
  // The plotter renames what it has written, and its stdout is not this one. Its file's name says
  // which kind of chart it is.
  const TemporaryFile drawn("", std::filesystem::path(out).extension().string());
  words.push_back(drawn.path());
  const int code = run_process(words, false);
  if (code == 0) write_file_atomically(out, read_file(drawn.path()));
  return code;
}

}  // namespace moesim::tool
