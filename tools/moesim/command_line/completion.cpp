#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/algorithm/string/replace.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/output.hpp"

namespace moesim::tool {
namespace {

// A shell's single-quoted text.
std::string quoted(const std::string& text) {
  return "'" + boost::replace_all_copy(text, "'", "'\\''") + "'";
}

constexpr std::string_view capitals = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";
// Any file, among words.
constexpr const char* any_file = "FILE";

bool names_file(const Flag& flag) {
  return flag.value.find(any_file) != std::string::npos ||
         flag.value.find("FOLDER") != std::string::npos;
}

// "+fr" is a suffix of another value; what has spaces is a description.
bool is_value(std::string_view word) {
  return !word.empty() && word.find_first_of("[]|. ") == std::string_view::npos && word[0] != '+';
}

// What may be typed of one form: "random" and "random:balanced" for "random[:balanced]", "zipf:"
// for "zipf:A", where a number is to follow, "trace:FILE".
std::vector<std::string> typed_forms(std::string_view form) {
  std::vector<std::string> forms;
  const std::size_t bracket = form.find('[');
  std::string whole(form.substr(0, bracket));
  if (bracket != std::string_view::npos) {
    forms.push_back(whole);
    const std::size_t end = form.find_first_of("[]", bracket + 1);
    whole += form.substr(bracket + 1, end - bracket - 1);
  }
  const std::size_t capital = whole.find_first_of(capitals);
  const bool is_open = capital != std::string::npos;
  if (is_open && whole.substr(capital) != any_file) whole.resize(capital);
  if (!is_open || whole.find(':') != std::string::npos) forms.push_back(whole);
  return forms;
}

// "top1" to "top8" of "top1, ..., topk": most models choose no more.
constexpr int most_counted = 8;

// What may be typed of a choice as help texts have it, which may be several: "ring, tree".
std::vector<std::string> typed_choice(const std::string& choice) {
  const std::size_t dots = choice.find("1, ..., ");
  std::vector<std::string> forms;
  if (dots != std::string::npos) {
    for (int count = 1; count <= most_counted; ++count) {
      forms.push_back(fmt::format("{}{}", choice.substr(0, dots), count));
    }
    return forms;
  }
  for (const std::string_view part : split(choice, ',')) {
    const std::vector<std::string> more = typed_forms(part.substr(part.starts_with(' ') ? 1 : 0));
    forms.insert(forms.end(), more.begin(), more.end());
  }
  return forms;
}

// Shipped documents, and the default, which need not be one: all-to-all of --dispatcher.
std::vector<std::string> documents_of(const Flag& flag) {
  struct Shipped {
    const char* flag;
    const char* kind;
  };
  constexpr Shipped documents[] = {{"model", "models"},           {"profile", "hardware"},
                                   {"base", "hardware"},          {"cluster", "clusters"},
                                   {"dispatcher", "dispatchers"}, {"accuracy", "studies"}};
  for (const Shipped& document : documents) {
    if (flag.name != document.flag) continue;
    std::vector<std::string> names = shipped_names(document.kind);
    if (flag.default_text != "none") names.push_back(flag.default_text);
    return names;
  }
  return {};
}

// Nothing where a document that has them is missing.
std::vector<std::string> asked(const Words& words) {
  try {
    return words ? words() : std::vector<std::string>();
  } catch (const Error&) {
    return {};
  }
}

// "FILE" among them: any file, "trace:FILE" one behind "trace:". Empty: nobody can list them.
std::vector<std::string> values_of(const Flag& flag) {
  std::vector<std::string> found = documents_of(flag);
  for (const scenario::NamedValue& choice : flag.choices) {
    const std::vector<std::string> forms = typed_choice(choice.name);
    found.insert(found.end(), forms.begin(), forms.end());
  }
  const std::vector<std::string> words = asked(flag.words);
  found.insert(found.end(), words.begin(), words.end());
  // "train|prefill".
  if (found.empty()) {
    for (const std::string_view word : split(flag.value, '|')) {
      if (word.find_first_of(capitals) == std::string_view::npos) found.emplace_back(word);
    }
  }
  if (names_file(flag)) found.emplace_back(any_file);
  std::vector<std::string> values;
  for (const std::string& word : found) {
    const bool is_new = std::find(values.begin(), values.end(), word) == values.end();
    if (is_new && is_value(word)) values.push_back(word);
  }
  return values;
}

// Those without dashes.
std::vector<std::string> arguments_of(const Command& command) {
  if (command.max_positionals == 0) return {};
  return command.words ? asked(command.words) : std::vector<std::string>{any_file};
}

std::string bash_case(const Command& command) {
  std::vector<std::string> flags;
  std::string cases;
  for (const Flag& flag : flags_of(command)) {
    flags.push_back("--" + flag.name);
    if (flag.value.empty()) continue;
    const std::vector<std::string> values = values_of(flag);
    cases += fmt::format("        --{}) values='{}' ;;\n", flag.name,
                         values.empty() ? "ANY" : fmt::format("{}", fmt::join(values, " ")));
  }
  std::string text = fmt::format("    {})\n      flags='{}' arguments='{}'\n", command.name,
                                 fmt::join(flags, " "), fmt::join(arguments_of(command), " "));
  if (!cases.empty()) text += "      case $previous in\n" + cases + "      esac\n";
  return text + "      ;;\n";
}

// bash makes words of their own of ':' and '='. Its `compopt` is missing in zsh, and fails outside
// of a completion.
std::string bash() {
  std::vector<std::string> names;
  std::string cases;
  for (const Command& command : all_commands()) {
    names.push_back(command.name);
    cases += bash_case(command);
  }
  return fmt::format(
      R"(# bash completion of moesim, made by 'moesim completion bash'
_moesim() {{
  local at=$COMP_CWORD flags='' arguments='' values='' option='' stem=''
  local current=${{COMP_WORDS[at]}}
  while [ "$at" -gt 1 ] && [[ ${{COMP_WORDS[at]}} == [:=]* || ${{COMP_WORDS[at-1]}} == [:=] ]]; do
    at=$((at - 1))
    current=${{COMP_WORDS[at]}}$current
  done
  local previous=${{COMP_WORDS[at-1]}}
  if [[ $current == --*=* ]]; then
    option=${{current%%=*}}
    previous=$option
    current=${{current#*=}}
  fi
  if [ "$at" -eq 1 ]; then
    COMPREPLY=($(compgen -W 'help --help --version {0}' -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
    help) arguments='{0}' ;;
{1}  esac
  if [ -z "$values" ]; then
    values=$arguments
    if [[ $current == -* || -z $arguments ]]; then values=$flags; fi
  fi
  stem=${{current%"${{current##*:}}"}}
  COMPREPLY=()
  if [ "$values" != ANY ]; then
    COMPREPLY=($(compgen -W "${{values//FILE/}}" -- "$current"))
  fi
  case " $values " in
    *" FILE "*) COMPREPLY+=($(compgen -f -- "$current")) ;;
    *" ${{stem:-none:}}FILE "*) COMPREPLY=($(compgen -P "$stem" -f -- "${{current#"$stem"}}")) ;;
    *) compopt +o filenames 2>/dev/null ;;
  esac
  if [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *: ]]; then
    compopt -o nospace 2>/dev/null
  fi
  if [[ $COMP_WORDBREAKS == *:* ]]; then
    COMPREPLY=("${{COMPREPLY[@]#"$stem"}}")
  fi
  if [[ -n $option && $COMP_WORDBREAKS != *=* ]]; then
    COMPREPLY=("${{COMPREPLY[@]/#/$option=}}")
  fi
}}
complete -o filenames -F _moesim moesim
)",
      fmt::join(names, " "), cases);
}

// The words of a list for fish, "trace:" of "trace:FILE".
std::string fish_words(const std::vector<std::string>& words) {
  const std::string all = fmt::format("{}", fmt::join(words, " "));
  return quoted(boost::replace_all_copy(all, any_file, ""));
}

bool has_files(const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), any_file) != words.end();
}

std::string fish() {
  std::string text = "# fish completion of moesim, made by 'moesim completion fish'\n";
  for (const Command& command : all_commands()) {
    text += fmt::format("complete -c moesim -n __fish_use_subcommand -f -a {} -d {}\n",
                        command.name, quoted(command.summary));
    const std::string of_command =
        fmt::format("complete -c moesim -n '__fish_seen_subcommand_from {}'", command.name);
    const std::vector<std::string> arguments = arguments_of(command);
    text += fmt::format("{} {} -a {}\n", of_command, has_files(arguments) ? "-F" : "-f",
                        fish_words(arguments));
    for (const Flag& flag : flags_of(command)) {
      const std::vector<std::string> values = values_of(flag);
      text += fmt::format("{} -l {}{}", of_command, flag.name,
                          flag.value.empty()  ? ""
                          : has_files(values) ? " -r -F"
                                              : " -x");
      if (!values.empty()) text += " -a " + fish_words(values);
      text += fmt::format(" -d {}\n", quoted(flag.help));
    }
  }
  return text;
}

// zsh runs bash's by its own emulation.
std::string zsh() {
  return "#compdef moesim\n# zsh completion of moesim, made by 'moesim completion zsh'\n"
         "autoload -U +X bashcompinit && bashcompinit\n" +
         bash();
}

// roff: a line must not begin with a dot or a quote, and a backslash is two.
std::string roff(std::string text) {
  boost::replace_all(text, "\\", "\\\\");
  boost::replace_all(text, "-", "\\-");
  boost::replace_all(text, "\n.", "\n\\&.");
  boost::replace_all(text, "\n'", "\n\\&'");
  return text.starts_with('.') || text.starts_with('\'') ? "\\&" + text : text;
}

std::string manual() {
  std::string text = fmt::format(
      ".TH MOESIM 1 \"\" \"moesim {0}\" \"User commands\"\n.SH NAME\nmoesim \\- step times and "
      "token loss of "
      "Mixture\\-of\\-Experts models on GPU clusters\n.SH SYNOPSIS\n.B moesim\n.I command\n.RI [ "
      "options ]\n"
      ".SH DESCRIPTION\nPredicts how long a step of a Mixture\\-of\\-Experts model takes on a GPU "
      "cluster, and how "
      "many tokens its router loses.\n.SH COMMANDS\n",
      MOESIM_VERSION);
  for (const Command& command : all_commands()) {
    text += fmt::format(".SS moesim {} {}\n{}.\n", command.name, roff(command.usage),
                        roff(command.summary));
    if (!command.details.empty()) text += roff(command.details);
    text += fmt::format(".PP\nExample:\n.PP\n.nf\n    {}\n.fi\n", roff(command.example));
    for (const Flag& flag : flags_of(command)) {
      text += fmt::format(
          ".TP\n.B \\-\\-{}{}\n{}{}\n", roff(flag.name),
          flag.value.empty() ? "" : " " + roff(flag.value), roff(flag.help),
          flag.default_text.empty() ? "" : roff(fmt::format(" [{}]", flag.default_text)));
      for (const scenario::NamedValue& choice : flag.choices) {
        text += fmt::format(".br\n{}: {}\n", roff(choice.name), roff(choice.meaning));
      }
    }
  }
  return text +
         ".SH EXIT STATUS\n0 ok, 1 failure, 2 usage, 3 missing hardware or driver, 4 verification "
         "failed, 5 quality "
         "bar not met, 124 timeout, 130 interrupted (what is finished is saved by sweep, by train "
         "of several "
         "steps and by profile).\n";
}

struct Kind {
  const char* name;
  std::string (*text)();
};
constexpr Kind kinds[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}, {"man", manual}};

std::vector<std::string> kind_names() {
  std::vector<std::string> names;
  for (const Kind& kind : kinds) names.emplace_back(kind.name);
  return names;
}

ExitCode run(const CommandLine& line) {
  const std::string asked = line.positionals.empty() ? "" : line.positionals.front();
  const Output out(line.get("out"));
  for (const Kind& kind : kinds) {
    if (asked != kind.name) continue;
    out.write(kind.text());
    return ExitCode::ok;
  }
  throw UsageError(asked.empty() ? fmt::format("completion: for what? choose from {}",
                                               fmt::join(kind_names(), ", "))
                                 : fmt::format("completion: unknown '{}'; choose from {}", asked,
                                               fmt::join(kind_names(), ", ")));
}

}  // namespace

Command completion_command() {
  return {"completion",
          "shell completion for bash, zsh and fish, and the manual page",
          "bash|zsh|fish|man [--out FILE]",
          "moesim completion bash > ~/.local/share/bash-completion/completions/moesim",
          {out_flag()},
          false,
          1,
          run,
          "Of the options that this program has; nothing to keep in step by hand.\n",
          false,
          kind_names};
}

}  // namespace moesim::tool
