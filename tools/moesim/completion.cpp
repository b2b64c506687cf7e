#include <fmt/format.h>
#include <fmt/ranges.h>

#include <boost/algorithm/string/replace.hpp>
#include <string>
#include <vector>

#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"
#include "tools/moesim/command.hpp"
#include "tools/moesim/output.hpp"

namespace moesim::tool {
namespace {

// A shell's single-quoted text.
std::string quoted(const std::string& text) {
  return "'" + boost::replace_all_copy(text, "'", "'\\''") + "'";
}

bool names_file(const Flag& flag) {
  return flag.value.find("FILE") != std::string::npos ||
         flag.value.find("FOLDER") != std::string::npos;
}

// Whether it can be typed as it is: "gaussian:SIGMA" is a form, "+fr" a suffix.
bool is_value(std::string_view name) {
  return name.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ[]|. ") == std::string_view::npos &&
         !name.starts_with('+');
}

// Of documents those that are shipped.
std::vector<std::string> values_of(const Flag& flag) {
  struct Shipped {
    const char* flag;
    const char* kind;
  };
  constexpr Shipped documents[] = {
      {"model", "models"}, {"profile", "hardware"}, {"cluster", "clusters"}};
  std::vector<std::string> values;
  for (const Shipped& document : documents) {
    if (flag.name == document.flag) values = shipped_names(document.kind);
  }
  for (const scenario::NamedValue& choice : flag.choices) {
    if (is_value(choice.name)) values.push_back(choice.name);
  }
  // "train|prefill".
  if (values.empty() && flag.value.find('|') != std::string::npos) {
    for (const std::string_view word : split(flag.value, '|')) {
      if (is_value(word)) values.emplace_back(word);
    }
  }
  return values;
}

// "FILE" and "ANY" stand for values that nobody can list.
std::string value_words(const Flag& flag) {
  const std::vector<std::string> values = values_of(flag);
  if (!values.empty()) return fmt::format("'{}'", fmt::join(values, " "));
  return names_file(flag) ? "FILE" : "ANY";
}

std::string bash_case(const Command& command) {
  std::vector<std::string> flags;
  std::string cases;
  for (const Flag& flag : flags_of(command)) {
    flags.push_back("--" + flag.name);
    if (flag.value.empty()) continue;
    cases += fmt::format("        --{}) values={} ;;\n", flag.name, value_words(flag));
  }
  std::string text =
      fmt::format("    {})\n      flags='{}'\n", command.name, fmt::join(flags, " "));
  if (!cases.empty()) text += "      case $previous in\n" + cases + "      esac\n";
  return text + "      ;;\n";
}

std::string bash() {
  std::vector<std::string> names{"help", "--help", "--version"};
  std::string cases;
  for (const Command& command : all_commands()) {
    names.push_back(command.name);
    cases += bash_case(command);
  }
  return fmt::format(
      R"(# bash completion of moesim, made by 'moesim completion bash'
_moesim() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} flags='' values=''
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{}' -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{}  esac
  case $values in
    '')
      if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$current"))
      else
        COMPREPLY=($(compgen -f -- "$current"))
      fi
      ;;
    FILE) COMPREPLY=($(compgen -f -- "$current")) ;;
    ANY) COMPREPLY=() ;;
    *) COMPREPLY=($(compgen -f -W "$values" -- "$current")) ;;
  esac
}}
complete -o filenames -F _moesim moesim
)",
      fmt::join(names, " "), cases);
}

std::string fish() {
  std::string text = "# fish completion of moesim, made by 'moesim completion fish'\n";
  for (const Command& command : all_commands()) {
    text += fmt::format("complete -c moesim -n __fish_use_subcommand -f -a {} -d {}\n",
                        command.name, quoted(command.summary));
    for (const Flag& flag : flags_of(command)) {
      text += fmt::format("complete -c moesim -n '__fish_seen_subcommand_from {}' -l {}{}",
                          command.name, flag.name,
                          flag.value.empty() ? ""
                          : names_file(flag) ? " -r -F"
                                             : " -x");
      const std::vector<std::string> values = values_of(flag);
      if (!values.empty())
        text += fmt::format(" -a {}", quoted(fmt::format("{}", fmt::join(values, " "))));
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

ExitCode run(const CommandLine& line) {
  struct Kind {
    const char* name;
    std::string (*text)();
  };
  constexpr Kind kinds[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}, {"man", manual}};
  const std::string asked = line.positionals.empty() ? "" : line.positionals.front();
  const Output out(line.get("out"));
  for (const Kind& kind : kinds) {
    if (asked != kind.name) continue;
    out.write(kind.text());
    return ExitCode::ok;
  }
  throw UsageError(
      asked.empty()
          ? std::string("completion: for what? choose from bash, zsh, fish, man")
          : fmt::format("completion: unknown '{}'; choose from bash, zsh, fish, man", asked));
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
          "Of the options that this program has; nothing to keep in step by hand.\n"};
}

}  // namespace moesim::tool
