#include "tools/moesim/megatron/megatron_gpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "sim/base/text.hpp"
#include "sim/job/job_options.hpp"
#include "tools/moesim/base/output.hpp"

namespace moesim::tool {
namespace {

using model::MegatronArguments;

constexpr const char* of_torchrun = "nproc-per-node";
constexpr const char* gpus_option = "gpus";

constexpr const char* of_launchers[] = {of_torchrun,      "nnodes", "num-gpus", "num-nodes",
                                        "num-processes",  "np",     "gpus",     "gpus-per-node",
                                        "gpus-per-task",  "gres",   "ntasks",   "nodes",
                                        "ntasks-per-node"};

// 8 in "8", "gpu:8", "gpu:h100:8" and "nvme:1,gpu:h100:8", 1 in "gpu"; nothing without a number.
std::optional<std::int64_t> gpus_in(const MegatronArguments& given, const char* argument) {
  const auto text = given.known_text(argument);
  if (!text) return std::nullopt;
  std::string_view found = *text;
  for (const std::string_view field : split(*text, ',')) {
    if (field.substr(0, 3) == "gpu") found = field;
  }
  if (found == "gpu") return std::string_view(argument) == "gres" ? std::optional(1) : std::nullopt;
  return parse_number<std::int64_t>(std::string(found.substr(found.rfind(':') + 1)));
}

// 8 of Slurm's "--nodes=8-8" and of torchrun's "--nnodes=8:8", the least and the most of them.
std::optional<std::int64_t> nodes_in(const MegatronArguments& given, const char* argument,
                                     char between) {
  const auto text = given.known_text(argument);
  const auto sign = text ? text->find(between) : std::string::npos;
  if (sign == std::string::npos) return given.size(argument);
  const auto least = parse_number<std::int64_t>(text->substr(0, sign));
  const auto most = parse_number<std::int64_t>(text->substr(sign + 1));
  if (least && most && *least >= 1 && *least < *most) {
    given.fail(argument, fmt::format("'{}' may be {} nodes or {}: put their number there, or give "
                                     "--gpus",
                                     *text, *least, *most));
  }
  return least && least == most ? least : given.size(argument);
}

std::optional<std::int64_t> product(std::optional<std::int64_t> left,
                                    std::optional<std::int64_t> right) {
  constexpr std::int64_t most = std::int64_t{1} << 31;
  if (!left || !right || *left < 1 || *right < 1 || *left > most || *right > most) {
    return std::nullopt;
  }
  return *left * *right;
}

std::int64_t nodes_of(const MegatronArguments& given) {
  const bool is_slurm = given.has("nodes") && !given.known_text("nnodes");
  const auto nodes = is_slurm ? nodes_in(given, "nodes", '-') : nodes_in(given, "nnodes", ':');
  return nodes.value_or(1);
}

std::optional<std::int64_t> tasks_of(const MegatronArguments& given) {
  if (const auto tasks = gpus_in(given, "ntasks")) return tasks;
  return product(nodes_of(given), gpus_in(given, "ntasks-per-node"));
}

// GPUs by name; not tasks, which may be one on each node.
std::optional<std::int64_t> slurm_gpus(const MegatronArguments& given) {
  if (const auto all = gpus_in(given, "gpus")) return all;
  for (const char* argument : {"gpus-per-node", "gres"}) {
    if (const auto each = gpus_in(given, argument)) return product(nodes_of(given), each);
  }
  if (const auto each = gpus_in(given, "gpus-per-task")) return product(tasks_of(given), each);
  return std::nullopt;
}

std::optional<std::int64_t> ranks_of_tasks(const MegatronArguments& given) {
  const auto tasks = tasks_of(given);
  const bool is_one_each = tasks && given.has("nodes") && *tasks == nodes_of(given);
  return is_one_each && *tasks > 1 ? std::nullopt : tasks;
}

// The processes that launchers start which say so themselves.
std::optional<std::int64_t> processes(const MegatronArguments& given) {
  if (const auto each = gpus_in(given, of_torchrun)) return product(nodes_of(given), each);
  if (given.has(of_torchrun)) {
    if (const auto gpus = slurm_gpus(given)) return gpus;
    const auto each = given.text(of_torchrun);  // throws for a variable
    if (!each) return std::nullopt;
    given.fail(of_torchrun, fmt::format("'{}': the file does not say how many GPUs a node has: "
                                        "put their number there, or give --gpus",
                                        *each));
  }
  if (const auto each = gpus_in(given, "num-gpus")) {
    if (given.has("hostfile") && !given.has("num-nodes")) {
      given.fail("num-gpus", fmt::format("{} are those of a node, and the nodes are in a file that "
                                         "is not read (--hostfile): add --num_nodes N, or give "
                                         "--gpus",
                                         *each));
    }
    return product(given.size("num-nodes").value_or(1), each);
  }
  for (const char* argument : {"num-processes", "np"}) {
    if (given.has(argument)) return given.size(argument);
  }
  return std::nullopt;
}

std::string default_gpus() {
  const auto& options = job::job_options();
  const auto found = std::find_if(options.begin(), options.end(),
                                  [](const auto& each) { return each.name == gpus_option; });
  return found == options.end() ? "" : found->default_text;
}

}  // namespace

bool is_of_launcher(const std::string& argument) {
  return std::find(std::begin(of_launchers), std::end(of_launchers), argument) !=
         std::end(of_launchers);
}

bool tells_gpus(const MegatronArguments& given) {
  return std::any_of(std::begin(of_launchers), std::end(of_launchers),
                     [&](const char* argument) { return given.has(argument); });
}

void take_gpus(MegatronInput& input) {
  const MegatronArguments& given = input.given;
  for (const char* argument : of_launchers) given.has(argument);  // some stand beside others
  if (input.typed(gpus_option)) return;
  std::optional<std::int64_t> gpus = processes(given);
  if (!gpus) gpus = slurm_gpus(given);
  if (!gpus) gpus = ranks_of_tasks(given);
  if (gpus) {
    input.options[gpus_option] = fmt::format("{}", *gpus);
    return;
  }
  note(fmt::format("note: {}: it does not say how many GPUs there are: --gpus {}, the default",
                   given.name(), default_gpus()));
}

}  // namespace moesim::tool
