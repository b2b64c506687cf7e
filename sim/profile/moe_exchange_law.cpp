#include "sim/profile/moe_exchange_law.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/profile/residual.hpp"

namespace moesim::profile {

namespace {

constexpr double exponent = 3;      // of the soft maximum of fixed part and copies
constexpr double half_filled = 64;  // tokens

// Copies of a balanced token that leave its rank.
double leaving(int ranks, std::int64_t top_k) {
  const double met = static_cast<double>(std::min<std::int64_t>(top_k, ranks));
  return met * (ranks - 1) / ranks;
}

// (a^6 + b^6 + ...)^(1/6).
double norm6(std::initializer_list<double> parts) {
  double sum = 0;
  for (const double part : parts) {
    const double cube = part * part * part;
    sum += cube * cube;
  }
  return std::cbrt(std::sqrt(sum));
}

const StageCost& cost_of(const Dispatcher& dispatcher, const std::string& device,
                         DispatcherStage stage, const DispatchGroup& group) {
  const DispatchMachine& machine = dispatcher.on(device);
  const auto at = static_cast<std::size_t>(stage);
  if (!group.crosses()) return machine.inside[at];
  if (machine.across[at]) return *machine.across[at];
  throw NoAnswer(
      fmt::format("dispatcher {} works inside one NVLink domain: {} GPUs lie in {} of {}",
                  dispatcher.name, group.gpus, group.domains(), group.per_domain));
}

// The figures of the NIC with the transport that was asked for; with an unknown one the range of
// both.
DispatchNic nic_of(const Dispatcher& dispatcher, const DispatchRates& rates) {
  const auto& found = dispatcher.nic_of(rates.transport, rates.in_training);
  if (!found) {
    throw NoAnswer(fmt::format("dispatcher {} has no figures for NICs that {}", dispatcher.name,
                               rates.transport == Transport::gpu ? "GPUs write to by themselves"
                                                                 : "a CPU proxy writes to (EFA)"));
  }
  DispatchNic nic = *found;
  if (rates.transport_known) return nic;
  for (const Transport each : {Transport::gpu, Transport::proxy}) {
    const auto& other = dispatcher.nic_of(each, rates.in_training);
    if (!other) continue;
    nic.efficiency.low = std::min(nic.efficiency.low, other->efficiency.low);
    nic.efficiency.high = std::max(nic.efficiency.high, other->efficiency.high);
    nic.message_us.high = std::max(nic.message_us.high, other->message_us.high);
  }
  return nic;
}

// Those of the call's NIC, which reaches no more than a single stream does.
DispatchNic nic_of(const Dispatcher& dispatcher, const DispatchCall& call) {
  const DispatchRates& rates = call.rates;
  DispatchNic nic;
  if (!call.group.crosses()) return nic;
  if (!(rates.nic_bytes_per_us > 0)) throw NotMeasured("no NICs connect the domains");
  nic = nic_of(dispatcher, rates);
  nic.efficiency.value = std::min(nic.efficiency.value, rates.nic_share);
  nic.efficiency.low = std::min(nic.efficiency.low, rates.nic_share);
  nic.efficiency.high = std::min(nic.efficiency.high, rates.nic_share_high);
  return nic;
}

// The chance that `drawn` of `all` experts are none of `there`.
double missed(std::int64_t all, std::int64_t there, std::int64_t drawn) {
  double chance = 1;
  for (std::int64_t taken = 0; taken < drawn; ++taken) {
    chance *=
        std::max(0.0, static_cast<double>(all - there - taken)) / static_cast<double>(all - taken);
  }
  return chance;
}

double combinations(int all, int drawn) {
  if (drawn < 0 || drawn > all) return 0;
  double count = 1;
  for (int each = 1; each <= drawn; ++each) count *= static_cast<double>(all - drawn + each) / each;
  return count;
}

// The chance that none of a token's experts is one of [first, last), where it keeps some groups.
double missed_in_groups(const MoeTraffic& traffic, std::int64_t first, std::int64_t last) {
  const std::int64_t each = traffic.experts / traffic.groups;
  const int kept = static_cast<int>(std::min<std::int64_t>(traffic.kept_groups, traffic.top_k));
  // The experts lie in these groups, of which the outer two may be there in part.
  const std::int64_t lowest = first / each;
  const std::int64_t highest = (last - 1) / each;
  const std::int64_t below = std::min(last, (lowest + 1) * each) - first;
  const std::int64_t above = highest > lowest ? last - highest * each : 0;
  const int elsewhere = traffic.groups - static_cast<int>(highest - lowest) - 1;
  double sum = 0;
  for (const bool has_below : {false, true}) {
    for (const bool has_above : {false, true}) {
      if (has_above && above == 0) continue;
      // Without the groups that are there as a whole: one of them that is kept is met.
      const int partial = (has_below ? 1 : 0) + (has_above ? 1 : 0);
      const double chance =
          combinations(elsewhere, kept - partial) / combinations(traffic.groups, kept);
      const double firsts = (has_below ? 1 - static_cast<double>(below) / each : 1) *
                            (has_above ? 1 - static_cast<double>(above) / each : 1);
      const std::int64_t there = (has_below ? below : 0) + (has_above ? above : 0);
      sum += chance * firsts * missed(kept * each - kept, there, traffic.top_k - kept);
    }
  }
  return sum;
}

const MeasuredDispatches& measured_of(const Dispatcher& dispatcher, const DispatchGroup& group) {
  return dispatcher.measured[group.crosses() ? 1 : 0];
}

// Factors of two beyond what was measured; 0: none, or not known.
double octaves_beyond(const std::optional<MeasuredRange>& measured, double value) {
  if (!measured) return 0;
  return std::max({0.0, std::log2(measured->least / value), std::log2(value / measured->most)});
}

// Factors of two from the nearest number of SMs that was measured; 0: it was, there is no choice of
// it, or the document does not say.
double octaves_of_sms(const Dispatcher& dispatcher, const DispatchGroup& group, int sms) {
  const std::vector<int>& measured = measured_of(dispatcher, group).sms;
  if (dispatcher.usual_sms == 0 || measured.empty() || sms < 1) return 0;
  double nearest = INFINITY;
  for (const int known : measured) {
    nearest = std::min(nearest, std::abs(std::log2(static_cast<double>(sms) / known)));
  }
  return nearest;
}

bool is_beyond(const std::vector<int>& measured, int sms) {
  return sms < measured.front() || sms > measured.back();
}

// How many SMs that nothing slows down are worth as much.
double sms_worth(const StageCost& cost, int sms) {
  for (const SlowSms& slow : cost.slow_sms) {
    if (slow.sms == sms) return slow.as;
  }
  return std::max(sms, 1);
}

// The cost with copies as slow as the slowest number of SMs has them.
StageCost with_slow_copies(StageCost cost) {
  double slower = 1;
  for (const SlowSms& slow : cost.slow_sms) slower = std::max(slower, slow.sms / slow.as);
  cost.token_ns *= slower;
  cost.copy_ns *= slower;
  cost.sm_bytes_per_us /= slower;
  return cost;
}

void widen(double half_width, Estimate& estimate) {
  const auto reach = [&](double end_us) {
    return std::hypot(std::log(end_us / estimate.time_us), half_width);
  };
  estimate.time_us_p05 = estimate.time_us * std::exp(-reach(estimate.time_us_p05));
  estimate.time_us_p95 = estimate.time_us * std::exp(reach(estimate.time_us_p95));
}

// The share of a stage's time that grows with tokens: all but its start and the flow of its
// buffers.
double growing_share(const Dispatcher& dispatcher, const DispatchCall& call) {
  const StageCost& cost = cost_of(dispatcher, call.device, call.stage, call.group);
  const DispatchNic nic = nic_of(dispatcher, call);
  const StageTransfer transfer{call.row_bytes,
                               cost.link_efficiency.value * call.rates.link_bytes_per_us,
                               nic.efficiency.value * call.rates.nic_bytes_per_us,
                               nic.message_us.value, dispatcher.usual_sms > 0 ? call.sms : 1};
  DispatchLoad nothing;
  nothing.tokens = call.load.tokens;
  StageCost without_tokens = cost;
  without_tokens.token_ns = 0;
  return 1 - stage_us(without_tokens, call.group, nothing, transfer) /
                 stage_us(cost, call.group, call.load, transfer);
}

// The same exchange of rows of another number of values.
DispatchCall with_hidden(const Dispatcher& dispatcher, DispatchCall call, double hidden,
                         double other) {
  const double header =
      call.stage == DispatcherStage::dispatch ? static_cast<double>(dispatcher.header_bytes) : 0;
  call.row_bytes = header + (call.row_bytes - header) * other / hidden;
  return call;
}

// Values of a row from the nearest measured number to before `hidden`, eight for each factor of
// two; nothing where it was measured.
std::vector<double> rows_between(const std::optional<MeasuredRange>& measured, double hidden) {
  constexpr int per_octave = 8;
  std::vector<double> rows;
  const double octaves = octaves_beyond(measured, hidden);
  for (int step = 0; step < octaves * per_octave; ++step) {
    const double factor = std::exp2(static_cast<double>(step) / per_octave);
    rows.push_back(hidden < measured->least ? measured->least / factor : measured->most * factor);
  }
  return rows;
}

std::string range_text(const MeasuredRange& range) {
  return range.least == range.most ? fmt::format("{:.0f}", range.most)
                                   : fmt::format("{:.0f} to {:.0f}", range.least, range.most);
}

}  // namespace

double distinct_places(const MoeTraffic& traffic, int places) {
  const std::int64_t each = traffic.experts / places;
  const double met = 1 - missed(traffic.experts, each, traffic.top_k);
  if (traffic.kept_groups >= traffic.groups) return places * met;
  double sum = 0;
  for (int place = 0; place < places; ++place) {
    sum += std::min(met, 1 - missed_in_groups(traffic, place * each, (place + 1) * each));
  }
  return sum;
}

DispatchLoad balanced_load(SentOnce sent, DispatcherStage stage, const MoeTraffic& traffic,
                           const DispatchGroup& group, double tokens) {
  const int domains = group.domains();
  const int slices = traffic.slices;
  const int holders = slices > 0 ? group.gpus / slices : 0;  // ranks that have other experts
  if (group.gpus < 2 || group.per_domain < 1 || holders < 1 || group.gpus % slices != 0 ||
      group.per_domain % slices != 0 || traffic.experts % holders != 0 ||
      (domains > 1 && group.gpus % group.per_domain != 0)) {
    throw NoAnswer(
        fmt::format("{} experts on {} GPUs in domains of {}{}: expected at least 2 GPUs, whole "
                    "domains, as many experts on every GPU, and all slices of an expert in one "
                    "domain",
                    traffic.experts, group.gpus, group.per_domain,
                    slices == 1 ? "" : fmt::format(", each in {} slices", slices)));
  }
  const double inside = group.crosses() ? group.per_domain : group.gpus;
  const double others = (inside - 1) / inside;  // of a domain's GPUs
  const double away = 1 - 1.0 / domains;
  const auto choices = static_cast<double>(traffic.top_k);
  DispatchLoad load;
  load.tokens = tokens;
  load.expert_rows = tokens * group.gpus * choices / static_cast<double>(traffic.experts);
  if (sent == SentOnce::per_expert) {
    load.copies = tokens * choices * slices;
    load.link_rows = load.copies * (inside - 1) / group.gpus;
    load.nic_rows = load.copies * away;
    return load;
  }
  const double ranks_met = slices * distinct_places(traffic, holders);
  const double domains_met = domains > 1 ? distinct_places(traffic, domains) : 0;
  load.copies = tokens * ranks_met;
  if (domains > 1) {
    load.copies += tokens * (stage == DispatcherStage::dispatch ? domains_met : ranks_met);
  }
  load.link_rows = tokens * ranks_met * others;
  load.nic_rows = tokens * domains_met * away;
  return load;
}

double stage_us(const StageCost& cost, const DispatchGroup& group, const DispatchLoad& load,
                const StageTransfer& transfer) {
  const double row_bytes = transfer.row_bytes;
  const double per_copy =
      cost.copy_ns * 1e-3 + (cost.sm_bytes_per_us > 0 ? row_bytes / cost.sm_bytes_per_us : 0);
  const double copying =
      (load.tokens * cost.token_ns * 1e-3 + load.copies * per_copy) / sms_worth(cost, transfer.sms);
  const double link = load.link_rows * row_bytes / transfer.link_bytes_per_us;
  const double nic = load.nic_rows == 0
                         ? 0
                         : std::max(load.nic_rows * row_bytes / transfer.nic_bytes_per_us,
                                    load.nic_rows * transfer.message_us);
  const double doublings = std::max(0.0, std::log2(group.gpus / 2.0));
  return cost.fixed_us + cost.doubling_us * doublings +
         cost.fill_us * load.tokens / (load.tokens + half_filled) +
         norm6({copying, link, nic, load.expert_rows * cost.expert_row_ns * 1e-3});
}

Estimate dispatch_time(const Dispatcher& dispatcher, const DispatchCall& call) {
  const DispatchGroup& group = call.group;
  const DispatchRates& rates = call.rates;
  const StageCost& cost = cost_of(dispatcher, call.device, call.stage, group);
  if (!(rates.link_bytes_per_us > 0)) {
    throw NotMeasured(
        fmt::format("dispatcher {} needs NVLink between the GPUs of a domain, which {} has "
                    "not",
                    dispatcher.name, call.device));
  }
  const DispatchNic nic = nic_of(dispatcher, call);
  const Ranged& link = cost.link_efficiency;
  const double from_measured = octaves_of_sms(dispatcher, group, call.sms);
  const auto time_of = [&](const StageCost& of, double link_share, double nic_share,
                           double message_us) {
    return stage_us(
        of, group, call.load,
        {call.row_bytes, link_share * rates.link_bytes_per_us, nic_share * rates.nic_bytes_per_us,
         message_us, dispatcher.usual_sms > 0 ? call.sms : 1});
  };
  const auto time = [&](double link_share, double nic_share, double message_us) {
    return time_of(cost, link_share, nic_share, message_us);
  };
  Estimate estimate;
  const double middle = time(link.value, nic.efficiency.value, nic.message_us.value);
  estimate.time_us = cost.factor.value * middle;
  const auto away = [&](double factor, double by_link, double by_nic) {
    return std::hypot(std::log(factor / cost.factor.value), std::log(by_link / middle),
                      std::log(by_nic / middle));
  };
  estimate.time_us_p05 =
      estimate.time_us *
      std::exp(-away(cost.factor.low, time(link.high, nic.efficiency.value, nic.message_us.value),
                     time(link.value, nic.efficiency.high, nic.message_us.low)));
  estimate.time_us_p95 =
      estimate.time_us *
      std::exp(away(cost.factor.high, time(link.low, nic.efficiency.value, nic.message_us.value),
                    time(link.value, nic.efficiency.low, nic.message_us.high)));
  estimate.origin = Origin::derived;
  estimate.support = Support::interpolated;
  no_faster_than_wire(call, estimate);
  if (from_measured <= 0) return estimate;
  widen(ErrorGrowth::sms * std::sqrt(from_measured), estimate);
  const double slow =
      time_of(with_slow_copies(cost), link.value, nic.efficiency.value, nic.message_us.value);
  estimate.time_us_p95 =
      estimate.time_us * std::exp(std::hypot(std::log(estimate.time_us_p95 / estimate.time_us),
                                             std::log(slow / middle)));
  no_faster_than_wire(call, estimate);
  return estimate;
}

void no_faster_than_wire(const DispatchCall& call, Estimate& estimate) {
  const auto passing_us = [&](double rows, double bytes_per_us) {
    return rows > 0 ? rows * call.row_bytes / bytes_per_us : 0;
  };
  const double wire_us = std::max(
      passing_us(call.load.link_rows, call.rates.link_bytes_per_us),
      passing_us(call.load.nic_rows, call.rates.nic_bytes_per_us * call.rates.nic_share_high));
  estimate.time_us_p05 = std::max(estimate.time_us_p05, std::min(wire_us, estimate.time_us));
}

namespace {

// By the distance from what was measured, a row as far away as `hidden` is.
Estimate widened(const Dispatcher& dispatcher, const DispatchCall& call, double hidden,
                 Estimate estimate) {
  const MeasuredDispatches& measured = measured_of(dispatcher, call.group);
  const double wider = widening(octaves_beyond(measured.tokens, call.load.tokens));
  const double growing = growing_share(dispatcher, call);
  const auto end = [&](double end_us) {
    const double ratio = end_us / estimate.time_us;
    return estimate.time_us * ((1 - growing) * ratio + growing * std::pow(ratio, wider));
  };
  estimate.time_us_p05 = end(estimate.time_us_p05);
  estimate.time_us_p95 = end(estimate.time_us_p95);
  const double of_hidden = octaves_beyond(measured.hidden, hidden);
  const double of_gpus = octaves_beyond(measured.gpus, call.group.gpus);
  widen(std::hypot(ErrorGrowth::hidden * std::sqrt(of_hidden),
                   ErrorGrowth::gpus * std::sqrt(of_gpus)),
        estimate);
  no_faster_than_wire(call, estimate);
  return estimate;
}

}  // namespace

void widen_beyond_measured(const Dispatcher& dispatcher, const DispatchCall& call, double hidden,
                           Estimate& estimate) {
  const MeasuredDispatches& measured = measured_of(dispatcher, call.group);
  const bool of_sms =
      octaves_of_sms(dispatcher, call.group, call.sms) > 0 && is_beyond(measured.sms, call.sms);
  if (octaves_beyond(measured.tokens, call.load.tokens) > 0 ||
      octaves_beyond(measured.hidden, hidden) > 0 ||
      octaves_beyond(measured.gpus, call.group.gpus) > 0 || of_sms) {
    estimate.support = Support::extrapolated;
  }
  const Estimate as_measured = estimate;
  const Estimate law = dispatch_time(dispatcher, call);
  estimate = widened(dispatcher, call, hidden, as_measured);
  for (const double row : rows_between(measured.hidden, hidden)) {
    const DispatchCall nearer_call = with_hidden(dispatcher, call, hidden, row);
    const Estimate nearer_law = dispatch_time(dispatcher, nearer_call);
    Estimate nearer = as_measured;
    nearer.time_us *= nearer_law.time_us / law.time_us;
    nearer.time_us_p05 *= nearer_law.time_us_p05 / law.time_us_p05;
    nearer.time_us_p95 *= nearer_law.time_us_p95 / law.time_us_p95;
    nearer = widened(dispatcher, nearer_call, row, nearer);
    if (row > hidden) {
      estimate.time_us_p95 = std::min(estimate.time_us_p95, nearer.time_us_p95);
    } else {
      estimate.time_us_p05 = std::max(estimate.time_us_p05, nearer.time_us_p05);
    }
  }
}

std::string extrapolation(const Dispatcher& dispatcher, const DispatchGroup& group,
                          const DispatchShape& shape) {
  const MeasuredDispatches& measured = measured_of(dispatcher, group);
  std::vector<std::string> from;
  const auto beyond = [&](const std::optional<MeasuredRange>& range, double value,
                          const char* text) {
    if (octaves_beyond(range, value) <= 0) return;
    from.push_back(fmt::format(fmt::runtime(text), range_text(*range)));
  };
  beyond(measured.tokens, shape.tokens, "{} tokens of a GPU");
  beyond(measured.hidden, shape.hidden, "rows of {} values");
  beyond(measured.gpus, group.gpus, "{} GPUs");
  std::string text;
  if (octaves_of_sms(dispatcher, group, shape.sms) > 0) {
    if (is_beyond(measured.sms, shape.sms)) {
      from.push_back(fmt::format("{} SMs", range_text({static_cast<double>(measured.sms.front()),
                                                       static_cast<double>(measured.sms.back())})));
    } else {
      text = fmt::format("; {} SMs were not measured ({} were)", shape.sms,
                         fmt::join(measured.sms, ", "));
    }
  }
  if (from.empty()) return text;
  return fmt::format("; extrapolated from {}{}", fmt::join(from, ", "), text);
}

SizeCurve among_more_ranks(const SizeCurve& at_few, int few, const SizeCurve& at_many, int many,
                           int ranks, std::int64_t top_k) {
  if (few < 2 || many <= few || ranks <= many) {
    throw Error(fmt::format("{} ranks from {} and {}: expected three ascending counts from 2",
                            ranks, few, many));
  }
  const auto cube = [](double value) { return std::pow(value, exponent); };
  const double measured_growth = cube(leaving(many, top_k)) - cube(leaving(few, top_k));
  const double growth =
      (cube(leaving(ranks, top_k)) - cube(leaving(many, top_k))) / measured_growth;
  const double few_floor = at_few.time_us(0);
  const double many_floor = at_many.time_us(0);
  const double doublings =
      std::log2(static_cast<double>(ranks) / many) / std::log2(static_cast<double>(many) / few);
  const double floor = many_floor + std::max(many_floor - few_floor, 0.0) * doublings;
  // One octave beyond the largest count: the last piece carries the bandwidth of more tokens.
  std::vector<double> tokens = {at_many.smallest()};
  while (tokens.back() < at_many.largest() * (1 - 1e-9)) tokens.push_back(2 * tokens.back());
  tokens.push_back(2 * tokens.back());
  std::vector<double> times;
  for (const double count : tokens) {
    const double before = at_many.time_us(count) - many_floor;
    const double rise = std::max(cube(before) - cube(at_few.time_us(count) - few_floor), 0.0);
    const double time = floor + std::cbrt(cube(before) + growth * rise);
    times.push_back(times.empty() ? time : std::max(time, times.back()));
  }
  return SizeCurve(tokens, times);
}

}  // namespace moesim::profile
