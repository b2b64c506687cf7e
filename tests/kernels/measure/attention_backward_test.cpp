#include "kernels/measure/suites/attention_backward.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/measure/sessions/plan.hpp"
#include "sim/base/random.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;

namespace {

constexpr std::size_t dim = 4, tokens = 5;
using Rows = std::vector<double>;  // [tokens, dim]

struct Head {
  Rows q, k, v, out_gradient;
};

std::span<const double> row(const Rows& rows, std::size_t at) {
  return std::span(rows).subspan(at * dim, dim);
}
std::span<const double> upto(const Rows& rows, std::size_t last) {
  return std::span(rows).first((last + 1) * dim);
}

// What the gradients are of: the sum of the output times its gradient.
double loss(const Head& head) {
  double sum = 0;
  for (std::size_t at = 0; at < tokens; ++at) {
    const auto out =
        measure::attention_row(row(head.q, at), upto(head.k, at), upto(head.v, at)).out;
    for (std::size_t place = 0; place < dim; ++place) {
      sum += out[place] * head.out_gradient[at * dim + place];
    }
  }
  return sum;
}

double difference(const Head& given, Rows Head::*of, std::size_t at) {
  Head head = given;
  constexpr double step = 1e-5;
  (head.*of)[at] += step;
  const double above = loss(head);
  (head.*of)[at] -= 2 * step;
  return (above - loss(head)) / (2 * step);
}

double statistics(const Head& head, std::size_t at) {
  std::vector<double> scores;
  for (std::size_t key = 0; key <= at; ++key) {
    double score = 0;
    for (std::size_t place = 0; place < dim; ++place) {
      score += head.q[at * dim + place] * head.k[key * dim + place];
    }
    scores.push_back(score / std::sqrt(static_cast<double>(dim)));
  }
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (const double score : scores) sum += std::exp(score - most);
  return most + std::log(sum);
}

Head random_head() {
  moesim::Stream stream({11, moesim::Purpose::test_data});
  Head head;
  for (Rows* rows : {&head.q, &head.k, &head.v, &head.out_gradient}) {
    for (std::size_t at = 0; at < tokens * dim; ++at) rows->push_back(stream.normal());
  }
  return head;
}

}  // namespace

TEST_CASE("the reference gradients of attention are finite differences of its output") {
  const Head head = random_head();
  std::vector<Rows> outs;
  for (std::size_t at = 0; at < tokens; ++at) {
    outs.push_back(measure::attention_row(row(head.q, at), upto(head.k, at), upto(head.v, at)).out);
  }
  const auto query = [&](std::size_t at) {
    return measure::AttentionQuery{row(head.q, at), outs[at], row(head.out_gradient, at),
                                   statistics(head, at)};
  };
  for (std::size_t at = 0; at < tokens; ++at) {
    const measure::AttentionRow q =
        measure::attention_query_gradient(query(at), upto(head.k, at), upto(head.v, at));
    measure::AttentionKeyGradients own(row(head.k, at), row(head.v, at));
    for (std::size_t later = at; later < tokens; ++later) own.add(query(later));
    for (std::size_t place = 0; place < dim; ++place) {
      CAPTURE(at, place);
      const std::size_t element = at * dim + place;
      CHECK(q.out[place] == Approx(difference(head, &Head::q, element)).margin(1e-7));
      CHECK(own.of_key().out[place] == Approx(difference(head, &Head::k, element)).margin(1e-7));
      CHECK(own.of_value().out[place] == Approx(difference(head, &Head::v, element)).margin(1e-7));
      CHECK(q.size[place] >= std::abs(q.out[place]));
      CHECK(own.of_key().size[place] >= std::abs(own.of_key().out[place]));
      CHECK(own.of_value().size[place] >= std::abs(own.of_value().out[place]));
    }
  }
}

TEST_CASE("the backward suite has shapes of the forward suite, its work counted") {
  const auto forward = measure::attention_suite().points(1);
  const auto backward = measure::attention_backward_suite().points(1);
  CHECK(backward.size() == 40);
  for (const measure::PointSpec& spec : backward) {
    CHECK(std::any_of(forward.begin(), forward.end(),
                      [&](const auto& other) { return other.params == spec.params; }));
  }
  const measure::Plan plan = measure::make_plan({{"attention-backward"}, {}, 1, 1}, 1, {});
  CHECK(plan.seconds() < 90);
  const auto one = measure::attention_backward_point({2, 1024, 32, 8, 128});
  CHECK(one.flops == 5.0 * 2 * 32 * 1024 * 1024 * 128);
}
