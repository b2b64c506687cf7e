#include "sim/study/validation/paper/published_study.hpp"

#include <fmt/format.h>

#include "sim/base/error.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/shipped.hpp"

namespace moesim::study {
namespace {

scenario::OptionValues read_options(const Node& node) {
  scenario::OptionValues values;
  for (const std::string& name : node.keys()) values[name] = node.text(name);
  return values;
}

ErrorLimit read_bar(const Node& node) { return {node.positive("mean"), node.positive("worst")}; }

RowRole read_role(const Node& row) {
  return value_in(row_role_names, row.text("role"),
                  fmt::format("{}: {}/role", row.file(), row.path()));
}

PublishedRow read_row(const Node& node) {
  PublishedRow row;
  row.role = read_role(node);
  row.options = read_options(node.at("options"));
  row.note = node.text_or("note", "");
  if (node.has("tokens_per_s_per_gpu")) {
    row.tokens_per_s_per_gpu = node.positive("tokens_per_s_per_gpu");
  } else if (row.role != RowRole::predict) {
    node.fail("a row to fit or check needs a measured speed", "tokens_per_s_per_gpu");
  }
  return row;
}

StudyMultiplier read_multiplier(const Node& node) {
  StudyMultiplier multiplier;
  multiplier.name = node.text("name");
  multiplier.why = node.text("why");
  for (const std::string& name : node.texts("classes")) {
    try {
      multiplier.classes.push_back(step::parse_kernel_class(name, "classes"));
    } catch (const UsageError& unknown_class) {
      node.fail(unknown_class.what(), "classes");
    }
  }
  return multiplier;
}

}  // namespace

PublishedStudy PublishedStudy::load(const std::string& name_or_path) {
  const Document document = Document::load(find_document("studies", name_or_path));
  document.validate("study.schema");
  const Node root = document.root();
  PublishedStudy study;
  study.name = root.text("name");
  study.title = root.text("title");
  study.source = root.text("source");
  study.options = read_options(root.at("options"));
  for (const Node& node : root.items("unknowns")) study.unknowns.push_back(read_multiplier(node));
  for (const Node& node : root.items("rows")) study.rows.push_back(read_row(node));
  const Node bars = root.at("bars");
  study.in_sample = read_bar(bars.at("in_sample"));
  study.leave_one_out = read_bar(bars.at("leave_one_out"));
  study.unfitted = read_bar(bars.at("unfitted"));
  return study;
}

}  // namespace moesim::study
