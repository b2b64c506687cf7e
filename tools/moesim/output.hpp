#pragma once

#include <span>
#include <string>

#include "sim/report/formats.hpp"
#include "sim/scenario/options.hpp"
#include "tools/moesim/command.hpp"

namespace moesim::tool {

// One line to stderr: stdout is for results alone.
void note(const std::string& text);

// While one lives, note() says each line once: of many runs that have the same to say.
class EachNoteOnce {
 public:
  EachNoteOnce();
  ~EachNoteOnce();
  EachNoteOnce(const EachNoteOnce&) = delete;  // note() knows one of them
  EachNoteOnce& operator=(const EachNoteOnce&) = delete;
};

// Says what of a model's config.json is not counted, such as a vision tower; `name` is as typed.
void note_left_out(const model::Model& model, const std::string& name);

// One such line for each typed option that no scenario of the run has a use for.
void note_idle_options(const scenario::OptionValues& typed,
                       std::span<const scenario::Scenario* const> scenarios, scenario::Asker asker);

void note_idle_option(const scenario::IdleOption& idle);

// One such line where a capacity factor that was typed without a convention or dialect has fewer
// slots than a balanced load needs: often meant per routed token. Of a list only where k is 4 or
// more and less than half of that load fits.
void note_small_capacity(const scenario::OptionValues& typed,
                         std::span<const scenario::Scenario* const> scenarios);

// One such line for each router whose rule in a forward pass is another than in training.
void note_trained_routers(std::span<const scenario::Scenario* const> scenarios);

// Such lines for each recording and model, where a trace says what is not typed (experts, GPUs,
// tokens) or has fewer steps than the run replicas, and where a trace or counts have fewer layers
// or experts than the model; and for each router whose biases are trained on a --routing that was
// typed.
void note_scores(const scenario::OptionValues& typed,
                 std::span<const scenario::Scenario* const> scenarios);

// One such line, before it starts, for routing that takes a minute of CPU time or more, with how
// long and what takes less. Throws UsageError where one replica does not fit this machine's memory.
void note_costly_routing(const scenario::Scenario& scenario);
// The same of exact flows, where the scenario asks for them.
void note_costly_flows(const scenario::Scenario& scenario);

// Where a result goes: a file, written whole or not at all, or stdout.
class Output {
 public:
  // `path` empty: stdout. Throws Error at once if the file could not be written.
  explicit Output(std::string path);
  // Throws Error if not all of it could be written, but not for a closed pipe (| head).
  void write(const std::string& content) const;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Whether stdout is a pipe that was closed before all of a result was written.
bool reader_has_left();

// A help text on stdout; a reader that has seen enough (| head) is no error.
void show(const std::string& text);

// --format if typed, else what the name of the --out file says, else `fallback`.
report::Format chosen_format(const CommandLine& line, report::Format fallback);

Flag format_flag(const std::string& default_text = "table; csv or json if --out says so");
Flag out_flag();
Flag jobs_flag();
int chosen_jobs(const CommandLine& line);

}  // namespace moesim::tool
