#include "sim/profile/dispatcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "sim/base/no_answer.hpp"
#include "sim/base/shipped.hpp"

namespace moesim::profile {
namespace {

constexpr const char* stage_names[] = {"dispatch", "combine"};

Ranged read_ranged(const Node& node) {
  const Ranged ranged{node.number("value"), node.number("low"), node.number("high")};
  if (!(ranged.low <= ranged.value && ranged.value <= ranged.high)) {
    node.fail("low and high must enclose value");
  }
  return ranged;
}

StageCost read_stage(const Node& node) {
  StageCost cost;
  cost.fixed_us = node.positive("fixed_us");
  cost.doubling_us = node.number_or("doubling_us", 0);
  cost.fill_us = node.number_or("fill_us", 0);
  cost.token_ns = node.number_or("token_ns", 0);
  cost.copy_ns = node.number_or("copy_ns", 0);
  cost.sm_bytes_per_us = node.number_or("sm_gb_per_s", 0) * 1e3;
  cost.expert_row_ns = node.number_or("expert_row_ns", 0);
  cost.link_efficiency = read_ranged(node.at("link_efficiency"));
  cost.factor = {1, node.at("factor").number("low"), node.at("factor").number("high")};
  if (!(cost.factor.low <= 1 && cost.factor.high >= 1)) {
    node.at("factor").fail("low and high must enclose 1");
  }
  if (!node.has("slow_sms")) return cost;
  for (const Node& slow : node.items("slow_sms")) {
    cost.slow_sms.push_back({slow.count_or("sms", 0), slow.positive("as")});
    if (!(cost.slow_sms.back().as < cost.slow_sms.back().sms)) {
      slow.fail("expected fewer SMs than 'sms'", "as");
    }
  }
  return cost;
}

DispatchMachine read_machine(const Node& node) {
  DispatchMachine machine;
  if (node.has("gpus")) machine.gpus = node.texts("gpus");
  machine.origin = node.text("origin");
  for (const std::size_t stage : {0, 1}) {
    machine.inside[stage] = read_stage(node.at("inside").at(stage_names[stage]));
    if (const auto across = node.find("across")) {
      machine.across[stage] = read_stage(across->at(stage_names[stage]));
    }
  }
  return machine;
}

DispatchNic read_nic(const Node& node) {
  DispatchNic nic;
  nic.efficiency = read_ranged(node.at("efficiency"));
  nic.message_us = {0, 0, 0};
  if (const auto message = node.find("message_us")) nic.message_us = read_ranged(*message);
  nic.origin = node.text("origin");
  return nic;
}

// [Transport]
void read_nics(const Node& root, const char* key, std::optional<DispatchNic> (&nics)[2]) {
  const auto nic = root.find(key);
  if (!nic) return;
  if (const auto own = nic->find("gpu")) nics[0] = read_nic(*own);
  if (const auto proxy = nic->find("proxy")) nics[1] = read_nic(*proxy);
}

constexpr const char* places[] = {"inside", "across"};

void read_ranges(const Node& root, const char* key, const std::string& what,
                 std::optional<MeasuredRange> MeasuredDispatches::*range, Dispatcher& dispatcher) {
  const auto node = root.find(key);
  if (!node) return;
  for (const std::size_t at : {0, 1}) {
    if (!node->has(places[at])) continue;
    const std::vector<double> ends = node->numbers(places[at]);
    if (ends.size() != 2 || !(ends[0] >= 1) || !(ends[1] >= ends[0])) {
      node->fail("expected the least and the most " + what + ", from 1 on", places[at]);
    }
    dispatcher.measured[at].*range = {ends[0], ends[1]};
  }
}

void read_measured(const Node& root, Dispatcher& dispatcher) {
  using Measured = MeasuredDispatches;
  read_ranges(root, "measured_tokens", "tokens of a GPU", &Measured::tokens, dispatcher);
  read_ranges(root, "measured_hidden", "values of a row", &Measured::hidden, dispatcher);
  read_ranges(root, "measured_gpus", "GPUs of an exchange", &Measured::gpus, dispatcher);
  const auto node = root.find("measured_sms");
  if (!node) return;
  for (const std::size_t at : {0, 1}) {
    if (!node->has(places[at])) continue;
    std::vector<int>& sms = dispatcher.measured[at].sms;
    for (const double count : node->numbers(places[at])) sms.push_back(static_cast<int>(count));
    if (!std::is_sorted(sms.begin(), sms.end())) node->fail("expected to ascend", places[at]);
  }
}

}  // namespace

Dispatcher Dispatcher::load(const std::string& name_or_path) {
  return read(Document::load(find_document("dispatchers", name_or_path)));
}

Dispatcher Dispatcher::read(const Document& document) {
  document.validate("dispatcher.schema");
  const Node root = document.root();
  Dispatcher dispatcher;
  dispatcher.name = root.text("name");
  dispatcher.sent = value_in(sent_once_names, root.text("sent_once_per"), document.name());
  dispatcher.usual_sms = root.count_or("usual_sms", 0);
  dispatcher.training_sms = root.count_or("training_sms", dispatcher.usual_sms);
  dispatcher.pads_rows = root.boolean_or("pads_rows", false);
  dispatcher.host_reads = root.boolean_or("host_reads", false);
  dispatcher.header_bytes = root.count_or("header_bytes", 0);
  if (const auto notify = root.find("notify_us")) {
    dispatcher.notify_us[0] = notify->number_or("inside", 0);
    dispatcher.notify_us[1] = notify->number_or("across", 0);
  }
  if (const auto row = root.find("reserved_row")) {
    dispatcher.reserved = {row->number_or("value_bytes", 0), row->number_or("scale_bytes", 0),
                           row->number_or("probability_bytes", 0)};
  }
  read_measured(root, dispatcher);
  for (const Node& machine : root.items("machines")) {
    dispatcher.machines.push_back(read_machine(machine));
  }
  read_nics(root, "nic", dispatcher.nic);
  read_nics(root, "training_nic", dispatcher.training_nic);
  for (const DispatchMachine& machine : dispatcher.machines) {
    if (machine.across[0].has_value() == dispatcher.crosses_nodes()) continue;
    root.fail("'nic' and every machine's 'across' go together: both or neither", "machines");
  }
  return dispatcher;
}

const std::optional<DispatchNic>& Dispatcher::nic_of(Transport transport, bool in_training) const {
  const auto at = static_cast<std::size_t>(transport);
  return in_training && training_nic[at] ? training_nic[at] : nic[at];
}

const DispatchMachine& Dispatcher::on(const std::string& device) const {
  for (const DispatchMachine& machine : machines) {
    const bool named = std::any_of(
        machine.gpus.begin(), machine.gpus.end(),
        [&](const std::string& part) { return device.find(part) != std::string::npos; });
    if (named || machine.gpus.empty()) return machine;
  }
  throw NotMeasured(
      fmt::format("dispatcher {} has no figures for {}: add it to 'machines' of a copy of "
                  "the document",
                  name, device));
}

double dispatched_row_bytes(const Dispatcher& dispatcher, DispatcherStage stage, double hidden,
                            bool fp8) {
  if (stage == DispatcherStage::combine) return 2 * hidden;
  return (fp8 ? fp8_row_bytes(hidden) : 2 * hidden) + dispatcher.header_bytes;
}

}  // namespace moesim::profile
