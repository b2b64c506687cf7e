#pragma once

namespace moesim {

// A job's GPUs are numbered over NVLink domains of `domain` GPUs, and its expert-parallel groups
// are `ranks` consecutive ones each. All are at least 1.

// How many GPUs of a group one domain holds, in blocks of which groups and domains both consist:
// the whole group where all GPUs are of the first domain.
int part_in_domain(int gpus, int ranks, int domain);
// Whether the ends of domains cut groups, each in its own way: not where every group has whole
// domains, or lies inside one.
bool domains_cut_groups(int gpus, int ranks, int domain);

}  // namespace moesim
