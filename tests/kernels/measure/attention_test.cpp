#include "kernels/measure/suites/attention.hpp"

#include <cmath>

#include "kernels/measure/sessions/plan.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;

TEST_CASE("the reference row is a softmax of scaled products over the values") {
  // Head size 4, so that scores are q k / 2: of keys with products 2 ln 3 and 0 they are ln 3 and
  // 0, the shares 3/4 and 1/4.
  const std::vector<double> query{2 * std::log(3.0), 0, 0, 0};
  const std::vector<double> keys{1, 0, 0, 0, 0, 5, 0, 0};
  const std::vector<double> values{8, 4, 0, -4, -8, 0, 4, 4};
  const measure::AttentionRow row = measure::attention_row(query, keys, values);
  const std::vector<double> out{4, 3, 1, -2}, size{8, 3, 1, 4};
  for (std::size_t at = 0; at < 4; ++at) {
    CHECK(row.out[at] == Approx(out[at]));
    CHECK(row.size[at] == Approx(size[at]));
  }
  // One key: its value, whatever the score, were it beyond what exp can hold.
  const std::vector<double> large{1e6, 0, 0, 0};
  const measure::AttentionRow alone =
      measure::attention_row(large, std::vector<double>(4, 1e3), std::vector<double>{1, 2, 3, 4});
  CHECK(alone.out == std::vector<double>{1, 2, 3, 4});
}

TEST_CASE("the attention suite is planned: each shape once, its work counted") {
  const measure::Plan plan = measure::make_plan({{"attention"}, {}, 1, 1}, 1, {});
  CHECK(plan.missing.empty());
  // 3 batches of 128 to 4,096 tokens (5 lengths), 2 of 8,192 and of 16,384; 7 widths.
  CHECK(plan.points.size() == (5 * 3 + 2 + 2) * 7);
  CHECK(plan.seconds() > 1);
  CHECK(plan.seconds() < 120);
  const auto one = measure::attention_point({2, 1024, 32, 8, 128});
  CHECK(one.label() ==
        "attention dtype=bf16 causal=true batch=2 sequence=1024 heads=32 kv_heads=8 head_dim=128");
  // Two products of 2 x 32 x 1024 x 1024 x 128 multiply-adds, half of them masked.
  CHECK(one.flops == 2.0 * 2 * 32 * 1024 * 1024 * 128);
  // Q and the output of 32 heads, K and V of 8, 2 bytes an element.
  CHECK(one.bytes == 2.0 * 2 * 1024 * 128 * (32 + 32 + 8 + 8));
  const auto shape = measure::attention_shape(one.params);
  CHECK(shape.kv_heads == 8);
  CHECK(shape.head_dim == 128);
}
