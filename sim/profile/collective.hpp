#pragma once

#include "sim/base/enum_names.hpp"

namespace moesim::profile {

enum class Collective { all_to_all, all_reduce, all_gather, reduce_scatter };

inline constexpr EnumNames<Collective, 4> collective_names{{
    {Collective::all_to_all, "all-to-all"},
    {Collective::all_reduce, "all-reduce"},
    {Collective::all_gather, "all-gather"},
    {Collective::reduce_scatter, "reduce-scatter"},
}};
constexpr const char* name_of(Collective kind) { return name_in(collective_names, kind); }

}  // namespace moesim::profile
