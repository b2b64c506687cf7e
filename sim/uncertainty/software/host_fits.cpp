#include "sim/uncertainty/software/host_fits.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/base/numbers.hpp"
#include "sim/uncertainty/software/penalised_fit.hpp"

namespace moesim::uncertainty {
namespace {

constexpr double log_two = 0.6931471805599453;

std::vector<Unknown> beside_host(const std::vector<Unknown>& free) {
  std::vector<Unknown> others;
  for (const Unknown unknown : free) {
    if (unknown != Unknown::host) others.push_back(unknown);
  }
  return others;
}

// How much less likely, in logs, the best fit with the host at its prior's mean may be and still be
// taken. A level that is off is dear where published steps tell it well, while the host's factor of
// two is assumed: without this most of a software that is slow in all of its parts would be
// explained by its host. A level that is about as open as the host shares with it what is slow.
double host_allowance(const std::vector<Unknown>& free, const SoftwarePrior& prior) {
  constexpr double known_better = 2;
  if (!holds(free, Unknown::level)) return 0;
  const double times = prior.deviation[at(Unknown::host)] / prior.deviation[at(Unknown::level)];
  return std::max(0.0, std::log(times / known_better));
}

// A host, the best fit with it, and the negative logarithm of how likely it is, whatever the others
// are: their integral, of a normal distribution around that fit (Laplace).
struct HostNode {
  double host = 0;
  StepFit fit;
  double cost = 0;
};

HostNode host_node(double host, const std::vector<MeasuredRow>& rows,
                   const std::vector<Unknown>& others, const SoftwarePrior& prior) {
  HostNode node{host, likeliest_from({host}, rows, others, prior), 0};
  node.cost = cost_of(rows, others, prior, node.fit) +
              square(host / prior.deviation[at(Unknown::host)]) / 2;
  const SymmetricMatrix matrix(others.size(),
                               normal_equations(rows, others, prior, node.fit).matrix);
  node.cost += matrix.log_determinant() / 2;
  node.fit.covariance[at(Unknown::host)][at(Unknown::host)] = 0;
  // The scatters hold what the unknowns leave open, which the integral counts too.
  for (const MeasuredRow& row : rows) {
    Unknowns slopes{};
    const Unknowns all =
        by_variables(log_slopes(row.at(node.fit.unknowns), node.fit.unknowns), prior);
    for (const Unknown unknown : others) slopes[at(unknown)] = all[at(unknown)];
    node.cost -= variance_along(slopes, node.fit.covariance) / 2 /
                 square(node.fit.scatter(row.predicted.kind).deviation);
  }
  return node;
}

// Hosts, as distances from the prior's mean: three of its deviations, and closer around each fit,
// by how well the slopes there tell it.
std::vector<double> hosts_around(const HostFits& fits, const std::vector<MeasuredRow>& rows,
                                 const std::vector<Unknown>& free, const SoftwarePrior& prior) {
  const std::size_t host = at(Unknown::host);
  std::vector<double> hosts;
  for (int step = -6; step <= 6; ++step) hosts.push_back(step * prior.deviation[host] / 2);
  for (const StepFit* fit : {&fits.taken, &fits.other}) {
    const Normal normal = normal_equations(rows, free, prior, *fit);
    const double deviation = std::sqrt(covariance_of(normal, free, prior)[host][host]);
    const double centre = fit->unknowns[host] - prior.mean[host];
    for (const double away :
         {-4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0}) {
      hosts.push_back(centre + away * deviation);
    }
  }
  std::sort(hosts.begin(), hosts.end());
  constexpr double same = 1e-6;
  const auto is_same = [](double one, double other) { return std::abs(one - other) < same; };
  hosts.erase(std::unique(hosts.begin(), hosts.end(), is_same), hosts.end());
  return hosts;
}

}  // namespace

bool prices_host(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free) {
  return holds(free, Unknown::host) && has_curves(rows);
}

HostFits host_fits(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                   const SoftwarePrior& prior) {
  StepFit likeliest =
      likeliest_from({0, -log_two, log_two, -2 * log_two, 2 * log_two}, rows, free, prior);
  const std::vector<Unknown> others = beside_host(free);
  StepFit kept = likeliest_from({0}, rows, others, prior);
  const double lost = cost_of(rows, others, prior, kept) - cost_of(rows, free, prior, likeliest);
  const double allowed = host_allowance(free, prior);
  const bool differ = std::abs(likeliest.unknowns[at(Unknown::host)] -
                               prior.mean[at(Unknown::host)]) > factors_apart;
  const bool keeps = allowed > 0 && lost < allowed;
  HostFits fits{keeps ? kept : likeliest, keeps ? likeliest : kept, keeps ? others : free};
  if (differ && (keeps || lost < fit_alike)) fits.taken.rival = fits.other.unknowns;
  return fits;
}

StepFit likeliest_fit(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                      const SoftwarePrior& prior) {
  if (!prices_host(rows, free)) return likeliest_from({0}, rows, free, prior);
  return host_fits(rows, free, prior).taken;
}

Covariance over_hosts(const std::vector<MeasuredRow>& rows, const std::vector<Unknown>& free,
                      const SoftwarePrior& prior, const HostFits& fits) {
  const StepFit& fit = fits.taken;
  const std::vector<Unknown> others = beside_host(free);
  std::vector<HostNode> nodes;
  double least = std::numeric_limits<double>::infinity();
  for (const double each : hosts_around(fits, rows, free, prior)) {
    nodes.push_back(host_node(each, rows, others, prior));
    least = std::min(least, nodes.back().cost);
  }
  Covariance covariance{};
  double sum = 0;
  for (std::size_t place = 0; place < nodes.size(); ++place) {
    const HostNode& node = nodes[place];
    const double before = nodes[place == 0 ? 0 : place - 1].host;
    const double after = nodes[std::min(place + 1, nodes.size() - 1)].host;
    const double weight = (after - before) / 2 * std::exp(least - node.cost);
    sum += weight;
    // As the covariances are: of the fit's own variables.
    Unknowns away = node.fit.unknowns;
    for (std::size_t unknown = 0; unknown < unknown_count; ++unknown) {
      away[unknown] -= fit.unknowns[unknown];
    }
    if (prior.crossing_apart) away[at(Unknown::nic)] += away[at(Unknown::exchange)];
    for (std::size_t row = 0; row < unknown_count; ++row) {
      for (std::size_t column = 0; column < unknown_count; ++column) {
        covariance[row][column] +=
            weight * (node.fit.covariance[row][column] + away[row] * away[column]);
      }
    }
  }
  for (Unknowns& row : covariance) {
    for (double& each : row) each /= sum;
  }
  return covariance;
}

}  // namespace moesim::uncertainty
