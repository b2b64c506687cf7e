#include "sim/study/search/scaling.hpp"

#include <algorithm>

namespace moesim::study {
namespace {

double per_gpu(const ScalingPoint& point) { return point.tokens_per_s / point.gpus; }

}  // namespace

double added_gpu_gain(const ScalingPoint& last, const ScalingPoint& point, double best_per_gpu) {
  return (point.tokens_per_s - last.tokens_per_s) / (point.gpus - last.gpus) / best_per_gpu;
}

std::vector<ScalingFigures> scaling_of(const std::vector<ScalingPoint>& points, double least) {
  std::vector<ScalingFigures> found;
  std::size_t last = 0;  // that pays
  double most = 0;       // per GPU, of those that pay
  for (std::size_t at = 0; at < points.size(); ++at) {
    const ScalingPoint& point = points[at];
    ScalingFigures figures;
    figures.last = last;
    figures.best_per_gpu = at == 0 ? per_gpu(point) : most;
    if (at > 0) {
      figures.efficiency = per_gpu(point) / per_gpu(points.front());
      figures.gain = added_gpu_gain(points[last], point, most);
      figures.pays = *figures.gain >= least;
    }
    if (figures.pays) {
      last = at;
      most = std::max(most, per_gpu(point));
    }
    found.push_back(figures);
  }
  return found;
}

int pays_up_to(const std::vector<ScalingPoint>& points, double least) {
  const std::vector<ScalingFigures> figures = scaling_of(points, least);
  int most = 0;
  for (std::size_t at = 0; at < points.size(); ++at) {
    if (figures[at].pays) most = points[at].gpus;
  }
  return most;
}

}  // namespace moesim::study
