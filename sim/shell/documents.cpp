#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "sim/shell/reader.hpp"

namespace moesim::shell {
namespace {

constexpr const char* batch_line = "#SBATCH";

// Options that say how many GPUs, nodes and processes there are.
struct ShortOption {
  std::string_view letters;
  const char* name;
};
constexpr ShortOption of_slurm[] = {{"-N", "--nodes"}, {"-n", "--ntasks"}, {"-G", "--gpus"}};
constexpr ShortOption of_deepspeed[] = {{"-H", "--hostfile"}};
constexpr ShortOption of_mpi[] = {{"-np", "--np"}, {"-n", "--np"}};

std::span<const ShortOption> short_options(const std::string& word) {
  const std::string program = word.substr(word.rfind('/') + 1);
  if (program == "srun" || program == "sbatch" || program == "salloc") return of_slurm;
  if (program == "deepspeed") return of_deepspeed;
  if (program == "mpirun" || program == "mpiexec") return of_mpi;
  return {};
}

bool is_program_word(std::string_view word) {
  for (const std::string_view end : {"python", "python3", "torchrun", "bash", ".py", ".sh"}) {
    if (word.size() >= end.size() && word.substr(word.size() - end.size()) == end) return true;
  }
  return false;
}

}  // namespace

void Reader::spell_out_short_options() {
  std::span<const ShortOption> known = short_options(is_batch_ ? "sbatch" : "");
  for (Word& each : words()) {
    std::string& word = each.text;
    if (is_program_word(word)) return;               // options behind it are its own
    if (known.empty()) known = short_options(word);  // also behind "env", "timeout 60"
    for (const ShortOption& option : known) {
      if (word.rfind(option.letters, 0) != 0) continue;
      const std::string value = word.substr(option.letters.size());
      if (!value.empty() && std::isdigit(static_cast<unsigned char>(value.front())) == 0) continue;
      word = option.name;
      if (!value.empty()) word.append("=").append(value);
      break;
    }
  }
}

std::string Reader::batch_value(const std::string& option) {
  const std::vector<Word>& all = words();
  for (std::size_t at = 0; at < all.size(); ++at) {
    const std::string& word = all[at].text;
    if (word.rfind(option + "=", 0) == 0) return word.substr(option.size() + 1);
    if (word == option && at + 1 < all.size()) return all[at + 1].text;
  }
  return "";
}

void Reader::set_batch_variables() {
  const auto set = [&](const std::string& value, std::initializer_list<const char*> names) {
    if (value.empty()) return;
    for (const char* name : names) {
      replace(name, {{Text(value, line())}});
      whole_.exported.insert(name);
    }
  };
  const auto number = [](std::string text) {  // 8 of "gpu:h100:8,nvme:1"
    const auto gpus = text.find("gpu");
    if (gpus != std::string::npos) text.erase(0, gpus);
    text = text.substr(0, text.find(','));
    return text.substr(text.rfind(':') + 1);
  };
  set(batch_value("--nodes"), {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
  set(batch_value("--ntasks"), {"SLURM_NTASKS", "SLURM_NPROCS"});
  set(batch_value("--ntasks-per-node"), {"SLURM_NTASKS_PER_NODE"});
  set(number(batch_value("--gres")), {"SLURM_GPUS_ON_NODE"});
  set(number(batch_value("--gpus-per-node")), {"SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"});
}

void Reader::skip_comment() {
  const std::string batch = batch_line;
  if (is_header_ && script_.letters.compare(at_, batch.size(), batch) == 0) {
    at_ += batch.size();
    is_batch_ = true;
    return;
  }
  while (at_ < script_.size() && here() != '\n') ++at_;
}

void Reader::begin_document() {
  at_ += 2;
  if (here() == '<') {
    ++at_;
    return;
  }
  if (here() == '-') ++at_;
  while (here() == ' ' || here() == '\t') ++at_;
  document_is_quoted_ = false;
  document_is_comment_ = runs_not() || is_comment_document();
  for_document_ = for_command_;
  document_outer_ = command_ == Command::no_command ? outer_ : command_;
  while (is_name(here()) || here() == '"' || here() == '\'' || here() == '\\') {
    if (is_name(here())) {
      document_end_ += here();
    } else {
      document_is_quoted_ = true;
    }
    ++at_;
  }
}

bool Reader::is_comment_document() const {
  static const std::set<std::string> without_input = {":", "true", "false", "echo", "export"};
  if (!program().empty()) return without_input.contains(program());
  // "<<EOF" alone.
  const auto text =
      script_.letters.find_first_not_of(" \t\"'", script_.letters.find_first_of(" \t\n", at_));
  return text == std::string::npos || script_.letters[text] == '\n';
}

Text Reader::document_text() {
  const std::string end = std::exchange(document_end_, "");
  const std::size_t first = at_;
  while (at_ < script_.size()) {
    const std::size_t begin = at_;
    const std::size_t stop = std::min(script_.letters.find('\n', at_), script_.size());
    const auto text = script_.letters.find_first_not_of('\t', at_);
    at_ = std::min(stop + 1, script_.size());
    const bool is_end = text < stop && script_.letters.compare(text, stop - text, end) == 0;
    if (is_end) return script_.part(first, begin);
  }
  return script_.part(first, script_.size());
}

void Reader::take_document() {
  Text body = document_text();
  if (nesting_ == deepest || document_is_comment_ || runs_not()) return;
  if (!document_is_quoted_) body = without_backslashes(body);
  const auto prepare = [&](Reader& inner) {
    inner.outer_ = document_outer_;
    inner.is_document_ = true;
    inner.fills_quotes_ = !document_is_quoted_;
    if (document_is_quoted_) inner.assign(for_document_);
  };
  read_inner(body, prepare);
}

void Reader::read_inner(const Text& text, const std::function<void(Reader&)>& prepare) {
  const std::size_t before = whole_.commands.size();
  const auto read = [&](const Text& script) {
    Reader inner(whole_, script, variables_);
    inner.nesting_ = nesting_ + 1;
    inner.frames_.front().runs = runs();
    inner.frames_.front().cause = frames_.back().cause_now();
    inner.is_called_ = is_called_;
    inner.repeats_ = repeats_ || frames_.back().repeats;
    inner.output_ = output_;
    prepare(inner);
    inner.read();
    if (inner.keeps_variables_) variables_ = inner.variables_;
  };
  try {
    read(text);
  } catch (const OpenQuote&) {
    whole_.commands.resize(before);
    Text without;
    for (std::size_t at = 0; at < text.size(); ++at) {
      const char letter = text.letters[at];
      if (letter != '"' && letter != '\'') without.add(letter, text.lines[at]);
    }
    read(without);
  }
}

void Reader::evaluate(const Text& text) {
  if (nesting_ == deepest) return;
  const OldValues hidden = assign(for_command_);
  read_inner(text, [&](Reader& inner) {
    inner.outer_ = command_;
    inner.is_text_ = true;
    inner.keeps_variables_ = true;
  });
  restore(hidden);
}

void Reader::add_text(const Text& text, bool is_of_other) {
  if (nesting_ == deepest || runs_not()) return;
  const auto prepare = [&](Reader& inner) {
    inner.outer_ = command_;
    inner.is_text_ = true;
    if (is_of_other) inner.variables_ = std::make_shared<Variables>(exported());
    inner.assign(for_command_);
  };
  read_inner(text, prepare);
}

Variables Reader::exported() const {
  Variables all;
  for (const auto& [name, value] : *variables_) {
    if (name == working_folder || whole_.exported.contains(name)) all.emplace(name, value);
  }
  return all;
}

void Reader::note_export(const std::string& name) {
  if (runs_not()) return;
  bool exports = whole_.exports_all || program() == "export";
  if (!exports && is_list_of_names_) {
    const std::vector<Word>& all = words();
    exports = std::any_of(all.begin(), all.end(), [](const Word& word) {
      return word.text.rfind('-', 0) == 0 && word.text.find('x') != std::string::npos;
    });
  }
  if (exports) whole_.exported.insert(name);
}

}  // namespace moesim::shell
