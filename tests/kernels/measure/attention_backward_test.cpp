#include "kernels/measure/suites/attention_backward.hpp"

#include <algorithm>
#include <bit>
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

// The nearest bf16, ties to even.
double bf16(double value) {
  auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
  bits = (bits + 0x7fffU + (bits >> 16U & 1U)) & 0xffff0000U;
  return std::bit_cast<float>(bits);
}

// Queries with their shares of one key, and the gradients of their outputs, of several heads.
struct Pairs {
  std::vector<double> shares;  // [heads, queries]
  Rows out_gradients;          // [heads, queries, dim]
};

// As the graph of a group computes it: shares in bf16, each head's sum in bf16, the sum of those.
Rows value_gradient(const Pairs& pairs, std::size_t heads) {
  Rows sums(dim);
  const std::size_t queries = pairs.shares.size() / heads;
  for (std::size_t place = 0; place < dim; ++place) {
    double sum = 0;
    for (std::size_t head = 0; head < heads; ++head) {
      double own = 0;
      for (std::size_t at = head * queries; at < (head + 1) * queries; ++at) {
        own += bf16(pairs.shares[at]) * pairs.out_gradients[at * dim + place];
      }
      sum += heads == 1 ? own : bf16(own);
    }
    sums[place] = bf16(sum);
  }
  return sums;
}

measure::AttentionRow reference(const Pairs& pairs) {
  // Scores of 0, so that the statistics alone make the share.
  const Rows nothing(dim), none(dim);
  measure::AttentionKeyGradients gradients(nothing, none);
  for (std::size_t at = 0; at < pairs.shares.size(); ++at) {
    gradients.add({nothing, none, row(pairs.out_gradients, at), -std::log(pairs.shares[at])});
  }
  return gradients.of_value();
}

// The pairs of the last key: one query of each head sees it, by shares as those of 2,048 keys.
Pairs last_key(moesim::Stream& stream, std::size_t heads) {
  Pairs pairs;
  for (std::size_t head = 0; head < heads; ++head) {
    pairs.shares.push_back((0.5 + stream.uniform()) / 2048);
    for (std::size_t place = 0; place < dim; ++place) {
      pairs.out_gradients.push_back(bf16(2 * stream.uniform() - 1));
    }
  }
  return pairs;
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

TEST_CASE("gradients of a group may be rounded twice, each time in the worst direction") {
  // 1 + 2^-8 and a little is rounded up to 1 + 2^-7, and its product with 1 + 65/128 again;
  // 1 + 3/256 less a little is rounded down to 1 + 2^-7, and its product with 1 + 63/128 again. The
  // terms of two heads each cancel but for 0.0081, and their errors, of 0.0097 each, add up.
  constexpr double little = 0x1p-20;
  Pairs worst;
  for (const bool up : {true, true, false, false}) {
    worst.shares.push_back(up ? 1 + 0x1p-8 + little : 1 + 3 * 0x1p-8 - little);
    worst.out_gradients.insert(worst.out_gradients.end(), dim, up ? 1 + 65 / 128. : -1 - 63 / 128.);
  }
  const measure::AttentionRow wanted = reference(worst);
  const Rows got = value_gradient(worst, 4);
  REQUIRE(got[0] - wanted.out[0] == Approx(0.0388).epsilon(0.01));
  REQUIRE(wanted.size[0] == Approx(6.047).epsilon(0.01));
  const int grouped = measure::key_gradient_roundings({1, 2048, 32, 8, 128});
  CHECK_FALSE(measure::wrong_element(got, wanted, grouped));
  // Without groups there is one rounding, and so much would be wrong.
  const int alone = measure::key_gradient_roundings({1, 2048, 32, 32, 128});
  CHECK(measure::wrong_element(got, wanted, alone) == 0U);
}

TEST_CASE("right gradients of the last key pass, those with a wrong mask, head or row do not") {
  moesim::Stream stream({12, moesim::Purpose::test_data});
  for (const std::size_t heads : {1U, 4U, 8U}) {
    const int roundings =
        measure::key_gradient_roundings({1, 2048, 32, 32 / static_cast<std::int64_t>(heads), 128});
    CHECK(roundings == (heads == 1 ? 1 : 2));
    for (int draw = 0; draw < 2000; ++draw) {
      const Pairs pairs = last_key(stream, heads);
      const measure::AttentionRow wanted = reference(pairs);
      CAPTURE(heads, draw);
      CHECK_FALSE(measure::wrong_element(value_gradient(pairs, heads), wanted, roundings));

      Pairs masked = pairs;  // the query before it sees the key too
      const Pairs before = last_key(stream, heads);
      masked.shares.clear(), masked.out_gradients.clear();
      for (std::size_t head = 0; head < heads; ++head) {
        for (const Pairs* each : {&pairs, &before}) {
          masked.shares.push_back(each->shares[head]);
          const auto of_head = row(each->out_gradients, head);
          masked.out_gradients.insert(masked.out_gradients.end(), of_head.begin(), of_head.end());
        }
      }
      CHECK(measure::wrong_element(value_gradient(masked, heads), wanted, roundings));

      Pairs other_head = pairs;  // its last head is one of another group
      const Pairs another = last_key(stream, heads);
      other_head.shares.back() = another.shares.back();
      std::copy_n(another.out_gradients.end() - dim, dim, other_head.out_gradients.end() - dim);
      CHECK(measure::wrong_element(value_gradient(other_head, heads), wanted, roundings));

      Pairs other_row = pairs;  // the gradients of the output are those of the token before
      other_row.out_gradients = before.out_gradients;
      CHECK(measure::wrong_element(value_gradient(other_row, heads), wanted, roundings));
    }
  }
}
