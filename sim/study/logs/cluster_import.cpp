#include "sim/study/logs/cluster_import.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/statistics.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/profile/nccl_tests/log.hpp"
#include "sim/profile/nccl_tests/operation.hpp"
#include "sim/study/logs/deepep_import.hpp"
#include "sim/study/logs/link_figures.hpp"
#include "sim/study/logs/link_fit.hpp"
#include "sim/study/logs/link_logs.hpp"
#include "sim/study/logs/repeated_runs.hpp"

namespace moesim::study {
namespace {

using cluster::Cluster;
using cluster::MeasuredExchange;
using cluster::MeasuredOperation;
using nlohmann::ordered_json;
using profile::NcclTestsRow;
using profile::NcclTestsRun;
using profile::place_of;

constexpr double least_of_large_messages = 1 << 16;  // bytes: ib_write_bw's default
constexpr double least_of_healthy_link = 0.7;
constexpr double most_of_small_messages = 4096;
constexpr std::int64_t least_largest = 1 << 20;  // bytes that a curve must reach to be told on

std::string name_of_file(const std::string& file) {
  return std::filesystem::path(file).filename().string();
}

bool reduces(MeasuredOperation operation) {
  return operation == MeasuredOperation::all_reduce ||
         operation == MeasuredOperation::reduce_scatter;
}

// All that is measured of one exchange.
struct Curve {
  RunsBySize runs;
  std::set<std::string> files, types;
};

class Importer {
 public:
  Importer(const ClusterImport& request, const ClusterBase& base)
      : request_(request), base_(base.cluster), json_(base.json) {}

  ImportedCluster run() {
    for (const std::string& file : request_.files) take(file);
    if (names_.empty()) throw UsageError(fmt::format("{}", fmt::join(left_out_, "\n")));
    json_["name"] = request_.name;
    json_["source"] =
        fmt::format("{} ({}); measured: {}", base_.name, base_.source, fmt::join(names_, ", "));
    write_exchanges();
    write_dispatches();
    keep_exchanges_of_base();
    write_links(links_, base_, json_, notes_);
    // Names in logs may be of bytes that are no UTF-8.
    Cluster::read(Document::parse(json_text(json_), request_.name));
    return {std::move(json_), std::move(notes_)};
  }

 private:
  using Key = std::tuple<MeasuredOperation, int, int, std::string>;  // nodes, GPUs, library

  void take(const std::string& file) {
    const LogKind kind = kind_of_log(file);
    if (kind == LogKind::nccl_tests) {
      take_runs(file);
      return;
    }
    names_.push_back(name_of_file(file));
    if (kind == LogKind::perftest) {
      for (const PerftestRun& run : read_perftest_log(file)) take_perftest(file, run);
    } else if (kind == LogKind::nvbandwidth) {
      for (const CopyMatrix& matrix : read_nvbandwidth_log(file)) take_copies(file, matrix);
    } else {
      take_deepep(file);
    }
  }

  // Logs of another GPU than the base is of, or of two different ones.
  void check_device(const std::string& file, const std::string& device) {
    const std::vector<std::string> models = gpu_models(device);
    if (models.empty()) return;
    const std::vector<std::string> own = gpu_models_of(base_);
    if (!own.empty() && std::find(own.begin(), own.end(), models.front()) == own.end()) {
      throw UsageError(fmt::format(
          "{}: measured on {}, but cluster '{}' is of {}: give --cluster one of such GPUs, or a "
          "copy of it whose name and source name {}",
          file, device, base_.name, fmt::join(own, ", "), models.front()));
    }
    if (!links_.gpu.empty() && links_.gpu != models.front()) {
      throw UsageError(fmt::format("{}: measured on {}, but {} is of {}: import one kind of GPU",
                                   file, device, model_file_, links_.gpu));
    }
    links_.gpu = models.front();
    model_file_ = file;
  }

  void check_shape(const NcclTestsRun& run) {
    const int each = run.gpus / run.hosts;
    if (each > base_.gpus_per_node) {
      throw UsageError(
          fmt::format("{}: {} GPUs on each of {} hosts, but a node of cluster '{}' has {} "
                      "(gpus_per_node)",
                      place_of(run), each, run.hosts, base_.name, base_.gpus_per_node));
    }
    if (run.hosts > 1 && each < base_.gpus_per_node) {
      note(fmt::format("{}: {} of a node's {} GPUs took part: the curve answers for as many alone",
                       name_of_file(run.file), each, base_.gpus_per_node));
    }
  }

  MeasuredOperation operation_of(const NcclTestsRun& run) const {
    std::string name = run.operation.empty() ? request_.op : run.operation;
    if (name.empty()) name = profile::operation_in_name(name_of_file(run.file));
    if (name.empty()) {
      throw UsageError(fmt::format(
          "{}: the output does not say which program ran: give --op, or a file name with "
          "alltoall, all_reduce, all_gather, reduce_scatter or sendrecv in it",
          place_of(run)));
    }
    profile::check_operation(run, request_.op.empty() ? name : request_.op);
    return value_in(cluster::measured_operation_names, name, "--op");
  }

  // Folders of nccl-tests' logs have programs that no step needs among them.
  void take_runs(const std::string& file) {
    bool any = false;
    for (const NcclTestsRun& run : profile::read_nccl_tests_log(file)) {
      if (run.other) {
        left_out_.push_back(profile::left_out(run));
        note("warning: " + left_out_.back());
        continue;
      }
      take_run(run);
      any = true;
    }
    if (any) names_.push_back(name_of_file(file));
  }

  void take_run(const NcclTestsRun& run) {
    if (run.gpus < 2) {
      throw UsageError(fmt::format("{}: one GPU copies to itself: no exchange", place_of(run)));
    }
    check_device(run.file, run.device);
    check_shape(run);
    const MeasuredOperation operation = operation_of(run);
    const std::string version = run.nccl.empty() ? request_.nccl : run.nccl;
    if (!request_.nccl.empty() && version != request_.nccl) {
      throw UsageError(fmt::format("--nccl {}: {} is of NCCL {}: leave it out", request_.nccl,
                                   run.file, run.nccl));
    }
    for (const std::string& doubt : run.doubts) note(doubt);
    const Key key{operation, run.hosts, run.gpus, version.empty() ? "" : "NCCL " + version};
    std::erase(order_, key);
    order_.push_back(key);
    Curve& curve = curves_[key];
    curve.files.insert(name_of_file(run.file));
    for (const NcclTestsRow* row : rows_of(run, operation)) {
      curve.runs[row->bytes].push_back({row->time_us, run.file, row->line});
      curve.types.insert(row->dtype);
    }
  }

  // The rows of the data type and operator that training uses, where there are several.
  std::vector<const NcclTestsRow*> rows_of(const NcclTestsRun& run, MeasuredOperation operation) {
    std::set<std::string> types, operators;
    for (const NcclTestsRow& row : run.rows) {
      types.insert(row.dtype);
      operators.insert(row.redop);
    }
    const auto is_short = [](const std::string& type) {
      return type == "half" || type == "bfloat16";
    };
    const bool any_short = std::any_of(types.begin(), types.end(), is_short);
    const bool reducing = reduces(operation);
    if (reducing && !any_short && types.size() > 1) {
      throw UsageError(
          fmt::format("{}: types {}: adding up takes time that depends on the type; run with -d "
                      "bfloat16 or -d half",
                      place_of(run), fmt::join(types, ", ")));
    }
    const bool sums = operators.count("sum") != 0;
    if (reducing && !sums && operators.size() > 1) {
      throw UsageError(fmt::format("{}: operators {}, none of which is sum: run with -o sum",
                                   place_of(run), fmt::join(operators, ", ")));
    }
    std::vector<const NcclTestsRow*> rows;
    for (const NcclTestsRow& row : run.rows) {
      if (reducing && any_short && !is_short(row.dtype)) continue;
      if (reducing && sums && row.redop != "sum") continue;
      rows.push_back(&row);
    }
    if (rows.size() < run.rows.size()) {
      note(fmt::format("{}: {} of {} rows taken: sums of 16 bits", name_of_file(run.file),
                       rows.size(), run.rows.size()));
    }
    return rows;
  }

  void take_perftest(const std::string& file, const PerftestRun& run) {
    if (base_.nics_per_node == 0) {
      throw UsageError(
          fmt::format("{}: {}, but cluster '{}' has no NICs", file, run.test, base_.name));
    }
    const std::string from =
        fmt::format("{} test{}", run.test, run.nic.empty() ? "" : " on " + run.nic);
    if (run.cut_line > 0) note(run.doubt(name_of_file(file)));
    if (run.gbit_per_s > 0) {
      if (run.largest_bytes < least_of_large_messages) {
        throw UsageError(fmt::format(
            "{}: {}: its largest message is of {:.0f} bytes, and the efficiency of a NIC is what "
            "large ones reach: run it with -s 1048576, or -a for all sizes",
            file, from, run.largest_bytes));
      }
      const double line = base_.nic.bytes_per_second * 8 / 1e9;
      check_line_rate(file, run.gbit_per_s / line,
                      fmt::format("{}: {:.1f} Gbit/s", from, run.gbit_per_s),
                      fmt::format("{:g} Gbit/s (nic.gbit_per_s)", line));
      if (run.gbit_per_s / line < least_of_healthy_link) {
        note(
            fmt::format("warning: {}: {}: {:.1f} Gbit/s of the {:g} of cluster '{}': is its "
                        "nic.gbit_per_s that of these NICs? Else a link may be in need of repair",
                        name_of_file(file), from, run.gbit_per_s, line, base_.name));
      }
      links_.nic_rates.push_back({run.gbit_per_s / line, from, name_of_file(file), 0, 0, run.nic});
      note(fmt::format("{}: {}: {:.1f} of {:g} Gbit/s", name_of_file(file), from, run.gbit_per_s,
                       line));
    }
    if (run.latency_us > 0) {
      if (run.latency_bytes > most_of_small_messages) {
        throw UsageError(fmt::format(
            "{}: {}: its smallest message is of {:.0f} bytes, and the latency of a NIC is what "
            "small ones take: run it with -s 8, or -a for all sizes",
            file, from, run.latency_bytes));
      }
      links_.nic_latency.push_back({run.latency_us, from, name_of_file(file)});
      note(fmt::format("{}: {}: {:.2f} us", name_of_file(file), from, run.latency_us));
    }
  }

  void take_copies(const std::string& file, const CopyMatrix& matrix) {
    check_device(file, matrix.device);
    if (base_.gpus_per_domain < 2) {
      throw UsageError(fmt::format("{}: {}, but in cluster '{}' every message takes a NIC", file,
                                   matrix.test, base_.name));
    }
    const double line = base_.domain.port.gb_per_s();
    const double rate = median(matrix.gb_per_s);
    check_line_rate(file, rate / line, fmt::format("{}: {:.1f} GB/s", matrix.test, rate),
                    fmt::format("{:g} GB/s (domain.gb_per_s)", line));
    note(fmt::format("{}: {}: {:.1f} of {:g} GB/s in the median of {} pairs", name_of_file(file),
                     matrix.test, rate, line, matrix.gb_per_s.size()));
    links_.copies.push_back({rate / line, matrix.test, name_of_file(file)});
  }

  void take_deepep(const std::string& file) {
    const std::vector<DeepEpBest> results = read_deepep_log(file);
    if (results.empty()) {
      throw UsageError(fmt::format(
          "{}: DeepEP's test_low_latency.py does not print tokens, hidden size and experts: its "
          "times cannot be placed; import test_intranode.py or test_internode.py",
          file));
    }
    const DeepEpRun run{std::max(1, request_.nodes), request_.experts};
    for (const cluster::MeasuredDispatch& found : deepep_dispatches(file, results, run, base_)) {
      note(fmt::format("{}: DeepEP {} ({}) of {} tokens on {} GPUs, {} {}: {:.1f} us",
                       name_of_file(file), found.stage, found.row_format, found.tokens, found.gpus,
                       found.nodes, found.nodes == 1 ? "node" : "nodes", found.time_us));
      dispatches_.push_back(found);
      const double bytes =
          static_cast<double>(found.tokens) * found.hidden * (found.row_format == "fp8" ? 1 : 2);
      dispatch_runs_[fmt::format(
          "DeepEP {} ({}) on {} GPUs, {} SMs, {} of {} experts, hidden size {}", found.stage,
          found.row_format, found.gpus, found.sms, found.top_k, found.experts, found.hidden)][bytes]
          .push_back({found.time_us, file});
    }
  }

  // The base's own, but for those of stages measured anew on as many nodes and GPUs.
  void write_dispatches() {
    if (dispatches_.empty()) return;
    for (const auto& [setting, runs] : dispatch_runs_) {
      if (const auto doubt = contradiction_of(setting, runs)) {
        note(*doubt +
             "; their geometric mean is taken, with a band that holds all: where one was disturbed "
             "or of another setting, import the others alone");
      }
    }
    ordered_json entries = json_.value("dispatches", ordered_json::array());
    std::erase_if(entries.get_ref<ordered_json::array_t&>(), [&](const auto& old) {
      return std::any_of(dispatches_.begin(), dispatches_.end(), [&](const auto& found) {
        return old.at("dispatcher") == found.dispatcher && old.at("stage") == found.stage &&
               old.at("nodes") == found.nodes && old.at("gpus") == found.gpus;
      });
    });
    const std::string gpu = gpu_of_dispatches();
    for (const cluster::MeasuredDispatch& found : dispatches_) {
      ordered_json entry = {{"dispatcher", found.dispatcher},
                            {"stage", found.stage},
                            {"row_format", found.row_format},
                            {"nodes", found.nodes},
                            {"gpus", found.gpus},
                            {"tokens", found.tokens},
                            {"hidden", found.hidden},
                            {"k", found.top_k},
                            {"experts", found.experts}};
      if (found.sms > 0) entry["sms"] = found.sms;
      if (!gpu.empty()) entry["gpu"] = gpu;
      entry["time_us"] = found.time_us;
      entry["origin"] = found.origin;
      entries.push_back(std::move(entry));
    }
    json_["dispatches"] = std::move(entries);
  }

  // DeepEP's tests name none: that of the other logs, else the only one that the base is of.
  std::string gpu_of_dispatches() const {
    if (!links_.gpu.empty()) return links_.gpu;
    const std::vector<std::string> own = gpu_models_of(base_);
    const bool is_one = !own.empty() && std::all_of(own.begin(), own.end(), [&](const auto& each) {
      return each == own.front();
    });
    return is_one ? own.front() : "";
  }

  MeasuredExchange measured_of(const Key& key, const Curve& curve) const {
    MeasuredExchange measured;
    std::tie(measured.operation, measured.nodes, measured.gpus, measured.library) = key;
    for (const auto& [bytes, repeats] : curve.runs) {
      std::vector<double> times;
      for (const TimedRun& run : repeats) times.push_back(run.time_us);
      measured.bytes.push_back(bytes);
      measured.time_us.push_back(median(times));
    }
    RunQuantiles quantiles = quantiles_of(curve.runs);
    measured.p05_us = std::move(quantiles.p05_us);
    measured.p95_us = std::move(quantiles.p95_us);
    const std::string type =
        reduces(measured.operation) ? fmt::format(", {}", fmt::join(curve.types, ", ")) : "";
    measured.origin =
        fmt::format("measured: nccl-tests{}{}, {}", links_.gpu.empty() ? "" : " on " + links_.gpu,
                    type, fmt::join(curve.files, ", "));
    return measured;
  }

  static ordered_json json_of(const MeasuredExchange& measured) {
    ordered_json entry;
    entry["op"] = name_of(measured.operation);
    entry["nodes"] = measured.nodes;
    entry["gpus"] = measured.gpus;
    if (!measured.library.empty()) entry["library"] = measured.library;
    entry["origin"] = measured.origin;
    entry["bytes"] = ordered_json::array();
    for (const double bytes : measured.bytes) {
      entry["bytes"].push_back(static_cast<std::int64_t>(bytes));
    }
    entry["time_us"] = measured.time_us;
    if (!measured.p05_us.empty()) {
      entry["time_us_p05"] = measured.p05_us;
      entry["time_us_p95"] = measured.p95_us;
    }
    return entry;
  }

  // Keys ordered by exchange, and those of several libraries of one exchange in the order of
  // import.
  std::vector<Key> written_order() {
    const auto exchange = [](const Key& key) {
      return std::tuple{std::get<0>(key), std::get<1>(key), std::get<2>(key)};
    };
    std::vector<Key> keys = order_;
    std::stable_sort(keys.begin(), keys.end(), [&](const Key& one, const Key& other) {
      return exchange(one) < exchange(other);
    });
    for (std::size_t at = 1; at < keys.size(); ++at) {
      const bool is_last = at + 1 == keys.size() || exchange(keys[at + 1]) != exchange(keys[at]);
      if (!is_last || exchange(keys[at - 1]) != exchange(keys[at])) continue;
      note(fmt::format("{}: of several versions of NCCL: {} answers, which was imported last",
                       described(measured_of(keys[at], curves_.at(keys[at]))),
                       library_of(keys[at])));
    }
    return keys;
  }

  static std::string library_of(const Key& key) {
    const std::string& library = std::get<3>(key);
    return library.empty() ? "the one that is not named" : library;
  }

  // The base's own curves, but for those measured anew, and then these: the last one answers.
  void write_exchanges() {
    ordered_json entries = json_.value("exchanges", ordered_json::array());
    for (const Key& key : written_order()) {
      const Curve& curve = curves_.at(key);
      MeasuredExchange measured = measured_of(key, curve);
      if (curve.runs.size() < 2) {
        throw UsageError(fmt::format("{}: {}: one size: a curve takes at least two",
                                     fmt::join(curve.files, ", "), described(measured)));
      }
      if (measured.bytes.back() < static_cast<double>(least_largest)) {
        throw UsageError(fmt::format(
            "{}: {}: its sizes end at {:.0f} bytes, where latency still decides: larger ones would "
            "be wrong by orders of magnitude: measure up to {} MiB or more (nccl-tests -e 1G)",
            fmt::join(curve.files, ", "), described(measured), measured.bytes.back(),
            least_largest >> 20));
      }
      ordered_json entry = json_of(measured);
      std::erase_if(entries.get_ref<ordered_json::array_t&>(), [&](const auto& old) {
        return old.at("op") == entry.at("op") && old.at("nodes") == entry.at("nodes") &&
               old.at("gpus") == entry.at("gpus") && old.value("library", "") == measured.library;
      });
      note(fmt::format("{}{}: {} sizes from {}", described(measured),
                       measured.library.empty() ? "" : ", " + measured.library,
                       measured.bytes.size(), fmt::join(curve.files, ", ")));
      if (const auto doubt = contradiction_of(described(measured), curve.runs)) {
        note(*doubt +
             "; their median is taken, with a band that holds all of fewer than 20 runs: where one "
             "was disturbed or of another setting, import the others alone");
      }
      entries.push_back(std::move(entry));
      links_.exchanges.push_back(std::move(measured));
    }
    if (!entries.empty()) json_["exchanges"] = std::move(entries);
  }

  // The links are fitted to the curves of the base that stay too, as if all logs were imported
  // together: nic.start and nic.efficiency are what the part inside nodes, which a new log may
  // change, leaves of an exchange between them.
  void keep_exchanges_of_base() {
    const bool says_nothing = links_.exchanges.empty() && links_.nic_rates.empty() &&
                              links_.nic_latency.empty() && links_.copies.empty();
    if (says_nothing) return;
    const std::vector<MeasuredExchange> found = std::exchange(links_.exchanges, {});
    for (const MeasuredExchange& old : base_.exchanges) {
      const bool replaced = std::any_of(found.begin(), found.end(), [&](const auto& each) {
        return each.operation == old.operation && each.nodes == old.nodes &&
               each.gpus == old.gpus && each.library == old.library;
      });
      if (replaced) continue;
      if (const auto models = gpu_models(old.origin); links_.gpu.empty() && !models.empty()) {
        links_.gpu = models.front();
      }
      links_.exchanges.push_back(old);
    }
    links_.exchanges.insert(links_.exchanges.end(), found.begin(), found.end());
  }

  void note(std::string text) { notes_.push_back(std::move(text)); }

  const ClusterImport& request_;
  const Cluster& base_;
  ordered_json json_;
  std::map<Key, Curve> curves_;
  std::vector<Key> order_;  // of `curves_`, the one that was added to last at the end
  LinkEvidence links_;
  std::vector<cluster::MeasuredDispatch> dispatches_;
  std::map<std::string, RunsBySize> dispatch_runs_;  // by setting
  std::vector<std::string> names_, notes_;
  std::vector<std::string> left_out_;  // runs of other programs, as messages
  std::string model_file_;
};

}  // namespace

ClusterBase ClusterBase::load(const std::string& name_or_path) {
  const Document file = Document::load(find_document("clusters", name_or_path));
  Cluster cluster = Cluster::read(file);
  return {std::move(cluster), ordered_json::parse(json_text(file.root().json()))};
}

ImportedCluster import_cluster(const ClusterImport& request) {
  return import_cluster(request, ClusterBase::load(request.base));
}

ImportedCluster import_cluster(const ClusterImport& request, const ClusterBase& base) {
  return Importer(request, base).run();
}

}  // namespace moesim::study
