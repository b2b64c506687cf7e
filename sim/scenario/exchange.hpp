#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/base/enum_names.hpp"
#include "sim/profile/dispatcher.hpp"
#include "sim/scenario/idle_rules.hpp"
#include "sim/scenario/option.hpp"

namespace moesim::scenario {

enum class Dispatch { index, einsum };
inline constexpr EnumNames<Dispatch, 2> dispatch_names{
    {{Dispatch::index, "index", "gathered"},
     {Dispatch::einsum, "einsum", "by products with one-hot masks"}}};

// What an exchange without padding sends of a token that several of its GPUs' experts keep: a row
// for each expert (libraries on NCCL's all-to-all); one for each GPU; or one for each node (NVLink
// domain), to the GPU there of the sender's place in its own node, which forwards it to the others
// (DeepEP's kernels for training; DeepSeek-V3, arXiv:2412.19437, section 3.2.2). Rows go home the
// same way, added up where they were copied.
enum class Deduplication { none, gpu, node };
inline constexpr EnumNames<Deduplication, 3> deduplication_names{
    {{Deduplication::none, "none", "expert"},
     {Deduplication::gpu, "gpu", "GPU"},
     {Deduplication::node, "node", "NVLink domain, and on over NVLink, as DeepEP does"}}};

// How tokens get to their experts.
struct Exchange {
  Dispatch dispatch = Dispatch::index;
  Deduplication dedup = Deduplication::none;
  // What carries the rows that routing keeps, instead of NCCL's all-to-all; null: that.
  std::shared_ptr<const profile::Dispatcher> dispatcher;
  std::string dispatcher_name = "all-to-all";
};
inline constexpr const char* nccl_dispatcher = "all-to-all";
// NCCL's and those that ship (profiles/dispatchers): names, and what each is.
const std::vector<NamedValue>& dispatcher_forms();

void check_dispatch(const Scenario& scenario, Use use);
void check_dispatcher_text(const std::string& text, DocumentCache& documents);
// The deduplication is the dispatcher's own; UsageError where another one is typed.
void use_dispatcher(const std::string& text, Resolution& at);
void check_dispatcher(const Scenario& scenario, Use use);
std::uint64_t dispatcher_contents(const Scenario& scenario);
bool has_dispatcher(const Scenario& scenario);
std::string dispatcher_text(const Scenario& scenario);
void check_deduplication(const Scenario& scenario, Use use);

template <class Table>
void declare_exchange(Table& table) {
  table.choice("dispatch", dispatch_names, &Exchange::dispatch)
      .by_default("index")
      .help("how tokens get into the blocks of experts:")
      .applies(has_experts)
      .idle(without_moe_step)
      .checked(check_dispatch);
  table.choice("dedup", deduplication_names, &Exchange::dedup)
      .by_default("none")
      .help("without padding, a token whose experts share a place is sent once to each:")
      .affects(Affects::routing)
      .in_route(false)
      .applies(sends_counted_rows)
      .idle(without_own_rows)
      .checked(check_deduplication);
  table.text("dispatcher", "NAME|FILE", check_dispatcher_text, use_dispatcher, dispatcher_text)
      .forms(dispatcher_forms())
      .by_default(nccl_dispatcher)
      .help("what carries the rows that routing keeps:")
      .in_route(false)
      .after({"dedup"})
      .applies(has_dispatcher)
      .idle(without_exchange)
      .checked(check_dispatcher)
      .contents(dispatcher_contents);
}

}  // namespace moesim::scenario
