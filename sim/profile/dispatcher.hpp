#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/base/formats/document.hpp"

namespace moesim::profile {

enum class DispatcherStage { dispatch, combine };
constexpr const char* name_of(DispatcherStage stage) {
  return stage == DispatcherStage::dispatch ? "dispatch" : "combine";
}

// How often a token's row leaves its GPU: once for each node (NVLink domain) that it goes to, and
// on from there over NVLink; once for each GPU; or once for each of its experts.
enum class SentOnce { per_node, per_gpu, per_expert };
inline constexpr EnumNames<SentOnce, 3> sent_once_names{{
    {SentOnce::per_node, "node"},
    {SentOnce::per_gpu, "gpu"},
    {SentOnce::per_expert, "expert"},
}};

// Who starts a write across nodes: the GPU itself (InfiniBand, RoCE), or the CPU for it (EFA).
enum class Transport { gpu, proxy };

// A figure with its 5 % and 95 % quantiles over machines and versions.
struct Ranged {
  double value = 1;
  double low = 1;
  double high = 1;
};

// A number of SMs that copies rows only as fast as fewer.
struct SlowSms {
  int sms = 0;
  double as = 0;
};

// The kernel of one stage, inside a domain or across nodes. moe_exchange_law.hpp has the formula.
struct StageCost {
  double fixed_us = 0;         // of the smallest exchange
  double doubling_us = 0;      // more of it for each doubling of the GPUs beyond two
  double fill_us = 0;          // until its buffers are in flow: half of it at 64 tokens
  double token_ns = 0;         // of one SM for a token, whatever happens to it
  double copy_ns = 0;          // of one SM for each copy of a row, beside its bytes
  double sm_bytes_per_us = 0;  // that one SM copies; 0: without limit
  double expert_row_ns = 0;    // of the fullest expert's rows
  Ranged link_efficiency;      // of the line rate of a GPU's NVLink port
  Ranged factor;               // of the whole stage: measured over predicted
  std::vector<SlowSms> slow_sms;
};

// What a dispatcher does on one kind of GPU, inside a domain and across nodes.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): copies of arrays
struct DispatchMachine {
  std::vector<std::string> gpus;  // parts of device names; empty: all others
  std::string origin;
  StageCost inside[2];                 // [DispatcherStage]
  std::optional<StageCost> across[2];  // none: it works inside a domain alone
};

struct DispatchNic {
  Ranged efficiency;  // of the line rate of a GPU's share of the NICs
  Ranged message_us;  // for each message; 0: the bytes alone count
  std::string origin;
};

// Room that a rank reserves for a token of any rank that it exchanges rows with.
struct ReservedRow {
  double value_bytes = 0;        // of each value of the row
  double scale_bytes = 0;        // of each 128 of them
  double probability_bytes = 0;  // of each expert in the rank's domain

  double bytes(double hidden, double experts) const {
    return hidden * value_bytes + hidden / 128 * scale_bytes + experts * probability_bytes;
  }
};

struct MeasuredRange {
  double least = 0;
  double most = 0;
};

// The ranges of the measurements that a dispatcher's figures are fitted to or were held against.
// Nothing: the document does not say.
struct MeasuredDispatches {
  std::optional<MeasuredRange> tokens;  // per GPU
  std::optional<MeasuredRange> hidden;  // values of a row
  std::optional<MeasuredRange> gpus;
  std::vector<int> sms;  // ascending
};

// An exchange library of MoE layers: what it sends and what its kernels cost (profiles/dispatchers,
// schema profiles/schema/dispatcher.schema.json). Nothing here belongs to one machine but what
// DispatchMachine says.
class Dispatcher {
 public:
  // Shipped name or path. Throws UsageError naming file and key.
  static Dispatcher load(const std::string& name_or_path);
  static Dispatcher read(const Document& document);

  std::string name;
  SentOnce sent = SentOnce::per_node;
  int usual_sms = 0;        // 0: it takes what it finds, no choice of the caller's
  int training_sms = 0;     // what training libraries give it
  bool pads_rows = false;   // those of an expert, as products in low precision need
  bool host_reads = false;  // the host waits for the number of received rows before it goes on
  int header_bytes = 0;     // of a dispatched row
  ReservedRow reserved;     // nothing: its buffers are as large as what is sent
  // What an exchange takes beside its kernel, inside and across: the counts that ranks tell each
  // other, and what the library's call does around it.
  double notify_us[2] = {0, 0};
  MeasuredDispatches measured[2];  // inside, across
  std::vector<DispatchMachine> machines;
  std::optional<DispatchNic> nic[2];           // [Transport]
  std::optional<DispatchNic> training_nic[2];  // in training steps, where it was found to differ

  // The first that names the device, else the one for all others. Error where there is none.
  const DispatchMachine& on(const std::string& device) const;
  // The figures of NICs, in training steps those of `training_nic` where there are any.
  const std::optional<DispatchNic>& nic_of(Transport transport, bool in_training) const;
  bool crosses_nodes() const { return nic[0].has_value() || nic[1].has_value(); }
};

// Bytes of a row of `hidden` values as 8-bit floats with a 4-byte scale for each 128.
constexpr double fp8_row_bytes(double hidden) { return hidden + hidden / 128 * 4; }

// Bytes of a row of `hidden` values: fp8_row_bytes(), or 16-bit ones, and on dispatch the header.
double dispatched_row_bytes(const Dispatcher& dispatcher, DispatcherStage stage, double hidden,
                            bool fp8);

}  // namespace moesim::profile
