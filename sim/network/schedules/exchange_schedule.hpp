#pragma once

#include <array>
#include <string>
#include <vector>

#include "sim/base/byte_matrix.hpp"
#include "sim/network/schedules/exchange_times.hpp"
#include "sim/network/schedules/message_plan.hpp"
#include "sim/network/topology/domains.hpp"

namespace moesim::network {

// In which order the messages of an exchange travel, and all that the rest of the program asks of
// it. Each schedule is defined in a file of its own, NAME_schedule.cpp; a new one is declared and
// listed at the end of this header.
struct ExchangeSchedule {
  const char* name;
  const char* help;  // one line of `predict --help`

  // The messages and what each waits for; null where `times` needs none.
  MessagePlan (*plan)(const ExchangeRequest& request) = nullptr;
  // How long it takes; null: as long as the plan, message by message.
  ExchangeTimes (*times)(const ExchangeRequest& request) = nullptr;

  // Ranks that it is simulated among within minutes; a message that is forwarded in slices takes
  // several steps.
  int most_ranks = 2048;
  bool bounded = false;               // --network fast answers without messages, for any ranks
  bool runs_nccl = false;             // a profile's curves inside a domain are measurements of it
  bool takes_distinct_share = false;  // ExchangeSettings::distinct_share changes its bytes

  // What each pair of ranks exchanges in all messages; null: the request's bytes.
  ByteMatrix (*bytes_on_links)(const ExchangeRequest& request) = nullptr;
  // What travels inside domains where messages pass other GPUs first; null: the bytes as they are.
  ByteMatrix (*bytes_inside)(const Domains& domains, const ByteMatrix& bytes) = nullptr;
  // What its time assumes, for the provenance, as " (assumed: 4 slices)"; null: nothing.
  std::string (*assumptions)(const ExchangeSettings& settings) = nullptr;
};

inline bool operator==(const ExchangeSchedule& one, const ExchangeSchedule& other) {
  return &one == &other;
}

ExchangeTimes run(const ExchangeSchedule& schedule, const ExchangeRequest& request);
ByteMatrix bytes_on_links(const ExchangeSchedule& schedule, const ExchangeRequest& request);
// Throws UsageError that lists the schedules, behind `others`, which the caller takes beside them.
const ExchangeSchedule& find_schedule(const std::string& name,
                                      std::vector<std::string> others = {});

namespace schedules {
// All at once.
extern const ExchangeSchedule burst;
// N - 1 messages of each rank in fixed order: in round s rank r sends to r + s, and goes on when
// that is sent.
extern const ExchangeSchedule pairwise;
// Grouped send / recv in NCCL's order of peers, so many of them at a time, small messages with
// NCCL's LL protocol.
extern const ExchangeSchedule nccl;
// First inside the domain, so that each GPU holds what goes to its own rail, then between domains
// among GPUs of one local index: fewer, larger messages.
extern const ExchangeSchedule hierarchical;
// Sends over NVLink to the own domain's GPU on the destination's rail, then over its NIC; each
// message goes on as soon as it is there.
extern const ExchangeSchedule pxn;
// Sends a row to the GPU of one's own local index in each domain, once for all experts there that
// one token goes to, then over NVLink.
extern const ExchangeSchedule deepep;
}  // namespace schedules

// In the order of help texts.
inline constexpr std::array all_schedules{
    &schedules::burst,        &schedules::pairwise, &schedules::nccl,
    &schedules::hierarchical, &schedules::pxn,      &schedules::deepep,
};

}  // namespace moesim::network
