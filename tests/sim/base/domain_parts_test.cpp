#include "sim/base/domain_parts.hpp"

#include "tests/support/catch.hpp"

using namespace moesim;

TEST_CASE("groups of whole domains, and those inside one, are not cut") {
  CHECK_FALSE(domains_cut_groups(144, 72, 72));
  CHECK_FALSE(domains_cut_groups(288, 144, 72));
  CHECK_FALSE(domains_cut_groups(144, 36, 72));
  CHECK_FALSE(domains_cut_groups(16, 4, 1));  // every message takes a NIC
  CHECK(domains_cut_groups(96, 32, 48));
  CHECK(domains_cut_groups(74, 37, 72));
  // The first domain alone has none of the ends.
  CHECK_FALSE(domains_cut_groups(64, 32, 72));
  CHECK_FALSE(domains_cut_groups(66, 33, 72));
}

TEST_CASE("a domain has the same part of every group") {
  CHECK(part_in_domain(64, 32, 72) == 32);
  CHECK(part_in_domain(144, 144, 72) == 72);
  CHECK(part_in_domain(144, 36, 72) == 36);
  CHECK(part_in_domain(96, 32, 48) == 16);
  CHECK(part_in_domain(16, 4, 1) == 1);
}
