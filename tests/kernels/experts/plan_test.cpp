#include "kernels/experts/plan.hpp"

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::kernels;
using namespace moesim::kernels::experts;

TEST_CASE("a row-major product is asked of cuBLAS as the product of the transposes") {
  // y[5, 7] = x[5, 3] W[7, 3]^T: column-major y^T[7, 5] = W (3 x 7 there, transposed) x^T (3 x 5).
  const CublasGemm linear = column_major({5, 7, 3, false, true});
  CHECK(linear.a_transposed);
  CHECK_FALSE(linear.b_transposed);
  CHECK(linear.m == 7);
  CHECK(linear.n == 5);
  CHECK(linear.k == 3);
  CHECK(linear.a_rows == 3);
  CHECK(linear.b_rows == 3);
  CHECK(linear.c_rows == 7);
  CHECK_THROWS_AS(column_major({std::int64_t{1} << 31, 8, 8}), std::invalid_argument);
}

TEST_CASE("a padded plan multiplies equal shapes in one strided call") {
  const FfnShape shape{4, 16, 24};
  const FfnPlan plan = plan_ffn(shape, RowLayout::padded(4, 10));
  for (const auto* calls : {&plan.forward, &plan.backward}) {
    for (const ExpertGemm& call : *calls) {
      CHECK(call.form == GemmForm::strided_batched);
      CHECK(call.batch().count == 4);
    }
  }
  // up: hidden [10, 48] = x [10, 16] Wu^T per expert.
  const GemmBatch up = plan.forward[0].batch();
  CHECK(up.left_stride == 10 * 16);
  CHECK(up.right_stride == 48 * 16);
  CHECK(up.result_stride == 10 * 48);
  // dWd [16, 24] = dy^T activated.
  const GemmBatch down = plan.backward[1].batch();
  CHECK(down.left_stride == 10 * 16);
  CHECK(down.right_stride == 10 * 24);
  CHECK(down.result_stride == 16 * 24);
  // 6 h f FLOPs a row forward, twice that backward.
  CHECK(plan.forward_flops() == 6.0 * 16 * 24 * 40);
  CHECK(plan.backward_flops() == 2 * plan.forward_flops());
  CHECK(plan.elements(Tensor::hidden) == 40 * 48);
  CHECK(plan.bytes(Tensor::up_weight_gradient) == 2 * 4 * 48 * 16);
  CHECK(plan.table_bytes() == 0);
  CHECK_THAT(plan.needs(), ContainsSubstring("nothing"));
}

TEST_CASE("the form of a call follows from who has rows, and says why") {
  const FfnShape shape{3, 8, 8};
  const auto form = [&](const std::vector<std::int64_t>& rows, bool grouped) {
    return plan_ffn(shape, RowLayout::ragged(rows), {false, grouped}).forward[0];
  };
  CHECK(form({5, 0, 2}, true).form == GemmForm::grouped);
  CHECK(form({5, 0, 2}, true).blocks.size() == 2);
  CHECK(form({5, 0, 2}, true).blocks[1].left == 5 * 8);
  CHECK(form({5, 0, 2}, true).blocks[1].right == 2 * 16 * 8);
  CHECK(form({5, 0, 2}, false).form == GemmForm::one_by_one);
  CHECK_THAT(form({5, 0, 2}, false).reason, ContainsSubstring("12.5"));
  // 128 rows an expert on average, and one more.
  CHECK(form({200, 0, 56}, true).form == GemmForm::grouped);
  CHECK(form({200, 0, 57}, true).form == GemmForm::one_by_one);
  CHECK_THAT(form({200, 0, 57}, true).reason, ContainsSubstring("fills the GPU"));
  CHECK(form({0, 7, 0}, true).form == GemmForm::plain);
  CHECK(form({0, 0, 0}, true).form == GemmForm::none);
  CHECK(plan_ffn({1, 8, 8}, RowLayout::padded(1, 9)).forward[0].form == GemmForm::plain);

  const FfnPlan ragged = plan_ffn(shape, RowLayout::ragged({5, 0, 2}));
  CHECK(ragged.idle == std::vector<int>{1});
  CHECK(ragged.table_bytes() == 3 * 2 * sizeof(void*));  // left, right, result of two experts
  CHECK_THAT(ragged.needs(), ContainsSubstring("a wait") && ContainsSubstring("48 bytes"));
}

TEST_CASE("shapes that cannot be are refused by name") {
  const RowLayout rows = RowLayout::padded(2, 4);
  CHECK_THROWS_WITH(plan_ffn({2, 12, 16}, rows), ContainsSubstring("a hidden size of 12"));
  CHECK_THROWS_WITH(plan_ffn({2, 16, 0}, rows), ContainsSubstring("a FFN size of 0"));
  CHECK_THROWS_WITH(plan_ffn({3, 16, 16}, rows), ContainsSubstring("rows of 2 experts"));
  CHECK_THROWS_WITH(RowLayout::ragged({1, -2}), ContainsSubstring("-2 rows"));
}
